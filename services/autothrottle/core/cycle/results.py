"""What became of a cycle: the results of its decision, and its record. The types are `CycleResults`, `Cycle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.cycle.decision import Action, WakeUp
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.records import Outcome, OutcomeStatus, Submission
from autothrottle.core.throttles.changes import Applied


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of one action that was tried."""

    action: Action
    done: bool = True
    """Whether it was carried out. False: its override or catch-up has changed, or its caller has withdrawn it."""
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partition that Kafka refused -> the reason; only for a `SubmissionRequest`."""
    error: AutothrottleError | None = None


@dataclass(frozen=True, slots=True)
class CycleResults:
    """What became of a decision."""

    at: datetime
    """UTC, when the changes were written."""
    clock: float
    """Monotonic time at the same moment, in seconds."""
    outcomes: tuple[Outcome, ...] = ()
    """Those of the decision, then one for each change."""
    actions: tuple[ActionResult, ...] = ()
    error: AutothrottleError | None = None
    """Why the rest was not tried; None: everything was."""
    are_written: bool = True
    """Whether the changes were tried; otherwise their outcomes are unknown."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What to report of a cycle, besides its decision."""

    outcomes: tuple[Outcome, ...] = ()
    applied: Applied = Applied()  # noqa: RUF009 (frozen)
    wake_ups: tuple[WakeUp, ...] = ()
    answer: Submission | AutothrottleError | None = None
    """The result for the caller who waits for a reassignment; None: not yet."""

    @property
    def refused(self) -> tuple[Outcome, ...]:
        """The outcomes of refused changes."""
        return tuple(outcome for outcome in self.outcomes if outcome.status is OutcomeStatus.REFUSED)

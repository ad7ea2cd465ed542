"""What became of a cycle: the results of its decision, and its record. The types are `CycleResults`, `CycleRecord`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.cycle.contribution import Action, WakeUp
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.operators.pause import Pause
from autothrottle.core.operators.submission import Submitted
from autothrottle.core.throttles.changes import Applied, Outcome, OutcomeStatus
from autothrottle.core.throttles.ownership import ForeignThrottle
from autothrottle.core.throttles.plan import Decision


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of one action that was tried."""

    action: Action
    done: bool = True
    """Whether it was carried out. False: its override or catch-up has changed, or its caller has withdrawn it."""
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partition that Kafka refused -> the reason; only for `Submit`."""
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
    answer: Submitted | AutothrottleError | None = None
    """The result for the caller who waits for a reassignment; None: not yet."""

    @property
    def refused(self) -> tuple[Outcome, ...]:
        """The outcomes of refused changes."""
        return tuple(outcome for outcome in self.outcomes if outcome.status is OutcomeStatus.REFUSED)


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """One finished cycle."""

    term: int
    """The fence of the term that ran it."""
    number: int
    """Its number within the term, from 1."""
    start: datetime
    """UTC."""
    end: datetime
    """UTC; not before `start`."""
    reason: str
    """What started it: `interval`, or the event."""
    sentence: str
    """One sentence that says what the cycle did."""
    topics: tuple[str, ...]
    """The topics in reassignment."""
    decisions: tuple[Decision, ...]
    """Ordered by broker and role."""
    outcomes: tuple[Outcome, ...]
    """One for each resource with a change."""
    findings: tuple[str, ...]
    """Foreign edits of our keys, and what could not be read; one sentence each."""
    error: str = ""
    """Why the cycle failed; "": it did not."""
    bytes_left: int | None = None
    """Bytes left to copy, summed over the known flows; None: no reassignment, or nothing is known."""
    eta: datetime | None = None
    """When the last byte is copied at the rate of the last minutes, UTC; None: unknown."""
    pause: Pause | None = None
    """The pause that prevented any decision; None: not paused."""
    shadow: bool = False
    """Whether it ran in shadow mode, which writes nothing."""
    foreign: tuple[ForeignThrottle, ...] = ()
    """Foreign throttles while nothing is in reassignment, by resource and key; they stay, or wait for the clean-up."""
    eta_low: datetime | None = None
    """Earliest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Latest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_is_static: bool = False
    """Whether `eta` is not measured yet, but computed as bytes left divided by the current throttles."""


@dataclass(frozen=True, slots=True)
class PlannerState:
    """The leadership as one planner knows it, and its last cycle."""

    leading: bool = False
    """Whether this planner leads."""
    term: int = 0
    """The newest term that it knows; 0: none."""
    leader_address: str = ""
    """The leader's address; "": unknown."""
    last_cycle: CycleRecord | None = None
    """The last cycle that this planner ran; None: none yet."""
    failures: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> consecutive scheduled cycles without usable metrics."""
    leader_since: datetime | None = None
    """When the leader's term began, UTC; None: unknown."""
    leader_host: str = ""
    """Name of the leader's host; "": unknown."""
    cluster_name: str = ""
    """Name of the Kafka cluster; "": unknown."""

"""What a cycle decided, what each concern adds to it, and what became of it.

The types to know are `Contribution`, `CycleDecision` and `CycleResults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.moves import MoveOutcome
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.cycle.input import ControllerState, SnapshotViews
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.forecast.progress import Remainder
from autothrottle.core.operators.sources import Overrides, ScheduleWindow
from autothrottle.core.operators.submission import SubmissionRequest
from autothrottle.core.policy.interface import Limits
from autothrottle.core.quotas.keys import TemporaryQuota
from autothrottle.core.records import CatchUp, Decision, Outcome, OutcomeStatus, Pause, Submission
from autothrottle.core.throttles.changes import Applied, Change, RampState
from autothrottle.core.throttles.ownership import ForeignThrottles
from autothrottle.core.throttles.plan import Plan
from autothrottle.core.traffic.loads import Loads


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A request for another cycle."""

    reason: str
    after: timedelta = timedelta(0)
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class PurgeOverride:
    """Removes an override at the version that was read."""

    broker_id: int | None
    """None: the cluster override."""
    version: int
    reason: str
    needs: frozenset[ConfigResource] = frozenset()
    """Resources whose change must not have been refused; so in the other actions."""


@dataclass(frozen=True, slots=True)
class PurgeCatchUp:
    """Ends the catch-up of a broker that is in sync."""

    catch_up: CatchUp
    needs: frozenset[ConfigResource] = frozenset()


@dataclass(frozen=True, slots=True)
class PurgeQuota:
    """Ends a temporary client quota whose earlier values are restored."""

    quota: TemporaryQuota
    reason: str
    needs: frozenset[ConfigResource] = frozenset()


Action = SubmissionRequest | PurgeOverride | PurgeCatchUp | PurgeQuota


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one concern adds to the decision of a cycle."""

    changes: tuple[Change, ...] = ()
    refused: tuple[Outcome, ...] = ()
    """Resources that cannot be read; nothing is written to them."""
    actions: tuple[Action, ...] = ()
    findings: tuple[str, ...] = ()
    """One sentence each."""
    wake_ups: tuple[WakeUp, ...] = ()
    answer: AutothrottleError | None = None
    """Why the reassignment that a caller waits for cannot be submitted."""

    @property
    def resources(self) -> frozenset[ConfigResource]:
        """The resources that are changed, or whose change is refused."""
        return frozenset(change.resource for change in self.changes).union(o.resource for o in self.refused)


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


@dataclass(frozen=True)
class Settled:
    """What to report of a cycle, besides its decision. The class has no slots, so that `refused` is cached."""

    outcomes: tuple[Outcome, ...] = ()
    applied: Applied = Applied()  # noqa: RUF009 (frozen)
    wake_ups: tuple[WakeUp, ...] = ()
    answer: Submission | AutothrottleError | None = None
    """The result for the caller who waits for a reassignment; None: not yet."""

    @cached_property
    def refused(self) -> tuple[Outcome, ...]:
        """The outcomes of refused changes."""
        return tuple(outcome for outcome in self.outcomes if outcome.status is OutcomeStatus.REFUSED)


@dataclass(frozen=True)
class CycleDecision:
    """What a cycle decided. `apply` carries out the changes first, then the actions in their order."""

    state: ControllerState
    """The next state; `settle` completes it."""
    at: datetime
    scheduled: bool
    view: SnapshotViews = SnapshotViews()  # noqa: RUF009 (frozen)
    remainder: Remainder | None = None
    """Bytes left to copy, with the measured ETA. None: no reassignment runs, or they are unknown."""
    pause: Pause | None = None
    overrides: Overrides = Overrides()  # noqa: RUF009 (frozen)
    """The active overrides."""
    loads: Loads = Loads()  # noqa: RUF009 (frozen)
    limits: Limits | None = None
    """The operator's limits at this time; None: no rates were decided."""
    window: ScheduleWindow | None = None
    """The schedule's window at this time; also None if no rates were decided."""
    plan: Plan = Plan()  # noqa: RUF009 (frozen)
    unwritten: tuple[Decision, ...] = ()
    """While paused: the rates that would be written otherwise, with their measurements."""
    ramp: RampState = RampState()  # noqa: RUF009 (frozen)
    """The ramps that continue once the changes are written."""
    changes: tuple[Change, ...] = ()
    would: tuple[Change, ...] = ()
    """In shadow mode: the changes that are not written."""
    refused: tuple[Outcome, ...] = ()
    """Resources that cannot be read; nothing is written to them."""
    invalid_lists: int = 0
    """Topics with a foreign replica list that no broker applies."""
    actions: tuple[Action, ...] = ()
    findings: tuple[str, ...] = ()
    """One sentence each."""
    stale: tuple[str, ...] = ()
    """Topics whose replica lists are stale because of a pause."""
    foreign: ForeignThrottles = field(default_factory=dict)
    """Foreign throttles while there are no reassignments, without those that this cycle removes."""
    stalled: tuple[str, ...] = ()
    """New stalls, one sentence each."""
    wake_ups: tuple[WakeUp, ...] = ()
    answer: AutothrottleError | None = None
    """Why the requested reassignment cannot be submitted."""
    ticket: int = 0
    """Ticket of the requested reassignment that this decision throttles; 0: none."""
    needs: frozenset[ConfigResource] = frozenset()
    """Resources that must be throttled before that reassignment is submitted."""
    ended_moves: Mapping[TopicPartition, MoveOutcome] = field(default_factory=dict)
    """Partition whose reassignment has ended -> how."""
    clock_change: timedelta | None = None
    """How far the wall clock was changed since the last cycle; None: it was not."""
    error: AutothrottleError | None = None
    """Why nothing could be decided; None: it was."""
    between_cycles: bool = False
    """Whether it has only the ramp steps that are due between two cycles."""

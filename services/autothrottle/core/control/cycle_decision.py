"""The output of one cycle: its decision, the results, and what to report. The type to know is `CycleDecision`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.snapshot import (
    Snapshot,
    TopicPartition,
    TopicReassignment,
)
from autothrottle.core.control.catch_up import CatchUp, with_lagging
from autothrottle.core.control.changes import (
    Applied,
    Change,
    Outcome,
    OutcomeStatus,
)
from autothrottle.core.control.overrides import Overrides
from autothrottle.core.control.ownership import ForeignThrottles
from autothrottle.core.control.pause import Pause
from autothrottle.core.control.plan import Plan
from autothrottle.core.control.state import ControllerState
from autothrottle.core.control.submission import Submitted, Targets, with_proposed
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.forecast.progress import Remainder
from autothrottle.core.policy.limits import Limits
from autothrottle.core.traffic.loads import Loads


@dataclass(frozen=True)
class SnapshotViews:
    """One snapshot, with the replicas that are copied for another reason than a running reassignment."""

    read: Snapshot = Snapshot.empty()  # noqa: RUF009 (frozen)
    """The cluster as read."""
    proposed: Targets = field(default_factory=dict)
    """Partitions to submit, which Kafka has not received."""
    unseen: Targets = field(default_factory=dict)
    """Submitted partitions that the snapshot does not contain yet."""
    lagging: Mapping[int, frozenset[TopicPartition]] = field(default_factory=dict)
    """Broker that catches up -> its out-of-sync replicas outside of reassignments."""

    @cached_property
    def to_throttle(self) -> Snapshot:
        """The cluster as if every reassignment and catch-up had started: the input of the decisions."""
        with_submissions = with_proposed(self.read, {**self.unseen, **self.proposed})
        if with_submissions is self.read:
            return self.copying
        return with_lagging(with_submissions, self.lagging)

    @cached_property
    def copying(self) -> Snapshot:
        """All that is being copied, or will be once the brokers run; without what is only proposed."""
        return with_lagging(self.read, self.lagging)

    @cached_property
    def may_be_exempt(self) -> tuple[TopicReassignment, ...]:
        """`copying` without proposed partitions: those are throttled whatever their ISR is."""
        if not self.proposed:
            return self.copying.reassignments
        lags = {broker_id: rows.difference(self.proposed) for broker_id, rows in self.lagging.items()}
        return with_lagging(self.read, lags).reassignments


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A request for another cycle."""

    reason: str
    after: timedelta = timedelta(0)
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Submit:
    """Submits a throttled reassignment to Kafka, unless its caller has withdrawn it."""

    ticket: int
    start: Targets
    needs: frozenset[ConfigResource] = frozenset()
    """Resources whose change must not have been refused; so in the other actions."""


@dataclass(frozen=True, slots=True)
class PurgeOverride:
    """Removes an override at the version that was read."""

    broker_id: int | None
    """None: the cluster override."""
    version: int
    reason: str
    needs: frozenset[ConfigResource] = frozenset()


@dataclass(frozen=True, slots=True)
class PurgeCatchUp:
    """Ends the catch-up of a broker that is in sync."""

    catch_up: CatchUp
    needs: frozenset[ConfigResource] = frozenset()


Action = Submit | PurgeOverride | PurgeCatchUp


@dataclass(frozen=True)
class CycleDecision:
    """What a cycle decided. `apply` carries out the changes first, then the actions in their order."""

    state: ControllerState
    """The next state; `settle` completes it."""
    at: datetime
    scheduled: bool
    view: SnapshotViews = SnapshotViews()
    left: Remainder | None = None
    """Bytes left to copy, with the ETA. None: no reassignment runs, or they are unknown."""
    pause: Pause | None = None
    overrides: Overrides = Overrides()  # noqa: RUF009 (frozen)
    """The active overrides."""
    loads: Loads = Loads()  # noqa: RUF009 (frozen)
    limits: Limits | None = None
    """The operator's limits at this time; None: no rates were decided."""
    plan: Plan = Plan()  # noqa: RUF009 (frozen)
    changes: tuple[Change, ...] = ()
    would: tuple[Change, ...] = ()
    """In shadow mode: the changes that are not written."""
    refused: tuple[Outcome, ...] = ()
    """Resources that cannot be read; nothing is written to them."""
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
    """Why the wanted reassignment cannot be submitted."""
    ticket: int = 0
    """Ticket of the wanted reassignment that this decision throttles; 0: none."""
    needs: frozenset[ConfigResource] = frozenset()
    """Resources that must be throttled before that reassignment is submitted."""
    clock_change: timedelta | None = None
    """How far the wall clock was changed since the last cycle; None: it was not."""
    error: AutothrottleError | None = None
    """Why nothing could be decided; None: it was."""


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

"""The input of a cycle: the operator's configuration, what the planner remembers, and what was read.

The types to know are `ControllerState`, `CycleObservation` and `StepInput`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from operator import attrgetter

from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource, LedgerEntry
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.moves import MoveHistory
from autothrottle.core.cluster.snapshot import Snapshot, SnapshotRequest, TopicPartition, TopicReassignment
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.forecast.outages import OutageWatch
from autothrottle.core.operators.sources import (
    NO_SCHEDULE,
    AdoptedSources,
    KnownSources,
    Overrides,
    Schedule,
    partitions_on,
    with_lagging,
)
from autothrottle.core.operators.submission import SubmissionRequest, SubmissionState, Targets, with_proposed
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Limits, Policy
from autothrottle.core.quotas.keys import ClientReading, QuotaState
from autothrottle.core.quotas.yield_state import QuotaControlState
from autothrottle.core.throttles.changes import RampState, WriteHistory
from autothrottle.core.throttles.foreign_edits import NO_CONTESTS, Contests
from autothrottle.core.throttles.guards import GuardState, ThrottleEffect
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.traffic.replication import ThrottleHistory
from autothrottle.core.units import BytesPerSecond


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """The operator's configuration."""

    limits: Limits
    policy: Policy = AdaptivePolicy()  # noqa: RUF009 (frozen)
    """The policy at the start, before it has learned anything."""
    interval: timedelta = timedelta(seconds=180)
    """Time between two scheduled cycles, >= 1 s."""
    metrics_window: timedelta = timedelta(seconds=120)
    """How long event cycles may use the last loads."""
    cleanup_after: int = 60
    """Idle intervals after which foreign throttles are removed, >= 1; only with `cleanup_foreign`."""
    cleanup_foreign: bool = False
    schedule: Schedule = NO_SCHEDULE
    """Hours with another share of the headroom."""
    finish_by: datetime | None = None
    """Deadline of reassignments, UTC: they get no more than twice the rate that it needs. None: as fast as possible."""
    shadow: bool = False
    """Whether to decide and record, but not write, post or submit anything."""
    cluster: str = "kafka"
    """The cluster's name in the decision log, events, traces and the state."""
    state_topic: str = ""
    """The topic of our own state, which is never throttled; "": our state is in ZooKeeper."""


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """What a term remembers of its throttles from cycle to cycle."""

    failures: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> consecutive scheduled cycles without usable metrics."""
    history: ThrottleHistory = field(default_factory=ThrottleHistory)
    policy: Policy | None = None
    """The policy with what it has learned; None: nothing yet."""
    after_reassignment: bool = False
    """Whether there was a reassignment since the last purge of an autoremove override."""
    withdrawn: bool = False
    """Whether the lists in the ledger belong to a catch-up or to a submission that failed, not to a reassignment."""
    guards: GuardState = GuardState()  # noqa: RUF009 (frozen)
    effect: ThrottleEffect = field(default_factory=ThrottleEffect)
    contests: Contests = NO_CONTESTS
    """The parties that edit our throttles."""
    capacities: Mapping[LinkSide, BytesPerSecond] = field(default_factory=dict)
    """Link side -> its capacity as last known, bytes/s: an override stays limited while the metrics fail."""

    def without_measurements(self) -> ThrottleState:
        """Return the state without measurements, whose age is wrong after the wall clock was changed."""
        return replace(self, history=ThrottleHistory(), policy=None, guards=GuardState(), effect=ThrottleEffect())


_METRICS_PAUSE = timedelta(seconds=15)
"""Time after a failed read in which event cycles do not read metrics, so that a hanging source does not delay them."""


FIRST_LOADS = timedelta(seconds=4)
"""Time from the first cycle with new copies to the next read of current loads: log sizes are counted by then."""

_CURRENT = timedelta(seconds=15)
"""Largest age of loads of the present when they are read; delayed metrics are minutes old."""


@dataclass(frozen=True, slots=True)
class KnownLoads:
    """The loads as last read in this term."""

    loads: Loads = Loads()  # noqa: RUF009 (frozen)
    read_at: float | None = None
    """Monotonic time of the last attempt, in seconds; None: none yet."""
    error: str = ""
    """Why the last attempt failed; "": it did not."""

    begun_at: float | None = None
    """Monotonic time at which a link side began to copy since then, in seconds; None: none did."""

    @property
    def are_lost(self) -> bool:
        """Whether the source did not answer, or has the load of no broker and says why."""
        return bool(self.error) or (bool(self.loads.problems) and not self.loads.brokers)

    def are_due(self, clock: float, window: timedelta) -> bool:
        """Return whether the loads are too old for an event cycle. Scheduled cycles read them in any case.

        When a link side begins to copy, they are read again soon, so that they cover counted copies, if their source
        answers with the present.
        """
        if self.read_at is None:
            return True
        if self.begun_at is not None and clock - self.begun_at >= FIRST_LOADS.total_seconds():
            return True
        lifetime = _METRICS_PAUSE if self.error else window
        return clock - self.read_at >= lifetime.total_seconds()

    def are_current(self, clock_origin: datetime) -> bool:
        """Return whether they were of the present when they were read.

        Args:
            clock_origin: wall-clock time at monotonic zero.
        """
        if self.read_at is None or not self.loads.traffic:
            return False
        read_at = clock_origin + timedelta(seconds=self.read_at)
        return max(used.end for used in self.loads.traffic.values()) >= read_at - _CURRENT


@dataclass(frozen=True, slots=True)
class TermState:
    """State that lasts from cycle to cycle within a term. Each term starts with an empty one."""

    fence: int = 0
    """0: no term."""
    cycles: int = 0
    """Number of the last cycle."""
    clock_origin: datetime | None = None
    """Wall-clock time at monotonic zero, as of the last cycle; None: no cycle yet."""
    version: int = 0
    """Version of the last snapshot."""
    accepts_partial: bool = False
    """Whether the next snapshot may be partial: the last one was whole and without a reassignment, and its cycle wrote
    nothing. A partial snapshot may be older than a write: discovery hands it out without reading again."""
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """The ledger after the last cycle, so that an entry that the store loses does not make our values foreign."""
    sources: KnownSources = KnownSources()  # noqa: RUF009 (frozen)
    loads: KnownLoads = KnownLoads()
    isr_partitions: frozenset[TopicPartition] = frozenset()
    """Partitions with a replica on a broker of `brokers_with_isr`, as last read."""
    moves: MoveHistory = MoveHistory()  # noqa: RUF009 (frozen)
    throttles: ThrottleState = ThrottleState()
    has_reassignments: bool = False
    """Whether there was a reassignment in the last cycle that could write."""
    foreign_cycles: int = 0
    """Scheduled cycles with foreign throttles and without a reassignment, without a gap."""
    troubles: int = 0
    """Consecutive failed cycles."""
    submissions: SubmissionState = SubmissionState()  # noqa: RUF009 (frozen)
    quotas: QuotaControlState = QuotaControlState()  # noqa: RUF009 (frozen)
    ramp: RampState = RampState()  # noqa: RUF009 (frozen)
    outages: OutageWatch = OutageWatch()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, slots=True)
class ControllerState:
    """All that a planner remembers between cycles."""

    term: TermState = TermState()
    written: WriteHistory = WriteHistory()  # noqa: RUF009 (frozen)
    """Survives terms."""

    def begin_term(self, fence: int) -> ControllerState:
        """Return the state at the start of a term."""
        return ControllerState(TermState(fence), self.written)

    def after_bug(self, is_counted: bool) -> ControllerState:
        """Return the state after an unexpected error in a cycle.

        Args:
            is_counted: whether `step` has already counted the cycle.
        """
        term = self.term
        term = replace(term, cycles=term.cycles + (not is_counted), troubles=term.troubles + 1)
        return ControllerState(term, self.written)


@dataclass(frozen=True, slots=True)
class SettingsReading:
    """The broker and topic settings as last read in the background."""

    settings: ClusterSettings = ClusterSettings()  # noqa: RUF009 (frozen)
    complete_for: tuple[Collection[int], Collection[str]] | None = None
    """(broker ids, topics) that the last read asked for; None: a read is due or has not ended."""


@dataclass(frozen=True, slots=True)
class CycleObservation:
    """The input of one cycle."""

    at: datetime
    """UTC, when everything was read."""
    clock: float
    """Monotonic time at the same moment, in seconds."""
    scheduled: bool
    """Whether it is the regular cycle of an interval. Only those count failures and idle intervals."""
    sources: AdoptedSources
    snapshot: Snapshot | AutothrottleError
    """The error may also be that of a source that the term has never read."""
    isr_partitions: frozenset[TopicPartition] = frozenset()
    """Partitions with a replica on a broker of `brokers_with_isr`."""
    loads: KnownLoads | None = None
    """The loads; None: not read for this cycle."""
    settings: SettingsReading = SettingsReading()
    quotas: QuotaState | AutothrottleError | None = None
    """The client quotas of `quotas_needed`; None: not read."""
    clients: ClientReading | AutothrottleError | None = None
    """The clients that Kafka knows; None: not read for this cycle."""
    request: SubmissionRequest | None = None
    """The reassignment that a caller waits for; None: no caller waits."""
    cancelled: frozenset[TopicPartition] = frozenset()
    """Partitions whose reassignment was cancelled since the last cycle."""
    ended_partitions: frozenset[TopicPartition] = frozenset()
    """Partitions whose reassignment has ended, and whose assignments the snapshot contains, if they still exist."""


MAX_ISR_PARTITIONS = 400_000
"""Limit of the partitions on brokers with an override whose ISR a cycle reads."""


def brokers_with_isr(request: SnapshotRequest, snapshot: Snapshot) -> frozenset[int]:
    """Return the brokers whose in-sync replicas a cycle must know: the ISR of all their partitions is read.

    These are the brokers that catch up, and those with an override that take part in a reassignment.
    """
    return frozenset(snapshot.participants).intersection(request.replicas_of).union(request.catching_up)


def partitions_with_isr(request: SnapshotRequest, snapshot: Snapshot) -> frozenset[TopicPartition]:
    """Return the partitions on these brokers, at most `MAX_ISR_PARTITIONS`; those of catch-ups are first.

    A partition beyond the limit counts as one whose ISR is unknown: the override of its broker lists it.
    """
    if not request.replicas_of:
        return frozenset()
    urgent = partitions_on(snapshot, request.catching_up)
    others = partitions_on(snapshot, brokers_with_isr(request, snapshot)) - urgent
    return urgent.union(islice(sorted(others), max(0, MAX_ISR_PARTITIONS - len(urgent))) if others else ())


def needed(term: TermState, sources: KnownSources, request: SubmissionRequest | None, now: datetime) -> SnapshotRequest:
    """Return what the snapshot of a cycle must contain: the replicas of brokers that catch up or have an override.

    Args:
        term: the state; `isr_partitions` has the partitions whose ISR is read, as far as they are known.
        sources: those that apply in the cycle.
        request: the reassignment that a caller waits for.
        now: UTC.
    """
    overridden = sources.overrides.acting(now).active_brokers if sources.overrides else frozenset()
    rows = {
        *term.submissions.unseen,
        *(request.targets if request else ()),
        *term.isr_partitions,
        *term.moves.unsettled,
    }
    catching_up = tuple(sorted(sources.catch_ups))
    return SnapshotRequest(
        replicas_of=tuple(sorted(overridden.union(catching_up))),
        partitions=tuple(sorted(rows)),
        catching_up=catching_up,
        accept_partial=term.accepts_partial,
    )


@dataclass(frozen=True)
class SnapshotViews:
    """One snapshot, with the replicas that are copied for another reason than a running reassignment."""

    snapshot: Snapshot = Snapshot.empty()  # noqa: RUF009 (frozen)
    """The cluster as read, without the topic of our own state."""
    proposed: Targets = field(default_factory=dict)
    """Partitions to submit, which Kafka has not received."""
    unseen: Targets = field(default_factory=dict)
    """Submission partitions that the snapshot does not contain yet."""
    lagging: Mapping[int, frozenset[TopicPartition]] = field(default_factory=dict)
    """Broker that catches up -> its out-of-sync replicas outside of reassignments."""
    unthrottled: tuple[TopicReassignment, ...] = ()
    """The reassignment of our own state, which `snapshot` does not contain."""

    @cached_property
    def to_throttle(self) -> Snapshot:
        """The cluster as if every reassignment and catch-up had started: the input of the decisions."""
        submissions = {**self.unseen, **self.proposed}
        started = with_proposed(self.snapshot, submissions) if submissions else self.snapshot
        return self.copying if started is self.snapshot else with_lagging(started, self.lagging)

    @cached_property
    def copying(self) -> Snapshot:
        """All that is being copied, or will be once the brokers run; without what is only proposed."""
        return with_lagging(self.snapshot, self.lagging) if any(self.lagging.values()) else self.snapshot

    @cached_property
    def to_report(self) -> Snapshot:
        """`to_throttle` with the reassignment of our own state."""
        if not self.unthrottled:
            return self.to_throttle
        reassignments = (*self.to_throttle.reassignments, *self.unthrottled)
        return replace(self.to_throttle, reassignments=tuple(sorted(reassignments, key=attrgetter("topic"))))

    @cached_property
    def may_be_exempt(self) -> tuple[TopicReassignment, ...]:
        """`copying` without proposed partitions: those are throttled whatever their ISR is."""
        if not self.proposed:
            return self.copying.reassignments
        lags = {broker_id: rows.difference(self.proposed) for broker_id, rows in self.lagging.items()}
        return with_lagging(self.snapshot, lags).reassignments


@dataclass(frozen=True, slots=True)
class StepInput:
    """What all concerns of a cycle read."""

    observation: CycleObservation
    at: datetime
    """UTC, when everything was read."""
    clock: float
    """Monotonic time at the same moment, in seconds."""
    fence: int
    """Number of the term."""
    number: int
    """Number of the cycle in its term."""
    sources: KnownSources
    """The sources as read, or their last known values."""
    overrides: Overrides
    """The overrides that act now."""
    loads: KnownLoads
    view: SnapshotViews
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """The ledger of throttles and quotas, with the records of this term that the stored one has lost."""
    lost: frozenset[ConfigResource] = frozenset()
    """Resources whose stored entry lacks records."""

    @property
    def is_recovering(self) -> bool | None:
        """Whether a reassignment or a catch-up runs or is about to start; None: unknown."""
        if self.view.to_throttle.reassignments:
            return True
        return None if self.view.snapshot.problems or not self.sources.catch_ups_are_known else False

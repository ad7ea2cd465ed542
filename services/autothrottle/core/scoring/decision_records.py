"""The records of the decision log: one for every decision, and one for every reassignment.

This module defines the records and derives them from a cycle. An adapter stores them, and `score` evaluates them. Older
and newer versions of autothrottle read the same log. So a field never changes its name, type or meaning; a new field is
added at the end and raises `SCHEMA_VERSION`. The types to know are `DecisionRecord` and `ReassignmentRecord`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.flows import Flow, FlowProgress, LinkSide, Progress
from autothrottle.core.cluster.moves import MoveOutcome
from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition
from autothrottle.core.policy.interface import Limits
from autothrottle.core.records import Cycle, Decision, Outcome
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.traffic.replication import Replication, ThrottleHistory
from autothrottle.core.units import BytesPerSecond

SCHEMA_VERSION = 1
"""Version of both kinds of records; increased when a field is added."""


_AHEAD = timedelta(minutes=1)
"""How long before the planner's first cycle of a reassignment discovery may begin to count it."""


class ReassignmentStatus(StrEnum):
    """The state of a reassignment. Kafka's assignments at the end decide how it ended, see `MoveOutcome`."""

    MOVING = "moving"
    """It was first seen; the planner that leads at its end writes another record."""
    DONE = "done"
    CANCELLED = "cancelled"
    CHANGED = "changed"
    DELETED = "deleted"
    MIXED = "mixed"
    """Its partitions ended in different ways."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """The decision of one cycle for one broker in one role; rates are bytes/s, times UTC."""

    schema_version: int
    cluster: str
    """The name that the operator gave the cluster."""
    term: int
    cycle: int
    """Number within the term, from 1."""
    cycle_id: str
    """`cluster/term/cycle`; records with the same cycle, broker and role are copies of each other."""
    trace_id: str
    """Id of the cycle's trace, 32 hexadecimal digits; "": not traced."""
    time: datetime
    """Start of the cycle."""
    reassignment_id: str
    """The reassignment in progress; "": none, the decision is for an override or a catch-up."""
    broker_id: int
    role: str
    """`leader` or `follower`."""
    instance_type: str
    """Instance type of the broker's host; "": unknown."""
    capacity: int | None
    """Capacity of the link side; None, as for the five fields that follow: no metrics."""
    utilization: int | None
    """Mean traffic of the link side from `measured_from` to `measured_to`."""
    measured_from: datetime | None
    measured_to: datetime | None
    replication: int | None
    """Mean replication in the same interval, from log sizes; None: unknown."""
    mean_throttle: int | None
    """Mean throttle in the same interval; 0: no throttle."""
    standing: int | None
    """The throttle at the start of the cycle; None: none."""
    headroom: int | None
    """The rate from the headroom alone; None: no metrics, or under an override in a log of version 0.2."""
    rate_decided: int
    rate_applied: int | None
    """The throttle after the cycle; None: none."""
    reason: str
    """The reason for the rate: a `Reason`."""
    outcome: str
    """The outcome of the broker's change: an `OutcomeStatus`; "": no change."""
    bytes_landed: int | None
    """Bytes copied over this link side so far, over all its flows; only grows. None: a flow is unknown."""
    bytes_left: int | None
    """Bytes still to copy over this link side; None: a flow is unknown."""
    eta: datetime | None
    """When the last byte of all reassignments is copied; None: unknown."""
    policy: str
    """Name of the policy that decided."""
    max_ratio: float
    """Share of the headroom given to replication on this link side, in (0, 1]."""
    min_rate: int
    change_threshold: float
    """Share of the current rate, >= 0."""
    failure_threshold: int
    """Number of cycles."""
    interval_seconds: float
    """Time between two scheduled cycles."""
    shadow: bool
    """Whether the cycle ran in shadow mode, which writes nothing."""


@dataclass(frozen=True, slots=True)
class PathRecord:
    """The data that one leader sent to one follower in a reassignment."""

    leader: int
    follower: int
    bytes_landed: int
    """Bytes copied."""
    bytes_grown: int
    """Bytes produced to the leader's logs during the reassignment; a part of `bytes_landed`."""


@dataclass(frozen=True, slots=True)
class ReassignmentRecord:
    """One reassignment, from the first cycle with a reassignment in the cluster to the first cycle without any.

    Overlapping reassignments are one record, because they share links. A term writes a record when it first sees the
    reassignment, and another one at its end. A term that takes over a running reassignment sets `resumed` and uses a
    `reassignment_id` of its own.
    """

    schema_version: int
    cluster: str
    term: int
    cycle: int
    """The cycle that wrote this record."""
    reassignment_id: str
    """The `cycle_id` of the first cycle of this term that saw it."""
    resumed: bool
    """Whether the previous term may have seen it already."""
    status: str
    """A `ReassignmentStatus`."""
    start: datetime
    """When this term first saw it, UTC."""
    finish: datetime | None
    """When no reassignment was left, UTC; None: it still runs."""
    topics: list[str]
    partitions: int
    """Number of partitions with replicas to copy when it was first cycle."""
    bytes_landed: int | None
    """Bytes copied over all paths; None, as for `bytes_left`: no log sizes are known."""
    bytes_left: int | None
    """Bytes left when it was last seen, without paths on which a broker also caught up."""
    paths: list[PathRecord]
    """One for each flow; empty: nothing is known yet."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The values that are equal in all records of a planner."""

    cluster: str
    limits: Limits
    interval: timedelta
    policy: str
    """Name of the policy."""


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Everything that one cycle read and did."""

    record: Cycle
    snapshot: Snapshot
    copied: Snapshot
    """The same snapshot with lagging replicas of brokers that catch up: they use the same link sides."""
    loads: Loads
    history: ThrottleHistory
    """The throttles over time, before this cycle's writes."""
    written: Mapping[LinkSide, BytesPerSecond | None] = field(default_factory=dict)
    """(broker id, role) -> the rate written, bytes/s; None: removed."""
    trace_id: str = ""
    ended_moves: Mapping[TopicPartition, MoveOutcome] = field(default_factory=dict)
    """Partition whose reassignment has ended -> how."""
    unsettled_moves: Collection[TopicPartition] = ()
    """Partitions whose reassignment has ended, it is not known yet how."""


def cycle_id(cluster: str, record: Cycle) -> str:
    """Return the id of a cycle, unique across clusters: `cluster/term/cycle`."""
    return f"{cluster}/{record.term}/{record.number}"


def decision_records(cycle: RecordSource, settings: LogSettings, reassignment_id: str) -> tuple[DecisionRecord, ...]:
    """Return the records of a cycle's decisions, in their order; none while paused, since nothing was decided then.

    Args:
        cycle: the cycle.
        settings: settings of the planner that ran it.
        reassignment_id: id of the reassignment in progress; "": none.
    """
    outcomes = {outcome.resource: outcome for outcome in cycle.record.outcomes}
    unknown = cycle.copied.running_uncounted_sides
    replication = Replication(cycle.copied.progress or Progress(), unknown, is_upper_bound=True)
    return tuple(
        _decision_record(cycle, settings, reassignment_id, decision, outcomes, replication)
        for decision in (cycle.record.decisions if cycle.record.pause is None else ())
    )


def _decision_record(
    cycle: RecordSource,
    settings: LogSettings,
    reassignment_id: str,
    decision: Decision,
    outcomes: Mapping[ConfigResource, Outcome],
    replication: Replication,
) -> DecisionRecord:
    record, limits = cycle.record, settings.limits
    side = (decision.broker_id, decision.role)
    load = cycle.loads.brokers.get(decision.broker_id)
    used = load.of(decision.role) if load else None
    mean = replication.mean(*side, used.start, used.end) if used else None
    throttle = decision.current_rate_bytes_per_second
    outcome = outcomes.get(ConfigResource.broker(decision.broker_id))
    traffic = None if side in replication.unknown else replication.progress.link_traffic.get(side)
    return DecisionRecord(
        schema_version=SCHEMA_VERSION,
        cluster=settings.cluster,
        term=record.term,
        cycle=record.number,
        cycle_id=cycle_id(settings.cluster, record),
        trace_id=cycle.trace_id,
        time=record.start_time,
        reassignment_id=reassignment_id,
        broker_id=decision.broker_id,
        role=decision.role.value,
        instance_type=load.instance_type if load else "",
        capacity=load.capacity.of(decision.role) if load else None,
        utilization=used.rate if used else None,
        measured_from=used.start if used else None,
        measured_to=used.end if used else None,
        replication=mean.rate if mean else None,
        mean_throttle=cycle.history.mean(*side, used.start, used.end, throttle) if used else None,
        standing=throttle,
        headroom=decision.headroom_bytes_per_second,
        rate_decided=decision.rate_bytes_per_second,
        rate_applied=cycle.written.get(side, throttle),
        reason=decision.reason.value,
        outcome=outcome.status.value if outcome else "",
        bytes_landed=traffic.bytes_copied if traffic else None,
        bytes_left=traffic.bytes_left if traffic else None,
        eta=record.eta,
        policy=settings.policy,
        max_ratio=limits.max_ratio[decision.role],
        min_rate=limits.floor,
        change_threshold=limits.change_threshold,
        failure_threshold=limits.failure_threshold,
        interval_seconds=settings.interval.total_seconds(),
        shadow=record.shadow,
    )


@dataclass(frozen=True, slots=True)
class ReassignmentSeen:
    """What one term knows of the current reassignment; immutable, `observe` returns a new value."""

    opening: ReassignmentRecord | None = None
    """The first record of the current reassignment; None: no reassignment."""
    begun: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """Flow -> its counts when it was first seen active."""
    counts: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """Flow -> its newest counts."""
    moving: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """Flow -> its counts in the last cycle with a flow, for the flows that were active then."""
    shared: frozenset[Flow] = frozenset()
    """Flows on which a broker also catches up, so the reassignment's share of the bytes left is unknown."""
    topics: frozenset[str] = frozenset()
    outcomes: frozenset[MoveOutcome] = frozenset()
    """How its partitions ended so far."""
    finish: datetime | None = None
    """When no reassignment was left, UTC; None: one is."""

    @property
    def reassignment_id(self) -> str:
        """Id of the current reassignment; "": no reassignment."""
        return self.opening.reassignment_id if self.opening else ""

    def observe(self, cycle: RecordSource, cluster: str) -> tuple[ReassignmentSeen, tuple[ReassignmentRecord, ...]]:
        """Return the knowledge after a cycle, and the records to write.

        Do not call it for a cycle that could not read the cluster.

        Args:
            cycle: the cycle.
            cluster: the cluster's name in the log.
        """
        moving = cycle.snapshot.flows
        if self.opening is None:
            is_whole = not cycle.snapshot.unread_partitions
            return self._opened(cycle, cluster, moving) if moving and is_whole else (self, ())
        counted = self._counted(cycle, moving)
        if cycle.snapshot.reassignments or cycle.snapshot.problems:
            return replace(counted, finish=None), ()
        ended = replace(counted, finish=self.finish or cycle.record.start_time)
        if any(topic in ended.topics for topic, _ in cycle.unsettled_moves):
            return ended, ()
        return ReassignmentSeen(), (ended._closed(cycle),)

    def _opened(
        self, cycle: RecordSource, cluster: str, moving: Mapping[Flow, int]
    ) -> tuple[ReassignmentSeen, tuple[ReassignmentRecord, ...]]:
        record = cycle.record
        opening = ReassignmentRecord(
            schema_version=SCHEMA_VERSION,
            cluster=cluster,
            term=record.term,
            cycle=record.number,
            reassignment_id=cycle_id(cluster, record),
            resumed=record.number == 1,
            status=ReassignmentStatus.MOVING.value,
            start=record.start_time,
            finish=None,
            topics=sorted(cycle.snapshot.topics),
            partitions=sum(moving.values()),
            bytes_landed=None,
            bytes_left=None,
            paths=[],
        )
        return ReassignmentSeen(opening=opening)._counted(cycle, moving), (opening,)

    def _counted(self, cycle: RecordSource, moving: Mapping[Flow, int]) -> ReassignmentSeen:
        newest = cycle.snapshot.progress.flows if cycle.snapshot.progress else {}
        topics = self.topics | frozenset(cycle.snapshot.topics)
        own_counts = {flow: count for flow, count in newest.items() if flow in moving or flow in self.begun}
        shared = self.shared
        if cycle.copied.catching_up:
            copied = cycle.copied.flows
            shared = shared.union(flow for flow, partitions in moving.items() if copied[flow] != partitions)
        begun = dict(self.begun)
        for flow, count in own_counts.items():
            # A new flow owns all bytes copied so far, because its counting starts when it does.
            if flow not in begun or begun[flow].since != count.since:
                begun[flow] = count if flow in shared else self._beginning(count)
        return replace(
            self,
            begun=begun,
            counts={**self.counts, **own_counts},
            moving={flow: count for flow, count in own_counts.items() if flow in moving} if moving else self.moving,
            shared=shared,
            topics=topics,
            outcomes=self.outcomes.union(how for (topic, _), how in cycle.ended_moves.items() if topic in topics),
        )

    def _beginning(self, count: FlowProgress) -> FlowProgress:
        """Return a flow's counts at its start, derived from the counts with which it is first cycle."""
        assert self.opening is not None
        # Bytes copied in an earlier term count, too. Discovery counts slightly before the planner's first cycle.
        is_whole = (self.opening.resumed and not self.begun) or count.since >= self.opening.start - _AHEAD
        return replace(count, bytes_copied=0, bytes_produced=0) if is_whole else count

    def _closed(self, cycle: RecordSource) -> ReassignmentRecord:
        assert self.opening is not None
        status = ReassignmentStatus.MIXED
        if len(self.outcomes) == 1:
            status = ReassignmentStatus(next(iter(self.outcomes)).value)
        is_done = status is ReassignmentStatus.DONE
        paths = [
            PathRecord(
                flow.leader,
                flow.follower,
                # If the reassignment is done, the bytes left at the last sample have been copied.
                count.bytes_copied
                + (is_done and flow not in self.shared) * count.bytes_left
                - self.begun[flow].bytes_copied,
                count.bytes_produced - self.begun[flow].bytes_produced,
            )
            for flow, count in sorted(self.counts.items(), key=lambda item: (item[0].leader, item[0].follower))
        ]
        bytes_left = sum(count.bytes_left for flow, count in self.moving.items() if flow not in self.shared)
        return replace(
            self.opening,
            term=cycle.record.term,
            cycle=cycle.record.number,
            status=status.value,
            finish=self.finish,
            topics=sorted(self.topics),
            bytes_landed=sum(path.bytes_landed for path in paths) if paths else None,
            bytes_left=bytes_left if paths else None,
            paths=paths,
        )

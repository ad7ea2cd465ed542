"""What the decision log holds: a record of every decision, and of every reassignment that decisions were for.

Here live the records, and how they follow from a cycle; where they are kept is an adapter's, what they are worth is
`score`'s. A log is read by versions of autothrottle that are older or newer than the one that wrote it: a field is
never renamed and never changes its type or meaning, a new one comes at the end and raises `SCHEMA_VERSION`. The types
to know are `DecisionRecord` and `ReassignmentRecord`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from autothrottle.core.changes import Outcome
from autothrottle.core.configs import ConfigResource
from autothrottle.core.cycle import CycleRecord
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.limits import Limits
from autothrottle.core.loads import BytesPerSecond, Loads, Port
from autothrottle.core.plan import Decision
from autothrottle.core.replication import Replication
from autothrottle.core.topology import Snapshot, flows, running_flows

SCHEMA_VERSION = 1
"""Of both kinds of records; grows when a field is added."""


_AHEAD = timedelta(minutes=1)

_LARGEST_LOSS = 0.1
"""The share of what was left that may be missing at the end: retention shortens logs while they are copied."""


class ReassignmentStatus(StrEnum):
    """How far a reassignment has come."""

    MOVING = "moving"
    """It was first seen; whoever led until its end has written another record."""
    DONE = "done"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """What one cycle decided for one broker in one role; rates are bytes/s, times UTC."""

    schema_version: int
    cluster: str
    """The name that the operator gave the cluster."""
    term: int
    cycle: int
    """Within the term, from 1."""
    cycle_id: str
    """`cluster/term/cycle`: of the records with the same one, broker and role, all but one are copies."""
    trace_id: str
    """Of the cycle's trace, 32 hexadecimal digits; empty: it was not traced."""
    time: datetime
    """When the cycle began."""
    reassignment_id: str
    """What moved; empty: nothing did, the decision is an override's or a catch-up's."""
    broker_id: int
    role: str
    """`leader` or `follower`."""
    instance_type: str
    """Of the broker's host; empty: unknown."""
    capacity: int | None
    """Of the link in the role's direction; None without metrics, as the five that follow."""
    utilization: int | None
    """The mean traffic of that direction from `measured_from` to `measured_to`."""
    measured_from: datetime | None
    measured_to: datetime | None
    replication: int | None
    """What replication carried in the same time, by the sizes of logs; None: unknown."""
    mean_throttle: int | None
    """The mean of the throttle that stood in the same time; 0 while none stood."""
    standing: int | None
    """The throttle that stood when the cycle began; None: none."""
    headroom: int | None
    """What the headroom alone gives; None without metrics, and under an override."""
    rate_decided: int
    rate_applied: int | None
    """The throttle that stood after the cycle; None: none."""
    reason: str
    """Why the rate is what it is: a `Reason`."""
    outcome: str
    """What became of the broker's change: an `OutcomeStatus`; empty: nothing was to change."""
    bytes_landed: int | None
    """What has passed this port so far, of the flows that are known; only grows. None: unknown."""
    bytes_left: int | None
    """What has still to pass this port; None: unknown."""
    eta: datetime | None
    """When the last byte of all lands; None: unknown."""
    policy: str
    """The name of what decided."""
    max_ratio: float
    """Share of the headroom given to replication in this direction, in (0, 1]."""
    min_rate: int
    change_threshold: float
    """Share of the standing rate, >= 0."""
    failure_threshold: int
    """Cycles."""
    interval_seconds: float
    """Between two scheduled cycles."""
    shadow: bool
    """Whether it was only decided, and not written."""


@dataclass(frozen=True, slots=True)
class PathRecord:
    """What one leader sent to one follower in a reassignment."""

    leader: int
    follower: int
    bytes_landed: int
    bytes_grown: int
    """By which the leader's logs grew meanwhile; a part of what landed."""


@dataclass(frozen=True, slots=True)
class ReassignmentRecord:
    """From the first cycle that saw something move in a cluster to the first that saw nothing move.

    Reassignments that overlap are one: they share the same links. It is written when it is first seen by a term, and
    at its end; a term that finds it under way says so and writes a `reassignment_id` of its own.
    """

    schema_version: int
    cluster: str
    term: int
    cycle: int
    """That wrote this record."""
    reassignment_id: str
    """The `cycle_id` of the first cycle of this term that saw it."""
    resumed: bool
    """Whether the term before may have seen it already."""
    status: str
    """A `ReassignmentStatus`."""
    start: datetime
    """When this term saw it first, UTC."""
    finish: datetime | None
    """When nothing moved any more, UTC; None while it moves."""
    topics: list[str]
    partitions: int
    """That had something to copy when it was first seen."""
    bytes_landed: int | None
    """Of all paths; None: no sizes of logs are known, as `bytes_left`."""
    bytes_left: int | None
    """What had not landed when it was last seen to move, but for paths by which a broker caught up as well."""
    paths: list[PathRecord]
    """One for each flow; empty while nothing is known."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What every record of a planner says alike."""

    cluster: str
    limits: Limits
    interval: timedelta
    policy: str
    """Its name."""


@dataclass(frozen=True, slots=True)
class CycleSeen:
    """All that one cycle read and did."""

    record: CycleRecord
    snapshot: Snapshot
    copied: Snapshot
    """The same with what brokers lack that catch up: it passes the same ports, and is no reassignment."""
    loads: Loads
    history: ThrottleHistory
    """What stood when, as it was before this cycle wrote anything."""
    written: Mapping[Port, BytesPerSecond | None] = field(default_factory=dict)
    """(broker id, role) -> the rate that was written; None: it was removed."""
    trace_id: str = ""


def cycle_id(cluster: str, record: CycleRecord) -> str:
    """Return the name of a cycle among all of all clusters."""
    return f"{cluster}/{record.term}/{record.number}"


def decision_records(seen: CycleSeen, settings: LogSettings, reassignment_id: str) -> tuple[DecisionRecord, ...]:
    """Return the records of a cycle's decisions, ordered as these are.

    Args:
        seen: the cycle.
        settings: of the planner that ran it.
        reassignment_id: of what moves; "" when nothing does.
    """
    outcomes = {outcome.resource: outcome for outcome in seen.record.outcomes}
    passing, replicated = _passing(seen.copied), _replicated(seen)
    return tuple(
        _decision_record(seen, settings, reassignment_id, decision, outcomes, passing, replicated)
        for decision in seen.record.decisions
    )


def _decision_record(
    seen: CycleSeen,
    settings: LogSettings,
    reassignment_id: str,
    decision: Decision,
    outcomes: Mapping[ConfigResource, Outcome],
    passing: Mapping[Port, tuple[int, int]],
    replicated: Mapping[Port, BytesPerSecond],
) -> DecisionRecord:
    record, limits = seen.record, settings.limits
    port = (decision.broker_id, decision.role)
    load = seen.loads.brokers.get(decision.broker_id)
    used = load.of(decision.role) if load else None
    outcome = outcomes.get(ConfigResource.broker(decision.broker_id))
    landed, left = passing.get(port, (None, None))
    return DecisionRecord(
        schema_version=SCHEMA_VERSION,
        cluster=settings.cluster,
        term=record.term,
        cycle=record.number,
        cycle_id=cycle_id(settings.cluster, record),
        trace_id=seen.trace_id,
        time=record.start,
        reassignment_id=reassignment_id,
        broker_id=decision.broker_id,
        role=decision.role.value,
        instance_type=load.instance_type if load else "",
        capacity=load.capacity.of(decision.role) if load else None,
        utilization=used.rate if used else None,
        measured_from=used.start if used else None,
        measured_to=used.end if used else None,
        replication=replicated.get(port),
        mean_throttle=seen.history.mean(*port, used.start, used.end, decision.standing) if used else None,
        standing=decision.standing,
        headroom=decision.headroom,
        rate_decided=decision.rate,
        rate_applied=seen.written.get(port, decision.standing),
        reason=decision.reason.value,
        outcome=outcome.status.value if outcome else "",
        bytes_landed=landed,
        bytes_left=left,
        eta=record.eta,
        policy=settings.policy,
        max_ratio=limits.max_ratio(decision.role),
        min_rate=limits.floor,
        change_threshold=limits.change_threshold,
        failure_threshold=limits.failure_threshold,
        interval_seconds=settings.interval.total_seconds(),
        shadow=record.shadow,
    )


def _replicated(seen: CycleSeen) -> Mapping[Port, BytesPerSecond]:
    """Port -> what replication carried while its load was measured; absent: unknown."""
    replication = Replication(seen.copied.progress or Progress(), running_flows(seen.copied))
    found: dict[Port, BytesPerSecond] = {}
    for decision in seen.record.decisions:
        if (load := seen.loads.brokers.get(decision.broker_id)) is not None:
            used = load.of(decision.role)
            mean = replication.mean(decision.broker_id, decision.role, used.start, used.end)
            if mean is not None:
                found[decision.broker_id, decision.role] = mean.rate
    return found


def _passing(snapshot: Snapshot) -> Mapping[Port, tuple[int, int]]:
    """Port -> (bytes landed, bytes left) of its flows, all of which are known."""
    known = snapshot.progress.flows if snapshot.progress else {}
    unknown = {port for flow in running_flows(snapshot) if flow not in known for port in flow.ports}
    found: dict[Port, tuple[int, int]] = {}
    for flow, progress in known.items():
        for port in flow.ports:
            landed, left = found.get(port, (0, 0))
            found[port] = (landed + progress.bytes_landed, left + progress.bytes_left)
    return {port: counts for port, counts in found.items() if port not in unknown}


@dataclass(frozen=True, slots=True)
class ReassignmentSeen:
    """What one term knows of what moves; a value: an observation returns a new one."""

    opening: ReassignmentRecord | None = None
    """Of what moves now; None: nothing does."""
    begun: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """The counts of flows when each was first seen to move."""
    counts: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """The newest counts of the same flows."""
    moving: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """The counts of each flow when it was last seen to move."""
    shared: frozenset[Flow] = frozenset()
    """Flows by which a broker catches up as well: nobody knows which part of what is left is the move's."""
    topics: frozenset[str] = frozenset()

    @property
    def reassignment_id(self) -> str:
        """Of what moves; "" when nothing does."""
        return self.opening.reassignment_id if self.opening else ""

    def observe(
        self, seen: CycleSeen, cluster: str, cancelled: bool = False
    ) -> tuple[ReassignmentSeen, tuple[ReassignmentRecord, ...]]:
        """Return what is known after a cycle, and the records that are to be written.

        A cycle that could not read the cluster shows nothing and changes nothing: let it not be observed.

        Args:
            seen: the cycle.
            cluster: its name in the log.
            cancelled: whether a part of what moves was cancelled through this planner.
        """
        moving = flows(seen.snapshot)
        if self.opening is None:
            return self._opened(seen, cluster, moving) if moving else (self, ())
        known = self._counted(seen, moving)
        if seen.snapshot.reassignments or seen.snapshot.problems:
            return known, ()
        return ReassignmentSeen(), (known._closed(seen, cancelled),)

    def _opened(
        self, seen: CycleSeen, cluster: str, moving: Mapping[Flow, int]
    ) -> tuple[ReassignmentSeen, tuple[ReassignmentRecord, ...]]:
        record = seen.record
        opening = ReassignmentRecord(
            schema_version=SCHEMA_VERSION,
            cluster=cluster,
            term=record.term,
            cycle=record.number,
            reassignment_id=cycle_id(cluster, record),
            resumed=record.number == 1,
            status=ReassignmentStatus.MOVING.value,
            start=record.start,
            finish=None,
            topics=sorted(seen.snapshot.topics),
            partitions=sum(moving.values()),
            bytes_landed=None,
            bytes_left=None,
            paths=[],
        )
        return ReassignmentSeen(opening=opening)._counted(seen, moving), (opening,)

    def _counted(self, seen: CycleSeen, moving: Mapping[Flow, int]) -> ReassignmentSeen:
        now = seen.snapshot.progress.flows if seen.snapshot.progress else {}
        of_it = {flow: count for flow, count in now.items() if flow in moving or flow in self.begun}
        shared = self.shared
        if seen.copied.catching_up:
            copied = flows(seen.copied)
            shared = shared.union(flow for flow, partitions in moving.items() if copied[flow] != partitions)
        begun = dict(self.begun)
        for flow, count in of_it.items():
            # One that moves from nothing began with all that has landed: counts begin when a flow does.
            if flow not in begun or begun[flow].since != count.since:
                begun[flow] = count if flow in shared else self._beginning(count)
        return replace(
            self,
            begun=begun,
            counts={**self.counts, **of_it},
            moving={**self.moving, **{flow: count for flow, count in of_it.items() if flow in moving}},
            shared=shared,
            topics=self.topics | frozenset(seen.snapshot.topics),
        )

    def _beginning(self, count: FlowProgress) -> FlowProgress:
        """What had landed of a flow when it began to move, of the count by which it is first seen."""
        assert self.opening is not None
        # What an earlier term saw counts, too. Discovery begins to count a little before the planner's first cycle.
        is_whole = (self.opening.resumed and not self.begun) or count.since >= self.opening.start - _AHEAD
        return replace(count, bytes_landed=0, bytes_grown=0) if is_whole else count

    def _closed(self, seen: CycleSeen, cancelled: bool) -> ReassignmentRecord:
        assert self.opening is not None
        cancelled = cancelled or self._was_cut_short(seen)
        status = ReassignmentStatus.CANCELLED if cancelled else ReassignmentStatus.DONE
        paths = [
            PathRecord(
                flow.leader,
                flow.follower,
                # What was left when the logs were last read has landed, or it would not be done.
                count.bytes_landed
                + (not cancelled and flow not in self.shared) * count.bytes_left
                - self.begun[flow].bytes_landed,
                count.bytes_grown - self.begun[flow].bytes_grown,
            )
            for flow, count in sorted(self.counts.items(), key=lambda item: (item[0].leader, item[0].follower))
        ]
        left = sum(count.bytes_left for flow, count in self.moving.items() if flow not in self.shared)
        return replace(
            self.opening,
            term=seen.record.term,
            cycle=seen.record.number,
            status=status.value,
            finish=seen.record.start,
            topics=sorted(self.topics),
            bytes_landed=sum(path.bytes_landed for path in paths) if paths else None,
            bytes_left=left if paths else None,
            paths=paths,
        )

    def _was_cut_short(self, seen: CycleSeen) -> bool:
        """Whether it ended though a good part of what was left has not landed."""
        return any(
            self._missing(last, self.counts[flow], flow, seen) > _LARGEST_LOSS * last.bytes_left
            for flow, last in self.moving.items()
            if flow not in self.shared
        )

    def _missing(self, last: FlowProgress, newest: FlowProgress, flow: Flow, seen: CycleSeen) -> float:
        """What of a flow's last remainder cannot have landed, bytes."""
        if newest is last:
            # Nothing was read since; what the link carries may have come.
            load = seen.loads.brokers.get(flow.follower)
            elapsed = max((seen.record.start - last.at).total_seconds(), 0.0) + 1
            return last.bytes_left - load.capacity.rx * elapsed if load else 0.0
        return last.bytes_landed + last.bytes_left - newest.bytes_landed

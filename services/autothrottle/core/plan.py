"""What the throttles of a cluster should be, and why: the decision of every cycle.

`plan` is a pure function of what was seen; it writes nothing and knows no clock. What separates the plan from
what stands is worked out in `changes`. The type to know is `Plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import cache

from autothrottle.core.configs import LEADER_REPLICAS, ConfigResource, ReplicaRole, limiting_rate
from autothrottle.core.headroom import headroom
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.loads import BytesPerSecond, Loads, Utilization
from autothrottle.core.overrides import Overrides
from autothrottle.core.replication import LARGEST_TAIL, Replication
from autothrottle.core.topology import Snapshot, TopicReassignment, flows, participants

CONSUMER_OFFSETS = "__consumer_offsets"
"""Kafka's own topic: an override never slows it down."""


class Reason(Enum):
    """Why a rate is what it is."""

    HEADROOM = "headroom"
    UNCHANGED = "unchanged"
    """The headroom asks for another rate, but by less than the change threshold."""
    KEPT = "kept"
    """No usable metrics; the failures do not exceed the threshold yet."""
    MINIMUM = "minimum"
    """No usable metrics for too long, or none since the move began."""
    CLUSTER_OVERRIDE = "cluster-override"
    BROKER_OVERRIDE = "broker-override"
    OVER_CAPACITY = "over-capacity"
    """Clients need the link: less than the minimum, down to 0, where `pause_over_capacity` allows it."""
    STARVATION = "starvation"
    """More than the headroom gives: less would never let the move end."""
    FINISH_BY = "finish-by"
    """Less than the headroom gives: it is enough to be done in time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator allows."""

    min_rate: BytesPerSecond
    """The floor, and the rate while metrics are missing, bytes/s, > 0."""
    max_tx_ratio: float
    """Share of the outbound headroom given to replication, in (0, 1]."""
    max_rx_ratio: float
    """Share of the inbound headroom given to replication, in (0, 1]."""
    change_threshold: float
    """A measured rate is written when it deviates by at least this share of what stands, >= 0."""
    failure_threshold: int
    """Scheduled cycles in a row without metrics that a broker's rates are kept for, >= 0."""
    keep_throttles: bool = False
    """Whether throttles stay when the last reassignment is over (`--skip-auto-delete-throttles`)."""
    pause_over_capacity: bool = False
    """Whether a measured rate may fall below the minimum, down to 0, when clients need the link."""

    @property
    def floor(self) -> BytesPerSecond:
        """The lowest rate that a measurement may give, bytes/s; without metrics it is the minimum all the same."""
        return 0 if self.pause_over_capacity else self.min_rate

    def max_ratio(self, role: ReplicaRole) -> float:
        """The share for the direction that a role uses."""
        return self.max_tx_ratio if role is ReplicaRole.LEADER else self.max_rx_ratio


@dataclass(frozen=True, slots=True)
class Decision:
    """The rate of one broker in one role, with what it was decided on."""

    broker_id: int
    role: ReplicaRole
    rate: BytesPerSecond
    reason: Reason
    standing: BytesPerSecond | None
    """What stands on the broker, bytes/s; None: nothing."""
    headroom: BytesPerSecond | None = None
    """What the headroom alone would give, bytes/s; None without metrics."""
    utilization: BytesPerSecond | None = None
    """Measured traffic of the direction, bytes/s; None without metrics."""
    capacity: BytesPerSecond | None = None
    """What the direction carries, bytes/s; None without metrics."""


@dataclass(frozen=True, slots=True)
class DesiredReplicas:
    """The replicas of one topic that shall be throttled, and its partitions whose entries are ours to rule.

    Always exact: where Kafka cannot hold the list that results, `changes` writes the wildcard.
    """

    leader: frozenset[str] = frozenset()
    follower: frozenset[str] = frozenset()
    moving: frozenset[int] = frozenset()
    """Partitions in reassignment: every standing entry of theirs belongs to the move."""
    texts: Mapping[ReplicaRole, str] = field(default_factory=dict, compare=False, repr=False)
    """The same lists as Kafka's text, where it is at hand."""

    def of(self, role: ReplicaRole) -> frozenset[str]:
        """The entries of one side."""
        return self.leader if role is ReplicaRole.LEADER else self.follower


@dataclass(frozen=True, slots=True)
class Plan:
    """The desired throttles of a cluster."""

    decisions: tuple[Decision, ...] = ()
    """Ordered by broker and role; a role that is not here is to carry no throttle of ours."""
    replicas: Mapping[str, DesiredReplicas] = field(default_factory=dict)
    """Topic -> its replica lists; a topic that is not here is to have none of ours."""
    hold: bool = False
    """Whether nothing may be removed: some of the cluster or overrides is unknown, or throttles are kept."""
    finished_override: bool = False
    """Whether the cluster's override has done its work: autoremove, a move is over, and no other is left."""

    @property
    def rates(self) -> Mapping[ConfigResource, Mapping[str, int]]:
        """Broker's config -> rate key -> bytes/s."""
        desired: dict[ConfigResource, dict[str, int]] = {}
        for decision in self.decisions:
            resource = ConfigResource.broker(decision.broker_id)
            desired.setdefault(resource, {})[decision.role.rate_key] = decision.rate
        return desired


def plan(
    snapshot: Snapshot,
    loads: Loads,
    limits: Limits,
    overrides: Overrides = Overrides(),  # noqa: B008 (frozen)
    failures: Mapping[int, int] | None = None,
    history: ThrottleHistory | None = None,
    after_reassignment: bool = False,
) -> Plan:
    """Return the desired throttles.

    Args:
        snapshot: the cluster, with what stands on it.
        loads: the newest reading of the metrics source; a broker that it lacks is decided by `failures`.
        limits: what the operator allows.
        overrides: rates set by operators; a broker's own beats the cluster's, both beat what is measured.
        failures: broker id -> scheduled cycles in a row, this one included, without a usable load.
        history: what stood when, so that a measurement is compared with the throttles of its own interval;
            None: what stands now has always stood.
        after_reassignment: whether the last cycle saw a reassignment, or asked in vain for the purge of the
            override of one: an autoremove override that still waits for its reassignment stays.
    """
    failures, history = failures or {}, history or ThrottleHistory()
    roles = participants(snapshot)
    replication = _replication(snapshot)
    decisions = [
        _decide(snapshot, loads, limits, overrides, failures.get(broker_id, 0), history, replication, broker_id, role)
        for broker_id, held in roles.items()
        for role in held
    ]
    standalone = _standalone_overrides(snapshot, overrides) - roles.keys()
    decisions += [_overridden(snapshot, overrides, b, role) for b in standalone for role in ReplicaRole]
    return Plan(
        decisions=tuple(sorted(decisions, key=lambda d: (d.broker_id, d.role.value))),
        replicas=_replica_lists(snapshot, standalone),
        hold=bool(snapshot.problems or overrides.unreadable or (limits.keep_throttles and not snapshot.reassignments)),
        finished_override=_is_over(snapshot, overrides) and (after_reassignment or _had_a_move(snapshot)),
    )


def _is_over(snapshot: Snapshot, overrides: Overrides) -> bool:
    """Whether an autoremove override is known to stand, and no reassignment is known to be left."""
    override = overrides.cluster
    if override is None or not override.autoremove or override.rate <= 0:
        return False
    return not (snapshot.reassignments or snapshot.problems or None in overrides.unreadable)


def _had_a_move(snapshot: Snapshot) -> bool:
    """Whether lists of a move are still in the ledger: leader lists, since overrides write none."""
    return any(LEADER_REPLICAS in entry.keys for entry in snapshot.ledger.values())


def _decide(
    snapshot: Snapshot,
    loads: Loads,
    limits: Limits,
    overrides: Overrides,
    failures: int,
    history: ThrottleHistory,
    replication: Replication | None,
    broker_id: int,
    role: ReplicaRole,
) -> Decision:
    if overrides.of(broker_id) is not None:
        return _overridden(snapshot, overrides, broker_id, role)
    standing = standing_rate(snapshot, broker_id, role)
    load = loads.brokers.get(broker_id)
    previous = previous_rate(snapshot, broker_id, role)
    if load is None:
        if previous is not None and failures <= limits.failure_threshold:
            return Decision(broker_id, role, previous, Reason.KEPT, standing)
        return Decision(broker_id, role, limits.min_rate, Reason.MINIMUM, standing)
    used, capacity = load.of(role), load.capacity.of(role)
    known = _known(history, replication, broker_id, role, used, standing)
    measured = headroom(known.utilization, known.likely, capacity, limits.max_ratio(role), limits.floor)
    if previous is not None and measured > previous:
        # A raise counts on what is certain: one that takes slow replication for absent clients is a burst, and
        # what the burst does to the next measurement sets the rates swinging.
        sure = headroom(known.utilization, known.certain, capacity, limits.max_ratio(role), limits.floor)
        measured = max(previous, sure)
    if previous is not None and known.says_nothing:
        measured = max(previous, measured)
    small = is_small_change(previous, measured, limits.change_threshold)
    reason = Reason.OVER_CAPACITY if measured < limits.min_rate else Reason.HEADROOM
    rate, reason = (previous or 0, Reason.UNCHANGED) if small else (measured, reason)
    return Decision(broker_id, role, rate, reason, standing, measured, used.rate, capacity)


@dataclass(frozen=True, slots=True)
class _Known:
    """What of a port's traffic is replication, in bytes/s."""

    utilization: BytesPerSecond
    likely: BytesPerSecond
    """Its mean over the interval that was measured."""
    certain: BytesPerSecond
    """What it was at least."""
    says_nothing: bool = False
    """Whether any part of the traffic may have been replication: so clients may be fewer, and not more."""


def _known(
    history: ThrottleHistory,
    replication: Replication | None,
    broker_id: int,
    role: ReplicaRole,
    used: Utilization,
    standing: BytesPerSecond | None,
) -> _Known:
    """Tell replication from clients: by what landed, else by the throttle that stood, else by what was before."""
    landed = replication and replication.landed(broker_id, role, used.start, used.end)
    if landed and not history.was_unthrottled(broker_id, role, landed.until, used.end):
        tail = used.end - landed.until
        if tail <= LARGEST_TAIL * (used.end - used.start):
            mean = round(landed.bytes / (used.end - used.start - tail).total_seconds())
            return _Known(used.rate, mean, mean)
    if history.was_unthrottled(broker_id, role, used.start, used.end):
        # At link speed for a second: in the metrics that looks like clients.
        idle = history.idle_loads.get((broker_id, role))
        return _Known(min(idle, used.rate), 0, 0) if idle is not None else _Known(used.rate, 0, 0, True)
    throttle = history.mean(broker_id, role, used.start, used.end, standing)
    return _Known(used.rate, throttle, throttle - history.doubt(broker_id, role, used.start, used.end))


def _replication(snapshot: Snapshot) -> Replication | None:
    """What landed lately; None: nobody reads log sizes."""
    return None if snapshot.progress is None else Replication(snapshot.progress, flows(snapshot))


def _overridden(snapshot: Snapshot, overrides: Overrides, broker_id: int, role: ReplicaRole) -> Decision:
    override = overrides.of(broker_id)
    assert override is not None
    own = override is overrides.brokers.get(broker_id)
    reason = Reason.BROKER_OVERRIDE if own else Reason.CLUSTER_OVERRIDE
    standing = standing_rate(snapshot, broker_id, role)
    return Decision(broker_id, role, override.rate, reason, standing)


def is_small_change(previous: BytesPerSecond | None, rate: BytesPerSecond, threshold: float) -> bool:
    """Return whether a rate deviates from the previous one by less than the threshold; equality is not small.

    >>> is_small_change(100, 109, 0.1), is_small_change(100, 110, 0.1), is_small_change(None, 1, 0.1)
    (True, False, False)
    """
    return previous is not None and abs(previous - rate) < _exact(threshold) * previous


@cache  # of one constant, asked for with each of 2,000 rates
def _exact(threshold: float) -> Fraction:
    # 0.07 * 100 is more than 7 in floats, so that a change by just 7 % would not be written.
    return Fraction(threshold).limit_denominator(1_000_000)


def standing_rate(snapshot: Snapshot, broker_id: int, role: ReplicaRole) -> BytesPerSecond | None:
    """Return the rate that stands on a broker in a role, bytes/s; None: nothing, or nothing that limits."""
    return limiting_rate(snapshot.throttles.get(ConfigResource.broker(broker_id), {}).get(role.rate_key, ""))


def previous_rate(snapshot: Snapshot, broker_id: int, role: ReplicaRole) -> BytesPerSecond | None:
    """Return the rate that a new one is compared with, bytes/s; None: there is none.

    It is what stands; where somebody edited what we wrote it is what we wrote: small edits are repaired too. On the way
    to a higher rate it is that one.
    """
    entry = snapshot.ledger.get(ConfigResource.broker(broker_id))
    ours = entry.keys.get(role.rate_key) if entry else None
    standing = snapshot.throttles.get(ConfigResource.broker(broker_id), {}).get(role.rate_key)
    if ours is not None and ours.target is not None:
        return limiting_rate(ours.target)
    return limiting_rate((standing if ours is None or ours.is_ours(standing) else ours.written) or "")


def _standalone_overrides(snapshot: Snapshot, overrides: Overrides) -> frozenset[int]:
    """The brokers whose own override can act: registered, or stopped with replicas to catch up."""
    known = snapshot.brokers | {b for b, topics in snapshot.replicas.items() if topics}
    return overrides.active_brokers & known


def replica_lists(snapshot: Snapshot, overrides: Overrides) -> dict[str, DesiredReplicas]:
    """Return topic -> the replica lists that a plan gives it, without deciding on rates."""
    return _replica_lists(snapshot, _standalone_overrides(snapshot, overrides) - participants(snapshot).keys())


def _replica_lists(snapshot: Snapshot, standalone: frozenset[int]) -> dict[str, DesiredReplicas]:
    desired = {r.topic: _of_the_move(r) for r in snapshot.reassignments}
    overridden: dict[str, set[str]] = {}
    for broker_id in standalone:
        for topic, partitions in snapshot.replicas.get(broker_id, {}).items():
            if topic != CONSUMER_OFFSETS:
                overridden.setdefault(topic, set()).update(f"{p}:{broker_id}" for p in partitions)
    for topic, entries in overridden.items():
        lists = desired.get(topic, DesiredReplicas())
        desired[topic] = replace(lists, follower=lists.follower | entries, texts={})
    return dict(sorted(desired.items()))


def _of_the_move(reassignment: TopicReassignment) -> DesiredReplicas:
    sending, receiving = reassignment.copying.leader_replicas, reassignment.copying.follower_replicas
    return DesiredReplicas(
        leader=sending.entries,
        follower=receiving.entries,
        moving=frozenset(reassignment.partitions),
        texts={ReplicaRole.LEADER: sending.text, ReplicaRole.FOLLOWER: receiving.text},
    )

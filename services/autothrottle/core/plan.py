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
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.limits import Limits
from autothrottle.core.loads import BrokerLoad, BytesPerSecond, Loads
from autothrottle.core.overrides import Overrides
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Basis, Policy, PortSight, Proposal, Sight
from autothrottle.core.topology import Snapshot, TopicReassignment, participants

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

    @property
    def is_override(self) -> bool:
        """Whether an operator has set the rate."""
        return self in (Reason.BROKER_OVERRIDE, Reason.CLUSTER_OVERRIDE)

    @property
    def is_measured(self) -> bool:
        """Whether the rate, or that it stays, comes from what was measured."""
        return self in (Reason.HEADROOM, Reason.UNCHANGED)


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
    """What the policy would give, before the change threshold, bytes/s; None without metrics, or under an override."""
    utilization: BytesPerSecond | None = None
    """Measured traffic of the direction, bytes/s; None where `headroom` is."""
    capacity: BytesPerSecond | None = None
    """What the direction carries, bytes/s; None where `headroom` is."""
    client: BytesPerSecond | None = None
    """The load of clients that the policy counts on, bytes/s; None where `headroom` is, or its formula says it."""
    client_age: int | None = None
    """Seconds since the end of the metric's interval that it was measured in, >= 0; None where `client` is."""
    basis: Basis | None = None
    """What the policy worked the rate out from; None where its formula says it."""


@dataclass(frozen=True, slots=True)
class DesiredReplicas:
    """The replicas of one topic that shall be throttled, and its partitions whose entries are ours to rule.

    Always exact: where Kafka cannot hold the list that results, `ownership` puts the wildcard.
    """

    leader: frozenset[str] = frozenset()
    follower: frozenset[str] = frozenset()
    moving: frozenset[int] = frozenset()
    """Partitions in reassignment: every standing entry of theirs belongs to the move."""
    free: frozenset[int] = frozenset()
    """Those of them that nothing may hold back: no entry of theirs stays, whatever else has to."""
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
    policy: Policy = HeadroomPolicy(),  # noqa: B008 (frozen)
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
        policy: how much of a link replication may take, with what it has learned.
    """
    failures, history = failures or {}, history or ThrottleHistory()
    roles = participants(snapshot)
    ports = [(broker_id, role) for broker_id, held in roles.items() for role in held]
    fixed = {}
    for broker_id, role in ports:
        if overrides.of(broker_id) is not None:
            fixed[broker_id, role] = _overridden(snapshot, overrides, broker_id, role)
        elif broker_id not in loads.brokers:
            fixed[broker_id, role] = _without_load(snapshot, limits, failures.get(broker_id, 0), broker_id, role)
    sights = {port: _sight(snapshot, loads.brokers[port[0]], *port) for port in ports if port not in fixed}
    proposals = policy.propose(Sight(snapshot, sights, limits, history))
    decisions = [*fixed.values(), *(_proposed(one, proposals[port], limits) for port, one in sights.items())]
    standalone = _standalone_overrides(snapshot, overrides) - roles.keys()
    decisions += [_overridden(snapshot, overrides, b, role) for b in standalone for role in ReplicaRole]
    return Plan(
        decisions=tuple(sorted(decisions, key=lambda d: (d.broker_id, d.role.value))),
        replicas=_replica_lists(snapshot, standalone),
        hold=bool(snapshot.problems or overrides.unreadable or (limits.keep_throttles and not snapshot.reassignments)),
        finished_override=_is_over(snapshot, overrides) and (after_reassignment or had_a_move(snapshot)),
    )


def _is_over(snapshot: Snapshot, overrides: Overrides) -> bool:
    """Whether an autoremove override is known to stand, and no reassignment is known to be left."""
    override = overrides.cluster
    if override is None or not override.autoremove or override.rate <= 0:
        return False
    return not (snapshot.reassignments or snapshot.problems or None in overrides.unreadable)


def had_a_move(snapshot: Snapshot) -> bool:
    """Whether lists of a move are still in the ledger: leader lists, since overrides write none."""
    return any(LEADER_REPLICAS in entry.keys for entry in snapshot.ledger.values())


def _without_load(snapshot: Snapshot, limits: Limits, failures: int, broker_id: int, role: ReplicaRole) -> Decision:
    """What stands is kept for a while, then the minimum is what is safe."""
    standing, previous = standing_rate(snapshot, broker_id, role), previous_rate(snapshot, broker_id, role)
    if previous is not None and failures <= limits.failure_threshold:
        return Decision(broker_id, role, previous, Reason.KEPT, standing)
    return Decision(broker_id, role, limits.min_rate, Reason.MINIMUM, standing)


def _sight(snapshot: Snapshot, load: BrokerLoad, broker_id: int, role: ReplicaRole) -> PortSight:
    standing, previous = standing_rate(snapshot, broker_id, role), previous_rate(snapshot, broker_id, role)
    return PortSight(broker_id, role, load.of(role), load.capacity.of(role), standing, previous)


def _proposed(one: PortSight, proposal: Proposal, limits: Limits) -> Decision:
    """A policy's rate, or what stands where they differ by little."""
    small = is_small_change(one.previous, proposal.rate, limits.change_threshold)
    # A static rate is what the operator wants, clients or not.
    is_short = proposal.rate < limits.min_rate and proposal.basis is not Basis.STATIC
    reason = Reason.OVER_CAPACITY if is_short else Reason.HEADROOM
    rate, reason = (one.previous or 0, Reason.UNCHANGED) if small else (proposal.rate, reason)
    return Decision(
        broker_id=one.broker_id,
        role=one.role,
        rate=rate,
        reason=reason,
        standing=one.standing,
        headroom=proposal.rate,
        utilization=one.used.rate,
        capacity=one.capacity,
        client=proposal.client,
        client_age=proposal.client_age,
        basis=proposal.basis,
    )


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

"""The desired throttles of a cluster and their reasons: the decision of each cycle.

`plan` is a pure function of the cycle's inputs, without IO or clock. `changes` computes the difference between the plan
and the current throttles. The type to know is `Plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache

from autothrottle.core.cluster.configs import (
    LEADER_REPLICAS,
    REPLICAS_KEYS,
    WILDCARD,
    ConfigResource,
    ReplicaRole,
    parse_replicas,
)
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import ReplicaList, Snapshot, TopicPartition
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.sources import Overrides
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Limits, LinkSideInput, Policy, PolicyInput, RateProposal
from autothrottle.core.records import Basis, Decision, Reason
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.traffic.replication import ThrottleHistory
from autothrottle.core.units import BytesPerSecond

CONSUMER_OFFSETS = "__consumer_offsets"
"""Kafka's internal topic; an override never throttles it."""


@dataclass(frozen=True, slots=True)
class DesiredReplicas:
    """The replicas of one topic to throttle, and its partitions whose list entries we control.

    The lists are always exact; `ownership` replaces a list that is too long for Kafka by the wildcard.
    """

    leader: Set[str] = frozenset()
    follower: Set[str] = frozenset()
    moving: frozenset[int] = frozenset()
    """Partitions in reassignment; all their current entries belong to the reassignment."""
    free: frozenset[int] = frozenset()
    """Those of them that must not be throttled: their entries are removed even during a hold."""

    def of(self, role: ReplicaRole) -> frozenset[str]:
        return frozenset(self.leader if role is ReplicaRole.LEADER else self.follower)

    def text(self, role: ReplicaRole) -> str | None:
        """The list of a role as Kafka's text; None: not yet formatted."""
        replicas = self.leader if role is ReplicaRole.LEADER else self.follower
        return replicas.text if isinstance(replicas, ReplicaList) else None


@dataclass(frozen=True, slots=True)
class Hold:
    """The throttles that must stay although the plan does not need them, because something unreadable may need them."""

    everything: bool = False
    brokers: frozenset[int] = frozenset()
    """Brokers whose rates stay."""
    topics: frozenset[str] = frozenset()
    """Topics whose replica lists stay."""
    entries_of: frozenset[int] = frozenset()
    """Brokers whose entries stay in the lists of all topics."""

    def __bool__(self) -> bool:
        return self.everything or bool(self.brokers or self.topics)

    def rates_of(self, broker_id: int) -> bool:
        return self.everything or broker_id in self.brokers

    def lists_of(self, topic: str) -> bool:
        return self.everything or topic in self.topics


HOLD_ALL = Hold(everything=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """The desired throttles of a cluster."""

    decisions: tuple[Decision, ...] = ()
    """Ordered by broker and role; a role that is absent gets no throttle of ours."""
    replicas: Mapping[str, DesiredReplicas] = field(default_factory=dict)
    """Topic -> its replica lists; absent: the topic gets none of ours."""
    hold: Hold = Hold()
    """What may not be removed: a part of the cluster or of the overrides is unknown, or throttles are kept."""
    finished_override: bool = False
    """Whether the cluster override ends: it has autoremove, and the last reassignment is over."""

    @property
    def rates(self) -> Mapping[ConfigResource, Mapping[str, int]]:
        """Broker config -> rate key -> bytes/s."""
        desired: dict[ConfigResource, dict[str, int]] = {}
        for decision in self.decisions:
            resource = ConfigResource.broker(decision.broker_id)
            desired.setdefault(resource, {})[decision.role.rate_key] = decision.rate_bytes_per_second
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
    capacities: Mapping[LinkSide, BytesPerSecond] | None = None,
) -> Plan:
    """Return the desired throttles.

    Args:
        snapshot: the cluster with its current throttles.
        loads: the newest sample of the metrics source; for a broker without a load, `failures` decides.
        limits: the operator's limits.
        overrides: the overrides; a broker override beats the cluster override, and both beat measured rates.
        failures: broker id -> consecutive scheduled cycles without a usable load, including this one.
        history: the throttles over time, so that a measurement is compared with the throttles of its own interval;
            None: the current throttles count for all time.
        after_reassignment: whether the last cycle saw a reassignment, or failed to purge the override of one. An
            autoremove override that still waits for its reassignment must stay.
        policy: the policy, with everything that it has learned.
        capacities: link side -> the capacity that limits its override, bytes/s; absent: unknown, and not limited. None:
            those of the loads.
    """
    failures, history = failures or {}, history or ThrottleHistory()
    capacities = loads.capacities if capacities is None else capacities
    roles = snapshot.participants
    sides = [(broker_id, role) for broker_id, held in roles.items() for role in held]
    overridden = _overridden_brokers(snapshot, overrides)
    by_operator = [side for side in sides if overrides.of(side[0]) is not None]
    by_operator += [(b, role) for b in overridden for role in ReplicaRole if role not in roles.get(b, ())]
    fixed = {}
    for broker_id, role in sides:
        if overrides.of(broker_id) is None and broker_id not in loads.brokers:
            if policy.fixed_rate is not None:
                fixed[broker_id, role] = _static(snapshot, limits, policy.fixed_rate, broker_id, role)
            else:
                fixed[broker_id, role] = _without_load(snapshot, limits, failures.get(broker_id, 0), broker_id, role)

    inputs = {
        side: _link_side_input(snapshot, loads, side, overrides)
        for side in dict.fromkeys([*sides, *by_operator])
        if side[0] in loads.brokers
    }

    def proposed(side_inputs: Mapping[LinkSide, LinkSideInput]) -> dict[LinkSide, Decision]:
        proposals = policy.propose(PolicyInput(snapshot, side_inputs, limits, history))
        return {side: _proposed(side_input, proposals[side], limits) for side, side_input in side_inputs.items()}

    measured = proposed({side: side_input for side, side_input in inputs.items() if overrides.of(side[0]) is None})
    # An operator who sets a rate still wants to see the clients. The other rates do not depend on these link sides.
    without_overrides = proposed(inputs) if by_operator else {}
    operators = [
        _overridden(snapshot, overrides, capacities, side, without_overrides.get(side)) for side in by_operator
    ]
    decisions = [*fixed.values(), *measured.values(), *operators]
    if snapshot.brokers:
        decisions = [d if d.broker_id in snapshot.brokers else _without_measurements(d) for d in decisions]
    return Plan(
        decisions=tuple(sorted(decisions, key=lambda d: (d.broker_id, d.role.value))),
        replicas=_replica_lists(snapshot, overridden),
        hold=hold(snapshot, overrides, limits.keep_throttles),
        finished_override=_is_over(snapshot, overrides) and (after_reassignment or had_reassignment(snapshot)),
    )


def hold(snapshot: Snapshot, overrides: Overrides, keep_throttles: bool) -> Hold:
    """Return what must stay although no known reassignment, catch-up or override needs it.

    An unreadable topic may need its own lists, and the rates of the brokers in them. An unreadable override may need
    the rates of its broker, and the broker's entries in all lists.

    Args:
        snapshot: the cluster with its current throttles.
        overrides: the overrides.
        keep_throttles: whether throttles stay after the last reassignment.
    """
    if None in overrides.unreadable or (keep_throttles and not snapshot.reassignments):
        return HOLD_ALL
    topics = frozenset(problem.topic for problem in snapshot.problems)
    brokers = frozenset(b for b in overrides.unreadable if b is not None)
    listed: set[int] = set()
    for topic in topics:
        broker_ids = _listed_brokers(snapshot, topic)
        if broker_ids is None:
            return HOLD_ALL
        listed |= broker_ids
    return Hold(brokers=brokers | listed, topics=topics, entries_of=brokers)


def _listed_brokers(snapshot: Snapshot, topic: str) -> frozenset[int] | None:
    """Return the brokers in the lists of an unreadable topic; None: they may be any."""
    resource = ConfigResource.topic(topic)
    if not topic or resource in snapshot.unreadable_configs:
        return None
    entries = set[str]().union(*(key.owned for key in snapshot.records.get(resource, {}).values()))
    for key, text in snapshot.throttles.get(resource, {}).items():
        if key in REPLICAS_KEYS:
            try:
                entries |= parse_replicas(text)
            except Invalid:
                return None  # the brokers still apply an earlier list
    if WILDCARD in entries:
        return None
    return frozenset(int(listed.partition(":")[2]) for listed in entries)


def _is_over(snapshot: Snapshot, overrides: Overrides) -> bool:
    """Return whether there certainly is an autoremove override and certainly no reassignment."""
    override = overrides.cluster
    if override is None or not override.autoremove or override.rate <= 0:
        return False
    return not (snapshot.reassignments or snapshot.problems or None in overrides.unreadable)


def had_reassignment(snapshot: Snapshot) -> bool:
    """Return whether the ledger still has lists of a reassignment: leader lists, since overrides write none."""
    return any(LEADER_REPLICAS in records for records in snapshot.records.values())


def _without_load(snapshot: Snapshot, limits: Limits, failures: int, broker_id: int, role: ReplicaRole) -> Decision:
    """Keep the previous rate up to the failure threshold, then use the minimum, which is safe."""
    current, previous = snapshot.rates.get((broker_id, role)), snapshot.previous_rates.get((broker_id, role))
    if previous is not None and failures <= limits.failure_threshold:
        return Decision(broker_id, role, previous, Reason.KEPT, current)
    return Decision(broker_id, role, limits.min_rate, Reason.MINIMUM, current)


def _static(snapshot: Snapshot, limits: Limits, rate: BytesPerSecond, broker_id: int, role: ReplicaRole) -> Decision:
    """Set the policy's fixed rate, which needs no load."""
    current, previous = snapshot.rates.get((broker_id, role)), snapshot.previous_rates.get((broker_id, role))
    if previous is not None and is_small_change(previous, rate, limits.change_threshold):
        return Decision(broker_id, role, previous, Reason.UNCHANGED, current, basis=Basis.STATIC)
    return Decision(broker_id, role, rate, Reason.HEADROOM, current, basis=Basis.STATIC)


def _link_side_input(snapshot: Snapshot, loads: Loads, side: LinkSide, overrides: Overrides) -> LinkSideInput:
    current, previous = snapshot.rates.get(side), snapshot.previous_rates.get(side)
    if overrides.of(side[0]) is not None:
        previous = None  # the operator's rate says nothing about the headroom
    return LinkSideInput(side, loads.traffic[side], loads.capacities[side], current, previous)


def _proposed(side_input: LinkSideInput, proposal: RateProposal, limits: Limits) -> Decision:
    """Return the policy's rate, or the previous one if they differ by less than the change threshold."""
    broker_id, role = side_input.side
    small = is_small_change(side_input.previous, proposal.rate, limits.change_threshold)
    # The operator chose a static rate regardless of clients, so it is never "over capacity".
    is_short = proposal.rate < limits.min_rate and proposal.basis is not Basis.STATIC
    reason = Reason.OVER_CAPACITY if is_short else Reason.HEADROOM
    rate, reason = (side_input.previous or 0, Reason.UNCHANGED) if small else (proposal.rate, reason)
    return Decision(
        broker_id=broker_id,
        role=role,
        rate_bytes_per_second=rate,
        reason=reason,
        current_rate_bytes_per_second=side_input.current,
        headroom_bytes_per_second=proposal.rate,
        utilization_bytes_per_second=side_input.used.rate,
        capacity_bytes_per_second=side_input.capacity,
        client_bytes_per_second=proposal.client,
        client_age_seconds=proposal.client_age,
        basis=proposal.basis,
    )


def _overridden(
    snapshot: Snapshot,
    overrides: Overrides,
    capacities: Mapping[LinkSide, BytesPerSecond],
    side: LinkSide,
    measured: Decision | None,
) -> Decision:
    """Return the override's rate, with the measurements of the decision without it; None: the broker has no load.

    The capacity of the link limits it: a higher rate would not limit replication at all.
    """
    broker_id, role = side
    override = overrides.of(broker_id)
    assert override is not None
    own = override is overrides.brokers.get(broker_id)
    reason = Reason.BROKER_OVERRIDE if own else Reason.CLUSTER_OVERRIDE
    highest = override.rate if override.beyond_capacity else capacities.get(side, override.rate)
    rate = min(override.rate, highest)
    unmeasured = Decision(broker_id, role, rate, reason, snapshot.rates.get(side))
    limited = override.rate if rate < override.rate else None
    return replace(measured or unmeasured, rate_bytes_per_second=rate, reason=reason, override_bytes_per_second=limited)


def _without_measurements(decision: Decision) -> Decision:
    """Return the decision of a broker that is down: its last load is from before, and it serves no clients now."""
    return replace(
        decision,
        headroom_bytes_per_second=None,
        utilization_bytes_per_second=None,
        capacity_bytes_per_second=None,
        client_bytes_per_second=None,
        client_age_seconds=None,
        basis=decision.basis if decision.basis is Basis.STATIC else None,
    )


def is_small_change(previous: BytesPerSecond | None, rate: BytesPerSecond, threshold: float) -> bool:
    """Return whether a rate deviates from the previous one by less than the threshold; equality does not count.

    >>> is_small_change(100, 109, 0.1), is_small_change(100, 110, 0.1), is_small_change(None, 1, 0.1)
    (True, False, False)
    """
    return previous is not None and abs(previous - rate) < _exact(threshold) * previous


@cache  # one constant, used for each of 2,000 rates
def _exact(threshold: float) -> Fraction:
    # As floats, 0.07 * 100 is more than 7, so a change of exactly 7 % would not be written.
    return Fraction(threshold).limit_denominator(1_000_000)


def _overridden_brokers(snapshot: Snapshot, overrides: Overrides) -> frozenset[int]:
    """Return the brokers whose broker override applies: registered ones, and stopped ones that have replicas."""
    known = snapshot.brokers | {b for b, topics in snapshot.replicas.items() if topics}
    return overrides.active_brokers & known


def replica_lists(snapshot: Snapshot, overrides: Overrides) -> dict[str, DesiredReplicas]:
    """Return topic -> the replica lists of a plan, without deciding any rate."""
    return _replica_lists(snapshot, _overridden_brokers(snapshot, overrides))


def _replica_lists(snapshot: Snapshot, overridden: frozenset[int]) -> dict[str, DesiredReplicas]:
    desired = {
        r.topic: DesiredReplicas(r.copying.leader_replicas, r.copying.follower_replicas, _moving(r.partitions))
        for r in snapshot.reassignments
    }
    recovering: dict[str, set[str]] = {}
    for broker_id in overridden:
        for topic, partitions in snapshot.replicas.get(broker_id, {}).items():
            if topic != CONSUMER_OFFSETS:
                listed = {f"{p}:{broker_id}" for p in partitions if _may_recover(snapshot, (topic, p), broker_id)}
                recovering.setdefault(topic, set()).update(listed)
    for topic, entries in recovering.items():
        lists = desired.get(topic, DesiredReplicas())
        follower = lists.of(ReplicaRole.FOLLOWER)
        if not entries <= follower:
            desired[topic] = replace(lists, follower=follower | entries)
    return dict(sorted(desired.items()))


def _may_recover(snapshot: Snapshot, row: TopicPartition, broker_id: int) -> bool:
    """Return whether the override of a broker lists this replica.

    Without a reassignment it lists all replicas, because Kafka sends no event when one of them falls out of sync. While
    the broker takes part in a reassignment, it does not list a replica that is certainly in sync: Kafka would never
    delay that replica, but would count its traffic against the rate.
    """
    if broker_id not in snapshot.brokers or broker_id not in snapshot.participants:
        return True
    assignment = snapshot.assignments.get(row)
    return assignment is None or broker_id not in assignment.isr


@lru_cache(maxsize=256)  # most topics have the partitions 0 to n - 1, and a set of them takes 64 bytes each
def _moving(partitions: tuple[int, ...]) -> frozenset[int]:
    return frozenset(partitions)

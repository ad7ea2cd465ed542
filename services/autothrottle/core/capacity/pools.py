"""Pools: which topics are on which brokers, and the fewest moves that make a cluster so.

`membership` and `pool_plan` are the functions to know.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autothrottle.core.capacity.sizing import InstanceType, UsableShares
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import BrokerSelection, PlacementBroker, select_brokers
from autothrottle.core.placement.partition_map import (
    Compile,
    PartitionMap,
    PartitionReplicas,
    matching_topics,
    unmatched_patterns,
    without_no_ops,
)
from autothrottle.core.placement.plan import Affinity, Optimization, PlacementPlan, RebuildOptions, Strategy
from autothrottle.core.placement.rebuild import rebuild, substitution_affinities
from autothrottle.core.texts import excerpt

_SHOWN = 3
"""Names in a sentence."""


@dataclass(frozen=True, slots=True)
class BrokerRule:
    """The brokers of a pool by what they are; an empty set: any."""

    racks: frozenset[str] = frozenset()
    instance_types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Pool:
    """Topics, and the brokers that hold them."""

    name: str
    topics: tuple[str, ...]
    """Names, or regular expressions that match whole names."""
    brokers: tuple[int, ...] | BrokerRule
    topics_exclude: tuple[str, ...] = ()
    replication: int = 0
    """Replicas of each partition; 0: as they are."""
    placement: Strategy = Strategy.COUNT
    optimize: Optimization = Optimization.DISTRIBUTION
    min_rack_ids: int = 0
    """Distinct racks that suffice for each partition; 0: all its replicas must be in different racks."""
    limits: UsableShares = field(default_factory=UsableShares)
    fan_out: float = 1.0
    """Bytes that consumers read for each byte produced, >= 0."""
    shared: bool = False
    """Its brokers may be in other pools, too."""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a cluster, and what its brokers offer."""

    pools: tuple[Pool, ...]
    instances: Mapping[str, InstanceType] = field(default_factory=dict)
    instance_types: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> key of `instances`; absent: unknown."""

    @property
    def need_storage(self) -> bool:
        """Whether plans need sizes and free storage."""
        return any(pool.placement is Strategy.STORAGE for pool in self.pools)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one value of a pool."""

    pool: str
    key: str
    text: str
    """What is wrong, and the fix."""


@dataclass(frozen=True, slots=True)
class PoolMembers:
    """The topics and brokers of each pool in a cluster."""

    topics: Mapping[str, tuple[str, ...]]
    """Pool -> its topics in order."""
    brokers: Mapping[str, tuple[int, ...]]
    """Pool -> its brokers in order; listed ones count although the cluster does not know them."""
    unpooled: tuple[str, ...]
    """Topics that are in no pool."""
    faults: tuple[Fault, ...] = ()


def membership(
    pools: Pools, topics: Collection[str], brokers: Mapping[int, PlacementBroker], compile: Compile = re.compile
) -> PoolMembers:
    """Return the topics and brokers of each pool, and what is wrong with the pools.

    Args:
        pools: their names differ.
        topics: all topics of the cluster.
        brokers: broker id -> each registered broker.
        compile: compiles a regular expression.
    """
    topics_of: dict[str, tuple[str, ...]] = {}
    brokers_of = {pool.name: _brokers_of(pool, pools, brokers) for pool in pools.pools}
    faults: list[Fault] = []
    for pool in pools.pools:
        try:
            topics_of[pool.name] = matching_topics(topics, pool.topics, pool.topics_exclude, compile)
            unmatched = unmatched_patterns(topics, pool.topics, compile)
        except Invalid as error:
            topics_of[pool.name], unmatched = (), ()
            faults.append(Fault(pool.name, "topics", f"{error}. Fix: correct it"))
        faults += [
            Fault(pool.name, "topics", f"{text!r} matches no topic. Fix: correct it, or remove it")
            for text in unmatched
        ]
    faults += _topics_in_two_pools(topics_of)
    faults += _brokers_in_two_pools(pools, brokers_of)
    for pool in pools.pools:
        faults += _broker_faults(pool, brokers_of[pool.name], brokers)
    pooled = {topic for names in topics_of.values() for topic in names}
    return PoolMembers(topics_of, brokers_of, tuple(sorted(set(topics) - pooled)), tuple(faults))


def _brokers_of(pool: Pool, pools: Pools, brokers: Mapping[int, PlacementBroker]) -> tuple[int, ...]:
    if not isinstance(pool.brokers, BrokerRule):
        return tuple(sorted(pool.brokers))
    rule = pool.brokers
    return tuple(
        broker.id
        for broker in sorted(brokers.values(), key=lambda broker: broker.id)
        if (not rule.racks or broker.rack in rule.racks)
        and (not rule.instance_types or pools.instance_types.get(broker.id) in rule.instance_types)
    )


def pool_of_brokers(pools: Pools) -> Mapping[int, str]:
    """Return broker id -> its pool, for each broker that is in exactly one.

    A rule on racks names no broker here, because only the cluster knows the racks.
    """
    typed = {id: PlacementBroker(id) for id in pools.instance_types}
    names: dict[int, list[str]] = {}
    for pool in pools.pools:
        for id in _brokers_of(pool, pools, typed):
            names.setdefault(id, []).append(pool.name)
    return {id: of_broker[0] for id, of_broker in names.items() if len(of_broker) == 1}


def _topics_in_two_pools(topics_of: Mapping[str, Sequence[str]]) -> list[Fault]:
    first: dict[str, str] = {}
    repeated: dict[tuple[str, str], list[str]] = {}
    for pool, topics in topics_of.items():
        for topic in topics:
            if first.setdefault(topic, pool) != pool:
                repeated.setdefault((first[topic], pool), []).append(topic)
    return [
        Fault(
            pool, "topics", f"also in pool {other}: {excerpt(topics, _SHOWN)}. Fix: leave them out with topics_exclude"
        )
        for (other, pool), topics in repeated.items()
    ]


def _brokers_in_two_pools(pools: Pools, brokers_of: Mapping[str, Sequence[int]]) -> list[Fault]:
    count = Counter(broker for brokers in brokers_of.values() for broker in brokers)
    faults = []
    for pool in pools.pools:
        if not pool.shared and (repeated := [broker for broker in brokers_of[pool.name] if count[broker] > 1]):
            others = [
                name
                for name, brokers in brokers_of.items()
                if name != pool.name and not {*repeated}.isdisjoint(brokers)
            ]
            text = f"also in pool {excerpt(others, _SHOWN)}: {excerpt(repeated, _SHOWN)}"
            faults.append(Fault(pool.name, "brokers", f"{text}. Fix: remove them, or set shared = true in all"))
    return faults


def _broker_faults(pool: Pool, ids: Sequence[int], brokers: Mapping[int, PlacementBroker]) -> list[Fault]:
    if not ids:
        return [Fault(pool.name, "brokers", "the rule matches no broker. Fix: correct its racks and instance types")]
    faults = []
    # While brokers are lost, a rule selects fewer of them. The file is right then, and the plan waits or refuses.
    if isinstance(pool.brokers, BrokerRule):
        racks = set(pool.brokers.racks)
    else:
        racks = {brokers[id].rack or f"broker {id}" if id in brokers else f"broker {id}" for id in ids}
        if pool.replication > len(ids):
            text = f"{len(ids)} brokers cannot hold {pool.replication} replicas. Fix: list more brokers"
            faults.append(Fault(pool.name, "brokers", text))
    if racks and len(racks) < min(pool.replication, pool.min_rack_ids or pool.replication):
        text = (
            f"{len(racks)} racks are fewer than {pool.replication} replicas. Fix: list brokers of more racks, or set "
            f"min_rack_ids = {len(racks)}"
        )
        faults.append(Fault(pool.name, "brokers", text))
    return faults


@dataclass(frozen=True)
class PoolPlan:
    """What differs between a pool and the cluster. The class has no slots, so that `changed` is computed once."""

    pool: Pool
    selection: BrokerSelection
    plan: PlacementPlan
    lost: tuple[int, ...] = ()
    """Brokers that the cluster does not know, and whose replicas stay because a repair was not asked for."""
    notes: tuple[str, ...] = ()

    @cached_property
    def changed(self) -> PartitionMap:
        """The partitions that change, as they shall be."""
        return without_no_ops(self.plan.old_map, self.plan.new_map)


@dataclass(frozen=True, slots=True)
class PoolPlans:
    """What differs between all pools and the cluster."""

    plans: tuple[PoolPlan, ...]
    """In the order of the file."""
    unpooled: tuple[str, ...]
    """Topics that are in no pool."""

    @property
    def changed(self) -> PartitionMap:
        """The partitions to reassign: those of all pools that are not refused."""
        return tuple(entry for plan in self.plans if not plan.plan.refusals for entry in plan.changed)

    @property
    def is_refused(self) -> bool:
        """Whether a pool cannot be made as its file says."""
        return any(plan.plan.refusals for plan in self.plans)

    @property
    def has_drift(self) -> bool:
        """Whether the cluster is not as the file says."""
        return self.is_refused or any(plan.changed or plan.lost for plan in self.plans)


def pool_plans(
    pools: Pools,
    members: PoolMembers,
    partitions: Iterable[PartitionReplicas],
    brokers: Mapping[int, PlacementBroker],
    *,
    repair_lost: bool = False,
    allow_fewer_racks: bool = False,
) -> PoolPlans:
    """Return what differs between the pools and the cluster; `pool_plan` has the arguments.

    Raises:
        Invalid: placement by storage, and sizes or free storage are unknown.
    """
    pool_of = {topic: name for name, topics in members.topics.items() for topic in topics}
    of_pool: dict[str, list[PartitionReplicas]] = {pool.name: [] for pool in pools.pools}
    for entry in partitions:
        if entry.topic in pool_of:
            of_pool[pool_of[entry.topic]].append(entry)
    plans = tuple(
        pool_plan(
            pool,
            members.brokers[pool.name],
            of_pool[pool.name],
            brokers,
            repair_lost=repair_lost,
            allow_fewer_racks=allow_fewer_racks,
        )
        for pool in pools.pools
    )
    return PoolPlans(plans, members.unpooled)


def pool_plan(
    pool: Pool,
    broker_ids: Sequence[int],
    partitions: Sequence[PartitionReplicas],
    brokers: Mapping[int, PlacementBroker],
    *,
    repair_lost: bool = False,
    allow_fewer_racks: bool = False,
) -> PoolPlan:
    """Return the fewest moves that put all replicas of a pool's topics on its brokers.

    A change of the brokers is a repair: a new broker of the same rack substitutes one that leaves, and no other replica
    moves. Topics that come from another pool are placed afterwards, evenly beside the others.

    Args:
        pool: its rules.
        broker_ids: the brokers of the pool, see `PoolMembers`.
        partitions: all partitions of its topics.
        brokers: broker id -> each registered broker.
        repair_lost: whether the replicas of lost brokers move: those that the pool has and the cluster does not know.
        allow_fewer_racks: replicas may share a rack where the brokers leave no other choice.

    Raises:
        Invalid: placement by storage, and sizes or free storage are unknown.
    """
    selection = select_brokers(partitions, broker_ids, brokers)
    is_listed = isinstance(pool.brokers, tuple)
    lost = tuple(
        broker.id
        for broker in selection.brokers
        if broker.missing and broker.id >= 0 and (broker.id in broker_ids or not is_listed) and not repair_lost
    )
    # Nothing moves to or from a lost broker, so any free storage will do where placement by storage asks for one.
    members = [
        PlacementBroker(broker.id, storage_free=0 if pool.placement is Strategy.STORAGE else None, cordoned=True)
        if broker.id in lost
        else broker
        for broker in selection.brokers
    ]
    affinities, notes = _affinities(partitions, members, broker_ids)
    plan = rebuild(
        partitions,
        members,
        RebuildOptions(
            strategy=pool.placement,
            optimization=pool.optimize,
            replication_factor=pool.replication,
            affinities=affinities,
            min_rack_ids=pool.min_rack_ids,
            allow_fewer_racks=allow_fewer_racks,
        ),
    )
    return PoolPlan(pool, selection, plan, lost, notes)


def _affinities(
    partitions: Sequence[PartitionReplicas], brokers: Sequence[PlacementBroker], broker_ids: Collection[int]
) -> tuple[tuple[Affinity, ...], tuple[str, ...]]:
    """Return a new broker for each broker that leaves the pool, and notes; the old brokers of new topics do not count.

    A topic is new if most of its replicas are on brokers of other pools.
    """
    members = frozenset(broker_ids)
    inside, total = Counter[str](), Counter[str]()
    for entry in partitions:
        inside[entry.topic] += sum(id in members for id in entry.replicas)
        total[entry.topic] += len(entry.replicas)
    resident = [entry for entry in partitions if 2 * inside[entry.topic] >= total[entry.topic]]
    mapped = {id for entry in resident for id in entry.replicas}
    candidates = [
        replace(broker, new=broker.id not in mapped and not broker.missing)
        for broker in brokers
        if broker.id in mapped or not broker.replace
    ]
    if not any(broker.replace for broker in candidates) or not any(broker.new for broker in candidates):
        return (), ()
    try:
        return substitution_affinities(resident, candidates), ()
    except Invalid as error:
        return (), (f"replicas are spread over the pool, because a broker has no substitute: {error}",)

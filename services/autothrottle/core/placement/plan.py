"""The options, the result and the steps of a plan, and how evenly a map uses its brokers.

`build_plan` turns a finished `ReplicaTable` into a plan. The types to know are `PlacementPlan` and
`PlacementStatistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import fsum, sqrt
from typing import NamedTuple

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionMap, PartitionReplicas, TopicPartitionKey
from autothrottle.core.placement.replica_table import ReplicaTable
from autothrottle.core.texts import excerpt


class BrokerShare(NamedTuple):
    """The replicas that one broker holds."""

    leaders: int
    """Partitions whose first replica it holds."""
    followers: int

    @property
    def total(self) -> int:
        """All replicas."""
        return self.leaders + self.followers


class Degree(NamedTuple):
    """Number of other brokers with which a broker shares a partition, over the brokers with replicas."""

    min: int
    max: int
    average: float


@dataclass(frozen=True, slots=True)
class StorageSpread:
    """How even the free storage of brokers is, bytes."""

    min: int
    max: int
    mean: float
    harmonic_mean: float
    """Over brokers with free storage; 0: no broker has any."""
    standard_deviation: float
    """Of the population."""

    @property
    def range(self) -> int:
        """The difference between the largest and the smallest free storage."""
        return self.max - self.min

    @property
    def range_spread(self) -> float | None:
        """The range as a fraction of the smallest free storage; None: a broker has none left."""
        return self.range / self.min if self.min > 0 else None


@dataclass(frozen=True, slots=True)
class PlacementStatistics:
    """Statistics of one map over some brokers."""

    shares: Mapping[int, BrokerShare]
    """Broker id -> its replicas, ordered by id; brokers without replicas are included."""
    degree: Degree
    storage_free: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> free bytes, ordered by id; empty: unknown."""
    storage: StorageSpread | None = None
    """None: free storage is unknown."""

    @property
    def leader_spread(self) -> int:
        """The difference between the most and the fewest leaders of a broker."""
        return _spread([share.leaders for share in self.shares.values()])

    @property
    def replica_spread(self) -> int:
        """The difference between the most and the fewest replicas of a broker."""
        return _spread([share.total for share in self.shares.values()])


def _spread(counts: list[int]) -> int:
    return max(counts, default=0) - min(counts, default=0)


def statistics(
    partitions: Iterable[PartitionReplicas], broker_ids: Iterable[int], storage_free: Mapping[int, int] | None = None
) -> PlacementStatistics:
    """Return the statistics of a map over these brokers.

    Args:
        partitions: the map.
        broker_ids: brokers to count; degrees cover every broker with replicas.
        storage_free: broker id -> free bytes with this map; None: unknown.
    """
    leaders: dict[int, int] = dict.fromkeys(sorted(broker_ids), 0)
    totals = dict(leaders)
    shared: dict[int, set[int]] = {}
    for entry in partitions:
        replicas = entry.replicas
        if replicas:
            leaders[replicas[0]] = leaders.get(replicas[0], 0) + 1
        for broker in replicas:
            totals[broker] = totals.get(broker, 0) + 1
            if (others := shared.get(broker)) is None:
                others = shared[broker] = set()
            others.update(replicas)
    free = {} if storage_free is None else {broker: storage_free[broker] for broker in sorted(storage_free)}
    return PlacementStatistics(
        shares={
            broker: BrokerShare(leaders.get(broker, 0), totals[broker] - leaders.get(broker, 0))
            for broker in sorted(totals)
        },
        degree=_degree([len(others) - 1 for others in shared.values()]),
        storage_free=free,
        storage=storage_spread(free.values()),
    )


def _degree(degrees: list[int]) -> Degree:
    return Degree(min(degrees), max(degrees), sum(degrees) / len(degrees)) if degrees else Degree(0, 0, 0.0)


def storage_spread(free: Iterable[int]) -> StorageSpread | None:
    """Return how even free storage is; None: no broker is given.

    The example of the article about Kafka-Kit, in GiB:

    >>> before = [1055.13, 925.77, 942.71, 1020.07, 961.55, 1063.25]
    >>> after = [993.30, 995.47, 993.46, 997.41, 993.53, 995.30]
    >>> for free in before, after:
    ...     spread = storage_spread(round(each * 2**30) for each in free)
    ...     print(f"{spread.range_spread:.2%} {spread.standard_deviation / 2**30:.2f}GiB")
    14.85% 54.08GiB
    0.41% 1.48GiB
    """
    values = list(free)
    if not values:
        return None
    mean = fsum(values) / len(values)
    positive = [value for value in values if value > 0]
    return StorageSpread(
        min=min(values),
        max=max(values),
        mean=mean,
        harmonic_mean=len(positive) / fsum(1 / value for value in positive) if positive else 0.0,
        standard_deviation=sqrt(fsum((value - mean) ** 2 for value in values) / len(values)),
    )


_NAMED_BROKERS = 5


def gigabytes(size: int) -> str:
    """Return a size for operators. A GB is 10^9 bytes, as in all texts but the report of Kafka-Kit's layout.

    >>> gigabytes(1_500_000_000), gigabytes(120)
    ('1.50 GB', '120 bytes')
    """
    return f"{size / 10**9:.2f} GB" if abs(size) >= 10**7 else f"{size} bytes"


class Strategy(StrEnum):
    """What a placement makes even."""

    COUNT = "count"
    """The number of replicas and leaders."""
    STORAGE = "storage"
    """The free storage; needs sizes and free storage."""


class Optimization(StrEnum):
    """How a rebuild chooses among placements."""

    DISTRIBUTION = "distribution"
    """More distinct pairs of brokers share partitions."""
    STORAGE = "storage"
    """The free storage is as even as possible."""
    MINIMAL = "minimal"
    """As few bytes as possible are copied. Only with `force`."""


class LeadershipEvacuation(NamedTuple):
    """Brokers that shall not lead the partitions of some topics."""

    brokers: frozenset[int]
    topics: frozenset[str]


class Affinity(NamedTuple):
    """A broker that leaves, and the new broker that substitutes it."""

    leaving: int
    substitute: int
    inferred: bool
    """The rack of the leaving broker was inferred from the map."""


@dataclass(frozen=True, slots=True)
class PlanScope:
    """The topics and brokers of a plan."""

    topics: tuple[str, ...] = ()
    """Names, or regular expressions that match whole names."""
    topics_exclude: tuple[str, ...] = ()
    """Topics to leave out, as for `topics`."""
    brokers: tuple[int, ...] = ()
    """Ids of the brokers that shall hold the replicas; ALL_MAPPED and ALL_REGISTERED stand for several."""


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """Options of `rebuild`. `operations` alone heeds those that follow `evacuation`."""

    strategy: Strategy = Strategy.COUNT
    optimization: Optimization = Optimization.DISTRIBUTION
    force: bool = False
    """Place every replica anew."""
    replication_factor: int = 0
    """Wanted replicas per partition; 0 or less: as they are."""
    substitution_affinity: bool = False
    """Each broker that leaves is substituted by one new broker of its rack. Not with `force`."""
    affinities: tuple[Affinity, ...] = ()
    """The substitutes of some brokers, instead of `substitution_affinity`."""
    min_rack_ids: int = 0
    """Distinct racks that suffice for each partition; 0: all its replicas must be in different racks."""
    allow_fewer_racks: bool = False
    """Replicas may share a rack where the brokers leave no other choice: a warning instead of a refusal."""
    partition_size_factor: float = 1.0
    """Each size is multiplied by this factor, > 0: room for growth."""
    optimize_leadership: bool = False
    evacuation: LeadershipEvacuation | None = None
    scope: PlanScope = PlanScope()
    leader_evacuation_brokers: tuple[int, ...] = ()
    """Brokers that shall not lead `leader_evacuation_topics`. `operations` makes `evacuation` of both."""
    leader_evacuation_topics: tuple[str, ...] = ()
    """Names, or regular expressions that match whole names."""
    phased: bool = False
    """Two steps; the first one keeps the current leaders."""
    brokers_per_step: int = 0
    """Each step concerns this number of brokers; 0: one step."""
    replicas: Mapping[TopicPartitionKey, tuple[int, ...]] = field(default_factory=dict)
    """The map to change, (topic, partition) -> broker ids; empty: that of the cluster's topics."""
    use_metadata: bool = True
    """Brokers and racks come from the cluster. False: each broker of the scope counts as registered."""


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """Options of `rebalance`. `operations` alone heeds the scope."""

    storage_threshold: float | None = None
    """Only brokers whose free storage is at least this fraction below the harmonic mean offload.

    None: all below the mean."""
    storage_threshold_bytes: int = 0
    """Only brokers with less free storage offload, bytes; 0: not used. It replaces `storage_threshold`."""
    tolerance: float | None = None
    """Largest distance of free storage from the mean, as a fraction in (0, 1); None: as even as possible."""
    partition_limit: int = 0
    """Relocations away from each broker, at most; 0: no limit."""
    partition_size_threshold: int = 0
    """Smaller partitions stay, bytes."""
    locality_scoped: bool = False
    """Replicas stay in their rack."""
    min_rack_ids: int = 0
    allow_fewer_racks: bool = False
    """As for `RebuildOptions`."""
    optimize_leadership: bool = False
    scope: PlanScope = PlanScope()


@dataclass(frozen=True, slots=True)
class ScaleOptions(RebalanceOptions):
    """Options of `scale`, which ignores both thresholds of storage."""


@dataclass(frozen=True, slots=True)
class DecommissionOptions(RebalanceOptions):
    """Options of `decommission`, which ignores both thresholds of storage. No broker in the scope means all."""

    leaving: tuple[int, ...] = ()
    """Ids of the brokers to empty."""


@dataclass(frozen=True, slots=True)
class ReliefOptions(RebalanceOptions):
    """Options of `relieve`. No broker in the scope means all."""

    broker: int = -1
    """Id of the full broker."""
    used_share: float = 0.8
    """Share of each broker's storage that may be used after the plan, in [0, 1]."""
    growth: Mapping[TopicPartitionKey, float] = field(default_factory=dict)
    """(topic, partition) -> growth of its log, bytes/s; empty: all grow alike."""


PlanOptions = RebuildOptions | RebalanceOptions
"""The options of any operation."""


class Relocation(NamedTuple):
    """One replica that a rebalance moves."""

    partition: PartitionReplicas
    """Before the plan."""
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """A new partition map beside the old one."""

    old_map: PartitionMap
    new_map: PartitionMap
    """The same partitions in the same order."""
    brokers: tuple[PlacementBroker, ...]
    old_statistics: PlacementStatistics
    """Over the brokers that hold replicas before the plan."""
    new_statistics: PlacementStatistics
    """Over the brokers that stay or join."""
    warnings: tuple[str, ...] = ()
    """Sorted. A caller should not execute a plan with warnings unless an operator accepts them."""
    refusals: tuple[str, ...] = ()
    """Warnings that forbid execution: the plan loses replicas, or puts replicas into one rack."""
    accepted_warnings: tuple[str, ...] = ()
    """The warnings that an option of the plan has accepted already."""
    notes: tuple[str, ...] = ()
    """Sentences that need no consent, for example about a wider range that no plan can avoid."""
    affinities: tuple[Affinity, ...] = ()
    relocations: tuple[Relocation, ...] = ()
    """Of `rebalance`, `scale` and `decommission`: each replica that moves, ordered by source, size and partition."""
    offload_targets: tuple[int, ...] = ()
    """Brokers that offload replicas, the one with the least free storage first."""
    tolerance: float = 0.0
    """Largest distance of a broker's free storage from the mean after the plan, as a fraction; or the option's."""
    copied_bytes: int = 0
    """Bytes that the brokers have to copy, unknown sizes as 0."""
    bound_bytes: int = 0
    """The least bytes that must be copied to make free storage equal on all brokers; racks and sizes are ignored."""

    @property
    def partitions_to_copy(self) -> int:
        """The number of partitions with replicas to copy."""
        return len(self._to_copy)

    @property
    def unsized_partitions(self) -> int:
        """The number of partitions with replicas to copy whose size is unknown."""
        return sum(old.size is None for old in self._to_copy)

    @property
    def _to_copy(self) -> PartitionMap:
        pairs = zip(self.old_map, self.new_map, strict=True)
        return tuple(old for old, new in pairs if not set(old.replicas).issuperset(new.replicas))


class ReplicaReason(NamedTuple):
    """Why a plan placed one replica on its broker."""

    topic: str
    partition: int
    broker_id: int
    replaces: int | None
    """The broker that held the replica; None: it stays, or the replication factor grows."""
    reason: str
    """A sentence for operators."""


def unused_brokers(
    plan: PlacementPlan, reasons: Callable[[Sequence[PlacementBroker]], Iterable[str]]
) -> tuple[str, ...]:
    """Return a sentence for each reason for which new brokers get no replica.

    Args:
        plan: the plan.
        reasons: returns a reason for each of these brokers, which are not cordoned.
    """
    shares = plan.new_statistics.shares
    unused = [b for b in plan.brokers if b.new and (b.id not in shares or not shares[b.id].total)]
    usable = [broker for broker in unused if not broker.cordoned]
    reason_of = dict(zip([broker.id for broker in usable], reasons(usable) if usable else (), strict=True))
    brokers_of_reasons: dict[str, list[int]] = {}
    for broker in unused:
        brokers_of_reasons.setdefault(reason_of.get(broker.id, "cordoned"), []).append(broker.id)
    return tuple(
        f"new {'broker' if len(ids) == 1 else 'brokers'} {excerpt(ids, _NAMED_BROKERS)} without a replica: {reason}"
        for reason, ids in brokers_of_reasons.items()
    )


def explain(plan: PlacementPlan) -> tuple[ReplicaReason, ...]:
    """Return one reason for each replica of a changed partition, in the order of the map."""
    brokers = {broker.id: broker for broker in plan.brokers}
    return tuple(
        reason
        for old, new in zip(plan.old_map, plan.new_map, strict=True)
        if old.replicas != new.replicas
        for reason in _reasons(plan, brokers, old, new)
    )


def _reasons(
    plan: PlacementPlan, brokers: Mapping[int, PlacementBroker], old: PartitionReplicas, new: PartitionReplicas
) -> list[ReplicaReason]:
    leaving = [id for id in old.replicas if id not in new.replicas]
    reasons = []
    for position, id in enumerate(new.replicas):
        if id in old.replicas:
            reasons.append(ReplicaReason(new.topic, new.partition, id, None, _stay(position, id, old, new)))
            continue
        same = old.replicas[position] if position < len(old.replicas) else None
        replaces = same if same in leaving else next(iter(leaving), None)
        if replaces is not None:
            leaving.remove(replaces)
        cause = "The replication factor grows" if replaces is None else _departure(plan, brokers[replaces])
        text = f"{cause}; {_arrival(plan, brokers, id, new.replicas)}"
        reasons.append(ReplicaReason(new.topic, new.partition, id, replaces, text))
    return reasons


def _stay(position: int, id: int, old: PartitionReplicas, new: PartitionReplicas) -> str:
    if position == 0 and old.replicas[0] != id:
        return f"Broker {id} keeps its replica and becomes the preferred leader"
    if position > 0 and old.replicas[0] == id:
        return f"Broker {id} keeps its replica; broker {new.replicas[0]} becomes the preferred leader"
    return f"Broker {id} keeps its replica"


def _departure(plan: PlacementPlan, broker: PlacementBroker) -> str:
    if broker.missing:
        return f"Broker {broker.id} is missing"
    if broker.replace:
        return f"Broker {broker.id} leaves"
    free = plan.old_statistics.storage_free.get(broker.id)
    if broker.id in plan.offload_targets and free is not None:
        return f"Broker {broker.id} offloads replicas, with {gigabytes(free)} free before"
    return f"The replica of broker {broker.id} is placed anew"


def _arrival(plan: PlacementPlan, brokers: Mapping[int, PlacementBroker], id: int, replicas: tuple[int, ...]) -> str:
    rack = brokers[id].rack
    shared = rack and any(brokers[other].rack == rack for other in replicas if other != id)
    where = f"broker {id} in rack {rack}" if rack else f"broker {id}"
    alone = ", which no other replica uses," if rack and not shared else ""
    old, new = brokers[id].storage_free, plan.new_statistics.storage_free.get(id)
    if old is not None and new is not None:
        return f"{where}{alone} has {gigabytes(old)} free before and {gigabytes(new)} after the plan"
    old_count = plan.old_statistics.shares.get(id, BrokerShare(0, 0)).total
    new_count = plan.new_statistics.shares[id].total
    return f"{where}{alone} holds {old_count} replicas before and {new_count} after the plan"


# Executing one plan in several steps, each a complete partition map.


def steps(plan: PlacementPlan, in_phases: bool, brokers_per_chunk: int) -> tuple[PartitionMap, ...]:
    """Return the complete maps that lead to a plan: two phases, chunks, or only its own map.

    Raises:
        Invalid: both are wanted, or a chunk would change a replication factor.
    """
    if in_phases and brokers_per_chunk > 0:
        raise Invalid("phases and chunks both divide the map; leave one of them out")
    if in_phases:
        return phased(plan.old_map, plan.new_map)
    return chunks(plan.old_map, plan.new_map, brokers_per_chunk) if brokers_per_chunk > 0 else (plan.new_map,)


def phased(old_map: PartitionMap, new_map: PartitionMap) -> tuple[PartitionMap, PartitionMap]:
    """Return the maps of two phases: first with the old leader kept in front, then `new_map`.

    Phase 0 lists the old leader first, also where the plan removes it. Its broker leads until the new replicas are in
    sync. Partitions that do not change are in both maps.
    """
    phase = tuple(
        new._replace(replicas=(old.replicas[0], *(broker for broker in new.replicas if broker != old.replicas[0])))
        if old.replicas and old.replicas[0] >= 0 and old.replicas[:1] != new.replicas[:1]
        else new
        for old, new in zip(old_map, new_map, strict=True)
    )
    return phase, new_map


def chunks(old_map: PartitionMap, new_map: PartitionMap, brokers_per_chunk: int) -> tuple[PartitionMap, ...]:
    """Return maps that lead from `old_map` to `new_map`, each of which changes replicas of a few brokers.

    Each map is complete and contains no broker twice in a partition; the last one is `new_map`. A map replaces whole
    replica sets: those which name one of its brokers, highest ids first, before the plan.

    Args:
        old_map: the current map.
        new_map: the planned map.
        brokers_per_chunk: brokers per map, > 0.

    Raises:
        Invalid: a replication factor changes.
    """
    changed = [
        (number, old.replicas, new.replicas)
        for number, (old, new) in enumerate(zip(old_map, new_map, strict=True))
        if old.replicas != new.replicas
    ]
    for number, old, new in changed:
        if len(old) != len(new):
            entry = old_map[number]
            raise Invalid(
                f"{entry.topic} p{entry.partition}: chunks cannot change replication factor {len(old)} to {len(new)}"
            )
    # Kafka moves a partition once: its set changes with the highest broker that loses or reorders a replica.
    owners = {number: max(_differing(old, new)) for number, old, new in changed}
    ids = sorted(set(owners.values()), reverse=True)
    current = list(old_map)
    maps = []
    for start in range(0, len(ids), brokers_per_chunk):
        chosen = set(ids[start : start + brokers_per_chunk])
        for number, owner in owners.items():
            if owner in chosen:
                current[number] = new_map[number]
        maps.append(tuple(current))
    return tuple(maps)


def _differing(old: tuple[int, ...], new: tuple[int, ...]) -> set[int]:
    return {old_broker for old_broker, new_broker in zip(old, new, strict=True) if old_broker != new_broker}


BYTES_OVER_BOUND = 1.045
"""A plan that makes storage even copies at most this multiple of the least bytes."""


def build_plan(
    table: ReplicaTable,
    new_map: PartitionMap,
    warnings: Sequence[str] = (),
    affinities: tuple[Affinity, ...] = (),
    *,
    refusals: Sequence[str] = (),
    check_range: bool = False,
    new_racks: bool = False,
) -> PlacementPlan:
    """Return the plan from the table's partitions to `new_map`, with its statistics.

    With `check_range`, a range of free storage that grows is a warning, or a note if replicas have to move.
    With `new_racks`, no replica that joins a set may share a rack; otherwise a set may share as much as before.
    """
    mapped = {broker for replicas in table.home for broker in replicas}
    target = table.staying
    free = [broker.storage_free for broker in table.brokers]
    has_sizes = all(free[broker] is not None for broker in target)
    final = _final_free(table, new_map) if has_sizes else []
    old_statistics = _statistics(table, table.partitions, sorted(mapped), free)
    new_statistics = _statistics(table, new_map, target, final if has_sizes else free)
    fewer_racks = _fewer_racks(table, new_map, new_racks)
    refused, accepted = (refusals, fewer_racks) if table.allow_fewer_racks else ((*refusals, *fewer_racks), ())
    unforced, notes = _range_findings(table, target, final, new_map) if check_range and has_sizes else ((), ())
    return PlacementPlan(
        old_map=table.partitions,
        new_map=new_map,
        brokers=table.brokers,
        old_statistics=old_statistics,
        new_statistics=new_statistics,
        warnings=tuple(sorted([*warnings, *refusals, *fewer_racks, *unforced])),
        refusals=tuple(sorted(refused)),
        accepted_warnings=tuple(accepted),
        notes=notes,
        affinities=affinities,
        copied_bytes=copied_bytes(table.partitions, new_map),
        bound_bytes=least_bytes(table) if has_sizes else 0,
    )


def _statistics(
    table: ReplicaTable, partitions: PartitionMap, brokers: Sequence[int], free: Sequence[int | None]
) -> PlacementStatistics:
    ids = [table.brokers[broker].id for broker in brokers]
    storage_free = {
        id: value for id, broker in zip(ids, brokers, strict=True) if free and (value := free[broker]) is not None
    }
    return statistics(partitions, ids, storage_free if len(storage_free) == len(ids) else None)


def _range_findings(
    table: ReplicaTable, target: Sequence[int], final: Sequence[int], after: PartitionMap
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a warning, or a note, about a range of free storage that grows over the brokers that stay."""
    free = [table.brokers[broker].storage_free or 0 for broker in target]
    ends = [final[broker] for broker in target]
    if not target or max(ends) - min(ends) <= max(free) - min(free):
        return (), ()
    if not _must_move(table, after):
        return ("broker free storage range increased",), ()
    old, new = (gigabytes(max(values) - min(values)) for values in (free, ends))
    return (), (
        f"the range of free storage grows from {old} to {new}, because replicas leave brokers or the replication "
        "factor changes",
    )


def _must_move(table: ReplicaTable, after: PartitionMap) -> bool:
    """Return whether the map cannot stay as it is: replicas leave brokers, or their number changes."""
    return any(
        len(old) != len(entry.replicas) or not all(table.stays[broker] for broker in old)
        for old, entry in zip(table.home, after, strict=True)
    )


def _fewer_racks(table: ReplicaTable, after: PartitionMap, new_racks: bool) -> tuple[str, ...]:
    """Return a sentence about the partitions whose replicas share racks only because of this plan; none: no entry."""
    worse = [
        (old, new)
        for old, new in zip(table.partitions, after, strict=True)
        if old.replicas != new.replicas and _shares_more(table, old.replicas, new.replicas, new_racks)
    ]
    if not worse:
        return ()
    examples = ", ".join(f"{entry.topic} p{entry.partition}" for entry, _ in worse[:3])
    receiving = {broker.rack for broker in table.brokers if broker.receives}
    used = {table.brokers[table.index[id]].rack for entry, _ in worse for id in entry.replicas}
    missing = ", ".join(sorted(used - receiving - {""}))
    need = max(table.required_racks(len(new.replicas)) for _, new in worse)
    reason = (
        f"no broker that may receive replicas is in rack {missing}"
        if missing
        else f"they need {need} racks, and the brokers that may receive replicas are in {len(table.receiving_racks)}"
    )
    return (
        f"{len(worse)} of {len(after)} partitions would have two replicas in one rack, for example {examples}: "
        f"{reason}; list brokers of more racks, or accept it with allow-fewer-racks",
    )


def _shares_more(table: ReplicaTable, old: Sequence[int], new: Sequence[int], new_racks: bool) -> bool:
    """Return whether a set lacks more racks than before, loses one that it needs, or has more replicas in one rack."""
    racks_before, racks_after = _count_racks(table, old), _count_racks(table, new)
    lacking = table.required_racks(len(new)) - racks_after
    return lacking > 0 and (
        lacking > table.required_racks(len(old)) - racks_before
        or racks_after < racks_before
        or table.shared_racks(new) > table.shared_racks(old)
        or (new_racks and _joins_used_rack(table, old, new))
    )


def _joins_used_rack(table: ReplicaTable, old: Sequence[int], new: Sequence[int]) -> bool:
    racks = [table.racks[table.index[id]] for id in new]
    return any(id not in old and racks.count(rack) > 1 for id, rack in zip(new, racks, strict=True))


def _count_racks(table: ReplicaTable, replicas: Sequence[int]) -> int:
    """Return the number of racks of a set; each offline replica, -1, may have been in a rack of its own."""
    offline = replicas.count(-1)
    return len({table.racks[table.index[id]] for id in replicas if id != -1}) + offline


def _final_free(table: ReplicaTable, after: PartitionMap) -> list[int]:
    """Return the free storage of each broker after the plan, without the size factor."""
    free = [broker.storage_free or 0 for broker in table.brokers]
    for old, new in zip(table.partitions, after, strict=True):
        if old.replicas != new.replicas and old.size:
            for id in set(old.replicas).difference(new.replicas):
                free[table.index[id]] += old.size
            for id in set(new.replicas).difference(old.replicas):
                free[table.index[id]] -= old.size
    return free


def copied_bytes(old_map: PartitionMap, new_map: PartitionMap) -> int:
    """Return the bytes that brokers have to copy."""
    return sum(
        (old.size or 0) * len(set(new.replicas).difference(old.replicas))
        for old, new in zip(old_map, new_map, strict=True)
        if old.replicas != new.replicas
    )


def least_bytes(table: ReplicaTable) -> int:
    """Return the least bytes that must be copied to make free storage equal; racks and sizes are ignored."""
    gone = sum(
        (entry.size or 0) * sum(not table.stays[broker] for broker in set(replicas))
        for entry, replicas in zip(table.partitions, table.home, strict=True)
    )
    free = [table.brokers[broker].storage_free or 0 for broker in table.staying]
    level = (sum(free) - gone) / max(len(free), 1)
    return round(sum(max(0.0, each - level) for each in free))

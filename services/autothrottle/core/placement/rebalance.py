"""Move replicas until free storage is even (rebalance, scale, decommission), or just enough off a full broker."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.balancing import Balancing, MoveRules
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.leadership import even_leaders
from autothrottle.core.placement.partition_map import PartitionMap, PartitionReplicas, TopicPartitionKey
from autothrottle.core.placement.plan import (
    BYTES_OVER_BOUND,
    PlacementPlan,
    RebalanceOptions,
    RebuildOptions,
    Relocation,
    StorageSpread,
    Strategy,
    build_plan,
    gigabytes,
    least_bytes,
    storage_spread,
    unused_brokers,
)
from autothrottle.core.placement.rebuild import refill
from autothrottle.core.placement.replica_counts import keep_small_replicas
from autothrottle.core.placement.replica_table import ReplicaTable
from autothrottle.core.texts import excerpt

_NAMED_BROKERS = 3
"""Brokers that a sentence about exhausted storage names, the fullest ones."""


def rebalance(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    options: RebalanceOptions = RebalanceOptions(),  # noqa: B008 (frozen)
) -> PlacementPlan:
    """Return a plan that makes free storage even and copies about as few bytes as that needs.

    Raises:
        Invalid: a broker leaves or is missing, or sizes or free storage are missing.
    """
    return _levelled(partitions, brokers, options)


def scale(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    options: RebalanceOptions = RebalanceOptions(),  # noqa: B008 (frozen)
) -> PlacementPlan:
    """Return a plan that makes free storage even over the old and the new brokers.

    Raises:
        Invalid: no broker is new; or as for `rebalance`.
    """
    if not any(broker.new for broker in brokers):
        raise Invalid("reassignment requires additional brokers; list brokers that hold no replicas yet")
    options = replace(options, storage_threshold=None, storage_threshold_bytes=0)
    plan = _levelled(partitions, brokers, options)
    # Even storage over more brokers may widen its range; an operator need not accept that.
    return replace(plan, warnings=tuple(sorted((*plan.refusals, *plan.accepted_warnings))))


def _levelled(
    partitions: Iterable[PartitionReplicas], brokers: Sequence[PlacementBroker], options: RebalanceOptions
) -> PlacementPlan:
    table = ReplicaTable(partitions, brokers, options.min_rack_ids, allow_fewer_racks=options.allow_fewer_racks)
    _check(table)
    free = table.free()
    free_before = tuple(free)
    targets = _offload_targets(table, free, options)
    rules = MoveRules(
        budget=BYTES_OVER_BOUND * least_bytes(table),
        sources=frozenset(targets),
        limit=options.partition_limit,
        smallest=options.partition_size_threshold,
        within_rack=options.locality_scoped,
        tolerance=options.tolerance,
    )
    if targets:
        Balancing(table, free, rules).run()
        keep_small_replicas(table, only_back=True)
    moved = relocations(table.partitions, table.result())
    if options.optimize_leadership:
        even_leaders(table, [True] * table.count)
    plan = build_plan(table, table.result(), check_range=True)
    spread = plan.new_statistics.storage
    exhausted = () if moved else _exhausted(table, free, targets, options)
    unused = exhausted or unused_brokers(plan, partial(_why_unused, table, free_before, targets, options))
    return replace(
        plan,
        notes=(*plan.notes, *unused),
        relocations=moved,
        offload_targets=tuple(table.brokers[broker].id for broker in targets),
        tolerance=options.tolerance if options.tolerance is not None else _distance(spread),
    )


def _check(table: ReplicaTable) -> None:
    leaving = [broker.id for broker in table.brokers if broker.replace or broker.missing]
    if leaving:
        raise Invalid(f"reassignment only allows broker additions; brokers {leaving} leave or are missing")
    unknown = next((entry for entry in table.partitions if entry.size is None), None)
    if unknown is not None:
        raise Invalid(f"size of {unknown.topic} p{unknown.partition} is unknown; fetch metrics first")


def _distance(spread: StorageSpread | None) -> float:
    """Return the largest distance from the mean, as a fraction of it."""
    if spread is None or spread.mean <= 0:
        return 0.0
    return max(spread.max - spread.mean, spread.mean - spread.min) / spread.mean


def _offload_targets(table: ReplicaTable, free: Sequence[int], options: RebalanceOptions) -> list[int]:
    """Return the brokers that offload replicas, the one with the least free storage first."""
    spread = storage_spread(free)
    if spread is None:
        return []
    harmonic = spread.harmonic_mean
    old = [broker for broker in range(table.count) if not table.brokers[broker].new]
    if options.storage_threshold_bytes > 0:
        chosen = [broker for broker in old if free[broker] < options.storage_threshold_bytes]
    elif options.storage_threshold:
        limit = (1 - options.storage_threshold) * harmonic
        chosen = [broker for broker in old if free[broker] <= limit]
    else:
        chosen = [broker for broker in old if free[broker] < spread.mean]
    return sorted(chosen, key=lambda broker: (free[broker], broker))


def _exhausted(
    table: ReplicaTable, free: Sequence[int], targets: Sequence[int], options: RebalanceOptions
) -> tuple[str, ...]:
    """Return a sentence if no broker has room for any replica that may leave the targets; none: no entry."""
    others = [broker for broker in range(table.count) if table.receives[broker] and broker not in targets]
    sizes = [
        size
        for size, replicas in zip(table.sizes, table.sets, strict=True)
        if size >= max(options.partition_size_threshold, 1) and not set(targets).isdisjoint(replicas)
    ]
    if not sizes or not others or min(sizes) <= max(free[broker] for broker in others):
        return ()
    emptiest = max(others, key=lambda broker: (free[broker], -broker))
    fullest = ", ".join(str(table.brokers[broker].id) for broker in targets[:_NAMED_BROKERS])
    return (
        f"storage is exhausted: the smallest replica that may leave broker {fullest} has {gigabytes(min(sizes))}, and "
        f"broker {table.brokers[emptiest].id} has the most free storage and lacks "
        f"{gigabytes(min(sizes) - free[emptiest])} for it; add brokers or storage",
    )


def _why_unused(
    table: ReplicaTable,
    free: Sequence[int],
    targets: Sequence[int],
    options: RebalanceOptions,
    unused: Sequence[PlacementBroker],
) -> Iterator[str]:
    """Yield why no replica moves to each of these new brokers.

    Args:
        table: the replicas after the plan, of which none is on the brokers.
        free: free bytes of each broker before the plan.
        targets: the brokers that offload replicas.
        options: of the plan.
        unused: the brokers.
    """
    sources = frozenset(targets)
    movable = [
        (number, broker)
        for number, replicas in enumerate(table.sets)
        if table.sizes[number] >= options.partition_size_threshold
        for broker in replicas
        if broker in sources
    ]
    for broker in unused:
        yield _reason_unused(table, free, targets, options, movable, broker)


def _reason_unused(
    table: ReplicaTable,
    free: Sequence[int],
    targets: Sequence[int],
    options: RebalanceOptions,
    movable: Sequence[tuple[int, int]],
    new_broker: PlacementBroker,
) -> str:
    """Return why no replica moves to a new broker.

    `movable` has (partition, broker) of each replica that may leave a target.
    """
    broker, mean = table.index[new_broker.id], sum(free) / len(free)
    if not targets:
        if options.storage_threshold or options.storage_threshold_bytes:
            return "no other broker has so little free storage that the threshold lets it offload"
        return f"no other broker has less free storage than the mean, {gigabytes(round(mean))}"
    if free[broker] <= mean:
        return f"its free storage, {gigabytes(free[broker])}, is not above the mean, {gigabytes(round(mean))}"
    fullest = excerpt([table.brokers[target].id for target in targets], _NAMED_BROKERS)
    if not movable:
        return (
            f"all partitions of broker {fullest}, which would offload, are smaller than the smallest one to move, "
            f"{gigabytes(options.partition_size_threshold)} (partition-size-threshold)"
        )
    if options.locality_scoped and all(table.racks[target] != table.racks[broker] for target in targets):
        return f"replicas stay in their racks (locality-scoped), and no broker of rack {new_broker.rack} offloads"
    if not any(table.fits(number, target, broker) for number, target in movable):
        return f"its rack {new_broker.rack} already has a replica of each partition that may leave broker {fullest}"
    return "no replica that may move makes free storage more even there"


def relocations(old_map: PartitionMap, new_map: PartitionMap) -> tuple[Relocation, ...]:
    """Return each replica that moves, ordered by source, size (largest first) and partition."""
    moves = [
        Relocation(old, *pair)
        for old, new in zip(old_map, new_map, strict=True)
        if old.replicas != new.replicas
        for pair in _moves(old.replicas, new.replicas)
    ]
    return tuple(sorted(moves, key=lambda each: (each.source, -(each.partition.size or 0), each.partition.key)))


def _moves(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the brokers that leave a set with those that join it, at the same position if both are there."""
    leaving = [id for id in old if id not in new]
    joining = [id for id in new if id not in old]
    same = [pair for pair in zip(old, new, strict=False) if pair[0] in leaving and pair[1] in joining]
    leaving = [id for id in leaving if id not in {pair[0] for pair in same}]
    joining = [id for id in joining if id not in {pair[1] for pair in same}]
    return same + list(zip(leaving, joining, strict=False))


def decommission(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    leaving: Iterable[int],
    options: RebalanceOptions = RebalanceOptions(),  # noqa: B008 (frozen)
) -> PlacementPlan:
    """Return a plan that moves the replicas of the leaving brokers, and no others.

    Storage decides where sizes and free storage are known, the number of replicas otherwise.

    Raises:
        Invalid: `leaving` names an unknown broker, or every broker.
    """
    drained = frozenset(leaving)
    unknown = drained.difference(broker.id for broker in brokers)
    if unknown:
        raise Invalid(f"brokers {sorted(unknown)} are unknown; name brokers of the cluster")
    marked = [replace(broker, replace=True) if broker.id in drained else broker for broker in brokers]
    if not any(broker.receives for broker in marked):
        raise Invalid("no broker would remain; decommission fewer brokers, or add new ones")
    partitions = list(partitions)
    measured = all(entry.size is not None for entry in partitions) and all(
        broker.storage_free is not None for broker in marked if broker.receives
    )
    plan = refill(
        partitions,
        marked,
        RebuildOptions(
            strategy=Strategy.STORAGE if measured else Strategy.COUNT,
            min_rack_ids=options.min_rack_ids,
            allow_fewer_racks=options.allow_fewer_racks,
            optimize_leadership=options.optimize_leadership,
        ),
    )
    targets = tuple(broker.id for broker in plan.brokers if broker.replace)
    return replace(plan, relocations=relocations(plan.old_map, plan.new_map), offload_targets=targets)


def relieve(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    full: int,
    reserves: Mapping[int, int],
    growth: Mapping[TopicPartitionKey, float],
    options: RebalanceOptions = RebalanceOptions(),  # noqa: B008 (frozen)
) -> PlacementPlan:
    """Return a plan that moves just enough replicas off a broker, with few bytes.

    Among equal sizes, the partition that grows fastest moves. Each replica goes to the broker with the most storage
    above its reserve. A note says how far the broker is from its limit then.

    Args:
        partitions: the map; sizes are known.
        brokers: brokers with their free storage.
        full: id of the broker.
        reserves: broker id -> bytes that shall be free, at least; absent: 0.
        growth: partition -> bytes/s; absent: 0.
        options: rules on racks.

    Raises:
        Invalid: the broker, a size or free storage is unknown.
    """
    table = ReplicaTable(partitions, brokers, options.min_rack_ids, allow_fewer_racks=options.allow_fewer_racks)
    if full not in table.index:
        raise Invalid(f"broker {full} is unknown. Fix: name a broker of the cluster")
    if unknown := next((entry for entry in table.partitions if entry.size is None and full in entry.replicas), None):
        raise Invalid(f"size of {unknown.topic} p{unknown.partition} is unknown; fetch metrics first")
    source, free = table.index[full], table.free()
    spare = [value - reserves.get(broker.id, 0) for value, broker in zip(free, table.brokers, strict=True)]
    movable = [number for number, replicas in enumerate(table.sets) if source in replicas and table.sizes[number]]
    movable.sort(key=lambda number: (table.sizes[number], growth.get(table.partitions[number].key, 0.0), -number))
    while spare[source] < 0 and movable:
        chosen = [movable[at] for at in _just_enough([table.sizes[number] for number in movable], -spare[source])]
        tried = frozenset(chosen)
        movable = [number for number in movable if number not in tried]
        for partition in chosen:
            size = table.sizes[partition]
            destinations = [
                broker
                for broker in range(table.count)
                if table.receives[broker] and spare[broker] >= size and table.fits(partition, source, broker)
            ]
            if destinations:
                destination = max(destinations, key=lambda broker: (spare[broker], -broker))
                table.move(partition, source, destination)
                spare[source] += size
                spare[destination] -= size
    plan = build_plan(table, table.result())
    rest = (
        f"broker {full} stays {gigabytes(-spare[source])} above the limit, because no broker has room for more of its "
        "replicas; add brokers, or storage"
        if spare[source] < 0
        else f"broker {full} is below the limit by {gigabytes(spare[source])}"
    )
    moved = relocations(plan.old_map, plan.new_map)
    return replace(plan, notes=(*plan.notes, rest), relocations=moved, offload_targets=(full,))


def _just_enough(sizes: Sequence[int], needed: int) -> list[int]:
    """Return the positions of a few sizes whose sum is at least what is needed, and about as small as possible.

    The largest sizes that fit into the rest are taken one after the other. At each step, the smallest other size that
    covers the rest may end the list. The end with the smallest sum wins. Of equal sizes, the last ones are taken.

    >>> _just_enough([5, 5, 50, 60, 90], 100), _just_enough([55, 60, 100], 95)
    ([4, 1, 0], [2])

    Args:
        sizes: ascending.
        needed: more than 0; with less in all, each position is returned.
    """
    taken: list[int] = []
    others = set(range(len(sizes)))
    best: list[int] | None = None
    least, rest, end = inf, needed, len(sizes)
    while rest > 0:
        covering = next((at for at in range(bisect_left(sizes, rest), len(sizes)) if at in others), None)
        if covering is not None and needed - rest + sizes[covering] < least:
            least = needed - rest + sizes[covering]
            equal = range(bisect_right(sizes, sizes[covering]) - 1, covering - 1, -1)
            best = [*taken, next(at for at in equal if at in others)]
        end = min(bisect_right(sizes, rest), end) - 1
        if end < 0:
            return taken if best is None else best
        taken.append(end)
        others.remove(end)
        rest -= sizes[end]
    return taken if best is None or needed - rest < least else best

"""Rebuild a partition map: fill the slots of brokers that leave, or place every replica anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.balancing import Balancing, MoveRules
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.fill import allowed_brokers, fill_by_count, fill_by_storage
from autothrottle.core.placement.leadership import evacuate_leadership, even_leaders
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.placement.plan import (
    BYTES_OVER_BOUND,
    Affinity,
    Optimization,
    PlacementPlan,
    RebuildOptions,
    Strategy,
    build_plan,
    gigabytes,
    least_bytes,
    unused_brokers,
)
from autothrottle.core.placement.replica_counts import (
    FreeLimits,
    even_moved_leaders,
    even_replicas,
    keep_small_replicas,
    widen_sharing,
)
from autothrottle.core.placement.replica_table import HOLE, ReplicaTable

_EVEN = 1e-5
"""A range of free storage up to this fraction of the mean counts as even."""
_WORTH_EVEN_COUNTS = 1.01
"""To make the numbers of replicas even, the range of free storage may grow by this factor."""
_NEARLY_EVEN = 0.08
"""A range up to this fraction becomes even by a few more moves."""
_MANY_REPLICAS = 150_000
_NAMED_BROKERS = 5
"""Number of brokers in a sentence about exhausted storage: those with the most free storage."""
_SWAPS = MoveRules(only_swaps=True, tolerance=0.002, steps=4_000)


def rebuild(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    options: RebuildOptions = RebuildOptions(),  # noqa: B008 (frozen)
) -> PlacementPlan:
    """Return a plan in which no replica is on a broker that leaves.

    Order of work: replication factor, placement, leadership optimization, leadership evacuation. Without `force`, a
    replica whose broker stays keeps its position, and only as many replicas move as must.

    Raises:
        Invalid: options contradict each other, sizes or free storage are missing, or affinities cannot be formed.
    """
    plan = refill(partitions, brokers, options)
    return replace(plan, notes=(*plan.notes, *unused_brokers(plan, partial(_why_unused, plan, options.force))))


def refill(
    partitions: Iterable[PartitionReplicas], brokers: Sequence[PlacementBroker], options: RebuildOptions
) -> PlacementPlan:
    """Return the plan of `rebuild` without notes on brokers that get no replica, for callers that chose the brokers."""
    table = ReplicaTable(
        partitions, brokers, options.min_rack_ids, options.partition_size_factor, options.allow_fewer_racks
    )
    affinities = options.affinities
    if options.substitution_affinity:
        affinities = substitution_affinities(table.partitions, brokers)
    minimal = options.optimization is Optimization.MINIMAL
    _resize(table, options.replication_factor)
    if options.force and not minimal:
        for replicas in table.sets:
            replicas[:] = [HOLE] * len(replicas)
    else:
        _open_holes(table, affinities)
    warnings = _unknown_sizes(table) if options.strategy is Strategy.STORAGE else []
    refusals = _place(table, options)
    if minimal:
        _level(table, options)
    if options.force or options.optimize_leadership:
        evacuated = options.evacuation.brokers if options.evacuation else frozenset()
        even_leaders(table, [broker.id not in evacuated for broker in table.brokers])
    after = table.result()
    if options.evacuation is not None:
        after = evacuate_leadership(after, options.evacuation)
    by_storage = options.strategy is Strategy.STORAGE
    return build_plan(table, after, warnings, affinities, refusals=refusals, check_range=by_storage, new_racks=True)


def _why_unused(plan: PlacementPlan, force: bool, unused: Sequence[PlacementBroker]) -> Iterator[str]:
    """Yield why a rebuild places no replica on each of these new brokers."""
    moved = [
        new for old, new in zip(plan.old_map, plan.new_map, strict=True) if not set(new.replicas) <= set(old.replicas)
    ]
    racks = {broker.id: broker.rack for broker in plan.brokers}
    for broker in unused:
        if not moved and not force:
            yield (
                "a rebuild only fills the places of brokers that leave, and no replica leaves one; scale, or a forced "
                "rebuild, moves replicas to new brokers"
            )
        elif broker.rack and all(any(racks.get(id) == broker.rack for id in new.replicas) for new in moved):
            yield f"its rack {broker.rack} already has a replica of each partition that moves"
        else:
            yield f"the replicas of {len(moved)} partitions that move are more even on other brokers"


def _resize(table: ReplicaTable, replication_factor: int) -> None:
    """Give each set the target length.

    A set that is too long drops replicas of leaving brokers first, then replicas that share a rack, then the last ones.
    A set that is too short gets at most one replica more than there are brokers. That one cannot be placed, which is a
    warning. Without the limit, a factor of 2^31 would use up the memory.
    """
    if replication_factor <= 0:
        return
    replication_factor = min(replication_factor, table.count + 1)
    for replicas in table.sets:
        while len(replicas) > replication_factor:
            del replicas[_dispensable(table, replicas, replication_factor)]
        replicas.extend([HOLE] * (replication_factor - len(replicas)))


def _dispensable(table: ReplicaTable, replicas: list[int], replication_factor: int) -> int:
    racks = [table.racks[broker] for broker in replicas]
    last_first = range(len(replicas) - 1, -1, -1)
    leaving = [position for position in last_first if not table.stays[replicas[position]]]
    doubled = [position for position in last_first if racks.count(racks[position]) > 1]
    doubled.sort(key=lambda position: -racks.count(racks[position]))
    staying = {rack for rack, broker in zip(racks, replicas, strict=True) if table.stays[broker]}
    if leaving and len(staying) < table.wanted_racks(replication_factor, staying):
        # A replica that leaves can go to another rack; one that shares a rack and stays cannot.
        leaving = [position for position in doubled if table.stays[replicas[position]]] + leaving
    return next(iter(leaving + doubled), len(replicas) - 1)


def _open_holes(table: ReplicaTable, affinities: Sequence[Affinity]) -> None:
    """Make holes of replicas whose broker leaves, or give them to its substitute where the rules allow it."""
    substitutes = {table.index[each.leaving]: table.index[each.substitute] for each in affinities}
    for partition, replicas in enumerate(table.sets):
        for position, broker in enumerate(replicas):
            if broker == HOLE or (table.stays[broker] and broker not in replicas[:position]):
                continue
            substitute = substitutes.get(broker, HOLE)
            replicas[position] = HOLE
            if substitute != HOLE and _suits(table, partition, substitute):
                replicas[position] = substitute
                table.fixed[partition] += (substitute,)


def _suits(table: ReplicaTable, partition: int, substitute: int) -> bool:
    """Return whether a substitute may join the replicas of a set that stay or are placed already."""
    others = [broker for broker in table.sets[partition] if broker != HOLE and table.stays[broker]]
    crowded = table.crowded_racks(len(table.sets[partition]), others)
    return substitute not in others and table.racks[substitute] not in crowded


def _unknown_sizes(table: ReplicaTable) -> list[str]:
    return [
        f"{entry.topic} p{entry.partition}: size unknown; it counts as 0 bytes"
        for entry, replicas in zip(table.partitions, table.sets, strict=True)
        if entry.size is None and HOLE in replicas
    ]


def _place(table: ReplicaTable, options: RebuildOptions) -> list[str]:
    """Fill the holes evenly; return a sentence for each replica without a broker."""
    forced = options.force and options.optimization is not Optimization.MINIMAL
    if options.strategy is Strategy.COUNT:
        measured = _is_measured(table)
        fill_by_count(table, table.free() if measured else [0] * table.count)
        unplaced = _drop_holes(table)
        even_replicas(table, only_moved=not forced)
        if not forced:
            limits = _limits(table) if measured else FreeLimits([0] * table.count)
            even_moved_leaders(table, limits)
            widen_sharing(table, limits)
        elif measured:
            _swap(table)
        return unplaced
    if forced and _counts_even_storage(table):
        return _drop_holes(table)
    fill_by_storage(table, table.free(), whole_partitions=options.optimization is Optimization.STORAGE)
    unplaced = _drop_holes(table, table.free())
    if options.optimization is not Optimization.MINIMAL:
        _even_storage(table, only_moved=not forced)
    return unplaced


def _is_measured(table: ReplicaTable) -> bool:
    has_free = all(table.brokers[broker].storage_free is not None for broker in table.staying)
    return has_free and all(entry.size is not None for entry in table.partitions)


def _swap(table: ReplicaTable) -> bool:
    """Swap replicas until storage is nearly even; undo the swaps and return False if it does not become so."""
    old_sets = [list(replicas) for replicas in table.sets]
    Balancing(table, table.free(), _SWAPS).refine()
    if _range(table) <= _NEARLY_EVEN * _mean_free(table):
        return True
    table.sets[:] = old_sets
    return False


def _counts_even_storage(table: ReplicaTable) -> bool:
    """Fill the holes by count, and swap until storage is even; leave them empty if it does not become even.

    In large maps the swaps would take too long.
    """
    if sum(map(len, table.sets)) > _MANY_REPLICAS:
        return False
    fill_by_count(table, table.free(), largest_first=True)
    even_replicas(table, only_moved=False)
    if all(HOLE not in replicas for replicas in table.sets) and _swap(table):
        # Swaps keep the numbers of replicas even; moves follow only where swaps do not suffice.
        Balancing(table, table.free(), MoveRules(only_swaps=True)).refine()
        Balancing(table, table.free(), MoveRules()).refine()
        return True
    for replicas in table.sets:
        replicas[:] = [HOLE] * len(replicas)
    return False


def _even_storage(table: ReplicaTable, only_moved: bool) -> None:
    """Even out free storage, and also the numbers of replicas if that leaves storage about as even."""
    rules = MoveRules(only_moved=only_moved)
    Balancing(table, table.free(), rules).refine()
    best, spread = [list(replicas) for replicas in table.sets], _range(table)
    even_replicas(table, only_moved)
    Balancing(table, table.free(), replace(rules, only_swaps=True)).refine()
    uneven = _range(table) > max(_WORTH_EVEN_COUNTS * spread, _EVEN * _mean_free(table))
    if uneven:
        table.sets[:] = best
    limits = _limits(table)
    if uneven:
        even_replicas(table, only_moved, limits)
    if only_moved:
        even_moved_leaders(table, limits)
        widen_sharing(table, limits)
    else:
        keep_small_replicas(table, only_back=False)


def _limits(table: ReplicaTable) -> FreeLimits:
    return FreeLimits.around(table, (_WORTH_EVEN_COUNTS - 1) * _range(table))


def _mean_free(table: ReplicaTable) -> float:
    return max(0.0, fmean(_staying_free(table) or [0]))


def _range(table: ReplicaTable) -> int:
    free = _staying_free(table)
    return max(free, default=0) - min(free, default=0)


def _staying_free(table: ReplicaTable) -> list[int]:
    free = table.free()
    return [free[broker] for broker in table.staying]


def _drop_holes(table: ReplicaTable, free: Sequence[int] | None = None) -> list[str]:
    """Remove slots that no broker can fill; return a sentence for each. Without `free`, storage was no constraint."""
    refusals = []
    for partition, (entry, replicas) in enumerate(zip(table.partitions, table.sets, strict=True)):
        if not replicas:
            refusals.append(f"{entry.topic} p{entry.partition}: configured to zero replicas")
        if HOLE in replicas:
            holes = replicas.count(HOLE)
            replicas[:] = [broker for broker in replicas if broker != HOLE]
            reason = _shortage(table, partition, free, holes) if free else ""
            text = f"{entry.topic} p{entry.partition}: No additional brokers that meet Constraints{reason}"
            refusals += [text] * holes
    return refusals


def _shortage(table: ReplicaTable, partition: int, free: Sequence[int], holes: int) -> str:
    """Return how much storage the brokers lack that the rules on brokers and racks allow; "": none is allowed."""
    size, allowed = table.sizes[partition], allowed_brokers(table, partition, holes)
    if not allowed:
        return ""
    ends = sorted(allowed, key=lambda broker: (-free[broker], broker))
    shortages = ", ".join(
        f"broker {table.brokers[broker].id} lacks {gigabytes(size - free[broker])} ({gigabytes(free[broker])} free)"
        for broker in ends[:_NAMED_BROKERS]
    )
    more = f", {len(ends) - _NAMED_BROKERS} more lack more" if len(ends) > _NAMED_BROKERS else ""
    return f": storage is exhausted for a replica of {gigabytes(size)}: {shortages}{more}"


def _level(table: ReplicaTable, options: RebuildOptions) -> None:
    """Reach an even map from the current one by few moves."""
    rules = MoveRules(budget=BYTES_OVER_BOUND * least_bytes(table))
    if options.strategy is Strategy.COUNT:
        Balancing(table, [-load for load in table.loads()], MoveRules(), [1] * len(table.sets)).drain()
        even_replicas(table, only_moved=False)
        if _is_measured(table):
            Balancing(table, table.free(), replace(rules, only_swaps=True)).refine()
        return
    Balancing(table, table.free(), rules).run()
    keep_small_replicas(table, only_back=True)


def substitution_affinities(
    partitions: Iterable[PartitionReplicas], brokers: Sequence[PlacementBroker]
) -> tuple[Affinity, ...]:
    """Return a new broker of the same rack for each broker that leaves, missing brokers first.

    The rack of a missing broker is inferred: a rack that partitions without it use and partitions with it do not.

    Raises:
        Invalid: the new brokers are too few, or none is in the rack.
    """
    leaving = sorted((broker for broker in brokers if broker.replace), key=lambda each: (not each.missing, each.id))
    unused = sorted((broker for broker in brokers if broker.new and broker.receives), key=lambda each: each.id)
    if len(unused) < len(leaving):
        raise Invalid(f"Insufficient number of new brokers: {len(unused)} new, {len(leaving)} leave")
    sets = [entry.replicas for entry in partitions]
    racks = {broker.id: broker.rack for broker in brokers if not broker.missing}
    affinities = []
    for broker in leaving:
        # A new broker without a rack conflicts with none.
        candidate_racks = _inferred_racks(broker.id, sets, racks) or [""] if broker.missing else [broker.rack]
        substitute = next((new for rack in candidate_racks for new in unused if new.rack == rack), None)
        if substitute is None and broker.missing:
            raise Invalid(f"Could not infer a replacement for {broker.id}; leave substitution affinity out")
        if substitute is None:
            raise Invalid(f"Insufficient free brokers for locality {broker.rack}; add a new broker there")
        unused.remove(substitute)
        affinities.append(Affinity(broker.id, substitute.id, broker.missing))
    return tuple(affinities)


def _inferred_racks(missing: int, sets: Sequence[tuple[int, ...]], racks: dict[int, str]) -> list[str]:
    beside = {racks[id] for replicas in sets if missing in replicas for id in replicas if id in racks}
    elsewhere = {racks[id] for replicas in sets if missing not in replicas for id in replicas if id in racks}
    return sorted(elsewhere - beside)

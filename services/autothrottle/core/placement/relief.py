"""Light relief: move just enough bytes off a full broker."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas, TopicPartitionKey
from autothrottle.core.placement.plan import PlacementPlan, RebalanceOptions, gigabytes
from autothrottle.core.placement.plan_builder import build_plan
from autothrottle.core.placement.rebalance import relocations
from autothrottle.core.placement.replica_table import ReplicaTable


def relieve(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    full: int,
    reserves: Mapping[int, int],
    growth: Mapping[TopicPartitionKey, float],
    options: RebalanceOptions | None = None,
) -> PlacementPlan:
    """Return a plan that moves just enough replicas off a broker, with few bytes.

    Among equal sizes, the partition that grows fastest moves. Each replica goes to the broker with the most storage
    above its reserve. A note says what is left.

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
    options = options or RebalanceOptions()
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

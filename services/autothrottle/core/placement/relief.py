"""Light relief: move just enough bytes off a full broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

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
    """Return a plan that moves just enough replicas off a broker, with as few bytes as possible.

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
    movable.sort(key=lambda number: (table.sizes[number], -growth.get(table.partitions[number].key, 0.0), number))
    while spare[source] < 0 and movable:
        # The smallest partition that suffices alone, or else the largest one.
        needed = (at for at, number in enumerate(movable) if table.sizes[number] >= -spare[source])
        partition = movable.pop(next(needed, -1))
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

"""Turn a finished `ReplicaTable` into a `PlacementPlan`."""

from __future__ import annotations

from collections.abc import Sequence

from autothrottle.core.placement.partition_map import PartitionMap
from autothrottle.core.placement.plan import Affinity, PlacementPlan
from autothrottle.core.placement.replica_table import ReplicaTable
from autothrottle.core.placement.statistics import PlacementStatistics, statistics

BYTES_OVER_BOUND = 1.045
"""A plan that makes storage even copies at most this multiple of the least bytes."""


def build_plan(
    table: ReplicaTable,
    after: PartitionMap,
    warnings: Sequence[str] = (),
    affinities: tuple[Affinity, ...] = (),
    *,
    check_range: bool = False,
) -> PlacementPlan:
    """Return the plan from the table's partitions to `after`, with its statistics.

    With `check_range`, a range of free storage that grows is a warning.
    """
    mapped = {broker for replicas in table.home for broker in replicas}
    target = [broker for broker in range(table.count) if table.stays[broker]]
    free = [broker.storage_free for broker in table.brokers]
    known = all(free[broker] is not None for broker in target)
    final = _final_free(table, after) if known else []
    before = _statistics(table, table.partitions, sorted(mapped), free)
    now = _statistics(table, after, target, final if known else free)
    found = list(warnings)
    if check_range and known and _grows(target, free, final):
        found.append("broker free storage range increased")
    return PlacementPlan(
        before=table.partitions,
        after=after,
        brokers=table.brokers,
        statistics_before=before,
        statistics_after=now,
        warnings=tuple(sorted(found)),
        affinities=affinities,
        copied_bytes=copied_bytes(table.partitions, after),
        bound_bytes=least_bytes(table) if known else 0,
    )


def _statistics(
    table: ReplicaTable, partitions: PartitionMap, brokers: Sequence[int], free: Sequence[int | None]
) -> PlacementStatistics:
    ids = [table.brokers[broker].id for broker in brokers]
    known = {id: value for id, broker in zip(ids, brokers, strict=True) if free and (value := free[broker]) is not None}
    return statistics(partitions, ids, known if len(known) == len(ids) else None)


def _grows(target: Sequence[int], free: Sequence[int | None], final: Sequence[int]) -> bool:
    before = [free[broker] or 0 for broker in target]
    after = [final[broker] for broker in target]
    return bool(target) and max(after) - min(after) > max(before) - min(before)


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


def copied_bytes(before: PartitionMap, after: PartitionMap) -> int:
    """Return the bytes that brokers have to copy."""
    return sum(
        (old.size or 0) * len(set(new.replicas).difference(old.replicas))
        for old, new in zip(before, after, strict=True)
        if old.replicas != new.replicas
    )


def least_bytes(table: ReplicaTable) -> int:
    """Return the least bytes that must be copied to make free storage equal; racks and sizes are ignored."""
    target = [broker for broker in range(table.count) if table.stays[broker]]
    gone = sum(
        (entry.size or 0) * sum(not table.stays[broker] for broker in set(replicas))
        for entry, replicas in zip(table.partitions, table.home, strict=True)
    )
    free = [table.brokers[broker].storage_free or 0 for broker in target]
    level = (sum(free) - gone) / max(len(target), 1)
    return round(sum(max(0.0, each - level) for each in free))

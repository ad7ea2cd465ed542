"""Turn a finished `ReplicaTable` into a `PlacementPlan`."""

from __future__ import annotations

from collections.abc import Sequence

from autothrottle.core.placement.partition_map import PartitionMap
from autothrottle.core.placement.plan import Affinity, PlacementPlan, gigabytes
from autothrottle.core.placement.replica_table import ReplicaTable
from autothrottle.core.placement.statistics import PlacementStatistics, statistics

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

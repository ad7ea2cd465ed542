"""Execute one plan in several steps, each a complete partition map."""

from __future__ import annotations

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import PartitionMap
from autothrottle.core.placement.plan import PlacementPlan


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
        brokers_per_chunk: brokers per map; 0 or less: one map.

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
    if brokers_per_chunk <= 0:
        return (new_map,)
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

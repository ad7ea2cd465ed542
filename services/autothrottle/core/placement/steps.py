"""Execute one plan in several steps, each a complete partition map."""

from __future__ import annotations

from autothrottle.core.placement.partition_map import PartitionMap


def phased(before: PartitionMap, after: PartitionMap) -> tuple[PartitionMap, PartitionMap]:
    """Return the maps of two phases: first with the old leader kept in front, then `after`.

    Phase 0 lists the old leader first, also where the plan removes it. Its broker leads until the new replicas are in
    sync. Partitions that do not change are in both maps.
    """
    raise NotImplementedError


def chunks(before: PartitionMap, after: PartitionMap, brokers_per_chunk: int) -> tuple[PartitionMap, ...]:
    """Return maps that lead from `before` to `after`, each of which changes replicas of a few brokers.

    Each map is complete and contains no broker twice in a partition; the last one is `after`.

    Args:
        before: the current map.
        after: the planned map.
        brokers_per_chunk: leaving brokers per map; 0 or less: one map.

    Raises:
        Invalid: a replication factor changes.
    """
    raise NotImplementedError

"""Which replica of each partition leads. Nothing here moves bytes: only the order of replicas changes."""

from __future__ import annotations

from autothrottle.core.placement.partition_map import PartitionMap
from autothrottle.core.placement.plan import LeadershipEvacuation


def optimize_leadership(partitions: PartitionMap, excluded: frozenset[int] = frozenset()) -> PartitionMap:
    """Return the map with the numbers of leaders as even as the replica sets allow.

    A new leader changes places with the old one. No order with a smaller spread exists.

    Args:
        partitions: the map.
        excluded: brokers that get no further leaders.
    """
    raise NotImplementedError


def evacuate_leadership(partitions: PartitionMap, evacuation: LeadershipEvacuation) -> PartitionMap:
    """Return the map with no leader on the evacuated brokers, for the given topics.

    Raises:
        Invalid: every replica of a partition is on an evacuated broker.
    """
    raise NotImplementedError

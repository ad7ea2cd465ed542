"""Rebuild a partition map: fill the slots of brokers that leave, or place every replica anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.placement.plan import Affinity, PlacementPlan, RebuildOptions


def rebuild(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    options: RebuildOptions | None = None,
) -> PlacementPlan:
    """Return a plan in which no replica is on a broker that leaves.

    Order of work: replication factor, placement, leadership optimization, leadership evacuation. Without `force`, a
    replica whose broker stays keeps its position, and only as many replicas move as must.

    Raises:
        Invalid: options contradict each other, sizes or free storage are missing, or affinities cannot be formed.
    """
    raise NotImplementedError


def substitution_affinities(
    partitions: Iterable[PartitionReplicas], brokers: Sequence[PlacementBroker]
) -> tuple[Affinity, ...]:
    """Return a new broker of the same rack for each broker that leaves, missing brokers first.

    The rack of a missing broker is inferred: a rack that partitions without it use and partitions with it do not.

    Raises:
        Invalid: the new brokers are too few, or none is in the rack.
    """
    raise NotImplementedError

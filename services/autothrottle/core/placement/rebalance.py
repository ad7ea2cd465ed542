"""Move replicas until free storage is even: rebalance, scale and decommission."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.placement.plan import PlacementPlan, RebalanceOptions


def rebalance(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    options: RebalanceOptions | None = None,
) -> PlacementPlan:
    """Return a plan that makes free storage even and copies about as few bytes as that needs.

    Raises:
        Invalid: a broker leaves or is missing, or sizes or free storage are missing.
    """
    raise NotImplementedError


def scale(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    options: RebalanceOptions | None = None,
) -> PlacementPlan:
    """Return a plan that makes free storage even over the old and the new brokers.

    Raises:
        Invalid: no broker is new; or as for `rebalance`.
    """
    raise NotImplementedError


def decommission(
    partitions: Iterable[PartitionReplicas],
    brokers: Sequence[PlacementBroker],
    leaving: Iterable[int],
    options: RebalanceOptions | None = None,
) -> PlacementPlan:
    """Return a plan that moves the replicas of the leaving brokers, and no others.

    Storage decides where sizes and free storage are known, the number of replicas otherwise.

    Raises:
        Invalid: `leaving` names an unknown broker, or every broker.
    """
    raise NotImplementedError

"""Conversion of plans to messages of the placement service, and of its requests to options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autothrottle.core.errors import Invalid
from autothrottle.core.forecast.eta import move_ratio
from autothrottle.core.placement.brokers import ALL_REGISTERED
from autothrottle.core.placement.partition_map import PartitionMap, without_no_ops
from autothrottle.core.placement.plan import (
    Optimization,
    PlacementPlan,
    PlacementStatistics,
    RebalanceOptions,
    RebuildOptions,
    Strategy,
)
from autothrottle.messages import targets_to_messages
from autothrottle.v1 import placement_pb2, types_pb2
from autothrottle.wire.common import SAME_NAMES

MAX_BROKERS = 10_000
"""Limit of the listed brokers of one request."""
MAX_SIZE_FACTOR = 1000

_STRATEGIES = {
    placement_pb2.PLACEMENT_STRATEGY_UNSPECIFIED: Strategy.COUNT,
    placement_pb2.PLACEMENT_STRATEGY_COUNT: Strategy.COUNT,
    placement_pb2.PLACEMENT_STRATEGY_STORAGE: Strategy.STORAGE,
}


def rebuild_options(request: placement_pb2.RebuildRequest) -> RebuildOptions:
    """Convert a request, except for its scope, its steps and its leader evacuation.

    Raises:
        Invalid: the strategy is unknown, or a number is out of its range.
    """
    if request.strategy not in _STRATEGIES:
        raise Invalid(f"strategy {request.strategy} is unknown; give PLACEMENT_STRATEGY_COUNT or _STORAGE")
    if request.replication_factor < 0:
        raise Invalid(f"replication_factor {request.replication_factor} must be >= 0; 0 keeps it")
    if request.brokers_per_step < 0:
        raise Invalid(f"brokers_per_step {request.brokers_per_step} must be >= 0; 0 is one step")
    factor = request.partition_size_factor or 1.0
    if not 0 < factor <= MAX_SIZE_FACTOR:
        raise Invalid(f"partition_size_factor {factor} must be in (0, {MAX_SIZE_FACTOR}]; give 1.2 for 20 % of growth")
    return SAME_NAMES.from_message(
        RebuildOptions,
        request,
        strategy=_STRATEGIES[request.strategy],
        optimization=Optimization.MINIMAL if request.minimal else Optimization.DISTRIBUTION,
        partition_size_factor=factor,
    )


def rebalance_options(request: placement_pb2.RebalanceRequest) -> RebalanceOptions:
    """Convert a request.

    Raises:
        Invalid: the threshold is not in [0, 1).
    """
    threshold = request.storage_threshold
    if not (math.isfinite(threshold) and 0 <= threshold < 1):
        raise Invalid(f"storage_threshold {threshold} must be in [0, 1); give 0.2 for 20 %")
    return SAME_NAMES.from_message(RebalanceOptions, request, storage_threshold=threshold or None)


def brokers_of_scope(scope: placement_pb2.PlacementScope, by_default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the listed brokers, or `by_default` if none is listed.

    Raises:
        Invalid: no broker is listed, too many are, or an id is below -2.
    """
    broker_ids = tuple(scope.brokers) or by_default
    if not 0 < len(broker_ids) <= MAX_BROKERS:
        raise Invalid(
            f"brokers has {len(broker_ids)} entries; list 1 to {MAX_BROKERS}, -1 for all brokers of the topics"
        )
    if min(broker_ids) < ALL_REGISTERED:
        raise Invalid(f"broker id {min(broker_ids)} must be >= {ALL_REGISTERED}")
    return broker_ids


def plan_to_message(
    plan: PlacementPlan,
    total_partitions: int,
    warnings: tuple[str, ...],
    notes: tuple[str, ...],
    steps: Sequence[PartitionMap] = (),
) -> placement_pb2.PlacementPlan:
    """Convert a plan, the sentences about it, and the complete maps of its steps if it is divided.

    `total_partitions` counts those of the cluster.
    """
    changed = without_no_ops(plan.old_map, plan.new_map)
    parts = (without_no_ops(old_map, new_map) for old_map, new_map in zip((plan.old_map, *steps), steps, strict=False))
    return placement_pb2.PlacementPlan(
        partitions=_targets(changed),
        unchanged_partitions=len(plan.old_map) - len(changed),
        copied_bytes=plan.copied_bytes,
        bound_bytes=plan.bound_bytes,
        before=_figures(plan.old_statistics),
        after=_figures(plan.new_statistics),
        warnings=warnings,
        notes=notes,
        move_ratio=move_ratio(plan.partitions_to_copy, total_partitions),
        unsized_partitions=plan.unsized_partitions,
        steps=(placement_pb2.PlacementStep(partitions=_targets(part)) for part in parts if part),
    )


def _targets(partitions: PartitionMap) -> Iterator[types_pb2.PartitionTarget]:
    return targets_to_messages({partition.key: partition.replicas for partition in partitions})


def _figures(statistics: PlacementStatistics) -> placement_pb2.PlacementFigures:
    storage = statistics.storage
    return placement_pb2.PlacementFigures(
        leader_spread=statistics.leader_spread,
        replica_spread=statistics.replica_spread,
        storage_range_spread=storage.range_spread if storage else None,
        storage_standard_deviation=storage.standard_deviation if storage else None,
    )

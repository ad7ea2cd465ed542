"""Conversion of plans to messages of the placement service, and of its requests to options."""

from __future__ import annotations

from collections.abc import Iterator

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.operations import PlacementResult
from autothrottle.core.placement.partition_map import PartitionMap, without_no_ops
from autothrottle.core.placement.plan import Optimization, PlacementStatistics, RebuildOptions, Strategy
from autothrottle.messages import targets_to_messages
from autothrottle.v1 import placement_pb2, types_pb2
from autothrottle.wire.common import SAME_NAMES

_STRATEGIES = {
    placement_pb2.PLACEMENT_STRATEGY_UNSPECIFIED: Strategy.COUNT,
    placement_pb2.PLACEMENT_STRATEGY_COUNT: Strategy.COUNT,
    placement_pb2.PLACEMENT_STRATEGY_STORAGE: Strategy.STORAGE,
}


def rebuild_options(request: placement_pb2.RebuildRequest) -> RebuildOptions:
    """Convert a request.

    Raises:
        Invalid: the strategy is unknown.
    """
    if request.strategy not in _STRATEGIES:
        raise Invalid(f"strategy {request.strategy} is unknown; give PLACEMENT_STRATEGY_COUNT or _STORAGE")
    return SAME_NAMES.from_message(
        RebuildOptions,
        request,
        strategy=_STRATEGIES[request.strategy],
        optimization=Optimization.MINIMAL if request.minimal else Optimization.DISTRIBUTION,
        partition_size_factor=request.partition_size_factor or 1.0,
    )


def plan_to_message(result: PlacementResult) -> placement_pb2.PlacementPlan:
    """Convert a plan; only one that is divided has steps."""
    plan, options = result.plan, result.options
    is_divided = isinstance(options, RebuildOptions) and (options.phased or options.brokers_per_step > 0)
    changed = without_no_ops(plan.old_map, plan.new_map)
    return placement_pb2.PlacementPlan(
        partitions=_targets(changed),
        unchanged_partitions=len(plan.old_map) - len(changed),
        copied_bytes=plan.copied_bytes,
        bound_bytes=plan.bound_bytes,
        before=_figures(plan.old_statistics),
        after=_figures(plan.new_statistics),
        warnings=result.warnings,
        notes=result.notes,
        move_ratio=result.move_ratio,
        unsized_partitions=plan.unsized_partitions,
        steps=(placement_pb2.PlacementStep(partitions=_targets(step)) for step in result.changes if is_divided),
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

"""Conversion of plans to messages of the placement service, and of its requests to options."""

from __future__ import annotations

import math

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import ALL_REGISTERED
from autothrottle.core.placement.partition_map import without_no_ops
from autothrottle.core.placement.plan import (
    Optimization,
    PlacementPlan,
    RebalanceOptions,
    RebuildOptions,
    Strategy,
)
from autothrottle.core.placement.statistics import PlacementStatistics
from autothrottle.v1 import placement_pb2
from autothrottle.wire.common import targets_to_messages

MAX_BROKERS = 10_000
"""Limit of the listed brokers of one request."""

_STRATEGIES = {
    placement_pb2.PLACEMENT_STRATEGY_UNSPECIFIED: Strategy.COUNT,
    placement_pb2.PLACEMENT_STRATEGY_COUNT: Strategy.COUNT,
    placement_pb2.PLACEMENT_STRATEGY_STORAGE: Strategy.STORAGE,
}


def rebuild_options(request: placement_pb2.RebuildRequest) -> RebuildOptions:
    """Convert a request.

    Raises:
        Invalid: the strategy is unknown, or the replication factor is negative.
    """
    if request.strategy not in _STRATEGIES:
        raise Invalid(f"strategy {request.strategy} is unknown; give PLACEMENT_STRATEGY_COUNT or _STORAGE")
    if request.replication_factor < 0:
        raise Invalid(f"replication_factor {request.replication_factor} must be >= 0; 0 keeps it")
    return RebuildOptions(
        strategy=_STRATEGIES[request.strategy],
        optimization=Optimization.MINIMAL if request.minimal else Optimization.DISTRIBUTION,
        force=request.force,
        replication_factor=request.replication_factor,
        optimize_leadership=request.optimize_leadership,
    )


def rebalance_options(request: placement_pb2.RebalanceRequest) -> RebalanceOptions:
    """Convert a request.

    Raises:
        Invalid: the threshold is not in [0, 1).
    """
    threshold = request.storage_threshold
    if not (math.isfinite(threshold) and 0 <= threshold < 1):
        raise Invalid(f"storage_threshold {threshold} must be in [0, 1); give 0.2 for 20 %")
    return RebalanceOptions(storage_threshold=threshold or None, locality_scoped=request.locality_scoped)


def wanted_brokers(scope: placement_pb2.PlacementScope, by_default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the listed brokers, or `by_default` if none is listed.

    Raises:
        Invalid: no broker is listed, too many are, or an id is below -2.
    """
    wanted = tuple(scope.brokers) or by_default
    if not 0 < len(wanted) <= MAX_BROKERS:
        raise Invalid(f"brokers has {len(wanted)} entries; list 1 to {MAX_BROKERS}, -1 for all brokers of the topics")
    if min(wanted) < ALL_REGISTERED:
        raise Invalid(f"broker id {min(wanted)} must be >= {ALL_REGISTERED}")
    return wanted


def plan_to_message(plan: PlacementPlan, warnings: tuple[str, ...]) -> placement_pb2.PlacementPlan:
    """Convert a plan and the warnings about it."""
    changed = without_no_ops(plan.before, plan.after)
    return placement_pb2.PlacementPlan(
        partitions=targets_to_messages({one.key: one.replicas for one in changed}),
        unchanged_partitions=len(plan.before) - len(changed),
        copied_bytes=plan.copied_bytes,
        bound_bytes=plan.bound_bytes,
        before=_figures(plan.statistics_before),
        after=_figures(plan.statistics_after),
        warnings=warnings,
    )


def _figures(statistics: PlacementStatistics) -> placement_pb2.PlacementFigures:
    storage = statistics.storage
    return placement_pb2.PlacementFigures(
        leader_spread=statistics.leader_spread,
        replica_spread=statistics.replica_spread,
        storage_range_spread=storage.range_spread if storage else None,
        storage_standard_deviation=storage.standard_deviation if storage else None,
    )

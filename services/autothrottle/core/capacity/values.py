"""Makes the results about pools, which an operator reads, of what the other modules compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from autothrottle.core.capacity.packing import PoolsState, total, use_of
from autothrottle.core.capacity.pools import PoolPlan, PoolPlans
from autothrottle.core.capacity.results import LimitForecast, PoolDifference, PoolsDifference, PoolStatus
from autothrottle.core.cluster.snapshot import Assignment, Snapshot
from autothrottle.core.operators.plan_refusals import PlanCluster, PlanRefusal, RefusalKind, refusals
from autothrottle.core.placement.operations import unsized_notes
from autothrottle.core.placement.partition_map import changes
from autothrottle.core.placement.plan import PlacementPlan


def pools_difference(plans: PoolPlans, warnings: Sequence[str] = (), why_unsized: str = "") -> PoolsDifference:
    """Return what differs between pools and a cluster.

    Args:
        plans: of the pools.
        warnings: sentences about the file.
        why_unsized: why partition sizes are unknown; "": it is not known.
    """
    return PoolsDifference(
        drift=plans.has_drift,
        pools=tuple(
            PoolDifference(
                name=plan.pool.name,
                owner=plan.pool.owner,
                total_partitions=len(plan.plan.new_map),
                changed_partitions=len(plan.changed),
                copied_bytes=plan.plan.copied_bytes,
                lost_brokers=tuple(plan.lost),
                refusals=plan.plan.refusals,
                messages=tuple(_messages(plan, why_unsized)),
                unsized_partitions=plan.plan.unsized_partitions,
                changes=tuple(c for c in changes(plan.plan.old_map, plan.plan.new_map) if c.is_change),
            )
            for plan in plans.plans
        ),
        targets={entry.key: entry.replicas for entry in plans.changed},
        topics_in_no_pool=tuple(plans.unpooled),
        warnings=tuple(warnings),
    )


def _messages(plan: PoolPlan, why_unsized: str) -> Iterator[str]:
    if plan.lost:
        yield (
            f"Brokers {', '.join(map(str, plan.lost))} are not in the cluster, and their replicas stay. Fix: wait for "
            "them, replace them in the file, or give --repair-lost"
        )
    yield from (message for message in plan.selection.messages if plan.changed or "not found" in message)
    for affinity in plan.plan.affinities:
        yield f"Substitution affinity: {affinity.leaving} -> {affinity.substitute}"
    yield from plan.notes
    yield from unsized_notes(plan.plan, why_unsized)
    yield from (f"WARN: {refusal.reason}" for refusal in _cuts(plan.plan))
    yield from (f"WARN: {warning}" for warning in plan.plan.warnings if warning not in plan.plan.refusals)


def _cuts(plan: PlacementPlan) -> Iterator[PlanRefusal]:
    """Yield which partitions a plan takes replicas from: a submission refuses them."""
    snapshot = Snapshot(
        version=0,
        brokers=frozenset(broker.id for broker in plan.brokers if not broker.missing),
        assignments={old.key: Assignment(old.replicas, old.replicas[0], old.replicas) for old in plan.old_map},
    )
    targets = {new.key: new.replicas for new in plan.new_map}
    yield from (r for r in refusals(PlanCluster(snapshot), targets) if r.kind is RefusalKind.FEWER_REPLICAS)


def pool_statuses(state: PoolsState, forecasts: Iterable[LimitForecast] = ()) -> tuple[PoolStatus, ...]:
    """Return how full each pool is; the forecasts have the peaks of the last recorded day."""
    peaks: dict[str, dict[str, float]] = defaultdict(dict)
    for forecast in forecasts:
        if forecast.pool:
            peaks[forecast.pool][forecast.resource] = forecast.use
    statuses = []
    for offer in state.offers:
        loads = [load.amounts for load in state.loads if load.pool == offer.name]
        uses = {dimension.key: use for dimension, use in use_of(total(loads), offer.amounts).items()}
        of_pool = peaks[offer.name]
        highest = {key: max(uses.get(key, -inf), of_pool.get(key, -inf)) for key in (*uses, *of_pool)}
        statuses.append(
            PoolStatus(
                pool=offer.name,
                brokers=offer.brokers,
                topics=len(loads),
                **uses,
                **{f"peak_{key}": use for key, use in of_pool.items()},
                limit=max(highest, key=highest.__getitem__, default=""),
            )
        )
    return tuple(statuses)

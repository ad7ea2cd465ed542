"""What the capacity functions return as JSON values, for topicmappr and for the placement service."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from autothrottle.core.capacity.forecasts import LimitForecast
from autothrottle.core.capacity.packing import DIMENSIONS, PoolsState, fullest, total, use_of
from autothrottle.core.capacity.pools import PoolPlan, PoolPlans
from autothrottle.core.capacity.sizing import FACTORS, CapacityPlan, Sizing
from autothrottle.core.cluster.snapshot import Assignment, Snapshot
from autothrottle.core.operators.plan_refusals import PlanCluster, PlanRefusal, RefusalKind, refusals
from autothrottle.core.placement.operations import unsized_notes
from autothrottle.core.placement.partition_map import changes
from autothrottle.core.placement.plan import PlacementPlan


def plans_value(plans: PoolPlans) -> dict[str, Any]:
    """Return what differs between pools and a cluster."""
    return {
        "drift": plans.has_drift,
        "pools": [
            {
                "name": plan.pool.name,
                "owner": plan.pool.owner,
                "partitions": len(plan.plan.new_map),
                "changes": change_values(plan.plan),
                "copied_bytes": plan.plan.copied_bytes,
                "unsized_partitions": plan.plan.unsized_partitions,
                "lost_brokers": list(plan.lost),
                "refusals": list(plan.plan.refusals),
                "messages": list(plan_messages(plan)),
            }
            for plan in plans.plans
        ],
        "topics_in_no_pool": list(plans.unpooled),
    }


def plan_messages(plan: PoolPlan, why_unsized: str = "") -> Iterator[str]:
    """Return sentences for the operator about the plan of a pool.

    Args:
        plan: the plan.
        why_unsized: why partition sizes are unknown; "": it is not known.
    """
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


def change_values(plan: PlacementPlan) -> list[dict[str, Any]]:
    """Return the changed partitions of a plan, with the bytes to copy; None: unknown."""
    return [
        {
            "topic": old.topic,
            "partition": old.partition,
            "before": list(old.replicas),
            "after": list(new.replicas),
            "notes": list(notes),
            "bytes": _copied_bytes(old.size, len(set(new.replicas) - set(old.replicas))),
        }
        for old, new, notes in changes(plan.old_map, plan.new_map)
        if old.replicas != new.replicas
    ]


def _copied_bytes(size: int | None, copies: int) -> int | None:
    """Return the bytes that copies of a partition need; None: its size is unknown."""
    return 0 if not copies else None if size is None else size * copies


def status_rows(state: PoolsState) -> Iterator[Mapping[str, Any]]:
    """Return the use of each pool: share of its limits by dimension, and the dimension that limits it."""
    for offer in state.offers:
        load = total(load.amounts for load in state.loads if load.pool == offer.name)
        uses = use_of(load, offer.amounts)
        yield {
            "pool": offer.name,
            "brokers": offer.brokers,
            "topics": sum(load.pool == offer.name for load in state.loads),
            **{dimension.key: uses.get(dimension) for dimension in DIMENSIONS},
            "limit": fullest(load, offer.amounts).dimension.value if uses else None,
        }


def last_peaks(forecasts: Iterable[LimitForecast]) -> Mapping[str, Mapping[str, float]]:
    """Return pool -> resource -> its peak on the last recorded day, as a share of the limit."""
    peaks: dict[str, dict[str, float]] = defaultdict(dict)
    for forecast in forecasts:
        if forecast.kind == "pool":
            peaks[forecast.name][forecast.dimension.key] = forecast.use
    return peaks


def capacity_value(plan: CapacityPlan) -> dict[str, Any]:
    """Return a capacity plan; sizes are in bytes, rates in bytes per second."""
    workload = plan.workload
    return {
        "workload": {
            "peak_bytes_per_second": round(workload.peak),
            "fan_out": workload.fan_out,
            "replication": workload.replication,
            "retention_seconds": workload.retention.total_seconds(),
            "stored_bytes": round(workload.stored * workload.replication),
            "partitions": workload.partitions,
        },
        "instances": [_sizing_value(sizing) for sizing in plan.sizings],
        "cheapest": plan.cheapest.instance.name,
        "larger": {
            name: {
                f"{factor:g}": _sizing_value(sizing) if sizing else None
                for factor, sizing in zip(FACTORS, sizings, strict=True)
            }
            for name, sizings in plan.larger.items()
        },
        "notes": list(plan.notes),
    }


def _sizing_value(sizing: Sizing) -> dict[str, Any]:
    return {
        "name": sizing.instance.name,
        "counts": {dimension.key: count for dimension, count in sizing.counts.items()},
        "brokers": sizing.brokers,
        "limit": sizing.limit.key,
        "recovery_seconds": sizing.recovery_seconds,
        "price_per_month": sizing.price,
    }


def forecast_values(forecasts: Iterable[LimitForecast]) -> list[dict[str, Any]]:
    """Return forecasts; an absent date: not within a year, or too few days are measured."""
    return [
        {
            forecast.kind: forecast.name,
            "resource": forecast.dimension.key,
            "use": forecast.use,
            "limit_reached": _date(forecast, "days"),
            "earliest": _date(forecast, "earliest"),
            "latest": _date(forecast, "latest"),
            "problem": forecast.problem,
        }
        for forecast in forecasts
    ]


def _date(forecast: LimitForecast, bound: str) -> str | None:
    day = forecast.day(getattr(forecast.exhaustion, bound, inf))
    return day.isoformat() if day else None

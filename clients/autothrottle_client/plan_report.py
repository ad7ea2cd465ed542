"""The results of planning as text and as JSON values, for `topicmappr` and `throttlectl plan`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autothrottle.core.capacity.results import LimitForecast, PoolDifference, PoolsDifference, PoolStatus
from autothrottle.core.capacity.sizing import FACTORS, MOST_BROKERS, CapacityPlan, Dimension, Sizing
from autothrottle.core.placement.partition_map import MapChange
from autothrottle.core.placement.proposal import ProposedPlacement
from autothrottle.core.texts import escape_unprintable, excerpt, first_lines
from autothrottle.core.units import copy_words
from autothrottle_client.texts import columns, span

_SHOWN_TOPICS = 10
_SHOWN_REFUSALS = 3


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a table, indented; the first row is its head."""
    return (f"  {line}" for line in columns([[escape_unprintable(cell) for cell in row] for row in rows]))


def _words(resource: str) -> str:
    return resource.replace("_", " ")


# Plans.


def plan_report(plan: ProposedPlacement) -> str:
    """Return a plan as lines: each change, then the figures.

    >>> from autothrottle.core.placement.proposal import PlacementFigures
    >>> figures = PlacementFigures(1, 2)
    >>> print(plan_report(ProposedPlacement(figures, figures, {("t", 0): (1, 2)}, copied_bytes=5_000_000)))
    t-0 -> 1,2
    1 partitions change, 0 stay; 5.00 MB to copy (MoveRatio 0.000)
    leader spread 1 -> 1, replica spread 2 -> 2
    """
    lines = [f"{topic}-{number} -> {','.join(map(str, to))}" for (topic, number), to in plan.targets.items()]
    copies = f"{copy_words(plan.copied_bytes, plan.unsized_partitions)} (MoveRatio {plan.move_ratio:.3f})"
    lines.append(f"{len(plan.targets)} partitions change, {plan.unchanged_partitions} stay; {copies}")
    old, new = plan.before, plan.after
    lines.append(
        f"leader spread {old.leader_spread} -> {new.leader_spread}, "
        f"replica spread {old.replica_spread} -> {new.replica_spread}"
    )
    if old.storage_range_spread is not None and new.storage_range_spread is not None:
        lines.append(f"free storage range {old.storage_range_spread:.2%} -> {new.storage_range_spread:.2%}")
    if plan.steps:
        lines.append(f"partitions of the {len(plan.steps)} steps: {', '.join(str(len(step)) for step in plan.steps)}")
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def change_line(change: MapChange) -> str:
    """Return a partition before and after a plan, with notes."""
    old, new, notes = change
    return f"{old.topic} p{old.partition}: {_replicas(old.replicas)} -> {_replicas(new.replicas)} {', '.join(notes)}"


def _replicas(replicas: Iterable[int]) -> str:
    return f"[{' '.join(map(str, replicas))}]"


def change_values(changes: Iterable[MapChange]) -> list[dict[str, Any]]:
    """Return partitions of a plan, with the bytes to copy; None: unknown."""
    return [
        {
            "topic": change.old.topic,
            "partition": change.old.partition,
            "before": list(change.old.replicas),
            "after": list(change.new.replicas),
            "notes": list(change.notes),
            "bytes": change.copied_bytes,
        }
        for change in changes
    ]


# Pools.


def difference_report(difference: PoolsDifference) -> str:
    """Return a line for each pool, the sentences about it, what changes if that is known, and the topics in no pool."""
    lines = [line for pool in difference.pools for line in _pool_lines(pool)]
    if topics := difference.topics_in_no_pool:
        lines.append(f"In no pool: {excerpt(topics, _SHOWN_TOPICS)}")
    return "\n".join(map(escape_unprintable, lines))


def _pool_lines(pool: PoolDifference) -> Iterator[str]:
    state = "waits for lost brokers" if pool.lost_brokers else "as its file says"
    if pool.changed_partitions:
        state = f"{pool.changed_partitions} change, {copy_words(pool.copied_bytes, pool.unsized_partitions)}"
    if pool.refusals:
        state = "refused"
    yield f"{pool.name}: {pool.total_partitions} partitions: {state}"
    yield from (f"  {line}" for line in first_lines(pool.refusals, _SHOWN_REFUSALS, "reason"))
    yield from (f"  {message}" for message in pool.messages)
    if not pool.refusals:
        yield from (f"  {change_line(change)}" for change in pool.changes or ())


def difference_value(difference: PoolsDifference) -> dict[str, Any]:
    """Return what differs between pools and a cluster; the changes of a pool are absent if they are unknown."""
    return {
        "drift": difference.drift,
        "pools": [
            {
                "name": pool.name,
                "owner": pool.owner,
                "partitions": pool.total_partitions,
                "changed_partitions": pool.changed_partitions,
                **({} if pool.changes is None else {"changes": change_values(pool.changes)}),
                "copied_bytes": pool.copied_bytes,
                "unsized_partitions": pool.unsized_partitions,
                "lost_brokers": list(pool.lost_brokers),
                "refusals": list(pool.refusals),
                "messages": list(pool.messages),
            }
            for pool in difference.pools
        ],
        "topics_in_no_pool": list(difference.topics_in_no_pool),
        "warnings": list(difference.warnings),
    }


_USES = ("storage", "network_in", "network_out")


def status_report(pools: Sequence[PoolStatus]) -> str:
    """Return the use of pools as a table; a share is of what the limits of the pool allow."""
    head = ("pool", "brokers", "topics", *map(_words, _USES), "limited by")
    rows = [
        (
            pool.pool,
            str(pool.brokers),
            str(pool.topics),
            *(_share(getattr(pool, use), getattr(pool, f"peak_{use}")) for use in _USES),
            _words(pool.limit) or "unknown",
        )
        for pool in pools
    ]
    return "\n".join(table([head, *rows]))


def _share(use: float | None, peak: float | None) -> str:
    text = "unknown" if use is None else f"{use:.1%}" if use < float("inf") else "no offer"
    return text if peak is None else f"{text}, peak {peak:.1%}"


def status_values(pools: Iterable[PoolStatus]) -> list[dict[str, Any]]:
    """Return the use of pools; absent peaks are unknown."""
    return [
        {
            "pool": pool.pool,
            "brokers": pool.brokers,
            "topics": pool.topics,
            **{use: getattr(pool, use) for use in _USES},
            "peaks": {use: peak for use in _USES if (peak := getattr(pool, f"peak_{use}")) is not None},
            "limit": _words(pool.limit) or None,
        }
        for pool in pools
    ]


# Capacity.


def capacity_report(plan: CapacityPlan) -> str:
    """Return the brokers that a workload needs as text."""
    workload = plan.workload
    growth = f", after {workload.months:g} months" if workload.months and workload.growth else ""
    head = (
        "instance type",
        *(dimension.value for dimension in Dimension),
        "brokers",
        "limit",
        "copy time",
        "per month",
    )
    larger = [(name, *map(_choice, sizings)) for name, sizings in plan.larger.items()]
    lines = [
        "Workload:",
        f"  {workload.peak / 1e6:.1f} MB/s produced at peak{growth}; consumers read {workload.fan_out:g} times as much",
        f"  {workload.replication} replicas, {workload.retention.total_seconds() / 3600:g} h retention: "
        f"{workload.stored * workload.replication / 1e12:.2f} TB in all",
        *(f"  {note}" for note in plan.notes),
        "Brokers:",
        *table([head, *map(_sizing_row, plan.sizings)]),
        f"Cheapest: {_choice(plan.cheapest)} per month, limited by {plan.cheapest.limit.value}",
        "Cheapest if one input grows:",
        *table([("input", *(f"x{factor:g}" for factor in FACTORS)), *larger]),
    ]
    return "\n".join(map(escape_unprintable, lines))


def _sizing_row(sizing: Sizing) -> tuple[str, ...]:
    counts = (str(sizing.counts.get(dimension, "-")) for dimension in Dimension)
    copy_time = span(sizing.recovery_seconds) if sizing.recovery_seconds else "-"
    return sizing.instance.name, *counts, str(sizing.brokers), sizing.limit.value, copy_time, f"{sizing.price:,.0f}"


def _choice(sizing: Sizing | None) -> str:
    if sizing is None:
        return f"more than {MOST_BROKERS:,} brokers"
    return f"{sizing.brokers} x {sizing.instance.name}, {sizing.price:,.0f}"


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


# Forecasts.


def forecast_report(forecasts: Iterable[LimitForecast]) -> str:
    """Return the forecasts as a table, the first to be exhausted first."""
    ordered = sorted(forecasts, key=lambda each: (not each.limit_reached, each.limit_reached, bool(each.problem)))
    rows = [
        (
            f"pool {each.pool}" if each.broker_id is None else f"broker {each.broker_id}",
            _words(each.resource),
            f"{each.use:.1%}",
            each.limit_reached or each.problem or _NOT_WITHIN_A_YEAR,
            f"{each.earliest or _NOT_WITHIN_A_YEAR} and {each.latest or _NOT_WITHIN_A_YEAR}"
            if each.limit_reached
            else "-",
        )
        for each in ordered
    ]
    return "\n".join(table([("", "resource", "use of the limit", "limit reached", "80 % between"), *rows]))


_NOT_WITHIN_A_YEAR = "not within a year"


def forecast_values(forecasts: Iterable[LimitForecast]) -> list[Mapping[str, Any]]:
    """Return forecasts; a date that is None: not within a year, or too few days are measured."""
    return [
        {
            **({"pool": each.pool} if each.broker_id is None else {"broker": str(each.broker_id)}),
            "resource": each.resource,
            "use": each.use,
            "limit_reached": each.limit_reached or None,
            "earliest": each.earliest or None,
            "latest": each.latest or None,
            "problem": each.problem,
        }
        for each in forecasts
    ]

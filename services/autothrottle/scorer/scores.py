"""Scores of recoveries and groups of them, from the scores of link sides. The tables are small: the driver has them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from autothrottle.scorer.link_sides import CAUSES, LOST
from autothrottle.scorer.parts import SUMMED, ScorePlan
from autothrottle.scorer.tables import RECOVERIES

Row = Mapping[str, Any]

WORST = 10
"""Number of decisions that a report lists per cluster."""


def recovery_scores(plan: ScorePlan, summaries: Mapping[int, Sequence[Row]]) -> pa.Table:
    """Return one row per recovery with decisions.

    Columns: `tables.RECOVERIES`. `bound_seconds` is that of the slowest link side (null: nothing was measured),
    `efficiency` is `bound_seconds / seconds` (1 is the best within the share, above 1 replication exceeded it),
    `regret_seconds` is `seconds - bound_seconds`, `regret_<cause>` are seconds per cause, which together with
    `regret_other` sum up to the regret. `over_seconds`, `saturated_seconds` and `port_seconds` are of all link sides.

    Args:
        plan: the recoveries.
        summaries: number of a recovery -> summaries of its parts.
    """
    rows = [_recovery_score(plan, number, parts) for number, parts in sorted(summaries.items())]
    return pa.Table.from_pylist(rows, schema=RECOVERIES)


def _recovery_score(plan: ScorePlan, number: int, parts: Sequence[Row]) -> Row:
    recovery = plan.recoveries[number]
    assert recovery.finish is not None
    seconds = (recovery.finish - recovery.start).total_seconds()
    total = {name: sum(part[name] for part in parts) for name in SUMMED}
    slowest = slowest_part(parts)
    side: Row = parts[slowest]["slowest"] if slowest is not None else {}
    bound = side.get("bound_seconds")
    regret = None if bound is None else seconds - bound
    mean_available_rate = side["budget_bytes"] / seconds if side else 0.0
    regrets = {
        f"regret_{cause}": _quotient(side.get(lost), mean_available_rate) or 0.0
        for cause, lost in zip(CAUSES, LOST, strict=True)
    }
    gigabytes = None if recovery.bytes is None else recovery.bytes / 1e9
    return {
        "recovery_id": recovery.recovery_id,
        "start": recovery.start,
        "finish": recovery.finish,
        "status": recovery.status,
        "seconds": seconds,
        **total,
        "eta_error": _quotient(sum(part["eta_errors"] for part in parts), sum(part["etas"] for part in parts)),
        "skew_seconds": max(part["skew_seconds"] for part in parts),
        "is_estimated": any(part["is_estimated"] for part in parts),
        "topics": list(recovery.topics),
        "partitions": recovery.partitions,
        "bytes": recovery.bytes,
        "terms": recovery.terms,
        "bound_seconds": bound,
        "bottleneck_broker": side.get("broker_id"),
        "bottleneck_role": side.get("role"),
        "efficiency": _quotient(bound, seconds),
        "regret_seconds": regret,
        **regrets,
        "regret_other": None if regret is None else regret - sum(regrets.values()),
        "writes_per_gb": _quotient(float(total["writes"]), gigabytes),
        "cluster": recovery.cluster,
        "date": recovery.date,
    }


def slowest_part(parts: Sequence[Row]) -> int | None:
    """Return the index of the part with the slowest link side of a recovery; None: nothing was measured."""
    bounds = {index: part["slowest"]["bound_seconds"] for index, part in enumerate(parts) if "slowest" in part}
    return max(bounds, key=lambda index: bounds[index]) if bounds else None


def _quotient(amount: float | None, by: float | None) -> float | None:
    return amount / by if amount is not None and by else None


# Groups.


def by_group(scores: pa.Table, *keys: str) -> list[dict[str, Any]]:
    """Return one row per cluster and value of each key, with the distribution of the efficiency, sorted by both.

    Columns: `cluster`, the key's column (`cluster` as a key means the whole cluster), `count`, `efficiency_p10`,
    `efficiency_p50`, `efficiency_p90`, `efficiency_worst`, `over_share` and `saturated_share` (of all measured
    seconds), `writes`, `churn`.

    Args:
        scores: scores of recoveries or link sides, with `bound_seconds` and `seconds`.
        keys: columns; `date` gives the trend.
    """
    scores = scores.append_column("share", pc.divide(scores["bound_seconds"], scores["seconds"]))
    summed = ("over_seconds", "saturated_seconds", "port_seconds", "writes", "churn")
    columns = list(dict.fromkeys(["cluster", *keys]))
    totals = scores.group_by(columns, use_threads=False).aggregate(
        [("share", "list"), ("cluster", "count"), *((name, "sum") for name in summed)]
    )
    return sorted(
        map(_group_row, totals.to_pylist(), [columns] * len(totals)),
        key=lambda row: [str(row[name]) for name in columns],
    )


def _group_row(total: Row, columns: Sequence[str]) -> dict[str, Any]:
    shares = sorted(share for share in total["share_list"] if share is not None)
    measured = total["port_seconds_sum"]
    return {
        **{name: total[name] for name in columns},
        "count": total["cluster_count"],
        **{f"efficiency_p{percent}": percentile(shares, percent / 100) for percent in (10, 50, 90)},
        "efficiency_worst": shares[0] if shares else None,
        "over_share": _quotient(total["over_seconds_sum"], measured),
        "saturated_share": _quotient(total["saturated_seconds_sum"], measured),
        "writes": total["writes_sum"],
        "churn": total["churn_sum"],
    }


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile of sorted values, with linear interpolation; None: there are no values.

    >>> percentile([1.0, 2.0, 4.0], 0.5), percentile([1.0, 2.0], 0.9)
    (2.0, 1.9)
    """
    if not values:
        return None
    place = (len(values) - 1) * share
    low, high = values[math.floor(place)], values[math.ceil(place)]
    return low if low == high else low + (high - low) * (place - math.floor(place))


def overall(recoveries: pa.Table) -> dict[str, Any]:
    """Return the statistics of all recoveries, with the field names of `Results`."""
    efficiencies = [value for value in recoveries["efficiency"].to_pylist() if value is not None]
    return {
        "count": len(efficiencies),
        "mean_efficiency": statistics.fmean(efficiencies) if efficiencies else None,
        "worst_efficiency": min(efficiencies, default=None),
        "copies": pc.sum(recoveries["copies"]).as_py() or 0,
        "saturated_seconds": pc.sum(recoveries["saturated_seconds"]).as_py() or 0.0,
        "measured_seconds": pc.sum(recoveries["port_seconds"]).as_py() or 0.0,
    }


# Decisions.


_OF_DECISION = (
    *("cluster", "cycle_id", "trace_id", "time", "broker_id", "role", "instance_type", "reason", "decided", "budget"),
    *("achieved", "seconds", *LOST, "forecast", "capacity", "recovery_id"),
)


def worst_decisions(timeline: pa.Table) -> pa.Table:
    """Return the decisions that cost the most seconds, ten per cluster, sorted by cluster and rank.

    Adds `lost_seconds` and `rank` (1 is the worst) to the columns of a decision. Applied to the worst decisions of all
    parts of a table, it returns those of the whole table.

    Args:
        timeline: stretches of slowest link sides; columns: `tables.TIMELINE`.
    """
    timeline = timeline.select(_OF_DECISION)
    lost = pc.multiply(pc.subtract(timeline["budget"], timeline["achieved"]), timeline["seconds"])
    has_budget = pc.greater(timeline["budget"], 0.0)
    lost_seconds = pc.if_else(has_budget, pc.divide(lost, timeline["budget"]), 0.0)
    timeline = timeline.append_column("lost_seconds", lost_seconds).filter(pc.greater(lost_seconds, 0.0))
    order = [("cluster", "ascending"), ("lost_seconds", "descending"), ("cycle_id", "ascending")]
    timeline = timeline.sort_by([*order, ("broker_id", "ascending")])
    ranks: list[int] = []
    for _, of_cluster in groupby(timeline["cluster"].to_pylist()):
        ranks += range(1, len(list(of_cluster)) + 1)
    timeline = timeline.append_column("rank", pa.array(ranks, pa.int64()))
    return timeline.filter(pc.less_equal(timeline["rank"], WORST))


def folders_of(recoveries: pa.Table) -> set[tuple[str, str]]:
    """Return the folders of recoveries: (cluster, date)."""
    return set(zip(recoveries["cluster"].to_pylist(), recoveries["date"].to_pylist(), strict=True))

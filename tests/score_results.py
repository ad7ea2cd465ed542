"""The content of a report with any number of recoveries, as rows of plain values, without Spark."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from autothrottle.core.scoring.score import Cause
from autothrottle.scorer.report import MOST_TIMELINES, Results
from tests.builders import mb

BEGIN = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)
INTERVAL = 30.0


def decision(index: int, recovery_id: str, start: datetime, **changes: Any) -> dict[str, Any]:
    """One decision for the slowest link side, every 30 s; clients have a wave of ten minutes."""
    clients = mb(30) + 12_345_678 * math.sin(index * INTERVAL / 95)
    row = {
        "cluster": "kafka",
        "recovery_id": recovery_id,
        "cycle_id": f"kafka/1/{index + 1}",
        "trace_id": f"{index:032x}",
        "time": start + timedelta(seconds=INTERVAL * index),
        "term": 1,
        "cycle": index + 1,
        "broker_id": 1006,
        "role": "follower",
        "reason": "headroom",
        "seconds": INTERVAL,
        "capacity": float(mb(100)),
        "client": clients,
        "forecast": clients,
        "standing": 63e6,
        "decided": 63e6,
        "applied": 63e6,
        "achieved": 61.3e6,
        "budget": 0.9 * (mb(100) - clients),
        "outcome": "",
    }
    return row | changes


def recovery(index: int, seconds: float = 1234.5, **changes: Any) -> dict[str, Any]:
    """One recovery, of which a larger index lost less time."""
    start = BEGIN + timedelta(hours=6 * index)
    lost = max(400.0 - 0.39 * index, 1.0)
    row = {
        "cluster": "kafka",
        "recovery_id": f"kafka/{index}/1",
        "date": f"{start:%Y-%m-%d}",
        "start": start,
        "finish": start + timedelta(seconds=seconds),
        "status": "done",
        "seconds": seconds,
        "bound_seconds": seconds - lost,
        "efficiency": (seconds - lost) / seconds,
        "regret_seconds": lost,
        "bottleneck_broker": 1006,
        "bottleneck_role": "follower",
        "partitions": 12,
        "bytes": 48.6e9,
        "is_estimated": False,
        **{f"regret_{cause}": 0.0 for cause in (*Cause, "other")},
        "regret_metrics_late": 0.75 * lost,
        "regret_fail_safe": 0.3 * lost,
        "regret_elsewhere": -0.05 * lost,
    }
    return row | changes


def group(**changes: Any) -> dict[str, Any]:
    """The distribution of a group of recoveries."""
    row = {"cluster": "kafka", "count": 4, "writes": 57, "churn": 3.2, "over_share": 0.0123, "saturated_share": 0.0031}
    efficiencies = {"efficiency_p10": 0.61, "efficiency_p50": 0.8039, "efficiency_p90": 0.97, "efficiency_worst": 0.5}
    return row | efficiencies | changes


ADVICE: dict[str, Any] = {
    "cluster": "kafka",
    "changes": [{"option": "max-rate", "present": 45.0, "proposed": 90.0}],
    "gain": 0.21,
    "gain_low": 0.13,
    "gain_high": 0.29,
    "seconds_saved": 1260.0,
    "recoveries": 3,
}


def results(amount: int = 3, decisions: int = 41, **changes: Any) -> Results:
    """A report of one cluster, with so many recoveries of so many decisions, and one recommended change."""
    rows = [recovery(index) for index in range(amount)]
    shown = rows[:MOST_TIMELINES]
    timelines = {
        row["recovery_id"]: [decision(index, row["recovery_id"], row["start"]) for index in range(decisions)]
        for row in shown
    }
    costs = {"lost_seconds": 27.4, "cause": "metrics_late"}
    worst = [row | costs | {"rank": n + 1} for n, row in enumerate(next(iter(timelines.values()), [])[:10])]
    counts = {"files": 3, "unreadable_files": 0, "reassignment_files": 2, "rows": 1234, "incomplete_rows": 1}
    content: dict[str, Any] = {
        "recoveries": rows,
        "clusters": [group(count=amount)],
        "instance_types": [group(instance_type="i3en.2xlarge")],
        "trends": [group(date=row["date"], efficiency_p50=row["efficiency"]) for row in rows[::4]],
        "worst": worst,
        "quality": [{"cluster": "kafka", "date": "2026-11-05", **counts, "newer_rows": 0, "ratio": 0.9}],
        "advice": [ADVICE],
        "timelines": timelines,
        "count": amount,
        "mean_efficiency": 0.8312,
        "worst_efficiency": 0.5,
        "saturated_seconds": 40.0,
        "measured_seconds": 12_900.0,
    }
    return Results(**(content | changes))

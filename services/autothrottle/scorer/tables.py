"""Columns of the tables that a run writes, as Parquet in folders of clusters and dates; times are UTC."""

from __future__ import annotations

import pyarrow as pa

from autothrottle.scorer.link_sides import CAUSES, LOST

_TIME = pa.timestamp("us", "UTC")


def _columns(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names]


_FOLDER = _columns(pa.string(), "cluster", "date")

PORTS = pa.schema(
    [
        *_columns(pa.string(), "recovery_id"),
        *_columns(pa.int64(), "broker_id"),
        *_columns(pa.string(), "role"),
        *_columns(pa.float64(), "amount", "seconds", "skew_seconds"),
        *_columns(pa.bool_(), "is_estimated"),
        *_columns(pa.string(), "instance_type"),
        *_columns(pa.float64(), "budget_bytes", *LOST, "over_seconds", "saturated_seconds", "port_seconds"),
        *_columns(pa.int64(), "decisions", "writes"),
        *_columns(pa.float64(), "churn"),
        *_columns(_TIME, "start", "finish"),
        *_columns(pa.string(), "status"),
        *_columns(pa.float64(), "bound_seconds", "eta_error"),
        *_columns(pa.int64(), "copies"),
        *_FOLDER,
    ]
)
"""One row per recovery and link side; see `link_sides.side_scores`."""

TIMELINE = pa.schema(
    [
        *_columns(pa.string(), "recovery_id", "cycle_id", "trace_id"),
        *_columns(_TIME, "time"),
        *_columns(pa.int64(), "term", "cycle", "broker_id"),
        *_columns(pa.string(), "role", "instance_type", "reason"),
        *_columns(pa.float64(), "seconds", "capacity", "client", "forecast", "headroom"),
        *_columns(pa.int64(), "standing"),
        *_columns(pa.float64(), "decided", "applied", "achieved", "budget", "used", "min_rate", "max_ratio"),
        *_columns(pa.float64(), "change_threshold", "growth", "free", "interval_seconds", "amount", "at", "reach"),
        *_columns(pa.float64(), "before", "duration"),
        *_columns(pa.string(), "policy"),
        *_columns(_TIME, "measured_from", "measured_to"),
        *_columns(pa.float64(), *LOST),
        *_FOLDER,
    ]
)
"""One row per decision for the slowest link side of a recovery; see `link_sides.stretches`."""

RECOVERIES = pa.schema(
    [
        *_columns(pa.string(), "recovery_id"),
        *_columns(_TIME, "start", "finish"),
        *_columns(pa.string(), "status"),
        *_columns(pa.float64(), "seconds", "over_seconds", "saturated_seconds", "port_seconds"),
        *_columns(pa.int64(), "decisions", "copies", "writes"),
        *_columns(pa.float64(), "churn", "eta_error", "skew_seconds"),
        *_columns(pa.bool_(), "is_estimated"),
        *_columns(pa.list_(pa.string()), "topics"),
        *_columns(pa.int64(), "partitions", "bytes"),
        *_columns(pa.int32(), "terms"),
        *_columns(pa.float64(), "bound_seconds"),
        *_columns(pa.int64(), "bottleneck_broker"),
        *_columns(pa.string(), "bottleneck_role"),
        *_columns(pa.float64(), "efficiency", "regret_seconds", *(f"regret_{cause}" for cause in CAUSES)),
        *_columns(pa.float64(), "regret_other", "writes_per_gb"),
        *_FOLDER,
    ]
)
"""One row per completed recovery; see `scores.recovery_scores`."""

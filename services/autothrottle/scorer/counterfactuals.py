"""Estimates of other policies and settings, one task per recovery and setting, by `core.scoring.estimates`.

A row per recovery and setting spreads over a cluster: `applyInArrow` runs the closed loop in the executors, which need
no more than the package `autothrottle.core`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from autothrottle.core.scoring.estimates import (
    GRID,
    MOST_RECOVERIES,
    Advice,
    LoggedRecovery,
    LoggedStretch,
    SettingEstimate,
    advice,
    estimate,
    resampled,
)
from autothrottle.core.scoring.score import Setting

_FIELDS = tuple(LoggedStretch.__dataclass_fields__)

_ESTIMATES = (
    "cluster string, recovery_id string, ratio double, threshold double, every long, policy string, is_logged boolean, "
    "interval_seconds double, duration double, estimated_seconds double, harmed_bytes double, client_bytes double, "
    "writes long"
)


def sequences(timeline: DataFrame, most: int = MOST_RECOVERIES) -> DataFrame:
    """Return one row per recovery, with the ordered stretches of its slowest link side; the longest recoveries only.

    Columns: `cluster`, `recovery_id`, `role`, `amount`, `growth`, `duration`, `max_ratio`, `change_threshold`, `policy`
    and `interval_seconds` (last logged values), `stretches` (array of structs with the fields of `LoggedStretch`).

    Args:
        timeline: one row per decision for the slowest link side.
        most: largest number of recoveries.
    """
    newest = F.struct("term", "cycle")
    logged = [F.max_by(c, newest).alias(c) for c in ("max_ratio", "change_threshold", "interval_seconds", "policy")]
    fields = [F.col("reach" if name == "seconds" else name).alias(name) for name in _FIELDS]
    return (
        timeline.where(F.col("budget").isNotNull())
        .groupBy("cluster", "recovery_id")
        .agg(
            *(F.first(c).alias(c) for c in ("role", "amount", "growth", "duration")),
            *logged,
            F.sort_array(F.collect_list(F.struct("term", "cycle", *fields))).alias("stretches"),
        )
        .orderBy(F.desc("duration"), "cluster", "recovery_id")
        .limit(most)
    )


def on_grid(sequences_of_recoveries: DataFrame, grid: Sequence[Setting] = GRID) -> DataFrame:
    """Return one row per recovery and setting, and one per recovery for the logged setting.

    Columns: `cluster`, `recovery_id`, `ratio`, `threshold`, `every`, `policy`, `is_logged`, `interval_seconds`,
    `duration`, `estimated_seconds` (inf: never), `harmed_bytes`, `client_bytes`, `writes`.

    Args:
        sequences_of_recoveries: result of `sequences`.
        grid: the settings to estimate.
    """
    logged = _cell(F.col("max_ratio"), F.col("change_threshold"), F.lit(1), F.col("policy"), F.lit(True))
    cells = F.array(
        logged,
        *(
            _cell(F.lit(s.max_ratio), F.lit(s.change_threshold), F.lit(s.every), F.lit(s.policy), F.lit(False))
            for s in grid
        ),
    )
    rows = sequences_of_recoveries.withColumn("cell", F.explode(cells)).select("*", "cell.*").drop("cell")
    return rows.groupBy(
        "recovery_id", "is_logged", "ratio", "threshold", "every", F.col("policy_of_cell")
    ).applyInArrow(_estimated, _ESTIMATES)


def _cell(ratio: Column, threshold: Column, every: Column, policy: Column, is_logged: Column) -> Column:
    named = {"ratio": ratio, "threshold": threshold, "every": every, "policy_of_cell": policy, "is_logged": is_logged}
    return F.struct(*(value.alias(name) for name, value in named.items()))


def _estimated(table: pa.Table) -> pa.Table:
    """Return the estimates of some rows; runs in an executor."""
    return pa.Table.from_pylist([_estimate_row(row) for row in table.to_pylist()], schema=_ARROW)


_ARROW = pa.schema(
    [
        pa.field(name, {"string": pa.string(), "double": pa.float64(), "long": pa.int64(), "boolean": pa.bool_()}[kind])
        for name, kind in (column.split(" ") for column in _ESTIMATES.split(", "))
    ]
)


def _estimate_row(row: Mapping[str, Any]) -> dict[str, Any]:
    recovery = resampled(logged_recovery(row))
    setting = Setting(row["ratio"], row["threshold"], row["every"], row["policy_of_cell"])
    result = estimate(recovery, setting)
    interval = row["interval_seconds"]
    return {name: row.get(name) for name in _ARROW.names} | {
        "policy": setting.policy,
        "interval_seconds": None if interval is None else interval * setting.every,
        "estimated_seconds": result.seconds,
        "harmed_bytes": result.deferred_bytes,
        "client_bytes": result.client_bytes,
        "writes": result.writes,
    }


def logged_recovery(row: Mapping[str, Any]) -> LoggedRecovery:
    """Return a row of `sequences` as a value."""
    return LoggedRecovery(
        cluster=row["cluster"],
        recovery_id=row["recovery_id"],
        is_outbound=row["role"] == "leader",
        duration=row["duration"],
        amount=row["amount"],
        growth=row["growth"],
        setting=Setting(row["max_ratio"], row["change_threshold"], 1, row["policy"]),
        interval_seconds=row["interval_seconds"],
        stretches=[LoggedStretch(**{name: stretch[name] for name in _FIELDS}) for stretch in row["stretches"]],
    )


def advices(recoveries: Sequence[LoggedRecovery], estimates: Sequence[Mapping[str, Any]]) -> Iterator[Advice]:
    """Yield the advice for each cluster, ordered by name.

    Args:
        recoveries: of any clusters, oldest first within a cluster.
        estimates: rows of `on_grid` for them.
    """
    by_key = {
        (row["recovery_id"], Setting(row["ratio"], row["threshold"], row["every"], row["policy"])): SettingEstimate(
            row["estimated_seconds"], row["harmed_bytes"], row["client_bytes"], row["writes"]
        )
        for row in estimates
    }
    for cluster in sorted({recovery.cluster for recovery in recoveries}):
        own = [recovery for recovery in recoveries if recovery.cluster == cluster]
        ids = [recovery.recovery_id for recovery in own]
        settings = {setting for recovery_id, setting in by_key if recovery_id in ids}
        common = {s: [by_key[i, s] for i in ids] for s in settings if all((i, s) in by_key for i in ids)}
        yield advice(own, common)


def surface(estimates: DataFrame) -> DataFrame:
    """Return one row per cluster and setting of its policy: the estimate for all recoveries together.

    Columns: the fields of `core.scoring.score.Cell`.

    Args:
        estimates: result of `on_grid`.
    """
    settings = {c: F.when(~F.col("is_logged"), F.col(c)) for c in ("ratio", "threshold")}
    logged_policy = F.max(F.when(F.col("is_logged"), F.col("policy"))).over(Window.partitionBy("cluster"))
    return (
        estimates.withColumn("logged_policy", logged_policy)
        .where(F.col("policy") == F.col("logged_policy"))
        .withColumns(settings)
        .groupBy("cluster", "is_logged", "ratio", "threshold", "every", "policy")
        .agg(
            F.max("interval_seconds").alias("interval_seconds"),
            F.count(F.lit(1)).alias("recoveries"),
            F.sum("estimated_seconds").alias("estimated_seconds"),
            F.coalesce(F.try_divide(F.sum("harmed_bytes"), F.sum("client_bytes")), F.lit(0.0)).alias("harmed_share"),
            F.sum("writes").alias("writes"),
        )
    )

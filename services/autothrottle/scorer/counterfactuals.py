"""What other settings would have done: `core.counterfactual` over a grid, in Spark's expressions.

Every cell of the grid for every recovery is a row of its own, so that they spread over a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from autothrottle.core.counterfactual import Setting
from autothrottle.core.plan import Reason
from autothrottle.core.score import OVERRIDES
from autothrottle.scorer.expressions import budget

GRID = tuple(
    Setting(max_ratio, change_threshold)
    for max_ratio in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
    for change_threshold in (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
)

TOLERATED_HARM = 0.001
"""Share of clients' bytes that a recommended setting may leave without room, where today's leaves less."""

_FIELDS = ("seconds", "reach", "capacity", "client", "forecast", "decided", "min_rate", "reason")


def sequences(timeline: DataFrame) -> DataFrame:
    """Return one row per recovery, with the stretches of its slowest port in order.

    Columns: `cluster`, `recovery_id`, `amount`, `growth`, `max_ratio` and `change_threshold` (as they were at the end),
    `duration`, `stretches` (array of structs: the fields of `core.score.Stretch` that matter).

    Args:
        timeline: one row per decision for the slowest port.
    """
    newest = F.struct("term", "cycle")
    logged = [F.max_by(c, newest).alias(c) for c in ("max_ratio", "change_threshold")]
    return (
        timeline.where(F.col("budget").isNotNull())
        .groupBy("cluster", "recovery_id")
        .agg(
            *(F.first(c).alias(c) for c in ("amount", "growth", "duration")),
            *logged,
            F.sort_array(F.collect_list(F.struct("term", "cycle", *_FIELDS))).alias("stretches"),
        )
    )


def on_grid(found: DataFrame, grid: Sequence[Setting] = GRID) -> DataFrame:
    """Return one row per recovery and cell, and one for the settings that were in force.

    Adds `ratio`, `threshold`, `is_logged`, and the fields of `core.counterfactual.Estimate`.

    Args:
        found: as `sequences` returns them.
        grid: the cells.
    """
    cells = F.array(
        F.struct(
            F.col("max_ratio").alias("ratio"), F.col("change_threshold").alias("threshold"), F.lit(True).alias("logged")
        ),
        *(
            F.struct(
                F.lit(cell.max_ratio).alias("ratio"),
                F.lit(cell.change_threshold).alias("threshold"),
                F.lit(False).alias("logged"),
            )
            for cell in grid
        ),
    )
    return (
        found.withColumn("cell", F.explode(cells))
        .withColumn("ratio", F.col("cell.ratio"))
        .withColumn("threshold", F.col("cell.threshold"))
        .withColumn("is_logged", F.col("cell.logged"))
        .withColumn("end", F.aggregate("stretches", _begin(), _step))
        .select(
            *("cluster", "recovery_id", "ratio", "threshold", "is_logged", "duration"),
            _seconds().alias("estimated_seconds"),
            F.col("end.harmed").alias("harmed_bytes"),
            F.col("end.clients").alias("client_bytes"),
            F.col("end.writes").alias("writes"),
        )
    )


def _begin() -> Column:
    nothing = F.lit(None).cast("double")
    return F.struct(
        nothing.alias("previous"),
        nothing.alias("reached"),
        nothing.alias("last"),
        *(F.lit(0.0).alias(name) for name in ("at", "carried", "harmed", "clients")),
        F.lit(0).alias("writes"),
    )


def _step(so_far: Column, stretch: Column) -> Column:
    rate = _decided_again(stretch, so_far["previous"])
    free = F.least(rate, stretch["capacity"]) - F.col("growth")
    carried = so_far["carried"] + free * stretch["reach"]
    here = (free > 0) & (carried >= F.col("amount"))
    reached = F.when(here, so_far["at"] + F.try_divide(F.col("amount") - so_far["carried"], free))
    excess = F.least(stretch["client"] + rate - stretch["capacity"], stretch["client"])
    return F.struct(
        rate.alias("previous"),
        F.coalesce(so_far["reached"], reached).alias("reached"),
        free.alias("last"),
        (so_far["at"] + stretch["reach"]).alias("at"),
        carried.alias("carried"),
        (so_far["harmed"] + F.greatest(excess, F.lit(0.0)) * stretch["reach"]).alias("harmed"),
        (so_far["clients"] + stretch["client"] * stretch["reach"]).alias("clients"),
        (so_far["writes"] + (~rate.eqNullSafe(so_far["previous"])).cast("int")).alias("writes"),
    )


def _decided_again(stretch: Column, previous: Column) -> Column:
    wanted = budget(stretch["capacity"], stretch["forecast"], F.col("ratio"), stretch["min_rate"])
    is_small = previous.isNotNull() & (F.abs(wanted - previous) < F.col("threshold") * previous)
    kept = F.when(stretch["reason"] == Reason.KEPT.value, previous)
    return (
        F.when(stretch["reason"].isin(*sorted(OVERRIDES)), stretch["decided"])
        .when(stretch["forecast"].isNull(), F.coalesce(kept, stretch["min_rate"]))
        .when(is_small, previous)
        .otherwise(wanted)
    )


def _seconds() -> Column:
    end, amount = F.col("end"), F.col("amount")
    after = end["at"] + F.try_divide(amount - end["carried"], end["last"])
    return (
        F.when(amount <= 0, F.lit(0.0))
        .when(end["reached"].isNotNull(), end["reached"])
        .when(end["last"] > 0, after)
        .otherwise(F.lit(float("inf")))
    )


def surface(estimates: DataFrame) -> DataFrame:
    """Return one row per cluster and cell: what it would have meant for all recoveries together.

    Columns: `cluster`, `ratio`, `threshold`, `is_logged` (the settings in force; they may differ between recoveries),
    `recoveries`, `estimated_seconds` (sum), `harmed_share` (of clients' bytes), `writes`.

    Args:
        estimates: as `on_grid` returns them.
    """
    settings = {c: F.when(~F.col("is_logged"), F.col(c)) for c in ("ratio", "threshold")}
    return (
        estimates.withColumns(settings)
        .groupBy("cluster", "is_logged", "ratio", "threshold")
        .agg(
            F.count(F.lit(1)).alias("recoveries"),
            F.sum("estimated_seconds").alias("estimated_seconds"),
            F.coalesce(F.try_divide(F.sum("harmed_bytes"), F.sum("client_bytes")), F.lit(0.0)).alias("harmed_share"),
            F.sum("writes").alias("writes"),
        )
    )


def recommended(cells: DataFrame) -> DataFrame:
    """Return one row per cluster: the fastest cell that harms clients no more than today's settings, or hardly.

    Of cells within 1 % of the fastest the one with the fewest writes is taken. Columns: `cluster`, `ratio`,
    `threshold`, `recoveries`, `estimated_seconds`, `harmed_share`, `writes`, and `today_seconds`,
    `today_harmed_share`, `today_writes`: the same estimate of the settings in force.

    Args:
        cells: as `surface` returns them.
    """
    today = cells.where("is_logged").select(
        "cluster",
        F.col("estimated_seconds").alias("today_seconds"),
        F.col("harmed_share").alias("today_harmed_share"),
        F.col("writes").alias("today_writes"),
    )
    allowed = F.greatest(F.col("today_harmed_share"), F.lit(TOLERATED_HARM))
    kind = cells.where("NOT is_logged").join(today, "cluster").where(F.col("harmed_share") <= allowed)
    fastest = kind.groupBy("cluster").agg(F.min("estimated_seconds").alias("fastest"))
    close = kind.join(fastest, "cluster").where(F.col("estimated_seconds") <= F.col("fastest") * 1.01)
    best = F.min_by(
        F.struct(
            *("ratio", "threshold", "recoveries", "estimated_seconds", "harmed_share", "writes"),
            *("today_seconds", "today_harmed_share", "today_writes"),
        ),
        F.struct("writes", "estimated_seconds", "ratio", "threshold"),
    )
    return close.groupBy("cluster").agg(best.alias("best")).select("cluster", "best.*")

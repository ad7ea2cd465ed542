"""Estimates of other settings: each link side's logged decisions, decided again under a grid of settings.

The client load is taken from the log. Replication is assumed to use its whole throttle, up to the link's capacity. So
the result compares settings, but does not predict durations to the second.

Each combination of recovery and grid cell is a row, so that the work spreads over a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from autothrottle.core.records import Reason
from autothrottle.core.scoring.score import OVERRIDES, Setting
from autothrottle.scorer.stretches import available_rate, beyond

_RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_THRESHOLDS = {1: (0.0, 0.05, 0.1, 0.2, 0.3, 0.5), 2: (0.0, 0.1, 0.3), 4: (0.0, 0.1, 0.3)}
"""Multiple of the logged interval -> change thresholds."""

GRID = tuple(
    Setting(max_ratio, change_threshold, every)
    for every, thresholds in _THRESHOLDS.items()
    for max_ratio in _RATIOS
    for change_threshold in thresholds
)

_CHUNKS = 8
"""Number of tasks per recovery over which its grid cells spread; one recovery may be as long as all others together."""

_FIELDS = ("seconds", "reach", "capacity", "client", "forecast", "decided", "min_rate", "reason")


def sequences(timeline: DataFrame) -> DataFrame:
    """Return one row per recovery, with the ordered stretches of its slowest link side.

    Columns: `cluster`, `recovery_id`, `amount`, `growth`, `max_ratio`, `change_threshold` and `interval_seconds` (last
    logged values), `duration`, `margin` (bytes/s: the root mean square error of the client load forecasts, because a
    setting that just fits the logged loads would displace clients at the next ones), `stretches` (array of structs with
    the relevant columns of `stretches.stretches`).

    Args:
        timeline: one row per decision for the slowest link side.
    """
    newest = F.struct("term", "cycle")
    logged = [F.max_by(c, newest).alias(c) for c in ("max_ratio", "change_threshold", "interval_seconds")]
    error = F.sqrt(F.avg((F.col("client") - F.col("forecast")) ** 2))
    return (
        timeline.where(F.col("budget").isNotNull())
        .groupBy("cluster", "recovery_id")
        .agg(
            *(F.first(c).alias(c) for c in ("amount", "growth", "duration")),
            *logged,
            F.coalesce(error, F.lit(0.0)).alias("margin"),
            F.sort_array(F.collect_list(F.struct("term", "cycle", *_FIELDS))).alias("stretches"),
        )
    )


def on_grid(sequences_of_recoveries: DataFrame, grid: Sequence[Setting] = GRID) -> DataFrame:
    """Return one row per recovery and grid cell, and one per recovery for the logged settings.

    Adds `ratio`, `threshold`, `every`, `is_logged`, `estimated_seconds` (inf: never), `harmed_bytes` (client bytes that
    replication would have displaced, with a client load that is higher than logged by `margin`), `client_bytes` and
    `writes` (number of throttle changes).

    Args:
        sequences_of_recoveries: result of `sequences`.
        grid: the settings to estimate.
    """
    logged = _cell(F.col("max_ratio"), F.col("change_threshold"), F.lit(1), F.lit(True))
    cells = F.array(
        logged,
        *(_cell(F.lit(cell.max_ratio), F.lit(cell.change_threshold), F.lit(cell.every), F.lit(False)) for cell in grid),
    )
    of_task = F.filter("cells", lambda _, index: index % _CHUNKS == F.col("chunk"))
    return (
        sequences_of_recoveries.withColumn("cells", cells)
        .withColumn("chunk", F.explode(F.array(*map(F.lit, range(_CHUNKS)))))
        .withColumn("cells", of_task)
        .repartition(_CHUNKS, "recovery_id", "chunk")
        .withColumn("cell", F.explode("cells"))
        .select("*", "cell.*")
        .withColumn("end", F.aggregate("stretches", _begin(), _step))
        .select(
            *("cluster", "recovery_id", "ratio", "threshold", "every", "is_logged", "duration"),
            (F.col("interval_seconds") * F.col("every")).alias("interval_seconds"),
            _seconds().alias("estimated_seconds"),
            F.col("end.harmed").alias("harmed_bytes"),
            F.col("end.clients").alias("client_bytes"),
            F.col("end.writes").alias("writes"),
        )
    )


def _cell(ratio: Column, threshold: Column, every: Column, is_logged: Column) -> Column:
    named = {"ratio": ratio, "threshold": threshold, "every": every, "is_logged": is_logged}
    return F.struct(*(value.alias(name) for name, value in named.items()))


def _begin() -> Column:
    nothing = F.lit(None).cast("double")
    return F.struct(
        *(nothing.alias(name) for name in ("previous", "reached", "last")),
        *(F.lit(0.0).alias(name) for name in ("at", "carried", "harmed", "clients")),
        *(F.lit(0).alias(name) for name in ("writes", "cycles")),
    )


def _step(so_far: Column, stretch: Column) -> Column:
    previous, client_rate = so_far["previous"], stretch["client"] + F.col("margin")
    is_due = previous.isNull() | (so_far["cycles"] % F.col("every") == 0) | _is_override(stretch)
    rate = F.when(is_due, _new_decision(stretch, previous)).otherwise(previous)
    free = F.least(rate, stretch["capacity"]) - F.col("growth")
    carried = so_far["carried"] + free * stretch["reach"]
    is_reached = (free > 0) & (carried >= F.col("amount"))
    reached = F.when(is_reached, so_far["at"] + F.try_divide(F.col("amount") - so_far["carried"], free))
    excess = F.least(client_rate + rate - stretch["capacity"], client_rate)
    return F.struct(
        rate.alias("previous"),
        F.coalesce(so_far["reached"], reached).alias("reached"),
        free.alias("last"),
        (so_far["at"] + stretch["reach"]).alias("at"),
        carried.alias("carried"),
        (so_far["harmed"] + F.greatest(excess, F.lit(0.0)) * stretch["reach"]).alias("harmed"),
        (so_far["clients"] + stretch["client"] * stretch["reach"]).alias("clients"),
        (so_far["writes"] + (~rate.eqNullSafe(previous)).cast("int")).alias("writes"),
        (so_far["cycles"] + 1).alias("cycles"),
    )


def _new_decision(stretch: Column, previous: Column) -> Column:
    headroom_rate = available_rate(stretch["capacity"], stretch["forecast"], F.col("ratio"), stretch["min_rate"])
    is_small = previous.isNotNull() & (F.abs(headroom_rate - previous) < F.col("threshold") * previous)
    unchanged_rate = F.when(stretch["reason"] == Reason.KEPT.value, previous)
    return (
        F.when(_is_override(stretch), stretch["decided"])
        .when(stretch["forecast"].isNull(), F.coalesce(unchanged_rate, stretch["min_rate"]))
        .when(is_small, previous)
        .otherwise(headroom_rate)
    )


def _is_override(stretch: Column) -> Column:
    return stretch["reason"].isin(*sorted(OVERRIDES))


def _seconds() -> Column:
    end, amount = F.col("end"), F.col("amount")
    return F.coalesce(F.when(amount > 0, end["reached"]), beyond(amount, end["carried"], end["at"], end["last"]))


def surface(estimates: DataFrame) -> DataFrame:
    """Return one row per cluster and grid cell: the estimate for all recoveries together.

    Columns: the fields of `core.scoring.score.Cell`.

    Args:
        estimates: result of `on_grid`.
    """
    settings = {c: F.when(~F.col("is_logged"), F.col(c)) for c in ("ratio", "threshold")}
    return (
        estimates.withColumns(settings)
        .groupBy("cluster", "is_logged", "ratio", "threshold", "every")
        .agg(
            F.max("interval_seconds").alias("interval_seconds"),
            F.count(F.lit(1)).alias("recoveries"),
            F.sum("estimated_seconds").alias("estimated_seconds"),
            F.coalesce(F.try_divide(F.sum("harmed_bytes"), F.sum("client_bytes")), F.lit(0.0)).alias("harmed_share"),
            F.sum("writes").alias("writes"),
        )
    )

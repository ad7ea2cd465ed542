"""Converts decisions to stretches: for each link side, its budget until the next decision and what it achieved."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from autothrottle.core.scoring.score import OVERRIDES, Cause

LINK_SIDE = ("recovery_id", "broker_id", "role")
"""One link side in one recovery. All windows are partitioned by it, so rows are sorted only once."""

_SATURATED = 0.99
"""A link is saturated from this share of its capacity."""

_NOISE = 0.01
"""Tolerance above the target utilization, as a share of the capacity."""


def _in_order() -> WindowSpec:
    return Window.partitionBy(*LINK_SIDE).orderBy("term", "cycle")


def _earlier_rows() -> WindowSpec:
    return _in_order().rowsBetween(Window.unboundedPreceding, -1)


def in_recoveries(decisions: DataFrame, recoveries: DataFrame) -> DataFrame:
    """Return one row per decision of a completed recovery. Overrides outside recoveries are left out.

    Adds `recovery_id`, `start` and `finish`.

    Args:
        decisions: usable rows of the log.
        recoveries: result of `log.recoveries`.
    """
    over = recoveries.where(F.col("finish").isNotNull() & (F.col("finish") > F.col("start")))
    columns = over.select("reassignment_id", "recovery_id", "start", "finish")
    return decisions.join(F.broadcast(columns), "reassignment_id")


def stretches(decisions: DataFrame, ratio: float) -> DataFrame:
    """Return one row per decision without duplicates: the stretch until the next decision of the same link side.

    Adds `seconds` (>= 0); in bytes/s `capacity`, `client` (actual mean client load), `forecast` (client load that the
    decision assumed; null: no metrics), `headroom` (rate from the headroom alone; null: no metrics, or under an
    override), `decided`, `applied` (throttle in force; null: none), `achieved` (mean replication), `min_rate` (the
    floor), `budget`, and `used` (total traffic of the link; null: unknown); `behind` (seconds by which the next
    decision is earlier, because the clocks of two leaders differ); `is_first` and `is_last` of the link side; `records`
    (of the link side so far, including duplicates). If log sizes are unknown, the throttle counts as achieved.

    The client load of a stretch is the next cycle's measurement. Without metrics it is the last known load, otherwise
    the first known one.

    Args:
        decisions: decisions of recoveries.
        ratio: the reference share, in (0, 1].
    """
    until = F.coalesce(F.col("next_time"), F.col("finish"))
    passed = until.cast("double") - F.col("time").cast("double")
    # After a restart, discovery counts from 0.
    carried = F.when(F.col("next_landed") >= F.col("bytes_landed"), F.col("next_landed") - F.col("bytes_landed"))
    client = ("next_forecast", "forecast", "last_forecast", "first_forecast")
    return (
        decisions.transform(_with_neighbours)
        # Duplicates are adjacent; only the last one knows the next decision.
        .where(~(F.col("next_term").eqNullSafe(F.col("term")) & F.col("next_cycle").eqNullSafe(F.col("cycle"))))
        .withColumns(
            {
                "is_last": F.col("next_cycle").isNull(),
                "seconds": F.greatest(passed, F.lit(0.0)),
                # Lower limit of the delay of the next leader's clock.
                "behind": F.greatest(-passed, F.lit(0.0)),
                "client": F.coalesce(*client),
                "capacity": F.coalesce("capacity", "last_capacity", "largest_capacity"),
                **{name: F.col(name).cast("double") for name in ("headroom", "min_rate")},
                "decided": F.col("rate_decided").cast("double"),
                "applied": F.col("rate_applied").cast("double"),
            }
        )
        .withColumn("budget", available_rate(F.col("capacity"), F.col("client"), ratio, F.col("min_rate")))
        .withColumn("measured", F.try_divide(carried.cast("double"), F.col("seconds")))
        # The last stretch ends with the last byte; nothing is counted after it.
        .withColumn("achieved", F.coalesce("measured", F.least(F.coalesce("applied", "decided"), "budget"), "decided"))
        .drop("measured", "last_capacity", "largest_capacity", "next_time", "next_term", "next_cycle", "next_landed")
        .drop("next_forecast", "last_forecast", "first_forecast")
    )


def _with_neighbours(decisions: DataFrame) -> DataFrame:
    """Add values of other decisions of the same link side, with one sort and one pass. Keeps the grain."""
    replication = F.coalesce("replication", "mean_throttle").cast("double")
    used = F.col("utilization").cast("double")
    # greatest() ignores nulls, so without the condition a missing metric would give a forecast of 0.
    forecast = F.when(used.isNotNull(), F.greatest(used - replication, F.lit(0.0)))
    whole = _in_order().rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    so_far = _in_order().rowsBetween(Window.unboundedPreceding, Window.currentRow)
    following = {
        "next_time": "time",
        "next_term": "term",
        "next_cycle": "cycle",
        "next_landed": "bytes_landed",
        "next_forecast": "forecast",
        "used": "utilization",
    }
    return decisions.withColumns(
        {"utilization": used, "forecast": forecast, "capacity": F.col("capacity").cast("double")}
    ).withColumns(
        {
            **{name: F.lead(of).over(_in_order()) for name, of in following.items()},
            **{f"last_{name}": F.last(name, True).over(so_far) for name in ("forecast", "capacity")},
            "first_forecast": F.first("forecast", True).over(whole),
            "largest_capacity": F.max("capacity").over(whole),
            "is_first": F.rank().over(_in_order()) == 1,
            "records": F.row_number().over(_in_order()),
        }
    )


def with_causes(stretches: DataFrame, ratio: float) -> DataFrame:
    """Add `lost_<cause>` per cause: bytes/s of the budget that were lost to this cause. Keeps the grain."""
    return stretches.withColumns({f"lost_{cause.value}": column for cause, column in unused(ratio).items()})


def with_bound(stretches: DataFrame, link_side_bytes: DataFrame) -> DataFrame:
    """Add the inputs of the bound of a link side. Keeps the grain.

    Adds `amount` (bytes to replicate, without produced bytes), `growth` (produce rate, bytes/s), `free` (budget minus
    produce rate), `at` (total seconds of earlier stretches; the first one reaches back to the recovery's start),
    `reach` (seconds of this stretch), `before` (bytes that earlier stretches could carry at `free`), `is_estimated`
    (log sizes are unknown: `amount` is the achieved amount).

    Args:
        stretches: stretches.
        link_side_bytes: result of `link_side_bytes`.
    """
    early = F.greatest(F.col("time").cast("double") - F.col("start").cast("double"), F.lit(0.0))
    duration = F.col("finish").cast("double") - F.col("start").cast("double")
    growth = F.coalesce(F.try_divide(F.col("grown"), F.col("duration")), F.lit(0.0))
    whole = _in_order().rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    free = F.col("free") * F.col("reach")
    return (
        stretches.join(F.broadcast(link_side_bytes), list(LINK_SIDE), "left")
        .withColumn("duration", duration)
        .withColumn("growth", growth)
        .withColumn("free", F.col("budget") - F.col("growth"))
        .withColumn("reach", F.col("seconds") + F.when(F.col("is_first"), early).otherwise(F.lit(0.0)))
        .withColumns(
            {
                "at": F.coalesce(F.sum("reach").over(_earlier_rows()), F.lit(0.0)),
                "before": F.coalesce(F.sum(free).over(_earlier_rows()), F.lit(0.0)),
                "estimate": F.sum(F.col("achieved") * F.col("seconds")).over(whole),
            }
        )
        .withColumn("amount", F.coalesce(F.col("landed") - F.col("grown"), F.col("estimate")))
        .withColumn("is_estimated", F.col("landed").isNull())
        .drop("estimate", "landed", "grown")
    )


def link_side_bytes(recoveries: DataFrame) -> DataFrame:
    """Return one row per recovery and link side with known bytes.

    Columns: those of `LINK_SIDE`, `landed` and `grown` (bytes copied and produced).

    Args:
        recoveries: result of `log.recoveries`.
    """
    paths = recoveries.dropDuplicates(["recovery_id"]).select("recovery_id", F.explode("paths").alias("path"))
    sides = F.array(
        F.struct(F.col("path.leader").alias("broker_id"), F.lit("leader").alias("role")),
        F.struct(F.col("path.follower").alias("broker_id"), F.lit("follower").alias("role")),
    )
    return (
        paths.select("recovery_id", "path", F.explode(sides).alias("side"))
        .groupBy("recovery_id", F.col("side.broker_id").alias("broker_id"), F.col("side.role").alias("role"))
        .agg(
            F.sum("path.bytes_landed").cast("double").alias("landed"),
            F.sum("path.bytes_grown").cast("double").alias("grown"),
        )
    )


def is_over_target() -> Column:
    """Whether replication exceeded its share of the capacity left by clients, beyond the tolerance."""
    return F.col("achieved") > F.col("budget") + _NOISE * F.col("capacity")


def is_saturated() -> Column:
    """Whether the link was saturated."""
    return F.coalesce(F.col("used") >= _SATURATED * F.col("capacity"), F.lit(False))


# The causes of lost time and the bound. A property test compares them with plain Python.


def available_rate(capacity: Column, client: Column, ratio: float | Column, min_rate: Column) -> Column:
    """Return `core.scoring.score.available_rate`, bytes/s; null if capacity or client load is null."""
    share = ratio if isinstance(ratio, Column) else F.lit(ratio)
    free = share * F.greatest(capacity - client, F.lit(0.0))
    return F.when(free.isNotNull(), F.greatest(free, min_rate))


def unused(ratio: float) -> Mapping[Cause, Column]:
    """Return cause -> unused part of the available rate, bytes/s; the sum is `available_rate - achieved`.

    A negative value offsets another cause, for example if the rate was above the available rate. Each row is a result
    of `stretches.stretches`; `ratio` is the reference share, in (0, 1].
    """
    capacity, client, forecast, headroom = (F.col(name) for name in ("capacity", "client", "forecast", "headroom"))
    decided, min_rate = F.col("decided"), F.col("min_rate")
    applied = F.coalesce(F.col("applied"), decided)
    whole = available_rate(capacity, client, ratio, min_rate)
    forecast_headroom = available_rate(capacity, forecast, ratio, min_rate)
    overridden = F.col("reason").isin(*sorted(OVERRIDES))
    blind = ~overridden & (forecast.isNull() | headroom.isNull())
    measured = ~overridden & ~blind

    def where(condition: Column, value: Column) -> Column:
        return F.when(condition, value).otherwise(F.lit(0.0))

    return {
        Cause.METRICS_LATE: where(measured, whole - forecast_headroom),
        Cause.HEADROOM_UNUSED: where(measured, forecast_headroom - headroom),
        Cause.CHANGE_THRESHOLD: where(measured, headroom - decided),
        Cause.FAIL_SAFE: where(blind, whole - decided),
        Cause.OVERRIDE: where(overridden, whole - decided),
        Cause.NOT_APPLIED: decided - applied,
        Cause.ELSEWHERE: applied - F.col("achieved"),
    }


def reached(amount: Column, carried: Column, at: Column, seconds: Column, rate: Column) -> Column:
    """Return the time at which a link side has carried an amount, if within this stretch; otherwise null.

    Args:
        amount: bytes.
        before: bytes carried in earlier stretches.
        at: total seconds of earlier stretches.
        seconds: duration of this stretch.
        rate: budget minus produce rate, bytes/s.
    """
    is_reached = (rate > 0) & (carried < amount) & (carried + rate * seconds >= amount)
    return F.when(amount <= 0, F.lit(0.0)).when(is_reached, at + F.try_divide(amount - carried, rate))


def beyond(amount: Column, carried: Column, at: Column, rate: Column) -> Column:
    """Return the time at which a link side has carried an amount after all stretches, at its last rate."""
    return F.when(amount <= 0, F.lit(0.0)).otherwise(
        F.when(rate > 0, at + F.try_divide(amount - carried, rate)).otherwise(F.lit(float("inf")))
    )

"""Converts stretches to scores of link sides, recoveries and decisions."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from autothrottle.core.scoring.score import Cause
from autothrottle.scorer.stretches import LINK_SIDE, beyond, is_over_target, is_saturated, reached

CAUSES = tuple(cause.value for cause in Cause)

LOST = tuple(f"lost_{cause}" for cause in CAUSES)
"""Columns of the unused budget, by cause."""

WORST = 10
"""Number of decisions that a report lists per cluster."""


def sides(stretches: DataFrame, recoveries: DataFrame) -> DataFrame:
    """Return one row per recovery and link side.

    Columns: those of `LINK_SIDE`, `cluster`, `date` (of the start), `instance_type`, `start`, `finish`, `status`,
    `seconds` (of the recovery), `bound_seconds` (of this link side alone; null: never measured), `amount` (bytes),
    `budget_bytes`, `lost_<cause>` per cause (unused bytes of the budget), `over_seconds` (over the target
    utilization), `saturated_seconds`, `port_seconds` (measured seconds), `decisions`, `copies` (duplicate records),
    `writes`, `churn` (sum of all throttle changes, each as a share of the current throttle), `eta_error` (mean of
    |ETA - end| / remaining time; null: no ETA), `skew_seconds` (lower limit of the delay of a later term's clock),
    `is_estimated`.

    Args:
        stretches: stretches with causes and bound.
        recoveries: result of `log.recoveries`.
    """
    columns = recoveries.select("recovery_id", "cluster", "start", "finish", "status").dropDuplicates(["recovery_id"])
    return (
        stretches.transform(_by_link_side)
        .join(F.broadcast(columns), "recovery_id")
        .withColumn("after", beyond(F.col("amount"), F.col("carried"), F.col("whole"), F.col("last_free")))
        .withColumn("bound_seconds", F.when(F.col("budget_bytes").isNotNull(), F.coalesce("reached", "after")))
        .withColumn("eta_error", F.try_divide(F.col("eta_errors"), F.col("etas")))
        .withColumn("copies", F.col("records") - F.col("decisions"))
        .withColumn("date", F.date_format("start", "yyyy-MM-dd"))
        .drop("reached", "carried", "last_free", "whole", "after", "eta_errors", "etas", "records")
    )


def _by_link_side(stretches: DataFrame) -> DataFrame:
    """Return one row per recovery and link side, with plain sums.

    All columns except the instance type are numbers, which Spark aggregates in place. Therefore the first grouping
    includes the instance type, and the second merges the few groups.
    """
    seconds = F.col("seconds")
    reached_at = reached(F.col("amount"), F.col("before"), F.col("at"), F.col("reach"), F.col("free"))
    end, seconds_left = F.col("finish").cast("double"), F.col("finish").cast("double") - F.col("time").cast("double")
    eta_error = F.when(seconds_left > 0, F.try_divide(F.abs(F.col("eta").cast("double") - end), seconds_left))
    change = F.try_divide(F.abs(F.col("applied") - F.col("standing")), F.col("standing").cast("double"))
    written = ~F.col("applied").eqNullSafe(F.col("standing").cast("double"))
    largest = {
        "amount": F.col("amount"),
        "seconds": F.col("duration"),
        "last_free": F.when(F.col("is_last"), F.col("free")),
        "skew_seconds": F.col("behind"),
        "records": F.col("records"),
        "is_estimated": F.col("is_estimated"),
    }
    total = {
        "carried": F.col("free") * F.col("reach"),
        "whole": F.col("reach"),
        "budget_bytes": F.col("budget") * seconds,
        **{lost: F.col(lost) * seconds for lost in LOST},
        "over_seconds": F.when(is_over_target(), seconds).otherwise(F.lit(0.0)),
        "saturated_seconds": F.when(is_saturated(), seconds).otherwise(F.lit(0.0)),
        "port_seconds": seconds,
        "decisions": F.lit(1),
        "writes": written.cast("int"),
        "churn": F.coalesce(change, F.lit(0.0)),
        "eta_errors": eta_error,
        "etas": eta_error.isNotNull().cast("int"),
    }
    return (
        stretches.groupBy(*LINK_SIDE, "instance_type")
        .agg(
            F.min(reached_at).alias("reached"),
            *(F.max(value).alias(name) for name, value in largest.items()),
            *(F.sum(value).alias(name) for name, value in total.items()),
        )
        .groupBy(*LINK_SIDE)
        .agg(
            F.min("reached").alias("reached"),
            *(F.max(name).alias(name) for name in (*largest, "instance_type")),
            *(F.sum(name).alias(name) for name in total),
        )
    )


def recovery_scores(link_sides: DataFrame, recoveries: DataFrame) -> DataFrame:
    """Return one row per completed recovery.

    Columns: `cluster`, `date`, `recovery_id`, `start`, `finish`, `status`, `topics`, `partitions`, `bytes`, `terms`,
    `skew_seconds`, `seconds`, `bound_seconds` (of the slowest link side; null: nothing was measured), `efficiency`
    (`bound_seconds / seconds`: 1 is the best within the share, above 1 replication exceeded it), `regret_seconds`
    (`seconds - bound_seconds`), `bottleneck_broker`, `bottleneck_role`, `regret_<cause>` per cause (seconds; together
    with `regret_other` they sum up to the regret), `over_seconds`, `saturated_seconds` and `port_seconds` (of all link
    sides), `decisions`, `copies`, `writes`, `writes_per_gb`, `churn`, `eta_error`, `is_estimated`.

    Args:
        link_sides: result of `sides`.
        recoveries: result of `log.recoveries`.
    """
    slowest = F.struct("bound_seconds", "budget_bytes", "broker_id", "role", *LOST)
    sums = ("over_seconds", "saturated_seconds", "port_seconds", "decisions", "copies", "writes", "churn")
    mean_available_rate = F.try_divide(F.col("slowest.budget_bytes"), F.col("seconds"))
    regrets = {
        f"regret_{cause}": F.coalesce(F.try_divide(F.col(f"slowest.lost_{cause}"), mean_available_rate), F.lit(0.0))
        for cause in CAUSES
    }
    distinct = recoveries.dropDuplicates(["recovery_id"])
    described = distinct.select("recovery_id", "topics", "partitions", "bytes", "terms")
    by_recovery = link_sides.groupBy("recovery_id").agg(
        *(F.first(c).alias(c) for c in ("cluster", "date", "start", "finish", "status", "seconds")),
        F.max_by(slowest, F.col("bound_seconds")).alias("slowest"),
        *(F.sum(c).alias(c) for c in sums),
        F.avg("eta_error").alias("eta_error"),
        F.max("skew_seconds").alias("skew_seconds"),
        F.bool_or("is_estimated").alias("is_estimated"),
    )
    regret = F.col("regret_seconds") - sum((F.col(name) for name in regrets), F.lit(0.0))
    return (
        by_recovery.join(described, "recovery_id")
        .withColumn("bound_seconds", F.col("slowest.bound_seconds"))
        .withColumn("bottleneck_broker", F.col("slowest.broker_id"))
        .withColumn("bottleneck_role", F.col("slowest.role"))
        .withColumn("efficiency", F.try_divide(F.col("bound_seconds"), F.col("seconds")))
        .withColumn("regret_seconds", F.col("seconds") - F.col("bound_seconds"))
        .withColumns(regrets)
        .withColumn("regret_other", regret)
        .withColumn("writes_per_gb", F.try_divide(F.col("writes").cast("double"), F.col("bytes") / F.lit(1e9)))
        .drop("slowest")
    )


def of_bottlenecks(decisions: DataFrame, scores: DataFrame) -> DataFrame:
    """Return the decisions for the slowest link side of each recovery. Keeps grain and columns."""
    slowest = scores.select(
        "recovery_id", F.col("bottleneck_broker").alias("broker_id"), F.col("bottleneck_role").alias("role")
    )
    return decisions.join(F.broadcast(slowest), list(LINK_SIDE), "left_semi")


def worst_decisions(timeline: DataFrame) -> DataFrame:
    """Return one row per decision: the ten per cluster that cost the most seconds.

    Columns: `cluster`, `rank` (1 is the worst), `cycle_id`, `trace_id`, `time`, `broker_id`, `role`, `instance_type`,
    `reason`, `decided`, `budget` and `achieved` (bytes/s), `seconds`, `lost_seconds`, `cause` (the largest), `forecast`
    and `capacity` (bytes/s; null: unknown), `recovery_id`.

    Args:
        timeline: stretches of slowest link sides, with causes and bound.
    """
    lost = (F.col("budget") - F.col("achieved")) * F.col("seconds")
    largest = F.greatest(*(F.col(name) for name in LOST))
    cause = F.coalesce(*(F.when(F.col(f"lost_{cause}") == largest, F.lit(cause)) for cause in CAUSES))
    rank = F.row_number().over(Window.partitionBy("cluster").orderBy(F.desc("lost_seconds"), "cycle_id", "broker_id"))
    return (
        timeline.withColumn("lost_seconds", F.try_divide(lost, F.col("budget")))
        .where(F.col("lost_seconds") > 0)
        .withColumn("cause", cause)
        .withColumn("rank", rank)
        .where(F.col("rank") <= WORST)
        .select(
            "cluster",
            "rank",
            *("cycle_id", "trace_id", "time", "broker_id", "role", "instance_type", "reason", "decided", "budget"),
            *("achieved", "seconds", "lost_seconds", "cause", "forecast", "capacity", "recovery_id"),
        )
    )


def by_group(scores: DataFrame, *keys: str) -> DataFrame:
    """Return one row per cluster and value of each key, with the distribution of the efficiency. One pass.

    Columns: `cluster`, the keys (all but one are null; `cluster` as a key means the whole cluster), `count`,
    `efficiency_p10`, `efficiency_p50`, `efficiency_p90`, `efficiency_worst`, `over_share` and `saturated_share` (of all
    measured seconds), `writes`, `churn`.

    Args:
        scores: scores of recoveries or link sides, with `bound_seconds` and `seconds`.
        keys: columns; `date` gives the trend.
    """
    efficiency = F.try_divide(F.col("bound_seconds"), F.col("seconds"))
    percentiles = F.percentile("efficiency", F.array(F.lit(0.1), F.lit(0.5), F.lit(0.9)))
    sets = [[F.col(name) for name in dict.fromkeys(["cluster", key])] for key in keys]
    names = [F.col(name) for name in dict.fromkeys(["cluster", *keys])]
    return (
        scores.withColumn("efficiency", efficiency)
        .groupingSets(sets, *names)
        .agg(
            F.count(F.lit(1)).alias("count"),
            percentiles.alias("p"),
            F.min("efficiency").alias("efficiency_worst"),
            F.try_divide(F.sum("over_seconds"), F.sum("port_seconds")).alias("over_share"),
            F.try_divide(F.sum("saturated_seconds"), F.sum("port_seconds")).alias("saturated_share"),
            F.sum("writes").alias("writes"),
            F.sum("churn").alias("churn"),
        )
        .withColumns({f"efficiency_p{name}": F.col("p")[i] for i, name in enumerate(("10", "50", "90"))})
        .drop("p")
    )

"""From decisions to stretches: what each port could have carried until its next decision, and what it did."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from autothrottle.scorer.expressions import budget, unused

PORT = ("recovery_id", "broker_id", "role")
"""One port in one recovery: what all windows are partitioned by, so that rows are sorted once."""

_SATURATED = 0.99
"""Share of the capacity from which on a link is full."""

_NOISE = 0.01
"""Share of the capacity by which replication may exceed the target before it is over it."""


def _in_order() -> WindowSpec:
    return Window.partitionBy(*PORT).orderBy("term", "cycle")


def _so_far() -> WindowSpec:
    return _in_order().rowsBetween(Window.unboundedPreceding, Window.currentRow)


def _before() -> WindowSpec:
    return _in_order().rowsBetween(Window.unboundedPreceding, -1)


def in_recoveries(decisions: DataFrame, recoveries: DataFrame) -> DataFrame:
    """Return one row per decision of a recovery that is over; overrides while nothing moves are not there.

    Adds `recovery_id`, `start` and `finish`.

    Args:
        decisions: usable rows of the log.
        recoveries: as `log.recoveries` returns them.
    """
    over = recoveries.where(F.col("finish").isNotNull() & (F.col("finish") > F.col("start")))
    known = over.select("reassignment_id", "recovery_id", "start", "finish")
    return decisions.join(F.broadcast(known), "reassignment_id")


def stretches(decisions: DataFrame, ratio: float) -> DataFrame:
    """Return one row per decision, copies left out, as a stretch to the next one of the same port.

    Adds the fields of `core.score.Stretch`: `seconds`, `capacity`, `client`, `forecast`, `headroom`, `decided`,
    `applied`, `achieved`, `min_rate` (bytes/s but for the first); `behind` (seconds by which the next decision is
    earlier: the clocks of two leaders differ); `budget` (bytes/s); `used` (bytes/s that the link
    carried in all; null: unknown); `is_first` and `is_last` of the port; `records` (of the port so far, copies
    included). Where no sizes of logs are known, the throttle counts as achieved.

    What clients used in a stretch is what the next cycle measured; where there were no metrics, what was last known, or
    what was known first.

    Args:
        decisions: of recoveries.
        ratio: the reference share, in (0, 1].
    """
    until = F.coalesce(F.col("next_time"), F.col("finish"))
    passed = until.cast("double") - F.col("time").cast("double")
    # Discovery that was restarted counts anew.
    carried = F.when(F.col("next_landed") >= F.col("bytes_landed"), F.col("next_landed") - F.col("bytes_landed"))
    client = ("next_forecast", "forecast", "last_forecast", "first_forecast")
    return (
        decisions.transform(_in_sight)
        # Copies follow one another; the last of them knows what comes next.
        .where(~(F.col("next_term").eqNullSafe(F.col("term")) & F.col("next_cycle").eqNullSafe(F.col("cycle"))))
        .withColumns(
            {
                "is_last": F.col("next_cycle").isNull(),
                "seconds": F.greatest(passed, F.lit(0.0)),
                # The next leader's clock is behind by so much at least.
                "behind": F.greatest(-passed, F.lit(0.0)),
                "client": F.coalesce(*client),
                "capacity": F.coalesce("capacity", "last_capacity", "largest_capacity"),
                **{name: F.col(name).cast("double") for name in ("headroom", "min_rate")},
                "decided": F.col("rate_decided").cast("double"),
                "applied": F.col("rate_applied").cast("double"),
            }
        )
        .withColumn("budget", budget(F.col("capacity"), F.col("client"), ratio, F.col("min_rate")))
        .withColumn("measured", F.try_divide(carried.cast("double"), F.col("seconds")))
        # The last stretch ends with the last byte: what came is not counted any more.
        .withColumn("achieved", F.coalesce("measured", F.least(F.coalesce("applied", "decided"), "budget"), "decided"))
        .drop("measured", "last_capacity", "largest_capacity", "next_time", "next_term", "next_cycle", "next_landed")
        .drop("next_forecast", "last_forecast", "first_forecast")
    )


def _in_sight(decisions: DataFrame) -> DataFrame:
    """Add what a decision needs of others of its port, all with one sorting and one pass; grain stays."""
    replication = F.coalesce("replication", "mean_throttle").cast("double")
    used = F.col("utilization").cast("double")
    # Greatest leaves nulls out: without metrics nothing is forecast.
    forecast = F.when(used.isNotNull(), F.greatest(used - replication, F.lit(0.0)))
    whole = _in_order().rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
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
            **{f"last_{name}": F.last(name, True).over(_so_far()) for name in ("forecast", "capacity")},
            "first_forecast": F.first("forecast", True).over(whole),
            "largest_capacity": F.max("capacity").over(whole),
            "is_first": F.rank().over(_in_order()) == 1,
            "records": F.row_number().over(_in_order()),
        }
    )


def with_causes(found: DataFrame, ratio: float) -> DataFrame:
    """Add a column `lost_<cause>` per cause: bytes/s of the budget that were not carried because of it; grain stays."""
    return found.withColumns({f"lost_{cause.value}": column for cause, column in unused(ratio).items()})


def with_bound(found: DataFrame, port_bytes: DataFrame) -> DataFrame:
    """Add what the bound of a port is worked out from; grain stays.

    Adds `amount` (bytes that were to pass the port, growth left out), `growth` (bytes/s), `free` (budget less growth),
    `at` (seconds of all stretches before; the first one reaches back to the recovery's start), `reach` (seconds of this
    stretch), `before` (bytes that `free` makes of these), `is_estimated` (no sizes of logs are known: `amount` is what
    was achieved).

    Args:
        found: stretches.
        port_bytes: as `port_bytes` returns them.
    """
    early = F.greatest(F.col("time").cast("double") - F.col("start").cast("double"), F.lit(0.0))
    duration = F.col("finish").cast("double") - F.col("start").cast("double")
    growth = F.coalesce(F.try_divide(F.col("grown"), F.col("duration")), F.lit(0.0))
    whole = _in_order().rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    free = F.col("free") * F.col("reach")
    return (
        found.join(F.broadcast(port_bytes), list(PORT), "left")
        .withColumn("duration", duration)
        .withColumn("growth", growth)
        .withColumn("free", F.col("budget") - F.col("growth"))
        .withColumn("reach", F.col("seconds") + F.when(F.col("is_first"), early).otherwise(F.lit(0.0)))
        .withColumns(
            {
                "at": F.coalesce(F.sum("reach").over(_before()), F.lit(0.0)),
                "before": F.coalesce(F.sum(free).over(_before()), F.lit(0.0)),
                "estimate": F.sum(F.col("achieved") * F.col("seconds")).over(whole),
            }
        )
        .withColumn("amount", F.coalesce(F.col("landed") - F.col("grown"), F.col("estimate")))
        .withColumn("is_estimated", F.col("landed").isNull())
        .drop("estimate", "landed", "grown")
    )


def port_bytes(recoveries: DataFrame) -> DataFrame:
    """Return one row per port of a recovery whose bytes are known.

    Columns: those of `PORT`, `landed` and `grown` (bytes).

    Args:
        recoveries: as `log.recoveries` returns them.
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
    """Whether replication took more than its share of what clients left, noise aside."""
    return F.col("achieved") > F.col("budget") + _NOISE * F.col("capacity")


def is_saturated() -> Column:
    """Whether the link was full."""
    return F.coalesce(F.col("used") >= _SATURATED * F.col("capacity"), F.lit(False))

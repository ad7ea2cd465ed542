"""From decisions to stretches: what each port could have carried until its next decision, and what it did."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Observation, Window, WindowSpec
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


def _whole() -> WindowSpec:
    return Window.partitionBy(*PORT)


def in_recoveries(decisions: DataFrame, recoveries: DataFrame) -> DataFrame:
    """Return one row per decision of a recovery that is over; overrides while nothing moves are not there.

    Adds `recovery_id`, `start`, `finish` and `status`.

    Args:
        decisions: usable rows of the log.
        recoveries: as `log.recoveries` returns them.
    """
    over = recoveries.where(F.col("finish").isNotNull() & (F.col("finish") > F.col("start")))
    known = over.select("reassignment_id", "recovery_id", "start", "finish", "status")
    return decisions.join(F.broadcast(known), "reassignment_id")


def once(decisions: DataFrame, copies: Observation) -> DataFrame:
    """Return the rows without copies: one per cycle, broker and role; grain else and columns stay.

    Args:
        decisions: of recoveries.
        copies: is told, as `copies`, how many were left out.
    """
    same = [F.lag(c).over(_in_order()).eqNullSafe(F.col(c)) for c in ("term", "cycle")]
    marked = decisions.withColumn("is_copy", same[0] & same[1])
    counted = marked.observe(copies, F.count_if("is_copy").alias("copies"))
    return counted.where(~F.col("is_copy")).drop("is_copy")


def stretches(decisions: DataFrame, ratio: float) -> DataFrame:
    """Return one row per decision, as a stretch to the next one of the same port.

    Adds the fields of `core.score.Stretch`: `seconds`, `capacity`, `client`, `forecast`, `headroom`, `decided`,
    `applied`, `achieved`, `min_rate` (bytes/s but for the first); `behind` (seconds by which the next decision is
    earlier: the clocks of two leaders differ); `budget` (bytes/s); `used` (bytes/s that the link
    carried in all; null: unknown). Where no sizes of logs are known, the throttle counts as achieved.

    What clients used in a stretch is what the next cycle measured; where there were no metrics, what was last known.

    Args:
        decisions: of recoveries, without copies.
        ratio: the reference share, in (0, 1].
    """
    replication = F.coalesce("replication", "mean_throttle").cast("double")
    until = F.coalesce(F.lead("time").over(_in_order()), F.col("finish"))
    passed = until.cast("double") - F.col("time").cast("double")
    return (
        decisions.withColumn("seconds", F.greatest(passed, F.lit(0.0)))
        # The next leader's clock is behind by so much at least.
        .withColumn("behind", F.greatest(-passed, F.lit(0.0)))
        .withColumn("forecast", F.greatest(F.col("utilization").cast("double") - replication, F.lit(0.0)))
        # Greatest leaves nulls out: without metrics nothing is forecast.
        .withColumn("forecast", F.when(F.col("utilization").isNotNull(), F.col("forecast")))
        .withColumn("client", F.coalesce(F.lead("forecast").over(_in_order()), "forecast"))
        .withColumn("client", F.coalesce("client", F.last("forecast", True).over(_so_far())))
        .withColumn("client", F.coalesce("client", F.avg("forecast").over(_whole())))
        .withColumn("capacity", F.coalesce("capacity", F.last("capacity", True).over(_so_far())))
        .withColumn("capacity", F.coalesce("capacity", F.max("capacity").over(_whole())).cast("double"))
        .withColumn("used", F.lead("utilization").over(_in_order()).cast("double"))
        .withColumn("headroom", F.col("headroom").cast("double"))
        .withColumn("decided", F.col("rate_decided").cast("double"))
        .withColumn("applied", F.col("rate_applied").cast("double"))
        .withColumn("min_rate", F.col("min_rate").cast("double"))
        .withColumn("budget", budget(F.col("capacity"), F.col("client"), ratio, F.col("min_rate")))
        .withColumn("carried", F.lead("bytes_landed").over(_in_order()) - F.col("bytes_landed"))
        .withColumn("measured", F.try_divide(F.col("carried").cast("double"), F.col("seconds")))
        # Discovery that was restarted counts anew.
        .withColumn("measured", F.when(F.col("carried") >= 0, F.col("measured")))
        # The last stretch ends with the last byte: what came is not counted any more.
        .withColumn("achieved", F.coalesce("measured", F.least(F.coalesce("applied", "decided"), "budget"), "decided"))
        .drop("carried", "measured")
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
    first = F.col("time").cast("double") - F.col("start").cast("double")
    is_first = F.row_number().over(_in_order()) == 1
    free = F.col("free") * F.col("reach")
    return (
        found.join(F.broadcast(port_bytes), list(PORT), "left")
        .withColumn("estimate", F.sum(F.col("achieved") * F.col("seconds")).over(_whole()))
        .withColumn("amount", F.coalesce(F.col("landed") - F.col("grown"), F.col("estimate")))
        .withColumn("is_estimated", F.col("landed").isNull())
        .withColumn("duration", F.col("finish").cast("double") - F.col("start").cast("double"))
        .withColumn("growth", F.coalesce(F.try_divide(F.col("grown"), F.col("duration")), F.lit(0.0)))
        .withColumn("free", F.col("budget") - F.col("growth"))
        .withColumn("reach", F.col("seconds") + F.when(is_first, F.greatest(first, F.lit(0.0))).otherwise(F.lit(0.0)))
        .withColumn("at", F.coalesce(F.sum("reach").over(_before()), F.lit(0.0)))
        .withColumn("before", F.coalesce(F.sum(free).over(_before()), F.lit(0.0)))
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

"""The rules of `core.score` as Spark columns; a property test holds the two together."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from autothrottle.core.score import OVERRIDES, Cause


def budget(capacity: Column, client: Column, ratio: float | Column, min_rate: Column) -> Column:
    """Return `core.score.budget`, bytes/s; null where the capacity or the clients' load is."""
    share = ratio if isinstance(ratio, Column) else F.lit(ratio)
    free = share * F.greatest(capacity - client, F.lit(0.0))
    return F.when(free.isNotNull(), F.greatest(free, min_rate))


def unused(ratio: float) -> Mapping[Cause, Column]:
    """Return `core.score.unused` of a row that has the fields of a `Stretch` as its columns: cause -> bytes/s."""
    capacity, client, forecast, headroom = (F.col(name) for name in ("capacity", "client", "forecast", "headroom"))
    decided, min_rate = F.col("decided"), F.col("min_rate")
    applied = F.coalesce(F.col("applied"), decided)
    whole, seen = budget(capacity, client, ratio, min_rate), budget(capacity, forecast, ratio, min_rate)
    overridden = F.col("reason").isin(*sorted(OVERRIDES))
    blind = ~overridden & (forecast.isNull() | headroom.isNull())
    measured = ~overridden & ~blind

    def where(condition: Column, value: Column) -> Column:
        return F.when(condition, value).otherwise(F.lit(0.0))

    return {
        Cause.METRICS_LATE: where(measured, whole - seen),
        Cause.HEADROOM_UNUSED: where(measured, seen - headroom),
        Cause.CHANGE_THRESHOLD: where(measured, headroom - decided),
        Cause.FAIL_SAFE: where(blind, whole - decided),
        Cause.OVERRIDE: where(overridden, whole - decided),
        Cause.NOT_APPLIED: decided - applied,
        Cause.ELSEWHERE: applied - F.col("achieved"),
    }


def reached(amount: Column, before: Column, at: Column, seconds: Column, rate: Column) -> Column:
    """Return when a port has carried an amount, if it does in this stretch; else null.

    Args:
        amount: bytes.
        before: bytes carried in all stretches before.
        at: seconds of all stretches before.
        seconds: of this stretch.
        rate: budget less growth, bytes/s.
    """
    here = (rate > 0) & (before < amount) & (before + rate * seconds >= amount)
    return F.when(amount <= 0, F.lit(0.0)).when(here, at + F.try_divide(amount - before, rate))


def beyond(amount: Column, carried: Column, at: Column, rate: Column) -> Column:
    """Return when a port has carried an amount that it did not carry in any stretch, its last rate going on."""
    return F.when(amount <= 0, F.lit(0.0)).otherwise(
        F.when(rate > 0, at + F.try_divide(amount - carried, rate)).otherwise(F.lit(float("inf")))
    )

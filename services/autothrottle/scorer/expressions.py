"""The causes of lost time and the bound as Spark columns. A property test compares them with plain Python."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from autothrottle.core.scoring.score import OVERRIDES, Cause


def available_rate(capacity: Column, client: Column, ratio: float | Column, min_rate: Column) -> Column:
    """Return `core.scoring.bound.available_rate`, bytes/s; null if capacity or client load is null."""
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
    whole, forecast_headroom = (
        available_rate(capacity, client, ratio, min_rate),
        available_rate(capacity, forecast, ratio, min_rate),
    )
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

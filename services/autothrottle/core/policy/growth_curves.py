"""The growth rate of a broker's logs now and during a metric's interval.

Both together project the client load of a metric, which is minutes old, to the present. The type to know is
`GrowthCurves`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.log_growth import (
    BEFORE_RISE,
    LEAST_RISE,
    RISE,
    RISE_SAMPLES,
    GrowthMark,
    LogGrowth,
    shows_rise,
)
from autothrottle.core.policy.series import LATE_SECONDS, CumulativeSeries

_LATEST_SECONDS = 30.0
"""The interval that counts as now; the growth of a few seconds is noise."""

_STEP = 0.15
"""Smallest relative deviation of the last sample from the mean of that interval that is not noise."""

_RARELY_SECONDS = 8.0
"""Smallest interval between two samples in which one sample alone is not noise."""

_RISING_SECONDS = (4.0, 8.0, 15.0)
"""Intervals in which a rise of the client load is searched for, if logs are sampled often enough."""

_HELD_UP_SECONDS = 10.0
"""Interval before a rise in which a stall may have held clients up; they then send the delayed data in the rise."""

_NOT_MADE_UP = 0.1
"""Smallest share of a rise by which the mean of both intervals exceeds the usual rate. After a stall it does not."""


@dataclass(frozen=True, slots=True)
class GrowthCurves:
    """The growth of one broker's logs over time."""

    newest: LogGrowth
    led: CumulativeSeries
    received: CumulativeSeries

    @staticmethod
    def extended(old: GrowthCurves | None, new: LogGrowth) -> GrowthCurves:
        """Return the growth with one more sample.

        If counting restarted (another `since`), new curves begin, with the marks that the sample contains.
        """
        led = received = CumulativeSeries()
        known = new.curve[0]
        if old is not None and old.newest.since == new.since:
            led, received = old.led, old.received
            known = GrowthMark(old.newest.at, old.newest.led, old.newest.received)
        for mark in new.curve:
            if not led.times or mark.at > known.at:
                led = led.plus(mark.at.timestamp(), mark.led - known.led)
                received = received.plus(mark.at.timestamp(), mark.received - known.received)
                known = mark
        return GrowthCurves(new, led, received)

    def of(self, role: ReplicaRole) -> CumulativeSeries:
        """Return the series for one role: all inbound client traffic (follower), or the produce traffic (leader)."""
        return self.received if role is ReplicaRole.FOLLOWER else self.led


def now_and_then(series: CumulativeSeries, start: float, end: float, now: float) -> tuple[float, float] | None:
    """Return (current growth per second, growth per second in a metric's interval); None: unknown.

    After a step, the current interval does not overlap the metric's interval. The metric already contains that part, so
    the projected step would be too small.
    """
    if len(series.times) < 2 or not series.covers(start, end, LATE_SECONDS):
        return None
    last = series.times[-1]
    begin = max(min(series.times[-2], last - _LATEST_SECONDS), series.times[0])
    if now - last > max(2 * (last - begin), 60.0):
        return None
    return _latest(series, begin, start, end), series.mean(start, end)


def _latest(series: CumulativeSeries, begin: float, start: float, end: float) -> float:
    """Return the current growth per second: the mean since `begin`, or the rate after a step.

    If logs are sampled rarely, the newest sample reveals a step up or down since the metric's `end`. If they are
    sampled often, a rise counts once it lasts for some samples, unless it only makes up for a stall just before. A
    fall counts only through the mean. The mean does not include time before the metric's `start`.
    """
    last = series.times[-1]
    usual = series.rate(begin, last)
    if last - series.times[-2] >= _RARELY_SECONDS:
        newest = series.rate(max(begin, min(series.times[-2], end)), last)
        return newest if abs(newest - usual) > _STEP * usual else usual
    lately = series.rate(max(begin, min(start, series.times[-2])), last)
    found = _risen(series, max(begin, last - BEFORE_RISE.total_seconds())) or lately
    for seconds in _RISING_SECONDS:
        if last - seconds - _HELD_UP_SECONDS < begin or series.samples(last - seconds) < RISE_SAMPLES:
            continue
        risen, whole = series.rate(last - seconds, last), series.rate(last - seconds - _HELD_UP_SECONDS, last)
        if risen > usual + max(RISE * usual, LEAST_RISE) and whole - usual > _NOT_MADE_UP * (risen - usual):
            found = max(found, risen)
    return found


def _risen(series: CumulativeSeries, begin: float) -> float | None:
    """Return the growth per second after a rise in the last samples since `begin`; None: no rise."""
    first = bisect_left(series.times, begin)
    if not shows_rise(series.times[first:], series.counts[first:]):
        return None
    return series.rate(series.times[-1 - RISE_SAMPLES], series.times[-1])

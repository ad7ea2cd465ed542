"""How fast the logs of a broker grow now, and how fast they did while a metric was measured.

Where that is known the clients' load of a metric, minutes old, is brought to now. The type to know is `GrowthCurves`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.growth import BEFORE_RISE, LEAST_RISE, RISE, RISE_READINGS, GrowthMark, LogGrowth, rises
from autothrottle.core.policy.series import LATE_SECONDS, Series

_LATEST_SECONDS = 30.0
"""What counts as now: a few seconds of growth are noise."""

_STEP = 0.15
"""What the last reading differs by from the mean of that time, relative, when it is no noise."""

_RARELY_SECONDS = 8.0
"""Between two readings of logs, when one of them is long enough to be no noise."""

_RISING_SECONDS = (4.0, 8.0, 15.0)
"""Over which a rise of the clients' load is looked for, where logs are read often enough: clients do not wait."""

_HELD_UP_SECONDS = 10.0
"""Before a rise: what clients could not bring then they bring now."""

_NOT_MADE_UP = 0.1
"""The share of a rise by which the mean of both together is above the usual, at least: after a stall it is not."""


@dataclass(frozen=True, slots=True)
class GrowthCurves:
    """The growth of one broker's logs over time."""

    newest: LogGrowth
    led: Series
    received: Series

    @staticmethod
    def extended(old: GrowthCurves | None, new: LogGrowth) -> GrowthCurves:
        """Return the growth with one more reading.

        Whoever counts anew begins new curves, with what was counted before.
        """
        led = received = Series()
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

    def of(self, role: ReplicaRole) -> Series:
        """Return what tells of one side of the link: all that came in for clients, or what was produced to it."""
        return self.received if role is ReplicaRole.FOLLOWER else self.led


def now_and_then(series: Series, start: float, end: float, now: float) -> tuple[float, float] | None:
    """Return the growth per second up to now, and that of a metric's interval; None: not known.

    After a step the last interval does not reach back into the metric's: what that has seen would be halved again.
    """
    if len(series.times) < 2 or not series.covers(start, end, LATE_SECONDS):
        return None
    last = series.times[-1]
    begin = max(min(series.times[-2], last - _LATEST_SECONDS), series.times[0])
    if now - last > max(2 * (last - begin), 60.0):
        return None
    return _latest(series, begin, start, end), series.mean(start, end)


def _latest(series: Series, begin: float, start: float, end: float) -> float:
    """The growth per second up to now: the mean since `begin`, or what it is after a step.

    Where logs are read rarely, the newest reading tells a step since the metric's `end`, up or down. Where they are
    read often a rise counts as soon as it lasts for some readings, and only if it does not make up for what was held
    up just before; what falls waits until it is the mean. What was before the metric's `start` is no part of the mean.
    """
    last = series.times[-1]
    usual = series.rate(begin, last)
    if last - series.times[-2] >= _RARELY_SECONDS:
        newest = series.rate(max(begin, min(series.times[-2], end)), last)
        return newest if abs(newest - usual) > _STEP * usual else usual
    lately = series.rate(max(begin, min(start, series.times[-2])), last)
    found = _risen(series, max(begin, last - BEFORE_RISE.total_seconds())) or lately
    for seconds in _RISING_SECONDS:
        if last - seconds - _HELD_UP_SECONDS < begin or series.readings(last - seconds) < RISE_READINGS:
            continue
        risen, whole = series.rate(last - seconds, last), series.rate(last - seconds - _HELD_UP_SECONDS, last)
        if risen > usual + max(RISE * usual, LEAST_RISE) and whole - usual > _NOT_MADE_UP * (risen - usual):
            found = max(found, risen)
    return found


def _risen(series: Series, begin: float) -> float | None:
    """What the last readings since `begin` rose to, per second; None: they did not."""
    first = bisect_left(series.times, begin)
    if not rises(series.times[first:], series.counts[first:]):
        return None
    return series.rate(series.times[-1 - RISE_READINGS], series.times[-1])

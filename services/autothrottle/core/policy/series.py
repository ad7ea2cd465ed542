"""Cumulative counts with their sample times, from which the rate over any interval can be computed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

KEPT_SECONDS = 900.0
"""How long points are kept: longer than the window and delay of any metric together."""

LATE_SECONDS = 15.0
"""Longest time between the last sample of log sizes and the end of a metric's interval that still counts as covered."""


@dataclass(frozen=True, slots=True)
class CumulativeSeries:
    """A cumulative count over time; immutable, `plus` returns a new series."""

    times: tuple[float, ...] = ()
    """Seconds, ascending."""
    counts: tuple[float, ...] = ()
    """One for each time; never decreasing."""

    def plus(self, time: float, gained: float) -> CumulativeSeries:
        """Return the series with one more point, `gained` above the last; a time that is not newer changes nothing."""
        if self.times and time <= self.times[-1]:
            return self
        old = bisect_left(self.times, time - KEPT_SECONDS)
        start = max(min(old, len(self.times) - 1), 0)
        count = (self.counts[-1] if self.counts else 0.0) + max(gained, 0.0)
        return CumulativeSeries((*self.times[start:], time), (*self.counts[start:], count))

    def at(self, time: float) -> float:
        """Return the count at a time, linearly interpolated; flat before the first point and after the last one."""
        index = bisect_left(self.times, time)
        if index == 0:
            return self.counts[0]
        if index == len(self.times):
            return self.counts[-1]
        before, after = self.times[index - 1], self.times[index]
        share = (time - before) / (after - before)
        return self.counts[index - 1] + share * (self.counts[index] - self.counts[index - 1])

    def rate(self, start: float, end: float) -> float:
        """Return the mean growth per second from `start` to `end` > `start`.

        >>> CumulativeSeries((0.0, 10.0, 20.0), (0.0, 100.0, 400.0)).rate(5.0, 15.0)
        20.0
        """
        return (self.at(end) - self.at(start)) / (end - start)

    def mean(self, start: float, end: float) -> float:
        """Return the mean growth per second over an interval whose end may lie after the last point.

        The part after the last point is unknown; it is assumed to have the mean of the rest.
        """
        known = min(end, self.times[-1])
        return self.rate(min(start, known - (end - start) / 2), known)

    def samples(self, since: float) -> int:
        """Return the number of points after `since`, which is not before the first point.

        >>> CumulativeSeries((0.0, 2.0, 4.0), (0.0, 1.0, 2.0)).samples(0.0)
        2
        """
        return len(self.times) - bisect_right(self.times, since)

    def covers(self, start: float, end: float, slack: float = 0.0) -> bool:
        """Return whether the points cover an interval; it may end up to `slack` seconds after the last point."""
        return bool(self.times) and self.times[0] <= start and end <= self.times[-1] + slack

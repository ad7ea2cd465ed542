"""Counts that grow, with the times at which they were read: what a rate over any interval is worked out from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

KEPT_SECONDS = 900.0
"""How long points are kept: longer than any metric's window and delay together."""

LATE_SECONDS = 15.0
"""A metric may end so long after the last reading of log sizes and still count as covered."""


@dataclass(frozen=True, slots=True)
class Series:
    """A cumulative count over time; a value: another point makes another series."""

    times: tuple[float, ...] = ()
    """Seconds, ascending."""
    counts: tuple[float, ...] = ()
    """Never falling."""

    def plus(self, time: float, gained: float) -> Series:
        """Return the series with what came since its last point; a time that is not newer changes nothing."""
        if self.times and time <= self.times[-1]:
            return self
        old = bisect_left(self.times, time - KEPT_SECONDS)
        start = max(min(old, len(self.times) - 1), 0)
        count = (self.counts[-1] if self.counts else 0.0) + max(gained, 0.0)
        return Series((*self.times[start:], time), (*self.counts[start:], count))

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

        >>> Series((0.0, 10.0, 20.0), (0.0, 100.0, 400.0)).rate(5.0, 15.0)
        20.0
        """
        return (self.at(end) - self.at(start)) / (end - start)

    def mean(self, start: float, end: float) -> float:
        """Return the mean growth per second of an interval that is covered but for its end.

        Of what came since the last reading nothing is known, which does not make it nothing: the mean of the rest
        stands for it.
        """
        known = min(end, self.times[-1])
        return self.rate(min(start, known - (end - start) / 2), known)

    def readings(self, since: float) -> int:
        """Return how many points came after a time that is not before the first one.

        >>> Series((0.0, 2.0, 4.0), (0.0, 1.0, 2.0)).readings(0.0)
        2
        """
        return len(self.times) - bisect_right(self.times, since)

    def covers(self, start: float, end: float, slack: float = 0.0) -> bool:
        """Whether an interval lies between the first point and the last one, give or take some seconds at the end."""
        return bool(self.times) and self.times[0] <= start and end <= self.times[-1] + slack

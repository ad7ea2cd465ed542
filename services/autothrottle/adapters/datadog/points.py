"""Selects the point of a series to use, and the interval that it covers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_WIRE_SECOND = 1.0
"""Queries start and end at whole seconds, so a complete bucket may lack up to one second."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """The mean of a series over an interval."""

    value: float
    start: float
    """Seconds since the epoch."""
    end: float
    """Seconds since the epoch."""

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.end - self.start


def newest_point(
    points: Iterable[tuple[float, float | None]], interval: float | None, start: float, end: float
) -> MetricPoint | None:
    """Return the newest complete point of a series, or else the best partial one; None: all points are null or stale.

    A point is the mean over its bucket, which starts at its timestamp and is `interval` long. Buckets are aligned to
    multiples of their length and not to the query. So a query as long as its rollup overlaps two buckets partially. A
    point covers the part of its bucket that lies within the query. Of the points that are not null, choose

    1. the newest that covers its bucket (to within a second, the resolution of a query);
    2. else two adjacent points that together cover a bucket's length, as one point weighted by the parts covered. This
       is the mean of the window until now. The first alone may be a window old, and the last may cover only a moment;
    3. else the newest that covers at least half of its bucket;
    4. else the newest that covers anything;
    5. else one stamped with the end of the query, from a server that stamps ends instead of starts.

    Points before the query are stale and do not count.

    Args:
        points: (seconds since the epoch, value), in any order.
        interval: length of a bucket in seconds, limited to the spacing of the points. None: that spacing, or else the
            length of the query.
        start: start of the query, seconds since the epoch.
        end: end of the query, seconds since the epoch.
    """
    series = sorted(points, key=lambda point: point[0], reverse=True)
    length = _bucket_length([stamp for stamp, _ in series], interval, end - start)
    newest_first = [(stamp, value) for stamp, value in series if value is not None]
    measured = [MetricPoint(value, max(stamp, start), min(stamp + length, end)) for stamp, value in newest_first]
    covering = [point for point in measured if point.seconds > 0]
    joined = [_joined(older, newer) for newer, older in pairwise(covering) if newer.start <= older.end]
    whole = length - _WIRE_SECOND
    for candidates, enough in ((covering, whole), (joined, whole), (covering, length / 2), (covering, 0)):
        for point in candidates:
            if point.seconds >= enough:
                return point
    stamped_with_end = [value for stamp, value in newest_first if end <= stamp < end + length]
    return MetricPoint(stamped_with_end[0], max(end - length, start), end) if stamped_with_end else None


def _joined(older: MetricPoint, newer: MetricPoint) -> MetricPoint:
    total = older.value * older.seconds + newer.value * newer.seconds
    return MetricPoint(total / (older.seconds + newer.seconds), older.start, newer.end)


def _bucket_length(stamps_newest_first: Sequence[float], interval: float | None, window: float) -> float:
    pairs = pairwise(stamps_newest_first)
    lengths = [newer - older for newer, older in pairs if newer > older]
    if interval is not None and interval > 0:
        lengths.append(interval)
    return min(lengths, default=window)

"""Which point of a series counts, and which interval it covers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_WIRE_SECOND = 1.0
"""Begin and end of a query are whole seconds: a bucket is complete to within one."""


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a series and the interval, in seconds since the epoch, that it is the mean of."""

    value: float
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """The length of the interval."""
        return self.end - self.start


def newest_point(
    points: Iterable[tuple[float, float | None]], interval: float | None, start: float, end: float
) -> Point | None:
    """Return the newest complete point of a series, else the best partial one; None when all are null.

    A point is the mean over its bucket: from its time stamp on, `interval` long. Buckets are aligned to
    multiples of their length, not to the query, so that a query as long as its rollup meets two buckets and
    sees a part of each; a point covers that part of its bucket which lies within the query. Of the points
    that are not null:

    1. the newest that covers its bucket (to within a second, which is what the wire can say);
    2. else two that adjoin and together cover a bucket's length, as one, each by the part that it covers: the
       mean of the window until now, where "always the first" may be a window old, and "always the last" the
       mean of a moment;
    3. else the newest that covers at least half of its bucket;
    4. else the newest that covers anything;
    5. else one that is stamped by the end of the query: a server that stamps ends instead of starts.

    What lies before the query is stale and does not count.

    Args:
        points: (seconds since the epoch, value), in any order.
        interval: length of a bucket in seconds; never more than the spacing of the points; None: that
            spacing, else the length of the query.
        start: begin of the query, seconds since the epoch.
        end: end of the query, seconds since the epoch.
    """
    series = sorted(points, key=lambda point: point[0], reverse=True)
    length = _bucket_length([stamp for stamp, _ in series], interval, end - start)
    newest_first = [(stamp, value) for stamp, value in series if value is not None]
    seen = [Point(value, max(stamp, start), min(stamp + length, end)) for stamp, value in newest_first]
    covering = [point for point in seen if point.seconds > 0]
    joined = [_joined(older, newer) for newer, older in pairwise(covering) if newer.start <= older.end]
    whole = length - _WIRE_SECOND
    for candidates, enough in ((covering, whole), (joined, whole), (covering, length / 2), (covering, 0)):
        for point in candidates:
            if point.seconds >= enough:
                return point
    stamped_by_end = [value for stamp, value in newest_first if end <= stamp < end + length]
    return Point(stamped_by_end[0], max(end - length, start), end) if stamped_by_end else None


def _joined(older: Point, newer: Point) -> Point:
    total = older.value * older.seconds + newer.value * newer.seconds
    return Point(total / (older.seconds + newer.seconds), older.start, newer.end)


def _bucket_length(stamps_newest_first: Sequence[float], interval: float | None, window: float) -> float:
    pairs = pairwise(stamps_newest_first)
    lengths = [newer - older for newer, older in pairs if newer > older]
    if interval is not None and interval > 0:
        lengths.append(interval)
    return min(lengths, default=window)

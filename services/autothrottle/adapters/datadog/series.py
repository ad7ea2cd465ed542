"""Parses the response to one query: the series of each host, the points to use, and the utilization of its broker."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from autothrottle.core.errors import Invalid, Missing, Unavailable
from autothrottle.core.texts import encodable
from autothrottle.core.traffic.counters import Series
from autothrottle.core.traffic.loads import Utilization, is_time, measured_utilization


@dataclass(frozen=True, slots=True)
class MetricWindow:
    """The interval of a query, in seconds since the epoch on Datadog's clock."""

    start: int
    end: int
    offset: float = 0.0
    """Datadog's clock minus ours, seconds."""


@dataclass(frozen=True, slots=True)
class _HostSeries:
    device: str
    """Network device; "": the metric has none."""
    points: tuple[tuple[float, float | None], ...]
    interval: float | None


NO_VALUE = "N/A"
"""Datadog's value of a tag that a series does not have."""

_WIRE_SECOND = 1.0
"""Queries start and end at whole seconds, so a complete bucket may lack up to one second."""

_NO_POINT = (math.nan, math.nan)
"""A point that cannot be read."""


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """The response to one query."""

    query_name: str
    by_host: Mapping[str, Sequence[_HostSeries]]
    without_host: tuple[str, ...]
    """Scopes of series without a host."""
    tags: Mapping[str, Sequence[str]]
    """Host -> the tags in the scopes of its series."""

    @classmethod
    def of(cls, query_name: str, answer: Any) -> MetricSeries:
        """Parse a response; raises TypeError, ValueError or similar if its format is unexpected.

        A point or a scope that cannot be read concerns its own series alone.
        """
        if answer.get("status", "ok") != "ok":
            raise Unavailable(f"Datadog ({query_name}) answers status {encodable(str(answer['status']))[:20]!r}")
        by_host: dict[str, list[_HostSeries]] = {}
        tags: dict[str, list[str]] = {}
        without_host = []
        for series in _entries(answer["series"] or ()):
            scope = encodable(str(series.get("scope", "")), None)
            host = _tag_of(scope, "host").lower()
            if not host:
                without_host.append(scope)
                continue
            points, interval = _points(series.get("pointlist")), _number(series.get("interval"))
            device = _tag_of(scope, "device")
            host_series = _HostSeries("" if device == NO_VALUE else device, points, interval)
            # A host with two values of a tag has the same series in both groups.
            if host_series not in by_host.setdefault(host, []):
                by_host[host].append(host_series)
            tags.setdefault(host, []).extend(tag.strip() for tag in scope.split(","))
        return cls(query_name, by_host, tuple(without_host), tags)

    def of_devices(self, host: str, window: MetricWindow) -> list[Series]:
        """Return the series of a host, whose only sample, at the end of the window, is its newest rate."""
        return [
            Series({"device": one.device} if one.device else {}, _newest_rate(one, window), mean_seconds=1.0)
            for one in self.by_host.get(host, ())
        ]

    def utilization(
        self, broker_id: int, host: str, window: MetricWindow, devices: Collection[str] = ("",)
    ) -> Utilization:
        """Return the utilization from one series of each device of a host; raises Missing or Invalid if it is unusable.

        A device without a point does not count beside one that has one: it has gone.
        """
        subject = f"broker {broker_id} (host {host})"
        series = [one for one in self.by_host.get(host, ()) if one.device in ("", *devices)]
        if not series:
            raise Missing(f"{subject} has no series in --{self.query_name}: check its Datadog agent and the query")
        names = {one.device for one in series}
        if len(series) > len(names) or ("" in names and len(names) > 1):
            raise Invalid(
                f"{subject} has {len(series)} series in --{self.query_name}: group the query by {{host}} alone"
            )
        points = [point for one in series if (point := self._point(subject, one, window))]
        if not points:
            seconds = window.end - window.start
            raise Missing(
                f"{subject} has only null points in --{self.query_name} over the last {seconds} s: "
                "check its Datadog agent, or use a longer --metrics-window"
            )
        start, end = max(point.start for point in points), max(point.end for point in points)
        start = start if start < end else min(point.start for point in points)
        try:
            rate = sum(point.value for point in points)
            return measured_utilization(rate, start - window.offset, end - window.offset)
        except Invalid as error:
            raise Invalid(f"{subject} {error} (--{self.query_name})") from None

    def _point(self, subject: str, series: _HostSeries, window: MetricWindow) -> MetricPoint | None:
        """Return the point of a series that counts; None: it has none. Raises Invalid if it is not a rate at a time."""
        if bad_times := [stamp for stamp, _ in series.points if not is_time(stamp)]:
            raise Invalid(
                f"{subject} has a point with the time {bad_times[-1]} s in --{self.query_name}; a time is in seconds "
                "since 1970, until the year 9999: check the query"
            )
        point = newest_point(series.points, series.interval, window.start, window.end)
        if point is not None and not point.value >= 0:  # NaN, too
            raise Invalid(
                f"{subject} has {point.value} bytes/s in --{self.query_name}; a rate is >= 0: check the query"
            )
        return point


def _newest_rate(series: _HostSeries, window: MetricWindow) -> list[tuple[float, float]]:
    """Return the newest rate of a series as a sample at the end of the window; [] without a readable one."""
    readable = all(is_time(stamp) for stamp, _ in series.points)
    point = newest_point(series.points, series.interval, window.start, window.end) if readable else None
    return [(window.end, point.value)] if point else []


def _entries(series: Any) -> Sequence[Mapping[str, Any]]:
    """Return the series that are objects; raises TypeError if none of them is."""
    entries = [entry for entry in series if isinstance(entry, dict)]
    if series and not entries:
        raise TypeError("no series is an object")
    return entries


def _points(points: object) -> tuple[tuple[float, float | None], ...]:
    if points is None:
        return ()
    return tuple(map(_point, points)) if isinstance(points, list) else (_NO_POINT,)


def _point(point: object) -> tuple[float, float | None]:
    if not isinstance(point, list) or len(point) != 2:
        return _NO_POINT
    stamp = _number(point[0])
    return math.nan if stamp is None else stamp / 1000, _number(point[1])


def _tag_of(scope: str, name: str) -> str:
    """Return the first value of a tag in a scope; "": it has none."""
    tags = (tag.strip().partition(":") for tag in scope.split(","))
    return next((value for tag_name, _, value in tags if tag_name == name and value), "")


def _number(value: object) -> float | None:
    """Return a number unchanged and anything else as NaN, so that only the affected broker is refused."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else math.nan  # type: ignore[arg-type]


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

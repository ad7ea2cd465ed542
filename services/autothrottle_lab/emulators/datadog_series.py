"""The series of the Datadog emulator: means of cumulative counters, in Datadog's format.

`datadog` has the routes and faults. The type to know is `CumulativeCounters`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product
from typing import Any

MIN_COVERED_SECONDS = 0.3
"""Buckets that cover less time are omitted: their mean would be noise."""


class CumulativeCounters:
    """Two cumulative counters of one broker over time, in bytes."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self._times: list[float] = []
        self._totals: list[tuple[float, float]] = []

    def add(self, at: float, tx_total_bytes: float, rx_total_bytes: float) -> None:
        """Add a sample, and drop samples older than `keep_seconds`."""
        index = bisect_right(self._times, at)
        self._times.insert(index, at)
        self._totals.insert(index, (tx_total_bytes, rx_total_bytes))
        # Delete in blocks, because each deletion shifts all other samples. Keep the last sample before the limit,
        # because the oldest mean starts there.
        old = bisect_left(self._times, self._times[-1] - self._keep_seconds) - 1
        if old > 64:
            del self._times[:old]
            del self._totals[:old]

    def mean(self, direction: int, start: float, end: float) -> float | None:
        """Return the mean rate between two times, bytes/s, over the part that samples cover.

        Return None if they cover less than `MIN_COVERED_SECONDS`.

        Args:
            direction: 0 for tx, 1 for rx.
            start: seconds since the epoch.
            end: seconds since the epoch.
        """
        if not self._times:
            return None
        start, end = max(start, self._times[0]), min(end, self._times[-1])
        if end - start < MIN_COVERED_SECONDS:
            return None
        return (self._total(direction, end) - self._total(direction, start)) / (end - start)

    def _total(self, direction: int, at: float) -> float:
        later = bisect_left(self._times, at)
        if self._times[later] == at:
            return self._totals[later][direction]
        earlier = later - 1
        t0, t1 = self._times[earlier], self._times[later]
        v0, v1 = self._totals[earlier][direction], self._totals[later][direction]
        return v0 + (v1 - v0) * (at - t0) / (t1 - t0)


@dataclass(slots=True)
class Host:
    """A host in Datadog, and the counters of its broker."""

    name: str
    broker_id: int
    tags: tuple[str, ...]
    has_tagged_series: bool
    counters: CumulativeCounters
    dropped: Collection[str] = ()
    """Settable: the directions, `tx` and `rx`, whose series are missing; the tags stay."""
    has_null_points: bool = False
    """Settable: whether all points of its series are null."""


def series_of(
    host: Host, direction: str, query: str, rollup_seconds: int, start: float, end: float
) -> list[dict[str, Any]]:
    """Return the series of a host in Datadog's format, with a point for each bucket that has data.

    There is one for each combination of the values that the host has of the tags that the query groups by.

    Args:
        host: the host.
        direction: tx or rx.
        query: the query without its rollup.
        rollup_seconds: length of a bucket.
        start: seconds since the epoch.
        end: seconds since the epoch.
    """
    points: list[list[float | None]] = []
    bucket = start // rollup_seconds * rollup_seconds
    while bucket < end:
        covered = max(bucket, start), min(bucket + rollup_seconds, end)
        mean = host.counters.mean(("tx", "rx").index(direction), *covered)
        if mean is not None:
            points.append([bucket * 1000.0, None if host.has_null_points else mean])
        bucket += rollup_seconds
    metric = "system.net.bytes_sent" if direction == "tx" else "system.net.bytes_rcvd"
    return [
        {
            "aggr": "avg",
            "display_name": metric,
            "end": int(end * 1000) - 1,
            "expression": f"{query}.rollup(avg, {rollup_seconds})",
            "interval": rollup_seconds,
            "length": len(points),
            "metric": metric,
            "pointlist": points,
            "query_index": 0,
            "scope": ",".join([*group, *_filters(query)]),
            "start": int(start * 1000),
            "tag_set": [*group],
            "unit": [{"family": "bytes", "id": 2, "name": "byte", "plural": "bytes", "scale_factor": 1.0}, None],
        }
        for group in product(*(_tags_named(name, host) for name in groups(query)))
        if points
    ]


def groups(query: str) -> list[str]:
    """Return the names of the tags that a query groups by."""
    match = re.search(r"\bby\s*\{([^}]*)\}", query)
    return [name.strip() for name in match.group(1).split(",")] if match else []


def _tags_named(name: str, host: Host) -> list[str]:
    if name == "host":
        return [f"host:{host.name}"]
    tags = [tag for tag in host.tags if tag.startswith(f"{name}:")] if host.has_tagged_series else []
    return tags or [f"{name}:N/A"]


def _filters(query: str) -> list[str]:
    match = re.search(r"\{([^}]*)\}", query)
    parts = match.group(1).split(",") if match else []
    return [part.strip() for part in parts if part.strip() not in ("", "*")]

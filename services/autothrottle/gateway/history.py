"""An hour of rates per link side, in arrays of fixed size. The type to know is `LinkHistory`."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle_client.overview import LinkSideKey, LinkSideOverview

STEP_SECONDS = 10
"""Time between two points."""

_POINTS = 360

_MOST_SIDES = 10_000
"""Link sides with a history, 5.8 kB each. Beyond it, the one that was in a reassignment the longest ago loses it."""

_SERIES = ("capacity", "clients", "replication", "throttle")

_UNKNOWN = -1
_UNIT = 1_000
"""Rates are stored in kB/s, as 32-bit integers."""

_MOST_STORED = 2**31 - 1


class LinkHistory:
    """The rates of the last hour. Thread-safe.

    Each link side has one array: `_POINTS` points for each of `_SERIES`, in a ring by time.
    """

    def __init__(self) -> None:
        self._rings: OrderedDict[LinkSideKey, array[int]] = OrderedDict()
        """The link side that was added the longest ago comes first."""
        self._last = 0
        """Number of the newest step since 1970; 0: nothing was added yet."""
        self._lock = threading.Lock()

    def add(self, at: datetime, sides: Iterable[LinkSideOverview]) -> None:
        """Add the rates of a time, or replace those of the same step. An earlier time than the last one is ignored."""
        step = int(at.timestamp()) // STEP_SECONDS
        with self._lock:
            if step < self._last:
                return
            self._advance(step)
            for side in sides:
                ring = self._ring((side.broker, side.role))
                for series, rate in enumerate((side.capacity, side.clients, side.replication, side.throttle)):
                    stored = _UNKNOWN if rate is None else min(max(rate, 0) // _UNIT, _MOST_STORED)
                    ring[series * _POINTS + step % _POINTS] = stored

    def document(self, broker_id: int, now: datetime) -> Mapping[str, Any]:
        """Return the rates of the last hour of both sides of a broker's link: bytes per second, None if unknown."""
        last = int(now.timestamp()) // STEP_SECONDS
        with self._lock:
            self._advance(max(last, self._last))
            last = self._last
            rings = {role: self._rings.get((broker_id, role)) for role in ReplicaRole}
            sides = {role.value: _series(ring, last) for role, ring in rings.items()}
        start = datetime.fromtimestamp((last - _POINTS + 1) * STEP_SECONDS, UTC)
        return {"from": start.strftime("%Y-%m-%dT%H:%M:%SZ"), "seconds": STEP_SECONDS, **sides}

    def _ring(self, side: LinkSideKey) -> array[int]:
        ring = self._rings.get(side)
        if ring is None:
            if len(self._rings) >= _MOST_SIDES:
                self._rings.popitem(last=False)
            ring = self._rings[side] = array("i", [_UNKNOWN]) * (len(_SERIES) * _POINTS)
        self._rings.move_to_end(side)
        return ring

    def _advance(self, step: int) -> None:
        """Clear the points after the newest step up to this one; after an hour, forget all link sides."""
        steps = range(self._last + 1, step + 1)
        if len(steps) >= _POINTS:
            self._rings.clear()
        for ring in self._rings.values():
            for number in steps:
                for series in range(len(_SERIES)):
                    ring[series * _POINTS + number % _POINTS] = _UNKNOWN
        self._last = max(step, self._last)


def _series(ring: array[int] | None, last: int) -> dict[str, list[int | None]]:
    """Return each series in the order of time; without a ring, all are unknown."""
    if ring is None:
        return {name: [None] * _POINTS for name in _SERIES}
    oldest = (last + 1) % _POINTS
    lists: dict[str, list[int | None]] = {}
    for number, name in enumerate(_SERIES):
        points = ring[number * _POINTS : (number + 1) * _POINTS]
        in_order = points[oldest:] + points[:oldest]
        lists[name] = [None if point == _UNKNOWN else point * _UNIT for point in in_order]
    return lists

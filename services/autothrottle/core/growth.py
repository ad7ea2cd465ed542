"""How fast the logs on a broker grow: what clients do right now, minutes before a metric says so.

Here live the values, and what a step in them is; they are counted in `growth_history`. Whoever reads the sizes of all
logs of a broker can give them to a policy; none needs them. The type to know is `LogGrowth`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

RISE = 0.1
"""More than this share above what it was before is a rise: less would change no rate."""

LEAST_RISE = 1_000_000.0
"""Bytes/s: a smaller rise is none, whatever its share."""

RISE_READINGS = 2
"""So many readings in a row show a rise: one alone may be a burst."""

BEFORE_RISE = timedelta(seconds=20)
"""Over which the readings before a rise are looked at."""


class GrowthMark(NamedTuple):
    """What was counted at an earlier moment."""

    at: datetime
    """UTC."""
    led: int
    received: int


@dataclass(frozen=True, slots=True)
class LogGrowth:
    """What came into the logs of one broker: counts that only grow (what retention deletes does not count)."""

    led: int
    """Bytes by which the logs that this broker leads grew: what was produced to it."""
    received: int
    """Bytes by which all its logs grew, but for replicas that are still being copied: what it took in for clients."""
    at: datetime
    """When it was read, UTC."""
    since: datetime
    """When counting began, UTC; subtract only counts with the same `since`."""
    recent: tuple[GrowthMark, ...] = ()
    """The counts of the last minutes, ascending and closest in the last seconds."""

    @property
    def curve(self) -> Sequence[GrowthMark]:
        """All that was counted, the newest last."""
        return (*self.recent, GrowthMark(self.at, self.led, self.received))


def risen(growth: LogGrowth) -> float | None:
    """Return what a broker takes in since a rise, bytes/s; None: there was none in the last readings.

    A rise is in each of the last `RISE_READINGS` above every reading of the seconds before, by `RISE` and at least by
    `LEAST_RISE`, of what is produced or of all that comes in, and does not only make up for a stall.

    >>> from datetime import UTC
    >>> second, noon = timedelta(seconds=1), datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> counts = (0, 4_000_000, 8_000_000, 12_000_000, 26_000_000, 40_000_000)
    >>> marks = [GrowthMark(noon + 2 * i * second, 0, count) for i, count in enumerate(counts)]
    >>> risen(LogGrowth(0, 40_000_000, marks[-1].at, noon, tuple(marks[:-1])))
    7000000.0
    >>> risen(LogGrowth(0, 12_000_000, marks[3].at, noon, tuple(marks[:3]))) is None
    True
    """
    curve = [mark for mark in growth.curve if mark.at >= growth.at - BEFORE_RISE]
    times = [mark.at.timestamp() for mark in curve]
    if not (rises(times, [mark.led for mark in curve]) or rises(times, [mark.received for mark in curve])):
        return None
    first = curve[-1 - RISE_READINGS]
    return (growth.received - first.received) / (growth.at - first.at).total_seconds()


def rises(times: Sequence[float], counts: Sequence[float]) -> bool:
    """Return whether the last readings of a count show a rise: see `risen`.

    Args:
        times: of the readings of the last `BEFORE_RISE`, seconds, ascending; of a few too little can be said.
        counts: bytes, cumulative, one for each time.

    >>> rises(range(6), [0, 4e6, 8e6, 12e6, 19e6, 26e6]), rises(range(6), [0, 4e6, 8e6, 8e6, 14e6, 20e6])
    (True, False)
    """
    if len(times) < RISE_READINGS + 3:
        return False
    spans = zip(pairwise(times), pairwise(counts), strict=True)
    rates = [(new - old) / (later - earlier) for (earlier, later), (old, new) in spans]
    before, latest = rates[:-RISE_READINGS], rates[-RISE_READINGS:]
    if min(latest) <= max(before) + max(RISE * max(before), LEAST_RISE):
        return False
    usual = statistics.median(before)
    # Clients that were held up make up for it: that is no more than they were going to bring.
    return sum(rate - usual for rate in rates) > sum(rate - usual for rate in latest) / 2

"""How fast the logs on a broker grow: the current client load, minutes before a metric shows it.

This module defines the values and how to detect a rise in them; `traffic.log_growth_history` counts them. Log growth
is an optional input of a policy. The type to know is `LogGrowth`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

RISE = 0.1
"""The smallest rise, as a share of the earlier rate; a smaller one would not change a throttle."""

LEAST_RISE = 1_000_000.0
"""The smallest rise in bytes/s, whatever its share."""

RISE_SAMPLES = 2
"""Number of consecutive samples that must show a rise; a single one may be a burst."""

BEFORE_RISE = timedelta(seconds=20)
"""How far back the samples before a rise are compared."""


class GrowthMark(NamedTuple):
    """The counts at an earlier time, bytes."""

    at: datetime
    """UTC."""
    led: int
    received: int


@dataclass(frozen=True, slots=True)
class LogGrowth:
    """Cumulative bytes appended to the logs of one broker; deletion by retention does not reduce them."""

    led: int
    """Bytes appended to the logs that this broker leads: its produce traffic."""
    received: int
    """Bytes appended to all its logs, except replicas still being copied: its inbound traffic for clients."""
    at: datetime
    """Time of the sample, UTC."""
    since: datetime
    """When counting began, UTC; subtract only counts with the same `since`."""
    recent: tuple[GrowthMark, ...] = ()
    """The counts of the last minutes, ascending, densest in the last seconds."""

    @property
    def curve(self) -> Sequence[GrowthMark]:
        """All counts, the newest last."""
        return (*self.recent, GrowthMark(self.at, self.led, self.received))


def rate_after_rise(growth: LogGrowth) -> float | None:
    """Return a broker's inbound client rate after a rise, bytes/s; None: the last samples show no rise.

    In a rise, each of the last `RISE_SAMPLES` rates exceeds every rate of the preceding `BEFORE_RISE`, by a share of
    `RISE` and at least by `LEAST_RISE`. This may be the rate of `led` or of `received`. A rise that only makes up for
    a stall does not count.

    >>> from datetime import UTC
    >>> second, noon = timedelta(seconds=1), datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> counts = (0, 4_000_000, 8_000_000, 12_000_000, 26_000_000, 40_000_000)
    >>> marks = [GrowthMark(noon + 2 * i * second, 0, count) for i, count in enumerate(counts)]
    >>> rate_after_rise(LogGrowth(0, 40_000_000, marks[-1].at, noon, tuple(marks[:-1])))
    7000000.0
    >>> rate_after_rise(LogGrowth(0, 12_000_000, marks[3].at, noon, tuple(marks[:3]))) is None
    True
    """
    curve = [mark for mark in growth.curve if mark.at >= growth.at - BEFORE_RISE]
    times = [mark.at.timestamp() for mark in curve]
    if not (shows_rise(times, [mark.led for mark in curve]) or shows_rise(times, [mark.received for mark in curve])):
        return None
    first = curve[-1 - RISE_SAMPLES]
    return (growth.received - first.received) / (growth.at - first.at).total_seconds()


def shows_rise(times: Sequence[float], counts: Sequence[float]) -> bool:
    """Return whether the last samples of a count show a rise as defined in `rate_after_rise`.

    Args:
        times: times of the samples of the last `BEFORE_RISE`, seconds, ascending; too few show no rise.
        counts: cumulative bytes, one for each time.

    >>> shows_rise(range(6), [0, 4e6, 8e6, 12e6, 19e6, 26e6]), shows_rise(range(6), [0, 4e6, 8e6, 8e6, 14e6, 20e6])
    (True, False)
    """
    if len(times) < RISE_SAMPLES + 3:
        return False
    spans = zip(pairwise(times), pairwise(counts), strict=True)
    rates = [(new - old) / (later - earlier) for (earlier, later), (old, new) in spans]
    usual_rates, latest = rates[:-RISE_SAMPLES], rates[-RISE_SAMPLES:]
    if min(latest) <= max(usual_rates) + max(RISE * max(usual_rates), LEAST_RISE):
        return False
    usual = statistics.median(usual_rates)
    # After a stall, clients send what they held back; that is not additional load.
    return sum(rate - usual for rate in rates) > sum(rate - usual for rate in latest) / 2

"""The schedule: hours of the day in which replication gets a different share of the headroom, and its text format.

The type to know is `Schedule`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import permutations
from zoneinfo import ZoneInfo

from autothrottle.core.errors import Invalid
from autothrottle.core.policy.limits import Limits

_WINDOW = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])-([01]?[0-9]|2[0-4]):([0-5][0-9])=([0-9]{1,3}(?:\.[0-9]{1,3})?)")
_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class ScheduleWindow:
    """Some hours of every day; the window spans midnight if it ends before it starts."""

    start: int
    """Minute of the day, in 0..1439, inclusive."""
    end: int
    """Minute of the day, in 1..1440, exclusive."""
    max_ratio: float
    """Share of the headroom given to replication, in (0, 1]."""

    def holds(self, minute: int) -> bool:
        """Return whether the window contains a minute of the day."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def limits(self, limits: Limits) -> Limits:
        """Return the limits with the window's share in both directions."""
        return replace(limits, max_tx_ratio=self.max_ratio, max_rx_ratio=self.max_ratio)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The windows of every day; outside them the usual share applies."""

    windows: tuple[ScheduleWindow, ...] = ()
    """The windows; they do not overlap."""
    zone: tzinfo = UTC
    """Time zone of the windows."""

    def window(self, now: datetime) -> ScheduleWindow | None:
        """Return the active window; None: no window is active."""
        local = now.astimezone(self.zone)
        minute = local.hour * 60 + local.minute
        return next((window for window in self.windows if window.holds(minute)), None)

    def next_change(self, now: datetime) -> datetime | None:
        """Return when the next window starts or ends, UTC; None: there are no windows."""
        local = now.astimezone(self.zone)
        days = [local.date() + timedelta(days=n) for n in range(3)]
        edges = {edge % _DAY for window in self.windows for edge in (window.start, window.end)}
        times = (datetime.combine(day, time(edge // 60, edge % 60), self.zone) for day in days for edge in edges)
        return min((at.astimezone(UTC) for at in times if at > now), default=None)


NO_SCHEDULE = Schedule()


def parse_schedule(text: str, zone: Callable[[str], tzinfo] = ZoneInfo) -> Schedule:
    """Return the schedule in a text: windows of hours with a percentage, then `@` and the time zone (default UTC).

    >>> day, night = parse_schedule("09:00-17:00=50, 22:00-06:00=95").windows
    >>> day, night.holds(0)
    (ScheduleWindow(start=540, end=1020, max_ratio=0.5), True)

    Raises:
        Invalid: a window or the zone is malformed, a window is empty, a percentage is not in (0, 100], or two windows
            overlap.
    """
    if not text.strip():
        return NO_SCHEDULE
    listed, _, name = text.partition("@")
    windows = tuple(_window(part.strip()) for part in listed.split(","))
    for window, other in permutations(windows, 2):
        if window.holds(other.start):
            raise Invalid(f"schedule: {_clock(other.start)} is in two windows; end one where the other starts")
    return Schedule(windows, _zone(name.strip(), zone) if "@" in text else UTC)


def _window(text: str) -> ScheduleWindow:
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise Invalid(f"schedule: {text[:40]!r} is not a window of hours with a percentage")
    start, end = (int(found[n]) * 60 + int(found[n + 1]) for n in (1, 3))
    if start >= _DAY or end > _DAY or start == end:
        raise Invalid(f"schedule: {text!r} must start in 00:00..23:59 and end at another time, at most 24:00")
    ratio = float(found[5]) / 100
    if not 0 < ratio <= 1:
        raise Invalid(f"schedule: {found[5]} % of {text!r} is outside of (0, 100]")
    return ScheduleWindow(start, end or _DAY, ratio)


def _zone(name: str, zone: Callable[[str], tzinfo]) -> tzinfo:
    if name.upper() == "UTC":
        return UTC
    try:
        return zone(name)
    except (OSError, ValueError, KeyError):
        raise Invalid(f"schedule: {name[:40]!r} is not a time zone known to this host (UTC always is)") from None


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"

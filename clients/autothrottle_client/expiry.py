"""Parses durations, and the expiry of an override: a duration from now, or a point in time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from autothrottle_client.errors import Invalid

_SPAN = re.compile(r"([1-9][0-9]{0,5})(s|m|h|d)", re.ASCII)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_span(text: str) -> timedelta:
    """Return the duration of a text like `90m`.

    >>> parse_span("90m")
    datetime.timedelta(seconds=5400)

    Raises:
        Invalid: the text is not a duration of at most 365 days.
    """
    span = _span(text)
    if span is None or span > timedelta(days=365):
        raise Invalid(f"{text[:60]!r} is not a duration: give a whole number with s, m, h or d, at most 365d, like 2h")
    return span


def parse_expiry(text: str, now: datetime) -> datetime:
    """Return the time that `2h` (from now) or `2030-01-31T18:00:00Z` denotes, in UTC.

    >>> parse_expiry("90m", datetime(2030, 1, 31, 17, 0, tzinfo=UTC)).isoformat()
    '2030-01-31T18:30:00+00:00'

    Raises:
        Invalid: the text is neither, or the time is not after `now`.
    """
    try:
        span = _span(text)
        time = now + span if span else _at(text)
    except (ValueError, OverflowError):
        time = None
    if time is None:
        raise Invalid(
            f"{text[:60]!r} is not a time: give a duration from now, a whole number with s, m, h or d like 2h, "
            "or a time with its time zone like 2030-01-31T18:00:00Z"
        )
    if time <= now:
        raise Invalid(f"{text[:60]!r} is in the past: it is {now.isoformat(timespec='seconds')} now; give a later time")
    return time


def _span(text: str) -> timedelta | None:
    match = _SPAN.fullmatch(text)
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]]) if match else None


def _at(text: str) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if _TIME.fullmatch(text) else None

"""Texts of command lines: rates, sizes, durations, points in time, percentages, estimates, patterns and tables.

1 MB/s is 1,000,000 bytes per second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from autothrottle.core.records import Estimate
from autothrottle.core.units import copy_words, format_megabytes
from autothrottle_client.errors import Invalid
from autothrottle_client.model import MAX_RATE_BYTES_PER_SECOND

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_RATE = re.compile(r"((?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,9})?)(?:(B|kB|MB|GB)(?:/s)?)?")

_SPAN = re.compile(r"([1-9][0-9]{0,5})(s|m|h|d)", re.ASCII)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%?", re.ASCII)

_TOKEN = re.compile(r"\\Q.*?(?:\\E|$)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|.", re.DOTALL)
"""A quoted text, an escaped character, a character class, or one other character. Syntax: RE2."""


def parse_rate(text: str, largest: int = MAX_RATE_BYTES_PER_SECOND) -> int:
    """Return a rate in bytes per second. `/s` is optional; a bare number is MB/s, as in the original's API.

    >>> parse_rate("200"), parse_rate("50MB"), parse_rate("1.5MB/s"), parse_rate("1500000B/s")
    (200000000, 50000000, 1500000, 1500000)

    Raises:
        Invalid: the text is not a rate, or not a whole number of bytes/s in 1..largest.
    """
    match = _RATE.fullmatch(text)
    if match is None:
        raise Invalid(
            f"{text[:60]!r} is not a rate: it must be a number followed by B/s, kB/s, MB/s or GB/s, "
            "or nothing for MB/s (/s is optional); give for example 200MB/s"
        )
    rate = Decimal(match[1]) * _UNITS[match[2] or "MB"]
    if rate != int(rate):
        raise Invalid(f"{text!r} is {rate.normalize():f} bytes/s: it must be a whole number of them; round it")
    if not 0 < rate <= largest:
        bare = "" if match[2] else "; a number without a unit is in MB/s"
        raise Invalid(
            f"{text!r} is {int(rate)} bytes/s, outside 1..{largest}; "
            f"give a positive rate like 200MB/s, or remove the override{bare}"
        )
    return int(rate)


def format_rate(bytes_per_second: int) -> str:
    """Return a rate in MB/s, exact, in the form that `parse_rate` accepts.

    >>> format_rate(200_000_000), format_rate(1)
    ('200MB/s', '0.000001MB/s')
    """
    return f"{format_megabytes(bytes_per_second)}MB/s"


def about_rate(bytes_per_second: int) -> str:
    """Return a rate in MB/s with at most two decimals; a rate that would round to 0 is exact.

    >>> about_rate(43_627_779), about_rate(72_000_001), about_rate(1)
    ('43.63MB/s', '72MB/s', '0.000001MB/s')
    """
    return format_rate(round(bytes_per_second, -4) or bytes_per_second)


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


def parse_ratio(text: str) -> float:
    """Return a percentage as a share in (0, 1].

    >>> parse_ratio("30"), parse_ratio("12.5%")
    (0.3, 0.125)

    Raises:
        Invalid: the text is not a percentage in (0, 100].
    """
    match = _PERCENT.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= 100:
        raise Invalid(f"{text[:60]!r} is not a percentage: it must be above 0 and at most 100; give for example 30")
    return float(match[1]) / 100


def estimate_line(estimate: Estimate) -> str:
    """Return an estimate as one line.

    >>> estimate_line(Estimate(2, 8, 0.25, 1_500_000_000, 0, 90.0))
    '1.50 GB to copy for 2 of 8 partitions (MoveRatio 0.25), in about 1 min 30 s'
    >>> estimate_line(Estimate(2, 8, 0.25, 0, 2, None))
    'an unknown size to copy for 2 of 8 partitions (MoveRatio 0.25); the duration is unknown, or it would never end'
    """
    counted = f"{estimate.partitions} of {estimate.total_partitions} partitions (MoveRatio {estimate.move_ratio:.4g})"
    size = f"{copy_words(estimate.bytes_to_copy, estimate.unknown_partitions)} for {counted}"
    if estimate.seconds is None:
        return f"{size}; the duration is unknown, or it would never end"
    return f"{size}, in about {span(estimate.seconds)}"


def span(seconds: float | None) -> str:
    """Return a duration in words; `-` if unknown."""
    if seconds is None:
        return "-"
    return "0 s" if seconds < 0.5 else duration(timedelta(seconds=seconds))


def duration(span: timedelta) -> str:
    """Return a duration in its two largest units; "now" if it is not positive.

    >>> duration(timedelta(seconds=59)), duration(timedelta(hours=26, minutes=10))
    ('59 s', '1 d 2 h')
    """
    seconds = max(0, round(span.total_seconds()))
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    parts = []
    for name, length in units:
        count, seconds = divmod(seconds, length)
        parts.append(f"{count} {name}" if count else "")
    first = next((n for n, part in enumerate(parts) if part), None)
    return "now" if first is None else " ".join(part for part in parts[first : first + 2] if part)


def split_patterns(text: str) -> tuple[str, ...]:
    r"""Return the patterns of a comma-separated list.

    A comma inside brackets, braces or parentheses, or after a backslash, belongs to its pattern.

    >>> split_patterns(r"orders, tmp-[0-9]{1,3},(a|b,c)[(,]d,e\,f")
    ('orders', 'tmp-[0-9]{1,3}', '(a|b,c)[(,]d', 'e\\,f')
    """
    patterns, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth = max(depth + (token in ("(", "{", "[")) - (token in (")", "}")), 0)
        if token == "," and depth == 0:
            patterns.append("")
        else:
            patterns[-1] += token
    return tuple(pattern.strip() for pattern in patterns if pattern.strip())


def columns(rows: Sequence[Sequence[str]], right_from: int | None = None) -> list[str]:
    """Return a line for each row, with columns as wide as their longest cell.

    Args:
        rows: of as many cells each.
        right_from: number of the first column that is aligned to the right; None: all are aligned to the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) if right_from is None else right_from
    aligned = (
        [cell.rjust(width) if number >= left else cell.ljust(width) for number, (cell, width) in enumerate(cells)]
        for cells in (zip(row, widths, strict=True) for row in rows)
    )
    return ["  ".join(cells).rstrip() for cells in aligned]

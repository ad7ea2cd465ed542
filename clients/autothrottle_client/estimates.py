"""Estimates of a reassignment before its start: bytes, duration and throttles."""

from __future__ import annotations

import re
from datetime import timedelta

from autothrottle.core.records import Estimate
from autothrottle_client.errors import Invalid
from autothrottle_client.progress import duration
from autothrottle_client.rates import format_size

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%?", re.ASCII)


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
    """
    least = "at least " if estimate.unknown_partitions else ""
    counted = f"{estimate.partitions} of {estimate.total_partitions} partitions (MoveRatio {estimate.move_ratio:.4g})"
    size = f"{least}{format_size(estimate.bytes_to_copy)} to copy for {counted}"
    if estimate.seconds is None:
        return f"{size}; the duration is unknown, or it would never end"
    return f"{size}, in about {span(estimate.seconds)}"


def span(seconds: float | None) -> str:
    """Return a duration in words; `-` if unknown."""
    if seconds is None:
        return "-"
    return "0 s" if seconds < 0.5 else duration(timedelta(seconds=seconds))

"""Parses and formats rates such as `200MB/s` and sizes; 1 MB/s is 1,000,000 bytes per second."""

from __future__ import annotations

import re
from decimal import Decimal

from autothrottle.core.units import format_megabytes
from autothrottle_client.errors import Invalid
from autothrottle_client.model import MAX_RATE_BYTES_PER_SECOND

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_RATE = re.compile(r"((?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,9})?)(?:(B|kB|MB|GB)(?:/s)?)?")


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


def format_size(size_bytes: int) -> str:
    """Return a size in GB, or in MB below 1 GB, with two decimals.

    >>> format_size(41_200_000_000), format_size(5_000_000)
    ('41.20 GB', '5.00 MB')
    """
    return f"{size_bytes / 10**9:.2f} GB" if size_bytes >= 10**9 else f"{size_bytes / 10**6:.2f} MB"

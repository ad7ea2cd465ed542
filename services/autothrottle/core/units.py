"""Units: rates are integers in bytes per second; MB/s appears only at the edges (flags, text API, logs)."""

import re

BytesPerSecond = int
"""A rate; 1 MB/s is 1,000,000."""

MAX_INT32 = 2**31 - 1
"""Largest broker id, partition number and integer setting in Kafka."""

MAX_RATE: BytesPerSecond = 2**63 - 1
"""Kafka stores rates as signed 64-bit integers."""

MEGABYTE = 1_000_000
"""Bytes in one MB."""


def without_unit(text: str) -> str:
    """Return the number of a rate in MB/s; any other text stays as it is.

    >>> without_unit("50MB"), without_unit("50 MB/s"), without_unit("50"), without_unit("50 GB")
    ('50', '50', '50', '50 GB')
    """
    found = re.fullmatch(r"\s*([\d.eE+-]+)\s*MB(/s)?\s*", text, re.ASCII)
    return found[1] if found else text


def megabytes_per_second(rate: BytesPerSecond) -> str:
    """Return a rate for messages.

    >>> megabytes_per_second(12_345_678)
    '12.35 MB/s'
    """
    return f"{rate / MEGABYTE:.2f} MB/s"


def format_megabytes(rate: BytesPerSecond) -> str:
    """Return a rate or a size as a number of MB, exact and as short as possible.

    >>> format_megabytes(20_000_000), format_megabytes(1_500_000), format_megabytes(1)
    ('20', '1.5', '0.000001')
    """
    whole, rest = divmod(rate, MEGABYTE)
    return f"{whole}{f'.{rest:06d}'.rstrip('0') if rest else ''}"

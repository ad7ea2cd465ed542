"""Units: rates are integers in bytes per second; MB/s appears only at the edges (flags, text API, logs)."""

import re

BytesPerSecond = int
"""A rate; 1 MB/s is 1,000,000."""

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

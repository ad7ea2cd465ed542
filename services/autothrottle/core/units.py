"""Units: rates are integers in bytes per second; MB/s appears only at the edges (flags, text API, logs)."""

import re

from autothrottle.core.errors import Invalid

BytesPerSecond = int
"""A rate; 1 MB/s is 1,000,000."""

MAX_INT32 = 2**31 - 1
"""Largest broker id, partition number and integer setting in Kafka."""

MAX_RATE: BytesPerSecond = 2**63 - 1
"""Kafka stores rates as signed 64-bit integers."""

MEGABYTE = 1_000_000
"""Bytes in one MB."""

GIGABYTE = 1000 * MEGABYTE
"""Bytes in one GB."""


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


def format_size(size_bytes: int) -> str:
    """Return a size in GB, or in MB below 1 GB, with two decimals.

    >>> format_size(41_200_000_000), format_size(5_000_000), format_size(999_999_999)
    ('41.20 GB', '5.00 MB', '1000.00 MB')
    """
    return f"{size_bytes / GIGABYTE:.2f} GB" if size_bytes >= GIGABYTE else f"{size_bytes / MEGABYTE:.2f} MB"


def copy_words(size_bytes: int, unsized_partitions: int = 0) -> str:
    """Return what is to copy, in words: sizes that are unknown do not count as 0 bytes.

    Args:
        size_bytes: bytes to copy of the partitions whose size is known, >= 0.
        unsized_partitions: partitions to copy whose size is unknown, >= 0.

    >>> copy_words(5_000_000), copy_words(5_000_000, 2), copy_words(0, 2)
    ('5.00 MB to copy', 'at least 5.00 MB to copy', 'an unknown size to copy')
    """
    if unsized_partitions and not size_bytes:
        return "an unknown size to copy"
    return f"{'at least ' if unsized_partitions else ''}{format_size(size_bytes)} to copy"


def format_megabytes(rate: BytesPerSecond) -> str:
    """Return a rate or a size as a number of MB, exact and as short as possible.

    >>> format_megabytes(20_000_000), format_megabytes(1_500_000), format_megabytes(1)
    ('20', '1.5', '0.000001')
    """
    whole, rest = divmod(rate, MEGABYTE)
    return f"{whole}{f'.{rest:06d}'.rstrip('0') if rest else ''}"


_QUANTITY = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*(|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)(B|bit)(/s)?\s*", re.ASCII)
_PREFIXES = ("", "k", "m", "g", "t", "p")


def parse_quantity(text: str, per_second: bool) -> float:
    """Return a size in bytes, or a rate in bytes/s, from a number with its unit.

    >>> parse_quantity("7.5TB", per_second=False), parse_quantity("2GiB", per_second=False)
    (7500000000000.0, 2147483648.0)
    >>> parse_quantity("25Gbit/s", per_second=True)
    3125000000.0

    Raises:
        Invalid: the text is not such a quantity, or is 0.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or bool(match[4]) != per_second or not float(match[1]):
        form, example = ("a rate", "1250MB/s or 10Gbit/s") if per_second else ("a size", "7.5TB")
        raise Invalid(f"{text[:60]!r} is not {form} with its unit. Fix: for example {example}")
    prefix, binary = match[2][:1].lower(), match[2].endswith("i")
    size = float(match[1]) * float((1024 if binary else 1000) ** _PREFIXES.index(prefix))
    return size / 8 if match[3] == "bit" else size

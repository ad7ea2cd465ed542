"""Units: rates are integers in bytes per second; MB/s appears only at the edges (flags, text API, logs)."""

BytesPerSecond = int
"""A rate; 1 MB/s is 1,000,000."""


MEGABYTE = 1_000_000
"""Bytes in one MB."""

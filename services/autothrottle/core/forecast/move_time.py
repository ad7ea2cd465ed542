"""The time to copy data under a throttle, and the throttle that a duration needs.

Source: KIP-73 (MoveRatio, MoveTime).
"""

from __future__ import annotations

import math
from datetime import timedelta

from autothrottle.core.units import BytesPerSecond

LONGEST = timedelta(days=365)
"""A longer duration counts as infinite."""


def move_ratio(partitions: int, total_partitions: int) -> float:
    """Return KIP-73's MoveRatio: the share of the cluster's partitions to reassign.

    >>> move_ratio(25, 100)
    0.25
    """
    return partitions / total_partitions if total_partitions else 0.0


def move_time(size: int, rate: BytesPerSecond, growth: BytesPerSecond) -> timedelta | None:
    """Return KIP-73's MoveTime for one link side; None: it would never end, or not within a year.

    `size / (rate - growth)`. For the whole cluster KIP-73 writes
    `MoveRatio x TotalLogSizePerBroker x #Brokers / (replication-quota - max(BytesInPerSec))`.

    Args:
        size: bytes to copy, >= 0.
        rate: the throttle, bytes/s, >= 0.
        growth: produce traffic that counts against the throttle, bytes/s, >= 0.

    >>> move_time(3_600_000_000, 15_000_000, 5_000_000)
    datetime.timedelta(seconds=360)
    >>> move_time(1, 5_000_000, 5_000_000) is None
    True
    """
    if size <= 0:
        return timedelta(0)
    seconds = size / (rate - growth) if rate > growth else math.inf
    return timedelta(seconds=seconds) if seconds < LONGEST.total_seconds() else None


def needed_rate(size: int, growth: BytesPerSecond, within: timedelta) -> BytesPerSecond:
    """Return the lowest throttle with which a link side finishes in time, bytes/s: `size / within + growth`.

    >>> needed_rate(3_600_000_000, 5_000_000, timedelta(seconds=360))
    15000000
    """
    return math.ceil(size / within.total_seconds()) + growth

"""How long it takes to copy so much under a throttle, and which throttle a time needs.

Source: KIP-73 (MoveRatio, MoveTime).
"""

from __future__ import annotations

import math
from datetime import timedelta

from autothrottle.core.loads import BytesPerSecond

LONGEST = timedelta(days=365)
"""What would take longer never ends."""


def move_ratio(partitions: int, total_partitions: int) -> float:
    """Return KIP-73's MoveRatio: the share of the cluster's partitions that is to be moved.

    >>> move_ratio(25, 100)
    0.25
    """
    return partitions / total_partitions if total_partitions else 0.0


def move_time(size: int, rate: BytesPerSecond, growth: BytesPerSecond) -> timedelta | None:
    """Return KIP-73's MoveTime for one port; None: it would never end, or not within a year.

    `size / (rate - growth)`: for the whole cluster KIP-73 writes
    `MoveRatio x TotalLogSizePerBroker x #Brokers / (replication-quota - max(BytesInPerSec))`.

    Args:
        size: bytes to copy, >= 0.
        rate: the throttle, >= 0.
        growth: what is produced meanwhile and counts against the throttle, >= 0.

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
    """Return the lowest throttle under which a port is done in time.

    >>> needed_rate(3_600_000_000, 5_000_000, timedelta(seconds=360))
    15000000
    """
    return math.ceil(size / within.total_seconds()) + growth

"""How much of a link replication may take: the original's formula, with every measurement in its own time.

Source: kafka-kit's autothrottle.
"""

from __future__ import annotations

from autothrottle.core.loads import BytesPerSecond


def client_load(utilization: BytesPerSecond, throttle: BytesPerSecond) -> BytesPerSecond:
    """Return what clients use of a link: `max(utilization - throttle, 0)`.

    Args:
        utilization: mean traffic of the link over some interval, bytes/s, >= 0.
        throttle: mean of the throttle that stood over the same interval, bytes/s; 0 while none stood.

    >>> client_load(80, 20)
    60
    """
    return max(utilization - throttle, 0)


def headroom(
    utilization: BytesPerSecond,
    throttle: BytesPerSecond,
    capacity: BytesPerSecond,
    max_ratio: float,
    min_rate: BytesPerSecond,
) -> BytesPerSecond:
    """Return the rate that replication may take of a link.

    `max((capacity - client - over) * max_ratio, min_rate)` with `client = max(utilization - throttle, 0)` and
    `over = max(utilization - capacity, 0)`.

    Args:
        utilization: mean traffic of the link over some interval, bytes/s, >= 0.
        throttle: mean of the throttle that stood over the same interval, bytes/s; 0 while none stood.
        capacity: what the link carries, bytes/s, > 0.
        max_ratio: share of the headroom given to replication, in (0, 1].
        min_rate: the floor, bytes/s, >= 0; 0 where a link without headroom may be left to its clients.

    >>> headroom(utilization=80, throttle=20, capacity=200, max_ratio=0.9, min_rate=20)
    126
    """
    over = max(utilization - capacity, 0)
    free = capacity - client_load(utilization, throttle) - over
    return max(round(free * max_ratio), min_rate)

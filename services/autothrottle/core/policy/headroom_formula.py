"""How much of a link replication may take: the original's formula, with each measurement compared in its own interval.

Source: kafka-kit's autothrottle.
"""

from __future__ import annotations

from autothrottle.core.units import BytesPerSecond


def client_load(utilization: BytesPerSecond, throttle: BytesPerSecond) -> BytesPerSecond:
    """Return the client load of a link: `max(utilization - throttle, 0)`.

    Args:
        utilization: mean traffic of the link over an interval, bytes/s, >= 0.
        throttle: mean throttle over the same interval, bytes/s; 0: no throttle.

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
    """Return the rate that replication may use on a link, bytes/s.

    `max((capacity - client - over) * max_ratio, min_rate)` with `client = max(utilization - throttle, 0)` and
    `over = max(utilization - capacity, 0)`.

    Args:
        utilization: mean traffic of the link over an interval, bytes/s, >= 0.
        throttle: mean throttle over the same interval, bytes/s; 0: no throttle.
        capacity: capacity of the link, bytes/s, > 0.
        max_ratio: share of the headroom given to replication, in (0, 1].
        min_rate: the floor, bytes/s, >= 0; 0 leaves a link without headroom to its clients.

    >>> headroom(utilization=80, throttle=20, capacity=200, max_ratio=0.9, min_rate=20)
    126
    """
    over = max(utilization - capacity, 0)
    free = capacity - client_load(utilization, throttle) - over
    return max(round(free * max_ratio), min_rate)

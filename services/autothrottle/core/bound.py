"""How fast a move can be at best: the closed form of the slowest port.

No policy is faster that keeps the same ratio of the headroom on every port, however much it knows of the future. A
linear program over all flows and time slots comes to the same (tests/core/test_bound.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Pieces = Sequence[tuple[float, float]]
"""(seconds, bytes/s) one after another from the begin of a move; the last rate holds on."""


@dataclass(frozen=True, slots=True)
class PortDemand:
    """What a move asks of one port, and what the port has for it."""

    size: float
    """Bytes to be copied through it, >= 0."""
    budget: Pieces
    """What replication may take, see `budget`; empty: nothing, ever."""
    growth: float = 0.0
    """What is produced to its moving partitions meanwhile, bytes/s: it is to be copied, too."""


def budget(capacity: float, client: float, ratio: float, min_rate: float) -> float:
    """Return what replication may take of a port, bytes/s: `max(ratio * max(capacity - client, 0), min_rate)`.

    Args:
        capacity: bytes/s, > 0.
        client: what clients get without the move, a mean of about the quota window (10 s), bytes/s.
        ratio: share of the headroom, in (0, 1].
        min_rate: the floor, bytes/s.

    >>> budget(100, 20, 0.9, 10), budget(100, 120, 0.9, 10)
    (72.0, 10)
    """
    return max(ratio * max(capacity - client, 0.0), min_rate)


def port_seconds(port: PortDemand) -> float:
    """Return the first T with `integral of budget over [0, T] >= size + growth * T`; infinite where there is none.

    >>> port_seconds(PortDemand(300.0, [(10.0, 10.0), (10.0, 50.0)]))
    14.0
    """
    left, begun = port.size, 0.0
    if left <= 0:
        return 0.0
    for seconds, rate in port.budget:
        net = rate - port.growth
        if net > 0 and left <= net * seconds:
            return begun + left / net
        left, begun = left - net * seconds, begun + seconds
    net = port.budget[-1][1] - port.growth if port.budget else 0.0
    return begun + left / net if net > 0 else math.inf


def bound_seconds(ports: Iterable[PortDemand]) -> float:
    """Return how long a move takes at least, seconds: as long as its slowest port; 0 without any."""
    return max(map(port_seconds, ports), default=0.0)

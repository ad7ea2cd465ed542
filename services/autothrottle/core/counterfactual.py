"""What a port would have done under other settings: its logged decisions, decided again.

The load of clients is taken to have been what it was; what replication could have carried is what its throttle allows,
as far as the link does. So it tells settings apart, and not what a recovery would have taken to the second. The scorer
says the same in Spark's expressions, and a test holds the two together. The type to know is `Estimate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autothrottle.core.bound import PortDemand, budget, port_seconds
from autothrottle.core.plan import Reason
from autothrottle.core.score import OVERRIDES, Stretch


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of the grid."""

    max_ratio: float
    """Share of the headroom, in (0, 1]."""
    change_threshold: float
    """Share of the standing rate, >= 0."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a port is expected to do under a setting."""

    seconds: float
    """Until it has carried everything; infinite when it never has."""
    harmed_bytes: float
    """What clients wanted and replication left no room for, in the logged time."""
    client_bytes: float
    """What clients wanted in that time."""
    writes: int
    """Changes of the throttle."""


def decided_again(stretch: Stretch, previous: float | None, setting: Setting) -> float:
    """Return the rate that the headroom formula gives under a setting, bytes/s.

    Overrides stay; without metrics the rate is kept where it was, and the minimum elsewhere.

    Args:
        stretch: as it was logged.
        previous: the rate that would stand; None: none.
        setting: to decide by.
    """
    if stretch.reason in OVERRIDES:
        return stretch.decided
    if stretch.forecast is None:
        kept = stretch.reason == Reason.KEPT.value and previous is not None
        return previous if kept and previous is not None else stretch.min_rate
    wanted = budget(stretch.capacity, stretch.forecast, setting.max_ratio, stretch.min_rate)
    if previous is not None and abs(wanted - previous) < setting.change_threshold * previous:
        return previous
    return wanted


def estimate(stretches: Sequence[Stretch], amount: float, growth: float, setting: Setting) -> Estimate:
    """Return what a port would have done.

    Args:
        stretches: of one port in one recovery, in order; what was decided in them is decided again.
        amount: bytes that have to pass it, growth left out.
        growth: of what has to pass it, bytes/s.
        setting: to decide by.
    """
    previous: float | None = None
    pieces, harmed, clients, writes = [], 0.0, 0.0, 0
    for stretch in stretches:
        rate = decided_again(stretch, previous, setting)
        writes += rate != previous
        pieces.append((stretch.seconds, min(rate, stretch.capacity)))
        harmed += max(min(stretch.client + rate - stretch.capacity, stretch.client), 0.0) * stretch.seconds
        clients += stretch.client * stretch.seconds
        previous = rate
    return Estimate(port_seconds(PortDemand(amount, pieces, growth)), harmed, clients, writes)

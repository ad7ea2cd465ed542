"""Ramps: a throttle rises in steps over some seconds, to avoid bursts at link speed.

A broker limits the mean over about 11 s. After a raise by d, it lets 11 s of d through at link speed, then nothing for
seconds, then the next burst, for most of a minute. With steps of one second, each burst is only a step's share. A step
has the same size however late it is: a larger one would be such a burst. A ramp is desired state: the ledger keeps its
target beside the current rate, so a new leader continues from the current rate. A lowering needs no ramp, and cancels
one.

Source: Kafka's SimpleRate (the window). `RISE` is the shortest time with which a simulated meter lets through at most
twice the new rate in any second, also if a new leader continues the ramp.
"""

from __future__ import annotations

from datetime import timedelta
from math import ceil

from autothrottle.core.units import BytesPerSecond

RISE = timedelta(seconds=30)
"""Duration of a ramp from 0 to the target; a raise to three times the rate takes two thirds of it."""

PACE = timedelta(seconds=1)
"""Time between two steps."""

LONGEST_PACE = timedelta(seconds=5)
"""Longest time between two steps, with few notifications left; a step is then a sixth of the target."""

_SHARES = 10
"""A raise by at most a tenth of the rate needs no ramp."""


def needs_ramp(current: BytesPerSecond, target: BytesPerSecond) -> bool:
    """Return whether a raise is large enough to need a ramp.

    >>> needs_ramp(100, 110), needs_ramp(100, 111), needs_ramp(100, 20)
    (False, True, False)
    """
    return (target - current) * _SHARES > current


def step(current: BytesPerSecond, target: BytesPerSecond, elapsed: timedelta) -> BytesPerSecond:
    """Return the next rate of a ramp, bytes/s.

    `min(target, current + target * elapsed / RISE)` for a raise; a lowering is immediate.

    Args:
        current: the current rate, bytes/s, >= 0.
        target: the rate at the end of the ramp, bytes/s, >= 0.
        elapsed: time since the last step, at most the planned time between two steps; below `PACE / 2` the rate stays.

    >>> second = timedelta(seconds=1)
    >>> step(30, 90, second), step(88, 90, second), step(30, 90, LONGEST_PACE), step(90, 30, 0 * second)
    (33, 90, 45, 30)
    """
    if target <= current:
        return target
    if elapsed < PACE / 2:
        return current
    # Rounded up: rounded down, a raise by 59 bytes/s would take 59 steps.
    return min(target, current + ceil(target * (elapsed / RISE)))

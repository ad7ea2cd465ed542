"""How a throttle rises: in steps over seconds, since what a meter has not seen yet goes out at once.

A broker holds the mean of about 10 s to its rate: a raise by d lets 10 s of d through at the speed of the link, then
nothing for seconds, then the next burst, for most of a minute. A raise in steps of a second gives each step's share
only. A ramp is desired state: its target stands in the ledger beside the rate of the moment, so that whoever leads
goes on from what stands. A lowering needs none, and ends one.
"""

from __future__ import annotations

from datetime import timedelta
from math import ceil

from autothrottle.core.loads import BytesPerSecond

RISE = timedelta(seconds=20)
"""From nothing to the target; a raise to three times the rate takes two thirds of it."""

PACE = timedelta(seconds=1)
"""Between two steps."""

LONGEST_STEP = timedelta(seconds=5)
"""A step that comes later is no larger."""

_SHARES = 10
"""A raise by at most a tenth of the rate is made at once."""


def needs_ramp(standing: BytesPerSecond, target: BytesPerSecond) -> bool:
    """Return whether a throttle rises by so much that it has to do it in steps.

    >>> needs_ramp(100, 110), needs_ramp(100, 111), needs_ramp(100, 20)
    (False, True, False)
    """
    return (target - standing) * _SHARES > standing


def step(standing: BytesPerSecond, target: BytesPerSecond, elapsed: timedelta) -> BytesPerSecond:
    """Return the rate to write on the way to a target.

    `min(target, standing + target * elapsed / RISE)` for a raise; a lowering is made at once.

    Args:
        standing: what stands now, bytes/s, >= 0.
        target: what shall stand in the end, bytes/s, >= 0.
        elapsed: since the last step, >= 0; of more than `LONGEST_STEP` no more counts, and before half a `PACE` is
            over there is no step.

    >>> second = timedelta(seconds=1)
    >>> step(30, 100, second), step(98, 100, second), step(30, 100, 60 * second), step(100, 30, 0 * second)
    (35, 100, 55, 30)
    """
    if target <= standing:
        return target
    if elapsed < PACE / 2:
        return standing
    # Rounded up: a raise of 22 bytes/s rounded down would take two steps too many.
    return min(target, standing + ceil(target * (min(elapsed, LONGEST_STEP) / RISE)))

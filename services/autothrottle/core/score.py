"""What a reassignment could have taken at best, and to what the rest of its time went.

Here live the rules for one port (one direction of one broker's link, in one role); the scorer says the same in Spark's
expressions, and a test holds the two together. A port's time is cut into stretches, one from each decision to the next.

The bound is that of the slowest port, see `core.bound`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from autothrottle.core.bound import budget
from autothrottle.core.plan import Reason

REFERENCE_RATIO = 0.9
"""Share of what clients leave of a link that the bound gives to replication: B90h."""

OVERRIDES = frozenset(reason.value for reason in Reason if reason.is_override)


class Cause(StrEnum):
    """Where bytes that a port could have carried went; in the order in which a decision comes about."""

    METRICS_LATE = "metrics_late"
    """Clients used more when they were measured than they did while the rate held."""
    HEADROOM_UNUSED = "headroom_unused"
    """The headroom that was worked out is less than the reference share of what clients left."""
    CHANGE_THRESHOLD = "change_threshold"
    """The rate stayed, since it differed from the headroom by less than the threshold."""
    FAIL_SAFE = "fail_safe"
    """There were no metrics: the last rate was kept, or it was the minimum."""
    OVERRIDE = "override"
    NOT_APPLIED = "not_applied"
    """The rate was decided and did not come to stand."""
    ELSEWHERE = "elsewhere"
    """The throttle allowed more than came: the other end, another limit, or the move's last bytes."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One port from one decision to the next; rates are bytes/s."""

    seconds: float
    """>= 0."""
    capacity: float
    """> 0."""
    client: float
    """What clients used meanwhile, >= 0."""
    forecast: float | None
    """What they were believed to use when it was decided; None: there were no metrics."""
    headroom: float | None
    """What the headroom alone gave; None: there were no metrics, or an override ruled."""
    decided: float
    applied: float | None
    """None: no throttle stood."""
    achieved: float
    """What replication carried."""
    reason: str
    """A `Reason`."""
    min_rate: float = 0.0


def unused(stretch: Stretch, ratio: float) -> Mapping[Cause, float]:
    """Return what of the budget was not carried, by cause, in bytes/s; the sum is `budget - achieved`.

    A cause below 0 made up for another one: the rate was above the budget, for example.

    Args:
        stretch: of the port.
        ratio: the reference share, in (0, 1].
    """
    applied = stretch.decided if stretch.applied is None else stretch.applied
    whole = budget(stretch.capacity, stretch.client, ratio, stretch.min_rate)
    causes = dict.fromkeys(Cause, 0.0)
    if stretch.reason in OVERRIDES:
        causes[Cause.OVERRIDE] = whole - stretch.decided
    elif stretch.forecast is None or stretch.headroom is None:
        causes[Cause.FAIL_SAFE] = whole - stretch.decided
    else:
        seen = budget(stretch.capacity, stretch.forecast, ratio, stretch.min_rate)
        causes[Cause.METRICS_LATE] = whole - seen
        causes[Cause.HEADROOM_UNUSED] = seen - stretch.headroom
        causes[Cause.CHANGE_THRESHOLD] = stretch.headroom - stretch.decided
    causes[Cause.NOT_APPLIED] = stretch.decided - applied
    causes[Cause.ELSEWHERE] = applied - stretch.achieved
    return causes

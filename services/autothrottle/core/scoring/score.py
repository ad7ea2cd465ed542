"""The score of a reassignment: the best possible duration, and the causes of the rest.

This module defines the rules for one link side. The scorer has the same rules as Spark expressions, and a test compares
both. The time of a link side is split into stretches, one from each decision to the next. The bound is that of the
slowest link side, see `bound`. The type to know is `Stretch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from autothrottle.core.records import Reason
from autothrottle.core.scoring.bound import available_rate

REFERENCE_RATIO = 0.9
"""Share of the headroom that the bound gives to replication; the bound with this share is called B90h."""

OVERRIDES = frozenset(reason.value for reason in Reason if reason.is_override)


class Cause(StrEnum):
    """Why a link side copied less than it could have; in the order in which a decision is made."""

    METRICS_LATE = "metrics_late"
    """The client load was higher when measured than while the rate was in force."""
    HEADROOM_UNUSED = "headroom_unused"
    """The policy's rate is less than the reference share of the headroom."""
    CHANGE_THRESHOLD = "change_threshold"
    """The rate stayed, because it differed from the policy's by less than the threshold."""
    FAIL_SAFE = "fail_safe"
    """There were no metrics, so the rate was the last one or the minimum."""
    OVERRIDE = "override"
    NOT_APPLIED = "not_applied"
    """The decided rate was not applied."""
    ELSEWHERE = "elsewhere"
    """Less was copied than the throttle allows: the other end, another limit, or the last bytes."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One link side from one decision to the next; rates are bytes/s."""

    seconds: float
    """Duration, >= 0."""
    capacity: float
    """> 0."""
    client: float
    """Actual mean client load, >= 0."""
    forecast: float | None
    """Client load assumed by the decision; None: no metrics."""
    headroom: float | None
    """Rate from the headroom alone; None: no metrics, or under an override."""
    decided: float
    """Rate of the decision."""
    applied: float | None
    """Throttle in force; None: none."""
    achieved: float
    """Mean replication."""
    reason: str
    """A `Reason`."""
    min_rate: float = 0.0
    """The floor."""


def unused(stretch: Stretch, ratio: float) -> Mapping[Cause, float]:
    """Return cause -> unused part of the available rate, bytes/s; the sum is `available_rate - achieved`.

    A negative value offsets another cause, for example if the rate was above the available rate.

    Args:
        stretch: one stretch of a link side.
        ratio: the reference share, in (0, 1].
    """
    applied = stretch.decided if stretch.applied is None else stretch.applied
    whole = available_rate(stretch.capacity, stretch.client, ratio, stretch.min_rate)
    causes = dict.fromkeys(Cause, 0.0)
    if stretch.reason in OVERRIDES:
        causes[Cause.OVERRIDE] = whole - stretch.decided
    elif stretch.forecast is None or stretch.headroom is None:
        causes[Cause.FAIL_SAFE] = whole - stretch.decided
    else:
        measured = available_rate(stretch.capacity, stretch.forecast, ratio, stretch.min_rate)
        causes[Cause.METRICS_LATE] = whole - measured
        causes[Cause.HEADROOM_UNUSED] = measured - stretch.headroom
        causes[Cause.CHANGE_THRESHOLD] = stretch.headroom - stretch.decided
    causes[Cause.NOT_APPLIED] = stretch.decided - applied
    causes[Cause.ELSEWHERE] = applied - stretch.achieved
    return causes

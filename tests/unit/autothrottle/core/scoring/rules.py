"""The rules of the scorer for one link side in plain Python, with which a test compares its Spark expressions.

The time of a link side is split into stretches, one from each decision to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autothrottle.core.scoring.score import OVERRIDES, Cause, available_rate


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

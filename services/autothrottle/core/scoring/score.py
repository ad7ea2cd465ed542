"""What a score compares and names: the bound, the causes of lost time, and settings.

The scorer computes scores with arrays. A test compares them with the same rules in Python
(tests/unit/autothrottle/core/scoring/rules.py). The types to know are `Cause` and `Setting`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autothrottle.core.records import Reason

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


CAUSE_NAMES: Mapping[str, str] = {
    Cause.METRICS_LATE: "Metrics arrived late",
    Cause.HEADROOM_UNUSED: "Headroom not given to replication",
    Cause.CHANGE_THRESHOLD: "Rate kept by the change threshold",
    Cause.FAIL_SAFE: "No metrics",
    Cause.OVERRIDE: "Rate set by an operator",
    Cause.NOT_APPLIED: "Rate not in force yet",
    Cause.ELSEWHERE: "Limit elsewhere",
    "other": "Not due to one cause",
}
"""Cause of lost time -> its name for readers."""

TOLERATED_HARM = 0.001
"""Share of client bytes that a recommended setting may displace even if the present setting displaces less."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the grid."""

    max_ratio: float
    """Share of the headroom, in (0, 1]."""
    change_threshold: float
    """Share of the current rate, >= 0."""
    every: int = 1
    """Every n-th logged cycle decides, starting with the first, >= 1: n times the logged interval."""
    policy: str = "headroom"
    """`headroom` or `adaptive`."""


Pieces = Sequence[tuple[float, float]]
"""Consecutive (seconds, bytes/s) from the start of a reassignment; the last rate continues without end."""


@dataclass(frozen=True, slots=True)
class LinkSideDemand:
    """The data that a reassignment copies over one link side, and the rate available for it."""

    size: float
    """Bytes to copy, >= 0."""
    available_rate: Pieces
    """The rate that replication may use, see the function `available_rate`; empty: always 0."""
    growth: float = 0.0
    """Produce rate to these partitions, bytes/s; this data must be copied, too."""


def available_rate(capacity: float, client: float, ratio: float, min_rate: float) -> float:
    """Return the rate that replication may use, bytes/s: `max(ratio * max(capacity - client, 0), min_rate)`.

    Args:
        capacity: capacity of the link side, bytes/s, > 0.
        client: client load without the reassignment, as a mean over about the quota window (10 s), bytes/s.
        ratio: share of the headroom, in (0, 1].
        min_rate: the floor, bytes/s.

    >>> available_rate(100, 20, 0.9, 10), available_rate(100, 120, 0.9, 10)
    (72.0, 10)
    """
    return max(ratio * max(capacity - client, 0.0), min_rate)


def link_side_seconds(side: LinkSideDemand) -> float:
    """Return the first T, in seconds, with `integral of available_rate over [0, T] >= size + growth * T`; inf: none.

    >>> link_side_seconds(LinkSideDemand(300.0, [(10.0, 10.0), (10.0, 50.0)]))
    14.0
    """
    bytes_left, elapsed = side.size, 0.0
    if bytes_left <= 0:
        return 0.0
    for seconds, rate in side.available_rate:
        net = rate - side.growth
        if net > 0 and bytes_left <= net * seconds:
            return elapsed + bytes_left / net
        bytes_left, elapsed = bytes_left - net * seconds, elapsed + seconds
    net = side.available_rate[-1][1] - side.growth if side.available_rate else 0.0
    return elapsed + bytes_left / net if net > 0 else math.inf


def bound_seconds(sides: Iterable[LinkSideDemand]) -> float:
    """Return the shortest possible duration of a reassignment, in seconds: the time of its slowest link side.

    No policy that keeps the same share of the headroom on every link side is faster, even if it knows the future. A
    linear program over all flows and time slots gives the same result
    (tests/unit/autothrottle/core/scoring/test_bound.py).
    """
    return max(map(link_side_seconds, sides), default=0.0)

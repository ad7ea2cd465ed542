"""What a score names: the causes of lost time, and the settings that are estimated and recommended.

The scorer computes scores and estimates as Spark expressions. A test compares them with the same rules in Python
(tests/unit/autothrottle/core/scoring/rules.py). The types to know are `Cause` and `Recommendation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

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


TOLERATED_HARM = 0.001
"""Share of client bytes that a recommended setting may displace even if the present setting displaces less."""

_AS_FAST = 1.01
"""Estimates within this factor of the fastest count as equal; then the fewest writes decide."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the grid."""

    max_ratio: float
    """Share of the headroom, in (0, 1]."""
    change_threshold: float
    """Share of the current rate, >= 0."""
    every: int = 1
    """Every n-th logged cycle decides, starting with the first, >= 1: n times the logged interval."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The estimated result of a setting over all recoveries of a cluster."""

    cluster: str
    ratio: float | None
    """`Setting.max_ratio`; None: the logged setting, which may differ between recoveries."""
    threshold: float | None
    """`Setting.change_threshold`; None: the logged setting."""
    every: int
    """`Setting.every`."""
    interval_seconds: float | None
    """Longest interval between decisions; None: the log is of an older version without it."""
    is_logged: bool
    """Whether this is the logged setting."""
    recoveries: int
    """Number of recoveries."""
    estimated_seconds: float
    """Sum over the recoveries."""
    harmed_share: float
    """Client bytes that replication would have displaced, as a share of all client bytes."""
    writes: int
    """Number of throttle changes."""

    def order(self) -> tuple[str, int, float, float]:
        """Return the sort key: by cluster, interval, threshold and ratio; the logged setting comes first."""
        return self.cluster, self.every, -1 if self.threshold is None else self.threshold, self.ratio or 0.0


class Recommendation(NamedTuple):
    """The best setting for a cluster, and the estimate of the logged setting for comparison."""

    best: Cell
    logged: Cell


def recommended(cells: Iterable[Cell]) -> list[Recommendation]:
    """Return for each cluster the fastest setting that displaces no more client bytes than the logged one.

    `TOLERATED_HARM` is always allowed. Of settings within 1 % of the fastest, the one with the fewest writes wins. A
    cluster without such a setting has no recommendation.

    Args:
        cells: cells of any clusters; each cluster has exactly one logged cell.
    """
    by_cluster: dict[str, list[Cell]] = {}
    for cell in cells:
        by_cluster.setdefault(cell.cluster, []).append(cell)
    recommendations = (_recommended(by_cluster[cluster]) for cluster in sorted(by_cluster))
    return [recommendation for recommendation in recommendations if recommendation is not None]


def _recommended(cells: Sequence[Cell]) -> Recommendation | None:
    (logged,) = (cell for cell in cells if cell.is_logged)
    allowed = max(logged.harmed_share, TOLERATED_HARM)
    candidates = [cell for cell in cells if not cell.is_logged and cell.harmed_share <= allowed]
    if not candidates:
        return None
    longest = min(cell.estimated_seconds for cell in candidates) * _AS_FAST
    close = [cell for cell in candidates if cell.estimated_seconds <= longest]
    best = min(close, key=lambda cell: (cell.writes, cell.estimated_seconds, *cell.order()))
    return Recommendation(best, logged)

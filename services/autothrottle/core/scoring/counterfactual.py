"""Counterfactuals: a link side's logged decisions, decided again under other settings.

The client load is taken from the log. Replication is assumed to use its whole throttle, up to the link's capacity. So
the result compares settings, but does not predict durations to the second. The scorer has the same rules as Spark
expressions, and a test compares both; only `recommended` exists here alone. The type to know is `SettingEstimate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autothrottle.core.records import Reason
from autothrottle.core.scoring.bound import LinkSideDemand, available_rate, link_side_seconds
from autothrottle.core.scoring.score import OVERRIDES, Stretch

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
class SettingEstimate:
    """The estimated result of a setting on one link side."""

    seconds: float
    """Time until everything is copied; inf: never."""
    harmed_bytes: float
    """Client bytes that replication would have displaced in the logged time, with a client load that is higher than
    logged by `forecast_error`."""
    client_bytes: float
    """Client bytes in that time."""
    writes: int
    """Number of throttle changes."""


def rate_under_setting(stretch: Stretch, previous: float | None, setting: Setting) -> float:
    """Return the rate by the headroom formula under a setting, bytes/s.

    Overrides stay. Without metrics, the previous rate is kept if the logged decision kept it; otherwise the rate is the
    minimum.

    Args:
        stretch: the stretch as logged.
        previous: the previous rate under the setting, bytes/s; None: none.
        setting: the setting to apply.
    """
    if stretch.reason in OVERRIDES:
        return stretch.decided
    if stretch.forecast is None:
        is_unchanged = stretch.reason == Reason.KEPT.value and previous is not None
        return previous if is_unchanged and previous is not None else stretch.min_rate
    rate = available_rate(stretch.capacity, stretch.forecast, setting.max_ratio, stretch.min_rate)
    if previous is not None and abs(rate - previous) < setting.change_threshold * previous:
        return previous
    return rate


def forecast_error(stretches: Iterable[Stretch]) -> float:
    """Return the root mean square error of the client load forecasts, bytes/s.

    It serves as a margin, because a log contains only some of the possible loads: a setting that just fits the logged
    loads would displace clients at the next ones.
    """
    errors = [(s.client - s.forecast) ** 2 for s in stretches if s.forecast is not None]
    return math.sqrt(sum(errors) / len(errors)) if errors else 0.0


def estimate(stretches: Sequence[Stretch], amount: float, growth: float, setting: Setting) -> SettingEstimate:
    """Return the estimated result of a setting on one link side.

    Args:
        stretches: the stretches of one link side in one recovery, in order; their decisions are made again.
        amount: bytes to copy over the link side, without growth.
        growth: produce rate to these partitions, bytes/s.
        setting: the setting to apply.
    """
    previous: float | None = None
    pieces, harmed, clients, writes = [], 0.0, 0.0, 0
    margin = forecast_error(stretches)
    for number, stretch in enumerate(stretches):
        is_due = number % setting.every == 0 or stretch.reason in OVERRIDES
        rate = previous if previous is not None and not is_due else rate_under_setting(stretch, previous, setting)
        writes += rate != previous
        pieces.append((stretch.seconds, min(rate, stretch.capacity)))
        client_rate = stretch.client + margin
        harmed += max(min(client_rate + rate - stretch.capacity, client_rate), 0.0) * stretch.seconds
        clients += stretch.client * stretch.seconds
        previous = rate
    return SettingEstimate(link_side_seconds(LinkSideDemand(amount, pieces, growth)), harmed, clients, writes)


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
    """`SettingEstimate.harmed_bytes` as a share of the client bytes."""
    writes: int
    """Number of throttle changes."""

    def order(self) -> tuple[str, int, float, float]:
        """Return the sort key: by cluster, interval, threshold and ratio; the logged setting comes first."""
        return self.cluster, self.every, -1 if self.threshold is None else self.threshold, self.ratio or 0.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best setting for a cluster, and the estimate of the logged setting (`today_*`) for comparison."""

    cluster: str
    ratio: float
    threshold: float
    every: int
    interval_seconds: float | None
    recoveries: int
    estimated_seconds: float
    harmed_share: float
    writes: int
    today_seconds: float
    today_harmed_share: float
    today_writes: int


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
    (today,) = (cell for cell in cells if cell.is_logged)
    allowed = max(today.harmed_share, TOLERATED_HARM)
    candidates = [cell for cell in cells if not cell.is_logged and cell.harmed_share <= allowed]
    if not candidates:
        return None
    longest = min(cell.estimated_seconds for cell in candidates) * _AS_FAST
    close = [cell for cell in candidates if cell.estimated_seconds <= longest]
    best = min(close, key=lambda cell: (cell.writes, cell.estimated_seconds, *cell.order()))
    assert best.ratio is not None and best.threshold is not None
    return Recommendation(
        cluster=best.cluster,
        ratio=best.ratio,
        threshold=best.threshold,
        every=best.every,
        interval_seconds=best.interval_seconds,
        recoveries=best.recoveries,
        estimated_seconds=best.estimated_seconds,
        harmed_share=best.harmed_share,
        writes=best.writes,
        today_seconds=today.estimated_seconds,
        today_harmed_share=today.harmed_share,
        today_writes=today.writes,
    )

"""What a port would have done under other settings: its logged decisions, decided again.

The load of clients is taken to have been what it was; what replication could have carried is what its throttle allows,
as far as the link does. So it tells settings apart, and not what a recovery would have taken to the second. The scorer
says the same in Spark's expressions, and a test holds the two together. What is made of the estimates of a grid,
`recommended`, is here alone. The type to know is `Estimate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autothrottle.core.bound import PortDemand, budget, port_seconds
from autothrottle.core.plan import Reason
from autothrottle.core.score import OVERRIDES, Stretch

TOLERATED_HARM = 0.001
"""Share of clients' bytes that a recommended setting may leave without room, where today's leaves less."""

_AS_FAST = 1.01
"""So many times the fastest estimate is as good: the fewest writes decide then."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of the grid."""

    max_ratio: float
    """Share of the headroom, in (0, 1]."""
    change_threshold: float
    """Share of the standing rate, >= 0."""
    every: int = 1
    """Of the logged cycles each n-th decides, the first one included, >= 1: so many times the logged interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a port is expected to do under a setting."""

    seconds: float
    """Until it has carried everything; infinite when it never has."""
    harmed_bytes: float
    """What replication would have left no room for, had clients wanted more than they did by `forecast_error`, in the
    logged time."""
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


def forecast_error(stretches: Iterable[Stretch]) -> float:
    """Return how far clients were off what they were believed to use: the root of the mean square, bytes/s.

    A log shows a few of the loads that come; a setting for which they just left room leaves none for the next ones.
    """
    errors = [(s.client - s.forecast) ** 2 for s in stretches if s.forecast is not None]
    return math.sqrt(sum(errors) / len(errors)) if errors else 0.0


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
    margin = forecast_error(stretches)
    for number, stretch in enumerate(stretches):
        is_due = number % setting.every == 0 or stretch.reason in OVERRIDES
        rate = previous if previous is not None and not is_due else decided_again(stretch, previous, setting)
        writes += rate != previous
        pieces.append((stretch.seconds, min(rate, stretch.capacity)))
        wanted = stretch.client + margin
        harmed += max(min(wanted + rate - stretch.capacity, wanted), 0.0) * stretch.seconds
        clients += stretch.client * stretch.seconds
        previous = rate
    return Estimate(port_seconds(PortDemand(amount, pieces, growth)), harmed, clients, writes)


@dataclass(frozen=True, slots=True)
class Cell:
    """What a setting would have meant for all recoveries of a cluster together."""

    cluster: str
    ratio: float | None
    """`Setting.max_ratio`; None, as `threshold`: what was in force, which may differ between recoveries."""
    threshold: float | None
    """`Setting.change_threshold`."""
    every: int
    """`Setting.every`."""
    interval_seconds: float | None
    """Between decisions, at most; None: a log of an older version does not say."""
    is_logged: bool
    """Whether it is what was in force."""
    recoveries: int
    estimated_seconds: float
    """The sum."""
    harmed_share: float
    """`Estimate.harmed_bytes` as a share of clients' bytes."""
    writes: int

    def order(self) -> tuple[str, int, float, float]:
        """Cells of a cluster by interval, threshold, then ratio; what was in force comes first."""
        return self.cluster, self.every, -1 if self.threshold is None else self.threshold, self.ratio or 0.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The setting that a cluster should have had, and the same estimate of what was in force (`today`)."""

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
    """Return for each cluster the fastest cell that harms clients no more than what was in force, or hardly.

    Of cells that are about as fast the one with the fewest writes is taken. A cluster has none where no cell is as kind
    to its clients.

    Args:
        cells: of any clusters, each with one that is logged.
    """
    by_cluster: dict[str, list[Cell]] = {}
    for cell in cells:
        by_cluster.setdefault(cell.cluster, []).append(cell)
    found = (_recommended(by_cluster[cluster]) for cluster in sorted(by_cluster))
    return [recommendation for recommendation in found if recommendation is not None]


def _recommended(cells: Sequence[Cell]) -> Recommendation | None:
    (today,) = (cell for cell in cells if cell.is_logged)
    allowed = max(today.harmed_share, TOLERATED_HARM)
    kind = [cell for cell in cells if not cell.is_logged and cell.harmed_share <= allowed]
    if not kind:
        return None
    longest = min(cell.estimated_seconds for cell in kind) * _AS_FAST
    close = [cell for cell in kind if cell.estimated_seconds <= longest]
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

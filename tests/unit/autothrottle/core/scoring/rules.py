"""The rules of the scorer for one link side in plain Python, with which a test compares its Spark expressions.

The time of a link side is split into stretches, one from each decision to the next. Estimates take the client load from
the log, and assume that replication uses its whole throttle, up to the link's capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autothrottle.core.records import Reason
from autothrottle.core.scoring.score import OVERRIDES, Cause, LinkSideDemand, Setting, available_rate, link_side_seconds


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

"""The duration of a reassignment: under given throttles (KIP-73's MoveTime), and from the rates of the last minutes.

The ETA has an interval, which shows how far the rates of the last minutes scatter: bytes left divided by the mean rate
plus and minus twice its standard error. It does not cover later changes. Without rates it is computed from the
throttles. The type to know is `Forecast`.

Source: KIP-73 (MoveRatio, MoveTime).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import stdev
from typing import NamedTuple, TypeVar

from autothrottle.core.cluster.flows import Flow, FlowProgress, LinkSide, Progress, TopicProgress, link_sides_of
from autothrottle.core.units import BytesPerSecond

SHORTEST_SPAN = timedelta(seconds=15)
"""Shortest time over which a rate is meaningful, because the quota window is 11 s. Three samples 10 s apart suffice."""

_AGES = tuple(timedelta(seconds=seconds) for seconds in (15, 30, 45, 60, 90, 120, 150))
"""Ages of the samples that are used, beside the newest and the oldest."""

_SPANS = 2
"""Least number of spans for an interval."""

_DEVIATIONS = 2.0
"""Half width of the interval, in standard errors of the mean rate."""

_Time = TypeVar("_Time", datetime, timedelta)

Rates = Mapping[LinkSide, BytesPerSecond]
"""Link side -> its throttle, bytes/s."""


LONGEST = timedelta(days=365)
"""A longer duration counts as infinite."""


class Forecast(NamedTuple):
    """An ETA with its interval, UTC."""

    eta: datetime | None = None
    """End at the mean rate; None: unknown, or stalled."""
    low: datetime | None = None
    """Earliest end; None: unknown."""
    high: datetime | None = None
    """Latest end; None: unknown."""


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """The cumulative gain at one time, counted from an arbitrary start."""

    at: datetime
    gained: int
    """Bytes copied minus bytes newly to copy; may decrease."""


def forecast(points: Sequence[ForecastPoint], bytes_left: int) -> Forecast:
    """Return when the bytes left will be copied, extrapolated from the gain so far.

    Args:
        points: ascending by time.
        bytes_left: bytes left at the newest point, >= 0.
    """
    if not points or points[-1].at - points[0].at < SHORTEST_SPAN:
        return Forecast()
    newest = points[-1]
    mean = _rate(points[0], newest)
    eta, error = _end(newest.at, bytes_left, mean), _standard_error(points)
    if error is None:
        return Forecast(eta)
    low, high = (_end(newest.at, bytes_left, mean + sign * _DEVIATIONS * error) for sign in (1, -1))
    return Forecast(eta, low, high)


def _end(at: datetime, bytes_left: int, rate: float) -> datetime | None:
    seconds = bytes_left / rate if rate > 0 else math.inf
    return at + timedelta(seconds=seconds) if seconds < LONGEST.total_seconds() else None


def _rate(first: ForecastPoint, last: ForecastPoint) -> float:
    return (last.gained - first.gained) / (last.at - first.at).total_seconds()


def _standard_error(points: Sequence[ForecastPoint]) -> float | None:
    """Return the standard error of the mean rate, from spans of at least `SHORTEST_SPAN`; None: too few spans."""
    ends = [points[-1]]
    for point in reversed(points[:-1]):
        if ends[-1].at - point.at >= SHORTEST_SPAN:
            ends.append(point)
    rates = [_rate(first, last) for last, first in pairwise(ends)]
    return stdev(rates) / math.sqrt(len(rates)) if len(rates) >= _SPANS else None


def last_of(forecasts: Iterable[Forecast]) -> Forecast:
    """Return the end of the last of these forecasts; a value that is unknown in one of them is unknown."""
    return Forecast(*map(_last, zip(*forecasts, strict=True)))


def _last(times: Sequence[_Time | None]) -> _Time | None:
    finite_times = [time for time in times if time is not None]
    return max(finite_times) if finite_times and len(finite_times) == len(times) else None


def forecast_all(samples: Sequence[Progress]) -> Forecast:
    """Return when the last byte of all flows will be copied, from consecutive samples, the newest last.

    A follower needs `left / (copied - produced)`; the last two are rates since the oldest sample that has all its
    flows. The reassignment ends with the slowest follower. The end is unknown if the samples span less than
    `SHORTEST_SPAN`, or if a follower copies less than clients produce.
    """
    newest = samples[-1] if samples else Progress()
    bytes_left: dict[int, int] = {}
    waiting: dict[int, int] = {}
    for flow, progress in newest.flows.items():
        if progress.bytes_left > 0:
            bytes_left[flow.follower] = bytes_left.get(flow.follower, 0) + progress.bytes_left
            waiting[flow.follower] = waiting.get(flow.follower, 0) + 1
    if not waiting:
        done = newest.at if newest.flows else None
        return Forecast(done, done, done)
    points: dict[int, list[ForecastPoint]] = {follower: [] for follower in waiting}
    for sample in _spread(samples):
        for follower, (point, count) in _points(sample, newest.flows).items():
            if count == waiting.get(follower):
                points[follower].append(point)
    return last_of(forecast(gains, bytes_left[follower]) for follower, gains in points.items())


def _spread(samples: Sequence[Progress]) -> Sequence[Progress]:
    """Return the oldest sample, the newest and some between, because all would be too many with 100,000 flows."""
    last, spread = samples[-1], [samples[-1]]
    ages = list(_AGES)
    for sample in reversed(samples[:-1]):
        if last.at is None or sample.at is None:
            continue
        if ages and last.at - sample.at >= ages[0]:
            spread.append(sample)
            ages = [age for age in ages if age > last.at - sample.at]
    if samples[0] is not spread[-1]:
        spread.append(samples[0])
    return spread[::-1]


def _points(sample: Progress, newest: Mapping[Flow, FlowProgress]) -> Mapping[int, tuple[ForecastPoint, int]]:
    """Return follower -> (its gain up to a sample, over flows with the same `since`; how many of these are active)."""
    gained: dict[int, int] = {}
    at: dict[int, datetime] = {}
    active_flows: dict[int, int] = {}
    for flow, progress in sample.flows.items():
        newest_progress = newest.get(flow)
        if newest_progress is None or newest_progress.since != progress.since:
            continue
        follower = flow.follower
        copied = newest_progress.bytes_copied - progress.bytes_copied
        produced = newest_progress.bytes_produced - progress.bytes_produced
        gained[follower] = gained.get(follower, 0) - (copied - produced)
        if newest_progress.bytes_left > 0:
            active_flows[follower] = active_flows.get(follower, 0) + 1
            if follower not in at or progress.at > at[follower]:
                at[follower] = progress.at
    return {
        follower: (ForecastPoint(at[follower], gained[follower]), count) for follower, count in active_flows.items()
    }


def with_topics(samples: Sequence[Progress], whole: Forecast) -> Mapping[str, TopicProgress]:
    """Return topic -> its progress with an ETA, for the topics of the newest sample; no ETA is later than `whole`.

    A topic's gain is the decrease of its bytes left. So its ETA is unknown for a while after partitions are added.
    """
    newest = samples[-1]
    topics = {}
    for topic, progress in newest.topics.items():
        points = [
            ForecastPoint(sample.at, -sample.topics[topic].bytes_left)
            for sample in samples
            if sample.at is not None and topic in sample.topics
        ]
        end = forecast(points, progress.bytes_left) if progress.bytes_left else Forecast(*[newest.at] * 3)
        eta, low, high = map(_earlier, end, whole)
        topics[topic] = replace(progress, eta=eta, eta_low=low, eta_high=high)
    return topics


def _earlier(time: datetime | None, bound: datetime | None) -> datetime | None:
    return time if time is None or bound is None else min(time, bound)


def static_end(progress: Progress, moving: Collection[Flow], rates: Rates) -> datetime | None:
    """Return the end of a reassignment that has just started, if its throttles stay; None: it started earlier.

    It is KIP-73's MoveTime of the slowest link side: `left / (throttle - produced)`.

    Args:
        progress: the progress; must contain every active flow.
        moving: the active flows.
        rates: the current throttles; a link side without a throttle is never the slowest.
    """
    counts = [progress.flows.get(flow) for flow in moving]
    if any(count is None or count.at - count.since >= 2 * SHORTEST_SPAN for count in counts):
        return None
    traffic = [(progress.link_traffic[side], rates[side]) for side in link_sides_of(moving) if side in rates]
    times = [move_time(part.bytes_left, rate, round(part.produced)) for part, rate in traffic]
    longest = _last(times)
    return progress.at + longest if progress.at and longest is not None else None


def move_ratio(partitions: int, total_partitions: int) -> float:
    """Return KIP-73's MoveRatio: the share of the cluster's partitions to reassign.

    >>> move_ratio(25, 100)
    0.25
    """
    return partitions / total_partitions if total_partitions else 0.0


def move_time(size: int, rate: BytesPerSecond, growth: BytesPerSecond) -> timedelta | None:
    """Return KIP-73's MoveTime for one link side; None: it would never end, or not within a year.

    `size / (rate - growth)`. For the whole cluster KIP-73 writes
    `MoveRatio x TotalLogSizePerBroker x #Brokers / (replication-quota - max(BytesInPerSec))`.

    Args:
        size: bytes to copy, >= 0.
        rate: the throttle, bytes/s, >= 0.
        growth: produce traffic that counts against the throttle, bytes/s, >= 0.

    >>> move_time(3_600_000_000, 15_000_000, 5_000_000)
    datetime.timedelta(seconds=360)
    >>> move_time(1, 5_000_000, 5_000_000) is None
    True
    """
    if size <= 0:
        return timedelta(0)
    seconds = size / (rate - growth) if rate > growth else math.inf
    return timedelta(seconds=seconds) if seconds < LONGEST.total_seconds() else None


def needed_rate(size: int, growth: BytesPerSecond, within: timedelta) -> BytesPerSecond:
    """Return the lowest throttle with which a link side finishes in time, bytes/s: `size / within + growth`.

    >>> needed_rate(3_600_000_000, 5_000_000, timedelta(seconds=360))
    15000000
    """
    return math.ceil(size / within.total_seconds()) + growth

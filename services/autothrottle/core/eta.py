"""When a move is over: by the rates of the last minutes with an interval, or by its throttles while there are none.

The interval says how far the rates of the last minutes scatter: it holds what is left by the mean rate less, and plus,
twice its standard error. What changes later, it cannot know. The type to know is `Forecast`.

Source: KIP-73 (MoveTime), for the throttles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import stdev

from autothrottle.core.flows import Flow, FlowProgress, Progress, TopicProgress
from autothrottle.core.loads import BytesPerSecond, Port
from autothrottle.core.move_time import LONGEST, move_time

SHORTEST_SPAN = timedelta(seconds=15)
"""Less says nothing: a throttle is enforced over 11 s. Three readings 10 s apart are surely more."""

_AGES = tuple(timedelta(seconds=seconds) for seconds in (15, 30, 45, 60, 90, 120, 150))
"""Of the readings that are looked at, beside the newest and the oldest."""

_SPANS = 2
"""So many make an interval."""

_DEVIATIONS = 2.0
"""Standard errors of the mean rate on each side of it."""

Rates = Mapping[Port, BytesPerSecond]
"""Port -> its throttle."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When something is over, UTC."""

    eta: datetime | None = None
    """By the mean rate; None: unknown, or it stands still."""
    low: datetime | None = None
    """Not before this; None: unknown."""
    high: datetime | None = None
    """Not after this; None: unknown."""


@dataclass(frozen=True, slots=True)
class Point:
    """How much was gained until some moment, from any beginning."""

    at: datetime
    gained: int
    """Bytes that landed less those that were added to what is to be copied; may fall."""


def forecast(points: Sequence[Point], left: int) -> Forecast:
    """Return when what is left has landed, by what was gained until now.

    Args:
        points: in the order of time, the newest last.
        left: bytes, at the newest of them, >= 0.
    """
    if not points or points[-1].at - points[0].at < SHORTEST_SPAN:
        return Forecast()
    newest = points[-1]
    mean = _rate(points[0], newest)
    error = _standard_error(points)
    return Forecast(
        eta=_end(newest.at, left, mean),
        low=None if error is None else _end(newest.at, left, mean + _DEVIATIONS * error),
        high=None if error is None else _end(newest.at, left, mean - _DEVIATIONS * error),
    )


def _end(at: datetime, left: int, rate: float) -> datetime | None:
    seconds = left / rate if rate > 0 else math.inf
    return at + timedelta(seconds=seconds) if seconds < LONGEST.total_seconds() else None


def _rate(first: Point, last: Point) -> float:
    return (last.gained - first.gained) / (last.at - first.at).total_seconds()


def _standard_error(points: Sequence[Point]) -> float | None:
    """Of the mean rate, by spans of which each is long enough to say something; None: there are too few."""
    ends = [points[-1]]
    for point in reversed(points[:-1]):
        if ends[-1].at - point.at >= SHORTEST_SPAN:
            ends.append(point)
    rates = [_rate(first, last) for last, first in pairwise(ends)]
    return stdev(rates) / math.sqrt(len(rates)) if len(rates) >= _SPANS else None


def last_of(found: Iterable[Forecast]) -> Forecast:
    """Return when all of these are over; what is unknown of one is unknown of all."""
    each = list(found)
    return Forecast(
        eta=_last([one.eta for one in each]),
        low=_last([one.low for one in each]),
        high=_last([one.high for one in each]),
    )


def _last(times: Sequence[datetime | None]) -> datetime | None:
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None


def forecast_all(readings: Sequence[Progress]) -> Forecast:
    """Return when the last byte of all lands, by successive readings, the newest last.

    A destination needs `left / (landed - grown)`, the last two as rates since the oldest reading that knows all its
    flows; the move ends with the slowest destination. It is unknown while there are fewer than `SHORTEST_SPAN` of
    readings, and when a destination gains less than its leaders' logs grow.
    """
    newest = readings[-1] if readings else Progress()
    left: dict[int, int] = {}
    waiting: dict[int, int] = {}
    for flow, progress in newest.flows.items():
        if progress.bytes_left > 0:
            left[flow.follower] = left.get(flow.follower, 0) + progress.bytes_left
            waiting[flow.follower] = waiting.get(flow.follower, 0) + 1
    if not waiting:
        done = newest.at if newest.flows else None
        return Forecast(done, done, done)
    points: dict[int, list[Point]] = {follower: [] for follower in waiting}
    for reading in _spread(readings):
        for follower, (point, known) in _points(reading, newest.flows).items():
            if known == waiting.get(follower):
                points[follower].append(point)
    return last_of(forecast(found, left[follower]) for follower, found in points.items())


def _spread(readings: Sequence[Progress]) -> Sequence[Progress]:
    """The oldest, the newest and some between: all of the last minutes are too many where there are 100,000 flows."""
    last, kept = readings[-1], [readings[-1]]
    ages = list(_AGES)
    for reading in reversed(readings[:-1]):
        if last.at is None or reading.at is None:
            continue
        if ages and last.at - reading.at >= ages[0]:
            kept.append(reading)
            ages = [age for age in ages if age > last.at - reading.at]
    if readings[0] is not kept[-1]:
        kept.append(readings[0])
    return kept[::-1]


def _points(reading: Progress, newest: Mapping[Flow, FlowProgress]) -> Mapping[int, tuple[Point, int]]:
    """Destination -> (what it has gained until a reading, of the flows that count alike; how many of them move)."""
    gained: dict[int, int] = {}
    at: dict[int, datetime] = {}
    known: dict[int, int] = {}
    for flow, was in reading.flows.items():
        now = newest.get(flow)
        if now is None or now.since != was.since:
            continue
        follower = flow.follower
        gained[follower] = gained.get(follower, 0) - _gain(was, now)
        if now.bytes_left > 0:
            known[follower] = known.get(follower, 0) + 1
            if follower not in at or was.at > at[follower]:
                at[follower] = was.at
    return {follower: (Point(at[follower], gained[follower]), count) for follower, count in known.items()}


def _gain(old: FlowProgress, new: FlowProgress) -> int:
    return (new.bytes_landed - old.bytes_landed) - (new.bytes_grown - old.bytes_grown)


def with_topics(readings: Sequence[Progress], whole: Forecast) -> Mapping[str, TopicProgress]:
    """Return the topics of the newest reading, each with when it is over; none is later than the whole.

    What a topic gained is by what less of it is left: where partitions are added to its move it is unknown for a while.
    """
    newest = readings[-1]
    found = {}
    for topic, progress in newest.topics.items():
        points = [
            Point(reading.at, -reading.topics[topic].bytes_left)
            for reading in readings
            if reading.at is not None and topic in reading.topics
        ]
        one = forecast(points, progress.bytes_left)
        if progress.bytes_left == 0:
            one = Forecast(newest.at, newest.at, newest.at)
        found[topic] = replace(
            progress,
            eta=_earlier(one.eta, whole.eta),
            eta_low=_earlier(one.low, whole.low),
            eta_high=_earlier(one.high, whole.high),
        )
    return found


def _earlier(time: datetime | None, bound: datetime | None) -> datetime | None:
    return time if time is None or bound is None else min(time, bound)


def static_end(progress: Progress, moving: Iterable[Flow], rates: Rates) -> datetime | None:
    """Return when a move is over that has only begun, if its throttles do not change; None: it has not only begun.

    KIP-73's move time of the slowest port: what it has left by its throttle less what was produced so far.

    Args:
        progress: in which every flow that moves is known.
        moving: the flows that move.
        rates: the throttles that stand; a port without one is not the slowest.
    """
    ports: dict[Port, tuple[int, float]] = {}
    for flow in moving:
        count = progress.flows.get(flow)
        if count is None or count.at - count.since >= 2 * SHORTEST_SPAN:
            return None
        for port in flow.ports:
            left, growth = ports.get(port, (0, 0.0))
            ports[port] = left + count.bytes_left, growth + growth_rate(count)
    times = [move_time(left, rates[port], round(grown)) for port, (left, grown) in ports.items() if port in rates]
    known = [time for time in times if time is not None]
    return progress.at + max(known) if progress.at and known and len(known) == len(times) else None


def growth_rate(count: FlowProgress) -> float:
    """Return what was produced to the partitions of a flow since counting began, bytes/s; 0 while that is no time."""
    seconds = (count.at - count.since).total_seconds()
    return count.bytes_grown / seconds if seconds > 0 else 0.0

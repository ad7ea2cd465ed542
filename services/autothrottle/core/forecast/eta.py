"""The duration of a reassignment: under given throttles (KIP-73's MoveTime), and from the rates of the last minutes.

The ETA has an interval, which shows how far the rates of the last minutes scatter: bytes left divided by the mean rate
plus and minus twice its standard error. It does not cover later changes. Without rates it is computed from the
throttles.

The replicas of a planned reassignment are copied in parallel, so the reassignment ends with its slowest link side. Data
produced to the partitions in the meantime must be copied, too, and counts against the throttle. The types to know are
`Forecast` and `Estimate`.

Source: KIP-73 (MoveRatio, MoveTime).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import compress, pairwise
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, LinkSide, Progress, TopicProgress, link_sides_of
from autothrottle.core.cluster.snapshot import NO_LEADER, LogSizes, TopicPartition, TopicReassignment
from autothrottle.core.errors import Invalid
from autothrottle.core.records import LONGEST, Decision, Estimate, LinkSideEstimate, Throttle
from autothrottle.core.units import BytesPerSecond, megabytes_per_second

SHORTEST_SPAN = timedelta(seconds=15)
"""Shortest time over which a rate is meaningful, because the quota window is 11 s. Three samples 10 s apart suffice."""

_AGES = tuple(timedelta(seconds=seconds) for seconds in (15, 30, 45, 60, 90, 120, 150))
"""Ages of the samples that are used, beside the newest and the oldest."""

_SPANS = 2
"""Least number of spans for an interval."""

_DEVIATIONS = 2.0
"""Half width of the interval, in standard errors of the mean rate."""

_Time = TypeVar("_Time", datetime, timedelta)


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
    eta, error = end_at(newest.at, bytes_left, mean), _standard_error(points)
    if error is None:
        return Forecast(eta)
    low, high = (end_at(newest.at, bytes_left, mean + sign * _DEVIATIONS * error) for sign in (1, -1))
    return Forecast(eta, low, high)


def end_at(at: datetime, bytes_left: int, rate: float) -> datetime | None:
    """Return when the bytes left at a time are copied at a rate in bytes/s; None: never, or not within a year."""
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
    if len(rates) < _SPANS:
        return None
    # Not `statistics.stdev`, whose exact fractions take ten times as long; a forecast needs no exact digits.
    mean = fmean(rates)
    return math.sqrt(math.fsum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1) / len(rates))


def last_of(forecasts: Iterable[Forecast]) -> Forecast:
    """Return the end of the last of these forecasts; a value that is unknown in one of them is unknown."""
    return Forecast(*map(last_time, zip(*forecasts, strict=True)))


def last_time(times: Sequence[_Time | None]) -> _Time | None:
    """Return the last of these times; None: there is none, or one is unknown."""
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
        eta, low, high = map(earlier, end, whole)
        topics[topic] = replace(progress, eta=eta, eta_low=low, eta_high=high)
    return topics


def earlier(time: datetime | None, bound: datetime | None) -> datetime | None:
    """Return a time, at most the bound; None: it is unknown. Without a bound, it is the time."""
    return time if time is None or bound is None else min(time, bound)


def static_end(progress: Progress, moving: Collection[Flow], throttles: Mapping[LinkSide, Throttle]) -> datetime | None:
    """Return the end of a reassignment that has just started, if its throttles stay; None: it started earlier.

    It is KIP-73's MoveTime of the slowest link side: `left / (throttle - produced)`. A ramp counts as planned.

    Args:
        progress: the progress; must contain every active flow.
        moving: the active flows.
        throttles: the throttles in Kafka; a link side without a throttle is never the slowest.
    """
    counts = [progress.flows.get(flow) for flow in moving]
    if any(count is None or count.at - count.since >= 2 * SHORTEST_SPAN for count in counts):
        return None
    at = progress.at
    if at is None:
        return None
    traffic = [(progress.link_traffic[side], throttles[side]) for side in link_sides_of(moving) if side in throttles]
    longest = last_time([throttle.move_time(part.bytes_left, round(part.produced), at) for part, throttle in traffic])
    return None if longest is None else at + longest


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


_COLUMNS = ("partitions", "leaders", "isr", "adding_replicas", "removing_replicas")
"""Columns of a `TopicReassignment`."""

_SHOWN = 10
"""Number of link sides that the warnings name."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The data that one link side has to carry."""

    size: int = 0
    """Bytes to copy."""
    growth: BytesPerSecond = 0
    """Produce traffic to these partitions that counts against the throttle, bytes/s; on the leader's side it includes
    the fetches of in-sync followers."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """The data that a reassignment has to copy."""

    sides: Mapping[LinkSide, Transfer] = field(default_factory=dict)
    """Link side -> its part, of the known partitions."""
    size: int = 0
    """Bytes to copy, summed over all copies."""
    partitions: int = 0
    """Number of partitions with replicas to copy."""
    unknown: int = 0
    """Number of these partitions without a leader, or whose leader did not report log sizes."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The operator's goal; without either field, the estimate uses the present headroom."""

    max_ratio: float | None = None
    """Share of every link's capacity that replication may take, in (0, 1]; None: not given."""
    within: timedelta | None = None
    """Wanted duration, 1 s to 365 days; None: not given."""

    def __post_init__(self) -> None:
        if self.max_ratio is not None and self.within is not None:
            raise Invalid("max_ratio and within are both given; give one: a share of the capacity, or a time")
        if self.max_ratio is not None and not 0 < self.max_ratio <= 1:
            raise Invalid(f"max_ratio {self.max_ratio:g} is outside of (0, 1]; give for example 0.3 for 30 %")
        if self.within is not None and not timedelta(seconds=1) <= self.within <= LONGEST:
            seconds = self.within.total_seconds()
            raise Invalid(
                f"within {seconds:g} s is outside of 1..{LONGEST.total_seconds():.0f} s; give for example 2 h"
            )


def restricted_to(
    reassignments: Iterable[TopicReassignment], rows: Collection[TopicPartition]
) -> tuple[TopicReassignment, ...]:
    """Return the reassignments restricted to these partitions."""
    restricted = []
    for reassignment in reassignments:
        is_kept = [(reassignment.topic, partition) in rows for partition in reassignment.partitions]
        columns: dict[str, Any] = {name: tuple(compress(getattr(reassignment, name), is_kept)) for name in _COLUMNS}
        if columns["partitions"]:
            restricted.append(replace(reassignment, **columns))
    return tuple(restricted)


def sizes_needed(
    reassignments: Iterable[TopicReassignment], finishing: Iterable[tuple[str, int, int]] = ()
) -> Mapping[int, Mapping[str, frozenset[int]]]:
    """Return broker id -> topic -> partitions whose log sizes must be read: leader and follower of every copy.

    Args:
        reassignments: the reassignments being copied.
        finishing: (topic, partition, follower) of further replicas whose own log is read.
    """
    partitions_of_brokers: dict[int, dict[str, set[int]]] = {}
    for reassignment in reassignments:
        partitions_of_topic: dict[int, set[int]] = {}
        for partition, leader, _, pending in reassignment.rows():
            for broker_id in (leader, *pending) if pending else ():
                partitions_of_topic.setdefault(broker_id, set()).add(partition)
        for broker_id, partitions in partitions_of_topic.items():
            partitions_of_brokers.setdefault(broker_id, {}).setdefault(reassignment.topic, set()).update(partitions)
    for topic, partition, follower in finishing:
        partitions_of_brokers.setdefault(follower, {}).setdefault(topic, set()).add(partition)
    partitions_of_brokers.pop(NO_LEADER, None)
    return {b: {topic: frozenset(p) for topic, p in topics.items()} for b, topics in partitions_of_brokers.items()}


def transfers(reassignments: Iterable[TopicReassignment], sizes: LogSizes, later: LogSizes | None = None) -> Transfers:
    """Return the data that reassignments have to copy.

    Args:
        reassignments: the reassignments, in the form that they have once started.
        sizes: sizes of the logs from `sizes_needed`. A follower that did not report counts as empty.
        later: sizes of the same logs some seconds later, to measure the produce rate; None: it counts as 0.
    """
    sides: dict[LinkSide, tuple[int, float]] = {}
    size = partitions = unknown = 0

    def add(side: LinkSide, copied: int, growth: float) -> None:
        previous = sides.get(side, (0, 0.0))
        sides[side] = previous[0] + copied, previous[1] + growth

    for reassignment in reassignments:
        for partition, leader, isr, pending in reassignment.rows():
            if not pending:
                continue
            partitions += 1
            row = (reassignment.topic, partition)
            leader_size = log_size(sizes, leader, row)
            unknown += leader_size is None
            growth = _growth(sizes, later, leader, row)
            in_sync = sum(b != leader for b in isr)
            for follower in pending:
                copied = max(0, (leader_size or 0) - (log_size(sizes, follower, row) or 0))
                size += copied
                add((follower, ReplicaRole.FOLLOWER), copied, growth)
                add((leader, ReplicaRole.LEADER), copied, growth)
            add((leader, ReplicaRole.LEADER), 0, in_sync * growth)
    link_sides = {
        side: Transfer(copied, round(growth)) for side, (copied, growth) in sides.items() if side[0] != NO_LEADER
    }
    return Transfers(link_sides, size, partitions, unknown)


def log_size(sizes: LogSizes, broker_id: int, row: TopicPartition) -> int | None:
    """Return the size of a replica's log, in bytes; None: the broker did not report it."""
    logs = sizes.brokers.get(broker_id)
    return logs.sizes.get(row) if logs else None


def _growth(sizes: LogSizes, later: LogSizes | None, leader: int, row: TopicPartition) -> float:
    """Return the growth rate of a leader's log, bytes/s; 0: unknown."""
    size, later_size = log_size(sizes, leader, row), log_size(later, leader, row) if later else None
    if later is None or size is None or later_size is None:
        return 0.0
    seconds = (later.brokers[leader].at - sizes.brokers[leader].at).total_seconds()
    return max(0, later_size - size) / seconds if seconds > 0 else 0.0


def estimate(
    carried: Transfers, decisions: Sequence[Decision], goal: Goal, total_partitions: int, notes: Sequence[str] = ()
) -> Estimate:
    """Return the estimated duration of a reassignment, or the rates that it needs.

    Args:
        carried: the data to copy.
        decisions: the decisions that the planner would make for it now.
        goal: the operator's goal.
        total_partitions: number of partitions in the cluster.
        notes: further warnings, one sentence each.
    """
    decided = {(d.broker_id, d.role): d for d in decisions}
    ordered = sorted(carried.sides.items(), key=lambda entry: (entry[0][0], entry[0][1].value))
    sides = tuple(_link_side_estimate(side, transfer, decided.get(side), goal) for side, transfer in ordered)
    durations = [side.seconds for side in sides if side.seconds is not None]
    is_known = not carried.unknown and len(durations) == len(sides)
    return Estimate(
        partitions=carried.partitions,
        total_partitions=total_partitions,
        move_ratio=move_ratio(carried.partitions, total_partitions),
        bytes_to_copy=carried.size,
        unknown_partitions=carried.unknown,
        seconds=max(durations, default=0.0) if is_known else None,
        sides=sides,
        warnings=(*notes, *_warnings(sides, goal)),
    )


def _link_side_estimate(side: LinkSide, transfer: Transfer, decision: Decision | None, goal: Goal) -> LinkSideEstimate:
    capacity = decision.capacity_bytes_per_second if decision else None
    rate = decision.rate_bytes_per_second if decision else None
    if goal.max_ratio is not None:
        rate = None if capacity is None else round(capacity * goal.max_ratio)
    if goal.within is not None:
        rate = needed_rate(transfer.size, transfer.growth, goal.within)
    duration = None if rate is None else move_time(transfer.size, rate, transfer.growth)
    return LinkSideEstimate(
        broker_id=side[0],
        role=side[1],
        bytes_to_copy=transfer.size,
        produced_bytes_per_second=transfer.growth,
        rate_bytes_per_second=rate,
        headroom_bytes_per_second=decision.headroom_bytes_per_second if decision else None,
        capacity_bytes_per_second=capacity,
        seconds=None if duration is None else duration.total_seconds(),
    )


def _warnings(sides: Sequence[LinkSideEstimate], goal: Goal) -> list[str]:
    warnings = []
    for side in sides:
        where = f"broker {side.broker_id} [{side.role.value}]"
        rate, headroom = side.rate_bytes_per_second, side.headroom_bytes_per_second
        if rate is None:
            warnings.append(f"{where}: its capacity is unknown, and so are its rate and time; check its metrics")
        elif side.seconds is None:
            warnings.append(
                f"{where}: at {megabytes_per_second(rate)} it would never end, because clients produce "
                f"{megabytes_per_second(side.produced_bytes_per_second)}; give it a higher rate"
            )
        elif goal != Goal() and headroom is not None and rate > headroom:
            free = megabytes_per_second(headroom)
            warnings.append(f"{where}: {megabytes_per_second(rate)} is more than the {free} that clients leave now")
    more = len(warnings) - _SHOWN
    return [*warnings[:_SHOWN], f"and {more} more link sides with such problems"] if more > 0 else warnings

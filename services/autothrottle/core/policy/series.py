"""Cumulative counts over time, from which the rate over any interval can be computed: of flows, and of log growth.

The types to know are `CumulativeSeries`; `FlowCounts`, the bytes copied and produced by link side; and `GrowthCurves`,
the growth of a broker's logs, which projects the client load of a metric, minutes old, to the present.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import (
    BEFORE_RISE,
    LEAST_RISE,
    RISE,
    RISE_SAMPLES,
    Flow,
    FlowProgress,
    GrowthMark,
    LinkSide,
    LogGrowth,
    Progress,
    shows_rise,
)

KEPT_SECONDS = 900.0
"""How long points are kept: longer than the window and delay of any metric together."""

LATE_SECONDS = 15.0
"""Longest time between the last sample of log sizes and the end of a metric's interval that still counts as covered."""


_LATEST_SECONDS = 30.0
"""The interval that counts as now; the growth of a few seconds is noise."""

_STEP = 0.15
"""Smallest relative deviation of the last sample from the mean of that interval that is not noise."""

_RARELY_SECONDS = 8.0
"""Smallest interval between two samples in which one sample alone is not noise."""

_RISING_SECONDS = (4.0, 8.0, 15.0)
"""Intervals in which a rise of the client load is searched for, if logs are sampled often enough."""

_HELD_UP_SECONDS = 10.0
"""Interval before a rise in which a stall may have held clients up; they then send the delayed data in the rise."""

_NOT_MADE_UP = 0.1
"""Smallest share of a rise by which the mean of both intervals exceeds the usual rate. After a stall it does not."""


@dataclass(frozen=True, slots=True)
class CumulativeSeries:
    """A cumulative count over time; immutable, `plus` returns a new series."""

    times: tuple[float, ...] = ()
    """Seconds, ascending."""
    counts: tuple[float, ...] = ()
    """One for each time; never decreasing."""

    def plus(self, time: float, gained: float) -> CumulativeSeries:
        """Return the series with one more point, `gained` above the last; a time that is not newer changes nothing."""
        if self.times and time <= self.times[-1]:
            return self
        old = bisect_left(self.times, time - KEPT_SECONDS)
        start = max(min(old, len(self.times) - 1), 0)
        count = (self.counts[-1] if self.counts else 0.0) + max(gained, 0.0)
        return CumulativeSeries((*self.times[start:], time), (*self.counts[start:], count))

    def at(self, time: float) -> float:
        """Return the count at a time, linearly interpolated; flat before the first point and after the last one."""
        index = bisect_left(self.times, time)
        if index == 0:
            return self.counts[0]
        if index == len(self.times):
            return self.counts[-1]
        start, end = self.times[index - 1], self.times[index]
        share = (time - start) / (end - start)
        return self.counts[index - 1] + share * (self.counts[index] - self.counts[index - 1])

    def rate(self, start: float, end: float) -> float:
        """Return the mean growth per second from `start` to `end` > `start`.

        >>> CumulativeSeries((0.0, 10.0, 20.0), (0.0, 100.0, 400.0)).rate(5.0, 15.0)
        20.0
        """
        return (self.at(end) - self.at(start)) / (end - start)

    def mean(self, start: float, end: float) -> float:
        """Return the mean growth per second over an interval whose end may lie after the last point.

        The part after the last point is unknown; it is assumed to have the mean of the rest.
        """
        last = min(end, self.times[-1])
        return self.rate(min(start, last - (end - start) / 2), last)

    def samples(self, since: float) -> int:
        """Return the number of points after `since`, which is not before the first point.

        >>> CumulativeSeries((0.0, 2.0, 4.0), (0.0, 1.0, 2.0)).samples(0.0)
        2
        """
        return len(self.times) - bisect_right(self.times, since)

    def covers(self, start: float, end: float, slack: float = 0.0) -> bool:
        """Return whether the points cover an interval; it may end up to `slack` seconds after the last point."""
        return bool(self.times) and self.times[0] <= start and end <= self.times[-1] + slack


@dataclass(frozen=True, slots=True)
class GrowthCurves:
    """The growth of one broker's logs over time."""

    newest: LogGrowth
    led: CumulativeSeries
    received: CumulativeSeries

    @staticmethod
    def extended(old: GrowthCurves | None, new: LogGrowth) -> GrowthCurves:
        """Return the growth with one more sample.

        If counting restarted (another `since`), new curves begin, with the marks that the sample contains.
        """
        led = received = CumulativeSeries()
        last_mark = new.curve[0]
        if old is not None and old.newest.since == new.since:
            led, received = old.led, old.received
            last_mark = GrowthMark(old.newest.at, old.newest.led, old.newest.received)
        for mark in new.curve:
            if not led.times or mark.at > last_mark.at:
                led = led.plus(mark.at.timestamp(), mark.led - last_mark.led)
                received = received.plus(mark.at.timestamp(), mark.received - last_mark.received)
                last_mark = mark
        return GrowthCurves(new, led, received)

    def of(self, role: ReplicaRole) -> CumulativeSeries:
        """Return the series for one role: all inbound client traffic (follower), or the produce traffic (leader)."""
        return self.received if role is ReplicaRole.FOLLOWER else self.led


def now_and_then(series: CumulativeSeries, start: float, end: float, now: float) -> tuple[float, float] | None:
    """Return (current growth per second, growth per second in a metric's interval); None: unknown.

    After a step, the current interval does not overlap the metric's interval. The metric already contains that part, so
    the projected step would be too small.
    If the metric's interval lies within the current one, both are the same unless they differ by a step: the growth of
    a few seconds is noise, and would make a fresh metric worse.
    """
    if len(series.times) < 2 or not series.covers(start, end, LATE_SECONDS):
        return None
    last = series.times[-1]
    begin = max(min(series.times[-2], last - _LATEST_SECONDS), series.times[0])
    if now - last > max(2 * (last - begin), 60.0):
        return None
    current, then = _latest(series, begin, start, end), series.mean(start, end)
    is_fresh = start >= now - _LATEST_SECONDS
    return (then if is_fresh and abs(current - then) <= _STEP * then else current), then


def _latest(series: CumulativeSeries, begin: float, start: float, end: float) -> float:
    """Return the current growth per second: the mean since `begin`, or the rate after a step.

    If logs are sampled rarely, the newest sample reveals a step up or down since the metric's `end`. If they are
    sampled often, a rise counts once it lasts for some samples, unless it only makes up for a stall just before. A
    fall counts only through the mean. The mean does not include time before the metric's `start`.
    """
    last = series.times[-1]
    usual = series.rate(begin, last)
    if last - series.times[-2] >= _RARELY_SECONDS:
        newest = series.rate(max(begin, min(series.times[-2], end)), last)
        return newest if abs(newest - usual) > _STEP * usual else usual
    lately = series.rate(max(begin, min(start, series.times[-2])), last)
    growth = _risen(series, max(begin, last - BEFORE_RISE.total_seconds())) or lately
    for seconds in _RISING_SECONDS:
        if last - seconds - _HELD_UP_SECONDS < begin or series.samples(last - seconds) < RISE_SAMPLES:
            continue
        risen, whole = series.rate(last - seconds, last), series.rate(last - seconds - _HELD_UP_SECONDS, last)
        if risen > usual + max(RISE * usual, LEAST_RISE) and whole - usual > _NOT_MADE_UP * (risen - usual):
            growth = max(growth, risen)
    return growth


def _risen(series: CumulativeSeries, begin: float) -> float | None:
    """Return the growth per second after a rise in the last samples since `begin`; None: no rise."""
    first = bisect_left(series.times, begin)
    if not shows_rise(series.times[first:], series.counts[first:]):
        return None
    return series.rate(series.times[-1 - RISE_SAMPLES], series.times[-1])


@dataclass(frozen=True, slots=True)
class FlowCounts:
    """The counts of all flows; immutable, `plus` returns new counts."""

    flows: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    copied: Mapping[LinkSide, CumulativeSeries] = field(default_factory=dict)
    """Link side -> bytes copied, for each link side that any flow has used."""
    produced: Mapping[LinkSide, CumulativeSeries] = field(default_factory=dict)
    """Link side -> bytes produced to the partitions of its flows."""
    at: float = 0.0
    """When log sizes were last read; 0: never."""

    def plus(self, progress: Progress | None, unknown: Collection[LinkSide] = ()) -> FlowCounts:
        """Return the counts after one more sample of log sizes; a sample that is not newer changes nothing.

        Args:
            progress: the sample.
            unknown: link sides with an active flow that is not in the sample. Their copied series restart when they
                are counted again, because it is unknown when the bytes in between were copied.
        """
        if progress is None or progress.at is None or progress.at.timestamp() <= self.at:
            return self
        gains, flow_count = _gains(self.flows, progress.flows), len(self.flows)
        old = {} if gains.matched == flow_count else {f: c for f, c in self.flows.items() if f not in progress.flows}
        at = progress.at.timestamp()
        recent = {f: c for f, c in old.items() if c.at.timestamp() > at - KEPT_SECONDS}
        return FlowCounts(
            flows={**recent, **progress.flows} if recent else progress.flows,
            copied=_extended(_without(self.copied, unknown), _without(gains.copied, unknown), gains.times, at),
            produced=_extended(self.produced, gains.produced, gains.times, at, unknown),
            at=at,
        )


@dataclass(slots=True)
class _Gains:
    """The bytes gained between two samples, by link side."""

    copied: dict[LinkSide, int]
    produced: dict[LinkSide, int]
    times: dict[LinkSide, float]
    matched: int = 0
    """Number of previously known flows that are in the new sample."""


def _gains(old: Mapping[Flow, FlowProgress], new: Mapping[Flow, FlowProgress]) -> _Gains:
    # Nested by role, then broker id: with 100,000 flows, hashing pairs would be half of the work.
    copied: dict[ReplicaRole, dict[int, int]] = {role: defaultdict(int) for role in ReplicaRole}
    produced: dict[ReplicaRole, dict[int, int]] = {role: defaultdict(int) for role in ReplicaRole}
    times: dict[int, float] = {}
    latest: dict[int, float] = {}
    matched = 0
    out, into = copied[ReplicaRole.LEADER], copied[ReplicaRole.FOLLOWER]
    produced_out, produced_into = produced[ReplicaRole.LEADER], produced[ReplicaRole.FOLLOWER]
    for flow, count in new.items():
        previous, new_copied, new_produced = old.get(flow), 0, 0
        if previous is not None:
            matched += 1
            if previous.since == count.since:
                new_copied = count.bytes_copied - previous.bytes_copied
                new_produced = count.bytes_produced - previous.bytes_produced
        leader, follower = flow
        out[leader] += new_copied
        into[follower] += new_copied
        produced_out[leader] += new_produced
        produced_into[follower] += new_produced
        if follower not in times:  # a broker reports all of its logs at once
            times[follower] = count.at.timestamp()
        if latest.get(leader, 0.0) < times[follower]:
            latest[leader] = times[follower]
    at = {(b, ReplicaRole.LEADER): t for b, t in latest.items()} | {
        (b, ReplicaRole.FOLLOWER): t for b, t in times.items()
    }
    return _Gains(_by_link_side(copied), _by_link_side(produced), at, matched)


def _by_link_side(amounts: Mapping[ReplicaRole, Mapping[int, int]]) -> dict[LinkSide, int]:
    return {(broker_id, role): amount for role, brokers in amounts.items() for broker_id, amount in brokers.items()}


_Value = TypeVar("_Value")


def _without(values: Mapping[LinkSide, _Value], unknown: Collection[LinkSide]) -> Mapping[LinkSide, _Value]:
    return {side: value for side, value in values.items() if side not in unknown} if unknown else values


def _extended(
    series: Mapping[LinkSide, CumulativeSeries],
    gains: Mapping[LinkSide, int],
    times: Mapping[LinkSide, float],
    at: float,
    unknown: Collection[LinkSide] = (),
) -> dict[LinkSide, CumulativeSeries]:
    """Return each series with one more point; a link side that no longer has a flow gains nothing."""
    extended = {
        side: old if side in unknown else old.plus(at, 0.0) for side, old in series.items() if side not in gains
    }
    extended = {
        side: extended_series
        for side, extended_series in extended.items()
        if extended_series.counts[0] != extended_series.counts[-1]
    }
    for side, gained in gains.items():
        extended[side] = series.get(side, CumulativeSeries()).plus(times[side], gained)
    return extended

"""The measurements of the adaptive policy: replication, client load and log growth over the last minutes.

The type to know is `Experience`. It is immutable and depends only on observations, so a planner that takes over
rebuilds it within a few cycles. All values are floats, in bytes and seconds (of the Unix epoch).
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
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
    link_sides_of,
    shows_rise,
)
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.policy.interface import PolicyObservation
from autothrottle.core.records import Basis
from autothrottle.core.traffic.loads import Utilization
from autothrottle.core.traffic.replication import MeanRate, Replication

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
        elif count.recent and not count.recent[0].bytes_copied:
            new_copied = count.bytes_copied  # it has been counted from its beginning
        leader, follower = flow
        out[leader] += new_copied
        into[follower] += new_copied
        produced_out[leader] += new_produced
        produced_into[follower] += new_produced
        if follower not in times:  # a broker reports all of its logs at once
            times[follower] = count.at.timestamp()
        if latest.get(leader, 0.0) < times[follower]:
            latest[leader] = times[follower]
    at = _by_link_side({ReplicaRole.LEADER: latest, ReplicaRole.FOLLOWER: times})
    return _Gains(_by_link_side(copied), _by_link_side(produced), at, matched)


_Value = TypeVar("_Value")


def _by_link_side(values: Mapping[ReplicaRole, Mapping[int, _Value]]) -> dict[LinkSide, _Value]:
    return {(broker_id, role): value for role, brokers in values.items() for broker_id, value in brokers.items()}


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
    idle = {side: old if side in unknown else old.plus(at, 0.0) for side, old in series.items() if side not in gains}
    extended = {side: points for side, points in idle.items() if points.counts[0] != points.counts[-1]}
    for side, gained in gains.items():
        extended[side] = series.get(side, CumulativeSeries()).plus(times[side], gained)
    return extended


_FEW_FLOWS = 1000
"""Up to this number of flows, every cycle sums the earlier counts of each flow."""

_COUNTED_WITHIN_SECONDS = 10.0
"""How long a new flow may go without counts; until then hardly any of its traffic is in a metric."""

_COUNTED_SOON_SECONDS = 60.0
"""A flow without counts for longer may never have any: its broker does not report log sizes."""

_SETTLED_SECONDS = 60.0
"""New metric time that fully replaces an uncertain client load; less time replaces it in proportion."""

LONG_VIEW_SECONDS = 1800.0
"""Averaging time of the client load that is expected for the rest of the reassignment."""

_SMALL_LOAD = 0.15
"""Share of the capacity below which errors are relative to it, not to the load: a new broker's load is near 0."""

_FORECASTS_APART = 5.0
"""Least time between stored forecasts, seconds; cycles that events trigger may follow each other closely."""

_MOST_BYTES_OUT = 8.0
"""Largest fan-out: bytes sent per byte produced, to replicas and consumers together."""


# The error of forecasts of the client load, from which the policy derives the margin that it leaves free on a link.

_BUCKET = 0.005
"""Relative error that one bucket spans."""
_BUCKETS = 81
_MIDDLE = _BUCKETS // 2
_DECAY = 0.95
"""Factor on older weights for each metric interval: about 20 intervals count, by default 40 minutes."""
_PRIOR_SPREAD, _PRIOR_WEIGHT = 0.04, 5.0
"""The prior spread (relative error), and its weight in intervals."""
_QUANTILE = 0.84
"""One standard deviation of a normal error. It is a quantile, because few outliers would dominate a mean square."""
LEAST_SPREAD, MOST_SPREAD = 0.01, 0.15
"""Bounds of the spread."""


_NORMAL = [math.exp(-(((i - _MIDDLE) * _BUCKET / _PRIOR_SPREAD) ** 2) / 2) for i in range(_BUCKETS)]
_PRIOR = tuple(_PRIOR_WEIGHT * weight / sum(_NORMAL) for weight in _NORMAL)


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """The distribution of relative errors, in which recent ones weigh most; immutable."""

    weights: tuple[float, ...] = (0.0,) * _BUCKETS

    def observe(self, errors: Collection[float]) -> ErrorSpread:
        """Return the spread with the errors of one more interval; each is `(measured - forecast) / forecast`."""
        if not errors:
            return self
        weights = [weight * _DECAY for weight in self.weights]
        for error in errors:
            bucket = _MIDDLE + round(error / _BUCKET)
            weights[min(max(bucket, 0), _BUCKETS - 1)] += 1 / len(errors)
        return ErrorSpread(tuple(weights))

    @property
    def sigma(self) -> float:
        """One standard deviation of the client load above its forecast, relative, in [LEAST_SPREAD, MOST_SPREAD].

        >>> 0.035 <= ErrorSpread().sigma <= 0.045
        True
        """
        sums = list(accumulate(w + prior for w, prior in zip(self.weights, _PRIOR, strict=True)))
        bucket = next(i for i, total in enumerate(sums) if total >= _QUANTILE * sums[-1])
        return min(max((bucket - _MIDDLE) * _BUCKET, LEAST_SPREAD), MOST_SPREAD)


# The measurements.


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """The estimated client load of one link side."""

    rate: float
    """Bytes/s now."""
    long_view: float
    """Mean over the last half hour, or over its observed part, bytes/s."""
    basis: Basis
    age: float
    """Seconds since the end of the metric's interval."""
    delay: float
    """Seconds since its start: a surge shows in full only after this time."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """The client load of a metric's interval."""

    rate: float
    off: float
    """Uncertainty of `rate`, which is that of replication."""
    capacity: float
    start: float
    end: float
    is_idle: bool = False
    """Whether no copies are in it as far as was known; those of a reassignment that was not seen yet may be."""


@dataclass(frozen=True, slots=True)
class _LinkSideHistory:
    """The history of one link side."""

    load: ClientLoad | None = None
    since: float = 0.0
    """When its first load was computed."""
    at: float = 0.0
    """When `load` was computed."""
    forecasts: tuple[tuple[float, float], ...] = ()
    """(time, estimated client load at that time), ascending."""
    compared: float = 0.0
    """End of the last metric interval that forecasts were compared with."""
    measured: _Measured | None = None
    """The client load of the last metric."""


@dataclass(frozen=True, slots=True)
class Experience:
    """The observations of the last minutes; immutable."""

    since: float | None = None
    """Time of the first observation; None: there was none."""
    counts: FlowCounts = field(default_factory=FlowCounts)
    growth: Mapping[int, GrowthCurves] = field(default_factory=dict)
    sides: Mapping[LinkSide, _LinkSideHistory] = field(default_factory=dict)
    spread: ErrorSpread = field(default_factory=ErrorSpread)
    """The error of the forecasts."""
    uncounted: Mapping[LinkSide, float] = field(default_factory=dict)
    """Link side with an active flow without counts -> since when."""
    unknown: Mapping[LinkSide, float] = field(default_factory=dict)
    """Link side -> when its copied bytes were last unknown; absent: not in the last minutes."""
    at: float = 0.0
    """Time of the last observation."""

    def observe(self, observation: PolicyObservation) -> Experience:
        now = observation.now.timestamp()
        since = now if self.since is None else self.since
        uncounted, unknown = self._uncounted(observation.snapshot, now)
        counts = self.counts.plus(observation.snapshot.progress, unknown)
        recent = {side: when for side, when in self.unknown.items() if when > now - KEPT_SECONDS}
        unknown_when = {**recent, **dict.fromkeys(unknown, now)}
        growth = {b: GrowthCurves.extended(self.growth.get(b), g) for b, g in observation.growth.items()}
        counted = Experience(since, counts, growth, self.sides, self.spread, uncounted, unknown_when, now)
        measured = counted._measured(observation)
        projected = counted._projected_to_now(measured, now)
        errors = [e for side, load in measured.items() if load and (e := counted._error(side, load)) is not None]
        sides = {
            side: _updated_history(self.sides.get(side, _LinkSideHistory()), now, measured[side], projected.get(side))
            for side in measured
        }
        return replace(counted, sides=sides, spread=self.spread.observe(errors))

    def load(self, side: LinkSide) -> ClientLoad | None:
        """Return the client load of a link side; None: its replication is unknown, or it has no metric."""
        history = self.sides.get(side)
        return history.load if history else None

    def is_counted_soon(self, side: LinkSide) -> bool:
        """Return whether the counts of a link side may soon cover a metric's interval, so that it gets a load."""
        return bool(self.counts.at) and self.at - self.uncounted.get(side, self.at) < _COUNTED_SOON_SECONDS

    def produced(self, side: LinkSide, seconds: float = 300.0) -> float:
        """Return the mean produce rate to the partitions of a link side's flows over the last minutes; 0: unknown."""
        series = self.counts.produced.get(side)
        if series is None or len(series.times) < 2:
            return 0.0
        end = series.times[-1]
        return series.rate(max(series.times[0], end - seconds), end)

    def _uncounted(self, snapshot: Snapshot, now: float) -> tuple[Mapping[LinkSide, float], Collection[LinkSide]]:
        """Return (link side -> since when it has a flow without counts, link sides whose copied bytes are unknown).

        A flow that has just begun has copied nothing yet. A flow whose counts stop, because its broker does not report
        log sizes, still copies; if it counted as nothing, its traffic would be taken for client load.
        """
        missing_sides, lost_sides = snapshot.running_uncounted_sides, frozenset[LinkSide]()
        if missing_sides and self.counts.flows:
            reported = snapshot.progress.flows if snapshot.progress else {}
            lost_sides = link_sides_of((snapshot.running_flows.keys() - reported.keys()) & self.counts.flows.keys())
        uncounted = {side: self.uncounted.get(side, now) for side in missing_sides}
        for_long = {side for side, since in uncounted.items() if now - since >= _COUNTED_WITHIN_SECONDS}
        return uncounted, for_long | lost_sides

    def _measured(self, observation: PolicyObservation) -> dict[LinkSide, _Measured | None]:
        """Return link side -> the client load in its metric's interval; None: the replication in it is unknown."""
        loads: dict[LinkSide, _Measured | None] = {}
        for side, replication in self._replication(observation).items():
            if self.unknown.get(side) == self.at or (not self.counts.at and observation.snapshot.reassignments):
                replication = None  # active flows have no counts yet
            loads[side] = None
            if replication is not None:
                used = observation.loads.traffic[side]
                measured = _Measured(
                    rate=used.rate - replication.rate,
                    off=replication.off,
                    capacity=float(observation.loads.capacities[side]),
                    start=used.start.timestamp(),
                    end=used.end.timestamp(),
                    is_idle=replication == MeanRate(0),
                )
                loads[side] = self._settled(side, measured)
        return loads

    def _settled(self, side: LinkSide, new: _Measured) -> _Measured:
        """Return a metric's client load, smoothed towards the previous one within its uncertainty.

        Replication that arrives in bursts makes short metrics differ by that much, without any change of client load.
        """
        history = self.sides.get(side)
        previous, rate = history.measured if history else None, new.rate
        if previous is not None and previous.is_idle and not new.is_idle and previous.end > new.start:
            previous = None
        if previous is not None and new.off > 0:
            expected = self._projected_between(side, previous, new)
            fresh = min(max((new.end - previous.end) / _SETTLED_SECONDS, 0.0), 1.0)
            rate = expected + fresh * (new.rate - expected)
            rate = min(max(rate, new.rate - new.off), new.rate + new.off)
        return new if rate == new.rate >= 0 else replace(new, rate=max(rate, 0.0))

    def _projected_between(self, side: LinkSide, previous: _Measured, new: _Measured) -> float:
        """Return the previous metric's client load, projected to the new metric's interval with log growth if known."""
        broker_id, role = side
        growth = self.growth.get(broker_id)
        series = growth.of(role) if growth else CumulativeSeries()
        if not all(series.covers(load.start, load.end, LATE_SECONDS) for load in (previous, new)):
            return previous.rate
        return _projected(
            role, previous.rate, series.mean(previous.start, previous.end), series.mean(new.start, new.end)
        )

    def _replication(self, observation: PolicyObservation) -> dict[LinkSide, MeanRate | None]:
        """Return link side -> its mean replication over exactly its metric's interval; None: unknown.

        The marks of each flow give it to the second, even for the time before this planner started. That matters: in
        the ten seconds between two cycles, most bytes may be copied in one second before the throttle is set. Summing
        the marks of all link sides of a large cluster would take seconds in every cycle. There they are used only if
        the series does not cover the interval.
        """
        traffic, copied = (
            observation.loads.traffic,
            Replication(observation.snapshot.progress or Progress(), is_upper_bound=True),
        )
        few = len(self.counts.flows) <= _FEW_FLOWS
        counted = copied.means(
            {s: (used.start, used.end) for s, used in traffic.items() if few or not self._covers(s, used)}
        )
        return {side: counted.get(side) or self._from_series(side, used) for side, used in traffic.items()}

    def _covers(self, side: LinkSide, used: Utilization) -> bool:
        """Return whether the series of a link side covers a metric's interval."""
        series = self.counts.copied.get(side)
        return series is not None and series.covers(used.start.timestamp(), used.end.timestamp(), LATE_SECONDS)

    def _from_series(self, side: LinkSide, used: Utilization) -> MeanRate | None:
        """Return the mean replication of a link side by its series; None: unknown."""
        start, end = used.start.timestamp(), used.end.timestamp()
        series = self.counts.copied.get(side)
        if end <= start:
            return None
        if series is not None and self._covers(side, used):
            return MeanRate(round(series.mean(start, end)))
        if self.since is None or self.since > start or side in self.unknown:
            return None
        if series is None:
            return MeanRate(0)  # it was observed, and had no flow
        return MeanRate(round(series.rate(start, end))) if end <= series.times[-1] + LATE_SECONDS else None

    def _projected_to_now(self, measured: Mapping[LinkSide, _Measured | None], now: float) -> dict[LinkSide, float]:
        """Return link side -> client load projected to now; absent: its log growth since the metric is unknown."""
        produced: dict[LinkSide, tuple[float, float, float]] = {}
        for (broker_id, role), load in measured.items():
            growth = self.growth.get(broker_id)
            if load is None or growth is None:
                continue
            rates = now_and_then(growth.of(role), load.start, load.end, now)
            if rates is not None:
                produced[broker_id, role] = load.rate, rates[1], rates[0]
        ratios = [
            rate / then for (_, role), (rate, then, _) in produced.items() if role is ReplicaRole.LEADER and then > 0
        ]
        most = min(1.5 * statistics.median(ratios), _MOST_BYTES_OUT) if ratios else 0.0
        return {side: max(_projected(side[1], *rates, most), 0.0) for side, rates in produced.items()}

    def _error(self, side: LinkSide, measured: _Measured) -> float | None:
        """Return the relative error of a metric interval's forecasts; None: no forecasts, or already compared."""
        history = self.sides.get(side)
        if history is None or measured.start < history.compared:
            return None  # intervals must not overlap, or one step of the load would count as many errors
        forecasts = [rate for when, rate in history.forecasts if measured.start < when <= measured.end]
        if not forecasts:
            return None
        forecast = sum(forecasts) / len(forecasts)
        return (measured.rate - forecast) / max(forecast, _SMALL_LOAD * measured.capacity)


def _projected(
    role: ReplicaRole, rate: float, growth_then: float, growth: float, most: float = _MOST_BYTES_OUT
) -> float:
    """Return a client load projected with log growth per second, from `then` to `now`.

    Inbound load changes by the change in growth. Outbound load changes by that times the fan-out `rate / then`, at most
    `most`.
    """
    if role is ReplicaRole.FOLLOWER:
        return rate + growth - growth_then
    return rate + (min(rate / growth_then, most) * (growth - growth_then) if growth_then > 0 else 0.0)


def _updated_history(
    old: _LinkSideHistory, now: float, measured: _Measured | None, projected: float | None
) -> _LinkSideHistory:
    if measured is None:
        return _LinkSideHistory(None, old.since, old.at, old.forecasts, old.compared, old.measured)
    rate = measured.rate if projected is None else projected
    since = old.since or now
    mean = old.load.long_view if old.load else rate
    horizon = min(max(now - since, 1.0), LONG_VIEW_SECONDS)
    mean += (rate - mean) * min((now - old.at) / horizon, 1.0)
    basis = Basis.COUNTED if projected is None else Basis.GROWTH
    forecasts = old.forecasts
    if not forecasts or forecasts[-1][0] <= now - _FORECASTS_APART:
        forecasts = (*(f for f in forecasts if f[0] > now - KEPT_SECONDS), (now, rate))
    load = ClientLoad(rate, mean, basis, now - measured.end, now - measured.start)
    compared = measured.end if measured.start >= old.compared else old.compared
    return _LinkSideHistory(load, since, now, forecasts, compared, measured)

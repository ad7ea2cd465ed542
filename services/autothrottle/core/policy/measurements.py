"""The measurements of the adaptive policy: replication, client load and log growth over the last minutes.

The type to know is `Experience`. It is immutable and depends only on observations, so a planner that takes over
rebuilds it within a few cycles. All values are floats, in bytes and seconds (of the Unix epoch).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide, Progress, link_sides_of
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.policy.interface import PolicyObservation
from autothrottle.core.policy.series import (
    KEPT_SECONDS,
    LATE_SECONDS,
    CumulativeSeries,
    FlowCounts,
    GrowthCurves,
    now_and_then,
)
from autothrottle.core.records import Basis
from autothrottle.core.traffic.loads import Utilization
from autothrottle.core.traffic.replication import MeanRate, Replication

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
                )
                loads[side] = self._settled(side, measured)
        return loads

    def _settled(self, side: LinkSide, new: _Measured) -> _Measured:
        """Return a metric's client load, smoothed towards the previous one within its uncertainty.

        Replication that arrives in bursts makes short metrics differ by that much, without any change of client load.
        """
        history = self.sides.get(side)
        previous, rate = history.measured if history else None, new.rate
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
        traffic, copied = observation.loads.traffic, Replication(observation.snapshot.progress or Progress())
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

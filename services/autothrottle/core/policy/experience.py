"""What the adaptive policy has seen: replication, client load and growth of logs over the last minutes.

The type to know is `Experience`: a value, worked out anew by every observation, so that a planner that takes over has
it again after a few cycles. Everything in it is in bytes and seconds (of the Unix epoch), as floats.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import Progress, ports_of
from autothrottle.core.loads import Port, Utilization
from autothrottle.core.policy.flow_counts import FlowCounts
from autothrottle.core.policy.growth_curves import GrowthCurves, now_and_then
from autothrottle.core.policy.interface import Basis, Observation
from autothrottle.core.policy.margin import ErrorSpread
from autothrottle.core.policy.series import KEPT_SECONDS, LATE_SECONDS, Series
from autothrottle.core.replication import MeanRate, Replication
from autothrottle.core.topology import Snapshot, running_flows

_FEW_FLOWS = 1000
"""Of so many the earlier counts of each are added up in every cycle."""

_COUNTED_WITHIN_SECONDS = 10.0
"""A flow that has begun may go uncounted for so long: until then next to nothing of it is in a metric."""

_COUNTED_SOON_SECONDS = 60.0
"""What nobody has counted for longer may never be counted: a broker that does not tell the sizes of its logs."""

_SETTLED_SECONDS = 60.0
"""Of metrics that tell what clients use where each may be off: shorter ones count for their share of it."""

LONG_VIEW_SECONDS = 1800.0
"""Over which the load that a plan for the whole move counts on is averaged."""

_SMALL_LOAD = 0.15
"""Share of the capacity below which an error is not relative to the load: that of a new, empty broker is near 0."""

_FORECASTS_APART = 5.0
"""Seconds: cycles that events start may follow one another closely."""

_MOST_BYTES_OUT = 8.0
"""Bytes out for a byte produced, replication and consumers together: what is more is no fan-out."""


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What clients are believed to use of one port."""

    rate: float
    """Bytes/s now."""
    long_view: float
    """Mean of the last half hour, or of what was seen of it, bytes/s."""
    basis: Basis
    age: float
    """Seconds from the end of the metric's interval until now."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """The client load of a metric's interval."""

    rate: float
    off: float
    """By how much `rate` may be wrong, either way, since replication is known up to that only."""
    capacity: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class _PortMemory:
    """What is remembered of one port."""

    load: ClientLoad | None = None
    since: float = 0.0
    """When its first load was worked out."""
    at: float = 0.0
    forecasts: tuple[tuple[float, float], ...] = ()
    """(when, client load that was believed then), ascending."""
    compared: float = 0.0
    """End of the last metric that forecasts were compared with."""
    measured: _Measured | None = None
    """The last metric's."""


@dataclass(frozen=True, slots=True)
class Experience:
    """What was seen in the last minutes."""

    since: float | None = None
    """When the first observation was made."""
    counts: FlowCounts = field(default_factory=FlowCounts)
    growth: Mapping[int, GrowthCurves] = field(default_factory=dict)
    ports: Mapping[Port, _PortMemory] = field(default_factory=dict)
    spread: ErrorSpread = field(default_factory=ErrorSpread)
    """How far forecasts were off."""
    uncounted: Mapping[Port, float] = field(default_factory=dict)
    """Port with a flow that moves and of which nobody tells what landed -> since when."""
    unknown: Mapping[Port, float] = field(default_factory=dict)
    """Port -> when it was last unknown what landed there; absent: not in the last minutes."""
    at: float = 0.0
    """When the last observation was made."""

    def observe(self, seen: Observation) -> Experience:
        """Return the experience with one more cycle."""
        now = seen.now.timestamp()
        since = now if self.since is None else self.since
        uncounted, unknown = self._uncounted(seen.snapshot, now)
        counts = self.counts.plus(seen.snapshot.progress, unknown)
        before = {port: when for port, when in self.unknown.items() if when > now - KEPT_SECONDS}
        unknown_when = {**before, **dict.fromkeys(unknown, now)}
        growth = {b: GrowthCurves.extended(self.growth.get(b), g) for b, g in seen.growth.items()}
        counted = Experience(since, counts, growth, self.ports, self.spread, uncounted, unknown_when, now)
        measured = counted._measured(seen)
        brought = counted._brought_to_now(measured, now)
        errors = [e for port, one in measured.items() if one and (e := counted._error(port, one)) is not None]
        ports = {
            port: _remembered(self.ports.get(port, _PortMemory()), now, measured[port], brought.get(port))
            for port in measured
        }
        return replace(counted, ports=ports, spread=self.spread.observe(errors))

    def load(self, port: Port) -> ClientLoad | None:
        """The client load of a port; None: replication cannot be told from clients, or there is no metric."""
        memory = self.ports.get(port)
        return memory.load if memory else None

    def is_counted_soon(self, port: Port) -> bool:
        """Whether a port without a load may have one soon: its flows are counted, but not for as long as a metric."""
        return bool(self.counts.at) and self.at - self.uncounted.get(port, self.at) < _COUNTED_SOON_SECONDS

    def grown(self, port: Port, seconds: float = 300.0) -> float:
        """What is produced to the partitions of a port's flows, bytes/s, mean of the last minutes; 0: unknown."""
        series = self.counts.grown.get(port)
        if series is None or len(series.times) < 2:
            return 0.0
        end = series.times[-1]
        return series.rate(max(series.times[0], end - seconds), end)

    def _uncounted(self, snapshot: Snapshot, now: float) -> tuple[Mapping[Port, float], Collection[Port]]:
        """The ports of flows that are not counted, since when each, and those of which nothing is known by now.

        What has only begun has carried nothing yet. What was counted before and is not any more, since a broker does
        not tell its log sizes, goes on: taken for nothing it would be taken for clients.
        """
        told = snapshot.progress.flows if snapshot.progress else {}
        missing = running_flows(snapshot).keys() - told.keys()
        uncounted = {port: self.uncounted.get(port, now) for port in ports_of(missing)}
        for_long = {port for port, since in uncounted.items() if now - since >= _COUNTED_WITHIN_SECONDS}
        return uncounted, for_long | ports_of(missing & self.counts.flows.keys())

    def _measured(self, seen: Observation) -> dict[Port, _Measured | None]:
        """The client load of each metric's interval; None: what was replication in it is unknown."""
        found: dict[Port, _Measured | None] = {}
        landed = Replication(seen.snapshot.progress or Progress())
        for broker_id, load in seen.loads.brokers.items():
            for role in ReplicaRole:
                port, used = (broker_id, role), load.of(role)
                replication = self._replication(port, used, landed)
                if self.unknown.get(port) == self.at or (not self.counts.at and seen.snapshot.reassignments):
                    replication = None  # nobody has counted yet what moves
                found[port] = None
                if replication is not None:
                    measured = _Measured(
                        rate=used.rate - replication.rate,
                        off=replication.off,
                        capacity=float(load.capacity.of(role)),
                        start=used.start.timestamp(),
                        end=used.end.timestamp(),
                    )
                    found[port] = self._settled(port, measured)
        return found

    def _settled(self, port: Port, new: _Measured) -> _Measured:
        """A metric's client load with what was known before it, as far as it may be off.

        What lands in bursts makes the shorter metrics differ that much from one to the next, and no client does.
        """
        memory = self.ports.get(port)
        before, rate = memory.measured if memory else None, new.rate
        if before is not None and new.off > 0:
            expected = self._brought_between(port, before, new)
            fresh = min(max((new.end - before.end) / _SETTLED_SECONDS, 0.0), 1.0)
            rate = expected + fresh * (new.rate - expected)
            rate = min(max(rate, new.rate - new.off), new.rate + new.off)
        return new if rate == new.rate >= 0 else replace(new, rate=max(rate, 0.0))

    def _brought_between(self, port: Port, before: _Measured, new: _Measured) -> float:
        """What clients use in a metric's interval if they use what they used in another one, as far as logs tell."""
        broker_id, role = port
        growth = self.growth.get(broker_id)
        series = growth.of(role) if growth else Series()
        if not all(series.covers(one.start, one.end, LATE_SECONDS) for one in (before, new)):
            return before.rate
        return _brought(role, before.rate, series.mean(before.start, before.end), series.mean(new.start, new.end))

    def _replication(self, port: Port, used: Utilization, landed: Replication) -> MeanRate | None:
        """What replication took of a port over exactly a metric's interval; None: unknown.

        The earlier counts of each flow tell it to the second, before this planner looked too: within the ten seconds
        between two cycles most may have landed in one, before the throttle stood. To add them up for all ports of a
        large cluster in every cycle would take seconds; there they are asked only where the readings do not suffice.
        """
        start, end = used.start.timestamp(), used.end.timestamp()
        series = self.counts.landed.get(port)
        if end <= start:
            return None
        covering = series if series is not None and series.covers(start, end, LATE_SECONDS) else None
        few = covering is None or len(self.counts.flows) <= _FEW_FLOWS
        if few and (counted := landed.mean(*port, used.start, used.end)) is not None:
            return counted
        if covering is not None:
            return MeanRate(round(covering.mean(start, end)))
        if self.since is None or self.since > start or port in self.unknown:
            return None
        if series is None:
            return MeanRate(0)  # it was watched, and in no flow
        return MeanRate(round(series.rate(start, end))) if end <= series.times[-1] + LATE_SECONDS else None

    def _brought_to_now(self, measured: Mapping[Port, _Measured | None], now: float) -> dict[Port, float]:
        """The client loads of those ports whose change since the metric the growth of logs tells."""
        grown: dict[Port, tuple[float, float, float]] = {}
        for (broker_id, role), one in measured.items():
            growth = self.growth.get(broker_id)
            if one is None or growth is None:
                continue
            rates = now_and_then(growth.of(role), one.start, one.end, now)
            if rates is not None:
                grown[broker_id, role] = one.rate, rates[1], rates[0]
        ratios = [
            rate / then for (_, role), (rate, then, _) in grown.items() if role is ReplicaRole.LEADER and then > 0
        ]
        most = min(1.5 * statistics.median(ratios), _MOST_BYTES_OUT) if ratios else 0.0
        return {port: max(_brought(port[1], *rates, most), 0.0) for port, rates in grown.items()}

    def _error(self, port: Port, measured: _Measured) -> float | None:
        """How far the forecasts of a metric's interval were off, relative; None: there were none, or it is known."""
        memory = self.ports.get(port)
        if memory is None or measured.start < memory.compared:
            return None  # each moment counts once: else one step of the load is many errors
        believed = [rate for when, rate in memory.forecasts if measured.start < when <= measured.end]
        if not believed:
            return None
        forecast = sum(believed) / len(believed)
        return (measured.rate - forecast) / max(forecast, _SMALL_LOAD * measured.capacity)


def _brought(role: ReplicaRole, rate: float, then: float, now: float, most: float = _MOST_BYTES_OUT) -> float:
    """A client load brought along by the growth of logs from what it was `then` to what it is `now`, per second.

    What comes in grows by as much; what goes out by as many bytes for each as there were, `most` at most.
    """
    if role is ReplicaRole.FOLLOWER:
        return rate + now - then
    return rate + (min(rate / then, most) * (now - then) if then > 0 else 0.0)


def _remembered(old: _PortMemory, now: float, measured: _Measured | None, brought: float | None) -> _PortMemory:
    """What is remembered of a port after a cycle."""
    if measured is None:
        return _PortMemory(None, old.since, old.at, old.forecasts, old.compared, old.measured)
    rate = measured.rate if brought is None else brought
    since = old.since or now
    mean = old.load.long_view if old.load else rate
    horizon = min(max(now - since, 1.0), LONG_VIEW_SECONDS)
    mean += (rate - mean) * min((now - old.at) / horizon, 1.0)
    basis = Basis.COUNTED if brought is None else Basis.GROWTH
    forecasts = old.forecasts
    if not forecasts or forecasts[-1][0] <= now - _FORECASTS_APART:
        forecasts = (*(f for f in forecasts if f[0] > now - KEPT_SECONDS), (now, rate))
    load = ClientLoad(rate, mean, basis, now - measured.end)
    compared = measured.end if measured.start >= old.compared else old.compared
    return _PortMemory(load, since, now, forecasts, compared, measured)

"""Many runs of one scenario in parallel, each with its own policy and timing.

`plan` and the policies of `autothrottle.core` make the decisions. They see what the adapters would report: delayed
metrics that are means over a window, log sizes of the last read, and the current throttles.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, LogGrowth, Progress
from autothrottle.core.cluster.snapshot import TopicReassignment
from autothrottle.core.forecast.eta import forecast_all
from autothrottle.core.forecast.progress import WINDOW
from autothrottle.core.policy.interface import Limits, Policy
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.units import MEGABYTE
from tests import builders
from tests.benchmarks.control.links import Array, Flows, Indexes, contended_shares, fair_shares, traffic
from tests.benchmarks.control.scenarios import BEFORE, RATIO, Scenario
from tests.policy_cycles import PolicyCycles

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""Start of every reassignment."""
PLANNER_BEFORE = 900
"""The planner starts this many seconds before the reassignment."""
METRICS_BEFORE = PLANNER_BEFORE + 300
"""Metrics start this many seconds before the reassignment."""
READ_NOISE = 0.035
"""Relative error of log growth over 10 s; it is 2 % over 30 s."""
_FOLLOWERS = 9_000
"""First id of brokers that only have replicas in the ISR."""
FORECAST_EVERY = 60
"""Seconds between two ETA forecasts."""
TOO_LONG = 3.0
"""A run is aborted after this multiple of the bound."""


@dataclass(frozen=True)
class Timing:
    """Interval of cycles, and window and delay of metrics, in seconds."""

    name: str
    interval: int
    window: int
    delay: int


STD, MIX30, FAST = Timing("std", 180, 120, 120), Timing("mix30", 30, 120, 120), Timing("fast", 10, 10, 10)
KAFKA = Timing("kafka", 30, 120, 0)
"""The metrics source `kafka`, whose loads are current."""
SCRAPE = Timing("scrape", 10, 5, 0)
"""Metrics that are read from the brokers' exporters."""


@dataclass(frozen=True)
class Measurements:
    """The measurements available to the planner."""

    progress: bool = True
    """Whether the bytes copied and left of each flow are known."""
    growth: bool = True
    """Whether the growth of all logs is known."""
    metrics_from: int = -METRICS_BEFORE
    """Second from which on metrics are available."""
    blind: tuple[int, int] = (0, 0)
    """(first, last + 1) second without metrics of the first broker."""
    failover_every: int = 0
    """Seconds between failovers to a planner without history; 0: never."""
    stale: int = 0
    """Additional delay of metrics, seconds."""
    fanout: float | None = None
    """Loads of the metrics source `kafka` with this `--consumer-fanout`; None: the traffic on the links."""


Foresight = Callable[[int, int], Array]
"""(from second, to second) -> mean client load of each link side, MB/s. Only for the oracle."""


@dataclass(frozen=True)
class Entry:
    """One run: the scenario, the policy and the timing."""

    scenario: Scenario
    label: str
    timing: Timing
    policy: Callable[[Foresight], Policy] | None
    """None: replication is not throttled."""
    ratio: float = RATIO
    threshold: float = 0.1
    measurements: Measurements = field(default_factory=Measurements)
    on_events: bool = True
    """Whether the end of a flow starts a cycle."""


@dataclass
class Result:
    """The measured result of one run."""

    scenario: str
    seed: int
    policy: str
    timing: str
    makespan: float
    """Duration of the reassignment / the bound."""
    finished: bool
    deferred: float
    """Percent of client bytes that had to wait because of the reassignment."""
    worst_deferred: float
    """The same for the worst link side."""
    saturated: float
    """Percent of the seconds of all link sides in which the link was full."""
    over: float
    """Percent of the seconds of all link sides with replication above 90 % of the headroom + 1 % of the link."""
    writes_per_gb: float
    """Broker config writes (both rates of a broker count as one) per GB copied."""
    writes_per_broker_hour: float
    busiest_writes_per_broker: float
    """Most broker config writes within 15 minutes / number of brokers. Each write is also a notification."""
    eta_error: float | None
    """Error of the forecast end, percent of the remaining time.

    Median over one forecast per minute, without the last tenth of the reassignment. None: no forecast.
    """


class Planner:
    """Runs the cycles of the product for one run."""

    def __init__(self, entry: Entry, foresight: Foresight) -> None:
        scenario = entry.scenario
        self.entry, self._n = entry, scenario.brokers
        self._foresight = foresight
        self.cycles = PolicyCycles(entry.policy(foresight)) if entry.policy else None
        self._limits = Limits(
            min_rate=round(scenario.shape.min_rate * MEGABYTE),
            max_tx_ratio=entry.ratio,
            max_rx_ratio=entry.ratio,
            change_threshold=entry.threshold,
            failure_threshold=1,
        )
        self._capacity = [round(scenario.capacity[b] * MEGABYTE) for b in range(self._n)]
        self._flows = [Flow(int(s), int(t) - self._n) for s, t in zip(scenario.source, scenario.target, strict=True)]
        self._progress: Progress | None = None
        self._topics: list[TopicReassignment] = []
        self._reads: list[Progress] = []
        """The reads in the forecast window, the newest last."""
        self.writes: list[tuple[int, int]] = []
        """(second, number of brokers written)."""
        self.forecasts: list[tuple[int, float]] = []
        """(second, forecast second of the end)."""

    def set_open_flows(self, open_flows: Sequence[int]) -> None:
        """Set the flows with bytes left to copy."""
        in_sync = tuple(range(_FOLLOWERS, _FOLLOWERS + self.entry.scenario.shape.in_sync))
        flows = {int(i): self._flows[i] for i in open_flows}
        rows = {i: (flow.leader, (flow.leader, *in_sync), (flow.follower,), ()) for i, flow in flows.items()}
        self._topics = [builders.reassignment("t", rows)] if rows else []

    def read_logs(self, second: int, copied: Array, produced: Array, left: Array) -> None:
        """Record a read of the log sizes: MB copied, produced and left of each flow."""
        if not self.entry.measurements.progress:
            return
        at = BEGIN + timedelta(seconds=second)
        self._progress = Progress(
            flows={
                flow: FlowProgress(int(a), int(b), int(c), at, BEGIN)
                for flow, a, b, c in zip(
                    self._flows,
                    (copied * MEGABYTE).tolist(),
                    (produced * MEGABYTE).tolist(),
                    (left * MEGABYTE).tolist(),
                    strict=True,
                )
            },
            at=at,
        )
        self._reads.append(self._progress)
        while (oldest := self._reads[0].at) is not None and at - oldest > WINDOW:
            del self._reads[0]
        if second % FORECAST_EVERY == 0 and (eta := forecast_all(self._reads).eta) is not None:
            self.forecasts.append((second, (eta - BEGIN).total_seconds()))

    def eta_error(self, end: float) -> float | None:
        """Return the median error of the forecasts, percent of the remaining time, for a run of `end` seconds."""
        errors = [abs(eta - end) / (end - second) for second, eta in self.forecasts if 0 < second < 0.9 * end]
        return 100 * statistics.median(errors) if errors else None

    def cycle(self, second: int, used: Array | None, start: int, end: int, growth: Array | None) -> bool:
        """Run one cycle; return whether rates changed.

        Args:
            second: seconds since the start of the reassignment.
            used: [link sides] mean traffic from `start` to `end`, MB/s; None: no metrics.
            start: start of the metrics window, in seconds.
            end: end of the metrics window, in seconds.
            growth: [2 * brokers] MB appended so far to the logs that a broker leads, then to all of its logs.
        """
        measurements = self.entry.measurements
        assert self.cycles is not None and self.entry.policy is not None
        if measurements.failover_every and second > 0 and second % measurements.failover_every == 0:
            self.cycles.fail_over(self.entry.policy(self._foresight))
        blind_from, blind_until = measurements.blind
        before = self.cycles.current
        self.cycles.decide(
            BEGIN + timedelta(seconds=second),
            range(self._n),
            self._topics,
            self._loads(used, start, end, hidden=int(blind_from <= second < blind_until)),
            self._limits,
            progress=self._progress,
            growth=self._growth(growth, BEGIN + timedelta(seconds=second // 10 * 10)),
        )
        current = self.cycles.current
        if changed := {
            broker_id for (broker_id, role), rate in current.items() if before.get((broker_id, role)) != rate
        }:
            self.writes.append((second, len(changed)))
        return current != before

    def rates(self) -> Array:
        """[link sides] the current throttles, MB/s."""
        found = np.full(2 * self._n, np.inf)
        for (broker_id, role), rate in (self.cycles.current if self.cycles else {}).items():
            found[broker_id + (0 if role is ReplicaRole.LEADER else self._n)] = rate / MEGABYTE
        return found

    def _loads(self, used: Array | None, start: int, end: int, hidden: int) -> Loads:
        if used is None:
            return Loads()
        rates = [round(rate) for rate in (used * MEGABYTE).tolist()]
        until, interval = BEGIN + timedelta(seconds=end), timedelta(seconds=end - start)
        return builders.loads(
            *(
                builders.load(b, rates[b], rates[b + self._n], self._capacity[b], until, interval)
                for b in range(hidden, self._n)
            )
        )

    def _growth(self, growth: Array | None, at: datetime) -> dict[int, LogGrowth]:
        if growth is None or not self.entry.measurements.growth:
            return {}
        counts = (growth * MEGABYTE).tolist()
        since = BEGIN - timedelta(seconds=METRICS_BEFORE)
        return {b: LogGrowth(int(counts[b]), int(counts[b + self._n]), at, since) for b in range(self._n)}


@dataclass
class _Sums:
    """Totals of each link side over the seconds in which it takes part in the reassignment."""

    offered: Array
    deferred: Array
    saturated: Array
    over: Array
    seconds: Array

    @staticmethod
    def zero(sides: int) -> _Sums:
        return _Sums(*(np.zeros(sides) for _ in range(5)))


class Fleet:
    """All runs of one scenario, in steps of a second."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)
        sizes = [len(e.scenario.capacity) for e in self.entries]
        self._first = np.cumsum([0, *sizes])
        self._sides = int(self._first[-1])
        self._scenarios = list({id(e.scenario): e.scenario for e in self.entries}.values())
        first_columns = np.cumsum([0, *(len(s.capacity) for s in self._scenarios)])
        first_column = {id(s): int(begin) for s, begin in zip(self._scenarios, first_columns, strict=False)}
        self._columns = np.concatenate(
            [first_column[id(e.scenario)] + np.arange(n) for e, n in zip(self.entries, sizes, strict=True)]
        )
        self._offered = np.hstack([s.offered for s in self._scenarios])
        self._alone = np.hstack([s.alone for s in self._scenarios])
        self._alone_totals = [self._totals(s) for s in self._scenarios]
        self._growth = {id(s): _log_growth(s) for s in self._scenarios}
        self._capacity = self._of_link_sides(lambda s: s.capacity)
        self._run_of_link_side = np.repeat(np.arange(len(sizes)), sizes)
        self._source = self._of_flows(lambda s: s.source, self._first)
        self._target = self._of_flows(lambda s: s.target, self._first)
        self._growing = self._of_flows(lambda s: s.growth)
        self._left = self._of_flows(lambda s: s.size)
        self._copied, self._produced = np.zeros(len(self._left)), np.zeros(len(self._left))
        in_sync = self._of_flows(lambda s: s.growth * s.shape.in_sync)
        self._in_sync_of_flow = in_sync
        self._run_of_flow = np.repeat(np.arange(len(sizes)), [len(e.scenario.source) for e in self.entries])
        flows = [len(e.scenario.source) for e in self.entries]
        self._first_flow = np.cumsum([0, *flows])
        self._waiting, self._waiting_alone = np.zeros(self._sides), np.zeros(self._sides)
        self._quota = np.full(self._sides, np.inf)
        self._planners = [Planner(e, self._foresight(k)) for k, e in enumerate(self.entries)]
        self._ends = np.full(len(self.entries), np.inf)
        self._due: set[int] = set()
        """Runs with a flow that ended after their last cycle."""
        self._sums = _Sums.zero(self._sides)
        self._carried = np.zeros((1024, self._sides))
        """Cumulative traffic of each link side, MB: a ring buffer of the last seconds."""

    def _of_link_sides(self, field: Callable[[Scenario], Array]) -> Array:
        return np.concatenate([field(e.scenario) for e in self.entries])

    def _of_flows(self, field: Callable[[Scenario], NDArray[np.generic]], first: Indexes | None = None) -> NDArray:  # type: ignore[type-arg]
        shifts = first if first is not None else np.zeros(len(self.entries), int)
        return np.concatenate([field(e.scenario) + shift for e, shift in zip(self.entries, shifts, strict=False)])

    @staticmethod
    def _totals(scenario: Scenario) -> Array:
        return np.vstack([np.zeros(len(scenario.capacity)), np.cumsum(scenario.alone, axis=0, dtype=float)])

    def _foresight(self, k: int) -> Foresight:
        totals = self._alone_totals[self._scenarios.index(self.entries[k].scenario)]

        def mean(start: int, end: int) -> Array:
            first, last = BEFORE + start, min(BEFORE + end, len(totals) - 1)
            return np.asarray((totals[last] - totals[first]) / (last - first))

        return mean

    def run(self) -> list[Result]:
        """Run all reassignments to their end, or up to `TOO_LONG` times the bound."""
        longest = max(e.scenario.shape.hours for e in self.entries) * 3600 * TOO_LONG
        limit = min(int(longest), self._offered.shape[0] - BEFORE - 200)
        wished: Array | None = None
        open_flows = np.zeros(0, np.int64)
        for second in range(-METRICS_BEFORE, limit):
            if second == 0:
                open_flows = np.arange(len(self._left))
                for k, planner in enumerate(self._planners):
                    planner.set_open_flows(range(self._first_flow[k + 1] - self._first_flow[k]))
            if second >= -PLANNER_BEFORE and self._decide(second, open_flows):
                wished = None
            if second == 0:
                wished = None
            finished, wished = self._step(second, open_flows, wished)
            if len(finished):
                open_flows, wished = np.setdiff1d(open_flows, finished, assume_unique=True), None
                self._end(second, finished, open_flows)
                if not np.isinf(self._ends).any():
                    break
        return [self._result(k, limit) for k in range(len(self.entries))]

    def _step(self, second: int, open_: Indexes, wished: Array | None) -> tuple[Indexes, Array | None]:
        """Simulate one second; return the finished flows, and the fair rates without clients."""
        offered = self._offered[BEFORE + second][self._columns].astype(float)
        flows = Flows(self._source[open_], self._target[open_], self._left[open_] + self._growing[open_])
        in_use = np.zeros(self._sides, bool)
        if second >= 0:
            in_use[flows.source] = in_use[flows.target] = True
            active = np.isinf(self._ends)[self._run_of_flow]
            ended = active.copy()
            ended[open_] = False
            offered += np.bincount(self._source[ended], self._growing[ended], self._sides)
            offered += np.bincount(self._target[ended], self._growing[ended], self._sides)
        counted = np.bincount(flows.source, self._in_sync_of_flow[open_], self._sides)
        allowed = np.minimum(np.maximum(self._quota - counted, 0.0), self._capacity)
        if wished is None and len(open_):
            wished = fair_shares(flows._replace(want=np.full(len(open_), np.inf)), allowed)
        demand = offered + self._waiting / 10.0
        rates = np.zeros(0)
        if len(open_) and wished is not None:
            rates = self._shared(flows, wished, allowed, demand)
        replication = traffic(flows, rates, self._sides)
        self._serve(second, offered, demand, replication, in_use)
        self._copied[open_] += rates
        self._produced[open_] += self._growing[open_]
        self._left[open_] += self._growing[open_] - rates
        return open_[self._left[open_] <= 1e-6], wished

    def _shared(self, flows: Flows, wished: Array, allowed: Array, demand: Array) -> Array:
        """Return the rate of each flow. Only runs with an overloaded link are recomputed."""
        rates = np.minimum(wished, flows.want)
        overloaded = demand + traffic(flows, rates, self._sides) > self._capacity
        if not overloaded.any():
            return rates
        runs = np.zeros(len(self.entries), bool)
        runs[self._run_of_link_side[overloaded]] = True
        affected = runs[self._run_of_link_side[flows.source]]
        some = Flows(flows.source[affected], flows.target[affected], flows.want[affected])
        rates[affected] = contended_shares(some, rates[affected], allowed, self._capacity, demand)
        return rates

    def _serve(self, second: int, offered: Array, demand: Array, replication: Array, in_use: NDArray[np.bool_]) -> None:
        """Give clients the rest of each link, and update the totals."""
        carried = np.minimum(demand, np.maximum(self._capacity - replication, 0.0))
        waiting = np.maximum(0.0, self._waiting + offered - carried)
        alone = self._alone[BEFORE + second][self._columns]
        base = self._offered[BEFORE + second][self._columns]
        waiting_alone = np.maximum(0.0, self._waiting_alone + base - alone)
        sums = self._sums
        late = np.maximum(waiting - self._waiting, 0) - np.maximum(waiting_alone - self._waiting_alone, 0)
        sums.deferred += np.where(in_use, late, 0)
        sums.offered += np.where(in_use, base, 0)
        sums.seconds += in_use
        sums.saturated += in_use & (carried + replication >= self._capacity * (1 - 1e-6))
        headroom = np.maximum(self._capacity - alone, 0)
        sums.over += in_use & (replication > RATIO * headroom + 0.01 * self._capacity)
        self._waiting, self._waiting_alone = waiting, waiting_alone
        ring = len(self._carried)
        self._carried[(second + 1) % ring] = self._carried[second % ring] + carried + replication

    def _decide(self, second: int, open_: Indexes) -> bool:
        """Run all due cycles; return whether any rate changed."""
        changed = False
        for k, (entry, planner) in enumerate(zip(self.entries, self._planners, strict=True)):
            if planner.cycles is None or not np.isinf(self._ends[k]):
                continue
            scheduled = second % entry.timing.interval == 0
            if scheduled or (k in self._due and entry.on_events):
                self._due.discard(k)
                changed |= self._cycle(k, second, scheduled)
        return changed

    def _cycle(self, k: int, second: int, scheduled: bool) -> bool:
        entry, planner = self.entries[k], self._planners[k]
        sides = slice(self._first[k], self._first[k + 1])
        timing = entry.timing
        end = (second - timing.delay - entry.measurements.stale) // 10 * 10
        start = end - timing.window
        used = None
        if start >= max(-METRICS_BEFORE, second - len(self._carried) + 1) and second >= entry.measurements.metrics_from:
            ring = len(self._carried)
            used = (self._carried[end % ring, sides] - self._carried[start % ring, sides]) / timing.window
            if entry.measurements.fanout is not None:
                used = seen_in_logs(entry.scenario, entry.measurements.fanout, used, start, end)
        if scheduled and second >= 0:
            flows = slice(self._first_flow[k], self._first_flow[k + 1])
            planner.read_logs(second, self._copied[flows], self._produced[flows], self._left[flows])
        growth = self._growth[id(entry.scenario)][(second + METRICS_BEFORE) // 10]
        if not planner.cycle(second, used, start, end, growth):
            return False
        self._quota[sides] = planner.rates()
        return True

    def _end(self, second: int, finished: Indexes, open_: Indexes) -> None:
        self._left[finished] = 0.0
        runs_left = np.bincount(self._run_of_flow[open_], minlength=len(self.entries))
        for k in {int(k) for k in self._run_of_flow[finished]}:
            mine = open_[self._run_of_flow[open_] == k] - self._first_flow[k]
            self._planners[k].set_open_flows([int(i) for i in mine])
            self._due.add(k)
            if not runs_left[k]:
                self._ends[k] = second + 1

    def _result(self, k: int, limit: int) -> Result:
        entry, sides = self.entries[k], slice(self._first[k], self._first[k + 1])
        sums = _Sums(*(getattr(self._sums, name)[sides] for name in _Sums.__dataclass_fields__))
        taken = sums.seconds > 0
        seconds = float(sums.seconds.sum()) or 1.0
        end = float(min(self._ends[k], limit))
        gigabytes = float(self._copied[self._first_flow[k] : self._first_flow[k + 1]].sum()) / 1000
        writes = self._planners[k].writes
        count = sum(brokers for _, brokers in writes)
        deferred = np.maximum(sums.deferred, 0)
        offered_at_least = 0.01 * entry.scenario.capacity[taken] * sums.seconds[taken]
        return Result(
            scenario=entry.scenario.name,
            seed=entry.scenario.seed,
            policy=entry.label,
            timing=entry.timing.name,
            makespan=end / entry.scenario.bound,
            finished=bool(np.isfinite(self._ends[k])),
            deferred=max(100 * float(sums.deferred.sum() / sums.offered.sum()), 0.0),
            # New brokers have no clients, so the share needs a minimum denominator.
            worst_deferred=100 * float((deferred[taken] / np.maximum(sums.offered[taken], offered_at_least)).max()),
            saturated=100 * float(sums.saturated.sum()) / seconds,
            over=100 * float(sums.over.sum()) / seconds,
            writes_per_gb=count / gigabytes,
            writes_per_broker_hour=count / entry.scenario.brokers / (end / 3600),
            busiest_writes_per_broker=max(
                (sum(n for t, n in writes if begin <= t < begin + 900) for begin, _ in writes), default=0
            )
            / entry.scenario.brokers,
            eta_error=self._planners[k].eta_error(end) if np.isfinite(self._ends[k]) else None,
        )


def seen_in_logs(scenario: Scenario, fanout: float, used: Array, start: int, end: int) -> Array:
    """Replace the bytes that consumers read by `fanout` times the produced bytes: logs do not show reads."""
    seconds, brokers = slice(BEFORE + start, BEFORE + end), scenario.brokers
    assumed = (2 * scenario.shape.copies + fanout) * scenario.produced[seconds].mean(axis=0, dtype=float)
    sent = scenario.alone[seconds, :brokers].mean(axis=0, dtype=float)
    return np.concatenate([np.maximum(used[:brokers] + assumed - sent, 0.0), used[brokers:]])


def _log_growth(scenario: Scenario) -> Array:
    """[10 s steps, 2 * brokers] cumulative MB read as log growth: of led logs, then of all logs."""
    brokers, begin = scenario.brokers, BEFORE - METRICS_BEFORE
    produced = np.hstack([scenario.produced[begin:], scenario.alone[begin:, brokers:]]).astype(float)
    blocks = produced.shape[0] // 10
    sums = produced[: blocks * 10].reshape(blocks, 10, -1).sum(axis=1)
    random = np.random.default_rng([scenario.seed, 77])
    read = sums * np.maximum(1 + READ_NOISE * random.standard_normal(sums.shape), 0.0)
    return np.vstack([np.zeros(2 * brokers), np.cumsum(read, axis=0)])

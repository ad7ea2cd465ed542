"""Many moves of one scenario side by side, each under its own policy and timing.

What decides is the product: `plan` and the policies of `autothrottle.core`. It sees what its adapters would see:
metrics that are means over a window and late, log sizes as of their last reading, and the throttles that stand.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from autothrottle.core.configs import ConfigResource, ReplicaRole
from autothrottle.core.eta import forecast_all
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.growth import LogGrowth
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE, BrokerLoad, Capacity, Loads, Port, Utilization
from autothrottle.core.plan import Plan, plan
from autothrottle.core.policy.interface import Observation, Policy
from autothrottle.core.progress import WINDOW
from autothrottle.core.topology import Snapshot, TopicReassignment
from tests.benchmarks.control.links import Array, Flows, Indexes, contended_shares, fair_shares, through
from tests.benchmarks.control.scenarios import BEFORE, RATIO, Scenario

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""When every move begins."""
WATCHED = 900
"""Seconds before the move from which on the planner runs."""
READ = WATCHED + 300
"""Seconds before the move from which on there are metrics."""
READING_NOISE = 0.035
"""Relative error of the growth of logs over 10 s; 2 % over 30 s."""
_FOLLOWERS = 9_000
"""Ids of the brokers that only hold replicas which are in sync already."""
FORECAST_EVERY = 60
"""Seconds between two moments at which the product is asked when the move ends."""
TOO_LONG = 3.0
"""Times the bound after which a move is given up."""


@dataclass(frozen=True)
class Timing:
    """How often it is decided, and how late metrics are; seconds."""

    name: str
    interval: int
    window: int
    delay: int


STD, MIX30, FAST = Timing("std", 180, 120, 120), Timing("mix30", 30, 120, 120), Timing("fast", 10, 10, 10)


@dataclass(frozen=True)
class Senses:
    """What the planner can see; what is False is missing."""

    progress: bool = True
    """How much of each flow has landed and is left."""
    growth: bool = True
    """How fast all logs grow."""
    metrics_from: int = -READ
    """From when on, in seconds, metrics can be read of each broker."""
    blind: tuple[int, int] = (0, 0)
    """From when to when, in seconds, the first broker has no metrics."""
    failover_every: int = 0
    """Seconds after which another planner leads, which has seen nothing; 0: never."""
    stale: int = 0
    """Seconds that metrics are later still."""


Foresight = Callable[[int, int], Array]
"""(from second, to second) -> mean client load of each port, MB/s: for an oracle only."""


@dataclass(frozen=True)
class Entry:
    """One move: what decides it, and when."""

    scenario: Scenario
    label: str
    timing: Timing
    policy: Callable[[Foresight], Policy] | None
    """None: nobody throttles."""
    ratio: float = RATIO
    threshold: float = 0.1
    senses: Senses = field(default_factory=Senses)
    on_events: bool = True
    """Whether the end of a flow starts a cycle."""


@dataclass
class Result:
    """What came of one move."""

    scenario: str
    seed: int
    policy: str
    timing: str
    makespan: float
    """Seconds / the bound."""
    finished: bool
    deferred: float
    """Percent of the clients' bytes that had to wait because of the move."""
    worst_deferred: float
    """The same of the worst port."""
    saturated: float
    """Percent of port-seconds."""
    over: float
    """Percent of port-seconds with more replication than 90 % of the headroom and 1 % of the link."""
    writes_per_gb: float
    """Rates that were changed (both of a broker count as one), for each GB moved."""
    writes_per_broker_hour: float
    busiest_writes_per_broker: float
    """Most broker config writes within 15 minutes, for each broker of the cluster; each is a notification, too."""
    eta_error: float | None
    """By how much the forecast end was off, percent of the time that was left then.

    The median of a forecast a minute, without the last tenth of the move; None: nobody could tell.
    """


class Planner:
    """The product's cycle for one move."""

    def __init__(self, entry: Entry, foresight: Foresight) -> None:
        scenario = entry.scenario
        self.entry, self._n = entry, scenario.brokers
        self._make = entry.policy
        self._foresight = foresight
        self.policy = self._make(foresight) if self._make else None
        self._history = ThrottleHistory()
        self._limits = Limits(
            min_rate=round(scenario.shape.min_rate * MEGABYTE),
            max_tx_ratio=entry.ratio,
            max_rx_ratio=entry.ratio,
            change_threshold=entry.threshold,
            failure_threshold=1,
        )
        self._capacity = {
            b: Capacity(*(round(scenario.capacity[port] * MEGABYTE) for port in (b, b + self._n)))
            for b in range(self._n)
        }
        self._flows = [Flow(int(s), int(t) - self._n) for s, t in zip(scenario.source, scenario.target, strict=True)]
        self._standing: dict[Port, int] = {}
        self._progress: Progress | None = None
        self._topics: tuple[TopicReassignment, ...] = ()
        self._failures: dict[int, int] = {}
        self._readings: list[Progress] = []
        """Those that a forecast is made of, the newest last."""
        self.writes: list[tuple[int, int]] = []
        """(second, brokers written)."""
        self.forecasts: list[tuple[int, float]] = []
        """(second, the second in which the move was to end)."""

    def move(self, open_flows: Sequence[int]) -> None:
        """Take note of what is still to be copied."""
        in_sync = tuple(range(_FOLLOWERS, _FOLLOWERS + self.entry.scenario.shape.in_sync))
        rows = [self._flows[i] for i in open_flows]
        topic = TopicReassignment(
            topic="t",
            partitions=tuple(int(i) for i in open_flows),
            leaders=tuple(flow.leader for flow in rows),
            isr=tuple((flow.leader, *in_sync) for flow in rows),
            adding_replicas=tuple((flow.follower,) for flow in rows),
            removing_replicas=tuple(() for _ in rows),
        )
        self._topics = (topic,) if rows else ()

    def read_logs(self, second: int, landed: Array, grown: Array, left: Array) -> None:
        """Read the sizes of logs."""
        if not self.entry.senses.progress:
            return
        at = BEGIN + timedelta(seconds=second)
        self._progress = Progress(
            flows={
                flow: FlowProgress(int(a), int(b), int(c), at, BEGIN)
                for flow, a, b, c in zip(
                    self._flows,
                    (landed * MEGABYTE).tolist(),
                    (grown * MEGABYTE).tolist(),
                    (left * MEGABYTE).tolist(),
                    strict=True,
                )
            },
            at=at,
        )
        self._readings.append(self._progress)
        while (oldest := self._readings[0].at) is not None and at - oldest > WINDOW:
            del self._readings[0]
        if second % FORECAST_EVERY == 0 and (eta := forecast_all(self._readings).eta) is not None:
            self.forecasts.append((second, (eta - BEGIN).total_seconds()))

    def eta_error(self, end: float) -> float | None:
        """Return by how much forecasts were off, percent of what was left of a move that took so many seconds."""
        errors = [abs(eta - end) / (end - second) for second, eta in self.forecasts if 0 < second < 0.9 * end]
        return 100 * statistics.median(errors) if errors else None

    def cycle(self, second: int, used: Array | None, start: int, end: int, growth: Array | None) -> bool:
        """Run one cycle; return whether rates changed.

        Args:
            second: when, from the begin of the move.
            used: [ports] mean traffic from `start` to `end`; None: no metrics.
            start: of the metric, in seconds.
            end: of the metric.
            growth: [2 * brokers] MB by which the logs led, and all logs, have grown so far.
        """
        senses = self.entry.senses
        if senses.failover_every and second > 0 and second % senses.failover_every == 0:
            assert self._make is not None
            self.policy, self._history = self._make(self._foresight), ThrottleHistory()
        now = BEGIN + timedelta(seconds=second)
        snapshot = Snapshot(
            version=second + 10_000,
            brokers=frozenset(self._capacity),
            reassignments=self._topics,
            throttles=self._throttles(),
            progress=self._progress,
        )
        blind_from, blind_until = senses.blind
        loads = self._loads(used, start, end, hidden=int(blind_from <= second < blind_until))
        missing = {b for b in self._capacity if b not in loads.brokers}
        self._failures = {b: self._failures.get(b, 0) + 1 for b in missing}
        self._history = self._history.observe(now, self._standing)
        assert self.policy is not None
        read = BEGIN + timedelta(seconds=second // 10 * 10)
        seen = Observation(now, snapshot, loads, self._growth(growth, read))
        self.policy = self.policy.observe(seen)
        decided = plan(
            snapshot, loads, self._limits, failures=self._failures, history=self._history, policy=self.policy
        )
        changed = self._apply(second, decided)
        self._history = self._history.observe(now, self._standing)
        return changed

    def rates(self) -> Array:
        """[ports] the throttles that stand, MB/s."""
        found = np.full(2 * self._n, np.inf)
        for (broker_id, role), rate in self._standing.items():
            found[broker_id + (0 if role is ReplicaRole.LEADER else self._n)] = rate / MEGABYTE
        return found

    def _throttles(self) -> dict[ConfigResource, dict[str, str]]:
        found: dict[ConfigResource, dict[str, str]] = {}
        for (broker_id, role), rate in self._standing.items():
            found.setdefault(ConfigResource.broker(broker_id), {})[role.rate_key] = str(rate)
        return found

    def _loads(self, used: Array | None, start: int, end: int, hidden: int) -> Loads:
        if used is None:
            return Loads()
        rates = (used * MEGABYTE).tolist()
        begin, until = BEGIN + timedelta(seconds=start), BEGIN + timedelta(seconds=end)

        def mean(port: int) -> Utilization:
            return Utilization(round(rates[port]), begin, until)

        seen = range(hidden, self._n)
        return Loads({b: BrokerLoad(b, self._capacity[b], mean(b), mean(b + self._n)) for b in seen})

    def _growth(self, growth: Array | None, at: datetime) -> dict[int, LogGrowth]:
        if growth is None or not self.entry.senses.growth:
            return {}
        counts = (growth * MEGABYTE).tolist()
        since = BEGIN - timedelta(seconds=READ)
        return {b: LogGrowth(int(counts[b]), int(counts[b + self._n]), at, since) for b in range(self._n)}

    def _apply(self, second: int, decided: Plan) -> bool:
        wanted = {(d.broker_id, d.role): d.rate for d in decided.decisions}
        changed = {port for port, rate in wanted.items() if self._standing.get(port) != rate}
        if changed:
            self.writes.append((second, len({broker_id for broker_id, _ in changed})))
        is_new = wanted != self._standing
        self._standing = wanted
        return is_new


@dataclass
class _Sums:
    """What is added up for each port while it takes part."""

    offered: Array
    deferred: Array
    saturated: Array
    over: Array
    seconds: Array

    @staticmethod
    def zero(ports: int) -> _Sums:
        return _Sums(*(np.zeros(ports) for _ in range(5)))


class Fleet:
    """All moves of one scenario, in steps of a second."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)
        sizes = [len(e.scenario.capacity) for e in self.entries]
        self._first = np.cumsum([0, *sizes])
        self._ports = int(self._first[-1])
        self._scenarios = list({id(e.scenario): e.scenario for e in self.entries}.values())
        begins = np.cumsum([0, *(len(s.capacity) for s in self._scenarios)])
        where = {id(s): int(begin) for s, begin in zip(self._scenarios, begins, strict=False)}
        self._columns = np.concatenate(
            [where[id(e.scenario)] + np.arange(n) for e, n in zip(self.entries, sizes, strict=True)]
        )
        self._offered = np.hstack([s.offered for s in self._scenarios])
        self._alone = np.hstack([s.alone for s in self._scenarios])
        self._alone_totals = [self._totals(s) for s in self._scenarios]
        self._growth = {id(s): _log_growth(s) for s in self._scenarios}
        self._capacity = self._of_ports(lambda s: s.capacity)
        self._run_of_port = np.repeat(np.arange(len(sizes)), sizes)
        self._source = self._of_flows(lambda s: s.source, self._first)
        self._target = self._of_flows(lambda s: s.target, self._first)
        self._growing = self._of_flows(lambda s: s.growth)
        self._left = self._of_flows(lambda s: s.size)
        self._landed, self._grown = np.zeros(len(self._left)), np.zeros(len(self._left))
        in_sync = self._of_flows(lambda s: s.growth * s.shape.in_sync)
        self._in_sync_of_flow = in_sync
        self._run_of_flow = np.repeat(np.arange(len(sizes)), [len(e.scenario.source) for e in self.entries])
        flows = [len(e.scenario.source) for e in self.entries]
        self._first_flow = np.cumsum([0, *flows])
        self._waiting, self._waiting_alone = np.zeros(self._ports), np.zeros(self._ports)
        self._quota = np.full(self._ports, np.inf)
        self._planners = [Planner(e, self._foresight(k)) for k, e in enumerate(self.entries)]
        self._ends = np.full(len(self.entries), np.inf)
        self._due: set[int] = set()
        """Moves of which a flow has ended since their last cycle."""
        self._sums = _Sums.zero(self._ports)
        self._carried = np.zeros((1024, self._ports))
        """Cumulative traffic of each port, a ring of the last seconds."""

    def _of_ports(self, what: Callable[[Scenario], Array]) -> Array:
        return np.concatenate([what(e.scenario) for e in self.entries])

    def _of_flows(self, what: Callable[[Scenario], NDArray[np.generic]], first: Indexes | None = None) -> NDArray:  # type: ignore[type-arg]
        shifts = first if first is not None else np.zeros(len(self.entries), int)
        return np.concatenate([what(e.scenario) + shift for e, shift in zip(self.entries, shifts, strict=False)])

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
        """Run all to their ends, or until they take too long."""
        longest = max(e.scenario.shape.hours for e in self.entries) * 3600 * TOO_LONG
        limit = min(int(longest), self._offered.shape[0] - BEFORE - 200)
        wished: Array | None = None
        open_flows = np.zeros(0, np.int64)
        for second in range(-READ, limit):
            if second == 0:
                open_flows = np.arange(len(self._left))
                for k, planner in enumerate(self._planners):
                    planner.move(range(self._first_flow[k + 1] - self._first_flow[k]))
            if second >= -WATCHED and self._decide(second, open_flows):
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
        """Let a second pass; return the flows that have come to their end, and what flows wish."""
        offered = self._offered[BEFORE + second][self._columns].astype(float)
        flows = Flows(self._source[open_], self._target[open_], self._left[open_] + self._growing[open_])
        taking = np.zeros(self._ports, bool)
        if second >= 0:
            taking[flows.source] = taking[flows.target] = True
            active = np.isinf(self._ends)[self._run_of_flow]
            ended = active.copy()
            ended[open_] = False
            offered += np.bincount(self._source[ended], self._growing[ended], self._ports)
            offered += np.bincount(self._target[ended], self._growing[ended], self._ports)
        counted = np.bincount(flows.source, self._in_sync_of_flow[open_], self._ports)
        allowed = np.minimum(np.maximum(self._quota - counted, 0.0), self._capacity)
        if wished is None and len(open_):
            wished = fair_shares(flows._replace(want=np.full(len(open_), np.inf)), allowed)
        asked = offered + self._waiting / 10.0
        rates = np.zeros(0)
        if len(open_) and wished is not None:
            rates = self._shared(flows, wished, allowed, asked)
        replication = through(flows, rates, self._ports)
        self._serve(second, offered, asked, replication, taking)
        self._landed[open_] += rates
        self._grown[open_] += self._growing[open_]
        self._left[open_] += self._growing[open_] - rates
        return open_[self._left[open_] <= 1e-6], wished

    def _shared(self, flows: Flows, wished: Array, allowed: Array, asked: Array) -> Array:
        """What each flow sends; only the moves with a link that is asked for too much are worked out anew."""
        rates = np.minimum(wished, flows.want)
        crowded = asked + through(flows, rates, self._ports) > self._capacity
        if not crowded.any():
            return rates
        runs = np.zeros(len(self.entries), bool)
        runs[self._run_of_port[crowded]] = True
        hit = runs[self._run_of_port[flows.source]]
        some = Flows(flows.source[hit], flows.target[hit], flows.want[hit])
        rates[hit] = contended_shares(some, rates[hit], allowed, self._capacity, asked)
        return rates

    def _serve(self, second: int, offered: Array, asked: Array, replication: Array, taking: NDArray[np.bool_]) -> None:
        """Let clients have what is left, and add everything up."""
        carried = np.minimum(asked, np.maximum(self._capacity - replication, 0.0))
        waiting = np.maximum(0.0, self._waiting + offered - carried)
        alone = self._alone[BEFORE + second][self._columns]
        base = self._offered[BEFORE + second][self._columns]
        waiting_alone = np.maximum(0.0, self._waiting_alone + base - alone)
        sums = self._sums
        late = np.maximum(waiting - self._waiting, 0) - np.maximum(waiting_alone - self._waiting_alone, 0)
        sums.deferred += np.where(taking, late, 0)
        sums.offered += np.where(taking, base, 0)
        sums.seconds += taking
        sums.saturated += taking & (carried + replication >= self._capacity * (1 - 1e-6))
        headroom = np.maximum(self._capacity - alone, 0)
        sums.over += taking & (replication > RATIO * headroom + 0.01 * self._capacity)
        self._waiting, self._waiting_alone = waiting, waiting_alone
        ring = len(self._carried)
        self._carried[(second + 1) % ring] = self._carried[second % ring] + carried + replication

    def _decide(self, second: int, open_: Indexes) -> bool:
        """Run the cycles that are due; return whether any rate changed."""
        changed = False
        for k, (entry, planner) in enumerate(zip(self.entries, self._planners, strict=True)):
            if planner.policy is None or not np.isinf(self._ends[k]):
                continue
            scheduled = second % entry.timing.interval == 0
            if scheduled or (k in self._due and entry.on_events):
                self._due.discard(k)
                changed |= self._cycle(k, second, scheduled)
        return changed

    def _cycle(self, k: int, second: int, scheduled: bool) -> bool:
        entry, planner = self.entries[k], self._planners[k]
        ports = slice(self._first[k], self._first[k + 1])
        timing = entry.timing
        end = (second - timing.delay - entry.senses.stale) // 10 * 10
        start = end - timing.window
        used = None
        if start >= max(-READ, second - len(self._carried) + 1) and second >= entry.senses.metrics_from:
            ring = len(self._carried)
            used = (self._carried[end % ring, ports] - self._carried[start % ring, ports]) / timing.window
        if scheduled and second >= 0:
            flows = slice(self._first_flow[k], self._first_flow[k + 1])
            planner.read_logs(second, self._landed[flows], self._grown[flows], self._left[flows])
        growth = self._growth[id(entry.scenario)][(second + READ) // 10]
        if not planner.cycle(second, used, start, end, growth):
            return False
        self._quota[ports] = planner.rates()
        return True

    def _end(self, second: int, finished: Indexes, open_: Indexes) -> None:
        self._left[finished] = 0.0
        runs_left = np.bincount(self._run_of_flow[open_], minlength=len(self.entries))
        for k in {int(k) for k in self._run_of_flow[finished]}:
            mine = open_[self._run_of_flow[open_] == k] - self._first_flow[k]
            self._planners[k].move([int(i) for i in mine])
            self._due.add(k)
            if not runs_left[k]:
                self._ends[k] = second + 1

    def _result(self, k: int, limit: int) -> Result:
        entry, ports = self.entries[k], slice(self._first[k], self._first[k + 1])
        sums = _Sums(*(getattr(self._sums, name)[ports] for name in _Sums.__dataclass_fields__))
        taken = sums.seconds > 0
        seconds = float(sums.seconds.sum()) or 1.0
        end = float(min(self._ends[k], limit))
        gigabytes = float(self._landed[self._first_flow[k] : self._first_flow[k + 1]].sum()) / 1000
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
            # New brokers have no clients: a share of nothing says nothing.
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


def _log_growth(scenario: Scenario) -> Array:
    """[every 10 s from READ before the move on, 2 * brokers] MB by which the logs led, and all, have grown as read."""
    brokers, begin = scenario.brokers, BEFORE - READ
    grown = np.hstack([scenario.produced[begin:], scenario.alone[begin:, brokers:]]).astype(float)
    blocks = grown.shape[0] // 10
    sums = grown[: blocks * 10].reshape(blocks, 10, -1).sum(axis=1)
    chance = np.random.default_rng([scenario.seed, 77])
    read = sums * np.maximum(1 + READING_NOISE * chance.standard_normal(sums.shape), 0.0)
    return np.vstack([np.zeros(2 * brokers), np.cumsum(read, axis=0)])

"""A small simulated cluster for policies, in virtual time: client load is given, and replication follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, LinkSide, LogGrowth, Progress
from autothrottle.core.records import Decision
from autothrottle.core.traffic.loads import Loads
from tests import builders
from tests.builders import NOON, mb
from tests.policy_cycles import PolicyCycles

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
CAPACITY = mb(100)
Clients = Callable[[LinkSide, int], float]
"""(link side, second) -> bytes/s."""


@dataclass
class World(PolicyCycles):
    """Links of 100 MB/s; metrics are means over `window` seconds that arrive `delay` seconds late."""

    clients: Clients
    sizes: Mapping[Flow, float]
    """Bytes to copy."""
    window: int = 120
    delay: int = 120
    missing: int = 0
    """Seconds at the end of its interval that a metric lacks without reporting it."""
    interval: int = 30
    efficiency: float = 1.0
    """Share of the throttle that replication uses."""
    has_progress: bool = True
    late: int = 0
    """Age of log sizes at a cycle, seconds."""
    has_growth: bool = False
    blind: frozenset[int] = frozenset()
    """Brokers without metrics."""
    silent: frozenset[int] = frozenset()
    """Brokers that do not report log sizes."""
    begin: int = 600
    """Second in which the reassignment starts; the planner runs from second 0."""
    second: int = 0

    def __post_init__(self) -> None:
        self.left = dict(self.sizes)
        self.copied = dict.fromkeys(self.sizes, 0.0)
        self.brokers = sorted({b for flow in self.sizes for b in flow})
        self.carried: dict[LinkSide, list[float]] = {(b, role): [0.0] for b in self.brokers for role in ReplicaRole}
        self.received: dict[int, float] = dict.fromkeys(self.brokers, 0.0)
        self.led: dict[int, float] = dict.fromkeys(self.brokers, 0.0)
        self.seen = [(self.copied, self.left, self.led, self.received)]

    def run(self, until: int) -> list[Mapping[LinkSide, Decision]]:
        """Let time pass; return the decisions of each cycle with the reassignment."""
        found = []
        while self.second < until:
            if self.second % self.interval == 0:
                decisions = self._cycle()
                if self.second >= self.begin:
                    found.append(decisions)
            self._pass_second()
        return found

    def _pass_second(self) -> None:
        rates = self._replication() if self.second >= self.begin else {}
        for side, totals in self.carried.items():
            clients = self.clients(side, self.second)
            own = sum(rate for flow, rate in rates.items() if side in ends(flow))
            totals.append(totals[-1] + clients + own)
            (self.received if side[1] is FOLLOWER else self.led)[side[0]] += clients
        for flow, rate in rates.items():
            self.left[flow] -= rate
            self.copied[flow] += rate
        self.second += 1
        counts = dict(self.copied), dict(self.left), dict(self.led), dict(self.received)
        self.seen = [*self.seen, counts][-1 - self.late :]

    def _replication(self) -> dict[Flow, float]:
        moving = [flow for flow, left in self.left.items() if left > 0]
        count = {side: sum(side in ends(flow) for flow in moving) for side in self.carried}
        return {
            flow: min(
                self.left[flow],
                *(self.efficiency * self.current.get(side, CAPACITY) / count[side] for side in ends(flow)),
            )
            for flow in moving
        }

    def _cycle(self) -> Mapping[LinkSide, Decision]:
        now = self.at(self.second)
        moving = [flow for flow, left in self.left.items() if left > 0] if self.second >= self.begin else []
        rows = {n: (flow.leader, (flow.leader,), (flow.follower,), ()) for n, flow in enumerate(moving)}
        decided = self.decide(
            now,
            self.brokers,
            [builders.reassignment("t", rows)] if rows else [],
            self._loads(),
            builders.limits(),
            progress=self._progress(now) if self.has_progress and moving else None,
            growth=self._growth(now),
        )
        return {(d.broker_id, d.role): d for d in decided.decisions}

    @staticmethod
    def at(second: int) -> datetime:
        return NOON + timedelta(seconds=second)

    def _progress(self, now: datetime) -> Progress:
        since = self.at(self.begin)
        copied, remaining, _, _ = self.seen[0]
        at = now - timedelta(seconds=self.late)
        reported = {f: left for f, left in remaining.items() if not self.silent.intersection(f)}
        counts = {f: FlowProgress(int(copied[f]), 0, int(left), at, since) for f, left in reported.items()}
        return Progress(flows=counts, at=at)

    def _loads(self) -> Loads:
        if self.second < self.delay + self.window:
            return Loads()
        end, start = self.second - self.delay, self.second - self.delay - self.window
        last = end - self.missing

        def used(broker_id: int, role: ReplicaRole) -> int:
            totals = self.carried[broker_id, role]
            return round((totals[last] - totals[start]) / (last - start))

        span = timedelta(seconds=end - start)
        reporting = (b for b in self.brokers if b not in self.blind)
        return builders.loads(
            *(builders.load(b, used(b, LEADER), used(b, FOLLOWER), CAPACITY, self.at(end), span) for b in reporting)
        )

    def _growth(self, now: datetime) -> dict[int, LogGrowth]:
        if not self.has_growth:
            return {}
        _, _, led, received = self.seen[0]
        at = now - timedelta(seconds=self.late)
        return {b: LogGrowth(int(led[b]), int(received[b]), at, NOON) for b in self.brokers}


def ends(flow: Flow) -> tuple[LinkSide, LinkSide]:
    """Both link sides of a flow."""
    return (flow.leader, LEADER), (flow.follower, FOLLOWER)


def steady(rate: float) -> Clients:
    """The same constant load on every link side."""
    return lambda side, second: rate

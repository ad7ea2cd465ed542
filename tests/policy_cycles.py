"""Successive decisions of one policy, for models of links without a controller, a writer and ramps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.flows import LinkSide, LogGrowth, Progress
from autothrottle.core.cluster.snapshot import TopicReassignment
from autothrottle.core.policy.interface import Limits, Policy, PolicyObservation
from autothrottle.core.throttles.plan import Plan, plan
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.traffic.replication import ThrottleHistory
from tests import builders


@dataclass
class PolicyCycles:
    """A policy, the throttles that it set, and what `plan` remembers between two cycles."""

    policy: Policy
    current: dict[LinkSide, int] = field(default_factory=dict, init=False)
    """The throttles in force, bytes/s."""
    history: ThrottleHistory = field(default_factory=ThrottleHistory, init=False)
    failures: dict[int, int] = field(default_factory=dict, init=False)
    """Broker id -> number of successive cycles without its load."""

    def fail_over(self, policy: Policy) -> None:
        """Continue with another planner, which knows nothing but the throttles in force."""
        self.policy, self.history = policy, ThrottleHistory()

    def decide(
        self,
        now: datetime,
        brokers: Iterable[int],
        reassignments: Iterable[TopicReassignment],
        loads: Loads,
        limits: Limits,
        *,
        progress: Progress | None,
        growth: Mapping[int, LogGrowth],
    ) -> Plan:
        """Run one cycle; its rates are in force at once."""
        throttles: dict[str, dict[str, str]] = {}
        for (broker_id, role), rate in self.current.items():
            throttles.setdefault(ConfigResource.broker(broker_id).path, {})[role.rate_key] = str(rate)
        snapshot = builders.snapshot(*reassignments, brokers=brokers, throttles=throttles, progress=progress)
        self.failures = {b: self.failures.get(b, 0) + 1 for b in snapshot.brokers - loads.brokers.keys()}
        self.history = self.history.observe(now, self.current)
        self.policy = self.policy.observe(PolicyObservation(now, snapshot, loads, growth))
        decided = plan(snapshot, loads, limits, failures=self.failures, history=self.history, policy=self.policy)
        self.current = {(d.broker_id, d.role): d.rate_bytes_per_second for d in decided.decisions}
        self.history = self.history.observe(now, self.current)
        return decided

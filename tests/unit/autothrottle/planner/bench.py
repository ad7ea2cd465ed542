"""A planner on in-memory twins, run cycle by cycle in virtual time, or by its own thread in real time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType

from autothrottle.adapters.memory import (
    MemoryAuditedMap,
    MemoryCluster,
    MemoryElection,
    MemoryElectorate,
    MemoryMetrics,
    MemoryOverrides,
    MemoryPauses,
)
from autothrottle.adapters.zookeeper.map_codecs import CATCH_UPS, TEMPORARY_QUOTAS, YIELD_RULES
from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole
from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.operators.sources import Schedule
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Limits, Policy
from autothrottle.core.records import Cycle
from autothrottle.core.traffic.loads import Loads
from autothrottle.planner.calls import PlannerDependencies
from autothrottle.planner.loop import Planner, Trigger
from autothrottle.ports.kafka import Term
from autothrottle.ports.telemetry import UNTRACED, DecisionSink, Event, Tracer
from tests import builders
from tests.builders import NOON, mb

ADDRESS = "127.0.0.1:4003"
BROKERS = (1001, 1002, 1003, 1004)
LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER


class GatedMetrics(MemoryMetrics):
    """A metrics source whose reads or posts hang while their gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.last_timeout = timedelta(0)
        """The timeout of the last read."""
        self.read_gate, self.post_gate = threading.Event(), threading.Event()
        self.read_gate.set()
        self.post_gate.set()
        self.hangs = threading.Event()
        """Set when a read or a post waits at a closed gate."""

    def fetch_loads(self, timeout: timedelta) -> Loads:
        self.reads += 1
        self.last_timeout = timeout
        self._wait_at(self.read_gate)
        return super().fetch_loads(timeout)

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self._wait_at(self.post_gate)
        super().post_event(event, timeout)

    def _wait_at(self, gate: threading.Event) -> None:
        if not gate.is_set():
            self.hangs.set()
            assert gate.wait(60), "the gate stayed closed"


class Bench:
    """Four brokers with links of 100 MB/s. Clients make each one send 20 MB/s and receive 10 MB/s.

    The interval is one minute. Time is virtual for `cycle`, and real for the planner's own thread.
    Without throttles the headroom is 72 MB/s for a leader and 81 MB/s for a follower.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        interval: timedelta = timedelta(seconds=60),
        cleanup_after: int = 60,
        cleanup_foreign: bool = False,
        real_time: bool = False,
        tracer: Tracer = UNTRACED,
        shadow: bool = False,
        schedule: Schedule = Schedule(),  # noqa: B008 (frozen)
        finish_by: datetime | None = None,
        policy: Policy = HeadroomPolicy(),  # noqa: B008 (frozen)
        decisions: DecisionSink | None = None,
        state_topic: str = "",
    ) -> None:
        self.seconds = 0.0
        self.broker_pools: Mapping[int, str] = {}
        self.clock_change = timedelta()
        self.real_time, self.tracer, self.decisions = real_time, tracer, decisions
        self._begin = datetime.now(UTC) if real_time else NOON
        self.electorate = MemoryElectorate()
        self.cluster = MemoryCluster(self.electorate, BROKERS)
        self.metrics = GatedMetrics()
        self.overrides = MemoryOverrides(self.electorate)
        self.pauses = MemoryPauses(self.overrides.audit)
        self.catch_ups = MemoryAuditedMap(CATCH_UPS, self.electorate)
        self.temporary_quotas = MemoryAuditedMap(TEMPORARY_QUOTAS, self.electorate, self.overrides.audit)
        self.yield_rules = MemoryAuditedMap(YIELD_RULES, audit=self.overrides.audit)
        self.election = MemoryElection(self.electorate)
        self.settings = PlannerSettings(
            limits=limits or builders.limits(),
            policy=policy,
            interval=interval,
            cleanup_after=cleanup_after,
            cleanup_foreign=cleanup_foreign,
            shadow=shadow,
            schedule=schedule,
            finish_by=finish_by,
            state_topic=state_topic,
        )
        self.planner = self.new_planner()
        self.term = Term(0)
        for broker_id in BROKERS:
            self.set_load(broker_id)

    def new_planner(self) -> Planner:
        """A new planner without state for the same cluster."""
        dependencies = self.dependencies(self.election)
        if self.real_time:
            return Planner(dependencies, self.settings)
        return Planner(dependencies, self.settings, self.now, lambda: self.seconds)

    def dependencies(self, election: MemoryElection) -> PlannerDependencies:
        """The twins as dependencies of a candidate in this election."""
        return PlannerDependencies(
            election=election,
            snapshots=self.cluster,
            loads=self.metrics,
            events=self.metrics,
            writer=self.cluster,
            reassigner=self.cluster,
            overrides=self.overrides,
            pauses=self.pauses,
            catch_ups=self.catch_ups,
            settings=self.cluster,
            quotas=self.cluster,
            temporary_quotas=self.temporary_quotas,
            yield_rules=self.yield_rules,
            tracer=self.tracer,
            decisions=self.decisions,
            broker_pools=lambda: self.broker_pools,
        )

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.metrics.read_gate.set()
        self.metrics.post_gate.set()
        self.planner.stop()

    def now(self) -> datetime:
        return NOON + self.clock_change + timedelta(seconds=self.seconds)

    def set_load(self, broker_id: int, outbound: float = 20, inbound: float = 10) -> None:
        """Set the mean traffic of a broker over the 30 s before the test, in MB/s."""
        self.metrics.set_loads(builders.load(broker_id, outbound=mb(outbound), inbound=mb(inbound), end=self._begin))

    def begin_reassignment(self, topic: str = "t1", partitions: int = 1) -> None:
        """Reassign every partition from 1002 to 1003; 1001 leads all of them."""
        self.cluster.add_topic(topic, dict.fromkeys(range(partitions), (1001, 1002)))
        self.cluster.submit_reassignment(topic, dict.fromkeys(range(partitions), (1001, 1003)))

    def cycle(self, reason: str = "", after: float | None = None) -> Cycle:
        """Run the next scheduled cycle. With a reason: run an event cycle, one second later."""
        self.seconds += after if after is not None else 1 if reason else 60
        if not self.term.fence:
            self.term = Term(self.electorate.begin_term(ADDRESS))
        return self.planner.run_cycle(self.term, Trigger(reason or "interval", scheduled=not reason))

    def finish_ramps(self) -> list[float]:
        """Run ramp steps for 30 s, one per second; return the follower throttle of 1003 after each, in MB/s."""
        seen = []
        for _ in range(30):
            self.seconds += 1
            self.planner.run_step(self.term)
            seen.append(self.rate(1003, FOLLOWER) or 0.0)
        return seen

    def posted(self) -> list[Event]:
        """Stop the planner; return the events of all cycles."""
        self.planner.stop()
        return self.metrics.events

    def rate(self, broker_id: int, role: ReplicaRole) -> float | None:
        """The current throttle in MB/s; None: not throttled."""
        value = self.cluster.configs.get(ConfigResource.broker(broker_id), {}).get(role.rate_key)
        return None if value is None else int(value) / mb(1)

    def rates(self) -> dict[tuple[int, str], float]:
        """All current throttles: (broker id, role) -> MB/s."""
        sides = [(broker_id, role) for broker_id in BROKERS for role in ReplicaRole]
        found = {(b, role.value): self.rate(b, role) for b, role in sides}
        return {side: rate for side, rate in found.items() if rate is not None}

    def lists(self, topic: str = "t1") -> tuple[str | None, str | None]:
        """The current (leader, follower) throttled replicas of a topic."""
        config = self.cluster.configs.get(ConfigResource.topic(topic), {})
        return config.get(LEADER.replicas_key), config.get(FOLLOWER.replicas_key)

    def is_clean(self) -> bool:
        """Whether there are no throttles and the ledger is empty."""
        return not self.cluster.ledger and not any(self.cluster.configs.values())

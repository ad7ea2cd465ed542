"""A recovery in virtual time: the real planner against simulated brokers, hours of it in seconds.

Brokers, clients and fetchers are those of `core.simulation`; the planner reads and writes the in-memory twins, and what
it sees of the loads is what a metrics source would tell: means of counters over a window. The type to know is
`VirtualRecovery`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.memory import (
    MemoryCatchUps,
    MemoryCluster,
    MemoryElection,
    MemoryElectorate,
    MemoryMetrics,
    MemoryOverrides,
    MemoryPauses,
    MemoryTracer,
)
from autothrottle.core.configs import ConfigResource, ReplicaRole
from autothrottle.core.loads import BrokerLoad, Capacity, Utilization
from autothrottle.core.plan import Limits
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.simulation import ClientTraffic, Cluster, SimulatedBroker, SimulatedPartition, TopicPartition
from autothrottle.planner.loop import Planner
from autothrottle.planner.settings import PlannerSettings, Ports
from autothrottle.planner.triggers import Trigger
from autothrottle.ports.decisions import DecisionSink
from autothrottle.ports.leadership import Term

TOPIC = "moving"
BEGIN = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
STEP = timedelta(seconds=0.1)
SIZES_EVERY = timedelta(seconds=10)
COUNTED_EVERY = timedelta(seconds=1)
RAISED_EVERY = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class VirtualScenario:
    """One new broker that takes the place of a failed one; partition i is led by broker i modulo the others."""

    traffic: Mapping[int, ClientTraffic]
    """Broker id -> what its clients offer; the last id is the new broker's."""
    partition_bytes: Sequence[float]
    """Of each partition."""
    capacity: int = 100_000_000
    """Of every link and direction, bytes/s."""
    capacities: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> the same of its link; those left out have `capacity`."""
    produced: int = 0
    """What is produced to each partition meanwhile, a part of what clients offer, bytes/s."""
    policy: Policy = HeadroomPolicy()  # noqa: RUF009 (frozen)
    limits: Limits = field(
        default_factory=lambda: Limits(10_000_000, 0.9, 0.9, change_threshold=0.1, failure_threshold=1)
    )
    interval: timedelta = timedelta(seconds=60)
    metrics_window: timedelta = timedelta(seconds=60)
    blind: tuple[timedelta, timedelta] | None = None
    """From when to when after the start there are no metrics."""
    failover: tuple[timedelta, timedelta] | None = None
    """How long after the start another planner leads, and by how much its clock is ahead."""
    begin: datetime = BEGIN
    instance_type: str = "lab"

    def link(self, broker_id: int) -> Capacity:
        """A broker's link."""
        rate = self.capacities.get(broker_id, self.capacity)
        return Capacity(rate, rate)


class VirtualRecovery:
    """One recovery; `run` plays it to its end."""

    def __init__(self, scenario: VirtualScenario, sink: DecisionSink, cluster_name: str = "lab") -> None:
        """Begin with brokers that have carried nothing yet.

        Args:
            scenario: what is played.
            sink: takes the decisions.
            cluster_name: in the decision log.
        """
        self._scenario, self._seconds = scenario, 0.0
        brokers = sorted(scenario.traffic)
        self.new, others = brokers[-1], brokers[:-1]
        partitions = [
            SimulatedPartition(
                topic=TOPIC,
                partition=i,
                size=size,
                leader=others[i % len(others)],
                replicas=(others[i % len(others)], 1),
                isr=(others[i % len(others)],),
                produce_rate=scenario.produced,
            )
            for i, size in enumerate(scenario.partition_bytes)
        ]
        links = [SimulatedBroker(b, scenario.link(b), scenario.traffic[b]) for b in brokers]
        self.brokers = Cluster(links, partitions)
        self._electorate = electorate = MemoryElectorate()
        self.kafka = MemoryCluster(electorate, brokers)
        self.metrics, self.overrides = MemoryMetrics(), MemoryOverrides(electorate)
        self._settings = PlannerSettings(
            scenario.limits,
            policy=scenario.policy,
            interval=scenario.interval,
            metrics_window=scenario.metrics_window,
            cluster=cluster_name,
        )
        self._ports = Ports(
            election=MemoryElection(electorate),
            snapshots=self.kafka,
            loads=self.metrics,
            events=self.metrics,
            writer=self.kafka,
            reassigner=self.kafka,
            overrides=self.overrides,
            pauses=MemoryPauses(),
            catch_ups=MemoryCatchUps(electorate),
            settings=self.kafka,
            tracer=MemoryTracer(),
            decisions=sink,
        )
        self._skew = timedelta(0)
        self._take_over()
        self._counters: dict[int, deque[tuple[float, int, int]]] = {b: deque() for b in brokers}
        self._read_sizes_at = self._count_at = self._raise_at = 0.0

    def now(self) -> datetime:
        """Virtual time."""
        return self._scenario.begin + timedelta(seconds=self._seconds)

    def _take_over(self) -> None:
        """Let another planner lead, which remembers nothing."""
        skew = self._skew
        self._term = Term(self._electorate.begin_term("127.0.0.1:4003"))
        self.planner = Planner(self._ports, self._settings, lambda: self.now() + skew, lambda: self._seconds)

    def run(self, longest: timedelta = timedelta(hours=12)) -> float:
        """Play it until nothing moves any more; return how many seconds the reassignment took.

        Raises:
            TimeoutError: it takes longer than `longest`.
        """
        window = self._scenario.metrics_window.total_seconds()
        while self._seconds <= window:
            self._step()
        start = self._begin()
        self._cycle("a reassignment started")
        due = self._seconds + self._scenario.interval.total_seconds()
        failover = self._scenario.failover
        while self.brokers.moving():
            self._step()
            if self._seconds >= self._raise_at:
                self._raise_at = self._seconds + RAISED_EVERY.total_seconds()
                self.planner.run_step(self._term)
            if failover and self._seconds - start >= failover[0].total_seconds():
                self._skew, failover = failover[1], None
                self.planner.stop()
                self._take_over()
                self._cycle("interval")
            if self._seconds >= due and self.brokers.moving():
                self._cycle("interval")
                due += self._scenario.interval.total_seconds()
            if self._seconds - start > longest.total_seconds():
                raise TimeoutError(f"it moves for more than {longest}")
        took = self._seconds - start
        self._cycle("the reassignment ended")
        self.planner.stop()
        return took

    def _begin(self) -> float:
        target = {key: (p.leader, self.new) for key, p in self.brokers.partitions.items()}
        self.kafka.add_topic(TOPIC, {key[1]: (p.leader,) for key, p in self.brokers.partitions.items()})
        self.brokers.start_reassignment(target)
        self.kafka.start_reassignment(TOPIC, {key[1]: replicas for key, replicas in target.items()})
        self.kafka.tell_progress(self.now)
        self._tell_sizes()
        return self._seconds

    def _step(self) -> None:
        before = set(self.brokers.moving())
        self.brokers.step(STEP.total_seconds())
        self._seconds = self.brokers.now
        if self._seconds >= self._count_at:
            self._count_at = self._seconds + COUNTED_EVERY.total_seconds()
            self._count()
        moving = set(self.brokers.moving())
        for key in before - moving:
            self._finish(key)
        if moving and self._seconds >= self._read_sizes_at:
            self._read_sizes_at = self._seconds + SIZES_EVERY.total_seconds()
            self._tell_sizes()
            self.kafka.fetch_snapshot(timeout=STEP)

    def _count(self) -> None:
        """Read the counters of all links, and forget those that no metric needs any more."""
        for broker_id, broker in self.brokers.brokers.items():
            counts = broker.counters()
            kept = self._counters[broker_id]
            kept.append((self._seconds, counts.tx, counts.rx))
            while kept[0][0] < self._seconds - self._scenario.metrics_window.total_seconds():
                kept.popleft()

    def _finish(self, key: TopicPartition) -> None:
        self._tell_sizes()
        self.kafka.join_isr(TOPIC, key[1], self.new)
        self.kafka.finish(TOPIC, key[1])

    def _tell_sizes(self) -> None:
        for (topic, number), partition in self.brokers.partitions.items():
            for broker_id, landed in partition.landed.items():
                self.kafka.log_bytes.setdefault(broker_id, {})[topic, number] = round(landed)

    def _cycle(self, reason: str) -> None:
        self._measure()
        self._tell_sizes()
        self.planner.run_cycle(self._term, Trigger(reason, scheduled=reason == "interval"))
        self._obey()

    def _measure(self) -> None:
        blind = self._scenario.blind
        since_start = timedelta(seconds=self._seconds) - self._scenario.metrics_window
        if blind and blind[0] <= since_start < blind[1]:
            self.metrics.unavailable(True)
            return
        self.metrics.unavailable(False)
        for broker_id, counts in self._counters.items():
            (since, tx, rx), (until, last_tx, last_rx) = counts[0], counts[-1]
            start, end = (self._scenario.begin + timedelta(seconds=at) for at in (since, until))
            link = self._scenario.link(broker_id)
            sent = Utilization(round((last_tx - tx) / (until - since)), start, end)
            received = Utilization(round((last_rx - rx) / (until - since)), start, end)
            self.metrics.set_loads(BrokerLoad(broker_id, link, sent, received, self._scenario.instance_type))

    def _obey(self) -> None:
        """Let the brokers take up the configs."""
        for broker_id in self.brokers.brokers:
            config = self.kafka.configs.get(ConfigResource.broker(broker_id), {})
            for role in ReplicaRole:
                value = config.get(role.rate_key)
                self.brokers.set_rate(broker_id, role, None if value is None else int(value))
        config = self.kafka.configs.get(ConfigResource.topic(TOPIC), {})
        for role in ReplicaRole:
            entries = frozenset(filter(None, config.get(role.replicas_key, "").split(",")))
            self.brokers.set_throttled_replicas(TOPIC, role, entries)

"""A recovery in virtual time: the real planner against simulated brokers, hours of it in seconds.

Brokers, clients and fetchers are those of `core.simulation`; the planner reads and writes the in-memory twins, and what
it sees of the loads is what a metrics source would tell: means of counters over a window. The type to know is
`VirtualRecovery`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

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
from autothrottle.core.client_traffic import ClientTraffic
from autothrottle.core.configs import ConfigResource, ReplicaRole
from autothrottle.core.flows import Flow
from autothrottle.core.limits import Limits
from autothrottle.core.loads import BrokerLoad, Capacity, Utilization
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.schedule import NO_SCHEDULE, Schedule
from autothrottle.core.simulated_link import Sharing
from autothrottle.core.simulated_partition import SimulatedPartition
from autothrottle.core.simulation import Cluster, SimulatedBroker
from autothrottle.core.topology import TopicPartition
from autothrottle.planner.loop import Planner
from autothrottle.planner.settings import PlannerSettings, Ports
from autothrottle.planner.triggers import Trigger
from autothrottle.ports.decisions import DecisionSink
from autothrottle.ports.leadership import Term

TOPIC = "moving"
BEGIN = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
SIZES_EVERY = timedelta(seconds=10)
COUNTED_EVERY = timedelta(seconds=1)
RAISED_EVERY = timedelta(seconds=1)
EVENTS_APART = 1.0
"""Seconds between two cycles that events start."""
LONGEST = timedelta(hours=12)

OTHER_LOGS = "other-logs"
"""The topic that stands for all that does not move: a partition for each broker, with its id as number."""

_OTHER_BYTES = 1 << 50
"""What those partitions hold, more or less."""


@dataclass(frozen=True, slots=True)
class VirtualBroker:
    """One broker: its link, and what its clients offer."""

    capacity: Capacity
    traffic: ClientTraffic


@dataclass(frozen=True, slots=True)
class VirtualMove:
    """One partition that gets other replicas."""

    topic: str
    partition: int
    size: float
    """Bytes."""
    replicas: tuple[int, ...]
    """Broker ids; the first one that is alive leads."""
    target: tuple[int, ...]
    """Broker ids, all alive."""
    produce_rate: int = 0
    """A part of the clients' traffic into the leader, bytes/s."""

    @property
    def key(self) -> TopicPartition:
        """Topic and partition number."""
        return self.topic, self.partition


class Happening(StrEnum):
    """What happens to a broker."""

    FAILS = "fails"
    """Its host is gone, with its clients and metrics; others lead what it led."""
    RETURNS = "returns"
    """With the logs that it had."""
    LEADS = "leads"
    """Every partition that it has in sync."""


@dataclass(frozen=True, slots=True)
class VirtualEvent:
    """Something that happens while it moves."""

    at: timedelta
    """After the start of the move."""
    broker_id: int
    what: Happening

    def play(self, cluster: Cluster) -> None:
        """Let it happen."""
        match self.what:
            case Happening.FAILS:
                cluster.lose(self.broker_id)
            case Happening.RETURNS:
                cluster.restore(self.broker_id)
            case Happening.LEADS:
                cluster.elect(self.broker_id)


@dataclass(frozen=True, slots=True)
class VirtualScenario:
    """What is played: brokers, partitions that move, and how the planner is configured."""

    brokers: Mapping[int, VirtualBroker]
    """Broker id -> the broker; a replica elsewhere is on a dead one."""
    moves: Sequence[VirtualMove]
    limits: Limits = field(
        default_factory=lambda: Limits(10_000_000, 0.9, 0.9, change_threshold=0.1, failure_threshold=1)
    )
    policy: Policy = AdaptivePolicy()  # noqa: RUF009 (frozen)
    interval: timedelta = timedelta(seconds=60)
    metrics_window: timedelta = timedelta(seconds=60)
    metrics_delay: timedelta = timedelta(0)
    """How old the newest metric is."""
    schedule: Schedule = NO_SCHEDULE
    finish_by: datetime | None = None
    blind: tuple[timedelta, timedelta] | None = None
    """From when to when after the start there are no metrics."""
    failover: tuple[timedelta, timedelta] | None = None
    """How long after the start another planner leads, and by how much its clock is ahead."""
    events: Sequence[VirtualEvent] = ()
    """In the order of time."""
    sharing: Sharing = Sharing()  # noqa: RUF009 (frozen)
    """Who gives way on links that are full, and what fetchers can do."""
    traffic_waits: bool = False
    """Whether the clients' script runs from the start of the move, before which it stands at 0 s."""
    begin: datetime = BEGIN
    step: timedelta = timedelta(seconds=0.1)
    """Of the simulation, >= 1 ms."""
    instance_type: str = "lab"

    @staticmethod
    def replacement(
        traffic: Mapping[int, ClientTraffic], partition_bytes: Sequence[float], capacity: int = 100_000_000
    ) -> VirtualScenario:
        """One new broker takes the place of a failed one; partition i is led by broker i modulo the others.

        Args:
            traffic: broker id -> what its clients offer; the last id is the new broker's.
            partition_bytes: of each partition.
            capacity: of every link and direction, bytes/s.
        """
        *others, new = sorted(traffic)
        leaders = [others[i % len(others)] for i in range(len(partition_bytes))]
        return VirtualScenario(
            {b: VirtualBroker(Capacity(capacity, capacity), one) for b, one in traffic.items()},
            [
                VirtualMove(TOPIC, i, size, (leader, _FAILED), (leader, new))
                for i, (leader, size) in enumerate(zip(leaders, partition_bytes, strict=True))
            ],
        )

    def alive(self, move: VirtualMove) -> tuple[int, ...]:
        """The brokers that have a partition when it begins to move; the first one leads."""
        return tuple(b for b in move.replicas if b in self.brokers)

    def leader(self, move: VirtualMove) -> int:
        """Who leads a partition when it begins to move."""
        return self.alive(move)[0]

    def adding(self, move: VirtualMove) -> tuple[int, ...]:
        """The brokers that copy a partition."""
        return tuple(b for b in move.target if b not in move.replicas)

    def flows(self, move: VirtualMove) -> list[Flow]:
        """What copies a partition."""
        return [Flow(self.leader(move), follower) for follower in self.adding(move)]

    def cluster(self) -> Cluster:
        """Return the brokers before the move, at time 0."""
        partitions = []
        for move in self.moves:
            alive = self.alive(move)
            partitions.append(
                SimulatedPartition(
                    topic=move.topic,
                    partition=move.partition,
                    size=move.size,
                    leader=alive[0],
                    replicas=move.replicas,
                    isr=alive,
                    produce_rate=move.produce_rate,
                )
            )
        brokers = [SimulatedBroker(b, one.capacity, one.traffic) for b, one in sorted(self.brokers.items())]
        return Cluster(brokers, partitions, sharing=self.sharing, script_waits_for_reassignment=self.traffic_waits)


_FAILED = 1
"""Id of the broker that `VirtualScenario.replacement` replaces."""


@dataclass(slots=True)
class _Counts:
    """The counters of one broker's interface over time."""

    seconds: list[float] = field(default_factory=list)
    tx: list[int] = field(default_factory=list)
    rx: list[int] = field(default_factory=list)


class VirtualRecovery:
    """One recovery; `run` plays it to its end."""

    def __init__(self, scenario: VirtualScenario, sink: DecisionSink | None = None, cluster_name: str = "lab") -> None:
        """Begin with brokers that have carried nothing yet.

        Args:
            scenario: what is played.
            sink: takes the decisions; None: nobody does.
            cluster_name: in the decision log.
        """
        self.scenario, self._seconds = scenario, 0.0
        self.brokers = scenario.cluster()
        self._electorate = electorate = MemoryElectorate()
        self.kafka = MemoryCluster(electorate, scenario.brokers)
        self.metrics, self.overrides = MemoryMetrics(), MemoryOverrides(electorate)
        self._settings = PlannerSettings(
            scenario.limits,
            policy=scenario.policy,
            interval=scenario.interval,
            metrics_window=scenario.metrics_window,
            schedule=scenario.schedule,
            finish_by=scenario.finish_by,
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
        self._counters: dict[int, _Counts] = {b: _Counts() for b in scenario.brokers}
        self._read_sizes_at = self._count_at = self._raise_at = self._event_due = 0.0
        self._event = ""
        self._obeyed = 0
        self._to_come = deque(scenario.events)
        self.cycles = 0
        self.start = 0.0
        """When the move started, seconds since the cluster began."""

    def now(self) -> datetime:
        """Virtual time."""
        return self.scenario.begin + timedelta(seconds=self._seconds)

    def _take_over(self) -> None:
        """Let another planner lead, which remembers nothing."""
        skew = self._skew
        self._term = Term(self._electorate.begin_term("127.0.0.1:4003"))
        self.planner = Planner(self._ports, self._settings, lambda: self.now() + skew, lambda: self._seconds)

    def run(self, longest: timedelta = LONGEST, watch: Callable[[VirtualRecovery], None] = lambda _: None) -> float:
        """Play it until nothing moves any more; return how many seconds the reassignment took.

        Args:
            longest: how long it may move.
            watch: is told of the start, and of every second from there on.

        Raises:
            TimeoutError: it takes longer than `longest`.
        """
        earlier = self.scenario.metrics_window + self.scenario.metrics_delay
        while self._seconds <= earlier.total_seconds():
            self._step()
        self.start = start = self._begin()
        watch(self)
        self._cycle("a reassignment started")
        due = self._seconds + self.scenario.interval.total_seconds()
        failover, watched = self.scenario.failover, start + 1.0
        while self.brokers.moving():
            self._step()
            self._play_events()
            if self._seconds >= watched:
                watched += 1.0
                watch(self)
            if self._seconds >= self._raise_at:
                self._raise_at = self._seconds + RAISED_EVERY.total_seconds()
                self.planner.run_step(self._term)
                self._obey()
            if failover and self._seconds - start >= failover[0].total_seconds():
                self._skew, failover = failover[1], None
                self.planner.stop()
                self._take_over()
                self._cycle("interval")
            if self._seconds >= due and self.brokers.moving():
                self._cycle("interval")
                due += self.scenario.interval.total_seconds()
            elif self._event and self._seconds >= self._event_due and self.brokers.moving():
                self._cycle(self._event)
            if self._seconds - start > longest.total_seconds():
                self.planner.stop()
                left, hours = self.brokers.bytes_left() / 1e9, longest.total_seconds() / 3600
                raise TimeoutError(f"it has not ended after {hours:g} h, and {left:,.2f} GB are left")
        took = self._seconds - start
        self._cycle("the reassignment ended")
        self.planner.stop()
        return took

    def _begin(self) -> float:
        topics: dict[str, dict[int, VirtualMove]] = {}
        for move in self.scenario.moves:
            topics.setdefault(move.topic, {})[move.partition] = move
        for topic, moves in topics.items():
            self.kafka.add_topic(topic, {n: self.brokers.partitions[topic, n].isr for n in moves})
        self.brokers.start_reassignment({move.key: move.target for move in self.scenario.moves})
        for topic, moves in topics.items():
            self.kafka.start_reassignment(topic, {n: move.target for n, move in moves.items()})
        self.kafka.add_topic(OTHER_LOGS, {broker_id: (broker_id,) for broker_id in self.brokers.brokers})
        self.kafka.tell_progress(self.now)
        self.kafka.tell_growth()
        self._tell_sizes()
        return self._seconds

    def _step(self) -> None:
        moving = self.brokers.moving()
        self.brokers.step(self.scenario.step.total_seconds())
        self._seconds = self.brokers.now
        if self._seconds >= self._count_at:
            self._count_at = self._seconds + COUNTED_EVERY.total_seconds()
            self._count()
        # A replica that comes back may have moved already.
        for key in self.brokers.partitions if moving and self.scenario.events else moving:
            self._follow(key)
        if moving and self._seconds >= self._read_sizes_at:
            self._read_sizes_at = self._seconds + SIZES_EVERY.total_seconds()
            self._tell_sizes()
            self.kafka.fetch_snapshot(timeout=SIZES_EVERY)

    def _count(self) -> None:
        """Read the counters of all links."""
        for broker_id, broker in self.brokers.brokers.items():
            now, counts = broker.counters(), self._counters[broker_id]
            counts.seconds.append(self._seconds)
            counts.tx.append(now.tx)
            counts.rx.append(now.rx)

    def _play_events(self) -> None:
        """Let happen what is due, and those see it who would."""
        while self._to_come and self._seconds - self.start >= self._to_come[0].at.total_seconds():
            event = self._to_come.popleft()
            event.play(self.brokers)
            if event.what is Happening.FAILS:
                self.kafka.brokers.discard(event.broker_id)
                self.kafka.log_bytes.pop(event.broker_id, None)
                self.metrics.lose(event.broker_id, "its host is down")
            elif event.what is Happening.RETURNS:
                self.kafka.brokers.add(event.broker_id)
                self._event = f"broker {event.broker_id} appeared"
            for key in self.brokers.partitions:
                self._follow(key)

    def _follow(self, key: TopicPartition) -> None:
        """Let the controller see what became of a partition since it looked last."""
        partition, (topic, number) = self.brokers.partitions[key], key
        seen = self.kafka.topics[topic][number]
        joined = [b for b in partition.isr if b not in seen.isr]
        left = [b for b in seen.isr if b in partition.replicas and b not in partition.isr]
        ended = seen.moves and not partition.reassigning
        if not (joined or left or ended or partition.leader != seen.leader):
            return
        self._tell_sizes()
        for broker_id in joined:
            self.kafka.join_isr(topic, number, broker_id)
        for broker_id in left:
            self.kafka.leave_isr(topic, number, broker_id)
        if ended:
            self.kafka.finish(topic, number)
        led_by_another = self.kafka.topics[topic][number].leader != partition.leader
        if led_by_another:
            self.kafka.move_leader(topic, number, partition.leader)
        if joined or ended or led_by_another:
            what = "it has moved" if ended else "a replica joined the ISR" if joined else "its leader changed"
            self._event = f"{topic}-{number}: {what}"

    def _tell_sizes(self) -> None:
        for key, partition in self.brokers.partitions.items():
            for broker_id in filter(self.brokers.is_up, partition.landed):
                self.kafka.log_bytes.setdefault(broker_id, {})[key] = round(partition.landed[broker_id])
        for broker_id, broker in self.brokers.brokers.items():
            if not broker.up:
                continue
            logs = self.kafka.log_bytes.setdefault(broker_id, {})
            moving = sum(size for (topic, _), size in logs.items() if topic != OTHER_LOGS)
            # All that comes in lands in some log: what is in none of those that move, or did, is in the others.
            logs[OTHER_LOGS, broker_id] = _OTHER_BYTES + broker.counters().rx - moving

    def _cycle(self, reason: str) -> None:
        self._event, self._event_due = "", self._seconds + EVENTS_APART
        self.cycles += 1
        self._measure()
        self._tell_sizes()
        self.planner.run_cycle(self._term, Trigger(reason, scheduled=reason == "interval"))
        self._obey()

    def _measure(self) -> None:
        """Let metrics say what the counters counted in the last window that they know of."""
        blind, window = self.scenario.blind, self.scenario.metrics_window.total_seconds()
        since_start = timedelta(seconds=self._seconds) - self.scenario.metrics_window
        if blind and blind[0] <= since_start < blind[1]:
            self.metrics.unavailable(True)
            return
        self.metrics.unavailable(False)
        newest = self._seconds - self.scenario.metrics_delay.total_seconds()
        for broker_id, counts in self._counters.items():
            if not self.brokers.is_up(broker_id):
                continue
            last = max(bisect_right(counts.seconds, newest) - 1, 1)
            first = min(bisect_left(counts.seconds, counts.seconds[last] - window), last - 1)
            since, until = counts.seconds[first], counts.seconds[last]
            start, end = (self.scenario.begin + timedelta(seconds=at) for at in (since, until))
            sent = Utilization(round((counts.tx[last] - counts.tx[first]) / (until - since)), start, end)
            received = Utilization(round((counts.rx[last] - counts.rx[first]) / (until - since)), start, end)
            capacity = self.scenario.brokers[broker_id].capacity
            self.metrics.set_loads(BrokerLoad(broker_id, capacity, sent, received, self.scenario.instance_type))

    def _obey(self) -> None:
        """Let the brokers take up the configs that were written since they last did."""
        if len(self.kafka.writes) == self._obeyed:
            return
        self._obeyed = len(self.kafka.writes)
        for broker_id in self.brokers.brokers:
            config = self.kafka.configs.get(ConfigResource.broker(broker_id), {})
            for role in ReplicaRole:
                value = config.get(role.rate_key)
                self.brokers.set_rate(broker_id, role, None if value is None else int(value))
        for topic in self.kafka.topics:
            config = self.kafka.configs.get(ConfigResource.topic(topic), {})
            for role in ReplicaRole:
                entries = frozenset(filter(None, config.get(role.replicas_key, "").split(",")))
                if entries != self.brokers.throttled_replicas(topic, role):
                    self.brokers.set_throttled_replicas(topic, role, entries)

"""A recovery in virtual time: the real planner against simulated brokers, hours of it in seconds.

Brokers, clients and fetchers come from `simulation`. The planner reads and writes their controller, `MemoryCluster`.
It sees broker loads as a metrics source reports them: means of interface counters over a window. The type to know is
`VirtualRecovery`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import itemgetter

from autothrottle.adapters.memory import (
    MemoryAuditedMap,
    MemoryCluster,
    MemoryElection,
    MemoryMetrics,
    MemoryOverrides,
    MemoryPauses,
    MemoryTracer,
)
from autothrottle.adapters.zookeeper.map_codecs import CATCH_UPS, TEMPORARY_QUOTAS, YIELD_RULES
from autothrottle.core.cluster.flows import Flow
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.policy.interface import Limits
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Utilization
from autothrottle.core.traffic.log_growth_history import ReportedRises
from autothrottle.planner.calls import PlannerDependencies
from autothrottle.planner.loop import Planner, Trigger
from autothrottle.ports.kafka import SnapshotEvent, Term
from autothrottle.ports.telemetry import DecisionSink
from autothrottle_lab.simulation.cluster import Cluster, SimulatedBroker, SimulatedPartition
from autothrottle_lab.simulation.link import ClientTraffic, Sharing

BEGIN = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
"""Default wall-clock time at virtual time zero."""
LOG_SIZE_INTERVAL = timedelta(seconds=2)
COUNTER_INTERVAL = timedelta(seconds=1)
RAMP_INTERVAL = timedelta(seconds=1)
EVENT_CYCLE_SECONDS = 1.0
"""Minimum seconds between two cycles that events trigger."""
LONGEST = timedelta(hours=12)

OTHER_LOGS = "other-logs"
"""A topic for all data that is not reassigned: one partition per broker, numbered by broker id."""

_OTHER_BYTES = 1 << 50
"""Approximate size of each of these partitions."""


SETTINGS = PlannerSettings(
    Limits(10_000_000, 0.9, 0.9, change_threshold=0.1, failure_threshold=1),
    interval=timedelta(seconds=60),
    metrics_window=timedelta(seconds=60),
)
"""Default settings of the planner."""


@dataclass(frozen=True, slots=True)
class VirtualBroker:
    """One broker: its link and its client load."""

    capacity: Capacity
    traffic: ClientTraffic


@dataclass(frozen=True, slots=True)
class VirtualReassignment:
    """The reassignment of one partition."""

    topic: str
    partition: int
    size: float
    """Bytes in the leader's log at the start."""
    replicas: tuple[int, ...]
    """Broker ids of the current replicas; the first one that runs leads."""
    target: tuple[int, ...]
    """Broker ids of the new replicas, all of which run."""
    produce_rate: int = 0
    """Bytes/s appended to the log; a part of the leader's inbound client traffic."""

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition


class EventKind(StrEnum):
    """What happens to a broker."""

    FAILS = "fails"
    """Its host fails, with its clients and metrics; other brokers take over its leaderships."""
    RETURNS = "returns"
    """It starts again with its old logs."""
    LEADS = "leads"
    """It becomes the leader of every partition for which it has an in-sync replica."""


@dataclass(frozen=True, slots=True)
class VirtualEvent:
    """An event of one broker during the reassignment."""

    at: timedelta
    """Time since the start of the reassignment."""
    broker_id: int
    kind: EventKind

    def play(self, kafka: MemoryCluster) -> None:
        """Apply the event to a cluster."""
        effects = {
            EventKind.FAILS: kafka.lose_broker,
            EventKind.RETURNS: kafka.restore_broker,
            EventKind.LEADS: kafka.elect_leader,
        }
        effects[self.kind](self.broker_id)


@dataclass(frozen=True, slots=True)
class VirtualScenario:
    """The input of a recovery: brokers, reassignments, and the planner's configuration."""

    brokers: Mapping[int, VirtualBroker]
    """Broker id -> broker; a replica on any other broker is on a failed one."""
    reassignments: Sequence[VirtualReassignment]
    settings: PlannerSettings = SETTINGS
    metrics_delay: timedelta = timedelta(0)
    """Age of the newest metric."""
    metrics_outage: tuple[timedelta, timedelta] | None = None
    """(begin, end) of a period without metrics, since the start of the reassignment; None: metrics never fail."""
    failover: tuple[timedelta, timedelta] | None = None
    """(time since the start at which another planner takes over, how far its clock is ahead); None: no failover."""
    events: Sequence[VirtualEvent] = ()
    """Ascending by time."""
    sharing: Sharing = Sharing()  # noqa: RUF009 (frozen)
    """How clients and replication share a full link, and the fetchers' rate limit."""
    traffic_waits: bool = False
    """Whether the clients' script starts with the reassignment; before that, the load is that of 0 s."""
    begin: datetime = BEGIN
    """Wall-clock time at virtual time zero."""
    step: timedelta = timedelta(seconds=0.1)
    """Step of the simulation, >= 1 ms."""

    def alive(self, reassignment: VirtualReassignment) -> tuple[int, ...]:
        """The running brokers that have a replica at the start of the reassignment; the first one leads."""
        return tuple(b for b in reassignment.replicas if b in self.brokers)

    @property
    def targets(self) -> dict[TopicPartition, tuple[int, ...]]:
        """Partition -> broker ids of its new replicas."""
        return {reassignment.key: reassignment.target for reassignment in self.reassignments}

    def flows(self, reassignment: VirtualReassignment) -> list[Flow]:
        """The flows that copy the partition."""
        adding = (b for b in reassignment.target if b not in reassignment.replicas)
        return [Flow(self.alive(reassignment)[0], follower) for follower in adding]

    def cluster(self, others: Sequence[SimulatedPartition] = ()) -> Cluster:
        """Return the cluster before the reassignment, at time 0, with other partitions that are not reassigned."""
        partitions = [
            SimulatedPartition(
                topic=reassignment.topic,
                partition=reassignment.partition,
                size=reassignment.size,
                replicas=reassignment.replicas,
                isr=self.alive(reassignment),
                produce_rate=reassignment.produce_rate,
            )
            for reassignment in self.reassignments
        ]
        brokers = [SimulatedBroker(b, broker.capacity, broker.traffic) for b, broker in sorted(self.brokers.items())]
        return Cluster(
            brokers, [*partitions, *others], sharing=self.sharing, script_waits_for_reassignment=self.traffic_waits
        )


_seconds_of = itemgetter(0)


class VirtualRecovery:
    """One recovery; `run` plays it to its end."""

    def __init__(self, scenario: VirtualScenario, sink: DecisionSink | None = None, cluster_name: str = "lab") -> None:
        """Start at virtual time zero, with all counters at 0.

        Args:
            scenario: the scenario to play.
            sink: receives the decisions; None: they are dropped.
            cluster_name: name in the decision log.
        """
        self.scenario, self._seconds = scenario, 0.0
        self.cluster = scenario.cluster()
        self.kafka = self.cluster.controller
        self.kafka.watch_snapshots(self._note)
        self._electorate = electorate = self.kafka.electorate
        self.metrics, self.overrides = MemoryMetrics(), MemoryOverrides(electorate)
        self._settings = replace(scenario.settings, cluster=cluster_name)
        self._dependencies = PlannerDependencies(
            election=MemoryElection(electorate),
            snapshots=self.kafka,
            loads=self.metrics,
            events=self.metrics,
            writer=self.kafka,
            reassigner=self.kafka,
            overrides=self.overrides,
            pauses=MemoryPauses(),
            catch_ups=MemoryAuditedMap(CATCH_UPS, electorate),
            settings=self.kafka,
            quotas=self.kafka,
            temporary_quotas=MemoryAuditedMap(TEMPORARY_QUOTAS, electorate),
            yield_rules=MemoryAuditedMap(YIELD_RULES),
            tracer=MemoryTracer(),
            decisions=sink,
        )
        self._skew = timedelta(0)
        self._start_planner()
        self._counters: dict[int, list[tuple[float, int, int]]] = {b: [] for b in scenario.brokers}
        """Broker id -> readings of its interface: (virtual seconds, bytes sent, bytes received)."""
        self._read_sizes_at = self._count_at = self._raise_at = self._event_due = 0.0
        self._event = ""
        self._rises = ReportedRises()
        self._events_left = deque(scenario.events)
        self.cycles = 0
        self.start = 0.0
        """Start of the reassignment, in seconds of virtual time."""

    def now(self) -> datetime:
        """Virtual wall-clock time."""
        return self.scenario.begin + timedelta(seconds=self._seconds)

    def _start_planner(self) -> None:
        """Begin a new term with a new planner, which has no state."""
        skew = self._skew
        self._term = Term(self._electorate.begin_term("127.0.0.1:4003"))
        self.planner = Planner(self._dependencies, self._settings, lambda: self.now() + skew, lambda: self._seconds)

    def run(self, longest: timedelta = LONGEST, watch: Callable[[VirtualRecovery], None] = lambda _: None) -> float:
        """Play the scenario until the reassignment is done; return its duration in seconds.

        Args:
            longest: longest allowed duration of the reassignment.
            watch: called at its start and after every second.

        Raises:
            TimeoutError: the reassignment takes longer than `longest`.
        """
        earlier = self._settings.metrics_window + self.scenario.metrics_delay
        while self._seconds <= earlier.total_seconds():
            self._step()
        self._begin()
        self.start = start = self._seconds
        watch(self)
        self._cycle("a reassignment started")
        due = self._seconds + self._settings.interval.total_seconds()
        failover, watched = self.scenario.failover, start + 1.0
        while self.cluster.moving():
            self._step()
            self._play_events()
            if self._seconds >= watched:
                watched += 1.0
                watch(self)
            if self._seconds >= self._raise_at:
                self._raise_at = self._seconds + RAMP_INTERVAL.total_seconds()
                self.planner.run_step(self._term)
            if failover and self._seconds - start >= failover[0].total_seconds():
                self._skew, failover = failover[1], None
                self.planner.stop()
                self._start_planner()
                self._cycle("interval")
            if self._seconds >= due and self.cluster.moving():
                self._cycle("interval")
                due += self._settings.interval.total_seconds()
            elif self._event and self._seconds >= self._event_due and self.cluster.moving():
                self._cycle(self._event)
            if self._seconds - start > longest.total_seconds():
                self.planner.stop()
                bytes_left, hours = self.cluster.bytes_left() / 1e9, longest.total_seconds() / 3600
                raise TimeoutError(
                    f"the reassignment is not done after {hours:g} h; {bytes_left:,.2f} GB are left to copy"
                )
        took = self._seconds - start
        self._cycle("the reassignment ended")
        self.planner.stop()
        return took

    def _begin(self) -> None:
        self.cluster.submit_reassignment(self.scenario.targets)
        self.kafka.add_topic(OTHER_LOGS, {broker_id: (broker_id,) for broker_id in self.cluster.brokers})
        self.kafka.tell_progress(self.now)
        self.kafka.tell_growth()
        self._count_other_logs()

    def _note(self, event: SnapshotEvent) -> None:
        if OTHER_LOGS not in event.reason:
            self._event = event.reason

    def _step(self) -> None:
        moving = self.cluster.moving()
        self.cluster.step(self.scenario.step.total_seconds())
        self._seconds = self.cluster.now
        if self._seconds >= self._count_at:
            self._count_at = self._seconds + COUNTER_INTERVAL.total_seconds()
            self._count()
        if moving and self._seconds >= self._read_sizes_at:
            self._read_sizes_at = self._seconds + LOG_SIZE_INTERVAL.total_seconds()
            self._count_other_logs()
            self._notice_rises()

    def _notice_rises(self) -> None:
        """Start a cycle if the logs of a broker begin to grow faster, as the planner's services do."""
        progress = self.kafka.fetch_snapshot(timeout=LOG_SIZE_INTERVAL).progress
        growth = progress.growth if progress else {}
        sampled = [broker_id for broker_id, logs in growth.items() if logs.at >= self.now()]
        self._rises, line = self._rises.update(growth, sampled, self._seconds)
        self._event = line or self._event

    def _count(self) -> None:
        """Read the interface counters of all brokers."""
        for broker_id, broker in self.cluster.brokers.items():
            self._counters[broker_id].append((self._seconds, broker.outbound.total, broker.inbound.total))

    def _play_events(self) -> None:
        """Apply the events that are due."""
        while self._events_left and self._seconds - self.start >= self._events_left[0].at.total_seconds():
            event = self._events_left.popleft()
            event.play(self.kafka)
            if event.kind is EventKind.FAILS:
                self.metrics.lose(event.broker_id, "its host is down")

    def _count_other_logs(self) -> None:
        """Every inbound byte ends in some log: bytes outside the reassigned partitions belong to the other logs."""
        for broker_id in filter(self.cluster.is_up, self.cluster.brokers):
            logs, received = self.kafka.log_bytes[broker_id], self.cluster.brokers[broker_id].inbound.total
            moving = sum(round(size) for (topic, _), size in logs.items() if topic != OTHER_LOGS)
            logs[OTHER_LOGS, broker_id] = _OTHER_BYTES + received - moving

    def _cycle(self, reason: str) -> None:
        self._event, self._event_due = "", self._seconds + EVENT_CYCLE_SECONDS
        self.cycles += 1
        self._measure()
        self._count_other_logs()
        self.planner.run_cycle(self._term, Trigger(reason, scheduled=reason == "interval"))

    def _measure(self) -> None:
        """Give the metrics twin the mean rates over the latest window that metrics know, given their delay."""
        metrics_outage, window = self.scenario.metrics_outage, self._settings.metrics_window.total_seconds()
        since_start = timedelta(seconds=self._seconds) - self._settings.metrics_window
        if metrics_outage and metrics_outage[0] <= since_start < metrics_outage[1]:
            self.metrics.unavailable(True)
            return
        self.metrics.unavailable(False)
        newest = self._seconds - self.scenario.metrics_delay.total_seconds()
        for broker_id, readings in self._counters.items():
            if not self.cluster.is_up(broker_id):
                continue
            last = max(bisect_right(readings, newest, key=_seconds_of) - 1, 1)
            first = min(bisect_left(readings, readings[last][0] - window, key=_seconds_of), last - 1)
            (since, *earlier_totals), (until, *totals) = readings[first], readings[last]
            start, end = (self.scenario.begin + timedelta(seconds=at) for at in (since, until))
            sent, received = (
                Utilization(round((total - earlier) / (until - since)), start, end)
                for earlier, total in zip(earlier_totals, totals, strict=True)
            )
            capacity = self.scenario.brokers[broker_id].capacity
            self.metrics.set_loads(BrokerLoad(broker_id, capacity, sent, received, "lab"))

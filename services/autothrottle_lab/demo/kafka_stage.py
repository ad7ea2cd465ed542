"""The demo's stage with real brokers: a KRaft cluster whose broker 1000 is killed and replaced by 1006.

The brokers, their data and their clients are real. The brokers share one loopback interface, so a broker's capacity is
only a setting of the services, and Datadog reports the growth of the broker's logs (`observation.traffic`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.scoring.score import LinkSideDemand, link_side_seconds
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.demo.scenario import (
    DEMO_DOUBLING_SECONDS,
    DEMO_FAILED_BROKER,
    DEMO_FALLING_SECONDS,
    DEMO_NEW_BROKER,
)
from autothrottle_lab.demo.stage import INSTANCE_TYPE, UNMEASURED, Interruption, Reading, Report, Stage, size
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.observer import Configs, Timeline, read_kraft_timeline
from autothrottle_lab.observation.traffic import BrokerCounters, ProducerLoad, TrafficCounters, fill
from autothrottle_lab.servers.kafka import Partition
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process

VERSIONS: Mapping[str, str] = {"4": "4.3.1"}
"""Value of `--kafka` -> Kafka release."""

CAPACITY = 5 * MEGABYTE
"""Capacity of every broker in each direction, bytes/s: low enough for one machine with five brokers."""

SURVIVORS = (1001, 1002, 1003)
GOAL_FIRST_THROTTLE_SECONDS = 1.5

_REASSIGNED: Mapping[str, int] = {"clickstream": 4, "orders": 6, "payments": 7, "telemetry": 9}
"""Topic -> size of each of its partitions, MB. Sizes differ, so that replicas join the ISR throughout the demo."""
_PARTITIONS_PER_TOPIC = 6

_CLIENTS_TOPIC = "sessions"
_CLIENTS = ((1001, 1002), (1002, 1003), (1003, DEMO_NEW_BROKER), (DEMO_NEW_BROKER, 1001))
"""Replicas of each partition that clients produce to: every broker receives two of these streams and sends one."""
_CLIENT_RATE = MEGABYTE // 2
"""Initial produce rate of each of these partitions, bytes/s."""
_RECORD_BYTES = 20_000

_BROKER_PROPERTIES: Mapping[str, object] = {
    # Small fetches and small batches keep the loopback's rate close to the rate of the links that it represents.
    "replica.fetch.max.bytes": 32 * 1024,
    "replica.fetch.response.max.bytes": 64 * 1024,
}

_METRICS_SECONDS = 13.0
"""Seconds of metrics before the reassignment starts: a bit more than a metrics window."""
_FEED_SECONDS = 0.25


def bytes_to_copy() -> int:
    """Return the bytes that the new broker has to copy."""
    return sum(_REASSIGNED.values()) * _PARTITIONS_PER_TOPIC * MEGABYTE


def targets() -> dict[Partition, tuple[int, int]]:
    """Return the reassignment: partition -> its new replicas, the leader first."""
    return {
        (topic, partition): (SURVIVORS[(number + partition) % len(SURVIVORS)], DEMO_NEW_BROKER)
        for number, topic in enumerate(_REASSIGNED)
        for partition in range(_PARTITIONS_PER_TOPIC)
    }


def ideal_seconds(amount: float, capacity: float, client_rate: float) -> float:
    """Return the time to copy `amount` bytes with all capacity that clients leave free, while their load doubles once.

    >>> ideal_seconds(320, capacity=10, client_rate=2)  # 15 s with 8, 15 s with 6, and the rest with 8
    43.75
    """
    quiet, busy = capacity - client_rate, capacity - 2 * client_rate
    falling = DEMO_FALLING_SECONDS - DEMO_DOUBLING_SECONDS
    return link_side_seconds(LinkSideDemand(amount, [(DEMO_DOUBLING_SECONDS, quiet), (falling, busy), (0, quiet)]))


class KafkaStage(Stage):
    """A stage with a controller, five brokers, producers, and a Datadog emulator fed by the growth of the logs."""

    run_seconds = 420.0  # starting and filling the brokers takes at least 20 s; a download of Kafka is not included

    def __init__(self, interruption: Interruption, stack: ExitStack, options: Mapping[str, str], version: str) -> None:
        super().__init__(interruption, stack, options)
        self._version = version
        self.opening = (
            f"starting ZooKeeper, a controller and 5 brokers of Kafka {version}, a Datadog emulator, "
            "2 planners and the other services"
        )
        self.targets, self.total_bytes = targets(), bytes_to_copy()

    def build(self, say: Callable[[str], None]) -> None:
        """Start Kafka, fill it, kill a broker, and start clients, Datadog and the services."""
        self.start_zookeeper()
        self._cluster = self._start_cluster()
        say(f"filling {len(targets())} partitions with {size(bytes_to_copy())}")
        self._fill()
        say(f"broker {DEMO_FAILED_BROKER} is killed (SIGKILL)")
        self._cluster.kill_broker(DEMO_FAILED_BROKER)
        self._load = self.stack.enter_context(
            ProducerLoad(self._cluster, self._client_rates(1), record_bytes=_RECORD_BYTES)
        )
        datadog = self._start_feed()
        began = time.monotonic()
        while DEMO_FAILED_BROKER in self._cluster.metadata.brokers() or time.monotonic() - began < _METRICS_SECONDS:
            self.interruption.sleep(0.1)
        self.start_services(datadog.url, {**self.options, **self._kafka_options()})

    def _start_cluster(self) -> KraftCluster:
        brokers = (DEMO_FAILED_BROKER, *SURVIVORS, DEMO_NEW_BROKER)
        cluster = KraftCluster(self.directory / "kafka", brokers, self._version, broker_properties=_BROKER_PROPERTIES)
        self.stack.callback(cluster.close)
        servers = (cluster.controller, *cluster.brokers.values())
        self.interruption.run(cluster.start, lambda: servers)
        return cluster

    def _fill(self) -> None:
        assignment = {partition: list(replicas) for partition, replicas in enumerate(_CLIENTS)}
        self._cluster.create_topic(_CLIENTS_TOPIC, assignment)
        for topic, megabytes in _REASSIGNED.items():
            replicas = {
                p: [leader, DEMO_FAILED_BROKER] for (name, p), (leader, _) in targets().items() if name == topic
            }
            self._cluster.create_topic(topic, replicas)
            fill(
                self._cluster,
                topic,
                megabytes * MEGABYTE,
                record_bytes=_RECORD_BYTES,
                check=self.interruption.check,
            )

    def _start_feed(self) -> DatadogEmulator:
        alive = (*SURVIVORS, DEMO_NEW_BROKER)
        datadog = self.start_datadog(alive)

        def record(sample: Mapping[int, TrafficCounters]) -> None:
            now = time.time()
            for broker_id in alive:
                datadog.record(broker_id, now, sample[broker_id].tx_bytes, sample[broker_id].rx_bytes)

        counters = self.stack.enter_context(BrokerCounters(self._cluster))
        counters.call_every(_FEED_SECONDS, record)
        return datadog

    def _kafka_options(self) -> dict[str, str]:
        return {
            "cap-map": json.dumps({INSTANCE_TYPE: CAPACITY / MEGABYTE}),
            "min-rate": "1",
            # Five brokers on one machine are slow, and a write must end within the session timeout.
            "session-timeout": "6",
            "kafka-backend": "admin",
            "bootstrap-servers": self._cluster.bootstrap_servers,
            "kafka-bootstrap-controllers": self._cluster.bootstrap_controllers,
        }

    def _client_rates(self, factor: int) -> dict[Partition, float]:
        return {(_CLIENTS_TOPIC, partition): factor * _CLIENT_RATE for partition in range(len(_CLIENTS))}

    def set_client_load(self, factor: int) -> None:
        self._load.set_rates(self._client_rates(factor))

    def record_start(self) -> None:
        self._submitted_after = self._cluster.metadata.last_offset()
        self._client_bytes = -sum(self._load.sent_bytes.values())
        self._started_at = time.monotonic()

    def record_end(self) -> None:
        self._client_bytes += sum(self._load.sent_bytes.values())
        self._latencies = sorted(late.seconds for late in self._load.latencies if late.at >= self._started_at)

    def reading(self) -> tuple[Reading, int]:
        logs = self._cluster.log_bytes(DEMO_NEW_BROKER)
        copied = sum(amount for (topic, _), amount in logs.items() if topic in _REASSIGNED)
        clients = sum(amount for (topic, _), amount in logs.items() if topic == _CLIENTS_TOPIC)
        return (time.monotonic(), clients, copied), max(0, bytes_to_copy() - copied)

    def is_reassigning(self) -> bool:
        return bool(self._cluster.reassigning())

    def configs(self) -> Configs:
        return self._cluster.stored_configs()

    def report(self, cycles: int) -> Report:
        timeline = read_kraft_timeline(self._cluster.metadata.records(), self._submitted_after)
        timeline.leader_changes = self._terms_since(timeline)
        received = _CLIENT_RATE * sum(DEMO_NEW_BROKER in replicas for replicas in _CLIENTS)
        ideal = ideal_seconds(bytes_to_copy(), CAPACITY, received)
        median, high = _percentile(self._latencies, 0.5), _percentile(self._latencies, 0.99)
        failures = len(self._load.failures)
        return Report(
            "Measured from the controller's metadata log and the clients:",
            timeline,
            ideal,
            self._client_bytes,
            cycles,
            [
                ("  deferred", UNMEASURED),
                ("  deferred share", UNMEASURED),
                ("  median latency", f"{1000 * median:.0f} ms"),
                ("  99 % latency", f"{1000 * high:.0f} ms"),
            ],
            {"first throttle after": ("first_throttle_seconds", GOAL_FIRST_THROTTLE_SECONDS, " s")},
            {
                "shortest possible": "the new broker uses all capacity that clients leave free of "
                f"{CAPACITY / MEGABYTE:g} MB/s",
                "client bytes": f"produced to all brokers, {failures} records lost",
                "  deferred": "the brokers share one loopback, which is never full",
                "  median latency": "acks=all",
                "config writes": "one per changed config key",
            },
            {
                "kafka": self._version,
                "client_bytes_deferred": None,
                "deferred_percent": None,
                "client_failures": failures,
                "client_seconds_median": median,
                "client_seconds_99": high,
            },
            self.total_bytes,
            self.unthrottled_bytes(timeline),
        )

    def _terms_since(self, timeline: Timeline) -> int:
        started, path = timeline.started, OwnPaths().term
        assert started is not None
        return sum(
            operation.kind == "set" and operation.path == path
            for transaction in self.zookeeper.transactions()
            if transaction.time >= started
            for operation in transaction.operations
        )

    def processes(self) -> Iterable[Process]:
        """Return the processes of the controller and the running brokers."""
        alive = [broker for broker_id, broker in self._cluster.brokers.items() if broker_id != DEMO_FAILED_BROKER]
        return (self._cluster.controller, *alive)


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))] if ordered else 0.0

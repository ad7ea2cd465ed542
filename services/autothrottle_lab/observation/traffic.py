"""Client traffic on a real cluster, and counters of each broker's network traffic.

    fill(cluster, "t", 50_000_000)            write 50 MB to every partition of t as fast as possible
    ProducerLoad(cluster, {("t", 0): 2e6})    producers with fixed rates, independent of the brokers' speed
    BrokerCounters(cluster).sample()          cumulative bytes received and sent by each broker

All brokers of the lab share one loopback interface, so the counters are derived from the growth of the logs. This
growth equals the network traffic: producers send bytes to the leader, and every follower fetches them from the leader.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from kazoo.exceptions import KazooException

from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle_lab.servers.kafka import KafkaCluster, Partition

_FILL_SECONDS = 300.0
"""Deadline of each acknowledgement and of the replication."""
_FILL_RECORD_BYTES = 200_000
_FILL_IN_FLIGHT_BYTES = 40_000_000
"""Limit of unacknowledged bytes: enough to keep all brokers busy with little memory."""
_RECORDS_PER_BATCH = 5
_LEADERS_SECONDS = 0.5
"""Interval between two reads of the leaders."""


def fill(
    cluster: KafkaCluster,
    topic: str,
    bytes_per_partition: int,
    record_bytes: int = _FILL_RECORD_BYTES,
    check: Callable[[], object] = lambda: None,
    among: Callable[[int], bool] = lambda partition: True,
) -> None:
    """Produce at least `bytes_per_partition` to each partition; return when every running replica has them.

    Args:
        cluster: the cluster.
        topic: topic name.
        bytes_per_partition: bytes for each partition.
        record_bytes: record size. A fetch returns at least one batch, which is 5 records, regardless of its limit.
        check: called repeatedly; it may raise to abort.
        among: partition number -> whether to fill it; default: all.

    Raises:
        TimeoutError: the replicas still differ at the deadline.
    """
    partitions = sorted(number for _, number in cluster.partitions([topic]) if among(number))
    value = bytes(record_bytes)
    unconfirmed: deque[Any] = deque()
    producer = _producer(cluster, acks=1, enable_idempotence=False, batch_size=_RECORDS_PER_BATCH * record_bytes)
    try:
        for _ in range(math.ceil(bytes_per_partition / record_bytes)):
            check()
            for partition in partitions:
                unconfirmed.append(producer.send(topic, value, partition=partition))
                if len(unconfirmed) * record_bytes > _FILL_IN_FLIGHT_BYTES:
                    unconfirmed.popleft().get(_FILL_SECONDS)
        while unconfirmed:
            check()
            unconfirmed.popleft().get(_FILL_SECONDS)
    finally:
        producer.close(timeout=10)
    _wait_until_replicated(cluster, topic, check)


def _wait_until_replicated(cluster: KafkaCluster, topic: str, check: Callable[[], object]) -> None:
    deadline = time.monotonic() + _FILL_SECONDS
    states = cluster.partitions([topic])
    while True:
        logs = {broker_id: cluster.log_bytes(broker_id) for broker_id in cluster.brokers}
        running = {broker_id for broker_id, broker in cluster.brokers.items() if broker.running}
        check()
        sizes = {p: {logs[b].get(p, 0) for b in running.intersection(state.replicas)} for p, state in states.items()}
        if all(len(of_replicas) <= 1 for of_replicas in sizes.values()):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"The replicas of {topic} differ after {_FILL_SECONDS:.0f} s: {sizes}")
        time.sleep(0.05)


def _producer(cluster: KafkaCluster, **configs: Any) -> Any:
    return kafka.KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers.split(","),
        max_request_size=2_000_000,
        metrics_enabled=False,
        allow_auto_create_topics=False,
        **CLIENT,
        **configs,
    )


class PolledLeaders:
    """The leader of each partition, polled in the background, so that queries never block."""

    def __init__(self, cluster: KafkaCluster) -> None:
        """Read the leaders once, and start to poll."""
        self._cluster = cluster
        self._leaders: Mapping[Partition, int] = {}
        self._ending = threading.Event()
        self._refresh()
        self._thread = threading.Thread(target=self._follow, name="leaders", daemon=True)
        self._thread.start()

    def of(self, partition: Partition) -> int:
        """Return the broker id of a partition's leader; -1: unknown or no leader."""
        return self._leaders.get(partition, -1)

    def by_partition(self) -> Mapping[Partition, int]:
        """Return the leader of every partition that has one."""
        return {partition: leader for partition, leader in self._leaders.items() if leader >= 0}

    def close(self) -> None:
        """Stop the background thread; if it waits for a frozen ZooKeeper, it ends with the cluster's client."""
        self._ending.set()
        self._thread.join(timeout=5.0)

    def _follow(self) -> None:
        while not self._ending.wait(_LEADERS_SECONDS):
            # If ZooKeeper is frozen or unreachable, keep the last known leaders.
            with suppress(KazooException):
                self._refresh()

    def _refresh(self) -> None:
        self._leaders = {partition: state.leader for partition, state in self._cluster.partitions().items()}


class Latency(NamedTuple):
    """The latency of one record."""

    at: float
    """Time at which it was due, `time.monotonic()`."""
    seconds: float
    """Time from then until its acknowledgement."""
    partition: Partition


class ProducerLoad:
    """Producers with fixed rates, independent of the brokers' speed (open loop); a context manager.

    Late records are sent as soon as possible, and their latency counts from the time at which they were due.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        rates: Mapping[Partition, float],
        acks: int | str = "all",
        record_bytes: int = 50_000,
        interval_seconds: float = 0.02,
        client_id: str = "client-load",
    ) -> None:
        """Prepare the producers.

        Args:
            cluster: the cluster.
            rates: partition -> bytes/s.
            acks: as in Kafka's producer config.
            record_bytes: record size.
            interval_seconds: interval between two checks for due records.
            client_id: the client id for client quotas.
        """
        self._cluster = cluster
        self._client_id = client_id
        self._rates = dict(rates)
        self._acks = acks
        self._value = bytes(record_bytes)
        self._interval_seconds = interval_seconds
        self._sent: dict[int, int] = defaultdict(int)
        self.latencies: list[Latency] = []
        """One entry for each acknowledged record, in the order of acknowledgement."""
        self.failures: list[str] = []
        """One error for each lost record."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="client load", daemon=True)

    def __enter__(self) -> ProducerLoad:
        self._leaders = PolledLeaders(self._cluster)
        self._producer = _producer(
            self._cluster,
            client_id=self._client_id,
            acks=self._acks,
            enable_idempotence=False,
            batch_size=256_000,
            linger_ms=5,
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(timeout=30.0)
        self._producer.close(timeout=10)
        self._leaders.close()

    def set_rates(self, rates: Mapping[Partition, float]) -> None:
        """Change the rates: partition -> bytes/s; other partitions get nothing."""
        self._rates = dict(rates)

    def set_total(self, bytes_per_second: float) -> None:
        """Scale all rates so that their sum is `bytes_per_second`."""
        total = sum(self._rates.values())
        self._rates = {partition: rate / total * bytes_per_second for partition, rate in self._rates.items()}

    @property
    def sent_bytes(self) -> dict[int, int]:
        """Broker id -> acknowledged bytes of record values; counted for the leader at the acknowledgement."""
        return dict(self._sent)

    def _run(self) -> None:
        due: dict[Partition, float] = defaultdict(float)
        last = time.monotonic()
        while not self._ending.wait(self._interval_seconds):
            now = time.monotonic()
            for partition, rate in self._rates.items():
                due[partition] += rate * (now - last)
                while due[partition] >= len(self._value):
                    due[partition] -= len(self._value)
                    self._send(partition, now - due[partition] / rate)
            last = now

    def _send(self, partition: Partition, at: float) -> None:
        future = self._producer.send(partition[0], self._value, partition=partition[1])
        future.add_callback(self._acknowledged, partition, at)
        future.add_errback(self._failed)

    def _acknowledged(self, partition: Partition, at: float, _: object) -> None:
        self._sent[self._leaders.of(partition)] += len(self._value)
        self.latencies.append(Latency(at, time.monotonic() - at, partition))

    def _failed(self, error: BaseException) -> None:
        self.failures.append(repr(error))


class TrafficCounters(NamedTuple):
    """Bytes of one broker's network traffic since the counters were created."""

    rx_bytes: float
    """Received: the growth of all logs of the broker, from clients and from leaders."""
    tx_bytes: float
    """Sent: the growth of the followers' logs of the partitions that it leads, reassigned ones included."""


class BrokerCounters:
    """Cumulative bytes received and sent by each broker; a context manager.

    Only growth counts, so deleted segments do not reduce the counters. A sample reads file sizes only, so it never
    waits for a broker or for ZooKeeper. Growth counts as sent by the leader at the previous sample, because the end of
    a reassignment often changes the leader. Growth of a partition without a known leader is counted later, once the
    leader is known.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        """Start to count from the current log sizes."""
        self._cluster = cluster
        self._leaders = PolledLeaders(cluster)
        self._led = self._leaders.by_partition()
        self._lock = threading.Lock()
        self._sizes = {broker_id: cluster.log_bytes(broker_id) for broker_id in cluster.brokers}
        self._received: dict[int, float] = dict.fromkeys(cluster.brokers, 0.0)
        self._sent: dict[int, float] = dict.fromkeys(cluster.brokers, 0.0)
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> BrokerCounters:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sample(self) -> dict[int, TrafficCounters]:
        """Return the counters of every broker, including stopped ones."""
        with self._lock:
            leads = self._leaders.by_partition()
            leaders = {**leads, **self._led}
            for broker_id in self._cluster.brokers:
                self._sizes[broker_id] = self._count(broker_id, self._cluster.log_bytes(broker_id), leaders)
            self._led = leads
            return {b: TrafficCounters(self._received[b], self._sent[b]) for b in self._cluster.brokers}

    def call_every(self, seconds: float, callback: Callable[[Mapping[int, TrafficCounters]], None]) -> None:
        """Start a thread that passes a sample to `callback` every `seconds` until `close`."""

        def run() -> None:
            while not self._ending.wait(seconds):
                callback(self.sample())

        thread = threading.Thread(target=run, name="broker counters", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Stop the background threads."""
        self._ending.set()
        for thread in self._threads:
            thread.join(timeout=30.0)
        self._leaders.close()

    def _count(
        self, broker_id: int, sizes: Mapping[Partition, int], leaders: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """Count the growth of a broker's logs; return the sizes up to which they are counted."""
        counted: dict[Partition, int] = {}
        counted_sizes = self._sizes[broker_id]
        for partition, size in sizes.items():
            leader = leaders.get(partition)
            if leader not in self._sent:
                counted[partition] = counted_sizes.get(partition, 0)
                continue
            growth = max(0, size - counted_sizes.get(partition, 0))
            self._received[broker_id] += growth
            if leader != broker_id:
                self._sent[leader] += growth
            counted[partition] = size
        return counted

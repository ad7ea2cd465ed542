"""Observes a reassignment on a real cluster: throttles, replica lists and bytes copied.

`RecoveryWatch` samples what Kafka's controller and the brokers' disks show. `Decisions` records what the planner
decides. A decided rate becomes the current rate some seconds later, because raises are written as ramps.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any, Self

import grpc
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.messages import targets_to_messages
from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_client import AdminClient, Cycle, PlannerClient
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.traffic import BrokerCounters
from autothrottle_lab.servers.kafka import KafkaCluster, Partition
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import Process, run_command

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

Lists = tuple[frozenset[str], frozenset[str]]
"""(leader list, follower list) of a topic."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the cluster at one moment."""

    at: float
    """`time.monotonic()`."""
    moving: frozenset[int]
    """Partitions of the topic with a replica that is still being copied."""
    expected: Lists
    """The replica lists that the reassignment needs, computed from the partitions' states."""
    lists: Lists
    """The current replica lists."""
    rates: Mapping[tuple[int, str], int]
    """(broker id, config key) -> current throttle, bytes/s; absent: no throttle."""
    received: Mapping[int, int]
    """Broker id -> bytes of the topic that the broker has copied outside the ISR, cumulative."""
    inbound: Mapping[int, float]
    """Broker id -> all bytes received, cumulative."""

    @property
    def unthrottled(self) -> frozenset[str]:
        """Adding replicas outside the ISR without a list entry, or on a broker without a rate: `partition:broker`."""
        listed = {e for e in self.lists[1] if (int(e.partition(":")[2]), FOLLOWER_RATE) in self.rates}
        return self.expected[1] - listed


class CycleRecorder(ABC):
    """Follows the cycles of a planner in a thread; a context manager."""

    def __init__(self, client: PlannerClient | AdminClient) -> None:
        self._client = client
        self._watch = client.watch_cycles()
        self._thread = threading.Thread(target=self._follow, name="cycles", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        self._thread.join()
        self._client.close()

    @abstractmethod
    def record(self, cycle: Cycle, at: float) -> None:
        """Record a cycle, which has just ended at `time.monotonic()`."""

    def _follow(self) -> None:
        for cycle in self._watch:
            self.record(cycle, time.monotonic())


class Decisions(CycleRecorder):
    """Records the rates that a planner decides for one link side, cycle by cycle."""

    def __init__(self, planner: str, broker_id: int, role: str) -> None:
        super().__init__(PlannerClient(planner))
        self._link_side = broker_id, role
        self.rates: list[tuple[float, int]] = []
        """(`time.monotonic()` at the end of the cycle, bytes/s), in order."""

    def at(self, moment: float) -> int | None:
        """Return the rate that the last cycle before a moment decided, bytes/s; None: no cycle had ended by then."""
        return next((rate for at, rate in reversed(self.rates) if at <= moment), None)

    def record(self, cycle: Cycle, at: float) -> None:
        for decision in cycle.decisions:
            if (decision.broker_id, decision.role) == self._link_side:
                self.rates.append((at, decision.rate_bytes_per_second))


@dataclass(slots=True)
class RecoveryWatch:
    """Samples one topic during its reassignment; a context manager."""

    cluster: KafkaCluster
    topic: str
    zookeeper: KazooClient | None = None
    """For a reassignment through the znode: its partitions count as moving from the moment the znode exists."""
    every_seconds: float = 0.2
    samples: list[Sample] = field(default_factory=list)
    _received: dict[int, int] = field(default_factory=dict)
    _sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    _copying: set[tuple[int, int]] = field(default_factory=set)
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _counters: BrokerCounters | None = None

    def __enter__(self) -> RecoveryWatch:
        self._counters = BrokerCounters(self.cluster)
        self.samples.append(self._sample())
        self._thread = threading.Thread(target=self._run, name="recovery watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        assert self._thread is not None and self._counters is not None
        self._thread.join()
        self._counters.close()

    def _run(self) -> None:
        while not self._ending.wait(self.every_seconds):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        assert self._counters is not None
        states = {p: state for (_, p), state in self.cluster.partitions([self.topic]).items()}
        adding: dict[int, Sequence[int]] = {p: state.adding_replicas for p, state in states.items()}
        # The controller starts the partitions of the znode one by one; they all count as moving at once.
        adding |= {p: ids for p, ids in self._targets().items() if not adding[p]}
        pending = {p: [b for b in ids if b not in states[p].isr] for p, ids in adding.items()}
        moving = frozenset(p for p, ids in pending.items() if ids)
        expected = (
            frozenset(f"{p}:{b}" for p in moving for b in states[p].isr),
            frozenset(f"{p}:{b}" for p in moving for b in pending[p]),
        )
        configs = self.cluster.stored_configs()
        config = configs.get(f"topics/{self.topic}", {})
        lists = (_entries(config.get(LEADER_REPLICAS)), _entries(config.get(FOLLOWER_REPLICAS)))
        rates = {
            (broker_id, key): int(value)
            for broker_id in self.cluster.brokers
            for key, value in configs.get(f"brokers/{broker_id}", {}).items()
            if key in (LEADER_RATE, FOLLOWER_RATE)
        }
        self._count(pending)
        inbound = {b: counters.rx_bytes for b, counters in self._counters.sample().items()}
        return Sample(time.monotonic(), moving, expected, lists, rates, dict(self._received), inbound)

    def _count(self, pending: Mapping[int, Sequence[int]]) -> None:
        """Add the growth of the logs of adding replicas, including their last bytes before they joined the ISR."""
        copying = {(broker_id, partition) for partition, ids in pending.items() for broker_id in ids}
        for broker_id in {b for b, _ in copying | self._copying}:
            sizes = self.cluster.log_bytes(broker_id)
            for partition in (p for b, p in copying | self._copying if b == broker_id):
                size = sizes.get((self.topic, partition), 0)
                produced = max(0, size - self._sizes.get((broker_id, partition), 0))
                self._sizes[broker_id, partition] = size
                self._received[broker_id] = self._received.get(broker_id, 0) + produced
        self._copying = copying

    def _targets(self) -> dict[int, list[int]]:
        if self.zookeeper is None:
            return {}
        try:
            requested = json.loads(self.zookeeper.get("/admin/reassign_partitions")[0])["partitions"]
        except NoNodeError:
            return {}
        return {row["partition"]: row["replicas"] for row in requested if row["topic"] == self.topic}

    def wait_until(self, accept: Callable[[Sample], bool], within_seconds: float, state: str) -> Sample:
        """Return the first sample from now on that `accept` accepts.

        Args:
            accept: the condition.
            within_seconds: the deadline.
            state: the condition in words, for the error message.
        """
        seen = len(self.samples)
        deadline = time.monotonic() + within_seconds
        while time.monotonic() < deadline:
            for sample in self.samples[seen:]:
                if accept(sample):
                    return sample
                seen += 1
            time.sleep(0.02)
        rates = {key: self.rates_of(*key) for key in {key for sample in self.samples for key in sample.rates}}
        raise AssertionError(
            f"not within {within_seconds:.0f} s: {state}; last sample: {self.samples[-1:]}; rates so far: {rates}"
        )

    # Evaluation.

    def worst_list_lag(self) -> float:
        """Return the longest time for which a list lacked a needed entry or kept an outdated one, in seconds.

        It is infinite if a list had an entry that was never needed. A sample reads the partitions first and the lists
        second, so an entry that the next sample needs is correct. Entries that exist before the reassignment starts
        are correct as well: they were written for it in advance. Kafka starts the partitions one by one, so they stay
        correct until their partition starts.
        """
        worst = 0.0
        samples = list(dropwhile(lambda s: not s.moving, self.samples))
        following = [*samples[1:], *samples[-1:]]
        since: dict[str, float] = {}
        until = {f"{side} {entry}": s.at for s in samples[:1] for side in (0, 1) for entry in s.lists[side]}
        first = {f"{side} {entry}": s.at for s in reversed(samples) for side in (0, 1) for entry in s.expected[side]}
        until |= {entry: first[entry] for entry in until.keys() & first.keys()}
        for sample, after in zip(samples, following, strict=True):
            for side in (0, 1):
                expected = {f"{side} {entry}" for entry in sample.expected[side]}
                listed = {f"{side} {entry}" for entry in sample.lists[side]}
                expected_next = {f"{side} {entry}" for entry in after.expected[side]}
                until |= dict.fromkeys(expected, sample.at)
                since = {e: at for e, at in since.items() if not e.startswith(f"{side} ") or e in expected}
                since = dict.fromkeys(expected, sample.at) | since
                stale = [sample.at - until.get(entry, float("-inf")) for entry in listed - expected - expected_next]
                missing = [sample.at - since[entry] for entry in (expected & expected_next) - listed]
                worst = max([worst, *stale, *missing])
        return worst

    def unthrottled_seconds(self) -> float:
        """Return the time in which a replica was copied without a throttle after its first one, in seconds.

        In ZooKeeper mode, Kafka starts the partitions one by one, and each has a first throttle of its own. A sample
        reads the partitions before the configs, so only what the next sample needs, too, counts as missing.
        """
        seconds, throttled = 0.0, set[str]()
        for sample, after in pairwise(self.samples):
            throttled |= sample.expected[1] - sample.unthrottled
            if sample.unthrottled & after.expected[1] & throttled:
                seconds += after.at - sample.at
        return seconds

    def worst_window(self, broker_id: int, seconds: float = 12.0) -> float:
        """Return the most bytes that a broker copied in a window, as a share of what its throttle allowed.

        The allowance is the highest throttle in the window, times its length. Windows start at the first follower
        throttle.
        """
        key = (broker_id, FOLLOWER_RATE)
        throttled = [s for s in self.samples if key in s.rates]
        worst = 0.0
        for index, first in enumerate(throttled):
            window = [s for s in throttled[index:] if s.at <= first.at + seconds]
            if window[-1].at - first.at < seconds * 0.9:
                break
            copied = window[-1].received.get(broker_id, 0) - first.received.get(broker_id, 0)
            allowed = max(s.rates[key] for s in window) * (window[-1].at - first.at)
            worst = max(worst, copied / allowed)
        return worst

    def seconds_over(self, broker_id: int, capacity: float) -> tuple[float, float]:
        """Return (share of the reassignment's seconds with more inbound traffic than the capacity, peak bytes/s)."""
        moving = [s for s in self.samples if s.moving]
        rates = []
        start = moving[0]
        for sample in moving[1:]:
            if sample.at - start.at >= 1.0:
                rates.append((sample.inbound[broker_id] - start.inbound[broker_id]) / (sample.at - start.at))
                start = sample
        return sum(rate > capacity for rate in rates) / max(1, len(rates)), max(rates, default=0.0)

    def rates_of(self, broker_id: int, key: str = FOLLOWER_RATE) -> list[tuple[float, int | None]]:
        """Return the successive rates of a broker, each with the time of its first sample; None: no throttle."""
        found: list[tuple[float, int | None]] = []
        for sample in self.samples:
            rate = sample.rates.get((broker_id, key))
            if not found or found[-1][1] != rate:
                found.append((sample.at, rate))
        return found


def admin_backend_options(cluster: KafkaCluster) -> dict[str, str]:
    """Return the options with which the services access a cluster through Kafka's Admin API."""
    return {"kafka-backend": "admin", "bootstrap-servers": cluster.bootstrap_servers}


@contextmanager
def state_options(cluster: KafkaCluster) -> Iterator[dict[str, str]]:
    """Give the options of the services for a cluster: their state is below a path or in a topic of its own.

    The topic exists from the start, so that it is among the configs that a test compares.
    """
    if isinstance(cluster, ZooKeeperModeCluster):
        servers, _, prefix = cluster.zookeeper_connect.partition("/")
        chroot = {"zk-prefix": prefix} if prefix else {}
        own = {"zk-config-prefix": f"state-{uuid.uuid4().hex[:8]}", "bootstrap-servers": cluster.bootstrap_servers}
        yield {"zk-addr": servers, **chroot, **own}
        return
    topic = f"state-{uuid.uuid4().hex[:8]}"
    with closing(TopicLog(KafkaSettings(tuple(cluster.bootstrap_servers.split(","))), topic)) as log:
        log.create(time.monotonic() + 60)
    cluster.wait_until_in_sync([topic])
    try:
        yield {**admin_backend_options(cluster), "state-store": "kafka", "state-topic": topic}
    finally:
        cluster.delete_topic(topic)


def exported_state(options: Mapping[str, str], directory: Path) -> Mapping[str, str]:
    """Return path -> text of autothrottle's state, without the election and the members: a copy by `state export`."""
    file = directory / "state.json"
    flags = [f"--{name}={value}" for name, value in options.items()]
    status, output = run_command([sys.executable, "-m", "autothrottle", "state", "export", str(file), *flags], 60)
    assert status == 0, output
    nodes: Mapping[str, str] = json.loads(file.read_text())["nodes"]
    return nodes


def admin_channel(address: str) -> grpc.Channel:
    """Return a channel to the admin service that repeats a call while the service, ZooKeeper or Kafka does not answer.

    On a busy machine, ZooKeeper's connection can break at any moment; then the service answers UNAVAILABLE. If Kafka
    does not answer in time, a reassignment cannot be throttled: it is not submitted, and the answer is ABORTED.
    """
    retry = {"maxAttempts": 5, "initialBackoff": "0.5s", "maxBackoff": "2s", "backoffMultiplier": 2}
    methods = {"name": [{}], "retryPolicy": retry | {"retryableStatusCodes": ["UNAVAILABLE", "ABORTED"]}}
    return grpc.insecure_channel(address, options=[("grpc.service_config", json.dumps({"methodConfig": [methods]}))])


def submit(admin: admin_pb2_grpc.AdminServiceStub, targets: Mapping[Partition, Sequence[int]]) -> None:
    """Submit a reassignment through autothrottle, which sets the throttles before Kafka copies a byte.

    Args:
        admin: the admin service.
        targets: partition -> its replicas after the reassignment.
    """
    request = admin_pb2.SubmitReassignmentRequest(partitions=targets_to_messages(targets))
    answer = admin.SubmitReassignment(request, timeout=60)
    # An attempt that was answered UNAVAILABLE may have submitted them; then its repetition finds them in progress.
    assert answer.submitted + answer.already_in_progress == len(targets), answer


def _entries(value: str | None) -> frozenset[str]:
    return frozenset(value.split(",")) if value else frozenset()


def feed(counters: BrokerCounters, datadog: DatadogEmulator, every_seconds: float = 0.25) -> None:
    """Record the brokers' network traffic in the emulator at regular intervals."""

    def record(sample: Mapping[int, Any]) -> None:
        now = time.time()
        for broker_id, of_broker in sample.items():
            datadog.record(broker_id, now, of_broker.tx_bytes, of_broker.rx_bytes)

    counters.call_every(every_seconds, record)


@contextmanager
def running_services(options: Mapping[str, str], directory: Path, within_seconds: float) -> Iterator[str]:
    """Run all services in one process, without metrics and with an interval of an hour; yield its gRPC address."""
    quiet = {"datadog-url": "http://127.0.0.1:1", "interval": "3600"}
    listening = {"api-listen": "127.0.0.1:0", "grpc-listen": "127.0.0.1:0"}
    flags = [f"--{name}={value}" for name, value in {**quiet, **listening, **options}.items()]
    keys = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}
    log = directory / "autothrottle.log"
    with Process("autothrottle", [sys.executable, "-m", "autothrottle", "run", *flags], log, keys) as process:

        def logged(pattern: str) -> str:
            found = re.search(pattern, log.read_text(), re.MULTILINE)
            return found[1] if found else ""

        process.wait_until(lambda: bool(logged(r"(Leading in term)") and logged(r"gRPC API: (\S+)$")), within_seconds)
        yield logged(r"gRPC API: (\S+)$")
        process.stop()

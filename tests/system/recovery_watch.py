"""Watches a recovery on a real cluster from outside: the controller's words and log sizes.

`Decisions` is what the planner says of itself: a rate that it decided stands some seconds later, when it has risen.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from autothrottle_client import PlannerClient
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.traffic import BrokerCounters
from autothrottle_lab.servers.kafka import KafkaCluster, Partition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

Lists = tuple[frozenset[str], frozenset[str]]
"""(leader list, follower list) of a topic."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment."""

    at: float
    """`time.monotonic()`."""
    moving: frozenset[int]
    """Partitions of the topic that are still being copied."""
    expected: Lists
    """What the lists should be, from the topic's node and its partitions' states."""
    lists: Lists
    """What the lists are."""
    rates: Mapping[tuple[int, str], int]
    """(broker id, key) -> bytes/s."""
    received: Mapping[int, int]
    """Broker id -> bytes of the topic's partitions that it has copied while outside of the ISR, cumulative."""
    inbound: Mapping[int, float]
    """Broker id -> all bytes received, cumulative."""


class Decisions:
    """The rates that a planner decides for one broker and role, as its cycles end; a context manager."""

    def __init__(self, planner: str, broker_id: int, role: str) -> None:
        self._client, self._port = PlannerClient(planner), (broker_id, role)
        self._watch = self._client.watch_cycles()
        self.rates: list[tuple[float, int]] = []
        """(`time.monotonic()`, bytes/s), in order."""
        self._thread = threading.Thread(target=self._follow, name="decisions", daemon=True)

    def __enter__(self) -> Decisions:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        self._thread.join()
        self._client.close()

    def at(self, moment: float) -> int | None:
        """Return what the last cycle before a moment decided, bytes/s; None: there was none."""
        return next((rate for at, rate in reversed(self.rates) if at <= moment), None)

    def _follow(self) -> None:
        for cycle in self._watch:
            for decision in cycle.decisions:
                if (decision.broker_id, decision.role) == self._port:
                    self.rates.append((time.monotonic(), decision.rate_bytes_per_second))


@dataclass(slots=True)
class RecoveryWatch:
    """Samples one moving topic; a context manager."""

    cluster: KafkaCluster
    topic: str
    zookeeper: KazooClient | None = None
    """For a cluster in ZooKeeper mode: what is asked for there moves from then on."""
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
        # What was asked for through the znode moves from then on, though the controller takes it up one by one.
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
        """Count the growth of the logs of replicas that are being copied, their last bytes before they joined too."""
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
            asked = json.loads(self.zookeeper.get("/admin/reassign_partitions")[0])["partitions"]
        except NoNodeError:
            return {}
        return {row["partition"]: row["replicas"] for row in asked if row["topic"] == self.topic}

    def wait_until(self, true: Callable[[Sample], bool], within_seconds: float, what: str) -> Sample:
        """Return the first sample from now on of which it is true."""
        seen = len(self.samples)
        deadline = time.monotonic() + within_seconds
        while time.monotonic() < deadline:
            for sample in self.samples[seen:]:
                if true(sample):
                    return sample
                seen += 1
            time.sleep(0.02)
        stood = {port: self.rates_of(*port) for port in {port for sample in self.samples for port in sample.rates}}
        raise AssertionError(
            f"within {within_seconds:.0f} s it was never true that {what}: {self.samples[-1:]}; stood: {stood}"
        )

    # Judgements.

    def worst_list_lag(self) -> float:
        """Return for how long, at worst, a list lacked an entry or had one that was not right any more, in seconds.

        Infinite when an entry stood that was never right. A sample reads the lists after the partitions, so what
        is right by the next sample is right. What stands before anything moves was set for a move that is to come.
        """
        worst = 0.0
        samples = list(dropwhile(lambda s: not s.moving, self.samples))
        following = [*samples[1:], *samples[-1:]]
        since: dict[str, float] = {}
        until = {f"{side} {entry}": s.at for s in samples[:1] for side in (0, 1) for entry in s.lists[side]}
        for sample, after in zip(samples, following, strict=True):
            for side in (0, 1):
                expected = {f"{side} {entry}" for entry in sample.expected[side]}
                listed = {f"{side} {entry}" for entry in sample.lists[side]}
                soon = {f"{side} {entry}" for entry in after.expected[side]}
                until |= dict.fromkeys(expected, sample.at)
                since = {e: at for e, at in since.items() if not e.startswith(f"{side} ") or e in expected}
                since = dict.fromkeys(expected, sample.at) | since
                stale = [sample.at - until.get(entry, float("-inf")) for entry in listed - expected - soon]
                missing = [sample.at - since[entry] for entry in (expected & soon) - listed]
                worst = max([worst, *stale, *missing])
        return worst

    def worst_window(self, broker_id: int, seconds: float = 12.0) -> float:
        """Return the most bytes copied in a window, as a share of the highest throttle that stood in it.

        Windows begin once the follower throttle stands.
        """
        key = (broker_id, FOLLOWER_RATE)
        throttled = [s for s in self.samples if key in s.rates]
        worst = 0.0
        for index, first in enumerate(throttled):
            window = [s for s in throttled[index:] if s.at <= first.at + seconds]
            if window[-1].at - first.at < seconds * 0.9:
                break
            moved = window[-1].received.get(broker_id, 0) - first.received.get(broker_id, 0)
            allowed = max(s.rates[key] for s in window) * (window[-1].at - first.at)
            worst = max(worst, moved / allowed)
        return worst

    def seconds_over(self, broker_id: int, capacity: float) -> tuple[float, float]:
        """Return (share of the move's seconds in which a broker received more than its capacity, peak bytes/s)."""
        moving = [s for s in self.samples if s.moving]
        rates = []
        start = moving[0]
        for sample in moving[1:]:
            if sample.at - start.at >= 1.0:
                rates.append((sample.inbound[broker_id] - start.inbound[broker_id]) / (sample.at - start.at))
                start = sample
        return sum(rate > capacity for rate in rates) / max(1, len(rates)), max(rates, default=0.0)

    def rates_of(self, broker_id: int, key: str = FOLLOWER_RATE) -> list[tuple[float, int | None]]:
        """Return the rates that stood on a broker one after the other, and when each was seen first."""
        found: list[tuple[float, int | None]] = []
        for sample in self.samples:
            rate = sample.rates.get((broker_id, key))
            if not found or found[-1][1] != rate:
                found.append((sample.at, rate))
        return found


def by_admin(cluster: KafkaCluster) -> dict[str, str]:
    """Return the options that make the services reach a cluster through Kafka's admin API."""
    return {"kafka-backend": "admin", "bootstrap-servers": cluster.bootstrap_servers}


def submit(admin: admin_pb2_grpc.AdminServiceStub, targets: Mapping[Partition, Sequence[int]]) -> None:
    """Let the leading planner submit a reassignment once its throttles stand: nothing of it lands before that.

    Args:
        admin: the admin service.
        targets: partition -> its replicas after the move.
    """
    partitions = [
        types_pb2.PartitionTarget(topic=topic, partition=number, replicas=replicas)
        for (topic, number), replicas in targets.items()
    ]
    answer = admin.SubmitReassignment(admin_pb2.SubmitReassignmentRequest(partitions=partitions), timeout=60)
    assert answer.submitted == len(partitions)


def _entries(value: str | None) -> frozenset[str]:
    return frozenset(value.split(",")) if value else frozenset()


def feed(counters: BrokerCounters, datadog: DatadogEmulator, every_seconds: float = 0.25) -> None:
    """Give the emulator what the brokers' network cards would count."""

    def record(sample: Mapping[int, Any]) -> None:
        now = time.time()
        for broker_id, of_broker in sample.items():
            datadog.record(broker_id, now, of_broker.tx_bytes, of_broker.rx_bytes)

    counters.call_every(every_seconds, record)


def moved(topic: str, assignment: Mapping[int, Sequence[int]], old: int, new: int) -> dict[Partition, list[int]]:
    """Return the plan that puts one broker in the place of another."""
    return {(topic, p): [new if b == old else b for b in ids] for p, ids in assignment.items()}

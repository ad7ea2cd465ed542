"""The znodes of a cluster of up to 1,000 brokers, and the counters that a Datadog agent reports for it.

No data is replicated. The benchmark writes the znodes that a controller would write. The counters grow as if every
broker had a steady client load and replication used its full throttle.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.codec import compact_json, format_config, parse_config
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole, ResourceType, format_replicas
from autothrottle.core.cluster.snapshot import TopicReassignment
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.servers.zookeeper import ZooKeeperServer, java_command

CAPACITY = 1_000 * MEGABYTE
MAX_RATIO = 0.5
"""Small enough that a higher client load and a throttle computed for a lower load fit into the capacity together."""
_FIRST_BROKER = 1001
_BATCH_BYTES = 400_000
_SAMPLE_SECONDS = 0.5


class RoomyZooKeeper(ZooKeeperServer):
    """A ZooKeeper server whose heap is large enough for 2,000,000 nodes and as many watches."""

    def __init__(self, directory: Path) -> None:
        # The last of equal options counts. The collector is Java's default for a server: the serial one of the tests
        # stops a heap of 2,000,000 nodes for seconds.
        options = ("-Xms4g", "-Xmx4g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")
        super().__init__(directory, java=[*java_command(), *options])


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a cluster. All of its partitions are reassigned."""

    brokers: int
    topics: int
    partitions_per_topic: int

    def __str__(self) -> str:
        return f"{self.brokers} brokers, {self.topics * self.partitions_per_topic} partitions"

    @staticmethod
    def parse(text: str) -> Size:
        """Return the size in a text such as `3000,2000,500`."""
        return Size(*map(int, text.split(",")))

    @property
    def broker_ids(self) -> range:
        return range(_FIRST_BROKER, _FIRST_BROKER + self.brokers)

    def reassignments(self) -> Iterator[TopicReassignment]:
        """Yield the reassignment of each topic: every partition replaces its last replica with a fourth broker."""
        generator = random.Random(1)
        for number in range(self.topics):
            rows = [generator.sample(self.broker_ids, 4) for _ in range(self.partitions_per_topic)]
            yield TopicReassignment(
                topic=f"topic-{number:0{max(3, len(str(self.topics - 1)))}}",
                partitions=tuple(range(self.partitions_per_topic)),
                leaders=tuple(row[0] for row in rows),
                isr=tuple(tuple(row[:3]) for row in rows),
                adding_replicas=tuple((row[3],) for row in rows),
                removing_replicas=tuple((row[2],) for row in rows),
            )


SMALL = Size(brokers=200, topics=200, partitions_per_topic=50)
LARGE = Size(brokers=1_000, topics=200, partitions_per_topic=500)


class Clients:
    """Context manager that reports the traffic of every broker to a Datadog emulator."""

    def __init__(self, datadog: DatadogEmulator, broker_ids: Sequence[int]) -> None:
        self._datadog, self._broker_ids = datadog, broker_ids
        self._rates: dict[int, tuple[float, float]] = dict.fromkeys(broker_ids, (0.0, 0.0))
        self._totals: dict[int, tuple[float, float]] = dict.fromkeys(broker_ids, (0.0, 0.0))
        self._at = time.time()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clients")
        for broker_id in broker_ids:
            datadog.add_host(f"host-{broker_id}", broker_id, "bench")

    def __enter__(self) -> Clients:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def set_rates(self, rates: Mapping[int, tuple[float, float]]) -> None:
        """Set broker id -> (bytes/s sent, bytes/s received) from now on."""
        with self._lock:
            self._sample()
            self._rates.update(rates)

    def _run(self) -> None:
        while not self._ending.wait(_SAMPLE_SECONDS):
            with self._lock:
                self._sample()

    def _sample(self) -> None:
        now = time.time()
        seconds, self._at = now - self._at, now
        for broker_id in self._broker_ids:
            (outbound, inbound), (tx_rate, rx_rate) = self._totals[broker_id], self._rates[broker_id]
            totals = outbound + tx_rate * seconds, inbound + rx_rate * seconds
            self._totals[broker_id] = totals
            self._datadog.record(broker_id, now, *totals)


@dataclass(frozen=True, slots=True)
class CurrentConfigs:
    """The current configs of all brokers and topics."""

    configs: Mapping[ConfigResource, Mapping[str, str]]
    last_write: datetime
    """Time of the newest write to one of these configs, by the modification time in ZooKeeper."""
    last_rate: datetime
    """The same for the configs of brokers alone."""

    def rates(self) -> dict[tuple[int, ReplicaRole], int]:
        """Return (broker id, role) -> bytes/s."""
        return {
            (resource.broker_id, role): int(config[role.rate_key])
            for resource, config in self.configs.items()
            if resource.type is ResourceType.BROKER
            for role in ReplicaRole
            if role.rate_key in config
        }

    def lists(self) -> dict[tuple[str, ReplicaRole], str]:
        """Return (topic, role) -> replica list."""
        return {
            (resource.name, role): config[role.replicas_key]
            for resource, config in self.configs.items()
            if resource.type is ResourceType.TOPIC
            for role in ReplicaRole
            if role.replicas_key in config
        }


class BigCluster:
    """The znodes of one cluster, in the root of its own ZooKeeper."""

    def __init__(self, client: KazooClient, size: Size) -> None:
        self.client, self.size = client, size
        self.kafka, self.own = KafkaPaths(), OwnPaths()
        self.reassignments = tuple(size.reassignments())
        # Computed in advance, so that no measurement includes the work of the controller.
        self._nodes = {
            is_reassigned: [(self.kafka.topic(m.topic), _topic_node(m, is_reassigned)) for m in self.reassignments]
            for is_reassigned in (True, False)
        }
        self.resources = [
            *(ConfigResource.broker(broker_id) for broker_id in size.broker_ids),
            *(ConfigResource.topic(reassignment.topic) for reassignment in self.reassignments),
        ]

    @property
    def _changes(self) -> str:
        return f"{self.kafka.configs}/changes"

    def build(self) -> None:
        """Create brokers, topics, partition states and empty configs, without reassignments."""
        kafka = self.kafka
        for path in (kafka.broker_ids, kafka.topics, *(f"{kafka.configs}/{kind.value}" for kind in ResourceType)):
            self.client.ensure_path(path)
        self.client.ensure_path(self._changes)
        self._commit("create", ((f"{kafka.broker_ids}/{b}", b"{}") for b in self.size.broker_ids))
        self._commit("create", ((kafka.config(resource), format_config({})) for resource in self.resources))
        self._commit("create", self._topic_tree())

    def _topic_tree(self) -> Iterator[tuple[str, bytes]]:
        for reassignment in self.reassignments:
            path = self.kafka.topic(reassignment.topic)
            yield path, _topic_node(reassignment, is_reassigned=False)
            yield f"{path}/partitions", b""
            for partition, leader, isr in zip(
                reassignment.partitions, reassignment.leaders, reassignment.isr, strict=True
            ):
                yield f"{path}/partitions/{partition}", b""
                state = {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": 0, "isr": isr}
                yield self.kafka.state(reassignment.topic, partition), compact_json(state)

    def start_reassignment(self) -> None:
        """Start a reassignment of every partition, as the controller does for `--bootstrap-server` (KIP-455)."""
        self._commit("set_data", self._nodes[True])

    def cancel_reassignment(self) -> None:
        """Cancel all reassignments, as Kafka's `--cancel` does."""
        self._commit("set_data", self._nodes[False])

    def finish_partition(self, number: int) -> None:
        """End the reassignment of one partition of a topic as the controller does; `number` is that of the topic."""
        old = self.reassignments[number]
        rows = old.by_partition()
        del rows[old.partitions[-1]]
        rest = TopicReassignment.of_partitions(old.topic, rows)
        self.reassignments = (*self.reassignments[:number], rest, *self.reassignments[number + 1 :])
        node = json.loads(_topic_node(rest, is_reassigned=True))
        *others, _ = old.isr[-1]
        node["partitions"][str(old.partitions[-1])] = [*others, *old.adding_replicas[-1]]
        self._commit("set_data", [(self.kafka.topic(old.topic), json.dumps(node, separators=(",", ":")).encode())])

    def wipe_throttles(self) -> None:
        """Remove all throttles and the ledger. The services must not run."""
        self._commit("set_data", ((self.kafka.config(resource), format_config({})) for resource in self.resources))
        try:
            self.client.delete(self.own.ledger, recursive=True)
        except NoNodeError:
            return

    def newest_notification(self) -> int:
        """Return the sequence number of the newest config change notification; -1 without notifications."""
        return max((int(name[-10:]) for name in self.client.get_children(self._changes)), default=-1)

    def clear_notifications(self) -> None:
        """Remove all config change notifications, as brokers do after 15 minutes."""
        for name in self.client.get_children(self._changes):
            self.client.delete_async(f"{self._changes}/{name}")
        self.client.sync(self._changes)

    def current(self) -> CurrentConfigs:
        """Read all configs."""
        answers = [(resource, self.client.get_async(self.kafka.config(resource))) for resource in self.resources]
        read = [(resource, *answer.get(timeout=60)) for resource, answer in answers]
        last, last_rate = (
            datetime.fromtimestamp(max(stat.mtime for r, _, stat in read if r.type in types) / 1000, UTC)
            for types in (ResourceType, {ResourceType.BROKER})
        )
        return CurrentConfigs({r: parse_config(data) for r, data, _ in read}, last, last_rate)

    def expected_lists(self) -> dict[tuple[str, ReplicaRole], str]:
        """Return (topic, role) -> the correct replica list while all partitions are being reassigned."""
        found = {}
        for reassignment in self.reassignments:
            rows = list(reassignment.rows())
            leader = format_replicas(f"{p}:{b}" for p, _, isr, _ in rows for b in isr)
            follower = format_replicas(f"{p}:{b}" for p, _, _, pending in rows for b in pending)
            found[reassignment.topic, ReplicaRole.LEADER] = leader
            found[reassignment.topic, ReplicaRole.FOLLOWER] = follower
        return found

    def _commit(self, method: str, operations: Iterable[tuple[str, bytes]]) -> None:
        """Write nodes in concurrent transactions."""
        answers = []
        for batch in _batches(operations):
            transaction = self.client.transaction()
            for path, data in batch:
                getattr(transaction, method)(path, data)
            answers.append(transaction.commit_async())
        for answer in answers:
            refused = [result for result in answer.get(timeout=120) if isinstance(result, Exception)]
            assert not refused, refused[:3]


def _batches(operations: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for path, data in operations:
        cost = len(path) + len(data) + 64
        if batch and size + cost > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((path, data))
        size += cost
    if batch:
        yield batch


def _topic_node(reassignment: TopicReassignment, is_reassigned: bool) -> bytes:
    columns = reassignment.adding_replicas, reassignment.removing_replicas
    adding, removing = (dict(zip(map(str, reassignment.partitions), column, strict=True)) for column in columns)
    replicas = {
        str(partition): (*isr, *new) if is_reassigned else isr
        for partition, isr, new in zip(
            reassignment.partitions, reassignment.isr, reassignment.adding_replicas, strict=True
        )
    }
    node = {
        "version": 3,
        "topic_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "partitions": replicas,
        "adding_replicas": adding if is_reassigned else {},
        "removing_replicas": removing if is_reassigned else {},
    }
    return json.dumps(node, separators=(",", ":")).encode()

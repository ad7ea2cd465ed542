"""A cluster of up to 1,000 brokers as its znodes show it, with the counters that a Datadog agent would report.

Nothing moves data here: the nodes are written by hand, as a controller writes them, and the counters grow as if every
broker carried a steady load of its clients and replication used the whole of its throttle.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.codec import format_config, parse_config
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.configs import ConfigResource, ReplicaRole, ResourceType, format_replicas
from autothrottle.core.loads import MEGABYTE
from autothrottle.core.topology import TopicReassignment
from autothrottle.lab.datadog import DatadogEmulator
from autothrottle.lab.zookeeper import ZooKeeperServer

CAPACITY = 1_000 * MEGABYTE
MAX_RATIO = 0.5
"""So small that clients and a throttle that was right for less of them fit into the capacity together."""
_FIRST_BROKER = 1001
_BATCH_BYTES = 400_000
_SAMPLE_SECONDS = 0.5


class RoomyZooKeeper(ZooKeeperServer):
    """A ZooKeeper whose heap holds 200,000 nodes and as many watches."""

    @staticmethod
    def _command(*arguments: Any) -> list[str]:
        words = ZooKeeperServer._command(*arguments)
        return ["-Xmx2g" if word.startswith("-Xmx") else word for word in words]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a cluster is, and how much of it moves."""

    brokers: int
    topics: int
    partitions_per_topic: int

    def __str__(self) -> str:
        return f"{self.brokers} brokers, {self.topics * self.partitions_per_topic} partitions"

    @property
    def broker_ids(self) -> range:
        return range(_FIRST_BROKER, _FIRST_BROKER + self.brokers)

    def reassignments(self) -> Iterator[TopicReassignment]:
        """Yield every topic's move: each partition replaces its last replica by a fourth broker."""
        chance = random.Random(1)
        for number in range(self.topics):
            rows = [chance.sample(self.broker_ids, 4) for _ in range(self.partitions_per_topic)]
            yield TopicReassignment(
                topic=f"topic-{number:03}",
                partitions=tuple(range(self.partitions_per_topic)),
                leaders=tuple(row[0] for row in rows),
                isr=tuple(tuple(row[:3]) for row in rows),
                adding_replicas=tuple((row[3],) for row in rows),
                removing_replicas=tuple((row[2],) for row in rows),
            )


SMALL = Size(brokers=200, topics=200, partitions_per_topic=50)
LARGE = Size(brokers=1_000, topics=200, partitions_per_topic=500)


class Clients:
    """The load of every broker's links, sampled into a Datadog; a context manager."""

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
        """Let brokers send and receive so many bytes/s from now on."""
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
            (tx, rx), (tx_rate, rx_rate) = self._totals[broker_id], self._rates[broker_id]
            totals = tx + tx_rate * seconds, rx + rx_rate * seconds
            self._totals[broker_id] = totals
            self._datadog.record(broker_id, now, *totals)


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands in the configs of all brokers and topics."""

    configs: Mapping[ConfigResource, Mapping[str, str]]
    last_write: datetime
    """When the last of these configs was written, by the clock of ZooKeeper's transactions."""

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
    """The znodes of one cluster in the root of a ZooKeeper of its own."""

    def __init__(self, client: KazooClient, size: Size) -> None:
        self._client, self.size = client, size
        self.kafka, self.own = KafkaPaths(), OwnPaths()
        self.moves = tuple(size.reassignments())
        # Made beforehand: what a controller thinks is in no figure.
        self._nodes = {
            is_moving: [(self.kafka.topic(m.topic), _topic_node(m, is_moving)) for m in self.moves]
            for is_moving in (True, False)
        }
        self.resources = [
            *(ConfigResource.broker(broker_id) for broker_id in size.broker_ids),
            *(ConfigResource.topic(move.topic) for move in self.moves),
        ]

    @property
    def _changes(self) -> str:
        return f"{self.kafka.configs}/changes"

    def build(self) -> None:
        """Write brokers, topics, states and empty configs; nothing moves."""
        kafka = self.kafka
        for path in (kafka.broker_ids, kafka.topics, *(f"{kafka.configs}/{kind.value}" for kind in ResourceType)):
            self._client.ensure_path(path)
        self._client.ensure_path(self._changes)
        self._commit("create", ((f"{kafka.broker_ids}/{b}", b"{}") for b in self.size.broker_ids))
        self._commit("create", ((kafka.config(resource), format_config({})) for resource in self.resources))
        self._commit("create", self._topic_tree())

    def _topic_tree(self) -> Iterator[tuple[str, bytes]]:
        for move in self.moves:
            path = self.kafka.topic(move.topic)
            yield path, _topic_node(move, is_moving=False)
            yield f"{path}/partitions", b""
            for partition, leader, isr in zip(move.partitions, move.leaders, move.isr, strict=True):
                yield f"{path}/partitions/{partition}", b""
                state = {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": 0, "isr": isr}
                yield self.kafka.state(move.topic, partition), json.dumps(state).encode()

    def start_move(self) -> None:
        """Let every partition begin to move, as the controller does for `--bootstrap-server` (KIP-455)."""
        self._commit("set_data", self._nodes[True])

    def cancel_move(self) -> None:
        """Let every partition stay where it was, as Kafka's `--cancel` does."""
        self._commit("set_data", self._nodes[False])

    def wipe_throttles(self) -> None:
        """Leave no throttle, and nothing that tells of one, behind; the services must not run."""
        self._commit("set_data", ((self.kafka.config(resource), format_config({})) for resource in self.resources))
        try:
            self._client.delete(self.own.ledger, recursive=True)
        except NoNodeError:
            return

    def newest_notification(self) -> int:
        """Return the number of the newest notification to brokers; -1: there is none."""
        return max((int(name[-10:]) for name in self._client.get_children(self._changes)), default=-1)

    def clear_notifications(self) -> None:
        """Remove them all, as a controller does after a quarter of an hour."""
        for name in self._client.get_children(self._changes):
            self._client.delete_async(f"{self._changes}/{name}")
        self._client.sync(self._changes)

    def standing(self) -> Standing:
        """Read every config back."""
        answers = [(resource, self._client.get_async(self.kafka.config(resource))) for resource in self.resources]
        read = [(resource, *answer.get(timeout=60)) for resource, answer in answers]
        last = max(stat.mtime for _, _, stat in read)
        return Standing({r: parse_config(data) for r, data, _ in read}, datetime.fromtimestamp(last / 1000, UTC))

    def expected_lists(self) -> dict[tuple[str, ReplicaRole], str]:
        """Return (topic, role) -> the list that has to stand while everything moves."""
        found = {}
        for move in self.moves:
            rows = list(move.rows())
            leader = format_replicas(f"{p}:{b}" for p, _, isr, _ in rows for b in isr)
            follower = format_replicas(f"{p}:{b}" for p, _, _, pending in rows for b in pending)
            found[move.topic, ReplicaRole.LEADER] = leader
            found[move.topic, ReplicaRole.FOLLOWER] = follower
        return found

    def _commit(self, method: str, operations: Iterable[tuple[str, bytes]]) -> None:
        """Write nodes in transactions, all of which are on their way at once."""
        answers = []
        for batch in _batches(operations):
            transaction = self._client.transaction()
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


def _topic_node(move: TopicReassignment, is_moving: bool) -> bytes:
    columns = move.adding_replicas, move.removing_replicas
    adding, removing = (dict(zip(map(str, move.partitions), column, strict=True)) for column in columns)
    replicas = {
        str(partition): (*isr, *new) if is_moving else isr
        for partition, isr, new in zip(move.partitions, move.isr, move.adding_replicas, strict=True)
    }
    node = {
        "version": 3,
        "topic_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "partitions": replicas,
        "adding_replicas": adding if is_moving else {},
        "removing_replicas": removing if is_moving else {},
    }
    return json.dumps(node, separators=(",", ":")).encode()

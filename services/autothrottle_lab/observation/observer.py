"""Measurements of a recovery from what Kafka wrote and the brokers' counters, never from a planner.

`read_timeline` computes the timeline from ZooKeeper's transaction log afterwards, `read_kraft_timeline` from the
metadata log. The type to know is `Timeline`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from autothrottle.adapters.zookeeper.codec import TopicNode, parse_config, parse_reassignments, parse_topic
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    THROTTLE_KEYS,
    THROTTLED_TYPES,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle_lab.observation.metadata_log import ConfigWritten, MetadataRecord, MetadataState
from autothrottle_lab.servers.zookeeper import Transaction

_KAFKA = KafkaPaths()
_CONFIGS = tuple(f"{_KAFKA.configs}/{kind.value}/" for kind in THROTTLED_TYPES)

Copy = tuple[TopicPartition, int, Iterable[int], Collection[int]]
"""(partition, leader, ISR, adding replicas that are out of sync)."""
Configs = Mapping[str, Mapping[str, str]]
"""`brokers/1001` or `topics/t` -> its dynamic configs."""


# During the recovery


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of one follower and of the reassignment at one point in time."""

    throttle: int | None
    """Its follower throttle, bytes/s; None: not throttled."""
    client_rate: float
    """Rate at which clients wrote to it since the last sample, bytes/s."""
    copy_rate: float
    """Rate at which it copied from leaders since the last sample, bytes/s."""
    bytes_left: int
    """Bytes that all adding replicas still have to copy."""


# After the recovery


@dataclass(slots=True)
class Timeline:
    """The events of one reassignment, by the clock of the server that committed them; None: it has not happened."""

    started: datetime | None = None
    """The reassignment started; in ZooKeeper mode a topic got adding or removing replicas, or
    /admin/reassign_partitions was created."""
    throttled: datetime | None = None
    """All throttles were set for the first time, with exactly the throttled replicas that the reassignment needs."""
    ended: datetime | None = None
    """The reassignment ended; in ZooKeeper mode none of that is left."""
    clean: datetime | None = None
    """The last throttle was removed after the end."""
    writes: int = 0
    """Config writes for brokers and topics, from the first throttle on: `reassign` sets throttles before the start."""
    leader_changes: int = 0
    """Terms that began since the start."""

    def seconds(self, event: datetime | None) -> float | None:
        """Return the seconds from the start to an event; None if one of them has not happened."""
        return (event - self.started).total_seconds() if event and self.started else None

    def advance(self, time: datetime, reassigning: bool, copies: Iterable[Copy], configs: Configs) -> None:
        """Note the events that a committed change caused.

        Args:
            time: when the change was committed.
            reassigning: whether a reassignment is in progress after it.
            copies: the partitions of this reassignment.
            configs: the dynamic configs after the change.
        """
        if reassigning and not self.started:
            self.started = time
        if not self.started:
            return
        if not self.throttled and is_fully_throttled(copies, configs):
            self.throttled = time
        if not self.ended and not reassigning:
            self.ended = time
        if self.ended and not self.clean and not _is_throttled(configs):
            self.clean = time


def read_timeline(transactions: Iterable[Transaction]) -> Timeline:
    """Return the timeline of the last reassignment of a cluster in ZooKeeper mode.

    Args:
        transactions: all applied transactions of the log, in order.
    """
    timeline, nodes, configs = Timeline(), dict[str, bytes](), dict[str, Mapping[str, str]]()
    topics = dict[str, TopicNode]()
    writes_before = 0
    for transaction in transactions:
        for operation in transaction.operations:
            if operation.kind not in ("create", "set", "delete"):
                continue
            path, data = operation.path, operation.data or b""
            nodes[path] = data
            if operation.kind == "delete":
                del nodes[path]
            if path.startswith(f"{_KAFKA.topics}/") and "/" not in path.removeprefix(f"{_KAFKA.topics}/"):
                node = parse_topic(data) if data else None
                topics.pop(path.removeprefix(f"{_KAFKA.topics}/"), None)
                if node and (node.adding_replicas or node.removing_replicas):
                    topics[path.removeprefix(f"{_KAFKA.topics}/")] = node
            elif path == OwnPaths().term and operation.kind == "set":
                timeline.leader_changes += 1
            elif path.startswith(_CONFIGS):
                timeline.writes += 1
                configs[path.removeprefix(f"{_KAFKA.configs}/")] = parse_config(data) if data else {}
                writes_before = writes_before + 1 if _is_throttled(configs) else 0
        reassigning = _KAFKA.reassign_partitions in nodes or bool(topics)
        if (reassigning and timeline.ended) or not timeline.started:
            timeline = Timeline(writes=writes_before)
        timeline.advance(transaction.time, reassigning, _znode_copies(nodes, topics), configs)
    return timeline


def _znode_copies(nodes: Mapping[str, bytes], topics: Mapping[str, TopicNode]) -> Iterator[Copy]:
    """Yield the partitions of the list that an old tool wrote, and those of the topics that the controller marks."""
    targets: dict[TopicPartition, Collection[int]] = {}
    for topic, node in topics.items():
        targets |= {(topic, partition): adding for partition, adding in node.adding_replicas.items()}
    if _KAFKA.reassign_partitions in nodes:
        targets |= parse_reassignments(nodes[_KAFKA.reassign_partitions])
    for partition, target in targets.items():
        state = json.loads(nodes[_KAFKA.state(*partition)])
        yield partition, state["leader"], state["isr"], set(target) - set(state["isr"])


def read_kraft_timeline(records: Iterable[MetadataRecord], after_offset: int) -> Timeline:
    """Return the timeline of the reassignment that started after an offset in a KRaft cluster.

    `writes` counts config keys. `leader_changes` is 0, because the metadata log has no terms of autothrottle.

    Args:
        records: all records of the log, in order.
        after_offset: the last offset before the reassignment was submitted.
    """
    timeline, state = Timeline(), MetadataState()
    for record in records:
        state.apply(record.change)
        if record.offset <= after_offset:
            continue
        timeline.writes += isinstance(record.change, ConfigWritten)
        reassigning = any(p.adding_replicas or p.removing_replicas for p in state.partitions.values())
        copies = (
            (partition, p.leader, p.isr, set(p.adding_replicas) - set(p.isr))
            for partition, p in state.partitions.items()
        )
        timeline.advance(record.time, reassigning, copies, state.configs)
    return timeline


def _is_throttled(configs: Configs) -> bool:
    return any(config.keys() & THROTTLE_KEYS for config in configs.values())


def is_fully_throttled(copies: Iterable[Copy], configs: Configs) -> bool:
    """Return whether all throttles of a reassignment are set, with exactly the throttled replicas that it needs."""
    lists: dict[tuple[str, str], set[str]] = defaultdict(set)
    rates: set[tuple[str, str]] = set()
    for (topic, partition), leader, isr, pending in copies:
        if pending:
            lists[f"topics/{topic}", LEADER_REPLICAS] |= {f"{partition}:{b}" for b in isr}
            lists[f"topics/{topic}", FOLLOWER_REPLICAS] |= {f"{partition}:{b}" for b in pending}
            rates |= {(f"brokers/{leader}", LEADER_RATE), *((f"brokers/{b}", FOLLOWER_RATE) for b in pending)}
    return (
        bool(rates)
        and all(key in configs.get(broker, {}) for broker, key in rates)
        and all(
            parse_replicas(configs.get(topic, {}).get(key, "")) == entries for (topic, key), entries in lists.items()
        )
    )

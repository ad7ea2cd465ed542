"""Measurements of a recovery from znodes and the brokers' counters, never from a planner.

`read_timeline` computes the timeline from ZooKeeper's transaction log afterwards. `summary` combines it with counters.
The type to know is `Summary`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    THROTTLE_KEYS,
    THROTTLED_TYPES,
    ConfigResource,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle_lab.emulators.kafka_scenario import parse_reassignment
from autothrottle_lab.servers.zookeeper import Operation, Transaction

_KAFKA = KafkaPaths()


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

    @staticmethod
    def between(
        earlier: tuple[float, int, int], later: tuple[float, int, int], throttle: str | None, bytes_left: int
    ) -> Sample:
        """Return the state now, with the mean rates between two readings: (seconds, client bytes, copied bytes)."""
        seconds = max(later[0] - earlier[0], 1e-9)
        client_rate, copy_rate = (later[1] - earlier[1]) / seconds, (later[2] - earlier[2]) / seconds
        return Sample(None if throttle is None else int(throttle), client_rate, copy_rate, bytes_left)


# After the recovery


@dataclass(slots=True)
class Timeline:
    """The events of one reassignment, by the clock of the server that committed them; None: it has not happened."""

    started: datetime | None = None
    """The reassignment started: /admin/reassign_partitions was created."""
    throttled: datetime | None = None
    """All throttles were set for the first time, with exactly the throttled replicas that the reassignment needs."""
    ended: datetime | None = None
    """The reassignment ended: /admin/reassign_partitions was deleted."""
    clean: datetime | None = None
    """The last throttle was removed after the end."""
    writes: int = 0
    """Config writes for brokers and topics since the start."""
    leader_changes: int = 0
    """Terms that began since the start."""

    def seconds(self, event: datetime | None) -> float | None:
        """Return the seconds from the start to an event; None if one of them has not happened."""
        return (event - self.started).total_seconds() if event and self.started else None


def config_of(content: bytes | None) -> Mapping[str, str]:
    """Return the configs in the content of a znode."""
    config: Mapping[str, str] = json.loads(content).get("config") or {} if content else {}
    return config


def read_timeline(transactions: Iterable[Transaction]) -> Timeline:
    """Return the timeline of the last reassignment that was started through ZooKeeper.

    Args:
        transactions: all applied transactions of the log, in order.
    """
    replay = _ZnodeReplay()
    for transaction in transactions:
        replay.take(transaction)
    return replay.timeline


@dataclass(slots=True)
class _ZnodeReplay:
    """The state of the znodes after each transaction."""

    timeline: Timeline = field(default_factory=Timeline)
    nodes: dict[str, bytes] = field(default_factory=dict)

    def take(self, transaction: Transaction) -> None:
        for operation in transaction.operations:
            if operation.kind in ("create", "set", "delete"):
                self._apply(operation, transaction.time)
        timeline = self.timeline
        if timeline.started and not timeline.ended and not timeline.throttled and self._is_fully_throttled():
            timeline.throttled = transaction.time
        if timeline.ended and not timeline.clean and not self._is_throttled():
            timeline.clean = transaction.time

    def _apply(self, operation: Operation, time: datetime) -> None:
        path, existed = operation.path, operation.path in self.nodes
        if operation.kind == "delete":
            self.nodes.pop(path, None)
        else:
            self.nodes[path] = operation.data or b""
        if path == _KAFKA.reassign_partitions and operation.kind == "create":
            self.timeline = Timeline(started=time)
        elif path == _KAFKA.reassign_partitions and operation.kind == "delete" and existed:
            self.timeline.ended = time
        elif path == OwnPaths().term and operation.kind == "set":
            self.timeline.leader_changes += 1
        elif _is_config(path):
            self.timeline.writes += 1

    def _is_throttled(self) -> bool:
        return any(config_of(data).keys() & THROTTLE_KEYS for path, data in self.nodes.items() if _is_config(path))

    def _is_fully_throttled(self) -> bool:
        copies = []
        for partition, target in parse_reassignment(self.nodes[_KAFKA.reassign_partitions]).items():
            state = json.loads(self.nodes[_KAFKA.state(*partition)])
            copies.append((partition, state["leader"], state["isr"], set(target) - set(state["isr"])))
        return is_fully_throttled(copies, lambda entity: self._config(ConfigResource(entity)))

    def _config(self, resource: ConfigResource) -> Mapping[str, str]:
        return config_of(self.nodes.get(_KAFKA.config(resource)))


def _is_config(path: str) -> bool:
    return any(path.startswith(f"{_KAFKA.configs}/{kind.value}/") for kind in THROTTLED_TYPES)


def is_fully_throttled(
    copies: Iterable[tuple[TopicPartition, int, Iterable[int], Collection[int]]],
    config: Callable[[str], Mapping[str, str]],
) -> bool:
    """Return whether all throttles of a reassignment are set, with exactly the throttled replicas that it needs.

    Args:
        copies: (partition, leader, ISR, adding replicas that are out of sync) of each partition.
        config: `brokers/1001` or `topics/t` -> its dynamic configs.
    """
    lists: dict[tuple[str, str], set[str]] = defaultdict(set)
    rates: set[tuple[int, str]] = set()
    for (topic, partition), leader, isr, pending in copies:
        if pending:
            lists[topic, LEADER_REPLICAS] |= {f"{partition}:{b}" for b in isr}
            lists[topic, FOLLOWER_REPLICAS] |= {f"{partition}:{b}" for b in pending}
            rates |= {(leader, LEADER_RATE), *((b, FOLLOWER_RATE) for b in pending)}
    return (
        bool(rates)
        and all(key in config(f"brokers/{broker_id}") for broker_id, key in rates)
        and all(
            parse_replicas(config(f"topics/{topic}").get(key, "")) == entries for (topic, key), entries in lists.items()
        )
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """The measurements of a recovery; times in seconds."""

    recovery_seconds: float
    """From the start to the end of the reassignment."""
    ideal_seconds: float
    """Shortest possible recovery: the slowest link side copies at its capacity less the client load."""
    client_bytes: int
    """Bytes that clients offered during the recovery."""
    first_throttle_seconds: float | None
    """From the start until all throttles are set; None: they never were."""
    writes: int
    """Config writes for brokers and topics."""
    cycles: int
    """Cycles that the planners logged from the start to the end."""
    leader_changes: int
    """Terms that began."""
    clean_seconds: float | None
    """From the end of the reassignment until the last throttle is removed; None: a throttle is left."""

    @property
    def recovery_over_ideal(self) -> float:
        """`recovery_seconds / ideal_seconds`, >= 1."""
        return self.recovery_seconds / self.ideal_seconds


def summary(timeline: Timeline, ideal_seconds: float, client_bytes: int, cycles: int) -> Summary:
    """Return the measurements of a recovery that has ended; the parameters are as in `Summary`."""
    recovery, clean = timeline.seconds(timeline.ended), timeline.seconds(timeline.clean)
    assert recovery is not None
    return Summary(
        recovery_seconds=recovery,
        ideal_seconds=ideal_seconds,
        client_bytes=client_bytes,
        first_throttle_seconds=timeline.seconds(timeline.throttled),
        writes=timeline.writes,
        cycles=cycles,
        leader_changes=timeline.leader_changes,
        clean_seconds=None if clean is None else clean - recovery,
    )

"""What a recovery was like, judged from outside: by znodes and by the brokers' counters, never by a planner.

`Observer` looks while it happens; `read_timeline` finds out afterwards from ZooKeeper's transaction log what
was written when; `summary` puts both together. The type to know is `Summary`.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    THROTTLE_KEYS,
    ConfigResource,
    ResourceType,
    parse_replicas,
)
from autothrottle.core.errors import Unavailable
from autothrottle.lab.scenario import parse_reassignment
from autothrottle.lab.zookeeper import Operation, Transaction

_ANSWER_SECONDS = 10.0
"""How long the brokers' counters may take to answer."""


# While it happens


@dataclass(frozen=True, slots=True)
class Sample:
    """One broker that receives, and the move, at one moment."""

    throttle: int | None
    """Its follower throttle, bytes/s; None: none stands."""
    client_rate: float
    """What clients sent to it since the last sample, bytes/s."""
    copy_rate: float
    """What it copied from others since the last sample, bytes/s."""
    bytes_left: int
    """What all replicas of the reassignment have still to copy."""


class Observer:
    """Reads a simulated cluster's znodes and counters, and writes nothing."""

    def __init__(self, client: KazooClient, counters_url: str, broker_id: int) -> None:
        """Look through a connected client and `GET /counters`; `broker_id` is the broker to be sampled."""
        self._client, self._counters_url, self._broker_id = client, counters_url, broker_id
        self._kafka = KafkaPaths()
        self._last: tuple[float, int, int] | None = None

    def counters(self) -> dict[str, Any]:
        """Return what the brokers have counted so far: `SimulatedKafka.counters`.

        Raises:
            Unavailable: they do not answer.
        """
        try:
            with urllib.request.urlopen(f"{self._counters_url}/counters", timeout=_ANSWER_SECONDS) as answer:
                found: dict[str, Any] = json.load(answer)
        except OSError as error:
            raise Unavailable(f"the brokers' counters at {self._counters_url} do not answer: {error}") from error
        return found

    def sample(self) -> Sample:
        """Return how it stands, with rates since the last call."""
        counters = self.counters()
        broker = counters["brokers"][str(self._broker_id)]
        now = counters["virtual_seconds"], broker["rx"] - broker["replication_in"], broker["replication_in"]
        before, self._last = self._last or now, now
        seconds = max(now[0] - before[0], 1e-9)
        return Sample(
            throttle=self.throttle(),
            client_rate=(now[1] - before[1]) / seconds,
            copy_rate=(now[2] - before[2]) / seconds,
            bytes_left=counters["bytes_left"],
        )

    def throttle(self) -> int | None:
        """Return the follower throttle of the broker that is sampled; None: none stands."""
        value = self._config(ConfigResource.broker(self._broker_id)).get(FOLLOWER_RATE)
        return None if value is None else int(value)

    def is_moving(self) -> bool:
        """Return whether the reassignment is still under way."""
        return self._client.exists(self._kafka.reassign_partitions) is not None

    def throttled(self) -> tuple[ConfigResource, ...]:
        """Return the brokers and topics on which any throttle, or list of throttled replicas, stands."""
        return tuple(
            resource
            for kind in ResourceType
            for name in sorted(self._client.get_children(f"{self._kafka.configs}/{kind.value}"))
            if self._config(resource := ConfigResource(f"{kind.value}/{name}")).keys() & THROTTLE_KEYS
        )

    def leader_address(self) -> str:
        """Return where the planner that leads answers; "" before the first term."""
        return read_leader_address(self._client)

    def _config(self, resource: ConfigResource) -> Mapping[str, str]:
        try:
            return _config_of(self._client.get(self._kafka.config(resource))[0])
        except NoNodeError:
            return {}


def _config_of(content: bytes | None) -> Mapping[str, str]:
    config: Mapping[str, str] = json.loads(content).get("config") or {} if content else {}
    return config


def read_leader_address(client: KazooClient) -> str:
    """Return where the planner that leads answers; "" before the first term."""
    try:
        content, _ = client.get(OwnPaths().term)
    except NoNodeError:
        return ""
    return str(json.loads(content)["address"]) if content else ""


# Afterwards


@dataclass(slots=True)
class Timeline:
    """When a reassignment and what belongs to it stood in ZooKeeper, by the server's own clock and order."""

    started: datetime | None = None
    """/admin/reassign_partitions was created."""
    throttled: datetime | None = None
    """All rates and lists of the move stood for the first time: lists with these entries and no others."""
    ended: datetime | None = None
    """/admin/reassign_partitions was deleted."""
    clean: datetime | None = None
    """The last throttle was gone after the end."""
    writes: int = 0
    """Configs of brokers and topics that were written since the start."""
    leader_changes: int = 0
    """Terms that began since the start."""

    def seconds(self, moment: datetime | None) -> float | None:
        """Return the time from the start to a moment; None when either has not come."""
        return (moment - self.started).total_seconds() if moment and self.started else None


def read_timeline(transactions: Iterable[Transaction]) -> Timeline:
    """Return the timeline of the last reassignment that was started through ZooKeeper.

    Args:
        transactions: all that were applied, in order, from the first one on.
    """
    replay = _Replay()
    for transaction in transactions:
        replay.take(transaction)
    return replay.timeline


@dataclass(slots=True)
class _Replay:
    """The nodes as they were after each transaction."""

    timeline: Timeline = field(default_factory=Timeline)
    nodes: dict[str, bytes] = field(default_factory=dict)
    throttled: set[str] = field(default_factory=set)
    """Paths of the configs with any throttle."""
    kafka: KafkaPaths = field(default_factory=KafkaPaths)
    own: OwnPaths = field(default_factory=OwnPaths)

    def take(self, transaction: Transaction) -> None:
        for operation in transaction.operations:
            if operation.kind in ("create", "set", "delete"):
                self._note(operation, transaction.time)
        timeline = self.timeline
        if timeline.started and not timeline.ended and not timeline.throttled and self._stands():
            timeline.throttled = transaction.time
        if timeline.ended and not timeline.clean and not self.throttled:
            timeline.clean = transaction.time

    def _note(self, operation: Operation, time: datetime) -> None:
        path, existed = operation.path, operation.path in self.nodes
        if operation.kind == "delete":
            self.nodes.pop(path, None)
        else:
            self.nodes[path] = operation.data or b""
        if path == self.kafka.reassign_partitions and operation.kind == "create":
            self.timeline = Timeline(started=time)
        elif path == self.kafka.reassign_partitions and operation.kind == "delete" and existed:
            self.timeline.ended = time
        elif path == self.own.term and operation.kind == "set":
            self.timeline.leader_changes += 1
        elif self._is_config(path):
            self.timeline.writes += 1
            self._note_config(path)

    def _is_config(self, path: str) -> bool:
        return any(path.startswith(f"{self.kafka.configs}/{kind.value}/") for kind in ResourceType)

    def _note_config(self, path: str) -> None:
        if _config_of(self.nodes.get(path)).keys() & THROTTLE_KEYS:
            self.throttled.add(path)
        else:
            self.throttled.discard(path)

    def _stands(self) -> bool:
        """Whether every rate and list of the move stands."""
        lists: dict[tuple[str, str], set[str]] = {}
        rates: set[tuple[int, str]] = set()
        for (topic, partition), target in self._moves().items():
            state = json.loads(self.nodes[self.kafka.state(topic, partition)])
            pending = set(target) - set(state["isr"])
            if pending:
                lists.setdefault((topic, LEADER_REPLICAS), set()).update(f"{partition}:{b}" for b in state["isr"])
                lists.setdefault((topic, FOLLOWER_REPLICAS), set()).update(f"{partition}:{b}" for b in pending)
                rates |= {(state["leader"], LEADER_RATE), *((b, FOLLOWER_RATE) for b in pending)}
        return all(
            parse_replicas(self._config(ConfigResource.topic(topic)).get(key, "")) == entries
            for (topic, key), entries in lists.items()
        ) and all(key in self._config(ConfigResource.broker(broker_id)) for broker_id, key in rates)

    def _moves(self) -> Mapping[tuple[str, int], tuple[int, ...]]:
        return parse_reassignment(self.nodes[self.kafka.reassign_partitions])

    def _config(self, resource: ConfigResource) -> Mapping[str, str]:
        return _config_of(self.nodes.get(self.kafka.config(resource)))


@dataclass(frozen=True, slots=True)
class Summary:
    """A recovery in numbers; times in seconds."""

    recovery_seconds: float
    """From the reassignment's node created to its node deleted."""
    ideal_seconds: float
    """What the slowest port takes with all of capacity minus client load."""
    client_bytes: int
    """What clients wanted to be carried meanwhile, by all brokers, both directions."""
    client_bytes_deferred: int
    """What of that had to wait."""
    first_throttle_seconds: float | None
    """From the reassignment's node created to all rates and lists standing; None: they never did."""
    writes: int
    """Configs of brokers and topics that were written."""
    cycles: int
    """Cycles that the planners logged from the start to the end."""
    leader_changes: int
    """Terms that began."""
    clean_seconds: float | None
    """From the reassignment's end to no throttle left; None: one is left."""

    @property
    def recovery_over_ideal(self) -> float:
        """How much longer than at best it took; at least 1."""
        return self.recovery_seconds / self.ideal_seconds

    @property
    def deferred_percent(self) -> float:
        """Share of the clients' bytes that had to wait, in percent."""
        return 100 * self.client_bytes_deferred / self.client_bytes

    def document(self) -> dict[str, Any]:
        """Return it as a JSON object, with the two ratios."""
        names = [*self.__dataclass_fields__, "recovery_over_ideal", "deferred_percent"]
        values = {name: getattr(self, name) for name in names}
        return {name: round(v, 4) if isinstance(v, float) else v for name, v in values.items()}


def summary(timeline: Timeline, before: Mapping[str, Any], after: Mapping[str, Any], cycles: int) -> Summary:
    """Return the numbers of a recovery that has ended.

    Args:
        timeline: of the reassignment.
        before: the brokers' counters at its start.
        after: the brokers' counters at its end.
        cycles: how many the planners logged.
    """
    assert timeline.started is not None
    assert timeline.ended is not None
    throttled, clean = timeline.seconds(timeline.throttled), timeline.seconds(timeline.clean)
    recovery = (timeline.ended - timeline.started).total_seconds()
    return Summary(
        recovery_seconds=recovery,
        ideal_seconds=after["ideal_seconds"],
        client_bytes=_total(after, "client_offered") - _total(before, "client_offered"),
        client_bytes_deferred=_total(after, "client_deferred") - _total(before, "client_deferred"),
        first_throttle_seconds=throttled,
        writes=timeline.writes,
        cycles=cycles,
        leader_changes=timeline.leader_changes,
        clean_seconds=None if clean is None else clean - recovery,
    )


def _total(counters: Mapping[str, Any], name: str) -> int:
    return sum(broker[name] for broker in counters["brokers"].values())

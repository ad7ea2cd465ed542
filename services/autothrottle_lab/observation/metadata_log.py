"""A reader of a KRaft controller's metadata log, which has all changes in commit order.

It yields changes of partitions, configs (including sensitive ones) and broker sessions, each with the offset and time
of its record. A write that changes nothing is a record, too. For clusters in ZooKeeper mode, use
`ZooKeeperServer.transactions`. The type to know is `MetadataLog`.

The lab has one controller, so a record in its log is committed within a few milliseconds.

Source: DefaultRecordBatch, MetadataRecordSerde and metadata/src/main/resources/common/metadata of Kafka 3.9 and 4.x.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle_lab.servers.kafka import DEFAULT, Partition, PartitionState


@dataclass(frozen=True, slots=True)
class ConfigWritten:
    """A dynamic config was set or deleted."""

    entity: str
    """`brokers/1001`, `brokers/<default>` or `topics/t`."""
    key: str
    value: str | None
    """None: deleted."""


@dataclass(frozen=True, slots=True)
class PartitionWritten:
    """A partition was created or changed."""

    partition: Partition
    state: PartitionState
    """The complete new state."""


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic was deleted, with its partitions and configs."""

    topic: str


@dataclass(frozen=True, slots=True)
class BrokerFenced:
    """A broker was fenced or unfenced."""

    broker_id: int
    fenced: bool
    """True: the broker is registered but not yet active, has lost its session, or is shutting down."""


Change = ConfigWritten | PartitionWritten | TopicDeleted | BrokerFenced


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """One change and its position in the log."""

    offset: int
    time: datetime
    """The controller's clock when it prepared the record."""
    change: Change


_UNREGISTER_BROKER, _TOPIC, _PARTITION, _CONFIG, _PARTITION_CHANGE, _REMOVE_TOPIC = 1, 2, 3, 4, 5, 9
_REGISTER_BROKER, _BROKER_CHANGE = 0, 17
"""Record types; this reader ignores all others."""

_ISR, _LEADER, _REPLICAS, _REMOVING, _ADDING = 0, 1, 2, 3, 4
"""Tags of the fields of a changed partition."""

_FENCED, _SHUTTING_DOWN = 0, 1
"""Tags of the fields of a changed broker."""

_KINDS = {2: "topics", 4: "brokers"}
"""Types of config resources; this reader ignores all others."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class MetadataState:
    """The state of a cluster after some changes."""

    partitions: dict[Partition, PartitionState] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """`brokers/1001`, `brokers/<default>` or `topics/t` -> its dynamic configs."""
    fenced: dict[int, bool] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        match change:
            case PartitionWritten(partition, state):
                self.partitions[partition] = state
            case BrokerFenced(broker_id, fenced):
                self.fenced[broker_id] = fenced
            case TopicDeleted(topic):
                self.configs.pop(f"topics/{topic}", None)
                self.partitions = {p: state for p, state in self.partitions.items() if p[0] != topic}
            case ConfigWritten(entity, key, None):
                self.configs[entity].pop(key, None)
            case ConfigWritten(entity, key, str(value)):
                self.configs[entity][key] = value


class MetadataLog:
    """The log of one controller; each call reads the new records first. It is thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Prepare to read the segments in `directory`, which may not exist before the controller starts."""
        self._directory = directory
        self._lock = threading.Lock()
        self._read_up_to: dict[Path, int] = {}
        self._records: list[MetadataRecord] = []
        self._topics: dict[uuid.UUID, str] = {}
        self._state = MetadataState()

    def records(self, after_offset: int = -1) -> list[MetadataRecord]:
        """Return the records after an offset, in the order of their commits."""
        with self._lock:
            self._catch_up()
            return [record for record in self._records if record.offset > after_offset]

    def last_offset(self) -> int:
        """Return the offset of the last record; -1: the log is empty."""
        with self._lock:
            self._catch_up()
            return self._records[-1].offset if self._records else -1

    def partitions(self) -> dict[Partition, PartitionState]:
        """Return the state of every partition."""
        with self._lock:
            self._catch_up()
            return dict(self._state.partitions)

    def configs(self) -> dict[str, dict[str, str]]:
        """Return the dynamic configs of every broker and topic that has any, sorted by name."""
        with self._lock:
            self._catch_up()
            return {entity: dict(config) for entity, config in sorted(self._state.configs.items()) if config}

    def brokers(self) -> set[int]:
        """Return the ids of all unfenced brokers."""
        with self._lock:
            self._catch_up()
            return {broker_id for broker_id, fenced in self._state.fenced.items() if not fenced}

    def _catch_up(self) -> None:
        for path in sorted(self._directory.glob("*.log")):
            start = self._read_up_to.get(path, 0)
            with path.open("rb") as segment:
                segment.seek(start)
                content = segment.read()
            batches = kafka.record.MemoryRecords(content)
            self._read_up_to[path] = start + batches.valid_bytes()
            for record in chain.from_iterable(batch for batch in batches if not batch.is_control_batch):
                time = _EPOCH + timedelta(milliseconds=record.timestamp)
                for change in self._changes(_Message(record.value)):
                    self._state.apply(change)
                    self._records.append(MetadataRecord(record.offset, time, change))

    def _changes(self, message: _Message) -> Iterator[Change]:
        """Yield the change of a record: one, or none."""
        message.unsigned()  # version of the frame
        kind = message.unsigned()
        message.unsigned()  # version of the record
        if kind == _CONFIG:
            yield from _config_written(message)
        elif kind == _TOPIC:
            name = message.string() or ""
            self._topics[message.uuid()] = name
        elif kind == _PARTITION:
            yield self._partition_created(message)
        elif kind == _PARTITION_CHANGE:
            yield self._partition_changed(message)
        elif kind == _REMOVE_TOPIC:
            yield TopicDeleted(self._topics.pop(message.uuid()))
        elif kind in (_REGISTER_BROKER, _UNREGISTER_BROKER):
            yield BrokerFenced(message.int32(), fenced=True)
        elif kind == _BROKER_CHANGE:
            yield from _broker_changed(message)

    def _partition_created(self, message: _Message) -> PartitionWritten:
        number, topic = message.int32(), self._topics[message.uuid()]
        replicas, isr = message.int32s(), message.int32s()
        removing, adding = message.int32s(), message.int32s()
        return PartitionWritten((topic, number), PartitionState(replicas, adding, removing, message.int32(), isr))

    def _partition_changed(self, message: _Message) -> PartitionWritten:
        number, topic = message.int32(), self._topics[message.uuid()]
        state = self._state.partitions[topic, number]
        for tag, value in message.tagged():
            if tag == _LEADER:
                state = replace(state, leader=value.int32())
            elif tag == _ISR:
                state = replace(state, isr=value.int32s())
            elif tag == _REPLICAS:
                state = replace(state, replicas=value.int32s())
            elif tag == _REMOVING:
                state = replace(state, removing_replicas=value.int32s())
            elif tag == _ADDING:
                state = replace(state, adding_replicas=value.int32s())
        return PartitionWritten((topic, number), state)


def _config_written(message: _Message) -> Iterator[ConfigWritten]:
    kind, name, key, value = message.int8(), message.string(), message.string(), message.string()
    if kind in _KINDS and key is not None:
        yield ConfigWritten(f"{_KINDS[kind]}/{name or DEFAULT}", key, value)


def _broker_changed(message: _Message) -> Iterator[BrokerFenced]:
    broker_id = message.int32()
    message.take(8)  # the broker's epoch
    for tag, value in message.tagged():
        # 1: fenced, or in controlled shutdown; -1: unfenced; 0: unchanged.
        if tag in (_FENCED, _SHUTTING_DOWN) and (change := value.int8()):
            yield BrokerFenced(broker_id, fenced=change > 0)


class _Message:
    """A reader of Kafka's flexible binary encoding: lengths are varints, stored plus one."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, length: int) -> bytes:
        self._at += length
        return self._content[self._at - length : self._at]

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._content[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def int8(self) -> int:
        return int.from_bytes(self.take(1), signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def int32s(self) -> tuple[int, ...]:
        """An array; null reads as empty."""
        return tuple(self.int32() for _ in range(self.unsigned() - 1))

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.take(16))

    def string(self) -> str | None:
        length = self.unsigned() - 1
        return None if length < 0 else self.take(length).decode()

    def tagged(self) -> Iterator[tuple[int, _Message]]:
        """Yield (tag, value) of the tagged fields, which are present only if they differ from their defaults."""
        for _ in range(self.unsigned()):
            tag = self.unsigned()
            yield tag, _Message(self.take(self.unsigned()))

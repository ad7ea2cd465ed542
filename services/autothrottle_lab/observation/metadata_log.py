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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

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

_FENCED, _SHUTTING_DOWN = 0, 1
"""Tags of the fields of a changed broker."""

_KINDS = {2: "topics", 4: "brokers"}
"""Types of config resources; this reader ignores all others."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_codecs = kafka.protocol.schemas.fields.codecs
_unsigned, _int32, _uuid = _codecs.UnsignedVarInt32.decode, _codecs.Int32.decode, _codecs.UUID.decode


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
                for change in self._changes(BytesIO(record.value)):
                    self._state.apply(change)
                    self._records.append(MetadataRecord(record.offset, time, change))

    def _changes(self, message: BytesIO) -> Iterator[Change]:
        """Yield the change of a record: one, or none."""
        _unsigned(message)  # version of the frame
        kind = _unsigned(message)
        _unsigned(message)  # version of the record
        if kind == _CONFIG:
            yield from _config_written(message)
        elif kind == _TOPIC:
            name = _string(message) or ""
            self._topics[_uuid(message)] = name
        elif kind == _PARTITION:
            number, topic = _int32(message), self._topics[_uuid(message)]
            replicas, isr, removing, adding = (_int32s(message) for _ in range(4))
            yield PartitionWritten((topic, number), PartitionState(replicas, adding, removing, _int32(message), isr))
        elif kind == _PARTITION_CHANGE:
            number, topic = _int32(message), self._topics[_uuid(message)]
            changed = {_FIELDS[tag][0]: _FIELDS[tag][1](value) for tag, value in _tagged(message) if tag in _FIELDS}
            yield PartitionWritten((topic, number), replace(self._state.partitions[topic, number], **changed))
        elif kind == _REMOVE_TOPIC:
            yield TopicDeleted(self._topics.pop(_uuid(message)))
        elif kind in (_REGISTER_BROKER, _UNREGISTER_BROKER):
            yield BrokerFenced(_int32(message), fenced=True)
        elif kind == _BROKER_CHANGE:
            yield from _broker_changed(message)


def _config_written(message: BytesIO) -> Iterator[ConfigWritten]:
    kind, name, key, value = _codecs.Int8.decode(message), _string(message), _string(message), _string(message)
    if kind in _KINDS and key is not None:
        yield ConfigWritten(f"{_KINDS[kind]}/{name or DEFAULT}", key, value)


def _broker_changed(message: BytesIO) -> Iterator[BrokerFenced]:
    broker_id = _int32(message)
    _codecs.Int64.decode(message)  # the broker's epoch
    for tag, value in _tagged(message):
        # 1: fenced, or in controlled shutdown; -1: unfenced; 0: unchanged.
        if tag in (_FENCED, _SHUTTING_DOWN) and (change := _codecs.Int8.decode(value)):
            yield BrokerFenced(broker_id, fenced=change > 0)


# Kafka's flexible binary encoding: lengths are varints, stored plus one


def _int32s(message: BytesIO) -> tuple[int, ...]:
    """Read an array; null reads as empty."""
    return tuple(_int32(message) for _ in range(_unsigned(message) - 1))


def _string(message: BytesIO) -> str | None:
    text: str | None = _codecs.String().decode(message, compact=True)
    return text


def _tagged(message: BytesIO) -> Iterator[tuple[int, BytesIO]]:
    """Yield (tag, value) of the tagged fields, which are present only if they differ from their defaults."""
    for _ in range(_unsigned(message)):
        tag = _unsigned(message)
        yield tag, BytesIO(message.read(_unsigned(message)))


_FIELDS: Mapping[int, tuple[str, Callable[[BytesIO], Any]]] = {
    0: ("isr", _int32s),
    1: ("leader", _int32),
    2: ("replicas", _int32s),
    3: ("removing_replicas", _int32s),
    4: ("adding_replicas", _int32s),
}
"""Tag of a field of a changed partition -> the field of its state, and how to read it."""

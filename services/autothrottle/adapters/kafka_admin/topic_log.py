"""One partition of a topic: appended to with acks=all, and read up to the high watermark. The type is `TopicLog`.

Reads and appends have separate connections: a broker answers the requests of a connection in order, and a read waits at
the broker for new records. The partition is read by the topic's id, so that a topic of the same name that was created
again is never taken for its predecessor.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from autothrottle.adapters.concurrency.subscriptions import seconds_left, time_left
from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.errors import code_error
from autothrottle.adapters.kafka_admin.routing import Build, Routing
from autothrottle.adapters.kafka_admin.values import Answers, KafkaSettings
from autothrottle.adapters.kafka_state.topic import (
    MIN_IN_SYNC,
    REPLICAS,
    OutOfLog,
    Records,
    TopicRecord,
    repaired_replicas,
)
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable

T = TypeVar("T")

_PATIENCE_SECONDS = 0.1
"""How late an answer of the leader may be before other brokers are asked whether it still leads."""
_LOOK_UP_SECONDS = 0.5
_PROBE = timedelta(seconds=1)
"""How long a broker may take to show that it lives."""
_CANDIDATES = 5
"""How many brokers are asked at most when a replica is to be added."""
_READ_BYTES = 8_000_000
_UNCOMPRESSED, _GZIP, _MAGIC = 0, 1, 2
_MAX_BATCH_BYTES = 64_000_000
_EARLIEST = -2
_SEGMENT_BYTES = 16 << 20
"""Kafka deletes whole segments only, so this bounds the disk space of deleted records."""

_MIN_ISR = "min.insync.replicas"
_OPERATIONS = ("Describe", "DescribeConfigs", "Read", "Write", "Delete")
"""Of the ACLs that each process needs on an existing topic."""

_MOVED = frozenset({"NotLeaderForPartitionError", "FencedLeaderEpochError", "UnknownLeaderEpochError"})
_GONE = frozenset({"OffsetOutOfRangeError", "UnknownTopicIdError", "InconsistentTopicIdError"})


class _Partition(NamedTuple):
    topic_id: Any
    leader: int
    replicas: int
    """The replication factor."""


class TopicLog:
    """A `Topic` in Kafka 3.1 or later. Thread-safe; reads and appends do not wait for one another."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Prepare; this sends nothing."""
        self.name, self._servers = topic, ",".join(settings.bootstrap_servers)
        self._reads = Routing(settings.bootstrap_servers, settings.login, settings.request_timeout)
        self._appends = Routing(settings.bootstrap_servers, settings.login, settings.request_timeout)
        self._admin = KafkaAdmin(settings)
        """Has connections of its own, since an answer waits for those to earlier requests of its connection."""
        self.summary = ""
        """What `fetch_missing_permissions` has seen, if that was no problem."""
        self._partition: _Partition | None = None
        """Guarded by nothing: a stale value costs one request."""

    def close(self) -> None:
        self._reads.close()
        self._appends.close()
        self._admin.close()

    def append(self, values: Sequence[bytes], deadline: float) -> None:
        builder = kafka.record.MemoryRecordsBuilder(_MAGIC, _GZIP, _MAX_BATCH_BYTES)
        milliseconds = time.time_ns() // 1_000_000
        for value in values:
            builder.append(milliseconds, None, value)
        builder.close()
        records = builder.buffer()

        def build() -> Any:
            kind = kafka.protocol.producer.ProduceRequest
            data = kind.TopicProduceData
            partition = data.PartitionProduceData(index=0, records=records)
            return kind(
                acks=-1,
                timeout_ms=_milliseconds(deadline),
                topic_data=[data(name=self.name, partition_data=[partition])],
                max_version=12,
            )

        response = self._ask_leader(self._appends, build, deadline)
        self._check(response.responses[0].partition_responses[0])

    def read(self, topic_id: str, offset: int, wait: float, deadline: float) -> Records:
        partition = self._located(self._reads, deadline)
        if str(partition.topic_id) != topic_id:
            raise OutOfLog(f"topic {self.name} was deleted and created again")

        def build() -> Any:
            kind = kafka.protocol.consumer.FetchRequest
            topic = kind.FetchTopic
            part = topic.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=_READ_BYTES)
            return kind(
                max_wait_ms=int(wait * 1000),
                min_bytes=1,
                max_bytes=_READ_BYTES,
                topics=[topic(topic_id=partition.topic_id, partitions=[part])],
                min_version=13,
            )

        response = self._ask_leader(self._reads, build, deadline, wait)
        self._check_code(response.error_code, None)
        result = response.responses[0].partitions[0]
        self._check(result)
        batches = list(kafka.record.MemoryRecords(result.records or b""))
        records = [
            record
            for batch in batches  # control batches, too: without them, their offsets would look compacted
            for record in _records(batch)
            if record.offset >= offset
        ]
        following = batches[-1].last_offset + 1 if batches else offset
        return Records(records, following, result.log_start_offset)

    def locate(self, deadline: float) -> tuple[str, int]:
        self._partition = None
        partition = self._located(self._reads, deadline)

        def build() -> Any:
            kind = kafka.protocol.consumer.ListOffsetsRequest
            topic = kind.ListOffsetsTopic
            part = topic.ListOffsetsPartition(partition_index=0, timestamp=_EARLIEST)
            return kind(replica_id=-1, isolation_level=0, topics=[topic(name=self.name, partitions=[part])])

        result = self._ask_leader(self._reads, build, deadline).topics[0].partitions[0]
        self._check(result)
        return str(partition.topic_id), result.offset

    def create(self, deadline: float, validate_only: bool = False) -> None:
        brokers = len(self._appends.metadata(deadline).brokers)
        replicas = min(REPLICAS, brokers)
        configs = {
            **_SETTINGS,
            "segment.bytes": str(_SEGMENT_BYTES),
            _MIN_ISR: str(_least_in_sync(replicas)),
        }

        def build() -> Any:
            kind = kafka.protocol.admin.CreateTopicsRequest
            topic = kind.CreatableTopic
            entries = [topic.CreatableTopicConfig(name=name, value=value) for name, value in configs.items()]
            creatable = topic(
                name=self.name, num_partitions=1, replication_factor=replicas, assignments=[], configs=entries
            )
            return kind(topics=[creatable], timeout_ms=_milliseconds(deadline), validate_only=validate_only)

        answer = self._appends.ask_any(build, deadline, again=False).topics[0]
        if answer.error_code and answer.error_code != kafka.errors.TopicAlreadyExistsError.errno:
            error = code_error(answer.error_code, answer.error_message, f"topic {self.name}")
            if not isinstance(error, Unavailable):
                raise Invalid(f"{error}. Or create the topic yourself: {self._creation(replicas, configs)}")
            raise error

    def _creation(self, replicas: int, configs: Mapping[str, str]) -> str:
        options = " ".join(f"--config {name}={value}" for name, value in configs.items())
        return (
            f"kafka-topics.sh --bootstrap-server {self._servers} --create --topic {self.name} --partitions 1 "
            f"--replication-factor {replicas} {options}"
        )

    def risks(self, deadline: float) -> Mapping[str, str]:
        partition = self._located(self._appends, deadline)
        values = self._configs([*_SETTINGS, _MIN_ISR], deadline)
        wrong = {
            key: required
            for key, required in _SETTINGS.items()
            if values.get(key, required) != required and (key, values[key]) not in _ALSO_SAFE
        }
        least = _least_in_sync(partition.replicas)
        if int(values.get(_MIN_ISR) or least) < least:
            wrong[_MIN_ISR] = str(least)
        return {
            key: f"topic {self.name} has {key}={values[key]}, so records of our state could be lost or unreadable; "
            f"it must be {required}. Fix: kafka-configs.sh --bootstrap-server {self._servers} --alter "
            f"--entity-type topics --entity-name {self.name} --add-config {key}={required}"
            for key, required in wrong.items()
        }

    def repair_replicas(self, deadline: float, is_stuck: bool) -> str:
        replicas, isr = _value(self._admin.partitions([self.name], timeout=_PROBE), self.name)[0][1:]
        if not (is_stuck if len(replicas) == REPLICAS else self._lacks_replica(replicas, deadline)):
            return ""
        candidates = self._candidates(replicas, deadline)
        # The metadata also lists brokers that just died. A refusal is an answer.
        failures = self._admin.broker_configs([*replicas, *candidates], timeout=_PROBE).failures
        silent_brokers = [b for b, failure in failures.items() if isinstance(failure, Unavailable)]
        new_replicas = repaired_replicas(replicas, isr, silent_brokers, candidates)
        if new_replicas == replicas:
            return ""
        for refusal in self._admin.alter_reassignments({(self.name, 0): new_replicas}, until=deadline).values():
            raise refusal
        self._partition = None
        lost_broker = next((b for b in replicas if b in silent_brokers), None)
        cause = "so that it has three again" if lost_broker is None else f"because broker {lost_broker} does not answer"
        change = f"from {_listed(replicas)} to {_listed(new_replicas)}"
        return f"changed the replicas of topic {self.name} {change}, {cause}"

    def _lacks_replica(self, replicas: Sequence[int], deadline: float) -> bool:
        """Whether a repair has left two replicas. Both must be in sync, so the loss of either would stop the topic."""
        return len(replicas) == MIN_IN_SYNC and self._configs([_MIN_ISR], deadline).get(_MIN_ISR) == str(MIN_IN_SYNC)

    def _candidates(self, replicas: Sequence[int], deadline: float) -> Sequence[int]:
        """Return a few other brokers, those of racks without a replica first."""
        racks = self._admin.racks(timeout=time_left(deadline))
        used_racks = {racks.get(b) for b in replicas}
        return sorted(racks.keys() - {*replicas}, key=lambda b: (racks[b] in used_racks, b))[:_CANDIDATES]

    def fetch_missing_permissions(self, timeout: timedelta) -> Mapping[str, str]:
        """Return what this client may not do, and what endangers the records. The class is a `PermissionSource`.

        Nothing is written. If the topic does not exist, Kafka says whether this client may create it.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        subject = f"topic {self.name}"
        _, topics = self._admin.permitted_operations(timeout=timeout)
        if self.name not in topics.values:
            try:
                self.create(deadline, validate_only=True)
            except Invalid as error:
                return {subject: str(error)}
            self.summary = f"topic {self.name} does not exist; the first start creates it"
            return {}
        if denied := [name for name in _OPERATIONS if name not in topics.values[self.name]]:
            options = " ".join(f"--operation {name}" for name in denied)
            return {
                subject: f"this client may not {', '.join(denied)}. Fix: kafka-acls.sh --add "
                f"--allow-principal User:... {options} --topic {self.name}, see docs/security.md"
            }
        self.summary = f"topic {self.name} exists, with safe settings; this client has the permissions that it needs"
        return {f"{subject}, {key}": risk for key, risk in self.risks(deadline).items()}

    def delete_before(self, offset: int, deadline: float) -> None:
        def build() -> Any:
            kind = kafka.protocol.admin.DeleteRecordsRequest
            topic = kind.DeleteRecordsTopic
            part = topic.DeleteRecordsPartition(partition_index=0, offset=offset)
            return kind(topics=[topic(name=self.name, partitions=[part])], timeout_ms=_milliseconds(deadline))

        self._check(self._ask_leader(self._appends, build, deadline).topics[0].partitions[0])

    # Internals

    def _configs(self, keys: Collection[str], deadline: float) -> Mapping[str, str]:
        """Return setting -> its value; absent: this version of Kafka lacks it."""
        configs = _value(self._admin.topic_configs([self.name], keys, timeout=time_left(deadline)), self.name)
        return {key: value.value or "" for key, value in configs.items()}

    def _located(self, routing: Routing, deadline: float) -> _Partition:
        """Return where the partition is, by the last metadata."""
        if self._partition is None:
            topic = routing.ask_any(partial(messages.describe_topics, [self.name]), deadline).topics[0]
            self._check_code(topic.error_code, None)
            if len(topic.partitions) != 1:
                raise Invalid(
                    f"topic {self.name} has {len(topic.partitions)} partitions and must have 1, whose order all "
                    "processes share. Fix: choose another name with state-topic"
                )
            partition = topic.partitions[0]
            if partition.leader_id < 0:
                raise Unavailable(f"topic {self.name} has no leader now; autothrottle tries again")
            self._partition = _Partition(topic.topic_id, partition.leader_id, len(partition.replica_nodes))
        return self._partition

    def _ask_leader(self, routing: Routing, build: Build, deadline: float, wait: float = 0.0) -> Any:
        """Return the response of the leader. A frozen one must not use up the time of the next one.

        Args:
            routing: for reads or for appends.
            build: the request.
            deadline: on the monotonic clock.
            wait: how long the leader may wait for records before it answers, seconds.
        """
        leader, patience_ends = self._located(routing, deadline).leader, time.monotonic() + wait + _PATIENCE_SECONDS

        def has_moved() -> bool:
            if (located := self._partition) is not None and located.leader != leader:
                return True
            return time.monotonic() > patience_ends and self._leader(routing) not in (leader, None)

        answer = routing.each({leader: build}, deadline, again=False, is_over=has_moved)[leader]
        if isinstance(answer, AutothrottleError):
            self._partition = None
            raise answer
        return answer

    def _leader(self, routing: Routing) -> int | None:
        """Return the broker that leads now; None: no broker leads, or none could be asked."""
        try:
            build = partial(messages.describe_topics, [self.name])
            topic = routing.ask_any(build, time.monotonic() + _LOOK_UP_SECONDS).topics[0]
        except AutothrottleError:
            return None
        return next((p.leader_id for p in topic.partitions if p.leader_id >= 0), None)

    def _check(self, result: Any) -> None:
        self._check_code(result.error_code, getattr(result, "error_message", None))

    def _check_code(self, code: int, message: str | None) -> None:
        if not code:
            return
        self._partition = None
        name = kafka.errors.for_code(code).__name__
        if name in _GONE:
            raise OutOfLog(f"topic {self.name}: {name}")
        if name in _MOVED:
            raise Unavailable(f"another broker leads topic {self.name} now; autothrottle asks it")
        if "Authorization" in name:
            raise Invalid(
                f"topic {self.name}: Kafka denies access to it ({name}). Fix: allow {', '.join(_OPERATIONS)} on it, "
                "and Create before the first start, see docs/security.md"
            )
        raise code_error(code, message, f"topic {self.name}")


_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "compression.type": "gzip",
}
"""Without them Kafka deletes records that we still need, or compresses them in a codec that we cannot read."""


_ALSO_SAFE = {("compression.type", "producer"), ("compression.type", "uncompressed")}
"""Other values that lose no record. A topic that an operator created may have them."""


def _records(batch: Any) -> Iterable[TopicRecord]:
    """Return the records of a batch; empty ones instead of those in a codec that is not read.

    The codec decides alone, so that all processes read the same, whichever libraries they have.
    """
    if batch.compression_type in (_UNCOMPRESSED, _GZIP):
        return (TopicRecord(record.offset, record.timestamp, record.value or b"") for record in batch)
    return (TopicRecord(offset, 0, b"") for offset in range(batch.base_offset, batch.last_offset + 1))


def _value(answers: Answers[str, T], topic: str) -> T:
    """Return the value of the topic, or raise its failure."""
    if topic in answers.failures:
        raise answers.failures[topic]
    return answers.values[topic]


def _listed(broker_ids: Sequence[int]) -> str:
    return ", ".join(map(str, broker_ids))


def _least_in_sync(replicas: int) -> int:
    return MIN_IN_SYNC if replicas >= REPLICAS else 1


def _milliseconds(deadline: float) -> int:
    return max(1, int(seconds_left(deadline) * 1000))

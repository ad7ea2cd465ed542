"""One partition of a topic: appended to with acks=all, and read up to the high watermark. The type is `TopicLog`.

Reads and appends have separate connections: a broker answers the requests of a connection in order, and a read waits at
the broker for new records. The partition is read by the topic's id, so that a topic of the same name that was created
again is never taken for its predecessor.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from autothrottle.adapters.concurrency.subscriptions import seconds_left, time_left
from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import own_quota_problems
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.errors import code_error
from autothrottle.adapters.kafka_admin.placement import CORDON_KEYS, is_cordoned
from autothrottle.adapters.kafka_admin.record_batches import DAMAGED, checked, end_of_broken_batch
from autothrottle.adapters.kafka_admin.routing import Build, Routing
from autothrottle.adapters.kafka_admin.values import Answers, KafkaSettings, PartitionMetadata
from autothrottle.adapters.kafka_state.topic import (
    MIN_IN_SYNC,
    REPLICAS,
    UNCLEAN_ELECTIONS,
    LostTail,
    OutOfLog,
    Records,
    ReplicaChange,
    TopicRecord,
    replica_change,
)
from autothrottle.core.errors import AutothrottleError, Conflict, Invalid, Unavailable
from autothrottle.core.retries import STATE_TOPIC

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_SECONDS = 0.1
"""How late an answer of the leader may be before other brokers are asked whether it still leads."""
_LOOK_UP_SECONDS = 0.5
_PROBE = timedelta(seconds=1)
"""How long a broker may take to show that it lives."""
_METADATA_LAG_SECONDS, _LAG_POLL_SECONDS = 2.0, 0.1
"""How long a broker may take to learn of changed replicas, and how often it is asked."""
_CANDIDATES = 5
"""How many brokers are asked at a time when a replica is to be added."""
_READ_BYTES = 8_000_000
_GZIP, _MAGIC = 1, 2
_MAX_BATCH_BYTES = 64_000_000
_EARLIEST, _LATEST = -2, -1
_PROBLEM_SECONDS = 60.0
"""For how long a delay by a client quota, or a wrong clock, is a finding. The log gets its line once in this time."""
_MAX_DRIFT = 1.0
"""Difference of the clocks of this process and of the broker that is a finding, seconds."""
_BROKEN_READS = 3
"""How often a broken batch is read again before it is skipped."""
_SEGMENT_BYTES = 16 << 20
"""Kafka deletes whole segments only, so this bounds the disk space of deleted records."""

_MIN_ISR = "min.insync.replicas"
_TIME_TYPE, _LOG_APPEND_TIME = "message.timestamp.type", "LogAppendTime"
_TIME_LIMITS = (
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)
_LEAST_TIME_LIMIT = 3_600_000
"""Kafka's default for times ahead. A process whose clock is further away appends with a time that was read."""
_MESSAGE_BYTES = "max.message.bytes"
_LEAST_MESSAGE_BYTES = 1_000_000
"""A request of ours has at most so many."""
_DIGITS = 19
"""Of the largest number that a setting can have."""
_OPERATIONS = ("Describe", "DescribeConfigs", "Read", "Write", "Delete")
"""Of the ACLs that each process needs on an existing topic."""

_MOVED = frozenset({"NotLeaderForPartitionError", "FencedLeaderEpochError", "UnknownLeaderEpochError"})
_GONE = frozenset({"OffsetOutOfRangeError", "UnknownTopicIdError", "InconsistentTopicIdError"})


class _Partition(NamedTuple):
    topic_id: Any
    leader: int
    replicas: int
    """The replication factor."""


class _Fetched(NamedTuple):
    data: bytes
    """Record batches; b"": none."""
    start: int
    """Offset of the first record that exists."""
    end: int
    """Offset after the last record that may be read."""
    throttle_seconds: float = 0.0
    """For how long a client quota delays reads; 0: it does not."""


class TopicLog:
    """A `Topic` in Kafka 3.1 or later. Thread-safe; reads and appends do not wait for one another."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Prepare; this sends nothing."""
        self.name, self._servers, self._login = topic, ",".join(settings.bootstrap_servers), settings.login
        self._reads = Routing(settings.bootstrap_servers, settings.login, settings.request_timeout)
        self._appends = Routing(settings.bootstrap_servers, settings.login, settings.request_timeout)
        self._admin = KafkaAdmin(settings)
        """Has connections of its own, since an answer waits for those to earlier requests of its connection."""
        self.summary = ""
        """What `fetch_missing_permissions` has seen, if that was no problem."""
        self._closed = threading.Event()
        self._newest_time = self._log_start = 0
        """The newest time of a record that was read, and the offset of the first record; 0: none was read."""
        self._throttles: dict[str, float] = {}
        """`reads` or `appends` -> when a client quota last delayed them, on the monotonic clock."""
        self._quota_problems: Mapping[str, str] = {}
        self._drift, self._drift_time = 0.0, -math.inf
        """How far this process's clock was last ahead of the broker's, seconds, and when, on the monotonic clock."""
        self._next_line = 0.0
        self._partition: _Partition | None = None
        """Guarded by nothing: a stale value costs one request."""

    def close(self) -> None:
        self._closed.set()
        self._reads.close()
        self._appends.close()
        self._admin.close()

    def append(self, values: Sequence[bytes], deadline: float) -> None:
        # Kafka refuses a time that is too far ahead of the broker's. It accepts one that it has stored before, unless
        # the topic has one of the settings in `risks`.
        sent = time.time_ns() // 1_000_000
        for milliseconds in dict.fromkeys((sent, self._newest_time, 0)):
            result = self._produce(values, milliseconds, deadline)
            if result.error_code != kafka.errors.InvalidTimestampError.errno:
                break
        self._check(result)
        self._note_clock(sent, result.log_append_time_ms, time.time_ns() // 1_000_000)

    def _produce(self, values: Sequence[bytes], milliseconds: int, deadline: float) -> Any:
        builder = kafka.record.MemoryRecordsBuilder(_MAGIC, _GZIP, _MAX_BATCH_BYTES)
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
        if response.throttle_time_ms:
            self._note_throttle("appends")
        return self._only(self._only(response.responses).partition_responses)

    def read(self, topic_id: str, offset: int, epoch: int, wait: float, deadline: float) -> Records:
        fetch = partial(self._fetch, topic_id, offset, epoch, deadline)
        answer = fetch(wait)
        if not answer.data:
            return Records((), offset, answer.start, throttle_seconds=answer.throttle_seconds)
        batches, is_expected = checked(answer.data, offset, epoch, answer.end)
        if not batches or not is_expected:
            # A flipped bit in a header without a checksum, or what Kafka has stored: then it answers the same again.
            for pause in [0.0] if batches else [0.0, *[STATE_TOPIC.first] * _BROKEN_READS]:
                # An answer may have records above its own high watermark, which the broker reads before them.
                answer = self._confirmed(answer, fetch, pause)
                batches, _ = checked(answer.data, offset, epoch, answer.end)
                if batches:
                    break
            if not batches:
                # Other processes may have read it. So the records are missing, as if they had been deleted.
                end = end_of_broken_batch(answer.data, offset, answer.end)
                return Records((), end, answer.start, {offset: DAMAGED}, end=answer.end)
        records: list[TopicRecord] = []
        skipped: dict[int, str] = {}
        for batch in batches:
            batch_records, reason = batch.records(offset)
            records += batch_records
            if reason:
                skipped.update((record.offset, reason) for record in batch_records)
        self._newest_time = max((self._newest_time, *(record.time for record in records)))
        return Records(records, batches[-1].last_offset + 1, answer.start, skipped, end=answer.end)

    def _fetch(self, topic_id: str, offset: int, epoch: int, deadline: float, wait: float) -> _Fetched:
        """Fetch batches; wait while a client quota delays that, since such an answer is empty."""
        while True:
            partition = self._located(self._reads, deadline)
            if str(partition.topic_id) != topic_id:
                raise OutOfLog(f"topic {self.name} was deleted and created again")

            def build(partition_id: Any = partition.topic_id) -> Any:
                kind = kafka.protocol.consumer.FetchRequest
                topic = kind.FetchTopic
                part = topic.FetchPartition(
                    partition=0, fetch_offset=offset, last_fetched_epoch=epoch, partition_max_bytes=_READ_BYTES
                )
                return kind(
                    max_wait_ms=int(wait * 1000),
                    min_bytes=1,
                    max_bytes=_READ_BYTES,
                    topics=[topic(topic_id=partition_id, partitions=[part])],
                    min_version=13,
                )

            response = self._ask_leader(self._reads, build, deadline, wait)
            self._check_code(response.error_code, None)
            if response.responses:
                break
            throttle_seconds = response.throttle_time_ms / 1000
            self._note_throttle("reads")
            self._closed.wait(min(max(throttle_seconds, STATE_TOPIC.first), seconds_left(deadline)))
            if time.monotonic() >= deadline or self._closed.is_set():
                return _Fetched(b"", self._log_start, offset, throttle_seconds)
        result = self._only(self._only(response.responses).partitions)
        if result.error_code == kafka.errors.OffsetOutOfRangeError.errno:
            raise self._out_of_log(offset, epoch, deadline)
        self._check(result)
        if result.diverging_epoch is not None and result.diverging_epoch.end_offset >= 0:
            raise LostTail(self._lost_tail)
        self._log_start = result.log_start_offset
        return _Fetched(result.records or b"", result.log_start_offset, result.high_watermark)

    def _note_throttle(self, what: str) -> None:
        self._throttles[what] = time.monotonic()
        self._log_problems()

    def _note_clock(self, sent: int, appended: int, received: int) -> None:
        """Note how far the clock of this process is ahead of the broker's, or behind it (negative), at least.

        The broker appends between both times of this process, so only a difference beyond them is due to the clocks.

        Args:
            sent: when the request was sent, by this process, milliseconds since 1970.
            appended: when the records were appended, by the broker; -1: the topic does not have LogAppendTime.
            received: when the answer had arrived, by this process.
        """
        drift = (max(0, sent - appended) + min(0, received - appended)) / 1000
        if appended >= 0 and abs(drift) > _MAX_DRIFT:
            self._drift, self._drift_time = drift, time.monotonic()
            self._log_problems()

    def _log_problems(self) -> None:
        if (time_of_line := time.monotonic()) >= self._next_line:
            self._next_line = time_of_line + _PROBLEM_SECONDS
            for problem in self.problems:
                log.warning("%s", problem)

    @property
    def problems(self) -> Sequence[str]:
        """Why reads or appends were slow in the last minute, and whether the clock was wrong; findings of each cycle.

        `risks` looks for the quotas.
        """
        problems, oldest = [], time.monotonic() - _PROBLEM_SECONDS
        if recent := [what for what, noted in sorted(self._throttles.items()) if noted > oldest]:
            causes = [f"The {entity} {problem}" for entity, problem in self._quota_problems.items()]
            fix = "Fix: `autothrottle check` names the quota, and the command that exempts this client"
            delayed = " and ".join(recent)
            problems.append(
                f"A client quota of Kafka delays {delayed} of topic {self.name}. {'; '.join(causes) or fix}"
            )
        if self._drift_time > oldest:
            side = "ahead of" if self._drift > 0 else "behind"
            problems.append(
                f"The clock of this process is {abs(self._drift):.1f} s {side} that of the broker that leads topic "
                f"{self.name}. So the audit has wrong times, and overrides end too "
                f"{'early' if self._drift > 0 else 'late'} while this process leads. Fix: synchronize the clocks of "
                "both hosts, for example with NTP"
            )
        return problems

    def _fetch_quota_problems(self, deadline: float) -> Mapping[str, str]:
        """Return entity -> why its quotas are too low for this client; {}: none is, or they cannot be read."""
        try:
            quotas = self._admin.client_quotas(timeout=time_left(deadline))
        except AutothrottleError:  # Kafka before 2.6, or no right to describe quotas
            return {}
        return own_quota_problems(quotas, self._login.options, self._servers)

    def _confirmed(self, answer: _Fetched, fetch: Callable[[float], _Fetched], pause: float) -> _Fetched:
        """Return what Kafka answers again.

        Raises:
            Unavailable: it does not.
        """
        self._closed.wait(pause)
        again = fetch(0.0)
        data, same = answer.data[: len(again.data)], again.data[: len(answer.data)]
        if not data or data != same:
            raise Unavailable(f"two answers of Kafka for topic {self.name} differ; autothrottle reads again")
        return again._replace(data=data)

    def _out_of_log(self, offset: int, epoch: int, deadline: float) -> Unavailable:
        """Return why the log does not have this offset."""
        earliest = self._offset_at(_EARLIEST, deadline)
        if offset < earliest:
            return OutOfLog(f"topic {self.name}: the records before offset {earliest} were deleted")
        # The broker also answers so if it has never seen the epoch.
        if epoch >= 0 or offset > self._offset_at(_LATEST, deadline):
            return LostTail(self._lost_tail)
        return Unavailable(f"topic {self.name}: its end has changed meanwhile; autothrottle reads again")

    @property
    def _lost_tail(self) -> str:
        return f"topic {self.name}: the log ends before the position: its last records were lost"

    def locate(self, deadline: float) -> tuple[str, int]:
        self._partition = None
        partition = self._located(self._reads, deadline)
        self._log_start = self._offset_at(_EARLIEST, deadline)
        return str(partition.topic_id), self._log_start

    def _offset_at(self, time: int, deadline: float) -> int:
        """Return the offset of the first record, or the one after the last record: `_EARLIEST` or `_LATEST`."""

        def build() -> Any:
            kind = kafka.protocol.consumer.ListOffsetsRequest
            topic = kind.ListOffsetsTopic
            part = topic.ListOffsetsPartition(partition_index=0, timestamp=time)
            return kind(replica_id=-1, isolation_level=0, topics=[topic(name=self.name, partitions=[part])])

        result = self._only(self._only(self._ask_leader(self._reads, build, deadline).topics).partitions)
        self._check(result)
        return int(result.offset)

    def create(self, deadline: float, validate_only: bool = False) -> None:
        brokers = len(self._appends.metadata(deadline).brokers)
        replicas = min(REPLICAS, brokers)
        configs = {
            **_SETTINGS,
            _TIME_TYPE: _LOG_APPEND_TIME,
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

        answer = self._only(self._appends.ask_any(build, deadline, again=False).topics)
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
        values = self._configs([*_SETTINGS, _MIN_ISR, _TIME_TYPE, *_TIME_LIMITS, _MESSAGE_BYTES], deadline)
        wrong = {
            key: required
            for key, required in _SETTINGS.items()
            if values.get(key, required) != required and (key, values[key]) not in _ALSO_SAFE
        }
        least = _least_in_sync(partition.replicas)
        if _number(values, _MIN_ISR, least) < least:
            wrong[_MIN_ISR] = str(least)
        if self._throttles:
            self._quota_problems = self._fetch_quota_problems(deadline)
        risks = {
            key: f"topic {self.name} has {key}={values[key]}, so records of our state could be lost or unreadable; "
            f"it must be {required}. Fix: {self._alter_command(key, required)}"
            for key, required in wrong.items()
        }
        if _number(values, _MESSAGE_BYTES, _LEAST_MESSAGE_BYTES) < _LEAST_MESSAGE_BYTES:
            risks[_MESSAGE_BYTES] = (
                f"topic {self.name} has {_MESSAGE_BYTES}={values[_MESSAGE_BYTES]}, so Kafka could refuse records of "
                f"our state; it must be at least {_LEAST_MESSAGE_BYTES}. "
                f"Fix: {self._alter_command(_MESSAGE_BYTES, str(_LEAST_MESSAGE_BYTES))}"
            )
        if values.get(_TIME_TYPE) != _LOG_APPEND_TIME:
            risks |= {
                key: f"topic {self.name} has {key}={values[key]}, so Kafka could refuse records of our state from a "
                f"process whose clock is wrong. Fix: {self._alter_command(_TIME_TYPE, _LOG_APPEND_TIME)}"
                for key in _TIME_LIMITS
                if _number(values, key, _LEAST_TIME_LIMIT) < _LEAST_TIME_LIMIT
            }
        return risks

    def _alter_command(self, key: str, value: str) -> str:
        return (
            f"kafka-configs.sh --bootstrap-server {self._servers} --alter --entity-type topics --entity-name "
            f"{self.name} --add-config {key}={value}"
        )

    def fetch_repair(self, deadline: float, is_stuck: bool) -> ReplicaChange | None:
        _, replicas, isr = self._metadata()
        if not (is_stuck if len(replicas) == REPLICAS else self._lacks_replica(replicas, deadline)):
            return None
        # The metadata also lists brokers that just died. A refusal is an answer.
        failures = self._admin.broker_configs(replicas, timeout=_PROBE).failures
        silent_brokers = [b for b, failure in failures.items() if isinstance(failure, Unavailable)]
        candidates = () if len(replicas) == REPLICAS else self._candidates(replicas, deadline)
        return replica_change(replicas, isr, silent_brokers, candidates)

    def change_replicas(self, change: ReplicaChange, deadline: float) -> Sequence[int]:
        if (target := self._target(deadline)) is not None:
            raise Conflict(f"topic {self.name} is being reassigned to {target}")
        if {*(replicas := self._metadata().replicas)} != {*change.replicas}:
            raise Conflict(f"the replicas of topic {self.name} are {replicas} now, and no longer {change.replicas}")
        targets = {(self.name, 0): change.new_replicas}
        for refusal in self._admin.alter_reassignments(targets, until=deadline).values():
            raise refusal
        self._partition = None
        patience_ends = min(deadline, time.monotonic() + _METADATA_LAG_SECONDS)
        while True:
            assigned = self._target(deadline) or self._metadata().replicas
            if {*assigned} == {*change.new_replicas} or time.monotonic() >= patience_ends:
                return assigned
            time.sleep(_LAG_POLL_SECONDS)

    def _metadata(self) -> PartitionMetadata:
        return _value(self._admin.partitions([self.name], timeout=_PROBE), self.name)[0]

    def _target(self, deadline: float) -> Sequence[int] | None:
        """Return the replicas to which the topic is being reassigned, as the controller knows them; None: it is not."""
        listing = self._admin.reassignments([(self.name, 0)], timeout=time_left(deadline))
        if self.name in listing.failures:
            raise listing.failures[self.name]
        row = listing.values.get(self.name, {}).get(0)
        return None if row is None else row.target

    def _lacks_replica(self, replicas: Sequence[int], deadline: float) -> bool:
        """Whether a repair has left two replicas. Both must be in sync, so the loss of either would stop the topic."""
        return len(replicas) == MIN_IN_SYNC and self._configs([_MIN_ISR], deadline).get(_MIN_ISR) == str(MIN_IN_SYNC)

    def _candidates(self, replicas: Sequence[int], deadline: float) -> Sequence[int]:
        """Return a few other brokers that answer and are not cordoned, those of racks without a replica first.

        All processes ask in the same order.
        """
        racks = self._admin.racks(timeout=time_left(deadline))
        used_racks = {racks.get(b) for b in replicas}
        others = sorted(racks.keys() - {*replicas}, key=lambda b: (racks[b] in used_racks, b))
        usable: list[int] = []
        while others and len(usable) < MIN_IN_SYNC and time.monotonic() < deadline:
            batch, others = others[:_CANDIDATES], others[_CANDIDATES:]
            configs = self._admin.broker_configs(batch, CORDON_KEYS, timeout=_PROBE).values
            usable += [b for b in batch if b in configs and not is_cordoned(configs[b])]
        return usable

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
        quotas = self._fetch_quota_problems(deadline)
        return {**{f"{subject}, {key}": risk for key, risk in self.risks(deadline).items()}, **quotas}

    def delete_before(self, offset: int, deadline: float) -> None:
        def build() -> Any:
            kind = kafka.protocol.admin.DeleteRecordsRequest
            topic = kind.DeleteRecordsTopic
            part = topic.DeleteRecordsPartition(partition_index=0, offset=offset)
            return kind(topics=[topic(name=self.name, partitions=[part])], timeout_ms=_milliseconds(deadline))

        self._check(self._only(self._only(self._ask_leader(self._appends, build, deadline).topics).partitions))

    # Internals

    def _configs(self, keys: Collection[str], deadline: float) -> Mapping[str, str]:
        """Return setting -> its value; absent: this version of Kafka lacks it."""
        configs = _value(self._admin.topic_configs([self.name], keys, timeout=time_left(deadline)), self.name)
        return {key: value.value or "" for key, value in configs.items()}

    def _located(self, routing: Routing, deadline: float) -> _Partition:
        """Return where the partition is, by the last metadata."""
        if self._partition is None:
            topic = self._only(routing.ask_any(partial(messages.describe_topics, [self.name]), deadline).topics)
            self._check_code(topic.error_code, None)
            if len(topic.partitions) != 1:
                raise Invalid(
                    f"topic {self.name} has {len(topic.partitions)} partitions and must have 1, whose order all "
                    "processes share. Fix: choose another name with state-topic"
                )
            partition = topic.partitions[0]
            if partition.leader_id < 0:
                raise Unavailable(f"topic {self.name} has no leader now")
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
            topic = self._only(routing.ask_any(build, time.monotonic() + _LOOK_UP_SECONDS).topics)
        except AutothrottleError:
            return None
        return next((p.leader_id for p in topic.partitions if p.leader_id >= 0), None)

    def _only(self, parts: Sequence[T]) -> T:
        """Return the only topic or partition of an answer."""
        if not parts:
            raise Unavailable(f"Kafka's answer lacks topic {self.name}; autothrottle asks again")
        return parts[0]

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
    UNCLEAN_ELECTIONS: "false",
    "compression.type": "gzip",
}
"""Without them Kafka deletes records that we still need, or compresses them in a codec that we cannot read."""


_ALSO_SAFE = {("compression.type", "producer"), ("compression.type", "uncompressed")}
"""Other values that lose no record. A topic that an operator created may have them."""


def _value(answers: Answers[str, T], topic: str) -> T:
    """Return the value of the topic, or raise its failure."""
    if topic in answers.failures:
        raise answers.failures[topic]
    return answers.values[topic]


def _number(values: Mapping[str, str], key: str, default: int) -> int:
    """Return a setting as a number; the default if Kafka does not have it, or if the answer is damaged."""
    text = values.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else default


def _least_in_sync(replicas: int) -> int:
    return MIN_IN_SYNC if replicas >= REPLICAS else 1


def _milliseconds(deadline: float) -> int:
    return max(1, int(seconds_left(deadline) * 1000))

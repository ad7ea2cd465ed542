"""The state topic in memory, with the failures of a real one."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence

from autothrottle.adapters.kafka_state.topic import (
    REPLICAS,
    LostTail,
    OutOfLog,
    Records,
    ReplicaChange,
    TopicRecord,
    replica_change,
)
from autothrottle.core.errors import Conflict, Missing, Unavailable

_BROKERS = frozenset({1, 2, 3})


class MemoryPartition:
    """The records of one topic, which many `MemoryTopic` share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.topic_id: str | None = None
        """None: the topic does not exist."""
        self.start = 0
        self.records: list[TopicRecord] = []
        self.epoch = 0
        """Of the leader; each loss of records begins another one."""
        self.faults: dict[str, str] = {}
        """Setting -> what is wrong with it."""
        self.replicas = sorted(_BROKERS)
        """Broker ids, the leader first."""
        self.silent_brokers: set[int] = set()
        """Brokers that give no answer."""
        self.cordoned_brokers: set[int] = set()
        self.is_moving = False
        """Whether the topic is being reassigned."""

    def delete(self) -> None:
        """Delete the topic with its records."""
        with self.changed:
            self.topic_id, self.start, self.records = None, 0, []
            self.changed.notify_all()

    def create(self) -> None:
        """Create the topic, unless it exists."""
        with self.changed:
            if self.topic_id is None:
                self.topic_id = uuid.uuid4().hex
                self.changed.notify_all()

    def delete_before(self, offset: int) -> None:
        """Delete the records before an offset, as any client of Kafka may."""
        with self.changed:
            self.start = max(self.start, offset)
            self.records = [record for record in self.records if record.offset >= offset]

    def truncate(self, end: int) -> None:
        """Lose the records from an offset on, as an unclean election or a restored disk does."""
        with self.changed:
            self.records = [record for record in self.records if record.offset < end]
            self.start = min(self.start, end)
            self.epoch += 1
            self.changed.notify_all()

    def has_lost(self, offset: int, epoch: int) -> bool:
        """Whether the records before an offset are other ones than those whose last one had this epoch; -1: any."""
        last = next((record for record in reversed(self.records) if record.offset < offset), None)
        return offset > self.end or (epoch >= 0 and last is not None and last.epoch != epoch)

    def fetch_repair(self, is_stuck: bool) -> ReplicaChange | None:
        """Return the change of replicas that the topic needs; all that answer are in sync."""
        with self.changed:
            if len(self.replicas) == REPLICAS and not is_stuck:
                return None
            candidates = sorted(_BROKERS - {*self.replicas} - self.cordoned_brokers - self.silent_brokers)
            return replica_change(self.replicas, self.replicas, self.silent_brokers, candidates)

    def change_replicas(self, change: ReplicaChange) -> Sequence[int]:
        """Change the replicas, at once."""
        with self.changed:
            if self.is_moving or {*self.replicas} != {*change.replicas}:
                raise Conflict(f"the replicas are {self.replicas}")
            self.replicas = [*change.new_replicas]
            return self.replicas

    @property
    def end(self) -> int:
        """Offset of the next record."""
        return self.records[-1].offset + 1 if self.records else self.start

    def append(self, values: Sequence[bytes]) -> None:
        """Append records with the current time."""
        with self.changed:
            milliseconds = time.time_ns() // 1_000_000
            for value in values:
                self.records.append(TopicRecord(self.end, milliseconds, value, self.epoch))
            self.changed.notify_all()


class MemoryTopic:
    """One client's view of the partition (a `Topic`). Each client can lose its connection, alone."""

    def __init__(self, partition: MemoryPartition) -> None:
        self.partition = partition
        self.is_cut = False
        """Whether no call is answered."""
        self.loses_answers = False
        """Whether records are appended, but not acknowledged."""
        self._closed = False

    def append(self, values: Sequence[bytes], deadline: float) -> None:
        self._reach()
        if not self.partition.silent_brokers.isdisjoint(self.partition.replicas):
            raise Unavailable("a replica in sync does not answer")
        if self.partition.topic_id is None:
            raise Missing("the topic does not exist")
        self.partition.append(values)
        if self.loses_answers:
            raise Unavailable("the answer was lost")

    def read(self, topic_id: str, offset: int, epoch: int, wait: float, deadline: float) -> Records:
        partition, until = self.partition, time.monotonic() + wait
        with partition.changed:
            while True:
                self._reach()
                if partition.topic_id is None:
                    raise Missing("the topic does not exist")
                if partition.topic_id != topic_id or offset < partition.start:
                    raise OutOfLog("the offset does not exist")
                if partition.has_lost(offset, epoch):
                    raise LostTail("the log ends before the position: its last records were lost")
                records = partition.records[max(0, len(partition.records) - (partition.end - offset)) :]
                if records or time.monotonic() >= until:
                    return Records(records, partition.end, partition.start, end=partition.end)
                partition.changed.wait(until - time.monotonic())

    def locate(self, deadline: float) -> tuple[str, int]:
        self._reach()
        if self.partition.topic_id is None:
            raise Missing("the topic does not exist")
        return self.partition.topic_id, self.partition.start

    def create(self, deadline: float) -> None:
        self._reach()
        self.partition.create()

    def risks(self, deadline: float) -> Mapping[str, str]:
        self._reach()
        return self.partition.faults

    def fetch_repair(self, deadline: float, is_stuck: bool) -> ReplicaChange | None:
        if self.is_cut:
            raise Unavailable("no broker answers")
        return self.partition.fetch_repair(is_stuck)

    def change_replicas(self, change: ReplicaChange, deadline: float) -> Sequence[int]:
        if self.is_cut:
            raise Unavailable("no broker answers")
        return self.partition.change_replicas(change)

    def delete_before(self, offset: int, deadline: float) -> None:
        self._reach()
        self.partition.delete_before(offset)

    def close(self) -> None:
        self._closed = True
        with self.partition.changed:
            self.partition.changed.notify_all()

    def _reach(self) -> None:
        if self.is_cut or self._closed or self.partition.replicas[0] in self.partition.silent_brokers:
            raise Unavailable("no broker answers")

"""What the state needs of its topic: `Topic`. `adapters.kafka_admin.topic_log` has the one in Kafka."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from autothrottle.core.errors import Unavailable


class TopicRecord(NamedTuple):
    """A record of the topic."""

    offset: int
    time: int
    """By its author's clock, or by Kafka's, milliseconds since 1970."""
    value: bytes
    epoch: int
    """Leader epoch of the batch. Kafka never uses one again, so a log that lost its tail continues with another."""


@dataclass(frozen=True, slots=True)
class Records:
    """The result of a read."""

    records: Sequence[TopicRecord]
    next_offset: int
    """Where the next read continues."""
    start: int
    """Offset of the first record that exists."""
    skipped: Mapping[int, str] = field(default_factory=dict)
    """Offset -> why its record cannot be read, as a predicate. `records` has an empty value for it, for all readers.

    A batch with too many records has one entry and one record, with its first offset. Damaged records are missing in
    `records`, since other readers may have read them.
    """
    throttle_seconds: float = 0.0
    """How long a client quota delays the next answer."""
    end: int = 0
    """Offset after the last record that the log had when it was read; 0: unknown."""

    @property
    def is_end(self) -> bool:
        """Whether the log had no more records."""
        return self.next_offset >= self.end and not self.throttle_seconds


class OutOfLog(Unavailable):
    """The position is not in the log: records were deleted, or the topic was."""


class LostTail(OutOfLog):
    """The log lacks records before the position: an unclean election or a restored disk has removed its newest ones."""


UNCLEAN_ELECTIONS = "unclean.leader.election.enable"
"""Setting with which a new leader of the partition may lack its newest records."""
REPLICAS, MIN_IN_SYNC = 3, 2
"""Replicas of the topic in a cluster of at least three brokers, and its `min.insync.replicas` then."""


def repaired_replicas(
    replicas: Sequence[int], isr: Collection[int], silent_brokers: Collection[int], candidates: Sequence[int]
) -> Sequence[int]:
    """Return the replicas with which the topic can go on; the same ones if nothing has to or can be changed.

    Kafka commits nothing without a replica in sync, and keeps a lost leader, until the session of its broker has ended.
    So of three replicas in sync, one that does not answer is removed if the two others do. Two replicas get a third
    one, and one of them that is lost and not in sync is replaced.

    >>> repaired_replicas([1, 2, 3], {1, 2, 3}, {1}, []), repaired_replicas([2, 3], {2, 3}, {1}, [1, 4])
    ([2, 3], [2, 3, 4])

    Args:
        replicas: broker ids.
        isr: the replicas in sync.
        silent_brokers: replicas and candidates that have just given no answer.
        candidates: brokers that may become replicas, the preferred one first.
    """
    healthy_replicas = [b for b in replicas if b in isr and b not in silent_brokers]
    if len(replicas) == REPLICAS:
        return healthy_replicas if len(healthy_replicas) == MIN_IN_SYNC and len(isr) == REPLICAS else replicas
    if len(replicas) != MIN_IN_SYNC or not healthy_replicas:
        return replicas
    usable_replicas = [b for b in replicas if b in isr or b not in silent_brokers]
    additions = [b for b in candidates if b not in silent_brokers]
    new_replicas = [*usable_replicas, *additions][:REPLICAS]
    return new_replicas if len(new_replicas) > len(usable_replicas) else replicas


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """A repair of the topic's replicas. Its text says what is changed and why."""

    replicas: tuple[int, ...]
    """Broker ids before."""
    new_replicas: tuple[int, ...]
    lost_broker: int | None
    """The replica that gives no answer; None: all answer, and one is added."""

    def __str__(self) -> str:
        cause = "so that it has three again"
        if self.lost_broker is not None:
            cause = f"because broker {self.lost_broker} does not answer"
        before, after = (", ".join(map(str, broker_ids)) for broker_ids in (self.replicas, self.new_replicas))
        return f"from {before} to {after}, {cause}"


def replica_change(
    replicas: Sequence[int], isr: Collection[int], silent_brokers: Collection[int], candidates: Sequence[int]
) -> ReplicaChange | None:
    """Return the change to `repaired_replicas`, whose arguments these are; None: they stay."""
    new_replicas = repaired_replicas(replicas, isr, silent_brokers, candidates)
    if new_replicas == replicas:
        return None
    lost_broker = next((b for b in replicas if b in silent_brokers), None)
    return ReplicaChange((*replicas,), (*new_replicas,), lost_broker)


class Topic(Protocol):
    """One partition. A deadline is a time of the monotonic clock.

    All calls raise these errors.

    Unavailable: no broker answers in time, or not enough replicas are in sync.
    Missing: the topic does not exist.
    Invalid: Kafka refuses our credentials or the request.
    """

    def append(self, values: Sequence[bytes], deadline: float) -> None:
        """Append records, and wait until all replicas in sync have them. After Unavailable, they may still arrive."""

    def read(self, topic_id: str, offset: int, epoch: int, wait: float, deadline: float) -> Records:
        """Return records from an offset on, as soon as there are some, or after `wait` seconds.

        Args:
            topic_id: of the topic that `locate` has returned.
            offset: of the first record to return.
            epoch: leader epoch of the record before it; -1: none was read.
            wait: seconds.
            deadline: on the monotonic clock.

        Raises:
            LostTail: the record before the offset is not in the log any more.
            OutOfLog: this topic or this offset does not exist any more.
        """

    def locate(self, deadline: float) -> tuple[str, int]:
        """Return the topic's id and the offset of its first record."""

    def create(self, deadline: float) -> None:
        """Create the topic, unless it exists."""

    def risks(self, deadline: float) -> Mapping[str, str]:
        """Return setting -> what is wrong and the command that fixes it, for settings that could lose records."""

    def fetch_repair(self, deadline: float, is_stuck: bool) -> ReplicaChange | None:
        """Return the change to `repaired_replicas`; None: nothing has to or can be changed.

        A cordoned broker gets no replica.

        Args:
            deadline: on the monotonic clock.
            is_stuck: whether the topic commits or answers nothing. Otherwise three replicas stay.
        """

    def change_replicas(self, change: ReplicaChange, deadline: float) -> Sequence[int]:
        """Change the replicas; return those that the topic has or moves to then, as soon as that is known.

        Raises:
            Conflict: they are not those before the change any more, or are being reassigned. Nothing was changed.
        """

    def delete_before(self, offset: int, deadline: float) -> None:
        """Delete the records before an offset."""

    def close(self) -> None:
        """End all calls. Idempotent."""

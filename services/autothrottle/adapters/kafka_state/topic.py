"""What the state needs of its topic: `Topic`. `adapters.kafka_admin.topic_log` has the one in Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from autothrottle.core.errors import Unavailable


class TopicRecord(NamedTuple):
    """A record of the topic."""

    offset: int
    time: int
    """When its author appended it, milliseconds since 1970."""
    value: bytes


@dataclass(frozen=True, slots=True)
class Records:
    """The result of a read."""

    records: Sequence[TopicRecord]
    next_offset: int
    """Where the next read continues."""
    start: int
    """Offset of the first record that exists."""


class OutOfLog(Unavailable):
    """The position is not in the log: records were deleted, or the topic was."""


class Topic(Protocol):
    """One partition. A deadline is a time of the monotonic clock.

    All calls raise these errors.

    Unavailable: no broker answers in time, or not enough replicas are in sync.
    Missing: the topic does not exist.
    Invalid: Kafka refuses our credentials or the request.
    """

    def append(self, values: Sequence[bytes], deadline: float) -> None:
        """Append records, and wait until all replicas in sync have them. After Unavailable, they may still arrive."""

    def read(self, topic_id: str, offset: int, wait: float, deadline: float) -> Records:
        """Return records from an offset on, as soon as there are some, or after `wait` seconds.

        Raises:
            OutOfLog: this topic or this offset does not exist any more.
        """

    def locate(self, deadline: float) -> tuple[str, int]:
        """Return the topic's id and the offset of its first record."""

    def create(self, deadline: float) -> None:
        """Create the topic, unless it exists."""

    def risks(self, deadline: float) -> Mapping[str, str]:
        """Return setting -> what is wrong and the command that fixes it, for settings that could lose records."""

    def drop_silent_leader(self, deadline: float) -> str:
        """Remove the leader from the replicas if it answers nothing, and the two others are in sync.

        One of them leads at once. Without this, Kafka elects a leader only when the broker's session has ended.

        Returns:
            What was done, in one sentence; "": nothing.
        """

    def add_replica(self, deadline: float) -> str:
        """Add a live broker to the two replicas that `drop_silent_leader` has left; return what was done."""

    def delete_before(self, offset: int, deadline: float) -> None:
        """Delete the records before an offset."""

    def close(self) -> None:
        """End all calls. Idempotent."""

"""The Kafka cluster: snapshots of what moves and what stands, the writing of throttle configs, and reassignments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from autothrottle.core.changes import Change, Outcome
from autothrottle.core.topology import Snapshot, TopicPartition, TopicReassignment


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """Something happened that a cycle should see at once."""

    version: int
    """A snapshot of at least this version shows it."""
    reason: str
    """What happened, for example `a reassignment of [t1] started`."""
    urgent: bool = False
    """Whether bytes move unthrottled until a cycle has seen it: partitions began to move, or leaders changed."""


class Watch(Protocol):
    """A running subscription."""

    def close(self) -> None:
        """End it; nothing is delivered afterwards. Idempotent."""
        ...


class SnapshotSource(Protocol):
    """Where snapshots of the cluster come from."""

    def fetch_snapshot(
        self,
        *,
        min_version: int = 0,
        replicas_of: Collection[int] = (),
        partitions: Collection[TopicPartition] = (),
        catching_up: Collection[int] = (),
        timeout: timedelta,
        may_presume: bool = False,
    ) -> Snapshot:
        """Return the cluster as it is now.

        Args:
            min_version: the snapshot shows at least this version.
            replicas_of: ids of the brokers whose replicas the snapshot lists.
            partitions: whose assignments the snapshot has, those included that do not move.
            catching_up: ids of the brokers that catch up: what they lack of `partitions` is in the progress of later
                snapshots while they run, as if it were being moved to them, until nobody has asked for it for a minute.
            timeout: > 0.
            may_presume: whether it may be one that says something `presumed`, when more would take long; whoever gets
                that asks again, for one that says nothing so.

        Raises:
            Unavailable: when the cluster does not answer in time, or not at `min_version`.
            Incomplete: when what moves cannot be read: nothing may be concluded.
        """
        ...

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        """Call `notify` for every event from now on, from another thread; it must not block."""
        ...


class MoveSource(Protocol):
    """What moves, told before all of it is read."""

    def moves_so_far(self, timeout: timedelta, may_presume: bool = False) -> Iterator[Collection[TopicReassignment]]:
        """Yield the topics that are read, again and again, while a reading of many goes on; nothing otherwise.

        Each is as a snapshot would have it that was complete now; the same object for as long as it is the same.

        Args:
            timeout: > 0; it ends then.
            may_presume: whether it ends when a snapshot can be had that presumes the rest.
        """
        ...


class BrokerRegistry(Protocol):
    """Knows at once which brokers run."""

    def is_registered(self, broker_id: int, timeout: timedelta) -> bool:
        """Return whether a broker is registered with its cluster now.

        Raises:
            Unavailable: when the cluster does not answer in time.
        """
        ...


class ConfigWriter(Protocol):
    """Carries out changes, each all or nothing, and none after the term is over."""

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        """Carry out the changes; one outcome for each, in their order.

        Atomic for each resource: its edits, the brokers' notification and the ledger. Safe to repeat. Where Kafka and
        the ledger are apart the ledger holds the intent before the edits are made, and until they are confirmed.

        Args:
            fence: the version of the term that decided this.
            changes: what to do; a standing value other than the expected one refuses the change.
            timeout: > 0.

        Raises:
            NotLeader: when the term is over; nothing of the rest was written.
            Unavailable: when nothing could be tried.
        """
        ...


class Reassigner(Protocol):
    """Starts and cancels reassignments, and none after the term is over."""

    def alter_reassignments(
        self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        """Let Kafka move partitions; return those that it refused, each with the reason. Safe to repeat.

        Args:
            fence: the version of the term that decided this.
            targets: partition -> the broker ids that it shall be on; None: its reassignment is cancelled.
            timeout: > 0.

        Raises:
            NotLeader: when the term is over; nothing was done.
            Conflict: when another reassignment is in the way; nothing was done.
            Invalid: when the backend cannot do it; nothing was done.
            Unavailable: when it is unknown whether it was done.
        """
        ...

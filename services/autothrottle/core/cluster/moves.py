"""How the reassignments of partitions ended, by the replicas that Kafka holds afterwards.

Nothing else decides: not which tool asked for a change, and not what a planner remembers of bytes. A planner that
begins to lead in the middle of a reassignment knows both ends of it, because Kafka lists the replicas that are added
and removed. The type to know is `MoveHistory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from autothrottle.core.cluster.snapshot import Assignment, Snapshot, TopicPartition, TopicReassignment

SETTLED_SECONDS = 10.0
"""Longest time after the end in which the queried broker may still show the replicas from before it, seconds."""


class MoveOutcome(StrEnum):
    """How the reassignment of a partition ended."""

    DONE = "done"
    """The partition has its target replicas."""
    CANCELLED = "cancelled"
    """It has its original replicas."""
    CHANGED = "changed"
    """It has other replicas."""
    DELETED = "deleted"
    """It does not exist any more."""


class MoveTarget(NamedTuple):
    """What a reassignment changes in a partition's replicas."""

    adding: tuple[int, ...]
    removing: tuple[int, ...]
    in_sync: tuple[int, ...]
    """The ISR with it; those of it that are neither added nor removed are in both ends."""

    @property
    def targets(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What tells two changes apart."""
        return self.adding, self.removing

    def is_done(self, replicas: Collection[int]) -> bool:
        """Return whether these replicas contain every added one, and none that is removed."""
        return self._are_end(replicas, self.adding, self.removing)

    def is_undone(self, replicas: Collection[int]) -> bool:
        """Return whether these replicas contain every one to remove, and none of the added."""
        return self._are_end(replicas, self.removing, self.adding)

    def _are_end(self, replicas: Collection[int], present: Collection[int], absent: Collection[int]) -> bool:
        return {*self.in_sync, *present}.difference(absent) <= set(replicas) and not set(absent) & set(replicas)


class EndedMove(NamedTuple):
    """The reassignment of one partition that Kafka no longer lists."""

    first: MoveTarget
    """As first seen."""
    last: MoveTarget
    """As last seen; another tool may have changed the target meanwhile."""
    clock: float
    """Monotonic time of the first snapshot without it, in seconds."""

    def outcome(self, assignment: Assignment | None, clock: float) -> MoveOutcome | None:
        """Return how it ended; None: the assignment may be older than the end.

        Args:
            assignment: the partition's assignment; None: the partition does not exist.
            clock: monotonic time of the assignment, in seconds.
        """
        if assignment is None:
            return MoveOutcome.DELETED
        replicas, is_final = assignment.replicas, clock - self.clock >= SETTLED_SECONDS
        is_back = self.first.is_undone(replicas)
        if self.last.is_done(replicas):
            if is_back and self.first.targets != self.last.targets and not self.last.adding:
                return MoveOutcome.CANCELLED  # another tool gave it its original replicas as a new target
            # Kafka completes a reassignment when the added replicas are in sync.
            return MoveOutcome.DONE if is_final or set(self.last.adding) <= set(assignment.isr) else None
        if is_final or not {*self.last.adding, *self.last.removing} <= set(replicas):
            return MoveOutcome.CANCELLED if is_back or self.last.is_undone(replicas) else MoveOutcome.CHANGED
        return None


@dataclass(frozen=True, slots=True)
class MoveHistory:
    """The reassignments of the last snapshot; immutable, `observe` returns a new history."""

    reassignments: tuple[TopicReassignment, ...] = ()
    first_changes: Mapping[TopicPartition, MoveTarget] = field(default_factory=dict)
    """Partition -> its change as first seen, for partitions whose target has changed since."""
    unsettled: Mapping[TopicPartition, EndedMove] = field(default_factory=dict)
    """Ended reassignments whose outcome is not known yet."""

    def is_settling(self, clock: float) -> bool:
        """Return whether another reading soon may tell an outcome."""
        return any(clock - move.clock < SETTLED_SECONDS for move in self.unsettled.values())

    def ended(self, snapshot: Snapshot) -> frozenset[TopicPartition]:
        """Return the partitions whose assignments tell an outcome: they are not in reassignment any more."""
        if snapshot.unread_partitions:
            return frozenset()
        ended_rows = {row for old, new in self._pairs(snapshot) for row, _ in _ended(old, new)}
        return frozenset(ended_rows.union(self.unsettled.keys() - _moving(snapshot, self.unsettled)))

    def observe(
        self, snapshot: Snapshot, read: Collection[TopicPartition], clock: float
    ) -> tuple[MoveHistory, Mapping[TopicPartition, MoveOutcome]]:
        """Return the history with one more snapshot, and partition -> how its reassignment ended.

        Args:
            snapshot: the cluster.
            read: the partitions in `assignments`, if they exist.
            clock: monotonic time of the snapshot, in seconds.
        """
        if snapshot.unread_partitions:
            return self, {}
        first, ended = dict(self.first_changes), dict(self.unsettled)
        for old, new in self._pairs(snapshot):
            for row, change in _ended(old, new):
                ended[row] = EndedMove(first.pop(row, change), change, clock)
            if new is not None:
                for row, change in _changed(old, new):
                    first.setdefault(row, change)
        for row in _moving(snapshot, ended):
            first.setdefault(row, ended.pop(row).first)
        unreadable_topics = {problem.topic for problem in snapshot.problems}
        outcomes, unsettled = {}, {}
        for row, move in ended.items():
            is_read = row in read and row[0] not in unreadable_topics
            outcome = move.outcome(snapshot.assignments.get(row), clock) if is_read else None
            if outcome is None:
                unsettled[row] = move
            else:
                outcomes[row] = outcome
        return MoveHistory(snapshot.reassignments, first, unsettled), outcomes

    def _pairs(self, snapshot: Snapshot) -> Iterator[tuple[TopicReassignment, TopicReassignment | None]]:
        """Yield each reassignment of the last snapshot that has changed, and what it is now; None: it has ended."""
        current = {reassignment.topic: reassignment for reassignment in snapshot.reassignments}
        for old in self.reassignments:
            new = current.get(old.topic)
            if new is not old:
                yield old, new


def _ended(old: TopicReassignment, new: TopicReassignment | None) -> Iterator[tuple[TopicPartition, MoveTarget]]:
    """Yield the partitions of a topic that are not in reassignment any more, with their last change."""
    if new is not None and old.partitions == new.partitions:
        return
    partitions = frozenset(new.partitions if new else ())
    columns = zip(old.partitions, old.adding_replicas, old.removing_replicas, old.isr, strict=True)
    for partition, adding, removing, isr in columns:
        if partition not in partitions:
            yield (old.topic, partition), MoveTarget(adding, removing, isr)


def _changed(old: TopicReassignment, new: TopicReassignment) -> Iterator[tuple[TopicPartition, MoveTarget]]:
    """Yield the partitions of a topic that have another target now, with their earlier change."""
    columns = old.adding_replicas, old.removing_replicas
    if old.partitions == new.partitions and columns == (new.adding_replicas, new.removing_replicas):
        return
    current = dict(zip(new.partitions, zip(new.adding_replicas, new.removing_replicas, strict=True), strict=True))
    for partition, adding, removing, isr in zip(old.partitions, *columns, old.isr, strict=True):
        if current.get(partition, (adding, removing)) != (adding, removing):
            yield (old.topic, partition), MoveTarget(adding, removing, isr)


def _moving(snapshot: Snapshot, rows: Collection[TopicPartition]) -> list[TopicPartition]:
    """Return those of the partitions that are in reassignment."""
    if not rows:
        return []
    topics = {topic for topic, _ in rows}
    partitions = {r.topic: frozenset(r.partitions) for r in snapshot.reassignments if r.topic in topics}
    return [row for row in rows if row[1] in partitions.get(row[0], ())]

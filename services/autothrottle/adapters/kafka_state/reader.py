"""Reads the state topic for one process, and says what to append so that nothing this process has read gets lost.

The type to know is `StateReader`. No IO, clock or lock.

A log can lose records: another party deletes them, an unclean election or a restored disk removes its newest ones, or
the topic is deleted. A process that has read them keeps its last tree as its memory, and reads the log from the first
record that exists. It writes nothing else until the tree of the log has all that the memory has.

- If the log has a tree, each lost value is written again by an edit. A node that was changed since then stays.
- If the log has no tree, since it lacks its beginning or is empty, the memory is restored as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from autothrottle.adapters.kafka_state.records import Commit, CopyHeader, StateEdit
from autothrottle.adapters.kafka_state.replica import StateReplica
from autothrottle.adapters.kafka_state.topic import Records
from autothrottle.adapters.kafka_state.tree import AuditEntry, EditResult, LostValue, Tree, edits_of_lost, lost_values
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS


class LogLoss(StrEnum):
    """What a log no longer has."""

    TAIL = "tail"
    """The newest records: an unclean election, or a restored disk."""
    BEGINNING = "beginning"
    """Records that no snapshot replaces: another party has deleted or compacted them."""
    TOPIC = "topic"
    """All records: the topic was deleted."""


@dataclass(slots=True)
class _Memory:
    """What this process had read before the log lost records."""

    tree: Tree
    digests: Mapping[int, tuple[str, int]]
    """As in `StateReplica`."""
    is_continued: bool
    """Whether a snapshot in the log includes all of it: this process was only slow."""
    is_tail_lost: bool
    """Whether the log has not all of these records any more, so that a restore of another process may lack some."""
    values: dict[str, LostValue] = field(default_factory=dict)
    """What an earlier loss has taken from the log that is lost now."""
    audit: list[AuditEntry] = field(default_factory=list)
    """The same of audit records."""

    def digest(self, offset: int) -> str:
        return self.digests.get(offset, ("", 0))[0]


class StateReader:
    """The state of a topic in one process, whatever happens to the topic."""

    def __init__(
        self,
        term_path: str,
        new_id: Callable[[], str],
        is_kept: Callable[[str], bool],
        audit_records: int = MAX_AUDIT_RECORDS,
    ) -> None:
        """Prepare; nothing is known.

        Args:
            term_path: the node whose version is the fence of the newest term.
            new_id: returns a new id for a record of this process.
            is_kept: whether the node of a path is written again after its loss. Heartbeats are not.
            audit_records: number of audit records to keep.
        """
        self._term_path, self._new_id, self._is_kept, self._audit_records = term_path, new_id, is_kept, audit_records
        self.replica = StateReplica("", 1, term_path, audit_records)
        self.has_been_current = False
        """Whether the tree was once that of the whole log. Otherwise it must not replace records that were lost."""
        self.restored_entries = 0
        """Number of entries that this process has written again."""
        self.losses = {LogLoss.TAIL: 0, LogLoss.BEGINNING: 0, LogLoss.TOPIC: 0}
        """How often records were missing that the log once had."""
        self._log_start = self._reported_start = 0
        """Offset of the first record that exists, and the last one of these before which records were missing."""
        self._own_topic_id = ""
        """The last topic that had records of ours."""
        self._memory: _Memory | None = None
        self._restore: tuple[CopyHeader, int] | None = None
        """The parts that were appended, and the end before them; None: none were."""
        self._has_answer = False
        """Whether a read of this replica was answered. A process without records of the log says nothing about it."""
        self._end_time = math.inf
        """Since when a loss is known; for a log without a tree, since the newest record of ours. Infinite: no loss."""

    @property
    def tree(self) -> Tree:
        """The last tree that is known."""
        return self._memory.tree if self._memory is not None else self.replica.tree

    @property
    def has_memory(self) -> bool:
        """Whether this process knows what the log has lost."""
        return self._memory is not None

    @property
    def is_ready(self) -> bool:
        """Whether the tree is that of the log. Otherwise this process writes nothing but what was lost."""
        return self.replica.is_complete and self._memory is None and self._has_answer and not self.is_foreign

    @property
    def is_foreign(self) -> bool:
        """Whether the topic has records of another program, and none of ours."""
        replica = self.replica
        is_known = replica.has_own_records or replica.topic_id == self._own_topic_id
        return replica.foreign_records > 0 and not is_known

    def begin(self, topic_id: str, start: int, is_tail_lost: bool = False) -> None:
        """Begin to read a topic, or continue.

        Args:
            topic_id: of the topic that exists.
            start: offset of its first record.
            is_tail_lost: whether the log has not all records any more that this process has read.
        """
        replica, is_continued = self.replica, topic_id == self.replica.topic_id and not is_tail_lost
        if is_continued and start <= replica.position:
            return
        if replica.topic_id and not is_continued:
            self.losses[LogLoss.TAIL if topic_id == replica.topic_id else LogLoss.TOPIC] += 1
        if self._memory is None:
            if replica.is_complete and self.has_been_current:
                self._memory, self._end_time = (
                    _Memory(replica.tree, replica.digests, is_continued, is_tail_lost),
                    math.inf,
                )
        elif replica.is_complete:
            values, audit = self._lost()
            self._memory = _Memory(self._merged(values), replica.digests, is_continued, is_tail_lost, values, audit)
        else:
            self._memory.is_continued &= is_continued
            self._memory.is_tail_lost |= is_tail_lost
        self.replica = StateReplica(topic_id, start, self._term_path, self._audit_records, self._own_topic_id)
        if self._memory is not None and topic_id == replica.topic_id:
            is_strict = self._memory.tree.is_strict
            self.replica.has_strict_records, self.replica.has_old_edits = is_strict, not is_strict
        self._restore, self._has_answer = None, False

    def read(self, answer: Records) -> list[EditResult]:
        """Apply the next records; return the results of edits."""
        results: list[EditResult] = []
        records, replica = answer.records, self.replica
        if records and records[0].offset == answer.start and replica.epoch not in (-1, records[0].epoch):
            # Kafka cannot compare the epochs of records that were deleted. So nothing shows that ours was among them.
            self.begin(replica.topic_id, answer.start, is_tail_lost=True)
        for record in records:
            self._continue_at(record.offset, answer)
            replica = self.replica
            last_record, last_tree, last_digests = replica.last_record, replica.tree, replica.digests
            was_complete, last_restore = replica.is_complete, replica.restored_version
            results += replica.accept(record)
            if replica.last_record != last_record and not replica.is_complete:
                self._end_time = math.inf
            if replica.restored_version != last_restore and was_complete and self._memory is None:
                self._memory, self._end_time = _Memory(last_tree, last_digests, False, False), math.inf
        self._continue_at(answer.next_offset, answer)
        self._has_answer, self._log_start = True, answer.start
        if self.replica.has_own_records:
            self._own_topic_id = self.replica.topic_id
        self._forget_if_continued()
        return results

    def reach_end(self) -> list[EditResult]:
        """Say that the log has no more records now; return the results of edits that could not be applied before."""
        results = self.replica.reach_end()
        start = max(self._log_start, self.replica.start)
        if start > self.replica.snapshot_base and start != self._reported_start:
            self._reported_start = start
            self.losses[LogLoss.BEGINNING] += 1
        self._forget_if_continued()
        return results

    def _continue_at(self, offset: int, answer: Records) -> None:
        """Begin anew if records are missing, because another party has compacted the topic."""
        replica = self.replica
        if offset > replica.position and replica.position - 1 in answer.skipped:
            replica.advance(offset)  # the first record of a batch that is skipped stands for all of them
        elif offset > replica.position:
            self.begin(replica.topic_id, offset)

    def _forget_if_continued(self) -> None:
        """Go on with the tree of a snapshot that includes all that this process had read."""
        memory, replica = self._memory, self.replica
        if memory is None or memory.values or memory.audit or not memory.is_continued:
            return
        is_included = replica.is_complete and replica.tree.has_edits_of(memory.tree)
        if is_included and replica.restored_version is None:
            self._memory = None

    def adopt(self, replica: StateReplica) -> None:
        """Replace the tree by that of another reading of the same log."""
        self.replica, self._memory = replica, None

    # Loss

    def lost_records(self, now: float, patience: float, led_last: bool) -> Sequence[bytes]:
        """Return the records to append at the end of the log, so that nothing is lost that this process had read.

        Args:
            now: the time, seconds.
            patience: how long another process may restore first, seconds. If the log has no tree, so many seconds must
                have passed without a record of ours, whose author would have one.
            led_last: whether this process led when the records were lost, and need not wait for another one.
        """
        memory, replica = self._memory, self.replica
        if memory is None or self.is_foreign:
            return []
        self._end_time = min(self._end_time, now)
        is_empty = replica.restored_version is None and not replica.tree.last_version
        is_restored_whole = not replica.is_complete or is_empty
        edits = [] if is_restored_whole else self._edits()
        if not is_restored_whole and not edits:
            self._memory = None
            return []
        is_alone = replica.is_complete or replica.last_record < 0
        if now < self._end_time + (0.0 if led_last and is_alone else patience):
            return []
        self._end_time = now
        if not is_restored_whole:
            self.restored_entries = len(edits)
            return [self._written_again(edit).encoded() for edit in edits]
        self.restored_entries = sum(1 for _ in memory.tree.nodes())
        return self.restore(memory.tree)

    def _lost(self) -> tuple[dict[str, LostValue], list[AuditEntry]]:
        """Return path -> value, and the audit records, that are in memory and not in the log."""
        memory, replica = self._memory, self.replica
        assert memory is not None
        if replica.restored_version is not None and not memory.is_tail_lost:  # it may be older than the memory
            common = min(replica.restored_version, memory.tree.last_version)
        elif memory.is_continued:
            common = memory.tree.last_version
        else:
            shared = (last for offset, (digest, last) in replica.digests.items() if digest == memory.digest(offset))
            common = max(shared, default=0)
        if common == memory.tree.last_version and not replica.tree.has_edits_of(memory.tree):
            # Another process has restored an older memory, from which newer versions began.
            common = replica.tree.newest_version(common)
        values = lost_values(memory.tree, replica.tree, common)
        audit = [entry for entry in memory.tree.audit if entry.version > common]
        return memory.values | {p: v for p, v in values.items() if self._is_kept(p)}, [*memory.audit, *audit]

    def _edits(self) -> list[StateEdit]:
        """Return the edits that write again what the log has lost."""
        memory, tree = self._memory, self.replica.tree
        assert memory is not None
        return [*edits_of_lost(*self._lost(), tree, memory.tree.is_strict)]

    def _merged(self, values: Mapping[str, LostValue]) -> Tree:
        """Return the tree of the log with what only the memory has."""
        tree = self.replica.tree.copy()
        for path, value in values.items():
            if value.is_newer_than(tree, path):
                tree.put(path, value.node)
                tree.last_version = max(tree.last_version, value.version)
        assert self._memory is not None
        tree.is_strict |= self._memory.tree.is_strict
        return tree

    def _written_again(self, edit: StateEdit) -> StateEdit:
        is_strict = edit.is_strict or self.replica.tree.is_strict
        return replace(edit, id=self._new_id(), topic=self.replica.topic_id, is_strict=is_strict)

    def restore(self, tree: Tree) -> Sequence[bytes]:
        """Return the next records of a restore of a whole tree: its parts, and then its commit."""
        replica = self.replica
        if not (tree.is_strict or replica.has_strict_records):
            header = CopyHeader(self._new_id(), replica.position, lost_before=replica.start)
            return tree.parts(header)[1]
        if self._restore is not None and replica.last_record < self._restore[1]:
            (header, begin), self._restore = self._restore, None
            return [Commit(header, begin, replica.position, max(replica.epoch, 0)).encoded()]
        header, parts = tree.parts(CopyHeader(self._new_id(), None, topic=replica.topic_id))
        self._restore = header, replica.position
        return parts

"""The state that follows from the records of the state topic. No IO, clock or lock.

Each record is an edit, a part of a copy of the tree, or a commit. Every process applies the same records in the same
order, and decides in the same way which of them are void. So the log alone orders all processes, and a record needs no
permission to be appended. The rule above all others: a reader that cannot judge a record has no tree. It waits for a
snapshot, instead of a guess that may differ from the trees of other readers.

- An edit is void if its term has ended, if it expects another version of a node, or if it is a second copy.
- A snapshot is the tree at its base. A reader without the beginning of the log takes it, if it began at or before the
  base. A part counts only after the base, and only if Kafka's leader has not changed since its author read the log: a
  log that loses its tail always gets a new leader epoch.
- A restore is a copy of a tree in the memory of a process, for a log that lacks its beginning. Its commit names the end
  that its author had read. It is void if a record of ours lies between them, since that record shows a process with a
  tree. Records of other parties may lie there.
- Records that name another topic are void.

A void edit may be newer than a valid one of the same node. So the topic is never compacted by key. The leader appends a
snapshot, and then deletes the records before the snapshot's base.

Before the marker (`StateEdit.is_strict`), processes of older versions may read the log. Until then their rules hold:
records need no topic, copies have no digest, a second copy of an edit may take effect, and a restore is void only if a
change follows the first record that existed. A reader that begins after the marker knows it by the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from autothrottle.adapters.kafka_state.records import (
    MAX_TIME,
    Commit,
    CopyHeader,
    CopyPart,
    StateEdit,
    author,
    check_number,
    parsed,
)
from autothrottle.adapters.kafka_state.topic import TopicRecord
from autothrottle.adapters.kafka_state.tree import EditResult, Tree
from autothrottle.core.errors import FIELD_ERRORS, Invalid
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS

_MAX_COPIES, _MAX_COPY_BYTES = 4, 128_000_000
"""Unfinished copies, and the bytes of their records. The oldest copy goes first, so that all readers that saw all parts
of a copy keep or drop it alike, whatever they saw before."""
_MAX_DIGESTS, _MAX_DIFFERING = 4096, 256

Entry = StateEdit | CopyPart | Commit


@dataclass(slots=True)
class _UnfinishedCopy:
    """The parts of one copy that have been read."""

    header: CopyHeader
    parts: dict[int, Sequence[Any]] = field(default_factory=dict)
    """Number -> rows."""
    size: int = 0
    """Bytes of the records."""

    @property
    def is_whole(self) -> bool:
        return len(self.parts) == self.header.parts

    def rows(self) -> Iterator[Any]:
        return chain.from_iterable(rows for _, rows in sorted(self.parts.items()))


class _Waiting(NamedTuple):
    """A record that cannot be applied before the tree at an earlier offset is known."""

    record: TopicRecord
    entry: Entry
    copy: _UnfinishedCopy | None
    """The copy whose last part this is; None: another one."""


class StateReplica:
    """What follows from the records of one topic from an offset on, if none of them is missing."""

    def __init__(
        self,
        topic_id: str,
        start: int,
        term_path: str,
        audit_records: int = MAX_AUDIT_RECORDS,
        last_topic_id: str = "",
    ) -> None:
        """Begin before the first record.

        Args:
            topic_id: records of other topics are void.
            start: offset of the first record; above 0, a snapshot is awaited.
            term_path: the node whose version is the fence of the newest term.
            audit_records: number of audit records to keep.
            last_topic_id: of the topic that this one replaces, whose records may come late; "": none.
        """
        self.topic_id, self.start, self.position = topic_id, start, start
        self._last_topic_id = last_topic_id
        self._term_path, self._audit_records = term_path, audit_records
        self.epoch = -1
        """Leader epoch of the last record; -1: none was read."""
        self.tree = self._empty_tree()
        self.is_complete = start == 0
        """Whether the tree includes all records before `position`."""
        self.snapshot_base = 0
        """The base of the newest snapshot in the log that agrees with the tree; 0: no snapshot does."""
        self.last_snapshot = ""
        """Id of the last whole snapshot that agrees with the tree."""
        self.restored_version: int | None = None
        """The last version of the tree that the newest restore has put into effect; None: there was no restore."""
        self.has_own_records = False
        self.foreign_records = 0
        """Number of records that are not ours."""
        self.last_foreign_offset = -1
        self.digests: dict[int, tuple[str, int]] = {}
        """Offset -> digest and last version of the tree before the record at this offset, for the newest offsets."""
        self.differing: dict[str, str] = {}
        """Process whose tree differs from ours -> a node that it writes."""
        self.last_record = self._last_change = -1
        """Offsets of the newest record of ours, and of the newest change; -1: none."""
        self.has_strict_records = self.has_old_edits = self._has_echoes = False
        """Whether a record shows that the strict rules hold, or that they do not, and whether this is a private log."""
        self._copies: dict[CopyHeader, _UnfinishedCopy] = {}
        self._waiting: list[_Waiting] = []
        self._old_copy: tuple[int, _UnfinishedCopy] | None = None
        """Offset of the first record that follows a copy of an older version, and this copy."""
        self._remember(start)

    def _empty_tree(self) -> Tree:
        return Tree(self._term_path, self._audit_records)

    def _loaded(self, copy: _UnfinishedCopy) -> Tree | None:
        """Return the tree of a whole copy; None: a field is wrong, or the digest."""
        tree = self._empty_tree()
        try:
            tree.load(copy.header, copy.rows())
        except FIELD_ERRORS:
            return None
        return tree

    # Reading

    def accept(self, record: TopicRecord) -> list[EditResult]:
        """Apply the next record; return the results of edits. A record that is not ours has no effect.

        The result is empty for an edit whose effect is unknown, because a snapshot is still awaited.
        """
        if record.offset > self.position:
            self._lose(record.offset)
        self._has_echoes |= record.offset < self.position
        self.position, self.epoch = max(self.position, record.offset + 1), record.epoch
        try:
            check_number(record.time, MAX_TIME)
            entry: Entry | None = parsed(record.value)
        except (*FIELD_ERRORS, Invalid):
            entry = None
        results: list[EditResult] = []
        topic = "" if entry is None else _topic(entry)
        self.has_own_records |= entry is not None and topic in ("", self.topic_id, self._last_topic_id)
        if entry is None or self._is_foreign(entry):
            self.foreign_records += not topic or topic != self._last_topic_id
            self.last_foreign_offset = record.offset
        else:
            results = self._take(_Waiting(record, entry, self._collected(record, entry)))
        self._remember(self.position)
        return results

    def _is_foreign(self, entry: Entry) -> bool:
        """Whether a record names another topic, or none although it must."""
        topic = _topic(entry)
        return topic != self.topic_id if topic or (self.is_complete and self.tree.is_strict) else False

    def _remember(self, offset: int) -> None:
        if self.is_complete:
            self.digests[offset] = self.tree.digest, self.tree.last_version
            if len(self.digests) > _MAX_DIGESTS:
                del self.digests[next(iter(self.digests))]

    def _collected(self, record: TopicRecord, entry: Entry) -> _UnfinishedCopy | None:
        """Add a part to its copy; return the copy if it is whole now."""
        if not isinstance(entry, CopyPart) or not _is_in_time(record, entry.header):
            return None
        header = entry.header
        copy = self._copies.setdefault(header, _UnfinishedCopy(header))
        # A reader with a tree needs no snapshot, only to know that it is whole.
        is_needed = not self.is_complete or header.base is None or header.lost_before is not None
        copy.parts[entry.number] = entry.rows if is_needed else ()
        copy.size += len(record.value)
        # Copies without a topic are void for a reader with a strict tree, so they never crowd out the others.
        rivals = [c for c in self._copies.values() if bool(c.header.topic) == bool(header.topic)]
        while len(rivals) > _MAX_COPIES or sum(c.size for c in rivals) > _MAX_COPY_BYTES:
            del self._copies[rivals.pop(0).header]
        if header.base is None or not copy.is_whole:
            return None
        return self._copies.pop(header, None)

    def _take(self, waiting: _Waiting) -> list[EditResult]:
        if self.is_complete:
            return self._apply(waiting)
        record, entry, copy = waiting
        self._waiting.append(waiting)
        if isinstance(entry, Commit):
            if entry.after >= self.start and self._takes_effect(record, entry):
                self._commit(record, entry)
            return []
        self._note(record, entry)
        if copy is None:
            return []
        base = record.offset + 1 if copy.header.lost_before is not None else copy.header.base
        assert base is not None
        if copy.header.topic:
            return self._begin_with(copy, base) if base >= self.start else []
        if self._old_copy is None and base >= self.start and self._is_old_restore_valid(copy.header):
            self._old_copy = base, copy
        return []

    def advance(self, offset: int) -> None:
        """Continue at an offset, without the records before it that were skipped."""
        self.position = max(self.position, offset)
        self._remember(self.position)

    def reach_end(self) -> list[EditResult]:
        """Say that the log has no more records now; return the results of edits that could not be applied before.

        Only now a copy of an older version is taken, if the other records show that the strict rules do not hold.
        """
        if self.is_complete or self._old_copy is None or self.has_strict_records or not self.has_old_edits:
            return []
        (base, copy), self._old_copy = self._old_copy, None
        return self._begin_with(copy, base)

    def _begin_with(self, copy: _UnfinishedCopy, base: int) -> list[EditResult]:
        """Take a copy as the tree before the record at its base, and apply the records from there on."""
        if (tree := self._loaded(copy)) is None:
            return []
        self.tree, self.is_complete, self.digests = tree, True, {}
        self.last_record = copy.header.last_record if copy.header.topic else base - 1
        if copy.header.lost_before is None:
            self.snapshot_base, self.last_snapshot = base, copy.header.id
        waiting, self._waiting, self._old_copy = self._waiting, [], None
        self._remember(base)
        results: list[EditResult] = []
        for entry in waiting:
            if entry.record.offset >= base:
                results += self._take(entry) if not self._is_foreign(entry.entry) else []
                self._remember(entry.record.offset + 1)
        return results

    # The rules

    def _apply(self, waiting: _Waiting) -> list[EditResult]:
        """Apply a record to the tree."""
        record, entry, copy = waiting
        if isinstance(entry, Commit):
            if (self.tree.is_strict or not self.tree.last_version) and self._takes_effect(record, entry):
                self._commit(record, entry)
            return []
        self._note(record, entry)
        if isinstance(entry, StateEdit):
            self._compare(entry)
            result = self.tree.apply(entry, record.time, record.epoch)
            return [] if result is None else [result]
        if copy is not None:
            self._meet(record, copy)
        return []

    def _note(self, record: TopicRecord, entry: StateEdit | CopyPart) -> None:
        """Remember what decides on later restores: which records of ours there were."""
        if isinstance(entry, CopyPart):
            self.has_strict_records |= bool(entry.header.topic) and entry.header.is_strict
            is_restore = entry.header.base is None
        else:
            self.has_strict_records |= bool(entry.topic) and entry.is_strict
            self.has_old_edits |= not entry.is_strict
            is_restore = False
            if entry.is_change:
                self._last_change = record.offset
        if not is_restore:
            self.last_record = record.offset

    def _takes_effect(self, record: TopicRecord, commit: Commit) -> bool:
        """Whether the log, as its author had read it, is the log that precedes a commit."""
        return commit.after_epoch == record.epoch and self.last_record < commit.after <= record.offset

    def _commit(self, record: TopicRecord, commit: Commit) -> None:
        """Replace the tree by that of a restore."""
        copy = self._copies.pop(commit.header, None)
        if copy is None or not copy.is_whole:
            if commit.begin < self.start:  # other readers may have all parts
                self._lose(record.offset + 1)
            return
        if (tree := self._loaded(copy)) is None:
            return
        self.restored_version = tree.last_version
        tree.is_strict, tree.epoch = True, record.epoch - 1
        tree.skip_versions(record.epoch)
        self.tree, self.is_complete, self.digests = tree, True, {}
        self._waiting, self._old_copy = [], None
        self.last_record = self._last_change = record.offset

    def _lose(self, offset: int) -> None:
        """Have no tree from an offset on."""
        self.is_complete, self.start, self.digests = False, offset, {}
        self._waiting, self._old_copy = [], None

    def _compare(self, edit: StateEdit) -> None:
        """Compare the author's tree with ours, at an offset that both have passed."""
        if edit.digest is None or self._has_echoes or edit.digest[0] not in self.digests:
            return
        process = author(edit.id)
        if edit.digest[1] == self.digests[edit.digest[0]][0]:
            self.differing.pop(process, None)
        elif process in self.differing or len(self.differing) < _MAX_DIFFERING:
            self.differing[process] = next(iter(edit.texts), self.differing.get(process, ""))

    def _meet(self, record: TopicRecord, copy: _UnfinishedCopy) -> None:
        """Read a whole snapshot or an old restore, having a tree."""
        header = copy.header
        if header.lost_before is not None:
            is_valid = not header.topic and not self.tree.is_strict and self._is_old_restore_valid(header)
            if is_valid and (tree := self._loaded(copy)) is not None:
                self.tree, self._last_change = tree, record.offset
            return
        assert header.base is not None
        if header.topic and self.digests.get(header.base, ("",))[0] != header.digest:
            return
        if header.topic or header.base > self.snapshot_base:
            self.snapshot_base, self.last_snapshot = header.base, header.id

    def _is_old_restore_valid(self, header: CopyHeader) -> bool:
        return header.lost_before is None or self._last_change < header.lost_before


def _topic(entry: Entry) -> str:
    return entry.topic if isinstance(entry, StateEdit) else entry.header.topic


def _is_in_time(record: TopicRecord, header: CopyHeader) -> bool:
    """Whether a part follows the base of its copy, in the log that its author had read. Old parts always count."""
    if not header.topic:
        return True
    return (header.base or 0) <= record.offset and (header.base is None or header.epoch == record.epoch)

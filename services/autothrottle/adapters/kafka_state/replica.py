"""The state that follows from the records of the state topic. No IO, clock or lock.

Each record is an edit or a part of a snapshot. Every process applies the same records in the same order, and decides in
the same way which edits are void: those of an ended term, and those that expect another version of a node. So the log
alone orders all processes, and a record needs no permission to be appended.

A void edit may be newer than a valid one of the same node. So the topic is never compacted by key. The leader appends a
snapshot of all nodes, and then deletes the records before the snapshot's base. Until a snapshot is complete, nothing is
deleted, and a snapshot that is incomplete has no effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import orjson

from autothrottle.core.errors import FIELD_ERRORS
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS

_FORMAT = 1
_PART_BYTES = 400_000
"""Approximate size of one part of a snapshot; Kafka refuses records above 1 MB by default."""

_VERSIONS_PER_MILLISECOND = 1000
"""A topic that replaces a deleted one begins with larger versions, because fewer records than this are written on
average. The versions stay below 2^53 until the year 2255, so that a double holds them."""
_MOST_VERSION = 2**62
_MOST_TIME = 2**53 // _VERSIONS_PER_MILLISECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEdit:
    """A change of nodes. All of it is applied, or nothing."""

    id: str = ""
    """By it, the process that appended the edit recognizes it; `StateLog` sets it. A second copy has no further effect:
    each change of a stored value expects a version that the first copy replaces, and an audit record has this id."""
    fence: int = 0
    """The term that must be the newest; 0: the edit belongs to no term."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """Path -> the expected version of its node; 0: no node."""
    texts: Mapping[str, str | None] = field(default_factory=dict)
    """Path -> the node's new text; None: the node is deleted."""
    audit: str = ""
    """Text of the audit record; "": none."""

    @property
    def is_change(self) -> bool:
        """Whether it changes a stored value. Otherwise it is the heartbeat of a process, or empty."""
        return bool(self.fence or self.versions or self.audit)

    def encoded(self) -> bytes:
        """Return the record."""
        fields: dict[str, Any] = {"v": _FORMAT, "id": self.id}
        optional = {"fence": self.fence, "versions": self.versions, "texts": self.texts, "audit": self.audit}
        return orjson.dumps(fields | {name: value for name, value in optional.items() if value})


class Effect(Enum):
    """What an edit did."""

    APPLIED = "applied"
    OUTRUN = "outrun"
    """Nothing: another edit had changed one of the nodes."""
    TERM_OVER = "term over"
    """Nothing: its term had ended."""


class StoredText(NamedTuple):
    """A node. A tuple, because the ledger may have 100,000 of them."""

    text: str
    version: int
    time: int
    """When the record of its last write was appended, milliseconds since 1970."""


class AuditEntry(NamedTuple):
    """An audit record, with the version of the change that it describes."""

    number: int
    time: int
    version: int
    edit_id: str
    text: str


@dataclass(frozen=True, slots=True)
class EditResult:
    """The result of an edit."""

    edit: StateEdit
    effect: Effect
    version: int
    """The version that its nodes have now; also its number, since every applied edit has a new one. 0: void."""
    fence: int
    """The newest term after this edit."""


class Tree:
    """All nodes at one position of the log."""

    def __init__(self, term_path: str, audit_records: int = MAX_AUDIT_RECORDS) -> None:
        """Create an empty tree; `term_path` is the node whose version is the fence of the newest term."""
        self._term_path = term_path
        self.last_version = 0
        """The version of the last applied edit."""
        self._children: dict[str, dict[str, StoredText]] = {}
        self.audit: deque[AuditEntry] = deque(maxlen=audit_records)

    @property
    def fence(self) -> int:
        """The newest term; 0: none has begun."""
        return self.version(self._term_path)

    def node(self, path: str) -> StoredText | None:
        """Return a node; None: it does not exist."""
        parent, _, name = path.rpartition("/")
        return self._children.get(parent, {}).get(name)

    def version(self, path: str) -> int:
        """Return a node's version; 0: it does not exist."""
        node = self.node(path)
        return node.version if node else 0

    def children(self, path: str) -> Mapping[str, StoredText]:
        """Return name -> node, for the nodes directly below a path."""
        return self._children.get(path, {})

    def nodes(self) -> Iterator[tuple[str, StoredText]]:
        """Yield the path and node of all nodes."""
        for parent, children in self._children.items():
            for name, node in children.items():
                yield f"{parent}/{name}", node

    def apply(self, edit: StateEdit, time: int) -> EditResult:
        """Apply an edit, or nothing of it if it is void.

        Args:
            edit: the next edit of the log.
            time: when it was appended, milliseconds since 1970.
        """
        if edit.fence and edit.fence != self.fence:
            return EditResult(edit, Effect.TERM_OVER, 0, self.fence)
        if any(self.version(path) != version for path, version in edit.versions.items()):
            return EditResult(edit, Effect.OUTRUN, 0, self.fence)
        if edit.audit and any(entry.edit_id == edit.id for entry in self.audit):
            return EditResult(edit, Effect.OUTRUN, 0, self.fence)
        if edit.texts or edit.audit:
            self.last_version = max(self.last_version + 1, 0 if self.last_version else time * _VERSIONS_PER_MILLISECOND)
        for path, text in edit.texts.items():
            self.put(path, None if text is None else StoredText(text, self.last_version, time))
        if edit.audit:
            number = self.audit[-1].number + 1 if self.audit else 1
            self.audit.append(AuditEntry(number, time, self.last_version, edit.id, edit.audit))
        return EditResult(edit, Effect.APPLIED, self.last_version, self.fence)

    def put(self, path: str, node: StoredText | None) -> None:
        """Create, replace or remove (None) a node."""
        parent, _, name = path.rpartition("/")
        if node is not None:
            self._children.setdefault(parent, {})[name] = node
        elif parent in self._children:
            self._children[parent].pop(name, None)

    def copy(self) -> Tree:
        """Return a copy that later edits do not change."""
        copy = Tree(self._term_path, self.audit.maxlen or MAX_AUDIT_RECORDS)
        copy.last_version, copy.audit = self.last_version, self.audit.copy()
        copy._children = {parent: dict(children) for parent, children in self._children.items()}
        return copy

    def parts(self, snapshot_id: str, base: int, lost_before: int | None = None) -> list[bytes]:
        """Return the records of a snapshot of this tree.

        Args:
            snapshot_id: unique, since two processes may append their snapshots at the same time.
            base: offset of the first record that the snapshot does not include.
            lost_before: the snapshot replaces records that were lost. Offset of the first record that still existed;
                the snapshot has no effect if it is not the first change at or after this offset. None: nothing was
                lost.
        """
        rows: list[Any] = [["node", path, *node] for path, node in self.nodes()]
        rows += [["audit", *entry] for entry in self.audit]
        groups: list[list[Any]] = [[]]
        size = 0
        for row in rows:
            if size > _PART_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(row)
            size += len(row[-1] if row[0] == "audit" else row[2]) + 100
        header = {"v": _FORMAT, "id": snapshot_id, "base": base, "lost_before": lost_before, "parts": len(groups)}
        header["last_version"] = self.last_version
        return [orjson.dumps({"snapshot": {**header, "part": n, "rows": group}}) for n, group in enumerate(groups)]


class StateReplica:
    """Applies the records of one topic. Before it is complete, it waits for a snapshot."""

    def __init__(self, term_path: str, audit_records: int = MAX_AUDIT_RECORDS) -> None:
        self._term_path, self._audit_records = term_path, audit_records
        self.tree = self._empty_tree()
        self.is_complete = False
        """Whether the tree includes all records before `position`. If not, it may be the tree of a lost topic."""
        self.position = 0
        """Offset of the next record."""
        self.start = 0
        """Offset of the first record that existed when this replica last began."""
        self.snapshot_base = 0
        """The base of the newest complete snapshot in the log; 0: the log has no complete snapshot."""
        self.has_been_current = False
        """Whether the tree was once that of the whole log. Otherwise it must not replace records that were lost."""
        self.lost: Tree | None = None
        """The last tree of a topic that was deleted and that another process has replaced; None: no topic was."""
        self._snapshots: dict[str, dict[int, Sequence[Any]]] = {}
        """Id -> number of a part -> its rows, for snapshots that are not complete."""
        self._last_edit = -1
        """Offset of the newest change in this topic; -1: none."""
        self._waiting: list[tuple[int, int, StateEdit]] = []
        """(offset, time, edit) of the edits that follow the base of the awaited snapshot."""

    def _empty_tree(self) -> Tree:
        return Tree(self._term_path, self._audit_records)

    def begin(self, start: int, is_new_topic: bool) -> None:
        """Start to read a topic, or continue after a part of it was deleted.

        Args:
            start: offset of the first record that exists.
            is_new_topic: whether this is another topic than before.
        """
        self.start = start
        if not is_new_topic and start <= self.position:
            return
        if is_new_topic:
            self.snapshot_base, self._last_edit = 0, -1
        if not self.has_been_current:
            self.tree = self._empty_tree()
        self.position = start
        self.is_complete = start == 0 and not self.tree.last_version
        self._waiting, self._snapshots = [], {}

    def advance(self, offset: int) -> None:
        """Continue at an offset. If records before it are missing, another party has compacted the topic."""
        if offset > self.position:
            self.begin(offset, False)

    def accept(self, offset: int, time: int, value: bytes) -> list[EditResult]:
        """Apply the next record; return the results of edits. A record that is not ours has no effect.

        The result is empty for an edit whose effect is unknown, because a snapshot is still awaited.
        """
        self.advance(offset)
        self.position = offset + 1
        try:
            _check_number(time, _MOST_TIME)
            content = orjson.loads(value)
            if "snapshot" in content:
                return self._accept_part(offset, content["snapshot"])
            edit = _edit(content)
        except FIELD_ERRORS:
            return []
        if edit.is_change:
            self._last_edit = offset
            if not self.is_complete and self.start == 0:  # another process began anew, without the lost records
                self.lost = self.tree
                self.tree, self.is_complete = self._empty_tree(), True
        if not self.is_complete:
            self._waiting.append((offset, time, edit))
            return []
        return [self.tree.apply(edit, time)]

    def _accept_part(self, offset: int, part: Mapping[str, Any]) -> list[EditResult]:
        if part["v"] != _FORMAT:
            return []
        for name in ("base", "part", "parts", "last_version", "lost_before"):
            if name != "lost_before" or part[name] is not None:
                _check_number(part[name], _MOST_VERSION)
        snapshot = self._snapshots.setdefault(part["id"], {})
        snapshot[part["part"]] = part["rows"]
        if len(snapshot) < part["parts"]:
            return []
        rows = [row for number in sorted(snapshot) for row in snapshot[number]]
        self._snapshots = {}  # the others are older, or their author appends them again
        if part["lost_before"] is not None:
            return self._restore(offset, part, rows)
        if part["base"] < self.start:
            return []  # records that follow its base were deleted
        self.snapshot_base = max(self.snapshot_base, part["base"])
        if self.is_complete:
            return []
        self._load(part["last_version"], rows)
        waiting, self._waiting = self._waiting, []
        return [self.tree.apply(edit, time) for at, time, edit in waiting if at >= part["base"]]

    def _restore(self, offset: int, part: Mapping[str, Any], rows: Sequence[Any]) -> list[EditResult]:
        """Take over the state of a process that knew records which were lost, unless the log went on without it."""
        if self._last_edit >= part["lost_before"]:
            return []
        self._load(part["last_version"], rows)
        self._last_edit, self._waiting = offset, []
        return []

    def _load(self, last_version: int, rows: Sequence[Any]) -> None:
        tree = self._empty_tree()
        tree.last_version = last_version
        for kind, *fields in rows:
            if tuple(map(type, fields)) != _ROW_TYPES[kind]:
                raise TypeError(f"a field of the row {kind!r} has another type")
            record: AuditEntry | StoredText
            if kind == "audit":
                record = AuditEntry(*fields)
                _check_number(record.number, _MOST_VERSION)
                tree.audit.append(record)
            else:
                record = StoredText(*fields[1:])
                tree.put(fields[0], record)
            _check_number(record.version, last_version)
            _check_number(record.time, _MOST_TIME)
        self.tree, self.is_complete = tree, True


_ROW_TYPES = {"node": (str, str, int, int), "audit": (int, int, int, str, str)}


def _check_number(number: object, most: int) -> None:
    if type(number) is not int or not 0 <= number <= most:
        raise ValueError(f"{number!r} is not a number from 0 to {most}")


def _edit(content: Mapping[str, Any]) -> StateEdit:
    """Return the edit of a record, or raise one of `FIELD_ERRORS` if it is not ours."""
    if content["v"] != _FORMAT:
        raise ValueError(f"format {content['v']!r} is not {_FORMAT}")
    edit = StateEdit(
        id=content["id"],
        fence=content.get("fence", 0),
        versions=content.get("versions", {}),
        texts=content.get("texts", {}),
        audit=content.get("audit", ""),
    )
    texts = (edit.id, edit.audit, *edit.texts, *edit.versions, *(t for t in edit.texts.values() if t is not None))
    numbers = (edit.fence, *edit.versions.values())
    if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
        raise TypeError("a text or a number has another type")
    return edit

"""All nodes of the state at one position of the log. The type to know is `Tree`. No IO, clock or lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from autothrottle.adapters.kafka_state.records import (
    MAX_TIME,
    CopyHeader,
    CopyPart,
    StateEdit,
    check_number,
)
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS

_PART_BYTES = 400_000
"""Approximate size of one part of a copy; Kafka refuses records above 1 MB by default."""
_VERSIONS_PER_MILLISECOND = 1000
"""A topic that replaces a deleted one begins with larger versions, because fewer records than this are written on
average. The versions stay below 2^53 until the year 2255, so that a double holds them."""
_VERSIONS_PER_EPOCH = 1_000_000
"""Versions that a new leader epoch and a restore skip. So a version that was lost is never given again."""
_MAX_AUTHORS, _MAX_EDITED, _MAX_DIGITS = 256, 10_000, 18


class Effect(Enum):
    """What an edit did."""

    APPLIED = "applied"
    OUTRUN = "outrun"
    """Nothing: another edit had changed one of the nodes, or Kafka had elected another leader of the partition."""
    TERM_OVER = "term over"
    """Nothing: its term had ended."""


class StoredText(NamedTuple):
    """A node. A tuple, because the ledger may have 100,000 of them."""

    text: str
    version: int
    time: int
    """When its last write was made, milliseconds since 1970."""


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
        self.epoch = -1
        """Leader epoch of the record with the last version; -1: unknown, before the tree is strict."""
        self.is_strict = False
        """Whether the strict rules of `replica` hold."""
        self._children: dict[str, dict[str, StoredText]] = {}
        self.audit: deque[AuditEntry] = deque(maxlen=audit_records)
        self._numbers: dict[str, int] = {}
        """Process -> number of its last edit, the newest process last; empty before the tree is strict."""
        self.edited: dict[str, int] = {}
        """Path -> version of the edit, for the nodes that were last deleted or written again.

        Their own version does not show it. This is not a part of copies in the log.
        """
        self._hash = 0

    @property
    def digest(self) -> str:
        """A number that differs between different trees, as 16 hexadecimal digits."""
        return f"{self._hash ^ _hash(self.last_version, self.epoch, self.is_strict):016x}"

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

    def apply(self, edit: StateEdit, time: int, epoch: int) -> EditResult | None:
        """Apply an edit, or nothing of it if it is void.

        Args:
            edit: the next edit of the log.
            time: when it was appended, milliseconds since 1970.
            epoch: leader epoch of its record.

        Returns:
            The result; None: it is a second copy.
        """
        if self.is_strict:
            if not self._is_first_copy(edit.id):
                return None
            time = edit.time
            if edit.epoch not in (-1, epoch):
                return EditResult(edit, Effect.OUTRUN, 0, self.fence)
        if edit.fence and edit.fence != self.fence:
            return EditResult(edit, Effect.TERM_OVER, 0, self.fence)
        if any(self.version(path) != version for path, version in edit.versions.items()):
            return EditResult(edit, Effect.OUTRUN, 0, self.fence)
        if edit.audit and any(entry.edit_id == edit.id for entry in self.audit):
            return EditResult(edit, Effect.OUTRUN, 0, self.fence)
        if edit.is_strict and not self.is_strict:
            self.is_strict, self.epoch = True, epoch
        if edit.texts or edit.audit:
            self.last_version = self._next_version(time, epoch)
        for path, text in edit.texts.items():
            if text is None or path in edit.origins:
                self._note_edit(path)
            version = edit.origins.get(path, self.last_version)
            self.last_version = max(self.last_version, version)
            self.put(path, None if text is None else StoredText(text, version, time))
        if edit.audit:
            number = self.audit[-1].number + 1 if self.audit else 1
            self.add_audit(AuditEntry(number, time, self.last_version, edit.id, edit.audit))
        return EditResult(edit, Effect.APPLIED, self.last_version, self.fence)

    def _next_version(self, time: int, epoch: int) -> int:
        if not self.last_version:
            return max(1, time * _VERSIONS_PER_MILLISECOND)
        if self.is_strict:
            self.skip_versions(epoch)
        return self.last_version + 1

    def skip_versions(self, epoch: int) -> None:
        """Never give a version in this epoch that a continuation of the log in an earlier epoch may have given."""
        if self.last_version:  # otherwise the time begins the versions
            self.last_version += _VERSIONS_PER_EPOCH * max(0, epoch - self.epoch)
        self.epoch = epoch

    def _note_edit(self, path: str) -> None:
        self.edited.pop(path, None)
        self.edited[path] = self.last_version
        if len(self.edited) > _MAX_EDITED:
            del self.edited[next(iter(self.edited))]

    def _is_first_copy(self, edit_id: str) -> bool:
        """Whether this is the first edit of its id, which ends with a number that grows; remember it."""
        process, _, digits = edit_id.rpartition("-")
        number = int(digits) if digits.isdecimal() and len(digits) <= _MAX_DIGITS else -1
        if number <= self._numbers.get(process, -1):
            return False
        self._set_number(process, number)
        while len(self._numbers) > _MAX_AUTHORS:
            oldest_process = next(iter(self._numbers))
            self._hash ^= _hash(oldest_process, self._numbers.pop(oldest_process))
        return True

    def has_edits_of(self, other: Tree) -> bool:
        """Whether all edits that another tree has read were read here, too; known of strict trees."""
        return all(number <= self._numbers.get(process, -1) for process, number in other._numbers.items())

    def newest_version(self, limit: int) -> int:
        """Return the newest version up to a limit that a node or an audit record has; 0: none has."""
        versions = [*(node.version for _, node in self.nodes()), *(entry.version for entry in self.audit)]
        return max((version for version in versions if version <= limit), default=0)

    def _set_number(self, process: str, number: int) -> None:
        if (last_number := self._numbers.pop(process, None)) is not None:
            self._hash ^= _hash(process, last_number)
        self._numbers[process] = number
        self._hash ^= _hash(process, number)

    def put(self, path: str, node: StoredText | None) -> None:
        """Create, replace or remove (None) a node."""
        parent, _, name = path.rpartition("/")
        path = f"{parent}/{name}"  # as `nodes` names it, if a foreign record has a path without a slash
        children = self._children.setdefault(parent, {})
        if (last_node := children.pop(name, None)) is not None:
            self._hash ^= _hash(path, *last_node)
        if node is not None:
            children[name] = node
            self._hash ^= _hash(path, *node)

    def add_audit(self, entry: AuditEntry) -> None:
        """Add the newest audit record; the oldest one beyond the limit goes."""
        if len(self.audit) == self.audit.maxlen:
            self._hash ^= _hash(*self.audit.popleft())
        self.audit.append(entry)
        self._hash ^= _hash(*entry)

    def copy(self) -> Tree:
        """Return a copy that later edits do not change."""
        copy = Tree(self._term_path, self.audit.maxlen or MAX_AUDIT_RECORDS)
        copy.last_version, copy.epoch, copy.is_strict = self.last_version, self.epoch, self.is_strict
        copy.audit, copy._numbers, copy._hash = self.audit.copy(), dict(self._numbers), self._hash
        copy.edited = dict(self.edited)
        copy._children = {parent: dict(children) for parent, children in self._children.items()}
        return copy

    # Copies in the log

    def rows(self) -> Iterator[Sequence[Any]]:
        """Yield the kind and the fields of each row.

        `node` has a path and a `StoredText`, `audit` an `AuditEntry`, and `author` a process and the number of its last
        edit. `strict` has no field: older versions cannot read a copy with it, so they refuse to start.
        """
        if self.is_strict:
            yield ("strict",)
        for path, node in self.nodes():
            yield ("node", path, *node)
        for entry in self.audit:
            yield ("audit", *entry)
        for process, number in self._numbers.items():
            yield ("author", process, number)

    def parts(self, header: CopyHeader) -> tuple[CopyHeader, Sequence[bytes]]:
        """Return the complete header and the records of a copy of this tree; the header needs nothing of the tree."""
        groups: list[list[Sequence[Any]]] = [[]]
        size = 0
        for row in self.rows():
            if size > _PART_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(row)
            size += sum(len(value) for value in row if isinstance(value, str)) + 60
        header = replace(
            header,
            parts=len(groups),
            last_version=self.last_version,
            tree_epoch=self.epoch,
            is_strict=self.is_strict,
            digest=self.digest,
        )
        return header, [CopyPart(header, number, group).encoded() for number, group in enumerate(groups)]

    def load(self, header: CopyHeader, rows: Iterator[Sequence[Any]]) -> None:
        """Fill this empty tree from the rows of a copy, or raise one of `FIELD_ERRORS`; it is then of no use."""
        self.last_version, self.epoch, self.is_strict = header.last_version, header.tree_epoch, header.is_strict
        for kind, *fields in rows:
            if tuple(map(type, fields)) != _ROW_TYPES[kind]:
                raise TypeError(f"a field of the row {kind!r} has another type")
            if kind == "strict":
                continue
            if kind == "author":
                self._set_number(fields[0], check_number(fields[1]))
                continue
            record: AuditEntry | StoredText
            if kind == "audit":
                record = AuditEntry(*fields)
                check_number(record.number)
                self.add_audit(record)
            else:
                record = StoredText(*fields[1:])
                self.put(fields[0], record)
            check_number(record.version, header.last_version)
            check_number(record.time, MAX_TIME)
        if header.digest and header.digest != self.digest:
            raise ValueError(f"the copy {header.id} has not the digest that it names")


_ROW_TYPES = {"strict": (), "node": (str, str, int, int), "audit": (int, int, int, str, str), "author": (str, int)}


def _hash(*values: object) -> int:
    return int.from_bytes(blake2b(orjson.dumps(values), digest_size=8).digest(), "big")


class LostValue(NamedTuple):
    """A value that a log has lost."""

    node: StoredText | None
    """The node; None: it was deleted."""
    version: int
    """Of the node, or of its deletion."""

    def is_newer_than(self, tree: Tree, path: str) -> bool:
        """Whether a tree lacks the value, and has not changed it since."""
        version = tree.version(path)
        return version < self.version and (self.node is not None or version > 0)


def lost_values(memory: Tree, tree: Tree, common_version: int) -> dict[str, LostValue]:
    """Return path -> what is in memory alone.

    Args:
        memory: the tree before the loss.
        tree: the tree of the log now.
        common_version: the last version that both share; 0: none.
    """
    values = {path: LostValue(node, node.version) for path, node in memory.nodes() if node.version > common_version}
    for path, version in memory.edited.items():
        if version > common_version and path not in values:
            node = memory.node(path)
            values[path] = LostValue(node, node.version if node else version)
    return {path: value for path, value in values.items() if value.is_newer_than(tree, path)}


def edits_of_lost(
    values: Mapping[str, LostValue], audit: Iterable[AuditEntry], tree: Tree, is_strict: bool
) -> Iterator[StateEdit]:
    """Yield the edits that write lost values and audit records again. A node that was changed since then stays.

    Args:
        values: path -> value.
        audit: records.
        tree: the tree of the log now.
        is_strict: whether the strict rules held before the loss.
    """
    if is_strict and not tree.is_strict:
        yield StateEdit(is_strict=True)
    for path, value in values.items():
        if not value.is_newer_than(tree, path):
            continue
        versions, node = {path: tree.version(path)}, value.node
        if node is None:
            yield StateEdit(versions=versions, texts={path: None})
        else:
            origins = {path: node.version} if is_strict or tree.is_strict else {}
            yield StateEdit(versions=versions, texts={path: node.text}, origins=origins, time=node.time)
    present = {(entry.time, entry.text) for entry in tree.audit}
    for entry in audit:
        if (entry.time, entry.text) not in present:
            yield StateEdit(audit=entry.text, time=entry.time)

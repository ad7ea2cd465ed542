"""The records of the state topic: edits, parts of a copy of the tree, and commits of a restore.

Each has `v` and an id. Since strict records exist (`StateEdit.is_strict`), each also has the id of its topic, so that
records of another cluster are void. Older versions ignore the fields that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import orjson

from autothrottle.core.codec import GIVEN, LEFT_OUT, ValueForm, decode, encode, stored

FORMAT = 1
MAX_RECORD_BYTES = 1_048_576
"""Larger records are void. Kafka's own limit is about the same, but an operator may raise it."""
MAX_VERSION = 2**62
MAX_TIME = 2**53 // 1000
"""Milliseconds since 1970, so that a version that begins with it stays exact in a double."""


_Version = Annotated[int, range(MAX_VERSION + 1)]
_Epoch = Annotated[int, range(-1, MAX_VERSION)]
"""-1: unknown, or any."""
_AnyInteger = Annotated[int, range(-(2**63), 2**64)]
"""Every integer that a record can hold: an impossible fence or version makes an edit void, not its record foreign."""


_DIGEST = ValueForm(lambda value: None if value is None else (check_number(value[0]), value[1]), list)
_IS_TRUE = ValueForm(lambda value: value is True, bool)
"""All processes must agree which records are valid, so these two accept what earlier versions accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEdit:
    """A change of nodes. All of it is applied, or nothing."""

    id: str = ""
    """`process-number`. By it, the process that appended the edit recognizes it, and a second copy is void. The numbers
    of a process grow. `StateLog` sets it."""
    fence: _AnyInteger = field(default=0, metadata=LEFT_OUT)
    """The term that must be the newest; 0: the edit belongs to no term."""
    versions: Mapping[str, _AnyInteger] = field(default_factory=dict, metadata=LEFT_OUT)
    """Path -> the expected version of its node; 0: no node."""
    texts: Mapping[str, str | None] = field(default_factory=dict, metadata=LEFT_OUT)
    """Path -> the node's new text; None: the node is deleted."""
    origins: Mapping[str, _Version] = field(default_factory=dict, metadata=LEFT_OUT)
    """Path -> the version that the node had before it was lost, and gets again; absent: a new one."""
    audit: str = field(default="", metadata=LEFT_OUT)
    """Text of the audit record; "": none."""
    topic: str = field(default="", metadata=LEFT_OUT)
    """Id of the topic; "": an older version wrote the record. `StateLog` sets it."""
    time: Annotated[int, range(MAX_TIME + 1)] = field(default=0, metadata=LEFT_OUT)
    """When its author wrote it, by the author's clock, milliseconds since 1970; 0: unknown. For people only."""
    epoch: _Epoch = field(default=-1, metadata=LEFT_OUT)
    """The leader epoch that its record must have, since a log that lost its tail may hide what the author must know;
    -1: any. Older versions ignore it."""
    digest: tuple[int, str] | None = field(default=None, metadata=stored(form=_DIGEST, is_left_out=True))
    """(offset, digest of the author's tree before the record at this offset); None: not compared."""
    is_strict: bool = field(default=False, metadata=stored("strict", _IS_TRUE, is_left_out=True))
    """Whether the strict rules of `replica` hold for its author. They hold from the first such record on."""

    @property
    def is_change(self) -> bool:
        """Whether it changes a stored value. Otherwise it is the heartbeat of a process, or empty."""
        return bool(self.fence or self.versions or self.audit)

    @property
    def size(self) -> int:
        """Approximate size of the record in bytes."""
        texts = sum(len(path) + len(text or "") for path, text in self.texts.items())
        return 200 + 2 * (texts + len(self.audit))

    def encoded(self) -> bytes:
        """Return the record."""
        return orjson.dumps({"v": FORMAT, **encode(self)})


def author(edit_id: str) -> str:
    """Return the process that an id of an edit names."""
    return edit_id.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class CopyHeader:
    """What all parts of one copy of a tree share."""

    id: str
    """Unique, since two processes may append their copies at the same time."""
    base: _Version | None
    """A snapshot: offset of the first record that it does not include. None: a `Commit` puts the copy into effect."""
    parts: _Version = 0
    last_version: _Version = 0
    lost_before: _Version | None = None
    """A restore of an older version: offset of the first record that still existed. None: it is none."""
    topic: str = ""
    """Id of the topic; "": an older version wrote the copy."""
    epoch: _Epoch = -1
    """A snapshot: leader epoch of the last record that its author had read."""
    last_record: _Epoch = -1
    """Offset of the last record of ours before the base."""
    tree_epoch: _Epoch = -1
    is_strict: bool = False
    digest: str = ""
    """Of the tree."""


@dataclass(frozen=True, slots=True)
class CopyPart:
    """One part of a copy of a tree."""

    header: CopyHeader = field(metadata=GIVEN)
    number: _Version = field(metadata=stored("part"))
    rows: Sequence[Any]
    """A kind and its fields each; `tree.Tree.rows` says which."""

    def encoded(self) -> bytes:
        """Return the record."""
        return orjson.dumps({"snapshot": {"v": FORMAT, **encode(self.header), **encode(self)}})


@dataclass(frozen=True, slots=True)
class Commit:
    """Puts a copy of a tree into effect, if no record of ours follows the end that its author had read."""

    header: CopyHeader = field(metadata=GIVEN)
    """Of the copy, whose parts precede this record."""
    begin: _Version
    """All parts lie at or after this offset."""
    after: _Version
    """The end of the log that its author had read."""
    after_epoch: _Version
    """Leader epoch of the last record before this end."""

    def encoded(self) -> bytes:
        """Return the record."""
        return orjson.dumps({"commit": {"v": FORMAT, **encode(self.header), **encode(self)}})


def parsed(value: bytes) -> StateEdit | CopyPart | Commit:
    """Return the content of a record, or raise Invalid or one of `FIELD_ERRORS` if it is not ours."""
    if len(value) > MAX_RECORD_BYTES:
        raise ValueError(f"a record of {len(value)} bytes exceeds {MAX_RECORD_BYTES}")
    content = orjson.loads(value)
    kind: type[CopyPart | Commit] = CopyPart if "snapshot" in content else Commit
    fields = content.get("snapshot", content.get("commit", content))
    if fields["v"] != FORMAT or "id" not in fields:
        raise ValueError(f"format {fields['v']!r} is not {FORMAT}, or the id is missing")
    if fields is content:
        return decode(StateEdit, fields)
    header = decode(CopyHeader, fields)
    record = decode(kind, fields, header=header)
    if isinstance(record, CopyPart) and record.number >= header.parts:
        raise ValueError(f"part {record.number} of {header.parts}")
    return record


def check_number(number: Any, most: int = MAX_VERSION) -> int:
    """Return a number from 0 to `most`, or raise ValueError."""
    if type(number) is not int or not 0 <= number <= most:
        raise ValueError(f"{number!r} is not a number from 0 to {most}")
    return number

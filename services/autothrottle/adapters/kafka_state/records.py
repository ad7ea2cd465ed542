"""The records of the state topic: edits, parts of a copy of the tree, and commits of a restore.

Each has `v` and an id. Since strict records exist (`StateEdit.is_strict`), each also has the id of its topic, so that
records of another cluster are void. Older versions ignore the fields that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

FORMAT = 1
MAX_RECORD_BYTES = 1_048_576
"""Larger records are void. Kafka's own limit is about the same, but an operator may raise it."""
MAX_VERSION = 2**62
MAX_TIME = 2**53 // 1000
"""Milliseconds since 1970, so that a version that begins with it stays exact in a double."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEdit:
    """A change of nodes. All of it is applied, or nothing."""

    id: str = ""
    """`process-number`. By it, the process that appended the edit recognizes it, and a second copy is void. The numbers
    of a process grow. `StateLog` sets it."""
    fence: int = 0
    """The term that must be the newest; 0: the edit belongs to no term."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """Path -> the expected version of its node; 0: no node."""
    texts: Mapping[str, str | None] = field(default_factory=dict)
    """Path -> the node's new text; None: the node is deleted."""
    origins: Mapping[str, int] = field(default_factory=dict)
    """Path -> the version that the node had before it was lost, and gets again; absent: a new one."""
    audit: str = ""
    """Text of the audit record; "": none."""
    topic: str = ""
    """Id of the topic; "": an older version wrote the record. `StateLog` sets it."""
    time: int = 0
    """When its author wrote it, by the author's clock, milliseconds since 1970; 0: unknown. For people only."""
    epoch: int = -1
    """The leader epoch that its record must have, since a log that lost its tail may hide what the author must know;
    -1: any. Older versions ignore it."""
    digest: tuple[int, str] | None = None
    """(offset, digest of the author's tree before the record at this offset); None: not compared."""
    is_strict: bool = False
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
        fields: dict[str, Any] = {"v": FORMAT, "id": self.id}
        optional = {
            "fence": self.fence,
            "versions": self.versions,
            "texts": self.texts,
            "origins": self.origins,
            "audit": self.audit,
            "topic": self.topic,
            "time": self.time,
            "digest": self.digest,
            "strict": self.is_strict,
        }
        fields |= {name: value for name, value in optional.items() if value}
        return orjson.dumps(fields if self.epoch < 0 else fields | {"epoch": self.epoch})


def author(edit_id: str) -> str:
    """Return the process that an id of an edit names."""
    return edit_id.rpartition("-")[0]


class CopyHeader(NamedTuple):
    """What all parts of one copy of a tree share."""

    id: str
    """Unique, since two processes may append their copies at the same time."""
    base: int | None
    """A snapshot: offset of the first record that it does not include. None: a `Commit` puts the copy into effect."""
    parts: int = 0
    last_version: int = 0
    lost_before: int | None = None
    """A restore of an older version: offset of the first record that still existed. None: it is none."""
    topic: str = ""
    """Id of the topic; "": an older version wrote the copy."""
    epoch: int = -1
    """A snapshot: leader epoch of the last record that its author had read."""
    last_record: int = -1
    """Offset of the last record of ours before the base."""
    tree_epoch: int = -1
    is_strict: bool = False
    digest: str = ""
    """Of the tree."""


class CopyPart(NamedTuple):
    """One part of a copy of a tree."""

    header: CopyHeader
    number: int
    rows: Sequence[Sequence[Any]]
    """A kind and its fields each; `tree.Tree.rows` says which."""

    def encoded(self) -> bytes:
        """Return the record."""
        fields = {"v": FORMAT, **self.header._asdict(), "part": self.number, "rows": self.rows}
        return orjson.dumps({"snapshot": fields})


@dataclass(frozen=True, slots=True)
class Commit:
    """Puts a copy of a tree into effect, if no record of ours follows the end that its author had read."""

    header: CopyHeader
    """Of the copy, whose parts precede this record."""
    begin: int
    """All parts lie at or after this offset."""
    after: int
    """The end of the log that its author had read."""
    after_epoch: int
    """Leader epoch of the last record before this end."""

    def encoded(self) -> bytes:
        """Return the record."""
        places = {"begin": self.begin, "after": self.after, "after_epoch": self.after_epoch}
        return orjson.dumps({"commit": {"v": FORMAT, **self.header._asdict(), **places}})


def parsed(value: bytes) -> StateEdit | CopyPart | Commit:
    """Return the content of a record, or raise one of `FIELD_ERRORS` if it is not ours."""
    if len(value) > MAX_RECORD_BYTES:
        raise ValueError(f"a record of {len(value)} bytes exceeds {MAX_RECORD_BYTES}")
    content = orjson.loads(value)
    if "snapshot" in content:
        fields = content["snapshot"]
        number, header, rows = check_number(fields["part"]), _header(fields), fields["rows"]
        if number >= header.parts or type(rows) is not list:
            raise ValueError(f"part {number} of {header.parts}")
        return CopyPart(header, number, rows)
    if "commit" in content:
        fields = content["commit"]
        places = (check_number(fields[name]) for name in ("begin", "after", "after_epoch"))
        return Commit(_header(fields), *places)
    return _edit(content)


def check_number(number: Any, most: int = MAX_VERSION) -> int:
    """Return a number from 0 to `most`, or raise ValueError."""
    if type(number) is not int or not 0 <= number <= most:
        raise ValueError(f"{number!r} is not a number from 0 to {most}")
    return number


def _header(fields: Mapping[str, Any]) -> CopyHeader:
    if fields["v"] != FORMAT:
        raise ValueError(f"format {fields['v']!r} is not {FORMAT}")
    header = CopyHeader(**{name: fields[name] for name in CopyHeader._fields if name in fields})
    for number in (header.base, header.lost_before):
        if number is not None:
            check_number(number)
    for number in (header.parts, header.last_version, header.epoch + 1, header.last_record + 1, header.tree_epoch + 1):
        check_number(number)
    if not all(type(text) is str for text in (header.id, header.topic, header.digest)):
        raise TypeError("a text has another type")
    if type(header.is_strict) is not bool:
        raise TypeError("is_strict has another type")
    return header


def _edit(content: Mapping[str, Any]) -> StateEdit:
    if content["v"] != FORMAT:
        raise ValueError(f"format {content['v']!r} is not {FORMAT}")
    digest = content.get("digest")
    edit = StateEdit(
        id=content["id"],
        fence=content.get("fence", 0),
        versions=content.get("versions", {}),
        texts=content.get("texts", {}),
        origins=content.get("origins", {}),
        audit=content.get("audit", ""),
        topic=content.get("topic", ""),
        time=check_number(content.get("time", 0), MAX_TIME),
        epoch=check_number(content.get("epoch", -1) + 1) - 1,
        digest=None if digest is None else (check_number(digest[0]), digest[1]),
        is_strict=content.get("strict", False) is True,
    )
    texts = (edit.id, edit.audit, edit.topic, *edit.texts, *edit.versions, *edit.origins)
    texts += tuple(text for text in edit.texts.values() if text is not None)
    numbers = (edit.fence, *edit.versions.values(), *map(check_number, edit.origins.values()))
    if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
        raise TypeError("a text or a number has another type")
    return edit

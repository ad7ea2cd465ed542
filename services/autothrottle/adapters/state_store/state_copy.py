"""A copy of our state in a file: a backup, and the way from one store to the other. The type to know is `StateCopy`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.codec import decode, encode, field_error
from autothrottle.core.errors import FIELD_ERRORS, Conflict, Invalid

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class AuditText:
    """One audit record as it is stored."""

    time: datetime
    """UTC."""
    version: int
    """That of the change which it records."""
    text: str


@dataclass(frozen=True, slots=True)
class StateCopy:
    """All of our state that outlives the processes."""

    fence: int
    """The newest term; 0: none has begun. Later terms have larger numbers, in whatever store."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Path below our root -> text: the ledger, and what operators set."""
    audit: Sequence[AuditText] = ()
    """Oldest first."""

    def encoded(self) -> str:
        """Return the content of a file."""
        content = {"version": _FORMAT, **encode(replace(self, nodes=dict(sorted(self.nodes.items()))))}
        return json.dumps(content, indent=1, ensure_ascii=False)


def parse_copy(content: str) -> StateCopy:
    """Parse the content of a file.

    Raises:
        Invalid: it is not a copy of our state, or one of a later version.
    """
    try:
        value = json.loads(content)
        version = value["version"]
        if version == _FORMAT:
            copy = decode(StateCopy, value)
            for path in copy.nodes:
                _check_path(path)
            return copy
    except (*FIELD_ERRORS, Invalid) as error:
        raise Invalid(f"the file is not a copy of our state: {field_error(error)}. Fix: export it again") from None
    raise Invalid(f"the copy has version {version!r}, and this program reads {_FORMAT}; update it")


def _check_path(path: str) -> None:
    """Check that a path of a node lies below our root.

    Raises:
        Invalid: it leads elsewhere, or no store takes it.
    """
    parts = path.split("/")
    if not all(parts) or not path.isprintable() or {".", ".."} & {*parts}:
        raise Invalid(f"{path[:60]!r} is not the path of a node")


def is_copied(own: OwnPaths, path: str) -> bool:
    """Whether a copy has this node. Candidates, members and the term belong to running processes."""
    name = path.removeprefix(f"{own.root}/").partition("/")[0]
    return path.startswith(f"{own.root}/") and f"{own.root}/{name}" not in {
        own.term,
        own.election,
        own.members,
        own.audit,
    }


def refuse_filled(place: str, entries: int, candidates: int, fix: str) -> None:
    """Check that a store is empty before a copy is loaded into it.

    Raises:
        Conflict: it has state, or a planner runs.
    """
    if candidates:
        raise Conflict(f"{place} has {candidates} candidates; stop every planner first")
    if entries:
        raise Conflict(
            f"{place} already has {entries} entries, and a copy is only loaded into an empty store. Fix: {fix}"
        )


def dated(record: AuditText) -> bytes:
    """Return the text of a record for a store that would date it by the import. An earlier import has dated it."""
    return compact_json({"time": record.time.astimezone(UTC).isoformat(), **json.loads(record.text)})

"""A replay of a state topic that is independent of the product's. No IO, clock or lock.

Each record is an edit, a part of a copy of the tree, or a commit, which puts a copy into effect. The replay reads the
whole log, so that it needs no snapshot: a copy without a commit has no effect. A record has no effect, either, if

- it is not one of ours, or names another topic; after the first strict record, also if it names none,
- its process has appended one with this number or a higher one (strict),
- its fence is not the newest term, or it expects another version of a path than the current one (0: absent),
- it names another leader epoch of the partition than its own (strict),
- it is a commit, and a record of ours precedes it that its author had not read.

Each edit with a change gets the next version. Since a log may lose its tail to a new leader of the partition, versions
skip a million for each leader epoch, and for a commit (strict).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from tests.chaos.on_kafka.state import Claim, LedgerWrite, holder

MAX_RECORD_BYTES = 1_048_576
"""Longer records are not ours."""
_VERSIONS_PER_MILLISECOND = 1000
_VERSIONS_PER_EPOCH = 1_000_000


@dataclass(slots=True)
class StateReplay:
    """The nodes after each record, and what the checker needs of their history."""

    topic_id: str = ""
    claims: list[Claim] = field(default_factory=list)
    ledger: list[LedgerWrite] = field(default_factory=list)
    heartbeats: dict[str, list[str]] = field(default_factory=dict)
    """Candidate -> ids of its heartbeats."""
    leaders: dict[str, str] = field(default_factory=dict)
    """Candidate -> name of the process that led as this candidate."""
    fenced: list[tuple[int, str]] = field(default_factory=list)
    """(fence, id) of the records with a fence that took effect."""
    void: int = 0
    """Number of records without effect."""
    is_strict: bool = False
    _versions: dict[str, int] = field(default_factory=dict)
    _audits: set[str] = field(default_factory=set)
    _numbers: dict[str, int] = field(default_factory=dict)
    """Process -> number of its last record."""
    _last_version: int = 0
    _epoch: int = -1
    """Leader epoch of the last record that changed something."""
    _last_record: int = -1
    """Offset of the last record of ours, apart from copies for a commit."""
    _copies: dict[str, dict[int, Sequence[Any]]] = field(default_factory=dict)
    """Id of a copy for a commit -> number of a part -> its rows."""

    def take(self, offset: int, milliseconds: int, epoch: int, value: bytes) -> None:
        """Apply a record.

        Args:
            offset: of the record.
            milliseconds: its time, since 1970.
            epoch: leader epoch of the partition when it was appended.
            value: the record, which may be of another client.
        """
        kind, fields = _content(value)
        topic = fields.get("topic", "")
        is_of_this_topic = topic == self.topic_id if topic else not self.is_strict
        if not fields or not is_of_this_topic:
            self.void += 1
        elif kind == "snapshot":
            if fields.get("base") is None:
                self._copies.setdefault(fields["id"], {})[fields["part"]] = fields["rows"]
            else:
                self._last_record = offset
        elif kind == "commit":
            self._commit(offset, milliseconds, epoch, fields)
        else:
            self._last_record = offset
            if not self._edit(milliseconds, epoch, fields):
                self.void += 1

    def _edit(self, milliseconds: int, epoch: int, edit: Mapping[str, Any]) -> bool:
        """Apply an edit; return whether it has an effect."""
        first_milliseconds = milliseconds
        if self.is_strict:
            first_milliseconds = edit.get("time", 0)
            if not self._is_first_copy(edit["id"]) or edit.get("epoch", epoch) != epoch:
                return False
        term = next((version for path, version in self._versions.items() if path.endswith("/term")), 0)
        fence: int = edit.get("fence", 0)
        expected: Mapping[str, int] = edit.get("versions", {})
        texts: Mapping[str, str | None] = edit.get("texts", {})
        is_outrun = any(self._versions.get(path, 0) != version for path, version in expected.items())
        if fence not in (0, term) or is_outrun or edit["id"] in self._audits:
            return False
        if edit.get("strict") and not self.is_strict:
            self.is_strict, self._epoch = True, epoch
        if fence:
            self.fenced.append((fence, edit["id"]))
        if "audit" in edit:
            self._audits.add(edit["id"])
        if texts or "audit" in edit:
            self._last_version = self._next_version(first_milliseconds, epoch)
        origins = edit.get("origins", {})
        for path, text in texts.items():
            version = origins.get(path, self._last_version)
            self._last_version = max(self._last_version, version)
            self._write(milliseconds / 1000, edit["id"], fence, path, text, version)
        return True

    def _is_first_copy(self, record_id: str) -> bool:
        process, _, digits = record_id.rpartition("-")
        number = int(digits) if digits.isdecimal() else -1
        if number <= self._numbers.get(process, -1):
            return False
        self._numbers[process] = number
        return True

    def _next_version(self, milliseconds: int, epoch: int) -> int:
        if not self._last_version:
            return max(1, milliseconds * _VERSIONS_PER_MILLISECOND)
        if self.is_strict:
            self._skip_versions(epoch)
        return self._last_version + 1

    def _skip_versions(self, epoch: int) -> None:
        self._last_version += _VERSIONS_PER_EPOCH * max(0, epoch - self._epoch)
        self._epoch = epoch

    def _commit(self, offset: int, milliseconds: int, epoch: int, commit: Mapping[str, Any]) -> None:
        """Replace all nodes by those of a copy, unless its author had not read the log up to here."""
        parts = self._copies.pop(commit["id"], {})
        is_current = commit["after_epoch"] == epoch and self._last_record < commit["after"] <= offset
        if not is_current or len(parts) != commit["parts"] or not (self.is_strict or not self._last_version):
            self.void += 1
            return
        rows = [row for _, part in sorted(parts.items()) for row in part]
        nodes = {path: (text, version) for kind, path, text, version, _ in (r for r in rows if r[0] == "node")}
        self._last_version, self._epoch = commit["last_version"], epoch - 1
        self._numbers = {process: number for kind, process, number in (r for r in rows if r[0] == "author")}
        for path in self._versions.keys() - nodes.keys():
            self._write(milliseconds / 1000, commit["id"], 0, path, None, 0)
        for path, (text, version) in nodes.items():
            if self._versions.get(path) != version:
                self._write(milliseconds / 1000, commit["id"], 0, path, text, version)
        self.is_strict, self._last_record = True, offset
        self._skip_versions(epoch)

    def _write(self, at: float, record_id: str, fence: int, path: str, text: str | None, version: int) -> None:
        if text is None:
            self._versions.pop(path, None)
        else:
            self._versions[path] = version
        parent, _, name = path.rpartition("/")
        if parent.endswith("/election") and text is not None:
            self.heartbeats.setdefault(name, []).append(record_id)
        if path.endswith("/term") and text:
            self.claims.append(Claim(at, version, holder(text)))
            self.leaders[json.loads(text)["holder"]] = holder(text)
        _, marker, entity = path.partition("/ledger/")
        if marker and "/" in entity:
            entry = None if text is None else parse_ledger_entry(text.encode())
            self.ledger.append(LedgerWrite(at, entity, entry, fence))


def _content(value: bytes) -> tuple[str, Mapping[str, Any]]:
    """Return (kind, fields) of a record; no fields: it is not one of ours."""
    try:
        content = json.loads(value) if len(value) <= MAX_RECORD_BYTES else None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return "", {}
    kind = next((kind for kind in ("snapshot", "commit") if kind in content), "")
    fields = content[kind] if kind else content
    is_ours = isinstance(fields, dict) and fields.get("v") == 1 and isinstance(fields.get("id"), str)
    return kind, fields if is_ours else {}

"""The ledger in the state topic. The types to know are `KafkaLedger` and `KafkaLedgerReader`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta

from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.kafka_state.tree import EditResult, Effect, StoredText
from autothrottle.adapters.state_store.ledger import quota_resource
from autothrottle.adapters.zookeeper.codec import format_ledger_entry, parse_ledger_entry, resource_of
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.cluster.configs import THROTTLED_TYPES, ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.errors import Invalid, NotLeader
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.ports.state_store import LedgerCopy

_EDIT_BYTES = 200_000
"""Approximate size of one edit. Several of them fit into one request."""


class KafkaLedger:
    """A `Ledger`. Thread-safe."""

    def __init__(self, state: StateLog, own: OwnPaths) -> None:
        self._state, self._own = state, own

    def read(
        self, resources: Collection[ConfigResource], deadline: float
    ) -> Mapping[ConfigResource, LedgerEntry | Invalid | None]:
        paths = {resource: self._own.ledger_entry(resource) for resource in resources}
        with self._state.synced(deadline) as tree:
            nodes = {resource: tree.node(path) for resource, path in paths.items()}
        return {r: None if node is None else _parsed(paths[r], node) for r, node in nodes.items()}

    def quota_entries(self, deadline: float) -> Mapping[ConfigResource, LedgerEntry | Invalid]:
        with self._state.synced(deadline) as tree:
            nodes = dict(tree.children(self._own.quota_ledger))
        return {
            resource: _parsed(f"{self._own.quota_ledger}/{name}", node)
            for name, node in nodes.items()
            if (resource := quota_resource(name)) is not None
        }

    def write(
        self, fence: int, entries: Mapping[ConfigResource, LedgerEntry | None], deadline: float
    ) -> Mapping[ConfigResource, Outcome]:
        texts = {
            self._own.ledger_entry(resource): None if entry is None else format_ledger_entry(entry).decode()
            for resource, entry in entries.items()
        }
        with self._state.synced(deadline) as tree:
            versions = {path: tree.version(path) for path in texts}
            absent = {path for path, text in texts.items() if text is None and not versions[path]}
        edits = [
            StateEdit(fence=fence, versions={path: versions[path] for path in group}, texts=group)
            for group in _groups({path: text for path, text in texts.items() if path not in absent})
        ]
        results = self._state.append_all(edits, deadline)
        effects = {path: result for result in results for path in result.edit.texts}
        if not effects:
            self.check_term(fence, deadline)
        return {resource: _outcome(resource, effects.get(self._own.ledger_entry(resource))) for resource in entries}

    def check_term(self, fence: int, deadline: float) -> None:
        result = self._state.append(StateEdit(fence=fence), deadline)
        if result.effect is not Effect.APPLIED:
            raise NotLeader(f"term {fence} is over; nothing more was written")


class KafkaLedgerReader:
    """A `LedgerReader` of the entries of brokers and topics. Thread-safe: concurrent callers may parse a text twice."""

    def __init__(self, state: StateLog, own: OwnPaths) -> None:
        self._state, self._own = state, own
        self._parsed: dict[str, tuple[int, LedgerEntry | Invalid]] = {}
        """Path -> (version, entry): each text is parsed once."""
        self._last: dict[ConfigResource, LedgerEntry] = {}

    def read(self, timeout: timedelta) -> LedgerCopy:
        with self._state.synced(time.monotonic() + timeout.total_seconds()) as tree:
            nodes = {kind: dict(tree.children(f"{self._own.ledger}/{kind.value}")) for kind in THROTTLED_TYPES}
        entries: dict[ConfigResource, LedgerEntry] = {}
        unreadable: dict[ConfigResource, Problem] = {}
        parsed: dict[str, tuple[int, LedgerEntry | Invalid]] = {}
        for kind, children in nodes.items():
            for name, node in children.items():
                path, resource = f"{self._own.ledger}/{kind.value}/{name}", resource_of(kind, name)
                if resource is None:
                    continue
                version, entry = self._parsed.get(path, (0, Invalid()))
                if version != node.version:
                    entry = _parsed(path, node)
                parsed[path] = node.version, entry
                if isinstance(entry, LedgerEntry):
                    entries[resource] = entry
                    continue
                unreadable[resource] = Problem(resource.path, str(entry))
                if resource in self._last:
                    entries[resource] = self._last[resource]
        self._parsed, self._last = parsed, entries
        return LedgerCopy(entries, unreadable)


def _outcome(resource: ConfigResource, result: EditResult | None) -> Outcome:
    """Return the outcome of an entry; without a result, there was nothing to delete.

    Raises:
        NotLeader: the term is over.
    """
    if result is None or result.effect is Effect.APPLIED:
        return Outcome(resource, OutcomeStatus.APPLIED)
    if result.effect is Effect.TERM_OVER:
        raise NotLeader(f"term {result.edit.fence} is over; nothing more was written")
    return Outcome(resource, OutcomeStatus.REFUSED, "its ledger entry has changed; the next cycle reads it again")


def _groups(texts: Mapping[str, str | None]) -> Iterator[dict[str, str | None]]:
    """Split entries into edits of limited size."""
    group: dict[str, str | None] = {}
    size = 0
    for path, text in texts.items():
        if group and size > _EDIT_BYTES:
            yield group
            group, size = {}, 0
        group[path] = text
        size += len(path) + len(text or "")
    if group:
        yield group


def _parsed(path: str, node: StoredText) -> LedgerEntry | Invalid:
    try:
        return parse_ledger_entry(node.text.encode())
    except Invalid as error:
        return Invalid(f"{path}: {error}")

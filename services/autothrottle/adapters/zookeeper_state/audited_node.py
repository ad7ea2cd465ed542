"""One node in ZooKeeper that holds a whole map, changed by compare-and-set together with its audit record.

An entry that cannot be read stays in the node as it is, and the other entries apply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.codec import FIELD_ERRORS, FORMAT_VERSION, compact_json, field_error, own_object
from autothrottle.adapters.zookeeper.mirror import FollowedNode
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper.term import FenceCheck, term_check
from autothrottle.adapters.zookeeper_state.audit import AuditTrail, committed
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.control.stored_map import StoredMap
from autothrottle.core.errors import Incomplete, Invalid
from autothrottle.ports.kafka import Watch

log = logging.getLogger(__name__)

_NOTHING = "nothing was written"

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class MapCodec(Generic[K, V]):
    """Converts the entries of one kind of map."""

    field: str
    """The node's field that holds the entries."""
    parse: Callable[[str, Any], tuple[K, V]]
    """Converts (stored name, JSON value) to a key and its value; raises Invalid or one of `FIELD_ERRORS`."""
    format: Callable[[Mapping[K, V]], Mapping[str, Any]]
    """Returns stored name -> JSON value, in the stored order."""
    is_list: bool = False
    """Whether the field holds a list, so that names are not stored."""


@dataclass(frozen=True, slots=True)
class _Content(Generic[K, V]):
    """The content of a node."""

    stored: StoredMap[K, V]
    raw: Mapping[str, Any]
    """The entries that cannot be read, as they are."""


class AuditedNode(Generic[K, V]):
    """Thread-safe. Without the node, the map is empty."""

    def __init__(
        self,
        client: KazooClient,
        own: OwnPaths,
        path: str,
        name: str,
        codec: MapCodec[K, V],
        timeout: timedelta,
    ) -> None:
        """Start to follow the node.

        Args:
            client: session with ZooKeeper.
            own: the paths of the term and the audit log.
            path: the node.
            name: describes its content in messages.
            codec: reads and writes the entries.
            timeout: for each operation.
        """
        self._client, self._own, self._path, self._name = client, own, path, name
        self._codec = codec
        self._trail = AuditTrail(client, own, timeout)
        self._timeout = timeout.total_seconds()
        self._node = FollowedNode(client, path, name, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read(self) -> StoredMap[K, V]:
        """Return the current map.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
            Incomplete: no entry of the node can be read.
        """
        return self._content(self._node.read()[0]).stored

    def watch(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)

    def watch_map(self, notify: Callable[[Mapping[K, V]], None]) -> Watch:
        """Call `notify` with the entries after every change, except to a text without readable ones.

        While an entry cannot be read, the earlier entries that are no longer there stay, since it may be one of them.
        """
        last: Mapping[K, V] = {}

        def publish() -> None:
            nonlocal last
            try:
                stored = self._content(self._node.last_data).stored
            except Incomplete as error:
                log.warning("The last %s stay in effect: %s", self._name, error)
                return
            for problem in stored.unreadable.values():
                log.warning("One of the %s does not apply: %s", self._name, problem)
            last = {**last, **stored} if stored.unreadable else stored.entries
            notify(last)

        return self._node.watch(publish)

    def _content(self, data: bytes | None) -> _Content[K, V]:
        if data is None:
            return _Content(StoredMap(), {})
        try:
            raw = self._raw_entries(data)
        except (*FIELD_ERRORS, Invalid) as error:
            fix = f"repair or delete the node, then set the {self._name} again"
            raise Incomplete(f"{self._path} cannot be parsed: {field_error(error)}; {fix}") from error
        entries, unreadable = dict[K, V](), dict[str, str]()
        for name, value in raw.items():
            try:
                key, entry = self._codec.parse(name, value)
            except (*FIELD_ERRORS, Invalid) as error:
                fix = "set it again, or repair the node"
                unreadable[name] = f"{self._path}: entry {name[:60]!r} cannot be read: {field_error(error)}; {fix}"
                continue
            entries[key] = entry
        return _Content(StoredMap(entries, unreadable), {name: raw[name] for name in unreadable})

    def _raw_entries(self, data: bytes) -> dict[str, Any]:
        value = own_object(data, f"the node of {self._name}")[self._codec.field]
        if self._codec.is_list:
            return {str(number): entry for number, entry in enumerate(value)}
        return {**value}

    def edit(
        self,
        change: Callable[[Mapping[K, V]], Mapping[K, V]],
        record: StoredAuditRecord | None = None,
        fence: int | None = None,
    ) -> bool:
        """Apply a change to the current map; return whether anything changed.

        Args:
            change: maps the readable entries to the new ones.
            record: written in the same transaction; None: no audit record.
            fence: the term that must continue; None: the change belongs to no term.
        """

        def attempt() -> bool | None:
            end = self._trail.end() if record else None
            content, version = self._current()
            entries = change(content.stored)
            if entries == content.stored:
                return False
            check = None if fence is None else term_check(self._client, self._own, fence, self._timeout, _NOTHING)
            write = self._write(self._text(entries, content), version, check)
            if record and end:
                return None if self._trail.commit(write, end, record, check) is None else True
            return None if committed(write, self._timeout, check, _NOTHING) is None else True

        with translated_errors(f"changing the {self._name}"):
            return self._trail.retry(attempt)

    def _current(self) -> tuple[_Content[K, V], int | None]:
        try:
            data, stat = self._client.get_async(self._path).get(timeout=self._timeout)
        except NoNodeError:
            return self._content(None), None
        return self._content(data), stat.version

    def _text(self, entries: Mapping[K, V], content: _Content[K, V]) -> bytes:
        """Return the node's text with these entries, and with those that cannot be read."""
        named = {**content.raw, **self._codec.format(entries)}
        return compact_json(
            {"version": FORMAT_VERSION, self._codec.field: [*named.values()] if self._codec.is_list else named}
        )

    def _write(self, data: bytes, version: int | None, check: FenceCheck | None) -> TransactionRequest:
        """Return the write that succeeds if the node still has this version and the term continues."""
        change = self._client.transaction() if check is None else check.begin(self._client)
        if version is None:
            change.create(self._path, data)
        else:
            change.set_data(self._path, data, version)
        return change

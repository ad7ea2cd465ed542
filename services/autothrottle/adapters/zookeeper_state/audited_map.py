"""One node in ZooKeeper that holds a whole map, changed by compare-and-set together with its audit record.

An entry that cannot be read stays in the node as it is, and the other entries apply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Generic, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.map_codecs import MapCodec, MapContent
from autothrottle.adapters.zookeeper.mirror import FollowedNode
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper.term import FenceCheck, term_check
from autothrottle.adapters.zookeeper_state.audit import AuditTrail, committed
from autothrottle.core.errors import Incomplete
from autothrottle.core.operators.audit import StoredAuditRecord, without_entry, without_purged
from autothrottle.core.operators.sources import StoredMap
from autothrottle.ports.kafka import Watch

log = logging.getLogger(__name__)

_NOTHING = "nothing was written"

K = TypeVar("K")
V = TypeVar("V")


class ZooKeeperAuditedMap(Generic[K, V]):
    """An `AuditedMap`. Thread-safe. Without the node, the map is empty."""

    def __init__(
        self, client: KazooClient, own: OwnPaths, codec: MapCodec[K, V], timeout: timedelta = timedelta(seconds=5)
    ) -> None:
        """Start to follow the node.

        Args:
            client: session with ZooKeeper.
            own: the paths of the node, the term and the audit log.
            codec: reads and writes the node.
            timeout: for each operation.
        """
        self._client, self._own, self._codec, self._kind = client, own, codec, codec.kind
        self._path = own.audited_map(codec.node)
        self._trail = AuditTrail(client, own, timeout)
        self._timeout = timeout.total_seconds()
        self._node = FollowedNode(client, self._path, self._kind.name, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read(self) -> StoredMap[K, V]:
        return self._codec.parse(self._node.read()[0], self._path).stored

    def put(self, key: K, entry: V, who: str = "") -> None:
        record = self._kind.put_record(key, entry, who)
        self._edit(lambda entries: self._kind.with_entry(entries, key, entry), record)

    def remove(self, key: K, who: str = "") -> bool:
        return self._edit(lambda entries: without_entry(entries, key), self._kind.removal_record(key, who))

    def purge(self, fence: int, key: K, entry: V, reason: str = "") -> bool:
        record = self._kind.purge_record(key, fence, reason)
        return self._edit(lambda entries: without_purged(entries, key, entry), record, fence)

    def watch(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)

    def follow(self, notify: Callable[[Mapping[K, V]], None]) -> Watch:
        last: Mapping[K, V] = {}

        def publish() -> None:
            nonlocal last
            try:
                content = self._codec.parse(self._node.last_data, self._path)
            except Incomplete as error:
                log.warning("The last %s stay in effect: %s", self._kind.name, error)
                return
            for problem in content.stored.unreadable.values():
                log.warning("One of the %s does not apply: %s", self._kind.name, problem)
            last = content.over(last)
            notify(last)

        return self._node.watch(publish)

    def _edit(
        self,
        change: Callable[[Mapping[K, V]], Mapping[K, V]],
        record: StoredAuditRecord | None,
        fence: int | None = None,
    ) -> bool:
        """Apply a change to the readable entries; return whether anything changed.

        Args:
            change: maps the entries to the new ones.
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
            write = self._write(self._codec.format(entries, content), version, check)
            if record and end:
                return None if self._trail.commit(write, end, record, check) is None else True
            return None if committed(write, self._timeout, check, _NOTHING) is None else True

        with translated_errors(f"changing the {self._kind.name}"):
            return self._trail.retry(attempt)

    def _current(self) -> tuple[MapContent[K, V], int | None]:
        try:
            data, stat = self._client.get_async(self._path).get(timeout=self._timeout)
        except NoNodeError:
            return self._codec.parse(None, self._path), None
        return self._codec.parse(data, self._path), stat.version

    def _write(self, data: bytes, version: int | None, check: FenceCheck | None) -> TransactionRequest:
        """Return the write that succeeds if the node still has this version and the term continues."""
        change = self._client.transaction() if check is None else check.begin(self._client)
        if version is None:
            change.create(self._path, data)
        else:
            change.set_data(self._path, data, version)
        return change

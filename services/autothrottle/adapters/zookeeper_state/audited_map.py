"""One node in ZooKeeper that holds a whole map, changed by compare-and-set together with its audit record.

An entry that cannot be read stays in the node as it is, and the other entries apply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Generic, TypeVar

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.bulk import Node
from autothrottle.adapters.zookeeper.followed_node import FollowedNode
from autothrottle.adapters.zookeeper.map_codecs import MapCodec, MapContent
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper_state.audit import AuditTrail, NodeEdit, StoredNode
from autothrottle.core.errors import Incomplete
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle.core.operators.audited_maps import without_entry, without_purged
from autothrottle.core.operators.stored_map import StoredMap
from autothrottle.ports.kafka import Watch

log = logging.getLogger(__name__)

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
        self._codec, self._kind = codec, codec.kind
        self._path = own.audited_map(codec.node)
        self._trail = AuditTrail(client, own, timeout)
        self._node = FollowedNode(client, self._path, self._kind.name, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read(self) -> StoredMap[K, V]:
        return self._content(self._node.read()).stored

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
                content = self._content(self._node.published)
            except Incomplete as error:
                log.warning("The last %s stay in effect: %s", self._kind.name, error)
                return
            for problem in content.stored.unreadable.values():
                log.warning("One of the %s does not apply: %s", self._kind.name, problem)
            last = content.over(last)
            notify(last)

        return self._node.watch(publish)

    def _content(self, nodes: Mapping[str, Node]) -> MapContent[K, V]:
        return self._codec.parse(nodes[self._path][0] if nodes else None, self._path)

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

        def edit(node: StoredNode | None) -> NodeEdit | None:
            content = self._codec.parse(node.data if node else None, self._path)
            entries = change(content.stored)
            return None if entries == content.stored else NodeEdit(self._codec.format(entries, content), record)

        with translated_errors(f"changing the {self._kind.name}"):
            return self._trail.edit(self._path, edit, fence) > 0

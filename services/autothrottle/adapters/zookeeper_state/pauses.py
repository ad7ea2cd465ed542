"""The pause in ZooKeeper: one node, which exists while autothrottle is paused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import format_pause, parse_pause
from autothrottle.adapters.zookeeper.followed_node import FollowedNode
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper_state.audit import AuditTrail, NodeEdit, StoredNode
from autothrottle.core.operators.audit import unwritten_record
from autothrottle.core.records import AuditAction, Pause
from autothrottle.ports.kafka import Watch


class ZooKeeperPauses:
    """A `PauseStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._client, self._own = client, own
        self._trail = AuditTrail(client, own, timeout)
        self._node = FollowedNode(client, own.pause, "pause", timeout)

    def close(self) -> None:
        """Stop following the pause."""
        self._node.close()

    def read_pause(self) -> Pause | None:
        """Return the pause; a node that cannot be parsed counts as a pause that keeps the current throttles."""
        nodes = self._node.read()
        return self._parsed(nodes[self._own.pause][0]) if nodes else None

    def set_pause(self, pause: Pause) -> None:
        """Pause, or replace the current pause."""
        edit = NodeEdit(format_pause(pause), unwritten_record(pause.author, AuditAction.PAUSE, pause=pause))
        with translated_errors("pausing"):
            self._trail.edit(self._own.pause, lambda _: edit)

    def remove_pause(self, who: str = "") -> bool:
        """Resume; return whether it was paused."""

        def removal(node: StoredNode | None) -> NodeEdit | None:
            if node is None:
                return None
            return NodeEdit(None, unwritten_record(who, AuditAction.RESUME, pause=self._parsed(node.data)))

        with translated_errors("resuming"):
            return self._trail.edit(self._own.pause, removal) > 0

    def _parsed(self, data: bytes | None) -> Pause:
        return parse_pause(data or b"", self._own.pause)

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)

"""One node of our own state, followed by watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.change_notifier import ChangeNotifier
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.ports.kafka import Watch


class FollowedNode:
    """Reads one node and notifies watchers of its changes. Thread-safe."""

    def __init__(self, client: KazooClient, path: str, name: str, timeout: timedelta) -> None:
        """Start to follow the node; `name` describes its content in messages."""
        self._path, self._name = path, name
        self._timeout = timeout.total_seconds()
        self._lock = threading.Lock()
        self._notifier = ChangeNotifier(name, self._refresh)
        self._published: tuple[bytes | None, int] = (None, 0)
        self._mirror = ZnodeMirror(client, self._notifier.fire)
        self._mirror.track([(Part.DATA, path)])

    def close(self) -> None:
        """Stop following the node."""
        self._notifier.close()
        self._mirror.close()

    def watch(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change, from another thread."""
        return self._notifier.watch(notify)

    def read(self) -> tuple[bytes | None, int]:
        """Return the node's data and the zxid of its last write; 0: the node does not exist.

        A node may exist and hold no data at all: zkCli creates such nodes.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        with self._lock, translated_errors(f"reading the {self._name}"):
            self._mirror.sync(self._timeout)
            return self._read_changed()

    def _refresh(self) -> bool:
        with self._lock, translated_errors(f"reading the {self._name}"):
            current = self._read_changed()
        published, self._published = self._published, current
        return current != published

    def _read_changed(self) -> tuple[bytes | None, int]:
        while self._mirror.read_changed(self._timeout):
            pass
        return self._mirror.data(self._path), self._mirror.written_by(self._path)

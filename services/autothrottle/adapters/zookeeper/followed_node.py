"""One followed node, which stores read and watch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import count

from kazoo.client import KazooClient

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.zookeeper.bulk import Node
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.retries import STORED_STATE
from autothrottle.ports.kafka import Watch

log = logging.getLogger(__name__)

_BATCH_SECONDS = 0.02
"""Delay before each read for the watchers, so that one read covers a burst of changes, such as 50 overrides at once."""


class FollowedNode:
    """Reads a node, or a node and its children, and notifies watchers of their changes. Thread-safe.

    Concurrent callers share reads: one caller reads for all callers that were waiting when its read began. A thread,
    which starts with the first watcher, reads after each change. This also renews the watches in ZooKeeper.
    """

    def __init__(
        self, client: KazooClient, path: str, name: str, timeout: timedelta, with_children: bool = False
    ) -> None:
        """Start to follow the node; `name` describes its content in messages."""
        self._client, self._path, self._name, self._with_children = client, path, name, with_children
        self._timeout = timeout.total_seconds()
        self._read_lock = threading.Lock()
        self._tickets = count(1)
        self._newest_ticket = self._served = 0
        self._last: Mapping[str, Node] = {}
        self.published: Mapping[str, Node] = {}
        """What was read when the watchers were last notified."""
        self._watchers = Subscriptions[None]()
        self._thread_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._dirty = threading.Event()
        self._closed = threading.Event()
        self._mirror = ZnodeMirror(client, self._dirty.set)
        self._mirror.track((part, path) for part in (Part if with_children else (Part.DATA,)))

    def close(self) -> None:
        """Stop following the node and end the thread; no notification follows."""
        self._closed.set()
        self._dirty.set()
        if self._thread is not None:
            self._thread.join()
        self._mirror.close()

    def watch(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change, on the thread of this node."""
        watch = self._watchers.add(lambda _: notify())
        with self._thread_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name=f"zookeeper-{self._name}", daemon=True)
                self._thread.start()
        self._dirty.set()
        return watch

    def read(self) -> Mapping[str, Node]:
        """Return path -> node for all that exist. A node may exist and hold no data: zkCli creates such nodes.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        self._newest_ticket = ticket = next(self._tickets)
        with self._read_lock:
            if ticket > self._served:
                # Callers with tickets up to this one asked before this read begins.
                newest = self._newest_ticket
                with translated_errors(f"reading the {self._name}"):
                    self._mirror.sync(self._timeout)
                    self._last = self._read_changed()
                self._served = newest
            return self._last

    def _follow(self) -> None:
        while True:
            self._dirty.wait()
            if self._closed.wait(_BATCH_SECONDS):
                return
            self._dirty.clear()
            try:
                if self._refresh():
                    self._watchers.publish(None)
                continue
            except AutothrottleError as error:
                log.warning("Cannot read the %s, trying again: %s", self._name, error)
            except Exception:  # a bug must not end the thread: no watcher would hear of later changes
                log.exception("Following the %s failed unexpectedly, trying again", self._name)
            self._closed.wait(STORED_STATE.first)
            self._dirty.set()

    def _refresh(self) -> bool:
        """Read what changed; return whether to notify the watchers."""
        if not self._client.connected:
            return False  # the mirror reports the connection; until then kazoo would collect the requests
        with self._read_lock, translated_errors(f"reading the {self._name}"):
            current = self._read_changed()
        published, self.published = self.published, current
        return current != published

    def _read_changed(self) -> Mapping[str, Node]:
        while self._mirror.read_changed(self._timeout):
            if self._with_children:
                self._mirror.track_children(self._path)
        paths = [self._path, *(f"{self._path}/{name}" for name in self._mirror.children(self._path))]
        return {path: node for path in paths if (node := self._mirror.node(path)) is not None}

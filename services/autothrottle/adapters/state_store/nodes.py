"""A store of nodes, as the stores of operators' settings see it. The types to know are `Trail` and `FollowedNodes`."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.operators.audit import AuditReading, StoredAuditRecord
from autothrottle.core.retries import STORED_STATE
from autothrottle.ports.kafka import Watch

log = logging.getLogger(__name__)

Node = tuple[bytes | None, int, int]
"""(data, version of the last write, the store's own number). A plain tuple, because the garbage collector stops
tracking those; 100,000 tracked objects double the time of a read."""


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node before a change."""

    data: bytes | None
    number: int
    """The store's own number. In ZooKeeper, the node's version, which restarts at 0 when the node is created again."""
    version: int
    """Identifies its last write; a later write of the same path has a larger one."""


@dataclass(frozen=True, slots=True)
class NodeEdit:
    """A change of one node."""

    data: bytes | None
    """The new data; None: the node is deleted."""
    record: StoredAuditRecord | None
    """The audit record; None: the change is not recorded."""


class Trail(Protocol):
    """Changes nodes together with their audit records, and reads the newest records."""

    def edit(
        self, path: str, plan: Callable[[StoredNode | None], NodeEdit | None], doing: str, fence: int | None = None
    ) -> int:
        """Change a node and write the audit record, both or neither; return the new version.

        Args:
            path: of the node.
            plan: returns the change of the current node, or None if there is nothing to change. It is called again if
                another process was faster. The argument None means that the node does not exist.
            doing: what the caller does, for error messages.
            fence: the term that must continue; None: the change belongs to no term.

        Returns:
            The version; 0: there was nothing to change.

        Raises:
            NotLeader: the term is over.
            Unavailable: the store does not answer, or other processes kept changing the node.
        """

    def append(self, record: StoredAuditRecord) -> None:
        """Write a record of an action that changes no node."""

    def newest(self, limit: int) -> AuditReading:
        """Return the newest records, newest first, and which of them cannot be read."""


class FollowedNodes(Protocol):
    """Reads a node, or a node and its children, and notifies watchers of their changes."""

    @property
    def published(self) -> Mapping[str, Node]:
        """What was read when the watchers were last notified."""

    def read(self) -> Mapping[str, Node]:
        """Return path -> node for all that exist.

        Raises:
            Unavailable: the store does not answer in time.
        """

    def watch(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change, on a thread of the store."""

    def close(self) -> None:
        """Stop following; no notification follows."""


class NodeStore(Protocol):
    """Where nodes are stored."""

    @property
    def own(self) -> OwnPaths:
        """The paths of the nodes."""

    def trail(self) -> Trail:
        """Return what changes the nodes of one kind of settings."""

    def followed(self, path: str, name: str, with_children: bool = False) -> FollowedNodes:
        """Start to follow a node, or a node and its children; `name` describes the content in messages."""


class NodeFollower(ABC):
    """Notifies the watchers of nodes on a thread of its own, which starts with the first watcher. Thread-safe.

    A slow watcher delays neither the store nor a read. A subclass sets `_dirty` when a node may have changed.
    """

    _batch_seconds = 0.0
    """Delay before each read for the watchers, so that one read covers a burst of changes."""

    def __init__(self, name: str, thread: str) -> None:
        """Prepare; `name` describes the content of the nodes in messages, and `thread` names the thread."""
        self._name, self._thread_name = name, thread
        self.published: Mapping[str, Node] = {}
        """What was read when the watchers were last notified."""
        self._watchers = Subscriptions[None]()
        self._thread_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._dirty, self._closed = threading.Event(), threading.Event()

    def close(self) -> None:
        """End the thread; no notification follows."""
        self._closed.set()
        self._dirty.set()
        if self._thread is not None:
            self._thread.join()

    def watch(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change, on the thread of these nodes."""
        watch = self._watchers.add(lambda _: notify())
        with self._thread_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name=self._thread_name, daemon=True)
                self._thread.start()
        self._dirty.set()
        return watch

    @abstractmethod
    def _current(self) -> Mapping[str, Node]:
        """Return path -> node for all that exist, for the watchers."""

    def _follow(self) -> None:
        while True:
            self._dirty.wait()
            if self._closed.wait(self._batch_seconds):
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
        published, self.published = self.published, self._current()
        return self.published != published

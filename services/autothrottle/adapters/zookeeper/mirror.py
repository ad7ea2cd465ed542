"""Copies of znodes, kept fresh by watches.

Reading a whole cluster for every cycle takes many seconds (about 7,000 nodes/s). A mirror reads a node again only after
its watch fired. Watches are lost with the connection, so after every reconnection everything is read again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from itertools import count, islice
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError, UnimplementedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import Callback, KazooState

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.state_store.nodes import NodeFollower
from autothrottle.adapters.zookeeper.bulk import DENIED, Node, get_many_async, watch_many_async
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.errors import Invalid, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

_MANY = 200
"""From this many nodes on, data is read in bulk if the server supports it."""

_BULK_NODES = 100
"""Nodes per bulk read: that of a topic with thousands of partitions, or of its config, has up to 1 MB."""

_MOST_AT_ONCE = 1_000
"""Limit of nodes with data that `read_changed` reads at once, so that their user can parse and release them."""

_IN_FLIGHT = 2_000
"""Limit of requests sent but not yet answered: enough to hide the round trip, small enough for the server's queue."""


class Part(StrEnum):
    """The mirrored part of a node. A `StrEnum`, because Python hashes strings faster than other enums."""

    DATA = "data"
    CHILDREN = "children"


Key = tuple[Part, str]


class ZnodeMirror:
    """Copies of the tracked nodes: call `sync`, then `read_changed` until it returns nothing.

    One thread at a time may call its methods; watches arrive from kazoo's threads.
    """

    def __init__(self, client: KazooClient, on_dirty: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._on_dirty = on_dirty
        self._values: dict[Key, Any] = {}
        self._dirty: set[Key] = set()
        self._watched: set[Key] = set()
        self._tracked_children: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()
        self._reads_in_bulk = True
        self.reconnections = 0
        """Number of times the client has connected. Changes during a lost connection are noticed only after it."""
        client.add_listener(self._state_changed)

    def close(self) -> None:
        """Stop reacting to the session."""
        self._client.remove_listener(self._state_changed)

    def track(self, keys: Iterable[Key]) -> None:
        """Mirror these nodes, starting with the next read. Nodes that were missing are read again.

        A missing node gets no watch if its parent's children are mirrored, because the watches of all nodes that ever
        existed would accumulate. Track it again whenever the list of children names it.
        """
        with self._lock:
            for key in keys:
                if self._values.setdefault(key) is None:
                    self._dirty.add(key)

    def track_children(self, parent: str) -> list[str]:
        """Mirror the data of the node's current children; return the paths of removed ones, which are forgotten."""
        names = frozenset(self.children(parent))
        gone = [f"{parent}/{name}" for name in self._tracked_children.get(parent, frozenset()) - names]
        self._tracked_children[parent] = names
        self.track((Part.DATA, f"{parent}/{name}") for name in names)
        self.forget((Part.DATA, path) for path in gone)
        return gone

    def forget(self, keys: Iterable[Key]) -> None:
        """Stop mirroring these nodes; watches that are still set are ignored when they fire."""
        with self._lock:
            for key in keys:
                self._values.pop(key, None)
                self._dirty.discard(key)

    def release(self, paths: Iterable[str]) -> None:
        """Free the data of nodes that their user has parsed; it is there again after their next change."""
        with self._lock:
            for path in paths:
                if (node := self._values.get((Part.DATA, path))) is not None:
                    self._values[Part.DATA, path] = (None, *node[1:])

    def data(self, path: str) -> bytes | None:
        """The data of a node; None: the node does not exist or has null data (not the same as empty data)."""
        node = self.node(path)
        return node[0] if node else None

    def node(self, path: str) -> Node | None:
        """A node whose data is mirrored; None: it does not exist."""
        node: Node | None = self._values.get((Part.DATA, path))
        return node

    def children(self, path: str) -> tuple[str, ...]:
        """Names of a node's children; empty if the node does not exist."""
        return self._values.get((Part.CHILDREN, path)) or ()

    def is_there(self, path: str) -> bool:
        """Whether a node with mirrored children exists; it may have no children."""
        return self._values.get((Part.CHILDREN, path)) is not None

    def sync(self, timeout_seconds: float, min_zxid: int = 0) -> int:
        """Wait until every change so far is noticed; return the zxid that the copies reach with the next reads.

        The server sends the event of a change before any later answer, so one sync request flushes all events. kazoo
        passes events to its own thread, so that thread's queue must drain too.

        Raises:
            Unavailable: the timeout passed, or the server has not reached `min_zxid`.
        """
        deadline = time.monotonic() + timeout_seconds
        try:
            self._client.sync_async("/").get(timeout=seconds_left(deadline))
            zxid = int(self._client.last_zxid)
            # The next answer has no lower number. With a damaged one, all later snapshots would count as too old.
            self._client.exists_async("/").get(timeout=seconds_left(deadline))
            zxid = min(zxid, int(self._client.last_zxid))
            # In a new session, kazoo counts from 0 again.
            if zxid == 0 or zxid < min_zxid:
                raise Unavailable(f"ZooKeeper's server is at transaction {zxid:#x}, older than {min_zxid:#x}")
            delivered = threading.Event()
            self._client.handler.dispatch_callback(Callback("watch", delivered.set, ()))
            if not delivered.wait(seconds_left(deadline)):
                raise KazooTimeoutError("watch events are not delivered")
        except KazooTimeoutError as error:
            raise Unavailable(f"ZooKeeper did not answer within {timeout_seconds:.1f} s") from error
        return zxid

    def read_changed(self, timeout_seconds: float) -> set[Key]:
        """Read the changed nodes and return their keys; empty: every copy is fresh.

        Lists of children are read first and alone, so that removed nodes can be forgotten instead of read.

        Raises:
            Unavailable: the read exceeded the timeout; the next read fetches the rest.
        """
        stale = self._take_dirty()
        try:
            self._read(stale, time.monotonic() + timeout_seconds)
        except BaseException as error:
            with self._lock:
                # An unanswered read may have found no node, which leaves no watch.
                self._watched -= stale
                self._dirty |= {key for key in stale if key in self._values}
            if isinstance(error, KazooTimeoutError):
                raise Unavailable(f"ZooKeeper did not answer within {timeout_seconds:.1f} s") from error
            raise
        return stale

    def _take_dirty(self) -> set[Key]:
        with self._lock:
            taken = {key for key in self._dirty if key[0] is Part.CHILDREN} or set(islice(self._dirty, _MOST_AT_ONCE))
            self._dirty -= taken
            return taken

    def _read(self, keys: set[Key], deadline: float) -> None:
        if self._reads_in_bulk and len(keys) >= _MANY:
            keys = {key for key in keys if key[0] is Part.CHILDREN} | self._read_in_bulk(keys, deadline)
        remaining = iter(keys)
        while batch := list(islice(remaining, _IN_FLIGHT)):
            for key, answer in [(key, self._request(key)) for key in batch]:
                self._collect(key, answer, deadline)

    def _read_in_bulk(self, keys: set[Key], deadline: float) -> set[Key]:
        """Read the data of many nodes; return the keys to read singly, such as those of missing nodes."""
        # Not newer than any of the answers, so every later write fires the watch.
        zxid = int(self._client.last_zxid)
        data = [key for key in keys if key[0] is Part.DATA]
        batches = [data[start : start + _BULK_NODES] for start in range(0, len(data), _BULK_NODES)]
        pending = [get_many_async(self._client, [path for _, path in batch]) for batch in batches]
        missing: set[Key] = set()
        watching = []
        for batch, answer in zip(batches, pending, strict=True):
            try:
                nodes = answer.get(timeout=seconds_left(deadline))
            except UnimplementedError:
                self._reads_in_bulk = False
                return keys
            missing.update(key for key, node in zip(batch, nodes, strict=True) if node is None)
            if unwatched := self._take(batch, nodes):
                watching.append(watch_many_async(self._client, unwatched, self._data_changed, zxid))
        for confirmed in watching:
            confirmed.get(timeout=seconds_left(deadline))
        return missing

    def _take(self, keys: Sequence[Key], nodes: Sequence[Node | None]) -> list[str]:
        """Store what was read; return the paths of existing nodes that still need a watch."""
        with self._lock:
            found = [(key, node) for key, node in zip(keys, nodes, strict=True) if node is not None]
            self._values.update((key, node) for key, node in found if key in self._values)
            unwatched = [key for key, _ in found if key not in self._watched]
            self._watched.update(unwatched)
        return [path for _, path in unwatched]

    def _data_changed(self, event: Any) -> None:
        """Handle an event of a bulk watch. Without a path, the session ended and everything is read again."""
        if event.path is not None:
            self._fired((Part.DATA, event.path))

    def _request(self, key: Key) -> Any:
        request = self._client.get_async if key[0] is Part.DATA else self._client.get_children_async
        return request(key[1], watch=self._watch(key))

    def _collect(self, key: Key, answer: Any, deadline: float) -> None:
        try:
            value = _copied(key[0], answer.get(timeout=seconds_left(deadline)))
        except NoAuthError:
            if key[0] is Part.CHILDREN:
                raise
            value = DENIED
            # Our watch was not set, but one for the node's existence needs no access and fires at its next write.
            self._client.exists_async(key[1], watch=lambda _event: self._fired(key))
        except NoNodeError:
            value = None
            with self._lock:
                self._watched.discard(key)  # a failed read sets no watch
                listed = (Part.CHILDREN, key[1].rpartition("/")[0]) in self._values
            if not listed:
                self._await_creation(key, deadline)
        with self._lock:
            if key in self._values:
                self._values[key] = value

    def _await_creation(self, key: Key, deadline: float) -> None:
        exists = self._client.exists_async(key[1], watch=self._watch(key)).get(timeout=seconds_left(deadline))
        if exists is not None:
            with self._lock:
                self._dirty.add(key)
                if key[0] is Part.CHILDREN:
                    self._watched.discard(key)  # it was just created, and this watch covers only its data

    def _watch(self, key: Key) -> Callable[[Any], None] | None:
        """Return a watch for a key, or None if it has one: otherwise every read would add another."""
        with self._lock:
            if key in self._watched:
                return None
            self._watched.add(key)
        return lambda _event: self._fired(key)

    def _fired(self, key: Key) -> None:
        with self._lock:
            self._watched.discard(key)
            if key not in self._values:
                return
            self._dirty.add(key)
        self._on_dirty()

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            with self._lock:
                self.reconnections += 1
                self._watched.clear()
                self._dirty |= self._values.keys()
            self._on_dirty()


def _copied(part: Part, result: Any) -> Any:
    if part is Part.CHILDREN:
        return tuple(sorted(result))
    data, stat = result
    return data, stat.mzxid, stat.version


class ParsedNodes:
    """Parses the nodes of a mirror, and records which of them cannot be parsed."""

    def __init__(self, mirror: ZnodeMirror) -> None:
        self._mirror = mirror
        self.problems: dict[str, Problem] = {}
        """Path -> why the node cannot be parsed."""

    def value(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the node's parsed content; None: it does not exist, or cannot be parsed and has a problem recorded."""
        data = self._mirror.data(path)
        try:
            value = None if data is None else parse(data)
        except Invalid as error:
            if path not in self.problems:
                log.warning("%s: %s", path, error)
            self.problems[path] = Problem(path, str(error))
            return None
        self.problems.pop(path, None)
        return value


class FollowedNode(NodeFollower):
    """Reads a node, or a node and its children, and notifies watchers of their changes. Thread-safe.

    Concurrent callers share reads: one caller reads for all callers that were waiting when its read began. The thread
    reads after each change. This also renews the watches in ZooKeeper.
    """

    _batch_seconds = 0.02
    """Enough for a burst such as 50 overrides at once."""

    def __init__(
        self, client: SecuredClient, path: str, name: str, timeout: timedelta, with_children: bool = False
    ) -> None:
        """Start to follow the node; `name` describes its content in messages."""
        super().__init__(name, f"zookeeper-{name}")
        self._client, self._path, self._with_children = client, path, with_children
        self._timeout = timeout.total_seconds()
        self._read_lock = threading.Lock()
        self._tickets = count(1)
        self._newest_ticket = self._served = 0
        self._last: Mapping[str, Node] = {}
        self._mirror = ZnodeMirror(client, self._dirty.set)
        self._mirror.track((part, path) for part in (Part if with_children else (Part.DATA,)))

    def close(self) -> None:
        """Stop following the node and end the thread; no notification follows."""
        super().close()
        self._mirror.close()

    def read(self) -> Mapping[str, Node]:
        """Return path -> node for all that exist. A node may exist and hold no data: zkCli creates such nodes.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
        """
        self._client.require_connection()
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

    def _current(self) -> Mapping[str, Node]:
        if not self._client.connected:
            return self.published  # the mirror reports the connection; until then kazoo would collect the requests
        with self._read_lock, translated_errors(f"reading the {self._name}"):
            return self._read_changed()

    def _read_changed(self) -> Mapping[str, Node]:
        while self._mirror.read_changed(self._timeout):
            if self._with_children:
                self._mirror.track_children(self._path)
        paths = [self._path, *(f"{self._path}/{name}" for name in self._mirror.children(self._path))]
        return {path: node for path in paths if (node := self._mirror.node(path)) is not None}

"""Leaders and ISRs of the partitions that are being reassigned, kept fresh by watches.

This is a specialised `ZnodeMirror` for up to 1,000,000 znodes of one kind. It indexes a state by topic and partition
instead of by path, and keeps the parsed value instead of the text. That takes a quarter of the time and memory.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from autothrottle.adapters.concurrency.deadlines import seconds_left
from autothrottle.adapters.zookeeper.bulk import (
    BATCH_NODES,
    WITHOUT_SUBTREE_WATCHES,
    data_of,
    get_data_async,
    listen_to_events,
    set_watches_async,
    unwatch_subtree,
    watch_subtree_async,
)
from autothrottle.adapters.zookeeper.codec import StateNode, parse_state, parse_states
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.core.cluster.snapshot import Problem, SharedValues
from autothrottle.core.errors import Invalid, Unavailable

_NOTHING: Mapping[int, StateNode] = MappingProxyType({})

_IN_FLIGHT = 8
"""Limit of bulk reads sent but not yet answered. The answers to 1,000 of them would take a GB, and the server could not
answer a heartbeat meanwhile."""

_Rows = Sequence[tuple[str, Sequence[int]]]
"""(topic, some of its partitions, ascending) for some topics."""


class _StateRequest(NamedTuple):
    """A bulk read that was sent."""

    rows: _Rows
    paths: Sequence[str]
    """Of the states of all rows, in their order."""
    zxid: int
    """The server's last transaction before the read."""
    watching: Sequence[Any]
    """Pending answers of the watches that were sent before the read."""
    answer: Any
    """Pending answer of the read."""


class PartitionStates:
    """The states of the followed partitions: call `follow`, then `read_changed` until it returns nothing.

    One thread at a time may call its methods; watches arrive from kazoo's threads.
    """

    def __init__(
        self,
        client: KazooClient,
        kafka: KafkaPaths,
        on_dirty: Callable[[], None] = lambda: None,
    ) -> None:
        """Follow nothing yet.

        Args:
            client: connected.
            kafka: where the states are.
            on_dirty: called from kazoo's threads when there is something to read.
        """
        self._client, self._kafka, self._on_dirty = client, kafka, on_dirty
        self._state_path = re.compile(re.escape(kafka.topics) + r"/([^/]+)/partitions/([0-9]{1,10})/state")
        self._lock = threading.Lock()
        self._followed: dict[str, frozenset[int]] = {}
        self._shared = SharedValues()
        self._dirty: dict[str, set[int]] = {}
        self._states: dict[str, dict[int, StateNode]] = {}
        self._changed: set[str] = set()
        self._problems: dict[str, Problem] = {}
        self._watched: set[str] = set()
        """Topics whose partitions are watched as a subtree."""
        self._watches_subtrees = True
        """Whether the server can do that. Asked once, because a server that cannot closes the connection."""
        listen_to_events(client, self._event)
        client.add_listener(self._state_changed)

    def close(self) -> None:
        """Stop reacting to the session."""
        self._client.remove_listener(self._state_changed)
        self._followed = {}

    def follow(self, topic: str, partitions: Collection[int]) -> None:
        """Follow these partitions, starting with the next read."""
        if not partitions:
            return
        with self._lock:
            self._followed[topic] = _shared_set(self._followed.get(topic, frozenset()).union(partitions))
            self._dirty.setdefault(topic, set()).update(partitions)

    def forget(self, topic: str, partitions: Collection[int]) -> None:
        """Stop following these partitions; events of watches that are still set are ignored."""
        if not partitions:
            return
        with self._lock:
            if followed := self._followed.pop(topic, frozenset()).difference(partitions):
                self._followed[topic] = followed
            is_needless = not followed and topic in self._watched
            if is_needless:
                self._watched.discard(topic)
            if dirty := self._dirty.pop(topic, set()).difference(partitions):
                self._dirty[topic] = dirty
        if is_needless:
            unwatch_subtree(self._client, self._subtree(topic))
        states = self._states.get(topic, {})
        for partition in partitions:
            states.pop(partition, None)
        if not states:
            self._states.pop(topic, None)
        if self._problems:
            for partition in partitions:
                self._problems.pop(self._kafka.state(topic, partition), None)

    def of(self, topic: str) -> Mapping[int, StateNode]:
        """Partition -> its state. An unreadable state keeps its last known value; absent: no state node exists."""
        return self._states.get(topic, _NOTHING)

    @property
    def problems(self) -> Mapping[str, Problem]:
        """Path of an unreadable state -> its problem."""
        return self._problems

    def read_changed(self, timeout_seconds: float) -> set[str]:
        """Read the changed states and return their topics; empty: every copy is fresh.

        Raises:
            Unavailable: the read exceeded the timeout. The next read fetches the rest and returns the topics of both.
        """
        with self._lock:
            dirty, self._dirty = self._dirty, {}
        self._changed |= dirty.keys()
        try:
            self._read(dirty, time.monotonic() + timeout_seconds)
        except BaseException as error:
            self._set_dirty(dirty)
            with self._lock:  # it is not known whether the server watches them
                self._watched.difference_update(topic for topic, partitions in dirty.items() if partitions)
            if isinstance(error, KazooTimeoutError):
                raise Unavailable(f"ZooKeeper did not answer within {timeout_seconds:.1f} s") from error
            raise
        changed, self._changed = self._changed, set()
        return changed

    def _read(self, dirty: Mapping[str, set[int]], deadline: float) -> None:
        """Read the dirty states and remove each from `dirty` once it is read, so that every attempt makes progress."""
        in_flight: deque[_StateRequest] = deque()
        for rows in _batches(dirty):
            in_flight.append(self._request(rows))
            if len(in_flight) >= _IN_FLIGHT:
                self._collect(in_flight.popleft(), dirty, deadline)
        while in_flight:
            self._collect(in_flight.popleft(), dirty, deadline)

    def _request(self, rows: _Rows) -> _StateRequest:
        zxid, root = int(self._client.last_zxid), self._kafka.topics
        paths = [f"{root}/{topic}/partitions/{p}/state" for topic, partitions in rows for p in partitions]
        watching = [watch_subtree_async(self._client, self._subtree(topic)) for topic in self._unwatched(rows)]
        return _StateRequest(rows, paths, zxid, watching, get_data_async(self._client, paths))

    def _subtree(self, topic: str) -> str:
        return f"{self._kafka.topic(topic)}/partitions"

    def _unwatched(self, rows: _Rows) -> list[str]:
        """Topics to watch before the read. They count as watched at once: after a lost connection, none does."""
        with self._lock:
            if not self._watches_subtrees:
                return []
            unwatched = [topic for topic, _ in rows if topic not in self._watched]
            self._watched.update(unwatched)
            return unwatched

    def _collect(self, request: _StateRequest, dirty: Mapping[str, set[int]], deadline: float) -> None:
        try:
            for answer in request.watching:
                answer.get(timeout=seconds_left(deadline))
        except WITHOUT_SUBTREE_WATCHES:
            self._watches_subtrees = False
        states = data_of(self._client, request.paths, request.answer, deadline)
        if not self._watches_subtrees:
            self._watch_singly(request, states, deadline)
        self._take(request, states)
        for topic, partitions in request.rows:
            dirty[topic].difference_update(partitions)

    def _watch_singly(self, request: _StateRequest, states: Sequence[bytes | None], deadline: float) -> None:
        """Watch each state. For those that were written or created since the read, the event comes at once."""
        columns = list(zip(request.paths, states, strict=True))
        existing = [path for path, data in columns if data is not None]
        missing = [path for path, data in columns if data is None]
        set_watches_async(self._client, existing, request.zxid, missing).get(timeout=seconds_left(deadline))

    def _take(self, request: _StateRequest, states: Sequence[bytes | None]) -> None:
        data = [state for state in states if state is not None]
        parsed = parse_states(data, self._shared) if len(data) == len(states) else None
        if parsed is None or self._problems:
            rows = chain.from_iterable(zip(repeat(topic), partitions) for topic, partitions in request.rows)
            for (topic, partition), path, state in zip(rows, request.paths, states, strict=True):
                self._take_node(topic, partition, path, state)
            return
        remaining = iter(parsed)
        for topic, partitions in request.rows:
            self._states.setdefault(topic, {}).update(zip(partitions, remaining, strict=False))

    def _take_node(self, topic: str, partition: int, path: str, data: bytes | None) -> None:
        if data is None:
            self._problems.pop(path, None)
            self._states.get(topic, {}).pop(partition, None)
            return
        try:
            state = parse_state(data)
        except Invalid as error:
            self._problems[path] = Problem(path, str(error))
            return
        self._problems.pop(path, None)
        self._states.setdefault(topic, {})[partition] = state

    def _event(self, path: str) -> Callable[[], None] | None:
        if (match := self._state_path.fullmatch(path)) is None:
            return None
        return partial(self._fired, match[1], int(match[2]))

    def _fired(self, topic: str, partition: int) -> None:
        if self._set_dirty({topic: {partition}}):
            self._on_dirty()

    def _set_dirty(self, rows: Mapping[str, Iterable[int]]) -> bool:
        """Let the next read include those of these states that are followed; return whether there are any."""
        is_any = False
        with self._lock:
            for topic, partitions in rows.items():
                if followed := self._followed.get(topic, frozenset()).intersection(partitions):
                    self._dirty.setdefault(topic, set()).update(followed)
                    is_any = True
        return is_any

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            with self._lock:
                self._watched.clear()
                self._dirty = {topic: set(partitions) for topic, partitions in self._followed.items()}
            self._on_dirty()


def _batches(dirty: Mapping[str, Collection[int]]) -> Iterator[list[tuple[str, list[int]]]]:
    """Yield rows of at most `BATCH_NODES` partitions."""
    batch: list[tuple[str, list[int]]] = []
    room = BATCH_NODES
    for topic, partitions in dirty.items():
        rest = sorted(partitions)
        while rest:
            batch.append((topic, rest[:room]))
            rest, room = rest[room:], room - min(room, len(rest))
            if not room:
                yield batch
                batch, room = [], BATCH_NODES
    if batch:
        yield batch


@lru_cache(maxsize=256)  # most topics have the partitions 0 to n - 1, and a set of them takes 64 bytes each
def _shared_set(partitions: frozenset[int]) -> frozenset[int]:
    return partitions

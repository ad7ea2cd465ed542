"""Leaders and ISRs of the partitions that are being reassigned, kept fresh by watches.

This is a specialised `ZnodeMirror` for up to 1,000,000 znodes of one kind. It indexes a state by topic and partition
instead of by path, and keeps the parsed value instead of the text. That takes a quarter of the time and memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from autothrottle.adapters.concurrency.deadlines import seconds_left
from autothrottle.adapters.zookeeper.bulk import BATCH_NODES, Node, get_many_async, nodes_of, watch_many_async
from autothrottle.adapters.zookeeper.codec import StateNode, parse_state, parse_states
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.core.cluster.snapshot import Problem, SharedValues, TopicPartition
from autothrottle.core.errors import Invalid, Unavailable

_NOTHING: Mapping[int, StateNode] = MappingProxyType({})

_IN_FLIGHT = 8
"""Limit of bulk reads sent but not yet answered. The answers to 1,000 of them would take a GB, and the server could not
answer a heartbeat meanwhile."""

_Rows = Sequence[TopicPartition]
_Request = tuple[_Rows, Sequence[str], Any, Any]
"""(partitions, paths, pending answer of the read, pending answer of its watches)."""


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
        self._root = kafka.topics + "/"
        self._lock = threading.Lock()
        self._followed: dict[str, frozenset[int]] = {}
        self._shared = SharedValues()
        self._dirty: dict[str, set[int]] = {}
        self._states: dict[str, dict[int, StateNode]] = {}
        self._changed: set[str] = set()
        self._missing: set[TopicPartition] = set()
        self._problems: dict[str, Problem] = {}
        client.add_listener(self._state_changed)

    def close(self) -> None:
        """Stop reacting to the session."""
        self._client.remove_listener(self._state_changed)

    def follow(self, topic: str, partitions: Collection[int]) -> None:
        """Follow these partitions, starting with the next read."""
        if not partitions:
            return
        with self._lock:
            self._followed[topic] = _shared_set(self._followed.get(topic, frozenset()).union(partitions))
            self._dirty.setdefault(topic, set()).update(partitions)

    def forget(self, topic: str, partitions: Collection[int]) -> None:
        """Stop following these partitions; watches that are still set are ignored when they fire."""
        if not partitions:
            return
        with self._lock:
            if followed := self._followed.pop(topic, frozenset()).difference(partitions):
                self._followed[topic] = followed
            if dirty := self._dirty.pop(topic, set()).difference(partitions):
                self._dirty[topic] = dirty
        states = self._states.get(topic, {})
        for partition in partitions:
            states.pop(partition, None)
        if not states:
            self._states.pop(topic, None)
        self._missing.difference_update((topic, partition) for partition in partitions)
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
            if isinstance(error, KazooTimeoutError):
                raise Unavailable(f"ZooKeeper did not answer within {timeout_seconds:.1f} s") from error
            raise
        changed, self._changed = self._changed, set()
        return changed

    def _read(self, dirty: Mapping[str, set[int]], deadline: float) -> None:
        """Read the dirty states and remove each from `dirty` once it is read, so that every attempt makes progress."""
        if self._missing:
            absent = [
                (topic, p) for topic, partitions in dirty.items() for p in partitions if (topic, p) in self._missing
            ]
            self._read_singly(absent, deadline)
            for topic, partition in absent:
                dirty[topic].discard(partition)
        rows = ((topic, p) for topic, partitions in dirty.items() for p in sorted(partitions))
        in_flight: deque[_Request] = deque()
        while batch := list(islice(rows, BATCH_NODES)):
            in_flight.append(self._request(batch))
            if len(in_flight) >= _IN_FLIGHT:
                self._collect(*in_flight.popleft(), dirty, deadline)
        while in_flight:
            self._collect(*in_flight.popleft(), dirty, deadline)

    def _request(self, batch: _Rows) -> _Request:
        # The watches start at the zxid before the read, so every later write fires one.
        zxid = int(self._client.last_zxid)
        paths = [f"{self._root}{topic}/partitions/{partition}/state" for topic, partition in batch]
        read = get_many_async(self._client, paths)
        return batch, paths, read, watch_many_async(self._client, paths, self._fired, zxid, is_alone=True)

    def _collect(
        self,
        batch: _Rows,
        paths: Sequence[str],
        read: Any,
        watching: Any,
        dirty: Mapping[str, set[int]],
        deadline: float,
    ) -> None:
        self._take(batch, paths, nodes_of(self._client, paths, read, deadline))
        watching.get(timeout=seconds_left(deadline))
        for topic, partition in batch:
            dirty[topic].discard(partition)

    def _take(self, rows: _Rows, paths: Sequence[str], nodes: Sequence[Node | None]) -> None:
        data = [node[0] or b"" for node in nodes if node is not None]
        parsed = parse_states(data, self._shared) if len(data) == len(nodes) else None
        if parsed is None or self._problems:
            for row, path, node in zip(rows, paths, nodes, strict=True):
                self._take_node(row, path, node)
            return
        for (topic, partition), state in zip(rows, parsed, strict=True):
            self._store(topic, partition, state)

    def _take_node(self, row: TopicPartition, path: str, node: Node | None) -> None:
        topic, partition = row
        if node is None:
            # Its watch fires at once because the node does not exist. The next read then waits for its creation.
            self._missing.add(row)
            self._states.get(topic, {}).pop(partition, None)
            return
        try:
            state = parse_state(node[0] or b"")
        except Invalid as error:
            self._problems[path] = Problem(path, str(error))
            return
        self._problems.pop(path, None)
        self._store(topic, partition, state)

    def _store(self, topic: str, partition: int, state: StateNode) -> None:
        states = self._states.get(topic)
        if states is None:
            states = self._states[topic] = {}
        states[partition] = state

    def _read_singly(self, rows: Sequence[TopicPartition], deadline: float) -> None:
        """Watch for the creation of missing states; those that exist by now are read next."""
        pending = [self._client.exists_async(self._kafka.state(*row), watch=self._fired) for row in rows]
        created: dict[str, set[int]] = {}
        for (topic, partition), answer in zip(rows, pending, strict=True):
            if answer.get(timeout=seconds_left(deadline)) is not None:
                self._missing.discard((topic, partition))
                created.setdefault(topic, set()).add(partition)
        self._set_dirty(created)

    def _fired(self, event: Any) -> None:
        if event.path is None:  # the session ended, so everything is read again
            return
        topic, _, rest = event.path.removeprefix(self._root).partition("/")
        self._set_dirty({topic: {int(rest.split("/")[1])}})
        self._on_dirty()

    def _set_dirty(self, rows: Mapping[str, Iterable[int]]) -> None:
        with self._lock:
            for topic, partitions in rows.items():
                if wanted := self._followed.get(topic, frozenset()).intersection(partitions):
                    self._dirty.setdefault(topic, set()).update(wanted)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            with self._lock:
                self._dirty = {topic: set(partitions) for topic, partitions in self._followed.items()}
            self._on_dirty()


@lru_cache(maxsize=256)  # most topics have the partitions 0 to n - 1, and a set of them takes 64 bytes each
def _shared_set(partitions: frozenset[int]) -> frozenset[int]:
    return partitions

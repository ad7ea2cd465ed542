"""Leaders and ISRs of the partitions that move, which watches keep fresh.

What `mirror` is to nodes of any kind, this is to one kind of which there are 100,000: a state is told by topic and
number, not by its path, and is kept as what it says, not as its text. So one costs a quarter of the time and space.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from autothrottle.adapters.deadlines import seconds_left
from autothrottle.adapters.zookeeper.bulk import BATCH_NODES, Node, get_many_async, nodes_of, watch_many_async
from autothrottle.adapters.zookeeper.codec import StateNode, parse_state
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.topology import Problem, TopicPartition

_NOTHING: Mapping[int, StateNode] = MappingProxyType({})


class PartitionStates:
    """The states of the partitions that are followed: `follow`, then `read_changed` until nothing is left to read.

    One thread at a time may call its methods; watches arrive from kazoo's threads.
    """

    def __init__(
        self,
        client: KazooClient,
        kafka: KafkaPaths,
        on_dirty: Callable[[], None] = lambda: None,
        on_read: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """Follow nothing yet.

        Args:
            client: connected.
            kafka: where the states are.
            on_dirty: called from kazoo's threads when there is something to read.
            on_read: called by the reading thread with each topic as soon as nothing of it is left to read.
        """
        self._client, self._kafka, self._on_dirty, self._on_read = client, kafka, on_dirty, on_read
        self._root = kafka.topics + "/"
        self._lock = threading.Lock()
        self._followed: dict[str, set[int]] = {}
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
        """Follow these from the next reading on."""
        if not partitions:
            return
        with self._lock:
            self._followed.setdefault(topic, set()).update(partitions)
            self._dirty.setdefault(topic, set()).update(partitions)

    def forget(self, topic: str, partitions: Collection[int]) -> None:
        """Follow these no more; a watch that still stands is ignored when it fires."""
        if not partitions:
            return
        with self._lock:
            for kept in (self._followed, self._dirty):
                left = kept.get(topic, set()).difference(partitions)
                kept.pop(topic, None)
                if left:
                    kept[topic] = left
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
        """Partition -> its state, as it was last read where it cannot be read now; absent: there is none."""
        return self._states.get(topic, _NOTHING)

    @property
    def problems(self) -> Mapping[str, Problem]:
        """Path -> what cannot be read there."""
        return self._problems

    @property
    def unread(self) -> int:
        """How many states the next reading reads, >= 0."""
        with self._lock:
            return sum(map(len, self._dirty.values()))

    @property
    def unread_topics(self) -> set[str]:
        """The topics of which the next reading reads states."""
        with self._lock:
            return set(self._dirty)

    def read_changed(self, timeout_seconds: float) -> set[str]:
        """Read what changed and return its topics; empty: all is fresh.

        Raises:
            Unavailable: when it takes longer than the timeout; what was not read is read next time, and what was is
                told then.
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
        """Read what is dirty, and take out of it what was read: on a busy machine each attempt gets further."""
        rows = [(topic, partition) for topic, partitions in dirty.items() for partition in sorted(partitions)]
        if self._missing:
            absent = [row for row in rows if row in self._missing]
            rows = [row for row in rows if row not in self._missing]
            self._read_singly(absent, deadline)
        # As of what was seen before the reading: whatever is written from now on makes a watch fire.
        zxid = int(self._client.last_zxid)
        asked = []
        for start in range(0, len(rows), BATCH_NODES):
            batch = rows[start : start + BATCH_NODES]
            paths = [f"{self._root}{topic}/partitions/{partition}/state" for topic, partition in batch]
            read = get_many_async(self._client, paths)
            asked.append((batch, paths, read, watch_many_async(self._client, paths, self._fired, zxid, is_alone=True)))
        for batch, paths, read, _ in asked:
            self._take(batch, paths, nodes_of(self._client, paths, read, deadline))
            for topic, partition in batch:
                dirty[topic].discard(partition)
            for topic in dict.fromkeys(topic for topic, _ in batch):
                if not dirty[topic]:
                    self._on_read(topic)
        for *_, watching in asked:
            watching.get(timeout=seconds_left(deadline))

    def _take(self, rows: Sequence[TopicPartition], paths: Sequence[str], nodes: Sequence[Node | None]) -> None:
        for (topic, partition), path, node in zip(rows, paths, nodes, strict=True):
            if node is None:
                # Its watch fires at once, for there is nothing to watch: then it is looked at singly.
                self._missing.add((topic, partition))
                self._states.get(topic, {}).pop(partition, None)
                continue
            try:
                state = parse_state(node[0] or b"")
            except Invalid as error:
                self._problems[path] = Problem(path, str(error))
                continue
            if self._problems:
                self._problems.pop(path, None)
            states = self._states.get(topic)
            if states is None:
                states = self._states[topic] = {}
            states[partition] = state

    def _read_singly(self, rows: Sequence[TopicPartition], deadline: float) -> None:
        """Wait for the creation of what was not there; what is there by now is read next."""
        asked = [self._client.exists_async(self._kafka.state(*row), watch=self._fired) for row in rows]
        created: dict[str, set[int]] = {}
        for (topic, partition), answer in zip(rows, asked, strict=True):
            if answer.get(timeout=seconds_left(deadline)) is not None:
                self._missing.discard((topic, partition))
                created.setdefault(topic, set()).add(partition)
        self._set_dirty(created)

    def _fired(self, event: Any) -> None:
        if event.path is None:  # the session ended: all will be read anew
            return
        topic, _, rest = event.path.removeprefix(self._root).partition("/")
        self._set_dirty({topic: {int(rest.split("/")[1])}})
        self._on_dirty()

    def _set_dirty(self, rows: Mapping[str, Iterable[int]]) -> None:
        with self._lock:
            for topic, partitions in rows.items():
                if wanted := self._followed.get(topic, set()).intersection(partitions):
                    self._dirty.setdefault(topic, set()).update(wanted)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            with self._lock:
                self._dirty = {topic: set(partitions) for topic, partitions in self._followed.items()}
            self._on_dirty()

"""Reassignments, assembled from topic nodes, partition states and `/admin/reassign_partitions`.

A reassignment may appear in `/admin/reassign_partitions`, in the adding and removing replicas of the topic's node
(KIP-455), or in both; it counts once. An unchanged reassignment stays the same object, because views of its columns
are computed once per object.

`ZooKeeperReassigner` starts reassignments as Kafka's old tools do, in a transaction that checks the term. Kafka accepts
one list at a time in `/admin/reassign_partitions` and offers no way to cancel it there.
"""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.kafka_zookeeper.placement import running_targets
from autothrottle.adapters.zookeeper.bulk import (
    BATCH_NODES,
    WITHOUT_SUBTREE_WATCHES,
    data_of,
    get_data_async,
    listen_to_events,
    read_nodes,
    set_watches_async,
    unwatch_subtree,
    watch_subtree_async,
)
from autothrottle.adapters.zookeeper.codec import (
    SharedIds,
    StateNode,
    TopicNode,
    compact_json,
    parse_reassignments,
    parse_state,
    parse_states,
    parse_topic,
)
from autothrottle.adapters.zookeeper.mirror import ParsedNodes
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import (
    ANSWER_LOST,
    NOT_ADMITTED,
    read_after_outage,
    term_check,
    translated_errors,
)
from autothrottle.core.cluster.snapshot import (
    NO_LEADER,
    Assignment,
    Problem,
    SharedValues,
    TopicPartition,
    TopicReassignment,
    replicas_on,
)
from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle.core.operators.cancellation import Cancellation
from autothrottle.core.operators.submission import Targets, replacements
from autothrottle.ports.kafka import Refusals, Term

_NO_STATES: Mapping[int, StateNode] = MappingProxyType({})

_IN_FLIGHT = 8
"""Limit of bulk reads sent but not yet answered. The answers to 1,000 of them would take a GB, and the server could not
answer a heartbeat meanwhile."""

_PARTITIONS_AT_ONCE = 100_000
"""Partitions after which one read takes no further topic."""

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
        return self._states.get(topic, _NO_STATES)

    @property
    def problems(self) -> Mapping[str, Problem]:
        """Path of an unreadable state -> its problem."""
        return self._problems

    @property
    def unread(self) -> dict[str, int]:
        """Topic -> the number of its states that the next reads fetch."""
        with self._lock:
            return {topic: len(partitions) for topic, partitions in self._dirty.items()}

    def read_changed(self, timeout_seconds: float) -> set[str]:
        """Read the changed states of some topics, each as a whole; return these topics, empty: every copy is fresh.

        Raises:
            Unavailable: the read exceeded the timeout. The next read fetches the rest and returns the topics of both.
        """
        dirty = self._next_topics()
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

    def _next_topics(self) -> dict[str, set[int]]:
        """Remove the topics to read next from the dirty ones."""
        dirty: dict[str, set[int]] = {}
        size = 0
        with self._lock:
            while self._dirty and size < _PARTITIONS_AT_ONCE:
                topic, partitions = self._dirty.popitem()
                dirty[topic] = partitions
                size += len(partitions)
        return dirty

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
        parsed = parse_states(data) if len(data) == len(states) else None
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


OFFLINE = StateNode(NO_LEADER, ())
"""Stands for the state of a partition without a state node."""

_Replicas = tuple[int, ...]


class _Reassigning(NamedTuple):
    """The partitions of a topic that are being reassigned, as columns."""

    partitions: tuple[int, ...] = ()
    """Ascending."""
    adding: tuple[_Replicas | None, ...] = ()
    """Adding replicas; None: not in the topic's node."""
    removing: tuple[_Replicas, ...] = ()


class _Topic(NamedTuple):
    """A topic's assignment as columns: 1,000,000 partitions take 100 MB instead of 700 MB as maps."""

    partitions: tuple[int, ...]
    """Ascending."""
    replicas: tuple[_Replicas, ...]
    reassigning: _Reassigning


class ReassignmentNodes:
    """The topics, and the reassignments of some of them. Absorbed changes appear after `assemble`."""

    def __init__(self, kafka: KafkaPaths, nodes: ParsedNodes, states: PartitionStates) -> None:
        self._kafka, self._nodes, self._states = kafka, nodes, states
        self._root = kafka.topics + "/"
        self._topics: dict[str, _Topic] = {}
        self._shared, self._shared_ids = SharedValues(), SharedIds()
        self._targets: dict[str, dict[int, tuple[int, ...]]] = {}
        self._reassigning: dict[str, _Reassigning] = {}
        self.deleting: frozenset[str] = frozenset()
        """The topics that wait for their deletion, for example until a broker returns. For Kafka they do not exist: it
        copies nothing, and refuses to reassign them and to cancel, although their nodes still show a reassignment."""
        self._touched: set[str] = set()
        self.current: dict[str, TopicReassignment] = {}
        """Topic -> its reassignment, as last assembled."""

    @property
    def reassignments(self) -> tuple[TopicReassignment, ...]:
        """All reassignments, ordered by topic."""
        return tuple(self.current[topic] for topic in sorted(self.current))

    # Absorbing nodes.

    def absorb(self, paths: Iterable[str]) -> None:
        """Read the current content of topic nodes and of the list of reassignments from the mirror."""
        touched: set[str] = set()
        for path in paths:
            if path == self._kafka.reassign_partitions:
                touched |= self._absorb_targets(path)
            else:
                touched.add(self._absorb_topic(path))
        for topic in touched:
            self._absorb_reassignments(topic)
        self._touched |= touched

    def absorb_deleting(self, topics: Iterable[str]) -> None:
        """Take the topics that wait for their deletion now."""
        before, self.deleting = self.deleting, frozenset(topics)
        for topic in before ^ self.deleting:
            self._absorb_reassignments(topic)
            self._touched.add(topic)

    def _absorb_targets(self, path: str) -> set[str]:
        parsed = self._nodes.value(path, parse_reassignments)
        if parsed is None:
            if path in self._nodes.problems:
                return set()
            parsed = {}
        targets: dict[str, dict[int, tuple[int, ...]]] = {}
        for (topic, partition), replicas in parsed.items():
            targets.setdefault(topic, {})[partition] = replicas
        touched = self._targets.keys() | targets.keys()
        self._targets = targets
        return set(touched)

    def _absorb_topic(self, path: str) -> str:
        topic = path.removeprefix(self._root)
        if (node := self._nodes.value(path, partial(parse_topic, shared=self._shared_ids))) is not None:
            self._topics[topic] = self._columns(node)
        elif path not in self._nodes.problems:
            self._topics.pop(topic, None)
        return topic

    def _columns(self, node: TopicNode) -> _Topic:
        adding, removing = node.adding_replicas, node.removing_replicas
        partitions = tuple(adding)
        if partitions != tuple(removing):
            partitions = tuple(sorted(adding.keys() | removing.keys()))
            adding, removing = ({p: replicas.get(p, ()) for p in partitions} for replicas in (adding, removing))
        return _Topic(
            _shared_partitions(tuple(node.replicas)),
            tuple(node.replicas.values()),
            _Reassigning(
                _shared_partitions(partitions),
                self._shared_column(adding.values()),
                self._shared_column(removing.values()),
            ),
        )

    def _shared_column(self, column: Collection[_Replicas]) -> tuple[_Replicas, ...]:
        """The same column; other partitions share replicas of one broker, since most add and remove only one."""
        if set(map(len, column)) <= {0, 1}:
            return tuple(map(self._shared.__getitem__, column))
        return tuple(column)

    def _absorb_reassignments(self, topic: str) -> None:
        """Determine which partitions of a topic are being reassigned, and follow their states."""
        known = frozenset(self._reassigning.get(topic, _Reassigning()).partitions)
        reassigning = self._with_targets(topic)
        self._states.follow(topic, frozenset(reassigning.partitions) - known)
        self._states.forget(topic, known.difference(reassigning.partitions))
        if reassigning.partitions:
            self._reassigning[topic] = reassigning
        else:
            self._reassigning.pop(topic, None)

    def _with_targets(self, topic: str) -> _Reassigning:
        """The partitions in the topic's node and in the list of reassignments."""
        if topic in self.deleting:
            return _Reassigning()
        known, targets = self._topics.get(topic), self._targets.get(topic, {})
        own = known.reassigning if known else _Reassigning()
        if targets.keys() <= frozenset(own.partitions):
            return own
        adding = dict(zip(own.partitions, own.adding, strict=True))
        removing = dict(zip(own.partitions, own.removing, strict=True))
        partitions = tuple(sorted(targets.keys() | adding.keys()))
        return _Reassigning(
            partitions, tuple([adding.get(p) for p in partitions]), tuple([removing.get(p, ()) for p in partitions])
        )

    # Assembling reassignments.

    def touch(self, topics: Iterable[str]) -> None:
        """Mark topics for assembly because their states changed."""
        self._touched.update(topics)

    def assemble(self, unread: Collection[str] = ()) -> None:
        """Assemble every marked topic, except those whose states are not read yet."""
        for topic in self._touched.difference(unread):
            self.assemble_topic(topic)

    def assemble_topic(self, topic: str) -> None:
        """Assemble a topic's reassignment; an unchanged one stays the same object."""
        self._touched.discard(topic)
        known = self.current.get(topic)
        if reassigning := self._reassigning.get(topic):
            states = self._states.of(topic)
            leaders, isr = zip(*map(states.get, reassigning.partitions, repeat(OFFLINE)), strict=True)
            found = TopicReassignment(
                topic=topic,
                partitions=reassigning.partitions,
                leaders=leaders,
                isr=isr,
                adding_replicas=self._adding(topic, reassigning, isr),
                removing_replicas=reassigning.removing,
            )
            self.current[topic] = known if known is not None and known == found else found
        else:
            self.current.pop(topic, None)

    def _adding(self, topic: str, reassigning: _Reassigning, isr: tuple[_Replicas, ...]) -> tuple[_Replicas, ...]:
        # Targets outside the ISR: the controller has not written the adding replicas yet, or is too old to do so.
        targets = self._targets.get(topic, {})
        named = tuple([replicas for replicas in reassigning.adding if replicas is not None])
        if len(named) == len(reassigning.adding):
            return named
        return tuple(
            [
                _outside(targets.get(p, ()), synced) if replicas is None else replicas
                for p, replicas, synced in zip(reassigning.partitions, reassigning.adding, isr, strict=True)
            ]
        )

    # Where partitions are.

    def has(self, row: TopicPartition) -> bool:
        return (
            row[0] in self._topics
            and row[0] not in self.deleting
            and _index(self._topics[row[0]].partitions, row[1]) is not None
        )

    def assignment(self, row: TopicPartition, state: StateNode) -> Assignment:
        """Return the current replicas of an existing partition and its reassignment."""
        (topic, partition), known = row, self._topics[row[0]]
        index, own_index = _index(known.partitions, partition), _index(known.reassigning.partitions, partition)
        assert index is not None
        replicas, target = known.replicas[index], self._targets.get(topic, {}).get(partition)
        adding, removing = _Replicas(), _Replicas()
        if own_index is not None:
            adding, removing = known.reassigning.adding[own_index] or (), known.reassigning.removing[own_index]
        if target is not None and not (adding or removing):  # the controller has not started it
            adding = tuple(b for b in target if b not in replicas)
            removing = tuple(b for b in replicas if b not in target)
            replicas = (*target, *removing)
        return Assignment(replicas, state.leader, state.isr, adding, removing)

    def replicas_on(self, broker_ids: frozenset[int]) -> dict[int, dict[str, tuple[int, ...]]]:
        """Return broker -> topic -> its partitions on that broker. Any thread may call this."""
        topics = [pair for pair in list(self._topics.items()) if pair[0] not in self.deleting] if broker_ids else []
        return replicas_on(
            broker_ids, ((topic, zip(known.partitions, known.replicas, strict=True)) for topic, known in topics)
        )


def _index(partitions: Sequence[int], partition: int) -> int | None:
    """The index of a partition in an ascending column; None: it is absent."""
    index = bisect_left(partitions, partition)
    return index if index < len(partitions) and partitions[index] == partition else None


@lru_cache(maxsize=256)  # most topics have the partitions 0 to n - 1
def _shared_partitions(partitions: tuple[int, ...]) -> tuple[int, ...]:
    return partitions


def _outside(replicas: tuple[int, ...], isr: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b for b in replicas if b not in isr)


MAX_LIST_BYTES = 1_000_000
"""ZooKeeper's limit for one request, less the overhead around the list."""

_NOT_SUBMITTED = "nothing was submitted"


class ZooKeeperReassigner:
    """A `Reassigner` on `/admin/reassign_partitions`. Thread-safe."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths, own: OwnPaths) -> None:
        self._client, self._path, self._own = client, kafka.reassign_partitions, own
        self._kafka = kafka

    def submit_reassignments(self, term: Term, targets: Targets, timeout: timedelta) -> Refusals:
        """Submit reassignments. Kafka refuses none here: the result has those that would replace another one."""
        deadline = time.monotonic() + timeout.total_seconds()
        replaced = replacements(targets, self._running(targets, deadline))
        if accepted := {row: target for row, target in targets.items() if row not in replaced}:
            self._create(term.fence, _formatted(accepted), deadline)
        return replaced

    def _running(self, targets: Targets, deadline: float) -> dict[TopicPartition, tuple[int, ...]]:
        """Return the targets of the running reassignments of these topics, which Kafka would replace (KIP-455)."""
        topics = list(dict.fromkeys(topic for topic, _ in targets))
        with translated_errors("reading the running reassignments"):
            nodes = read_nodes(self._client, [self._kafka.topic(topic) for topic in topics], deadline)
        existing = {topic: node for topic, node in zip(topics, nodes, strict=True) if node is not None}
        return dict(running_targets({topic: parse_topic(node[0] or b"") for topic, node in existing.items()}))

    def cancel_reassignments(
        self, term: Term, partitions: Collection[TopicPartition], timeout: timedelta
    ) -> Cancellation:
        raise Invalid(
            "a reassignment cannot be cancelled through ZooKeeper, only through the admin API. Fix: start autothrottle "
            "with --bootstrap-servers, or with --kafka-backend admin. kafka-reassign-partitions.sh --cancel does not "
            "check that the original replicas are in sync, and can take partitions offline"
        )

    def _create(self, fence: int, data: bytes, deadline: float) -> None:
        with translated_errors("checking the term"):
            check = term_check(self._client, self._own, fence, seconds_left(deadline), _NOT_SUBMITTED)
        transaction = check.begin(self._client)
        transaction.create(self._path, data)
        try:
            results = transaction.commit_async().get(timeout=seconds_left(deadline))
        except ANSWER_LOST as error:
            # If the list is not there, it was never written, or Kafka has already processed it.
            if self._is_listed(data, deadline):
                return
            raise Unavailable("lost the connection to ZooKeeper: it is unknown whether it was submitted") from error
        (created,) = check.require(results, _NOT_SUBMITTED)
        # An existing list that equals ours is that of a first attempt, whose answer was lost.
        if isinstance(created, NodeExistsError) and not self._is_listed(data, deadline):
            raise Conflict(
                f"a reassignment that was started through ZooKeeper is in progress ({self._path}), and Kafka accepts "
                "only one at a time there; wait until it is complete"
            )
        if any(isinstance(result, NoAuthError) for result in results):
            raise Unavailable(f"ZooKeeper denies the creation of {self._path}: {NOT_ADMITTED}")
        if isinstance(created, Exception) and not isinstance(created, NodeExistsError):
            raise Unavailable(
                f"ZooKeeper refuses to create {self._path}: {created!r}; check that zk-prefix is Kafka's chroot"
            )

    def _is_listed(self, data: bytes, deadline: float) -> bool:
        """Whether the list of reassignments is this one, as soon as ZooKeeper answers again."""
        return bool(read_after_outage(self._client, lambda: self._current(deadline) == data, deadline))

    def _current(self, deadline: float) -> bytes | None:
        try:
            data: bytes = self._client.get_async(self._path).get(timeout=seconds_left(deadline))[0]
        except NoNodeError:
            return None
        return data


def _formatted(targets: Targets) -> bytes:
    rows = [{"topic": t, "partition": p, "replicas": list(to)} for (t, p), to in targets.items()]
    data = compact_json({"version": 1, "partitions": rows})
    if len(data) > MAX_LIST_BYTES:
        fitting = len(rows) * MAX_LIST_BYTES // len(data)
        raise Invalid(
            f"{len(rows)} partitions are {len(data)} bytes, more than ZooKeeper accepts at once "
            f"({MAX_LIST_BYTES}); submit at most about {fitting} partitions at a time"
        )
    return data

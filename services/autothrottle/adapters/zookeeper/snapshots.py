"""Snapshots of a Kafka cluster in ZooKeeper mode, kept by watches.

Both forms of reassignments are read and counted once: `/admin/reassign_partitions`, and the adding and removing
replicas in a topic's node (KIP-455). What cannot be read is kept as it was last read and reported as a problem.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TypeVar

from kazoo.client import KazooClient

from autothrottle.adapters.deadlines import seconds_left
from autothrottle.adapters.news import Look, News, started_line
from autothrottle.adapters.progress import ProgressReader
from autothrottle.adapters.subscriptions import Subscriptions
from autothrottle.adapters.zookeeper.bulk import read_nodes
from autothrottle.adapters.zookeeper.codec import (
    StateNode,
    TopicNode,
    broker_id_of,
    parse_config,
    parse_ledger_entry,
    parse_reassignments,
    parse_state,
    parse_topic,
    resource_of,
)
from autothrottle.adapters.zookeeper.mirror import Key, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper.states import PartitionStates
from autothrottle.core.configs import RATE_KEYS, THROTTLE_KEYS, ConfigResource, ResourceType
from autothrottle.core.errors import AutothrottleError, Incomplete, Invalid, Unavailable
from autothrottle.core.ledger import LedgerEntry
from autothrottle.core.topology import (
    NO_LEADER,
    Assignment,
    Problem,
    Snapshot,
    TopicPartition,
    TopicReassignment,
)
from autothrottle.ports.cluster import SnapshotEvent, Watch

log = logging.getLogger(__name__)

_FOLLOW_TIMEOUT_SECONDS = 60.0
"""Enough to read 100,000 partitions anew after a lost connection."""

_MANY_STATES = 10_000
"""To read so many takes long enough that a cycle begins meanwhile, with what is read already."""

_NEXT_LOOK_SECONDS = 0.02
"""While much is being read."""

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class ZooKeeperSnapshots:
    """The cluster as ZooKeeper shows it; a `SnapshotSource`. Thread-safe."""

    def __init__(
        self,
        client: KazooClient,
        kafka: KafkaPaths,
        own: OwnPaths,
        progress: ProgressReader | None = None,
        many_states: int = _MANY_STATES,
    ) -> None:
        """Follow the cluster from now on.

        Args:
            client: connected.
            kafka: where Kafka keeps what.
            own: where we do.
            progress: reads log sizes, closed by whoever made it; None: ZooKeeper knows no sizes, so how far moves
                have come is unknown.
            many_states: from so many unread states on it is told at once that a move began, > 0.
        """
        self._client, self._kafka, self._own, self._progress = client, kafka, own, progress
        self._dirty = threading.Event()
        self._mirror = ZnodeMirror(client, self._dirty.set)
        self._states = PartitionStates(client, kafka, self._dirty.set, self._states_were_read)
        self._many_states = many_states
        self._nothing_is_early = threading.Event()
        self._nothing_is_early.set()
        self._lock = threading.RLock()
        self._watchers = Subscriptions[SnapshotEvent]()
        self._closed = False
        self._topics: dict[str, TopicNode] = {}
        self._throttles: dict[ConfigResource, dict[str, str]] = {}
        self._default_throttles: dict[str, str] = {}
        self._ledger: dict[ConfigResource, LedgerEntry] = {}
        self._znode_targets: dict[str, dict[int, tuple[int, ...]]] = {}
        self._moves: dict[str, _Moves] = {}
        self._moving: dict[str, TopicReassignment] = {}
        self._touched: set[str] = set()
        self._put_together: set[str] = set()
        self._problems: dict[str, Problem] = {}
        self._news = News()
        config_parents = [f"{kafka.configs}/{kind.value}" for kind in ResourceType]
        ledger_parents = [f"{own.ledger}/{kind.value}" for kind in ResourceType]
        self._config_roots = {f"{p}/": k for p, k in zip(config_parents, ResourceType, strict=True)}
        self._ledger_roots = {f"{p}/": k for p, k in zip(ledger_parents, ResourceType, strict=True)}
        parents = [kafka.broker_ids, kafka.topics, *config_parents, *ledger_parents]
        self._mirror.track([(Part.CHILDREN, path) for path in parents])
        self._mirror.track([(Part.DATA, kafka.reassign_partitions)])
        self._topics_root = kafka.topics + "/"
        self._tracked_children: dict[str, frozenset[str]] = {}
        self._dirty.set()
        self._growth_watch = progress.watch_growth(self._clients_brought_more) if progress else None
        self._thread = threading.Thread(target=self._follow, name="zookeeper-snapshots", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following the cluster."""
        if self._growth_watch:
            self._growth_watch.close()
        self._closed = True
        self._dirty.set()
        self._thread.join()
        self._mirror.close()
        self._states.close()

    # What the port asks for.

    def fetch_snapshot(
        self,
        *,
        min_version: int = 0,
        replicas_of: Collection[int] = (),
        partitions: Collection[TopicPartition] = (),
        timeout: timedelta,
    ) -> Snapshot:
        """Return the cluster as it is now."""
        deadline = time.monotonic() + timeout.total_seconds()
        if not self._lock.acquire(timeout=timeout.total_seconds()):
            raise Unavailable(f"discovery is still reading the cluster after {timeout.total_seconds():g} s")
        try:
            version = self._refresh(deadline, min_version)
            snapshot = self._snapshot(version, replicas_of)
            return replace(snapshot, assignments=self._assignments(partitions, deadline)) if partitions else snapshot
        finally:
            self._lock.release()

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        """Call `notify` for every event from now on."""
        return self._watchers.add(notify)

    def moves_so_far(self, timeout: timedelta) -> Iterator[Collection[TopicReassignment]]:
        """Yield what is known to move, again and again, while much is being read; nothing otherwise."""
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._nothing_is_early.wait(_NEXT_LOOK_SECONDS) and time.monotonic() < deadline:
            yield list(self._moving.values())

    # Following the cluster.

    def _follow(self) -> None:
        watched_since: int | None = None
        while not self._closed:
            self._dirty.wait()
            self._dirty.clear()
            woken, connection = datetime.now(UTC), self._mirror.reconnections
            told: set[str] = set()
            if self._closed:
                return
            try:
                with self._lock:
                    version = self._refresh(time.monotonic() + _FOLLOW_TIMEOUT_SECONDS, 0, told)
                    news = self._news.since_last_look(Look(self._brokers(), dict(self._moving)), told)
                    if self._progress:
                        # Watches tell at once; what came before the first look, or unwatched, may be hours old.
                        unmoved_until = woken if watched_since == connection else None
                        self._progress.follow(self._reassignments(), self._brokers(), unmoved_until)
                    watched_since = connection
            except AutothrottleError as error:
                log.warning("the cluster cannot be read: %s", error)
                time.sleep(0.5)
                self._dirty.set()
                continue
            for reason, urgent in news:
                self._watchers.publish(SnapshotEvent(version, reason, urgent))

    def _clients_brought_more(self, reason: str) -> None:
        # Any snapshot shows it: what logs have grown by is read beside ZooKeeper.
        self._watchers.publish(SnapshotEvent(0, reason))

    # Reading.

    def _refresh(self, deadline: float, min_version: int, told: set[str] | None = None) -> int:
        """Read what changed and return the version; `told` takes the topics whose start is told before all is read."""
        with translated_errors("reading the cluster"):
            version = self._mirror.catch_up(seconds_left(deadline), min_version)
            try:
                while self._read_changed(deadline, version, told):
                    pass
            finally:
                self._nothing_is_early.set()
            while self._touched:
                self._absorb_reassignment(self._touched.pop())
            return version

    def _read_changed(self, deadline: float, version: int, told: set[str] | None) -> bool:
        """Read what changed, the states last: which are wanted depends on all else. Whether there was anything."""
        if read := self._mirror.read_changed(seconds_left(deadline)):
            self._absorb(read)
            return True
        if self._states.unread >= self._many_states:
            self._nothing_is_early.clear()
            if told is not None:
                self._tell_early(version, told)
        self._put_together.clear()
        topics = self._states.read_changed(seconds_left(deadline))
        self._touched |= topics - self._put_together
        return bool(topics)

    def _tell_early(self, version: int, told: set[str]) -> None:
        """Tell of moves that begin before their states are read, so that the cycle takes them as they come."""
        if started := sorted(self._moves.keys() - self._moving.keys() - told):
            told.update(started)
            # These topics were read after the version was taken, and show what had been written by then.
            shown = max(version, int(self._client.last_zxid))
            self._watchers.publish(SnapshotEvent(shown, started_line(started), urgent=True))

    def _states_were_read(self, topic: str) -> None:
        self._touched.discard(topic)
        self._put_together.add(topic)
        self._absorb_reassignment(topic)

    def _absorb(self, read: Collection[Key]) -> None:
        """Take over what was read."""
        moves: set[str] = set()
        for part, path in read:
            if part is Part.CHILDREN:
                self._absorb_children(path, moves)
            elif path == self._kafka.reassign_partitions:
                moves |= self._absorb_reassignments(path)
            elif path.startswith(self._topics_root):
                self._absorb_topic(path, moves)
            else:
                self._absorb_resource(path)
        for topic in moves:
            self._absorb_moves(topic)
        self._touched |= moves

    def _absorb_children(self, parent: str, touched: set[str]) -> None:
        if parent == self._kafka.broker_ids:
            return
        names = frozenset(self._mirror.children(parent))
        known = self._tracked_children.get(parent, frozenset())
        self._tracked_children[parent] = names
        self._mirror.track((Part.DATA, f"{parent}/{name}") for name in names)
        for name in known - names:
            path = f"{parent}/{name}"
            self._mirror.forget([(Part.DATA, path)])
            if parent == self._kafka.topics:
                self._topics.pop(name, None)
                self._problems.pop(path, None)
                touched.add(name)
            else:
                self._absorb_resource(path)

    def _absorb_reassignments(self, path: str) -> set[str]:
        parsed = self._parsed(path, parse_reassignments)
        if parsed is None:
            if path in self._problems:
                return set()
            parsed = {}
        targets: dict[str, dict[int, tuple[int, ...]]] = {}
        for (topic, partition), replicas in parsed.items():
            targets.setdefault(topic, {})[partition] = replicas
        touched = self._znode_targets.keys() | targets.keys()
        self._znode_targets = targets
        return set(touched)

    def _absorb_topic(self, path: str, touched: set[str]) -> None:
        topic = path.removeprefix(self._topics_root)
        touched.add(topic)
        if (node := self._parsed(path, parse_topic)) is not None:
            self._topics[topic] = node
        elif path not in self._problems:
            self._topics.pop(topic, None)

    def _absorb_resource(self, path: str) -> None:
        if path == self._kafka.default_broker_config:
            return self._absorb_default(path)
        for root, kind in self._config_roots.items():
            if path.startswith(root):
                resource = resource_of(kind, path.removeprefix(root))
                config = self._parsed(path, parse_config) or {}
                throttles = {key: value for key, value in config.items() if key in THROTTLE_KEYS}
                if resource is not None and path not in self._problems:
                    _put(self._throttles, resource, throttles)
        for root, kind in self._ledger_roots.items():
            if path.startswith(root):
                resource = resource_of(kind, path.removeprefix(root))
                entry = self._parsed(path, parse_ledger_entry)
                if resource is not None and path not in self._problems:
                    _put(self._ledger, resource, entry)

    def _absorb_default(self, path: str) -> None:
        """Take over the brokers' default config; one that cannot be read hinders nobody, since it is not ours."""
        try:
            config = parse_config(self._mirror.data(path) or _NO_CONFIG)
        except Invalid as error:
            log.warning("%s: %s", path, error)
            return
        self._default_throttles = {key: value for key, value in config.items() if key in RATE_KEYS}

    def _parsed(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        """The node's content; None when it is not there or, with a problem noted, cannot be read."""
        data = self._mirror.data(path)
        try:
            value = None if data is None else parse(data)
        except Invalid as error:
            if path not in self._problems:
                log.warning("%s: %s", path, error)
            self._problems[path] = Problem(path, str(error))
            return None
        self._problems.pop(path, None)
        return value

    # What moves.

    def _absorb_moves(self, topic: str) -> None:
        """Work out which partitions of a topic move, and follow the states of these."""
        known, moves = self._moves.get(topic, {}), self._moving_partitions(topic)
        self._states.follow(topic, moves.keys() - known.keys())
        self._states.forget(topic, known.keys() - moves.keys())
        _put(self._moves, topic, moves)

    def _moving_partitions(self, topic: str) -> _Moves:
        node = self._topics.get(topic)
        targets = self._znode_targets.get(topic, {})
        adding = node.adding_replicas if node else {}
        removing = node.removing_replicas if node else {}
        return {
            p: (adding.get(p, () if p in removing else None), removing.get(p, ()))
            for p in sorted(adding.keys() | removing.keys() | targets.keys())
        }

    def _absorb_reassignment(self, topic: str) -> None:
        """Put together what is known of a topic's reassignment; one that is as it was stays the same object."""
        moves = self._moves.get(topic)
        reassignment = self._reassignment(topic, moves) if moves else None
        if reassignment is None or reassignment != self._moving.get(topic):
            _put(self._moving, topic, reassignment)

    def _reassignment(self, topic: str, moves: _Moves) -> TopicReassignment:
        known = self._states.of(topic)
        leaders, isr = zip(*[known.get(p, _OFFLINE) for p in moves], strict=True)
        targets = self._znode_targets.get(topic, {})
        # A target outside of the ISR: the controller has not said yet what it adds, or is too old to say.
        adding = [
            _outside(targets.get(p, ()), synced) if named is None else named
            for (p, (named, _)), synced in zip(moves.items(), isr, strict=True)
        ]
        return TopicReassignment(
            topic=topic,
            partitions=tuple(moves),
            leaders=leaders,
            isr=isr,
            adding_replicas=tuple(adding),
            removing_replicas=tuple([removing for _, removing in moves.values()]),
        )

    # What is handed out.

    def _brokers(self) -> frozenset[int]:
        ids = (broker_id_of(name) for name in self._mirror.children(self._kafka.broker_ids))
        return frozenset(b for b in ids if b is not None)

    def _reassignments(self) -> tuple[TopicReassignment, ...]:
        return tuple(self._moving[topic] for topic in sorted(self._moving))

    def _snapshot(self, version: int, replicas_of: Collection[int]) -> Snapshot:
        unreadable = dict(self._unreadable_configs())
        own = {problem.path for problem in unreadable.values()}
        return Snapshot(
            version=version,
            brokers=self._brokers(),
            reassignments=self._reassignments(),
            throttles=dict(self._throttles),
            default_throttles=self._default_throttles,
            ledger=dict(self._ledger),
            replicas=self._replicas(frozenset(replicas_of)),
            unreadable_configs=unreadable,
            problems=tuple(p for path, p in sorted(self._all_problems().items()) if path not in own),
            progress=self._progress.progress if self._progress else None,
        )

    def _all_problems(self) -> dict[str, Problem]:
        return {**self._problems, **self._states.problems}

    def _unreadable_configs(self) -> Iterable[tuple[ConfigResource, Problem]]:
        for path, problem in self._problems.items():
            for root, kind in (*self._config_roots.items(), *self._ledger_roots.items()):
                if path.startswith(root) and (resource := resource_of(kind, path.removeprefix(root))):
                    yield resource, problem

    def _assignments(self, partitions: Collection[TopicPartition], deadline: float) -> dict[TopicPartition, Assignment]:
        """Where partitions are; the states of those that do not move are not mirrored and are read for this alone."""
        known = [(t, p) for t, p in partitions if t in self._topics and p in self._topics[t].replicas]
        states = {row: self._states.of(row[0]).get(row[1]) for row in known}
        paths = {row: self._kafka.state(*row) for row, state in states.items() if state is None}
        with translated_errors("reading where partitions are"):
            nodes = read_nodes(self._client, list(paths.values()), deadline)
        read = {row: _state(paths[row], node[0] if node else None) for row, node in zip(paths, nodes, strict=True)}
        return {row: self._assignment(row, read[row] if state is None else state) for row, state in states.items()}

    def _assignment(self, row: TopicPartition, state: StateNode) -> Assignment:
        (topic, partition), node = row, self._topics[row[0]]
        replicas, target = node.replicas[partition], self._znode_targets.get(topic, {}).get(partition)
        adding, removing = node.adding_replicas.get(partition, ()), node.removing_replicas.get(partition, ())
        if target is not None and not (adding or removing):  # the controller has not begun with it
            adding = tuple(b for b in target if b not in replicas)
            removing = tuple(b for b in replicas if b not in target)
            replicas = (*target, *removing)
        return Assignment(replicas, state.leader, state.isr, adding, removing)

    def _replicas(self, broker_ids: frozenset[int]) -> dict[int, dict[str, tuple[int, ...]]]:
        """The partitions on some brokers, by topic; one pass for all, since 100,000 partitions are looked at."""
        found: dict[int, dict[str, tuple[int, ...]]] = {b: {} for b in sorted(broker_ids)}
        for topic, node in self._topics.items() if broker_ids else ():
            held = sorted(p for p, replicas in node.replicas.items() if not broker_ids.isdisjoint(replicas))
            for broker_id in broker_ids.intersection(chain.from_iterable(node.replicas[p] for p in held)):
                found[broker_id][topic] = tuple(p for p in held if broker_id in node.replicas[p])
        return found


_NO_CONFIG = b'{"config":{}}'
_Moves = Mapping[int, tuple[tuple[int, ...] | None, tuple[int, ...]]]
"""Partition -> (adding replicas or None: not known from the topic's node, removing replicas), ascending."""

_OFFLINE = StateNode(NO_LEADER, ())


def _outside(replicas: tuple[int, ...], isr: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b for b in replicas if b not in isr)


def _state(path: str, data: bytes | None) -> StateNode:
    """The leader and ISR that a state's node holds.

    Raises:
        Incomplete: when they cannot be read: a guess could leave a partition without throttle.
    """
    try:
        return parse_state(data) if data is not None else _OFFLINE
    except Invalid as error:
        raise Incomplete(f"{path}: {error}") from error


def _put(mapping: dict[K, V], key: K, value: V | None) -> None:
    """Set a key, or drop it when there is nothing to set."""
    if value:
        mapping[key] = value
    else:
        mapping.pop(key, None)

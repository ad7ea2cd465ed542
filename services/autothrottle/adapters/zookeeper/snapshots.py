"""Snapshots of a Kafka cluster in ZooKeeper mode, kept by watches.

Both forms of reassignments are read and counted once: `/admin/reassign_partitions`, and the adding and removing
replicas in a topic's node (KIP-455). What cannot be read is kept as it was last read and reported as a problem.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import NamedTuple, TypeVar

from kazoo.client import KazooClient

from autothrottle.adapters.subscriptions import Subscriptions
from autothrottle.adapters.zookeeper.codec import (
    StateNode,
    TopicNode,
    broker_id_of,
    parse_config,
    parse_ledger_entry,
    parse_reassignments,
    parse_state,
    parse_topic,
)
from autothrottle.adapters.zookeeper.mirror import Key, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.configs import THROTTLE_KEYS, ConfigResource, ResourceType
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.core.ledger import LedgerEntry
from autothrottle.core.topology import NO_LEADER, Problem, Snapshot, TopicReassignment
from autothrottle.ports.cluster import SnapshotEvent, Watch

log = logging.getLogger(__name__)

_FOLLOW_TIMEOUT_SECONDS = 60.0
"""Enough to read 100,000 partitions anew after a lost connection."""

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class ZooKeeperSnapshots:
    """The cluster as ZooKeeper shows it; a `SnapshotSource`. Thread-safe."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths, own: OwnPaths) -> None:
        self._kafka, self._own = kafka, own
        self._dirty = threading.Event()
        self._mirror = ZnodeMirror(client, self._dirty.set)
        self._lock = threading.RLock()
        self._watchers = Subscriptions[SnapshotEvent]()
        self._closed = False
        self._topics: dict[str, TopicNode] = {}
        self._states: dict[str, dict[int, StateNode]] = {}
        self._throttles: dict[ConfigResource, dict[str, str]] = {}
        self._ledger: dict[ConfigResource, LedgerEntry] = {}
        self._znode_targets: dict[str, dict[int, tuple[int, ...]]] = {}
        self._moves: dict[str, _Moves] = {}
        self._moving: dict[str, TopicReassignment] = {}
        self._followed: dict[str, tuple[str, int]] = {}
        self._problems: dict[str, Problem] = {}
        self._announced: tuple[frozenset[int], dict[str, TopicReassignment]] | None = None
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
        self._thread = threading.Thread(target=self._follow, name="zookeeper-snapshots", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following the cluster."""
        self._closed = True
        self._dirty.set()
        self._thread.join()
        self._mirror.close()

    # What the port asks for.

    def fetch_snapshot(
        self, *, min_version: int = 0, replicas_of: Collection[int] = (), timeout: timedelta
    ) -> Snapshot:
        """Return the cluster as it is now."""
        deadline = time.monotonic() + timeout.total_seconds()
        if not self._lock.acquire(timeout=timeout.total_seconds()):
            raise Unavailable(f"discovery is still reading the cluster after {timeout.total_seconds():g} s")
        try:
            version = self._refresh(deadline, min_version)
            return self._snapshot(version, replicas_of)
        finally:
            self._lock.release()

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        """Call `notify` for every event from now on."""
        return self._watchers.add(notify)

    # Following the cluster.

    def _follow(self) -> None:
        while not self._closed:
            self._dirty.wait()
            self._dirty.clear()
            if self._closed:
                return
            try:
                with self._lock:
                    version = self._refresh(time.monotonic() + _FOLLOW_TIMEOUT_SECONDS, 0)
                    news = self._news()
            except AutothrottleError as error:
                log.warning("the cluster cannot be read: %s", error)
                time.sleep(0.5)
                self._dirty.set()
                continue
            for reason, urgent in news:
                self._watchers.publish(SnapshotEvent(version, reason, urgent))

    def _news(self) -> list[tuple[str, bool]]:
        """What happened since this was asked last: one sentence each, and whether bytes move unthrottled."""
        brokers, moving = self._brokers(), dict(self._moving)
        announced, self._announced = self._announced, (brokers, moving)
        if announced is None:
            # Whoever began to watch before the first look was over would wait for these in vain.
            return [(f"reassignment found: [{' '.join(sorted(moving))}]", True)] if moving else []
        old_brokers, old = announced
        news = []
        if started := sorted(moving.keys() - old.keys()):
            news.append((f"reassignment started: [{' '.join(started)}]", True))
        if ended := sorted(old.keys() - moving.keys()):
            news.append((f"reassignment ended: [{' '.join(ended)}]", False))
        changed = [t for t in moving.keys() & old.keys() if moving[t] is not old[t] and moving[t] != old[t]]
        news += [what for topic in sorted(changed) for what in _differences(old[topic], moving[topic])]
        if appeared := sorted(brokers - old_brokers):
            news.append((f"brokers registered: {appeared}", False))
        return news

    # Reading.

    def _refresh(self, deadline: float, min_version: int) -> int:
        with translated_errors("reading the cluster"):
            version = self._mirror.catch_up(_left(deadline), min_version)
            while read := self._mirror.read_changed(_left(deadline)):
                self._absorb(read)
            return version

    def _absorb(self, read: Collection[Key]) -> None:
        """Take over what was read."""
        moves: set[str] = set()
        states: set[str] = set()
        for part, path in read:
            if followed := self._followed.get(path):
                self._absorb_state(path, *followed)
                states.add(followed[0])
            elif part is Part.CHILDREN:
                self._absorb_children(path, moves)
            elif path == self._kafka.reassign_partitions:
                moves |= self._absorb_reassignments(path)
            elif path.startswith(self._topics_root):
                self._absorb_topic(path, moves)
            else:
                self._absorb_resource(path)
        for topic in moves:
            self._absorb_moves(topic)
        for topic in moves | states:
            self._absorb_reassignment(topic)

    def _absorb_children(self, parent: str, touched: set[str]) -> None:
        if parent == self._kafka.broker_ids:
            return
        names = frozenset(self._mirror.children(parent)) - {"<default>"}
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
        if "/" in topic:
            return  # the state of a partition that nobody follows any more
        touched.add(topic)
        if (node := self._parsed(path, parse_topic)) is not None:
            self._topics[topic] = node
        elif path not in self._problems:
            self._topics.pop(topic, None)

    def _absorb_state(self, path: str, topic: str, partition: int) -> None:
        states = self._states.setdefault(topic, {})
        if (state := self._parsed(path, parse_state)) is not None:
            states[partition] = state
        elif path not in self._problems:
            states.pop(partition, None)

    def _absorb_resource(self, path: str) -> None:
        for root, kind in self._config_roots.items():
            if path.startswith(root):
                resource = _resource(kind, path.removeprefix(root))
                config = self._parsed(path, parse_config) or {}
                throttles = {key: value for key, value in config.items() if key in THROTTLE_KEYS}
                if resource is not None and path not in self._problems:
                    _put(self._throttles, resource, throttles)
        for root, kind in self._ledger_roots.items():
            if path.startswith(root):
                resource = _resource(kind, path.removeprefix(root))
                entry = self._parsed(path, parse_ledger_entry)
                if resource is not None and path not in self._problems:
                    _put(self._ledger, resource, entry)

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
        begun = {self._kafka.state(topic, p): (topic, p) for p in moves.keys() - known.keys()}
        gone = [self._kafka.state(topic, p) for p in known.keys() - moves.keys()]
        self._followed |= begun
        self._mirror.track((Part.DATA, path) for path in begun)
        self._mirror.forget((Part.DATA, path) for path in gone)
        for path in gone:
            _, partition = self._followed.pop(path)
            self._states.get(topic, {}).pop(partition, None)
            self._problems.pop(path, None)
        _put(self._moves, topic, moves)
        if not moves:
            self._states.pop(topic, None)

    def _moving_partitions(self, topic: str) -> _Moves:
        node = self._topics.get(topic)
        targets = self._znode_targets.get(topic, {})
        adding = node.adding_replicas if node else {}
        removing = node.removing_replicas if node else {}
        return {
            p: (adding.get(p, ()) if p in adding or p in removing else None, removing.get(p, ()))
            for p in sorted(adding.keys() | removing.keys() | targets.keys())
        }

    def _absorb_reassignment(self, topic: str) -> None:
        """Put together what is known of a topic's reassignment; one that is as it was stays the same object."""
        moves = self._moves.get(topic)
        reassignment = self._reassignment(topic, moves) if moves else None
        if reassignment is None or reassignment != self._moving.get(topic):
            _put(self._moving, topic, reassignment)

    def _reassignment(self, topic: str, moves: _Moves) -> TopicReassignment:
        targets, known = self._znode_targets.get(topic, {}), self._states.get(topic, {})
        states = [known.get(p, _OFFLINE) for p in moves]
        adding = []
        for (partition, (named, _)), state in zip(moves.items(), states, strict=True):
            if named is None:
                # A target outside of the ISR: the controller has not said yet what it adds, or is too old to say.
                named = tuple(b for b in targets.get(partition, ()) if b not in state.isr)
            adding.append(named)
        return TopicReassignment(
            topic=topic,
            partitions=tuple(moves),
            leaders=tuple(state.leader for state in states),
            isr=tuple(state.isr for state in states),
            adding_replicas=tuple(adding),
            removing_replicas=tuple(removing for _, removing in moves.values()),
        )

    # What is handed out.

    def _brokers(self) -> frozenset[int]:
        ids = (broker_id_of(name) for name in self._mirror.children(self._kafka.broker_ids))
        return frozenset(b for b in ids if b is not None)

    def _snapshot(self, version: int, replicas_of: Collection[int]) -> Snapshot:
        unreadable = dict(self._unreadable_configs())
        own = {problem.path for problem in unreadable.values()}
        return Snapshot(
            version=version,
            brokers=self._brokers(),
            reassignments=tuple(self._moving[t] for t in sorted(self._moving)),
            throttles=dict(self._throttles),
            ledger=dict(self._ledger),
            replicas={b: self._replicas(b) for b in replicas_of},
            unreadable_configs=unreadable,
            problems=tuple(p for path, p in sorted(self._problems.items()) if path not in own),
        )

    def _unreadable_configs(self) -> Iterable[tuple[ConfigResource, Problem]]:
        for path, problem in self._problems.items():
            for root, kind in (*self._config_roots.items(), *self._ledger_roots.items()):
                if path.startswith(root) and (resource := _resource(kind, path.removeprefix(root))):
                    yield resource, problem

    def _replicas(self, broker_id: int) -> dict[str, tuple[int, ...]]:
        found = {}
        for topic, node in self._topics.items():
            partitions = tuple(sorted(p for p, replicas in node.replicas.items() if broker_id in replicas))
            if partitions:
                found[topic] = partitions
        return found


_Moves = Mapping[int, tuple[tuple[int, ...] | None, tuple[int, ...]]]
"""Partition -> (adding replicas or None: not known from the topic's node, removing replicas), ascending."""

_OFFLINE = StateNode(NO_LEADER, ())


def _resource(kind: ResourceType, name: str) -> ConfigResource | None:
    """The resource of a node's name; None for a broker's node whose name is no id."""
    if kind is ResourceType.BROKER:
        broker_id = broker_id_of(name)
        return None if broker_id is None else ConfigResource.broker(broker_id)
    return ConfigResource.topic(name)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _put(mapping: dict[K, V], key: K, value: V | None) -> None:
    """Set a key, or drop it when there is nothing to set."""
    if value:
        mapping[key] = value
    else:
        mapping.pop(key, None)


def _differences(old: TopicReassignment, new: TopicReassignment) -> Iterator[tuple[str, bool]]:
    """What changed in a topic's reassignment: one sentence for each kind, and whether bytes move unthrottled."""
    before, after = _by_partition(old), _by_partition(new)
    both = before.keys() & after.keys()
    if after.keys() - before.keys() or any(before[p].adding != after[p].adding for p in both):
        yield f"reassignment of {new.topic} grew", True
    if before.keys() - after.keys():
        yield f"partitions of {new.topic} are done", False
    if any(before[p].leader != after[p].leader for p in both):
        yield f"leader of {new.topic} changed", True
    if any(before[p].isr != after[p].isr for p in both):
        yield f"ISR of {new.topic} changed", False


class _Partition(NamedTuple):
    leader: int
    isr: frozenset[int]
    adding: tuple[int, ...]


def _by_partition(reassignment: TopicReassignment) -> dict[int, _Partition]:
    columns = (reassignment.leaders, map(frozenset, reassignment.isr), reassignment.adding_replicas)
    return dict(zip(reassignment.partitions, map(_Partition, *columns), strict=True))

"""Snapshots of a Kafka cluster in ZooKeeper mode, kept fresh by watches.

A thread follows the cluster; callers share its copies and wait for its reads. `reassignments` interprets the nodes of
topics and partitions, `ThrottleConfigs` those of configs and the ledger. A node that cannot be parsed keeps its last
known value and is reported as a problem.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kazoo.client import KazooClient

from autothrottle.adapters.concurrency.subscriptions import Subscriptions, seconds_left
from autothrottle.adapters.kafka_common.progress_reader import ProgressReader
from autothrottle.adapters.kafka_zookeeper.reassignments import OFFLINE, PartitionStates, ReassignmentNodes
from autothrottle.adapters.zookeeper.bulk import read_nodes
from autothrottle.adapters.zookeeper.codec import parse_config, parse_ledger_entry, parse_state, resource_of
from autothrottle.adapters.zookeeper.mirror import Key, ParsedNodes, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import (
    RATE_KEYS,
    THROTTLE_KEYS,
    THROTTLED_TYPES,
    ConfigResource,
    LedgerEntry,
    ResourceType,
    broker_id_of,
)
from autothrottle.core.cluster.snapshot import (
    ANY_SNAPSHOT,
    Assignment,
    ClusterView,
    Problem,
    Snapshot,
    SnapshotDifferences,
    SnapshotRequest,
    TopicPartition,
    TopicReassignment,
)
from autothrottle.core.errors import AutothrottleError, Incomplete, Invalid, Unavailable
from autothrottle.core.retries import CLUSTER
from autothrottle.core.throttles.foreign_edits import (
    RECHECK,
    ForeignEdits,
    NeededThrottles,
    edited_reason,
    edits,
)
from autothrottle.ports.kafka import SnapshotEvent, Watch


class ThrottleConfigs:
    """The throttles and ledger entries of brokers and topics. `absorb` updates them from a mirrored node."""

    def __init__(self, kafka: KafkaPaths, own: OwnPaths, mirror: ZnodeMirror, nodes: ParsedNodes) -> None:
        self._default, self._mirror, self._nodes = kafka.default_broker_config, mirror, nodes
        self.throttles: dict[ConfigResource, dict[str, str]] = {}
        """Resource -> its throttle configs (key -> value); absent: it has none."""
        self.default_throttles: dict[str, str] = {}
        self.ledger: dict[ConfigResource, LedgerEntry] = {}
        self._tables: list[tuple[str, ResourceType, Callable[[bytes], Any], dict[ConfigResource, Any]]] = [
            *((f"{kafka.configs}/{kind.value}/", kind, _parse_throttles, self.throttles) for kind in THROTTLED_TYPES),
            *((f"{own.ledger}/{kind.value}/", kind, parse_ledger_entry, self.ledger) for kind in THROTTLED_TYPES),
        ]
        """(beginning of the paths, type of the resources, parser of a node, resource -> its value)."""
        self.parents = [root.rstrip("/") for root, *_ in self._tables]
        """Paths of the nodes whose children are configs and ledger entries."""

    def absorb(self, path: str) -> None:
        """Update the value of one config or ledger entry from the mirror; the last one stays if it cannot be read."""
        if path == self._default:
            config = self._nodes.value(path, parse_config) or {}
            if path not in self._nodes.problems:
                self.default_throttles = {key: value for key, value in config.items() if key in RATE_KEYS}
            return
        for root, kind, parse, values in self._tables:
            if path.startswith(root):
                value, resource = self._nodes.value(path, parse), resource_of(kind, path.removeprefix(root))
                if resource is None or path in self._nodes.problems:
                    continue
                if value:
                    values[resource] = value
                else:
                    values.pop(resource, None)

    def unreadable(self) -> Iterator[tuple[ConfigResource, Problem]]:
        """Yield the resources with an unreadable config or ledger entry, and the problem."""
        if problem := self._nodes.problems.get(self._default):
            yield ConfigResource.default_broker(), problem
        for path, problem in self._nodes.problems.items():
            for root, kind, *_ in self._tables:
                if path.startswith(root) and (resource := resource_of(kind, path.removeprefix(root))):
                    yield resource, problem


def _parse_throttles(data: bytes) -> dict[str, str]:
    return {key: value for key, value in parse_config(data).items() if key in THROTTLE_KEYS}


log = logging.getLogger(__name__)

_LARGE_REST = 50_000
"""Partitions still to be read for which the first cycle does not wait: reading them takes half a second or more."""

_FOLLOW_TIMEOUT_SECONDS = 60.0
"""Enough to read 100,000 partitions again after a lost connection."""


class ZooKeeperSnapshots:
    """The cluster as ZooKeeper shows it; a `FollowedCluster`. Thread-safe."""

    def __init__(
        self,
        client: KazooClient,
        kafka: KafkaPaths,
        own: OwnPaths,
        progress: ProgressReader | None = None,
    ) -> None:
        """Start to follow the cluster.

        Args:
            client: connected.
            kafka: Kafka's paths.
            own: autothrottle's own paths.
            progress: reads log sizes; its creator closes it. None: snapshots have no progress, because ZooKeeper does
                not know log sizes.
        """
        self._client, self._kafka, self._own, self._progress = client, kafka, own, progress
        self._dirty = threading.Event()
        self._mirror = ZnodeMirror(client, self._dirty.set)
        self._states = PartitionStates(client, kafka, self._dirty.set)
        self._nodes = ParsedNodes(self._mirror)
        self._reassignments = ReassignmentNodes(kafka, self._nodes, self._states)
        self._throttle_configs = ThrottleConfigs(kafka, own, self._mirror, self._nodes)
        self._lock = threading.RLock()
        self._watchers = Subscriptions[SnapshotEvent]()
        self._closed = False
        self._watched_since: int | None = None
        self._differences = SnapshotDifferences()
        self._foreign_edits, self._needed = ForeignEdits(), NeededThrottles()
        self._partial: Snapshot | None = None
        """The part of a long read that callers may have while the rest is being read; None: no long read runs."""
        self._mirror.track(
            (Part.CHILDREN, path)
            for path in (kafka.broker_ids, kafka.topics, kafka.topics_to_delete, *self._throttle_configs.parents)
        )
        self._mirror.track([(Part.DATA, kafka.reassign_partitions)])
        self._dirty.set()
        self._growth_watch = progress.watch_growth(self._logs_grew) if progress else None
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

    # The port's methods.

    def fetch_snapshot(self, request: SnapshotRequest = ANY_SNAPSHOT, *, timeout: timedelta) -> Snapshot:
        deadline = time.monotonic() + timeout.total_seconds()
        if request.accept_partial and not (request.replicas_of or request.partitions or request.catching_up):
            partial = self._partial
            if partial is not None and partial.version >= request.min_version:
                return partial
        with self._locked(deadline, timeout):
            version = self._refresh(deadline, request.min_version)
            self._require_kafka()
            assignments, problems = self._assignments(request.partitions, deadline)
            snapshot = self._snapshot(version, self._reassignments.reassignments)
            snapshot = replace(
                snapshot,
                replicas=self._reassignments.replicas_on(frozenset(request.replicas_of)),
                assignments=assignments,
                problems=tuple(dict.fromkeys((*snapshot.problems, *map(self._of_topic, problems)))),
            )
        if self._progress and request.catching_up:
            self._progress.follow_catch_ups(request.catching_up, assignments)
        return snapshot

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        return self._watchers.add(notify)

    @property
    def problem(self) -> str:
        return ""  # the state store has the same ZooKeeper, and a check of its own

    @contextmanager
    def _locked(self, deadline: float, timeout: timedelta) -> Iterator[None]:
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Unavailable(f"discovery is still reading the cluster after {timeout.total_seconds():g} s")
        try:
            yield
        finally:
            self._lock.release()

    # Following the cluster.

    def _follow(self) -> None:
        while not self._closed:
            self._dirty.wait(RECHECK.total_seconds() if self._foreign_edits.suspected else None)
            self._dirty.clear()
            woken, connection = datetime.now(UTC), self._mirror.reconnections
            if self._closed:
                return
            try:
                with self._lock:
                    version = self._refresh(time.monotonic() + _FOLLOW_TIMEOUT_SECONDS, 0)
                    self._publish_differences(version)
                    self._publish_edits(version)
                    if self._progress:
                        # After watch events this time is exact. Changes before the first read, or during a lost
                        # connection, may be hours old.
                        unchanged_until = woken if self._watched_since == connection else None
                        self._progress.follow(self._reassignments.reassignments, self._brokers(), unchanged_until)
                    self._watched_since = connection
            except AutothrottleError as error:
                log.warning("The cluster cannot be read: %s", error)
                self._retry_later()
            except Exception:  # a bug must not end this thread: nothing else detects new reassignments
                log.exception("Following the cluster failed unexpectedly")
                self._retry_later()

    def _publish_differences(self, version: int) -> None:
        view = ClusterView(self._brokers(), dict(self._reassignments.current))
        for reason, urgent in self._differences.since_last_view(view):
            self._watchers.publish(SnapshotEvent(version, reason, urgent))

    def _publish_edits(self, version: int) -> None:
        """Report edits by other parties of throttles that reassignments need.

        An edit counts when it is seen twice: a read may show the config that we have just written without its ledger
        entry.
        """
        reassignments, ledger = self._reassignments.reassignments, self._throttle_configs.ledger
        # Before our first write there is nothing to compare, and a large start takes long to evaluate.
        recorded = [r for r in reassignments if ConfigResource.topic(r.topic) in ledger]
        self._needed = self._needed.of(recorded)
        needed = {**self._needed.lists, **self._needed.rates}
        current = {resource: self._throttle_configs.throttles.get(resource, {}) for resource in needed}
        edited = self._foreign_edits.confirmed(edits(needed, current, ledger))
        for resource in sorted(edited, key=lambda resource: resource.order):
            self._watchers.publish(SnapshotEvent(version, edited_reason(resource), urgent=True))

    def _retry_later(self) -> None:
        time.sleep(CLUSTER.first)
        self._dirty.set()

    def _logs_grew(self, reason: str) -> None:
        # Version 0: any snapshot shows it, because log growth is not read from ZooKeeper.
        self._watchers.publish(SnapshotEvent(0, reason))

    # Reading.

    def _refresh(self, deadline: float, min_version: int) -> int:
        """Read what changed; return the version."""
        with translated_errors("reading the cluster"):
            version = self._mirror.sync(seconds_left(deadline), min_version)
            try:
                while self._read_changed(deadline):
                    self._hand_out_part(version)
            finally:
                self._partial = None
            self._reassignments.assemble()
            return version

    def _read_changed(self, deadline: float) -> bool:
        """Read what changed, partition states last, because the rest determines which are needed.

        Returns whether there may be more to read.
        """
        while nodes := self._mirror.read_changed(seconds_left(deadline)):
            self._absorb(nodes)
        topics = self._states.read_changed(seconds_left(deadline))
        self._reassignments.touch(topics)
        return bool(topics)

    def _hand_out_part(self, version: int) -> None:
        """Hand out what has been read, once in a long read, and only if no reassignment was known before.

        Otherwise the part could lack a reassignment that an earlier snapshot had, or contain old states of it.
        """
        unread = self._states.unread
        partitions = sum(unread.values())
        is_start = not self._reassignments.current and self._mirror.is_there(self._kafka.broker_ids)
        if partitions < _LARGE_REST or not is_start:
            return
        self._reassignments.assemble(unread)
        part = self._snapshot(version, self._reassignments.reassignments)
        self._partial = part.with_unread(self._kafka.topics, partitions)
        self._publish_differences(version)

    def _absorb(self, nodes: Collection[Key]) -> None:
        """Pass each changed or removed node to the object that interprets it."""
        changed: set[str] = set()
        for part, path in nodes:
            if path == self._kafka.broker_ids:
                continue
            if path == self._kafka.topics_to_delete:
                self._reassignments.absorb_deleting(self._mirror.children(path))
                continue
            for child in self._mirror.track_children(path) if part is Part.CHILDREN else [path]:
                if child == self._kafka.reassign_partitions or child.startswith(self._kafka.topics + "/"):
                    changed.add(child)
                else:
                    self._throttle_configs.absorb(child)
        self._reassignments.absorb(changed)
        self._mirror.release(path for part, path in nodes if part is Part.DATA)

    # Building the snapshot.

    def _require_kafka(self) -> None:
        """Check that Kafka's nodes exist: with a wrong chroot, the cluster would look as if it had lost everything.

        Raises:
            Incomplete: they do not exist.
        """
        # A broker creates this node when it first starts, and it is never removed.
        if not self._mirror.is_there(self._kafka.broker_ids):
            raise Incomplete(self._kafka.absent)

    def _brokers(self) -> frozenset[int]:
        ids = (broker_id_of(name) for name in self._mirror.children(self._kafka.broker_ids))
        return frozenset(b for b in ids if b is not None)

    def _snapshot(self, version: int, reassignments: tuple[TopicReassignment, ...]) -> Snapshot:
        configs, deleting = self._throttle_configs, self._reassignments.deleting
        # Nothing may be written to a topic that waits for its deletion: a config written after it would outlive it.
        hidden = frozenset(map(ConfigResource.topic, deleting))
        throttles = {resource: keys for resource, keys in configs.throttles.items() if resource not in hidden}
        ledger = {resource: entry for resource, entry in configs.ledger.items() if resource not in hidden}
        unreadable = dict(configs.unreadable())
        own = {problem.path for problem in unreadable.values()}
        problems = {**self._nodes.problems, **self._states.problems}
        return Snapshot(
            version=version,
            brokers=self._brokers(),
            reassignments=reassignments,
            throttles=throttles,
            default_throttles=configs.default_throttles,
            ledger=ledger,
            unreadable_configs={
                resource: problem for resource, problem in unreadable.items() if resource not in hidden
            },
            problems=tuple(self._of_topic(p) for path, p in sorted(problems.items()) if path not in own),
            progress=self._progress.progress if self._progress else None,
        )

    def _of_topic(self, problem: Problem) -> Problem:
        """Add the topic that the problem of a node below Kafka's topics concerns."""
        _, below, rest = problem.path.partition(self._kafka.topics + "/")
        return replace(problem, topic=rest.partition("/")[0]) if below else problem

    def _assignments(
        self, partitions: Collection[TopicPartition], deadline: float
    ) -> tuple[dict[TopicPartition, Assignment], list[Problem]]:
        """Partition -> its assignment, and the states that cannot be read: they count as offline and out of sync.

        States of partitions without reassignment are not mirrored, but read now.
        """
        states = {row: self._states.of(row[0]).get(row[1]) for row in partitions if self._reassignments.has(row)}
        paths = {row: self._kafka.state(*row) for row, state in states.items() if state is None}
        with translated_errors("reading where partitions are"):
            nodes = read_nodes(self._client, list(paths.values()), deadline)
        problems: list[Problem] = []
        for row, node in zip(paths, nodes, strict=True):
            states[row] = OFFLINE
            try:
                states[row] = parse_state(node[0]) if node and node[0] is not None else OFFLINE
            except Invalid as error:
                problems.append(Problem(paths[row], str(error)))
        return {row: self._reassignments.assignment(row, state or OFFLINE) for row, state in states.items()}, problems

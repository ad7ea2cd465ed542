"""Snapshots of a Kafka cluster in ZooKeeper mode, kept by watches.

Here a thread follows the cluster and answers wait for it; what nodes say becomes a move in `moves`, a throttle in
`resources`. What cannot be read is kept as it was last read and reported as a problem.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.deadlines import seconds_left
from autothrottle.adapters.news import Look, News, started_line
from autothrottle.adapters.progress import ProgressReader
from autothrottle.adapters.subscriptions import Subscriptions
from autothrottle.adapters.zookeeper.bulk import read_nodes
from autothrottle.adapters.zookeeper.codec import StateNode, broker_id_of, parse_state
from autothrottle.adapters.zookeeper.mirror import Key, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.moves import OFFLINE, Moves
from autothrottle.adapters.zookeeper.offer import Offer
from autothrottle.adapters.zookeeper.parsed import ParsedNodes
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.resources import Resources
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper.states import PartitionStates
from autothrottle.core.errors import AutothrottleError, Incomplete, Invalid, Unavailable
from autothrottle.core.topology import Assignment, Snapshot, TopicPartition, TopicReassignment
from autothrottle.ports.cluster import SnapshotEvent, Watch

log = logging.getLogger(__name__)

_FOLLOW_TIMEOUT_SECONDS = 60.0
"""Enough to read 100,000 partitions anew after a lost connection."""

_MANY_STATES = 10_000
"""To read so many takes long enough that a cycle begins meanwhile, with what is read already."""

_NEXT_LOOK_SECONDS = 0.02
"""While much is being read."""

_RETRY_SECONDS = 0.5


class ZooKeeperSnapshots:
    """The cluster as ZooKeeper shows it; a `SnapshotSource`. Thread-safe."""

    def __init__(
        self,
        client: KazooClient,
        kafka: KafkaPaths,
        own: OwnPaths,
        progress: ProgressReader | None = None,
        many_states: int = _MANY_STATES,
        offer: Offer | None = None,
    ) -> None:
        """Follow the cluster from now on.

        Args:
            client: connected.
            kafka: where Kafka keeps what.
            own: where we do.
            progress: reads log sizes, closed by whoever made it; None: ZooKeeper knows no sizes, so how far moves
                have come is unknown.
            many_states: from so many unread states on it is told at once that a move began, > 0.
            offer: of a snapshot that presumes these; None: as patient as is usual.
        """
        self._client, self._kafka, self._own, self._progress = client, kafka, own, progress
        self._dirty = threading.Event()
        self._mirror = ZnodeMirror(client, self._dirty.set)
        self._states = PartitionStates(client, kafka, self._dirty.set, self._states_were_read)
        self._nodes = ParsedNodes(self._mirror)
        self._moves = Moves(kafka, self._nodes, self._states)
        self._resources = Resources(kafka, own, self._mirror, self._nodes)
        self._many_states, self._offer = many_states, offer or Offer()
        self._nothing_is_early = threading.Event()
        self._nothing_is_early.set()
        self._lock = threading.RLock()
        self._watchers = Subscriptions[SnapshotEvent]()
        self._closed = False
        self._put_together: set[str] = set()
        self._watched_since: int | None = None
        self._news = News()
        self._mirror.track((Part.CHILDREN, path) for path in (kafka.broker_ids, kafka.topics, *self._resources.parents))
        self._mirror.track([(Part.DATA, kafka.reassign_partitions)])
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
        catching_up: Collection[int] = (),
        timeout: timedelta,
        may_presume: bool = False,
    ) -> Snapshot:
        """Return the cluster as it is now."""
        deadline = time.monotonic() + timeout.total_seconds()
        on_brokers = frozenset(replicas_of)
        if may_presume and not partitions and (offered := self._offered(min_version, deadline)) is not None:
            return replace(offered, replicas=self._moves.replicas_on(on_brokers))
        with self._locked(deadline, timeout):
            version = self._refresh(deadline, min_version)
            self._demand_kafka()
            snapshot = self._snapshot(version, self._moves.reassignments)
            found = replace(
                snapshot,
                replicas=self._moves.replicas_on(on_brokers),
                assignments=self._assignments(partitions, deadline),
            )
        if self._progress and catching_up:
            self._progress.follow_catch_ups(catching_up, found.assignments)
        return found

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        """Call `notify` for every event from now on."""
        return self._watchers.add(notify)

    def moves_so_far(self, timeout: timedelta, may_presume: bool = False) -> Iterator[Collection[TopicReassignment]]:
        """Yield what is known to move, again and again, while much is being read; nothing otherwise."""
        deadline = time.monotonic() + timeout.total_seconds()
        with nullcontext() if may_presume else self._offer.declined():
            while not self._nothing_is_early.wait(_NEXT_LOOK_SECONDS) and time.monotonic() < deadline:
                if may_presume and self._offer.stands():
                    return
                presumed = list(self._moves.presumed.values()) if may_presume else []
                yield list(self._moves.moving.values()) + presumed

    def _offered(self, min_version: int, deadline: float) -> Snapshot | None:
        """What is offered now, or while the cluster is still being read; None: nothing, or something too old."""
        while not self._offer.stands() and time.monotonic() < deadline:
            if self._lock.acquire(blocking=False):
                self._lock.release()
                return None
            self._offer.wait(_NEXT_LOOK_SECONDS)
        return self._offer.take(min_version)

    @contextmanager
    def _locked(self, deadline: float, timeout: timedelta) -> Iterator[None]:
        with self._offer.declined():
            if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise Unavailable(f"discovery is still reading the cluster after {timeout.total_seconds():g} s")
        try:
            yield
        finally:
            self._lock.release()

    # Following the cluster.

    def _follow(self) -> None:
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
                    news = self._news.since_last_look(Look(self._brokers(), dict(self._moves.moving)), told)
                    if self._progress:
                        # Watches tell at once; what came before the first look, or unwatched, may be hours old.
                        unmoved_until = woken if self._watched_since == connection else None
                        self._progress.follow(self._moves.reassignments, self._brokers(), unmoved_until)
                    self._watched_since = connection
            except AutothrottleError as error:
                log.warning("the cluster cannot be read: %s", error)
                self._try_again()
                continue
            except Exception:  # a bug must not end it: nothing else tells that something moves
                log.exception("following the cluster failed unexpectedly")
                self._try_again()
                continue
            for reason, urgent in news:
                self._watchers.publish(SnapshotEvent(version, reason, urgent))

    def _try_again(self) -> None:
        time.sleep(_RETRY_SECONDS)
        self._dirty.set()

    def _clients_brought_more(self, reason: str) -> None:
        # Any snapshot shows it: what logs have grown by is read beside ZooKeeper.
        self._watchers.publish(SnapshotEvent(0, reason))

    # Reading.

    def _refresh(self, deadline: float, min_version: int, told: set[str] | None = None) -> int:
        """Read what changed and return the version; `told` takes the topics whose start is told before all is read."""
        with translated_errors("reading the cluster"):
            version = self._mirror.catch_up(seconds_left(deadline), min_version)
            try:
                while self._read_changed(deadline, told):
                    pass
            finally:
                self._offer.withdraw()
                self._nothing_is_early.set()
            self._moves.put_together()
            return version

    def _read_changed(self, deadline: float, told: set[str] | None) -> bool:
        """Read what changed, the states last: which are wanted depends on all else. Whether there was anything."""
        read = self._mirror.read_changed(seconds_left(deadline))
        self._absorb(read)
        if self._states.unread >= self._many_states:
            self._nothing_is_early.clear()
            if told is not None:
                self._tell_early(told)
                if not read and self._offer_presumed(deadline):
                    return True
        if read:
            return True
        self._put_together.clear()
        topics = self._states.read_changed(seconds_left(deadline))
        self._moves.touch(topics - self._put_together)
        return bool(topics)

    def _tell_early(self, told: set[str]) -> None:
        """Tell of moves that begin before all of them are read, so that a cycle takes them as they come."""
        # What is seen to move after a time without watches may have moved for hours.
        if self._watched_since == self._mirror.reconnections:
            self._moves.presume()
        if started := sorted(self._moves.begun - told):
            told.update(started)
            # These topics were read, and show what had been written by then.
            self._watchers.publish(SnapshotEvent(int(self._client.last_zxid), started_line(started), urgent=True))

    def _offer_presumed(self, deadline: float) -> bool:
        """Offer what is known while the states of many are not; whether to look first at what has changed meanwhile."""
        if self._offer.is_declined():
            return False
        version = self._mirror.catch_up(seconds_left(deadline))
        if self._moves_are_stale():
            return True
        if (presumed := self._moves.as_presumed()) is not None:
            moving, topics = presumed
            offered = replace(self._snapshot(version, moving), presumed=topics)
            self._offer.make(offered, lambda: self._closed or self._moves_are_stale())
        # A controller may go on for minutes: who waits for the whole gets it as of now.
        return self._moves_are_stale() and not self._offer.is_declined()

    def _moves_are_stale(self) -> bool:
        """Whether what moves has changed, and not only throttles."""
        return self._mirror.is_stale(self._kafka.topics) or self._mirror.is_stale(self._kafka.reassign_partitions)

    def _states_were_read(self, topic: str) -> None:
        self._put_together.add(topic)
        self._moves.put_topic_together(topic)

    def _absorb(self, read: Collection[Key]) -> None:
        """Take over what was read."""
        moving: set[str] = set()
        for part, path in read:
            if part is Part.CHILDREN:
                moving |= self._absorb_children(path)
            elif path == self._kafka.reassign_partitions or path.startswith(self._kafka.topics + "/"):
                moving.add(path)
            else:
                self._resources.absorb(path)
        self._moves.absorb(moving)

    def _absorb_children(self, parent: str) -> set[str]:
        """Mirror the children of a node; return those that are gone and may have moved."""
        if parent == self._kafka.broker_ids:
            return set()
        names = frozenset(self._mirror.children(parent))
        gone = {f"{parent}/{name}" for name in self._tracked_children.get(parent, frozenset()) - names}
        self._tracked_children[parent] = names
        self._mirror.track((Part.DATA, f"{parent}/{name}") for name in names)
        self._mirror.forget((Part.DATA, path) for path in gone)
        if parent == self._kafka.topics:
            return gone
        for path in gone:
            self._resources.absorb(path)
        return set()

    # What is handed out.

    def _demand_kafka(self) -> None:
        """Return when Kafka has its nodes here; a chroot that is none would look like a cluster that has lost all.

        Raises:
            Incomplete: it has not.
        """
        # Brokers make it when they first start, and nobody removes it.
        if not self._mirror.is_there(self._kafka.broker_ids):
            raise Incomplete(
                f"{self._kafka.broker_ids} does not exist in ZooKeeper, so Kafka is not there, or not yet. "
                "Fix: check zk-prefix, Kafka's chroot, and zk-addr; Kafka without ZooKeeper needs kafka-backend admin"
            )

    def _brokers(self) -> frozenset[int]:
        ids = (broker_id_of(name) for name in self._mirror.children(self._kafka.broker_ids))
        return frozenset(b for b in ids if b is not None)

    def _snapshot(self, version: int, moving: tuple[TopicReassignment, ...]) -> Snapshot:
        unreadable = dict(self._resources.unreadable())
        own = {problem.path for problem in unreadable.values()}
        problems = {**self._nodes.problems, **self._states.problems}
        return Snapshot(
            version=version,
            brokers=self._brokers(),
            reassignments=moving,
            throttles=dict(self._resources.throttles),
            default_throttles=self._resources.default_throttles,
            ledger=dict(self._resources.ledger),
            unreadable_configs=unreadable,
            problems=tuple(p for path, p in sorted(problems.items()) if path not in own),
            progress=self._progress.progress if self._progress else None,
        )

    def _assignments(self, partitions: Collection[TopicPartition], deadline: float) -> dict[TopicPartition, Assignment]:
        """Where partitions are; the states of those that do not move are not mirrored and are read for this alone."""
        states = {row: self._states.of(row[0]).get(row[1]) for row in partitions if self._moves.has(row)}
        paths = {row: self._kafka.state(*row) for row, state in states.items() if state is None}
        with translated_errors("reading where partitions are"):
            nodes = read_nodes(self._client, list(paths.values()), deadline)
        read = {row: _state(paths[row], node[0] if node else None) for row, node in zip(paths, nodes, strict=True)}
        return {
            row: self._moves.assignment(row, read[row] if state is None else state) for row, state in states.items()
        }


def _state(path: str, data: bytes | None) -> StateNode:
    """The leader and ISR that a state's node holds.

    Raises:
        Incomplete: when they cannot be read: a guess could leave a partition without throttle.
    """
    try:
        return parse_state(data) if data is not None else OFFLINE
    except Invalid as error:
        raise Incomplete(f"{path}: {error}") from error

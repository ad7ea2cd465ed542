"""What passes the throttles of a move, read about twice a second on the few brokers that matter.

The reading is in a thread of its own; nobody waits for it, and where it fails nothing is held back for it. The rule is
in `core.meter`, the type to know is `Meters`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.fetching import ClusterSettings
from autothrottle.core.history import Port
from autothrottle.core.loads import BytesPerSecond
from autothrottle.core.meter import Meter
from autothrottle.core.progress import LogSizes
from autothrottle.core.topology import NO_LEADER, Snapshot, TopicReassignment
from autothrottle.ports.log_sizes import LogSizeSource

log = logging.getLogger(__name__)

INTERVAL = timedelta(seconds=0.5)
"""Between two readings."""

MOST_BROKERS = 8
"""Destinations whose logs are read: those with most left to copy; the others are not waited for as long."""

MOST_PARTITIONS = 2000
"""That move: with more of them the sizes of all logs are too much to ask for so often."""

_TIMEOUT = timedelta(seconds=2)
_SLOW_SECONDS = 0.5
"""A reading that took longer says too little of when: it counts as a gap of readings."""

_LONGEST_GAP_SECONDS = 3.0
"""Between two readings for the meters to go on from what they know."""

_REST = 4
"""Rest after a reading, in lengths of it."""

_CLOSE_SECONDS = 3.0

Replica = tuple[int, str, int]
"""Destination's broker id, topic, partition number."""


class _Followed(NamedTuple):
    """What is read, for whom."""

    replicas: Mapping[Replica, tuple[Port, ...]]
    """Each with the ports that its bytes pass."""
    rates: Mapping[Port, BytesPerSecond]
    """That stand."""


class Meters:
    """The meters of what moves now, read from `start` to `close` while there is something to read. Thread-safe."""

    def __init__(
        self,
        source: LogSizeSource | None,
        clock: Callable[[], float] = time.monotonic,
        settings: Callable[[], ClusterSettings] = ClusterSettings,
    ) -> None:
        """Follow nothing yet.

        Args:
            source: tells how large logs are; without one there are no meters.
            clock: monotonic, in seconds.
            settings: how much the brokers fetch at once.
        """
        self._source, self._clock, self._settings = source, clock, settings
        self._changed = threading.Condition()
        self._followed = _Followed({}, {})
        self._moving: tuple[TopicReassignment, ...] = ()
        self._replicas: Mapping[Replica, tuple[Port, ...]] = {}
        self._followers: Mapping[Port, list[int]] = {}
        self._closed = False
        self._meters: Mapping[Port, Meter] = {}
        self._sizes: dict[Replica, int] = {}
        self._last: Mapping[Replica, tuple[Port, ...]] = {}
        self._read_at = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read from now on, until `close`."""
        if self._source is not None:
            self._thread = threading.Thread(target=self._run, name="meters", daemon=True)
            self._thread.start()

    @property
    def active(self) -> bool:
        """Whether anything is followed."""
        return bool(self._followed.replicas)

    def follow(self, snapshot: Snapshot, standing: Callable[[], Mapping[Port, BytesPerSecond]]) -> None:
        """Take over what moves, and what stands where that is to be read, and return at once."""
        if self._source is None:
            return
        if snapshot.reassignments != self._moving:
            self._moving, self._replicas = snapshot.reassignments, passed(snapshot)
            self._followers = _followers(self._replicas)
        rates = standing() if self._replicas else {}
        with self._changed:
            self._followed = _Followed(self._replicas if rates else {}, rates)
            self._changed.notify_all()

    def held(self, port: Port, target: BytesPerSecond) -> BytesPerSecond:
        """Return what shall stand for the next second, bytes/s: at most the target, and that where nothing is known."""
        meter = self._meters.get(port)
        if meter is None or target <= 0:
            return target
        settings = self._settings()
        under_way = sum(settings.of(follower).response_max_bytes for follower in self._followers.get(port, ()))
        return meter.held(target, self._clock(), under_way)

    def read(self) -> None:
        """Take one reading; the thread does it again and again."""
        with self._changed:
            replicas, rates = self._followed
        wanted: dict[int, dict[str, list[int]]] = {}
        # What has just come to its end is read once more.
        for broker_id, topic, partition in {**replicas, **self._sizes}:
            wanted.setdefault(broker_id, {}).setdefault(topic, []).append(partition)
        began = self._clock()
        sizes = self._fetch(wanted)
        now = self._clock()
        if now - self._read_at > _LONGEST_GAP_SECONDS:
            self._meters, self._sizes = {}, {}
        if sizes.problems or now - began > _SLOW_SECONDS:
            return
        self._read_at = now
        gained = self._gained(sizes, replicas)
        ports = {port for passed in replicas.values() for port in passed}
        self._meters = {
            port: self._meters.get(port, Meter()).observe(now, gained.get(port, 0.0), rates.get(port, 0))
            for port in ports
        }

    def close(self) -> None:
        """Stop; a reading in hand is waited for. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _gained(self, sizes: LogSizes, replicas: Mapping[Replica, tuple[Port, ...]]) -> dict[Port, float]:
        """What each port has passed since the last reading."""
        found: dict[Port, float] = {}
        now: dict[Replica, int] = {}
        for broker_id, logs in sizes.brokers.items():
            for (topic, partition), size in logs.sizes.items():
                replica = broker_id, topic, partition
                now[replica] = size
                for port in replicas.get(replica) or self._last.get(replica, ()):
                    found[port] = found.get(port, 0.0) + max(0, size - self._sizes.get(replica, size))
        self._last = replicas
        self._sizes = {replica: now.get(replica, 0) for replica in replicas}
        return found

    def _fetch(self, wanted: Mapping[int, Mapping[str, list[int]]]) -> LogSizes:
        if not wanted or self._source is None:
            return LogSizes()
        try:
            return self._source.fetch_log_sizes(wanted, _TIMEOUT)
        except AutothrottleError as error:
            log.debug("what passes the throttles cannot be read: %s", error)
            return LogSizes(problems=dict.fromkeys(wanted, str(error)))

    def _run(self) -> None:
        worked = 0.0
        while self._wait(max(INTERVAL.total_seconds() - worked, _REST * worked)):
            began = time.monotonic()
            try:
                self.read()
            except Exception:  # a bug must not end it: rates would stand where it left them
                log.exception("the reading of what passes the throttles failed unexpectedly")
            worked = time.monotonic() - began

    def _wait(self, seconds: float) -> bool:
        """Rest, then wait until there is something to read; whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)
            self._changed.wait_for(lambda: self._closed or bool(self._followed.replicas or self._sizes))
            return not self._closed


def passed(snapshot: Snapshot) -> dict[Replica, tuple[Port, ...]]:
    """Return the replicas that are copied to the destinations with most left, with the ports that they pass.

    A leader's port is there only where all of its destinations are.
    """
    if sum(len(reassignment.partitions) for reassignment in snapshot.reassignments) > MOST_PARTITIONS:
        return {}
    rows = [
        (reassignment.topic, partition, leader, follower)
        for reassignment in snapshot.reassignments
        for partition, leader, _, pending in reassignment.rows()
        for follower in pending
    ]
    followers = _busiest(snapshot, {follower for *_, follower in rows})
    unseen = {leader for _, _, leader, follower in rows if follower not in followers} | {NO_LEADER}
    return {
        (follower, topic, partition): (
            (follower, ReplicaRole.FOLLOWER),
            *(() if leader in unseen else ((leader, ReplicaRole.LEADER),)),
        )
        for topic, partition, leader, follower in rows
        if follower in followers
    }


def _followers(replicas: Mapping[Replica, tuple[Port, ...]]) -> dict[Port, list[int]]:
    """Port -> the destination of each of its flows."""
    found: dict[Port, list[int]] = {}
    for follower, ports in {(follower, ports) for (follower, _, _), ports in replicas.items()}:
        for port in ports:
            found.setdefault(port, []).append(follower)
    return found


def _busiest(snapshot: Snapshot, followers: set[int]) -> set[int]:
    """The few of them with most left; none where that is not known."""
    if len(followers) <= MOST_BROKERS:
        return followers
    left: dict[int, int] = {}
    for flow, count in (snapshot.progress.flows if snapshot.progress else {}).items():
        left[flow.follower] = left.get(flow.follower, 0) + count.bytes_left
    return set(sorted(left.keys() & followers, key=lambda b: (-left[b], b))[:MOST_BROKERS])

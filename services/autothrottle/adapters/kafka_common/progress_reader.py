"""Follows the progress of reassignments in the background, from any source of log sizes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_common.log_growth_reader import GrowthReader, seconds_of_work
from autothrottle.core.cluster.flows import Progress
from autothrottle.core.cluster.log_sizes import LogSizes
from autothrottle.core.cluster.snapshot import Assignment, TopicPartition, TopicReassignment
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.forecast.progress import ProgressHistory
from autothrottle.core.operators.catch_up import NOTHING_LAGS, Lagging, lagging, reassignments_with_lagging
from autothrottle.ports.kafka import LogSizeSource, Watch

log = logging.getLogger(__name__)

INTERVAL = timedelta(seconds=2)
"""Interval between reads during reassignments, if a read takes less than a tenth of it.

It is short compared to the interval of a metric: bytes copied in that interval are not client traffic.
"""

BROKER_TIMEOUT = timedelta(seconds=5)
"""Timeout for one broker's answer."""

_CATCH_UPS_SECONDS = 60.0
"""How long the lag of brokers that catch up is followed after the last request for it."""

_CLOSE_SECONDS = 2.0

_REST_FACTOR = 9
"""Rest after a read, in multiples of its duration: brokers and this process spend at most 10 % of their time on it."""


class ProgressReader:
    """Reads log sizes in its own thread during reassignments, so that no snapshot waits for them. Thread-safe."""

    def __init__(
        self,
        source: LogSizeSource,
        growth: GrowthReader | None = None,
        *,
        interval: timedelta = INTERVAL,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Start to read as soon as there are reassignments.

        Args:
            source: knows the log sizes of the reassigned partitions.
            growth: follows the same reassignments, and is closed with this object. None: log growth is unknown.
            interval: between two reads, > 0.
            now: the time, UTC.
        """
        self._growth = growth
        self._source, self._interval, self._clock = source, interval, clock
        self._changed = threading.Condition()
        self._reassignments: tuple[TopicReassignment, ...] = ()
        self._lagging = NOTHING_LAGS
        self._assignments: Mapping[TopicPartition, Assignment] = {}
        self._catch_ups_until = 0.0
        self._copying: tuple[TopicReassignment, ...] = ()
        self._active = False
        self._down: frozenset[int] = frozenset()
        self._brokers: Collection[int] = ()
        self._unchanged_until: datetime | None = None
        self._history = ProgressHistory()
        self._problems: Mapping[int, str] = {}
        self._failure = ""
        self._started = self._closed = False
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; waits only briefly for a running read, which ends by itself. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)
        if self._growth:
            self._growth.close()

    def follow(
        self,
        reassignments: tuple[TopicReassignment, ...],
        brokers: Collection[int],
        unchanged_until: datetime | None = None,
    ) -> None:
        """Follow these reassignments from now on; returns at once.

        Args:
            reassignments: all reassignments.
            brokers: ids of the registered brokers; no others are queried.
            unchanged_until: UTC time until which reassignments that are new in this call had certainly not started;
                None: they may have started hours ago.
        """
        with self._changed:
            if self._unchanged_until is None and reassignments != self._reassignments:
                self._unchanged_until = unchanged_until
            self._reassignments, self._brokers = reassignments, brokers
            self._plan_reads()

    def follow_catch_ups(self, broker_ids: Collection[int], assignments: Mapping[TopicPartition, Assignment]) -> None:
        """Follow the replication lag of brokers that catch up; returns at once. It is dropped unless repeated in time.

        Args:
            broker_ids: the brokers that catch up; those that are down are read as soon as they are back.
            assignments: partition -> its assignment, for partitions of these brokers.
        """
        lagging_partitions: Lagging = lagging(assignments, broker_ids)
        with self._changed:
            self._lagging = lagging_partitions
            self._assignments = {row: assignments[row] for rows in lagging_partitions.values() for row in rows}
            self._catch_ups_until = time.monotonic() + _CATCH_UPS_SECONDS
            self._plan_reads()

    def _plan_reads(self) -> None:
        """Determine what to read. The caller holds the lock."""
        if time.monotonic() >= self._catch_ups_until:
            self._lagging, self._assignments = NOTHING_LAGS, {}
        # A broker that is down copies nothing. Its unknown sizes would make those of the whole topic unknown.
        running = {broker_id: rows for broker_id, rows in self._lagging.items() if broker_id in self._brokers}
        copying = reassignments_with_lagging(self._reassignments, running, self._assignments)
        # If only brokers that are down catch up, no broker is queried, but it is known that nothing is copied. Before
        # the first read of the cluster, it is unknown which brokers are down.
        active = bool(copying or (self._brokers and any(self._lagging.values())))
        if active and not self._active:
            self._started = True
            self._changed.notify_all()
        self._copying, self._active = copying, active
        if self._growth:
            self._growth.follow(copying, self._brokers)

    def watch_growth(self, notify: Callable[[str], None]) -> Watch | None:
        """Call `notify` with a line when the produce rate of a broker rises; None: growth is not read."""
        return self._growth.watch(notify) if self._growth else None

    @property
    def progress(self) -> Progress:
        """The result of the last read; it has no time before the first one."""
        progress = self._history.progress
        return replace(progress, growth=self._growth.growth) if self._growth else progress

    def _run(self) -> None:
        began = worked = 0.0
        while self._wait(began, _REST_FACTOR * worked):
            began = time.monotonic()
            try:
                worked = self._read()
            except Exception:  # a bug must not end the thread: the bytes left would never change again
                log.exception("Reading log sizes failed unexpectedly, trying again")
                worked = time.monotonic() - began

    def _wait(self, began: float, rest: float) -> bool:
        """Rest, then wait until a reassignment starts or a read is due; return whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, rest)
            # Counts of ended flows expire over time, which needs no request.
            continues = self._active or self._history.counts
            due = max(0.0, began + self._interval.total_seconds() - time.monotonic()) if continues else None
            self._changed.wait_for(lambda: self._closed or self._started, due)
            self._started = False
            return not self._closed

    def _read(self) -> float:
        """Read once; return the seconds of work that this took."""
        with self._changed:
            self._plan_reads()
            copying, brokers, lagging_partitions = self._copying, frozenset(self._brokers), self._lagging
            unchanged_until, self._unchanged_until = self._unchanged_until, None
        down = {broker_id for broker_id, rows in lagging_partitions.items() if rows} - brokers
        partitions = {b: topics for b, topics in self._history.sizes_needed(copying).items() if b in brokers}
        began, started = time.monotonic(), self._clock()
        sizes = self._fetch(partitions)
        answered, worked = time.monotonic(), seconds_of_work(sizes, started, began)
        self._history = self._history.observe(
            copying, sizes, self._clock(), unchanged_until, lagging_partitions, self._down
        )
        self._down = (self._down & lagging_partitions.keys() - sizes.brokers.keys()) | down
        return worked + time.monotonic() - answered

    def _fetch(self, partitions: Mapping[int, Mapping[str, Collection[int]]]) -> LogSizes:
        if not partitions:
            return LogSizes()
        try:
            sizes = self._source.fetch_log_sizes(partitions, BROKER_TIMEOUT).usable()
        except AutothrottleError as error:
            if not self._failure:
                log.warning("Log sizes cannot be read, so the bytes left to copy are unknown: %s", error)
            self._failure = str(error)
            return LogSizes()
        self._failure = ""
        if new := sorted(sizes.problems.keys() - self._problems.keys()):
            log.warning("The log sizes of brokers %s are unknown: %s", new, sizes.problems[new[0]])
        self._problems = sizes.problems
        return sizes

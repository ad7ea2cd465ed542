"""Reads log sizes in the background while there are reassignments.

`ProgressReader` follows the progress of reassignments, from any source of log sizes. `GrowthReader` reads the log
growth of the brokers that take part.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.kafka_common.background_reader import BROKER_TIMEOUT, BackgroundReader, Leaders
from autothrottle.core.cluster.flows import LogGrowth, Progress
from autothrottle.core.cluster.snapshot import Assignment, LogSizes, TopicPartition, TopicReassignment
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.forecast.progress import ProgressHistory
from autothrottle.core.operators.sources import NOTHING_LAGS, Lagging, lagging, reassignments_with_lagging
from autothrottle.core.traffic.log_growth_history import CopyingReplicas, GrowthHistory, ReportedRises
from autothrottle.ports.kafka import AllLogsSource, LogSizeSource, Watch

log = logging.getLogger(__name__)

GROWTH_INTERVAL = timedelta(seconds=1)
"""Interval between reads, if a read takes less than 5 % of it."""


class GrowthReader(BackgroundReader):
    """Reads all logs of the brokers that take part in reassignments, in its own thread. Thread-safe."""

    _warning = "Log growth cannot be read, falling back to delayed metrics for the client load: %s"

    def __init__(self, source: AllLogsSource, *, interval: timedelta = GROWTH_INTERVAL) -> None:
        super().__init__("log-growth", interval)
        self._source = source
        self._reassignments: tuple[TopicReassignment, ...] = ()
        self._registered: Collection[int] = ()
        self._history = GrowthHistory()
        self._leaders = Leaders(source)
        self._rises = ReportedRises()
        self._watchers = Subscriptions[str]()
        self._thread.start()

    def follow(self, reassignments: tuple[TopicReassignment, ...], brokers: Collection[int]) -> None:
        """Follow these reassignments from now on; returns at once.

        Args:
            reassignments: all reassignments.
            brokers: ids of the registered brokers; no others are queried.
        """
        with self._changed:
            self._reassignments, self._registered = reassignments, brokers
            self._changed.notify_all()

    def watch(self, notify: Callable[[str], None]) -> Watch:
        """Call `notify` with a line when the produce rate of a broker rises; it must not block."""
        return self._watchers.add(notify)

    @property
    def growth(self) -> Mapping[int, LogGrowth]:
        """Broker id -> growth, as of its last read; absent: not known yet."""
        return self._history.reported

    def _is_needed(self) -> bool:
        return bool(self._reassignments)

    def _read(self) -> str:
        with self._changed:
            reassignments, registered = self._reassignments, frozenset(self._registered)
        copying = CopyingReplicas.of(reassignments)
        if not (queried := copying.brokers & registered):
            return ""
        sizes = self._fetch(lambda: self._source.fetch_log_sizes(dict.fromkeys(queried), BROKER_TIMEOUT))
        self._history = self._history.observe(sizes, copying.copied, self._leaders.of(sizes, BROKER_TIMEOUT))
        self._rises, line = self._rises.update(self._history.brokers, sizes.brokers, time.monotonic())
        if line:
            self._watchers.publish(line)
        return next(iter(sizes.problems.values()), "")


INTERVAL = timedelta(seconds=2)
"""Interval between reads during reassignments, if a read takes less than a tenth of it.

It is short compared to the interval of a metric: bytes copied in that interval are not client traffic.
"""

_CATCH_UPS_SECONDS = 60.0
"""How long the lag of brokers that catch up is followed after the last request for it."""


class ProgressReader(BackgroundReader):
    """Reads log sizes in its own thread during reassignments, so that no snapshot waits for them. Thread-safe."""

    _rest_factor = 9  # a read takes at most 10 % of the brokers' time and ours
    _longest_rest = math.inf
    _warning = "Log sizes cannot be read, so the bytes left to copy are unknown: %s"

    def __init__(
        self, source: LogSizeSource, growth: GrowthReader | None = None, *, interval: timedelta = INTERVAL
    ) -> None:
        """Start to read as soon as there are reassignments.

        Args:
            source: knows the log sizes of the reassigned partitions.
            growth: follows the same reassignments, and is closed with this object. None: log growth is unknown.
            interval: between two reads, > 0.
        """
        super().__init__("progress", interval)
        self._source, self._growth = source, growth
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
        self._thread.start()

    def close(self) -> None:
        super().close()
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
            self._urgent = True
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

    def _is_needed(self) -> bool:
        # Counts of ended flows expire over time, which needs no request.
        return self._active or bool(self._history.counts)

    def _read(self) -> str:
        with self._changed:
            self._plan_reads()
            copying, brokers, lagging_partitions = self._copying, frozenset(self._brokers), self._lagging
            unchanged_until, self._unchanged_until = self._unchanged_until, None
        down = {broker_id for broker_id, rows in lagging_partitions.items() if rows} - brokers
        partitions = {b: topics for b, topics in self._history.sizes_needed(copying).items() if b in brokers}
        sizes, failure = self._sizes(partitions) if partitions else (LogSizes(), "")
        self._history = self._history.observe(
            copying, sizes, self._clock(), unchanged_until, lagging_partitions, self._down
        )
        self._down = (self._down & lagging_partitions.keys() - sizes.brokers.keys()) | down
        return failure

    def _sizes(self, partitions: Mapping[int, Mapping[str, Collection[int]]]) -> tuple[LogSizes, str]:
        """Return the sizes, and why none could be read."""
        try:
            sizes = self._fetch(lambda: self._source.fetch_log_sizes(partitions, BROKER_TIMEOUT))
        except AutothrottleError as error:
            return LogSizes(), str(error)
        if new := sorted(sizes.problems.keys() - self._problems.keys()):
            log.warning("The log sizes of brokers %s are unknown: %s", new, sizes.problems[new[0]])
        self._problems = sizes.problems
        return sizes, ""

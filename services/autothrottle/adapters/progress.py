"""The progress of moves, followed in the background from any source of log sizes; both backends of Kafka use it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.growth import GrowthReader
from autothrottle.core.catch_up import NOTHING_LAGS, Lagging, lagging, moves_with_lagging
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.flows import Progress
from autothrottle.core.progress import LogSizes, ProgressHistory
from autothrottle.core.topology import Assignment, TopicPartition, TopicReassignment
from autothrottle.ports.cluster import Watch
from autothrottle.ports.log_sizes import LogSizeSource

log = logging.getLogger(__name__)

INTERVAL = timedelta(seconds=2)
"""Between two readings while something moves, if a reading takes less than a tenth of it.

Short beside the interval of a metric: what landed in it is what is no client's.
"""

BROKER_TIMEOUT = timedelta(seconds=5)
"""For one broker's answer."""

_CATCH_UPS_SECONDS = 60.0
"""For which what brokers lack that catch up is followed, unless somebody asks for them again."""

_CLOSE_SECONDS = 2.0

_REST = 9
"""Rest after a reading, in lengths of it: brokers and we are busy with it for 10 % of the time at most."""


class ProgressReader:
    """Reads log sizes in a thread of its own while something moves, so that no snapshot waits. Thread-safe."""

    def __init__(
        self,
        source: LogSizeSource,
        growth: GrowthReader | None = None,
        *,
        interval: timedelta = INTERVAL,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Begin to read when something moves.

        Args:
            source: who knows the sizes of the logs that move.
            growth: follows the same moves, closed with this; None: how fast all logs grow is unknown.
            interval: between two readings, > 0.
            now: the time, UTC.
        """
        self._growth = growth
        self._source, self._interval, self._now = source, interval, now
        self._changed = threading.Condition()
        self._reassignments: tuple[TopicReassignment, ...] = ()
        self._lagging = NOTHING_LAGS
        self._assignments: Mapping[TopicPartition, Assignment] = {}
        self._catch_ups_until = 0.0
        self._moving: tuple[TopicReassignment, ...] = ()
        self._active = False
        self._down: frozenset[int] = frozenset()
        self._brokers: Collection[int] = ()
        self._unmoved_until: datetime | None = None
        self._history = ProgressHistory()
        self._problems: Mapping[int, str] = {}
        self._failure = ""
        self._begun = self._closed = False
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a reading in hand is waited for, but not long: it ends by itself. Idempotent."""
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
        unmoved_until: datetime | None = None,
    ) -> None:
        """Take over what moves now, and return at once.

        Args:
            reassignments: what moves.
            brokers: ids of the registered ones: no other is asked.
            unmoved_until: when it was last known that what moves now, and did not at the last call, did not move yet,
                UTC; None: it may have moved for hours.
        """
        with self._changed:
            if self._unmoved_until is None and reassignments != self._reassignments:
                self._unmoved_until = unmoved_until
            self._reassignments, self._brokers = reassignments, brokers
            self._take_over()

    def follow_catch_ups(self, broker_ids: Collection[int], assignments: Mapping[TopicPartition, Assignment]) -> None:
        """Take over what brokers lack that catch up, and return at once; forgotten when it is not said again.

        Args:
            broker_ids: the brokers that catch up; those that are down are read as soon as they are not.
            assignments: of their partitions.
        """
        found: Lagging = lagging(assignments, broker_ids)
        with self._changed:
            self._lagging = found
            self._assignments = {row: assignments[row] for rows in found.values() for row in rows}
            self._catch_ups_until = time.monotonic() + _CATCH_UPS_SECONDS
            self._take_over()

    def _take_over(self) -> None:
        """Put together what is to be read; with the lock."""
        if time.monotonic() >= self._catch_ups_until:
            self._lagging, self._assignments = NOTHING_LAGS, {}
        # What is down copies nothing: unknown for as long, it would make all that moves beside it unknown, too.
        running = {broker_id: rows for broker_id, rows in self._lagging.items() if broker_id in self._brokers}
        moving = moves_with_lagging(self._reassignments, running, self._assignments)
        # While only brokers catch up that are down nobody is asked, but it is known that nothing lands. Before the
        # first look at the cluster nobody knows which ones are.
        active = bool(moving or (self._brokers and any(self._lagging.values())))
        if active and not self._active:
            self._begun = True
            self._changed.notify_all()
        self._moving, self._active = moving, active
        if self._growth:
            self._growth.follow(moving, self._brokers)

    def watch_growth(self, notify: Callable[[str], None]) -> Watch | None:
        """Call `notify` with a line whenever clients bring more to a broker; None: nobody knows."""
        return self._growth.watch(notify) if self._growth else None

    @property
    def progress(self) -> Progress:
        """What the last reading gave; without a time before the first."""
        progress = self._history.progress
        return replace(progress, growth=self._growth.growth) if self._growth else progress

    def _run(self) -> None:
        began = worked = 0.0
        while self._wait(began, _REST * worked):
            began = time.monotonic()
            try:
                worked = self._read()
            except Exception:  # a bug must not end it: what is left would stand still for ever
                log.exception("the reading of log sizes failed unexpectedly")
                worked = time.monotonic() - began

    def _wait(self, began: float, rest: float) -> bool:
        """Rest, then wait until a move begins or a reading is due; whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, rest)
            # What was counted of flows that ended is forgotten in time, which costs nobody a request.
            going_on = self._active or self._history.counts
            due = max(0.0, began + self._interval.total_seconds() - time.monotonic()) if going_on else None
            self._changed.wait_for(lambda: self._closed or self._begun, due)
            self._begun = False
            return not self._closed

    def _read(self) -> float:
        """Take one reading; return the seconds of work that it was."""
        with self._changed:
            self._take_over()
            moving, brokers, lags = self._moving, frozenset(self._brokers), self._lagging
            unmoved_until, self._unmoved_until = self._unmoved_until, None
        down = {broker_id for broker_id, rows in lags.items() if rows} - brokers
        wanted = {b: topics for b, topics in self._history.wanted(moving).items() if b in brokers}
        began, started = time.monotonic(), self._now()
        sizes = self._fetch(wanted)
        answered = time.monotonic()
        last = max((logs.at for logs in sizes.brokers.values()), default=started)
        # Waiting for an answer that never came is nobody's work.
        worked = min(max(0.0, (last - started).total_seconds()), answered - began)
        self._history = self._history.observe(moving, sizes, self._now(), unmoved_until, lags, self._down)
        self._down = (self._down & lags.keys() - sizes.brokers.keys()) | down
        return worked + time.monotonic() - answered

    def _fetch(self, wanted: Mapping[int, Mapping[str, Collection[int]]]) -> LogSizes:
        if not wanted:
            return LogSizes()
        try:
            sizes = self._source.fetch_log_sizes(wanted, BROKER_TIMEOUT)
        except AutothrottleError as error:
            if not self._failure:
                log.warning("log sizes cannot be read, the bytes that are left are unknown: %s", error)
            self._failure = str(error)
            return LogSizes()
        self._failure = ""
        if new := sorted(sizes.problems.keys() - self._problems.keys()):
            log.warning("the log sizes of brokers %s are unknown: %s", new, sizes.problems[new[0]])
        self._problems = sizes.problems
        return sizes

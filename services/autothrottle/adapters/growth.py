"""The growth of the logs of brokers that take part in a move, read in the background as long as something moves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.subscriptions import Subscriptions
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.growth import LogGrowth, risen
from autothrottle.core.growth_history import Copying, GrowthHistory
from autothrottle.core.progress import LogSizes
from autothrottle.core.topology import TopicPartition, TopicReassignment
from autothrottle.ports.cluster import Watch
from autothrottle.ports.log_sizes import AllLogsSource

log = logging.getLogger(__name__)

INTERVAL = timedelta(seconds=1)
"""Between two readings, if a reading takes less than 5 % of it."""

LEADERS_INTERVAL = timedelta(seconds=30)
"""Between two looks at who leads what."""

_LOOK_AGAIN = timedelta(seconds=5)
"""The same while a topic is there that nobody knows."""

BROKER_TIMEOUT = timedelta(seconds=5)
"""For one broker's answer."""

_REST = 19
"""Rest after a reading, in lengths of it: brokers and we are busy with it for 5 % of the time at most."""

_LONGEST_REST_SECONDS = 60.0
"""Growth that is read less often says nothing of now."""

_HIGHER = 1.1
"""So much more than at the last rise that was told of a broker is told, too: the first reading may have seen a part."""

_SAME_RISE = 30.0
"""Seconds for which the readings before a rise are still among those that are looked at."""

_CLOSE_SECONDS = 0.5


class GrowthReader:
    """Reads the logs of whole brokers in a thread of its own while something moves. Thread-safe."""

    def __init__(
        self,
        source: AllLogsSource,
        *,
        interval: timedelta = INTERVAL,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source, self._interval, self._now = source, interval.total_seconds(), now
        self._changed = threading.Condition()
        self._moving: tuple[TopicReassignment, ...] = ()
        self._registered: Collection[int] = ()
        self._closed = False
        self._history = GrowthHistory()
        self._leaders: Mapping[TopicPartition, int] = {}
        self._topics: frozenset[str] = frozenset()
        self._leaders_due = 0.0
        self._failure = ""
        self._told: dict[int, tuple[float, float]] = {}
        self._watchers = Subscriptions[str]()
        self._thread = threading.Thread(target=self._run, name="log-growth", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a reading in hand is waited for, but not long: it ends by itself. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    def follow(self, reassignments: tuple[TopicReassignment, ...], brokers: Collection[int]) -> None:
        """Take over what moves now, and return at once.

        Args:
            reassignments: what moves.
            brokers: ids of the registered ones: no other is asked.
        """
        with self._changed:
            self._moving, self._registered = reassignments, brokers
            self._changed.notify_all()

    def watch(self, notify: Callable[[str], None]) -> Watch:
        """Call `notify` with a line whenever clients bring more to a broker than before; it must not block."""
        return self._watchers.add(notify)

    @property
    def growth(self) -> Mapping[int, LogGrowth]:
        """Broker id -> growth, as of its last reading; absent: not known yet."""
        return self._history.told

    def _run(self) -> None:
        due = 0.0
        while self._wait(due):
            began, worked = time.monotonic(), 0.0
            try:
                worked = self._read()
            except AutothrottleError as error:
                self._complain(str(error))
            except Exception:  # a bug must not end it: a policy would wait for more than it has
                log.exception("the reading of all logs failed unexpectedly")
            due = max(began + self._interval, time.monotonic() + min(_REST * worked, _LONGEST_REST_SECONDS))

    def _wait(self, due: float) -> bool:
        """Wait until something moves and a reading is due; whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, max(0.0, due - time.monotonic()))
            self._changed.wait_for(lambda: self._closed or self._moving)
            return not self._closed

    def _read(self) -> float:
        """Take one reading; return the seconds of work that it was."""
        with self._changed:
            moving, registered = self._moving, frozenset(self._registered)
        copying = Copying.of(moving)
        if not (asked := copying.brokers & registered):
            return 0.0
        began, started = time.monotonic(), self._now()
        sizes = self._source.fetch_all_log_sizes(asked, BROKER_TIMEOUT)
        answered = time.monotonic()
        last = max((logs.at for logs in sizes.brokers.values()), default=started)
        self._complain(next(iter(sizes.problems.values()), ""))
        self._look_at_leaders(sizes)
        self._history = self._history.observe(sizes, copying.copied, self._leaders)
        self._tell_rises(sizes.brokers)
        # Waiting for an answer that never came is nobody's work.
        return min(max(0.0, (last - started).total_seconds()), answered - began) + time.monotonic() - answered

    def _look_at_leaders(self, sizes: LogSizes) -> None:
        """Ask who leads what is there, now and then, and when topics are there that were not."""
        topics = frozenset({topic for logs in sizes.brokers.values() for topic, _ in logs.sizes})
        began = time.monotonic()
        if began < self._leaders_due and topics <= self._topics:
            return
        self._leaders = self._source.fetch_leaders(topics, BROKER_TIMEOUT)
        self._topics = topics
        # What is new may not be known to whoever was asked.
        is_complete = topics <= {topic for topic, _ in self._leaders}
        self._leaders_due = began + (LEADERS_INTERVAL if is_complete else _LOOK_AGAIN).total_seconds()

    def _tell_rises(self, broker_ids: Collection[int]) -> None:
        now = time.monotonic()
        rates = {b: risen(self._history.brokers[b]) for b in broker_ids}
        fresh = {b: rate for b, rate in rates.items() if rate is not None and not self._is_told(b, rate, now)}
        if not fresh:
            return
        self._told.update({b: (now, rate) for b, rate in fresh.items()})
        self._watchers.publish(f"more comes in for clients of {_named(fresh)}")

    def _is_told(self, broker_id: int, rate: float, now: float) -> bool:
        when, told = self._told.get(broker_id, (-_SAME_RISE, 0.0))
        return now < when + _SAME_RISE and rate < _HIGHER * told

    def _complain(self, failure: str) -> None:
        if failure and not self._failure and not self._closed:
            log.warning("the growth of logs cannot be read, clients' load is known as late as the metrics: %s", failure)
        self._failure = failure


def _named(broker_ids: Collection[int]) -> str:
    shown = ", ".join(str(b) for b in sorted(broker_ids)[:5])
    more = len(broker_ids) - 5
    return f"broker{'s' * (len(broker_ids) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")

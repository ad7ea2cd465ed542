"""Reads log sizes in the background, for the progress of reassignments, the growth of logs, and loads.

The types to know are `BackgroundReader`, which decides when to read, and `Leaders`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from autothrottle.core.cluster.snapshot import LogSizes, TopicPartition
from autothrottle.core.errors import AutothrottleError
from autothrottle.ports.kafka import AllLogsSource

log = logging.getLogger(__name__)

BROKER_TIMEOUT = timedelta(seconds=5)
"""Timeout for one broker's answer."""

LONGEST_REST_SECONDS = 60.0
"""Limit of the rest after a read: sizes that are read less often say nothing about the present."""

LEADERS_INTERVAL = timedelta(seconds=30)
"""Interval between reads of the partitions' leaders."""

_UNKNOWN_LEADER_INTERVAL = timedelta(seconds=5)
"""The same while the leaders of some topic are unknown."""

_CLOSE_SECONDS = 0.5


class BackgroundReader(ABC):
    """A thread that reads log sizes while they are needed, and rests in proportion to its work. Thread-safe.

    A subclass says when sizes are needed, and what to read. It changes what decides that only while it holds
    `_changed`, and notifies it. Its constructor ends with `_thread.start()`.
    """

    _rest_factor: float = 19
    """Rest after a read, in multiples of its work: brokers and this process spend at most 5 % of their time on it."""
    _longest_rest = LONGEST_REST_SECONDS
    _warning = ""
    """Log line for the first of several failures, with %s for the reason; "": no line."""

    def __init__(
        self, name: str, interval: timedelta, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Prepare; `interval` between two reads applies if the rest is shorter."""
        self._interval, self._clock = interval.total_seconds(), clock
        self._changed = threading.Condition()
        self._closed = False
        self._urgent = False
        """Whether the next read does not wait for the interval."""
        self._failure = ""
        """Why the last read failed; "": it did not."""
        self._work_began = math.inf
        """Start of the work of the current read on the monotonic clock; inf: it has no sizes yet."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def close(self) -> None:
        """Stop; waits only briefly for a running read, which ends by itself. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    @abstractmethod
    def _is_needed(self) -> bool:
        """Return whether there is anything to read. The caller holds the lock."""

    def _seconds_between_reads(self) -> float:
        """Return the current interval. The caller holds the lock."""
        return self._interval

    @abstractmethod
    def _read(self) -> str:
        """Read once, by `_fetch`; return why some sizes are unknown, "": all are known."""

    def _fetch(self, fetch: Callable[[], LogSizes]) -> LogSizes:
        """Fetch log sizes; the time until the last answer is work, waiting for one that never comes is not."""
        began, started = time.monotonic(), self._clock()
        sizes = fetch().usable()
        answered = time.monotonic()
        last = max((logs.at for logs in sizes.brokers.values()), default=started)
        self._work_began = answered - min(max(0.0, (last - started).total_seconds()), answered - began)
        return sizes

    def _run(self) -> None:
        began, rested = -math.inf, 0.0
        while self._wait(began, rested):
            began, self._work_began = time.monotonic(), math.inf
            try:
                failure = self._read()
            except AutothrottleError as error:
                self._work_began, failure = math.inf, str(error)
            except Exception as error:  # a bug must not end the thread: the sizes would never change again
                log.exception("Reading log sizes failed unexpectedly, trying again")
                self._work_began, failure = began, type(error).__name__
            ended = time.monotonic()
            rested = ended + min(self._rest_factor * max(0.0, ended - self._work_began), self._longest_rest)
            self._note(failure)

    def _wait(self, began: float, rested: float) -> bool:
        """Rest, then wait until a read is needed and due; return whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, max(0.0, rested - time.monotonic()))
            self._changed.wait_for(lambda: self._closed or self._is_needed())
            due = began + self._seconds_between_reads()
            self._changed.wait_for(lambda: self._closed or self._urgent, max(0.0, due - time.monotonic()))
            self._urgent = False
            return not self._closed

    def _note(self, failure: str) -> None:
        with self._changed:
            if failure and self._warning and not self._failure and not self._closed:
                log.warning(self._warning, failure)
            self._failure = failure
            self._changed.notify_all()


class Leaders:
    """The leaders of all partitions with a log. Not thread-safe."""

    def __init__(self, source: AllLogsSource) -> None:
        self._source = source
        self._leaders: Mapping[TopicPartition, int] = {}
        self._topics: frozenset[str] = frozenset()
        self._due = 0.0
        self.unknown: frozenset[str] = frozenset()
        """Topics whose leaders the last read did not return."""

    def of(self, sizes: LogSizes, timeout: timedelta) -> Mapping[TopicPartition, int]:
        """Return partition -> leader; read them periodically, and when a new topic appears.

        Raises:
            Unavailable, Invalid: no broker can be queried.
        """
        topics = frozenset({topic for logs in sizes.brokers.values() for topic, _ in logs.sizes})
        began = time.monotonic()
        if began < self._due and topics <= self._topics:
            return self._leaders
        self._leaders = self._source.fetch_leaders(topics, timeout)
        self._topics = topics
        # The queried broker may not know a new topic yet.
        self.unknown = topics - {topic for topic, _ in self._leaders}
        self._due = began + (_UNKNOWN_LEADER_INTERVAL if self.unknown else LEADERS_INTERVAL).total_seconds()
        return self._leaders

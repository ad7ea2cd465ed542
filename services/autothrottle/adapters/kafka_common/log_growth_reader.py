"""Reads the log growth of brokers that take part in reassignments, in the background while there are any."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.kafka_common.leaders import Leaders
from autothrottle.core.cluster.flows import LogGrowth, rate_after_rise
from autothrottle.core.cluster.log_sizes import LogSizes
from autothrottle.core.cluster.snapshot import TopicReassignment
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.traffic.log_growth_history import CopyingReplicas, GrowthHistory
from autothrottle.ports.kafka import AllLogsSource, Watch

log = logging.getLogger(__name__)

INTERVAL = timedelta(seconds=1)
"""Interval between reads, if a read takes less than 5 % of it."""

BROKER_TIMEOUT = timedelta(seconds=5)
"""Timeout for one broker's answer."""

_REST_FACTOR = 19
"""Rest after a read, in multiples of its duration: brokers and this process spend at most 5 % of their time on it."""

_MAX_REST_SECONDS = 60.0
"""Limit of the rest: growth that is read less often says nothing about the present."""

_REPORT_AGAIN_RATIO = 1.1
"""A broker's rise is reported again at this multiple of the last reported rate: the first read may show only a part."""

_SAME_RISE_SECONDS = 30.0
"""Seconds for which reads from before a rise stay in the window that is compared."""

_CLOSE_SECONDS = 0.5


class GrowthReader:
    """Reads all logs of the followed brokers in its own thread. Thread-safe."""

    def __init__(
        self,
        source: AllLogsSource,
        *,
        interval: timedelta = INTERVAL,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source, self._interval, self._clock = source, interval.total_seconds(), clock
        self._changed = threading.Condition()
        self._reassignments: tuple[TopicReassignment, ...] = ()
        self._registered: Collection[int] = ()
        self._closed = False
        self._history = GrowthHistory()
        self._leaders = Leaders(source)
        self._failure = ""
        self._reported: dict[int, tuple[float, float]] = {}
        self._watchers = Subscriptions[str]()
        self._thread = threading.Thread(target=self._run, name="log-growth", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; waits only briefly for a running read, which ends by itself. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

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

    def _run(self) -> None:
        due = 0.0
        while self._wait(due):
            began, worked = time.monotonic(), 0.0
            try:
                worked = self._read()
            except AutothrottleError as error:
                self._log_failure(str(error))
            except Exception:  # a bug must not end the thread: a policy would wait for newer data forever
                log.exception("Reading all log sizes failed unexpectedly, trying again")
            due = max(began + self._interval, time.monotonic() + min(_REST_FACTOR * worked, _MAX_REST_SECONDS))

    def _wait(self, due: float) -> bool:
        """Wait until there are reassignments and a read is due; return whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, max(0.0, due - time.monotonic()))
            self._changed.wait_for(lambda: self._closed or self._reassignments)
            return not self._closed

    def _read(self) -> float:
        """Read once; return the seconds of work that this took."""
        with self._changed:
            reassignments, registered = self._reassignments, frozenset(self._registered)
        copying = CopyingReplicas.of(reassignments)
        if not (queried := copying.brokers & registered):
            return 0.0
        began, started = time.monotonic(), self._clock()
        sizes = self._source.fetch_all_log_sizes(queried, BROKER_TIMEOUT).usable()
        answered, worked = time.monotonic(), seconds_of_work(sizes, started, began)
        self._log_failure(next(iter(sizes.problems.values()), ""))
        leaders = self._leaders.of(sizes, BROKER_TIMEOUT)
        self._history = self._history.observe(sizes, copying.copied, leaders)
        self._report_rises(sizes.brokers)
        return worked + time.monotonic() - answered

    def _report_rises(self, broker_ids: Collection[int]) -> None:
        now = time.monotonic()
        rates = {b: rate_after_rise(self._history.brokers[b]) for b in broker_ids}
        fresh = {b: rate for b, rate in rates.items() if rate is not None and not self._is_reported(b, rate, now)}
        if not fresh:
            return
        self._reported.update({b: (now, rate) for b, rate in fresh.items()})
        self._watchers.publish(f"produce rate rose on {_named(fresh)}")

    def _is_reported(self, broker_id: int, rate: float, now: float) -> bool:
        when, reported = self._reported.get(broker_id, (-_SAME_RISE_SECONDS, 0.0))
        return now < when + _SAME_RISE_SECONDS and rate < _REPORT_AGAIN_RATIO * reported

    def _log_failure(self, failure: str) -> None:
        if failure and not self._failure and not self._closed:
            log.warning("Log growth cannot be read, falling back to delayed metrics for the client load: %s", failure)
        self._failure = failure


def seconds_of_work(sizes: LogSizes, started: datetime, began: float) -> float:
    """Return how long a read took until its last answer; waiting for an answer that never came is not work.

    Args:
        sizes: the answers.
        started: wall-clock time before the read, UTC.
        began: monotonic time before the read.
    """
    last = max((logs.at for logs in sizes.brokers.values()), default=started)
    return min(max(0.0, (last - started).total_seconds()), time.monotonic() - began)


def _named(broker_ids: Collection[int]) -> str:
    shown = ", ".join(str(b) for b in sorted(broker_ids)[:5])
    more = len(broker_ids) - 5
    return f"broker{'s' * (len(broker_ids) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")

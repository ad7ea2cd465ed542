"""Loads from the growth of the brokers' logs, read in the background. It needs no metrics system."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_common.leaders import Leaders
from autothrottle.adapters.kafka_common.log_growth_reader import BROKER_TIMEOUT, seconds_of_work
from autothrottle.core.cluster.log_sizes import LogSizes
from autothrottle.core.errors import AutothrottleError, Missing, Unavailable
from autothrottle.core.traffic.capacity import CapacityLimits, capacity_of
from autothrottle.core.traffic.loads import BrokerLoad, Loads, by_broker
from autothrottle.core.traffic.log_traffic import LogTraffic
from autothrottle.ports.kafka import AllLogsSource

log = logging.getLogger(__name__)

_SAMPLES = 12
"""Samples in one window."""

_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 1.0, 10.0
"""Range of the interval between samples, seconds."""

_FIRST_INTERVAL = 2.0
"""Interval until there are loads, seconds."""

_REST_FACTOR = 19
"""Rest after a read, in multiples of its duration: brokers and this process spend at most 5 % of their time on it."""

_MAX_REST_SECONDS = 60.0
"""Limit of the rest."""

_USED_SECONDS = 900.0
"""Reading ends this long after the last request for loads: only the leading planner requests them."""

_ANSWER_SHARE = 0.9
"""Share of a request's timeout for waiting for the first loads."""

_CLOSE_SECONDS = 0.5


class LogLoads:
    """Loads from the growth of all logs (a `LoadSource`). `close` ends its thread. Thread-safe."""

    def __init__(
        self,
        source: AllLogsSource,
        capacity_limits: CapacityLimits,
        fanout: float,
        window: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Start reading.

        Args:
            source: the logs of the cluster.
            capacity_limits: the operator's capacities.
            fanout: how often consumers read each produced byte, >= 0.
            window: length of the interval that a load covers, > 0.
            now: wall-clock time, UTC.
        """
        log.warning(
            "The metrics source kafka sees only the growth of logs. It assumes that consumers read each byte %g times "
            "(consumer-fanout). It does not see consumers that read old data, other traffic of the hosts, and bytes "
            "that compaction removes",
            fanout,
        )
        self._source, self._limits, self._clock = source, capacity_limits, clock
        self._interval = min(max(window.total_seconds() / _SAMPLES, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)
        self._usable_seconds = max(window.total_seconds(), 2 * _MAX_REST_SECONDS)
        self._leaders = Leaders(source)
        self._changed = threading.Condition()
        self._traffic = LogTraffic(window, fanout)
        self._sizes = LogSizes()
        self._read_at = -math.inf
        self._failure = ""
        self._wanted_until = time.monotonic() + _USED_SECONDS
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="log-loads", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; waits only briefly for a running read, which ends by itself. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    def fetch_loads(self, timeout: timedelta) -> Loads:
        with self._changed:
            self._wanted_until = time.monotonic() + _USED_SECONDS
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._closed or self._failure or self._is_current(), timeout.total_seconds() * _ANSWER_SHARE
            )
            if not self._is_current():
                reason = self._failure or "there are not two samples yet; try again in a few seconds"
                raise Unavailable(f"the log sizes of the brokers cannot be read: {reason}")
            return self._loads(self._traffic, self._sizes)

    def _is_current(self) -> bool:
        """Return whether some broker has a load that is not too old. The caller holds the lock."""
        oldest = time.monotonic() - self._usable_seconds
        return self._read_at >= oldest and any(len(marks) > 1 for marks in self._traffic.marks.values())

    def _loads(self, traffic: LogTraffic, sizes: LogSizes) -> Loads:
        broker_ids = sorted({*sizes.brokers, *sizes.problems})
        brokers, problems = by_broker(broker_ids, lambda broker_id: self._load(broker_id, traffic, sizes))
        unread = sorted(sizes.problems.keys() - traffic.logs.keys())
        return Loads(brokers, problems, _undescribed(self._leaders.unknown) + _never_read(unread))

    def _load(self, broker_id: int, traffic: LogTraffic, sizes: LogSizes) -> BrokerLoad:
        """Return the load of a broker.

        Raises:
            Missing: its load is unknown or too old, or its capacity is unknown.
        """
        utilization = traffic.utilization(broker_id)
        if utilization is None or utilization[0].end < self._clock() - timedelta(seconds=self._usable_seconds):
            state = (
                "were read only once so far"
                if utilization is None
                else f"are those of {utilization[0].end:%H:%M:%S} UTC"
            )
            reasons = {**traffic.problems, **sizes.problems}
            reason = reasons.get(broker_id, f"they {state}; the next cycle has its load")
            raise Missing(f"the sizes of its logs are unknown: {reason}")
        return BrokerLoad(broker_id, capacity_of(broker_id, None, None, self._limits), *utilization)

    def _run(self) -> None:
        due = 0.0
        while self._wait(due):
            began, worked, failure = time.monotonic(), 0.0, ""
            try:
                worked = self._read()
            except AutothrottleError as error:
                failure = str(error)
            except Exception as error:  # a bug must not end the thread: the loads would never change again
                log.exception("Reading all log sizes failed unexpectedly, trying again")
                failure = type(error).__name__
            with self._changed:
                self._failure = failure
                interval = self._interval if self._is_current() else _FIRST_INTERVAL
                self._changed.notify_all()
            due = max(began + interval, time.monotonic() + min(_REST_FACTOR * worked, _MAX_REST_SECONDS))

    def _wait(self, due: float) -> bool:
        """Wait until a read is due and a caller needs loads; return False after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, max(0.0, due - time.monotonic()))
            self._changed.wait_for(lambda: self._closed or time.monotonic() < self._wanted_until)
            return not self._closed

    def _read(self) -> float:
        """Read once; return the seconds of work that this took."""
        broker_ids = self._source.fetch_broker_ids(BROKER_TIMEOUT)
        began, started = time.monotonic(), self._clock()
        sizes = self._source.fetch_all_log_sizes(broker_ids, BROKER_TIMEOUT).usable()
        answered, worked = time.monotonic(), seconds_of_work(sizes, started, began)
        if not sizes.brokers:
            raise Unavailable(next(iter(sizes.problems.values()), "the cluster has no registered broker"))
        traffic = self._traffic.observe(sizes, self._leaders.of(sizes, BROKER_TIMEOUT))
        with self._changed:
            self._traffic, self._sizes, self._read_at = traffic, sizes, time.monotonic()
        return worked + time.monotonic() - answered


def _undescribed(topics: frozenset[str]) -> tuple[str, ...]:
    if not topics:
        return ()
    shown = ", ".join(sorted(topics)[:3]) + (", ..." if len(topics) > 3 else "")
    return (
        f"the leaders of {len(topics)} topics ({shown}) are unknown, so the outbound load lacks their traffic; "
        "allow Describe on all topics",
    )


def _never_read(broker_ids: Sequence[int]) -> tuple[str, ...]:
    if not broker_ids:
        return ()
    shown = ", ".join(map(str, broker_ids[:3])) + (", ..." if len(broker_ids) > 3 else "")
    return (
        f"the log sizes of {len(broker_ids)} brokers ({shown}) were never read, so the outbound load of the leaders of "
        "their replicas lacks the bytes sent to them. Fix: see the problems of these brokers",
    )

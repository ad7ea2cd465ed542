"""Loads from the growth of the brokers' logs, read in the background. It needs no metrics system."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from itertools import islice

from autothrottle.adapters.kafka_common.background_reader import (
    BROKER_TIMEOUT,
    LONGEST_REST_SECONDS,
    BackgroundReader,
    Leaders,
)
from autothrottle.core.cluster.snapshot import LogSizes
from autothrottle.core.errors import Missing, Unavailable, Unready
from autothrottle.core.traffic.capacity import CapacityLimits, capacity_of
from autothrottle.core.traffic.loads import BrokerLoad, Loads, by_broker
from autothrottle.core.traffic.log_growth_history import LogTraffic
from autothrottle.ports.kafka import AllLogsSource

_SAMPLES = 12
"""Samples in one window."""

_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 1.0, 10.0
"""Range of the interval between samples, seconds."""

_FIRST_INTERVAL = 2.0
"""Interval until there are loads, seconds."""

_USED_SECONDS = 900.0
"""Reading ends this long after the last request for loads: only the leading planner requests them."""

_ANSWER_SHARE = 0.9
"""Share of a request's timeout for waiting for the first loads."""

_FRESH_SECONDS, _PATIENCE_SECONDS = 2.0, 0.5
"""A request reads sizes that are older than this, and waits this long for them; then the last ones must do."""


class LogLoads(BackgroundReader):
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
            clock: wall-clock time, UTC.
        """
        interval = min(max(window.total_seconds() / _SAMPLES, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)
        super().__init__("log-loads", timedelta(seconds=interval), clock)
        self._source, self._limits = source, capacity_limits
        self._usable_seconds = max(window.total_seconds(), 2 * LONGEST_REST_SECONDS)
        self._leaders = Leaders(source)
        self._traffic = LogTraffic(window, fanout)
        self._sizes = LogSizes()
        self._read_at = -math.inf
        self._wanted_until = time.monotonic() + _USED_SECONDS
        self._thread.start()

    def fetch_loads(self, timeout: timedelta) -> Loads:
        with self._changed:
            began = time.monotonic()
            self._wanted_until = began + _USED_SECONDS
            if self._is_current() and began - self._read_at > _FRESH_SECONDS:
                self._urgent = True
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._closed or self._failure or self._read_at >= began, _PATIENCE_SECONDS
                )
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._closed or self._failure or self._is_current(), timeout.total_seconds() * _ANSWER_SHARE
            )
            if not self._is_current():
                if not self._failure:
                    raise Unready("the log sizes of the brokers have no two samples yet; try again in a few seconds")
                raise Unavailable(f"the log sizes of the brokers cannot be read: {self._failure}")
            return self._loads(self._traffic, self._sizes)

    def _is_current(self) -> bool:
        """Return whether some broker has a load that is not too old. The caller holds the lock."""
        oldest = time.monotonic() - self._usable_seconds
        return self._read_at >= oldest and any(len(marks) > 1 for marks in self._traffic.marks.values())

    def _loads(self, traffic: LogTraffic, sizes: LogSizes) -> Loads:
        broker_ids = sorted({*sizes.brokers, *sizes.problems})
        brokers, problems = by_broker(broker_ids, lambda broker_id: self._load(broker_id, traffic, sizes))
        unread = sorted(sizes.problems.keys() - traffic.logs.keys())
        undescribed = _warning(_UNDESCRIBED, sorted(self._leaders.unknown))
        return Loads(brokers, problems, undescribed + _warning(_NEVER_READ, unread))

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

    def _is_needed(self) -> bool:
        return time.monotonic() < self._wanted_until

    def _seconds_between_reads(self) -> float:
        return self._interval if self._is_current() else _FIRST_INTERVAL

    def _read(self) -> str:
        all_logs = dict.fromkeys(self._source.fetch_broker_ids(BROKER_TIMEOUT))
        sizes = self._fetch(lambda: self._source.fetch_log_sizes(all_logs, BROKER_TIMEOUT))
        if not sizes.brokers:
            raise Unavailable(next(iter(sizes.problems.values()), "the cluster has no registered broker"))
        traffic = self._traffic.observe(sizes, self._leaders.of(sizes, BROKER_TIMEOUT))
        with self._changed:
            self._traffic, self._sizes, self._read_at = traffic, sizes, time.monotonic()
        return ""


_UNDESCRIBED = (
    "the leaders of {} topics ({}) are unknown, so the outbound load lacks their traffic; allow Describe on all topics"
)
_NEVER_READ = (
    "the log sizes of {} brokers ({}) were never read, so the outbound load of the leaders of their replicas lacks the "
    "bytes sent to them. Fix: see the problems of these brokers"
)


def _warning(text: str, names: Collection[object]) -> tuple[str, ...]:
    """Return the text with the number of names and the first three of them; nothing without names."""
    shown = ", ".join(map(str, islice(names, 3))) + (", ..." if len(names) > 3 else "")
    return (text.format(len(names), shown),) if names else ()

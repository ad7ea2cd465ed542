"""Reads the log growth of brokers that take part in reassignments, in the background while there are any."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.kafka_common.background_reader import BROKER_TIMEOUT, BackgroundReader, Leaders
from autothrottle.core.cluster.flows import LogGrowth, rate_after_rise
from autothrottle.core.cluster.snapshot import TopicReassignment
from autothrottle.core.traffic.log_growth_history import CopyingReplicas, GrowthHistory
from autothrottle.ports.kafka import AllLogsSource, Watch

INTERVAL = timedelta(seconds=1)
"""Interval between reads, if a read takes less than 5 % of it."""

_REPORT_AGAIN_RATIO = 1.1
"""A broker's rise is reported again at this multiple of the last reported rate: the first read may show only a part."""

_SAME_RISE_SECONDS = 30.0
"""Seconds for which reads from before a rise stay in the window that is compared."""


class GrowthReader(BackgroundReader):
    """Reads all logs of the followed brokers in its own thread. Thread-safe."""

    _warning = "Log growth cannot be read, falling back to delayed metrics for the client load: %s"

    def __init__(self, source: AllLogsSource, *, interval: timedelta = INTERVAL) -> None:
        super().__init__("log-growth", interval)
        self._source = source
        self._reassignments: tuple[TopicReassignment, ...] = ()
        self._registered: Collection[int] = ()
        self._history = GrowthHistory()
        self._leaders = Leaders(source)
        self._reported: dict[int, tuple[float, float]] = {}
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
        self._report_rises(sizes.brokers)
        return next(iter(sizes.problems.values()), "")

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


def _named(broker_ids: Collection[int]) -> str:
    shown = ", ".join(str(b) for b in sorted(broker_ids)[:5])
    more = len(broker_ids) - 5
    return f"broker{'s' * (len(broker_ids) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")

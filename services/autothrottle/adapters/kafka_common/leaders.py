"""Caches the leaders of partitions: they change rarely, and reading them takes long on a large cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

from autothrottle.core.cluster.log_sizes import LogSizes
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.ports.kafka import AllLogsSource

LEADERS_INTERVAL = timedelta(seconds=30)
"""Interval between reads of the partitions' leaders."""

_UNKNOWN_LEADER_INTERVAL = timedelta(seconds=5)
"""The same while the leaders of some topic are unknown."""


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

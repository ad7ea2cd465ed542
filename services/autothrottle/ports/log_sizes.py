"""Where the sizes of logs come from: the brokers themselves, or any other source that knows partitions' sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Protocol

from autothrottle.core.progress import LogSizes
from autothrottle.core.topology import TopicPartition


class LogSizeSource(Protocol):
    """Reads how large logs are, from many brokers at once."""

    def fetch_log_sizes(self, wanted: Mapping[int, Mapping[str, Collection[int]]], timeout: timedelta) -> LogSizes:
        """Return the sizes of logs, with the time of each broker's answer.

        A broker that does not answer in time is among the problems and costs the others nothing.

        Args:
            wanted: broker id -> topic -> partitions; the broker need not have a replica of each.
            timeout: for each broker, > 0.

        Raises:
            Unavailable, Invalid: when nobody can be asked.
        """
        ...


class AllLogsSource(Protocol):
    """Reads all logs of some brokers, those that do not move included."""

    def fetch_all_log_sizes(self, broker_ids: Collection[int], timeout: timedelta) -> LogSizes:
        """Return the sizes of all logs, with the time of each broker's answer.

        A broker that does not answer in time is among the problems and costs the others nothing.

        Args:
            broker_ids: who is asked, all at once.
            timeout: for each broker, > 0.

        Raises:
            Unavailable, Invalid: when nobody can be asked.
        """
        ...

    def fetch_leaders(self, topics: Collection[str], timeout: timedelta) -> Mapping[TopicPartition, int]:
        """Return who leads each partition of these topics: a broker id, -1 while there is none.

        A topic that does not exist, or that cannot be looked at, is absent.

        Raises:
            Unavailable, Invalid: when nobody can be asked.
        """
        ...

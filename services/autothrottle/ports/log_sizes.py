"""Where the sizes of logs come from: the brokers themselves, or any other source that knows partitions' sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Protocol

from autothrottle.core.progress import LogSizes


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

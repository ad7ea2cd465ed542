"""The sizes of partition logs, as the brokers report them. The type to know is `LogSizes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter

from autothrottle.core.cluster.snapshot import TopicPartition

REMEMBERED = timedelta(minutes=8)
"""How long the earlier counts of a flow are kept: a metric may be 2 minutes late, cover 2, and be used for 2 more."""

SET_BACK = timedelta(seconds=1)
"""A sample older than the last one by more than this means that the clock was set back. Counts with times in the
future would block all counting until then, so they are discarded."""

MAX_BROKER_BYTES = 2**51
"""Largest sum of the logs on one broker, 2 PB: sums over 4,000 brokers fit into a signed 64-bit integer."""


@dataclass(frozen=True, slots=True)
class BrokerLogSizes:
    """The sizes of the logs on one broker at one time."""

    at: datetime
    """When the broker reported them, UTC."""
    sizes: Mapping[TopicPartition, int]
    """(topic, partition) -> size of the log, bytes; absent: the broker has no replica."""


@dataclass(frozen=True, slots=True)
class LogSizes:
    """One sample of log sizes."""

    brokers: Mapping[int, BrokerLogSizes] = field(default_factory=dict)
    """Broker id -> its logs; absent: the broker was not queried, or see `problems`."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> why it did not answer, in one sentence."""

    def usable(self) -> LogSizes:
        """Return the sizes without the brokers that report a size outside its range, which are problems."""
        problems = {b: reason for b, logs in self.brokers.items() if (reason := _size_problem(b, logs))}
        if not problems:
            return self
        brokers = {b: logs for b, logs in self.brokers.items() if b not in problems}
        return LogSizes(brokers, {**self.problems, **problems})


def _size_problem(broker_id: int, logs: BrokerLogSizes) -> str:
    if min(logs.sizes.values(), default=0) < 0:
        (topic, partition), size = min(logs.sizes.items(), key=itemgetter(1))
        return f"broker {broker_id} reports {size} bytes for {topic} {partition}; a size is >= 0"
    total = sum(logs.sizes.values())
    if total > MAX_BROKER_BYTES:
        return f"broker {broker_id} reports {total} bytes of logs; at most {MAX_BROKER_BYTES} are plausible"
    return ""

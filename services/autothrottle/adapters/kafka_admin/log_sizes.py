"""Log sizes by DescribeLogDirs, each broker asked by a call of its own so that each answer has its own time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.progress import BrokerLogSizes, LogSizes
from autothrottle.core.topology import TopicPartition

_AT_ONCE = 16
"""Brokers that are asked at once: the others wait for a thread."""


class KafkaLogSizes:
    """What the brokers themselves say of their logs; a `LogSizeSource` and an `AllLogsSource`. Thread-safe."""

    def __init__(self, kafka: KafkaAdmin, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._kafka, self._now = kafka, now

    def fetch_log_sizes(self, wanted: Mapping[int, Mapping[str, Collection[int]]], timeout: timedelta) -> LogSizes:
        return self._ask_all(wanted, timeout)

    def fetch_all_log_sizes(self, broker_ids: Collection[int], timeout: timedelta) -> LogSizes:
        return self._ask_all(dict.fromkeys(broker_ids), timeout)

    def fetch_leaders(self, topics: Collection[str], timeout: timedelta) -> Mapping[TopicPartition, int]:
        found = self._kafka.partitions(topics, timeout=timeout).values
        return {(topic, number): one.leader for topic, rows in found.items() for number, one in rows.items()}

    def _ask_all(self, wanted: Mapping[int, Mapping[str, Collection[int]] | None], timeout: timedelta) -> LogSizes:
        """Ask each broker for these logs, None: for all."""
        with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(wanted))), thread_name_prefix="log-sizes") as pool:
            asked = {b: pool.submit(self._ask, b, partitions, timeout) for b, partitions in wanted.items()}
            answers = {b: answer.result() for b, answer in asked.items()}
        return LogSizes(
            brokers={b: answer for b, answer in answers.items() if isinstance(answer, BrokerLogSizes)},
            problems={b: answer for b, answer in answers.items() if isinstance(answer, str)},
        )

    def _ask(
        self, broker_id: int, partitions: Mapping[str, Collection[int]] | None, timeout: timedelta
    ) -> BrokerLogSizes | str:
        """The sizes on one broker, or why there are none."""
        try:
            answers = self._kafka.log_sizes([broker_id], partitions, timeout=timeout)
        except AutothrottleError as error:
            return str(error)
        if (sizes := answers.values.get(broker_id)) is not None:
            return BrokerLogSizes(self._now(), sizes)
        failure = answers.failures.get(broker_id)
        return str(failure) if failure else f"broker {broker_id} is not known to the others"

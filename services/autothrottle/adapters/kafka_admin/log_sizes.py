"""Log sizes from DescribeLogDirs. Each broker is queried by its own call, so that each answer has its own time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.core.cluster.log_sizes import BrokerLogSizes, LogSizes
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import AutothrottleError

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""Limit of brokers queried in parallel; the others wait for a thread."""


class KafkaLogSizes:
    """Log sizes from the brokers themselves; a `LogSizeSource` and an `AllLogsSource`. Thread-safe."""

    def __init__(self, kafka: KafkaAdmin, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._kafka, self._clock = kafka, clock

    def fetch_log_sizes(self, partitions: Mapping[int, Mapping[str, Collection[int]]], timeout: timedelta) -> LogSizes:
        return self._ask_all(partitions, timeout)

    def fetch_broker_ids(self, timeout: timedelta) -> Collection[int]:
        return self._kafka.brokers(timeout=timeout)

    def fetch_all_log_sizes(self, broker_ids: Collection[int], timeout: timedelta) -> LogSizes:
        return self._ask_all(dict.fromkeys(broker_ids), timeout)

    def fetch_leaders(self, topics: Collection[str], timeout: timedelta) -> Mapping[TopicPartition, int]:
        metadata = self._kafka.partitions(topics, timeout=timeout).values
        return {
            (topic, number): partition.leader for topic, rows in metadata.items() for number, partition in rows.items()
        }

    def _ask_all(
        self, partitions_of_brokers: Mapping[int, Mapping[str, Collection[int]] | None], timeout: timedelta
    ) -> LogSizes:
        """Query each broker for the sizes of these logs; None: of all logs."""
        with ThreadPoolExecutor(
            max(1, min(_AT_ONCE, len(partitions_of_brokers))), thread_name_prefix="log-sizes"
        ) as pool:
            pending = {
                b: pool.submit(self._ask, b, partitions, timeout) for b, partitions in partitions_of_brokers.items()
            }
            answers = {b: answer.result() for b, answer in pending.items()}
        return LogSizes(
            brokers={b: answer for b, answer in answers.items() if isinstance(answer, BrokerLogSizes)},
            problems={b: answer for b, answer in answers.items() if isinstance(answer, str)},
        )

    def _ask(
        self, broker_id: int, partitions: Mapping[str, Collection[int]] | None, timeout: timedelta
    ) -> BrokerLogSizes | str:
        """Return the log sizes of one broker, or why they are unknown."""
        try:
            sizes = self._kafka.log_sizes(broker_id, partitions, timeout=timeout)
        except AutothrottleError as error:
            return str(error)
        except Exception as error:  # an odd response of one broker must not hide the logs of the others
            log.exception("Reading the log sizes of broker %d failed unexpectedly; they count as unknown", broker_id)
            return f"the response of broker {broker_id} cannot be read ({type(error).__name__}: {error})"
        return BrokerLogSizes(self._clock(), sizes)

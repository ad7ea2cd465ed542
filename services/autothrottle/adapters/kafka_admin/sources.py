"""What brokers report about themselves: log sizes, settings in force, and the permissions of this client."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import Configs
from autothrottle.core.cluster.configs import DEFAULT_RESPONSE_BYTES, ClusterSettings, FetchSettings
from autothrottle.core.cluster.snapshot import BrokerLogSizes, LogSizes, TopicPartition
from autothrottle.core.errors import AutothrottleError, Missing
from autothrottle.core.units import MAX_INT32
from autothrottle.ports.kafka import PERMITTED, PartitionsOfBrokers

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""Limit of brokers queried in parallel; the others wait for a thread."""


class KafkaLogSizes:
    """Log sizes from the brokers themselves; a `LogSizeSource` and an `AllLogsSource`. Thread-safe."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self._kafka = kafka

    def fetch_log_sizes(self, partitions: PartitionsOfBrokers, timeout: timedelta) -> LogSizes:
        with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(partitions))), thread_name_prefix="log-sizes") as pool:
            pending = {b: pool.submit(self._ask, b, topics, timeout) for b, topics in partitions.items()}
            answers = {b: answer.result() for b, answer in pending.items()}
        return LogSizes(
            brokers={b: answer for b, answer in answers.items() if isinstance(answer, BrokerLogSizes)},
            problems={b: answer for b, answer in answers.items() if isinstance(answer, str)},
        )

    def fetch_broker_ids(self, timeout: timedelta) -> Collection[int]:
        return self._kafka.brokers(timeout=timeout)

    def fetch_leaders(self, topics: Collection[str], timeout: timedelta) -> Mapping[TopicPartition, int]:
        metadata = self._kafka.partitions(topics, timeout=timeout).values
        return {
            (topic, number): partition.leader for topic, rows in metadata.items() for number, partition in rows.items()
        }

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
        return BrokerLogSizes(datetime.now(UTC), sizes)


_RESPONSE = "replica.fetch.response.max.bytes"
_SAMPLES = "replication.quota.window.num"
_SAMPLE_SECONDS = "replication.quota.window.size.seconds"
_MIN_IN_SYNC = "min.insync.replicas"

_DIGITS = 10


class KafkaFetchSettings:
    """A `FetchSettingsSource`: each broker reports its own configuration. Thread-safe."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self._kafka = kafka

    def fetch_settings(
        self, broker_ids: Collection[int], topics: Collection[str], timeout: timedelta
    ) -> ClusterSettings:
        half = timeout / 2
        brokers = self._kafka.broker_configs(broker_ids, [_RESPONSE, _SAMPLES, _SAMPLE_SECONDS], timeout=half)
        described = self._kafka.topic_configs(topics, [_MIN_IN_SYNC], timeout=half) if topics else None
        return ClusterSettings(
            brokers={b: _settings(values) for b, values in brokers.values.items()},
            min_in_sync_replicas={
                topic: minimum
                for topic, values in (described.values if described else {}).items()
                if (minimum := _number(values, _MIN_IN_SYNC, 0))
            },
        )


def _settings(values: Configs) -> FetchSettings:
    return FetchSettings(
        response_max_bytes=_number(values, _RESPONSE, DEFAULT_RESPONSE_BYTES),
        window_seconds=min(_number(values, _SAMPLES, 11) * _number(values, _SAMPLE_SECONDS, 1), MAX_INT32),
    )


def _number(values: Configs, key: str, default: int) -> int:
    """Parse a number in 1..2^31-1, as Kafka has it; the default if the broker has no such value."""
    value = values.get(key)
    text = (value.value if value else None) or ""
    # int() refuses thousands of digits.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    return number if 0 < number <= MAX_INT32 else default


READING = ("Describe", "DescribeConfigs")
WRITING = ("Alter", "AlterConfigs")
"""Operations on the cluster to write throttles and to submit reassignments; topics need all but Alter."""


class KafkaPermissions:
    """The operations on the cluster and on topics; a `PermissionSource`."""

    summary = PERMITTED

    def __init__(self, kafka: KafkaAdmin, writes_configs: bool) -> None:
        """Prepare.

        Args:
            kafka: the client whose permissions are read.
            writes_configs: whether throttles are written through it.
        """
        self._kafka = kafka
        self._of_cluster = (*READING, *WRITING) if writes_configs else (*READING, "Alter")
        self._of_topics = (*READING, "AlterConfigs") if writes_configs else READING

    def fetch_missing_permissions(self, timeout: timedelta) -> Mapping[str, str]:
        cluster, topics = self._kafka.permitted_operations(timeout=timeout)
        missing = {}
        if operations := _absent(self._of_cluster, cluster):
            missing["Kafka, cluster"] = _sentence(operations, "--cluster")
        denied = {topic: _absent(self._of_topics, allowed) for topic, allowed in sorted(topics.values.items())}
        if len(denied) > 1 and all(denied.values()) and len({*denied.values()}) == 1:
            missing["all topics"] = _sentence(next(iter(denied.values())), "--topic '*'")
        else:
            of_topics = ((topic, operations) for topic, operations in denied.items() if operations)
            missing |= {f"topic {topic}": _sentence(operations, f"--topic {topic}") for topic, operations in of_topics}
        failures = {f"topic {t}": str(e) for t, e in topics.failures.items() if not isinstance(e, Missing)}
        return missing | failures


def _absent(operations: Collection[str], allowed: Collection[str]) -> tuple[str, ...]:
    return tuple(operation for operation in operations if operation not in allowed)


def _sentence(operations: Collection[str], resource: str) -> str:
    options = " ".join(f"--operation {operation}" for operation in operations)
    return (
        f"this client may not {', '.join(operations)}. Fix: kafka-acls.sh --add --allow-principal User:... {options} "
        f"{resource}, see docs/security.md"
    )

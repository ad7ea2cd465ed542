"""Settings of brokers and topics from DescribeConfigs: the values in force, from any source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import ConfigValue
from autothrottle.core.cluster.fetch_settings import DEFAULT_RESPONSE_BYTES, ClusterSettings, FetchSettings
from autothrottle.core.units import MAX_INT32

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


def _settings(values: Mapping[str, ConfigValue]) -> FetchSettings:
    return FetchSettings(
        response_max_bytes=_number(values, _RESPONSE, DEFAULT_RESPONSE_BYTES),
        window_seconds=min(_number(values, _SAMPLES, 11) * _number(values, _SAMPLE_SECONDS, 1), MAX_INT32),
    )


def _number(values: Mapping[str, ConfigValue], key: str, default: int) -> int:
    """Parse a number in 1..2^31-1, as Kafka has it; the default if the broker has no such value."""
    value = values.get(key)
    text = (value.value if value else None) or ""
    # int() refuses thousands of digits.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    return number if 0 < number <= MAX_INT32 else default

"""Which brokers run, according to Kafka's controller."""

from __future__ import annotations

from datetime import timedelta

from autothrottle.adapters.kafka_admin.client import KafkaAdmin


class KafkaRegistrations:
    """A `BrokerRegistry`: one metadata request without topics."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self._kafka = kafka

    def is_registered(self, broker_id: int, timeout: timedelta) -> bool:
        return broker_id in self._kafka.brokers(timeout=timeout)

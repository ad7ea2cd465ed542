"""Which brokers run, according to their ephemeral nodes."""

from __future__ import annotations

from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.session import translated_errors


class ZooKeeperRegistrations:
    """A `BrokerRegistry`: reads one node, independently of any snapshot that is being read."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths) -> None:
        self._client, self._kafka = client, kafka

    def is_registered(self, broker_id: int, timeout: timedelta) -> bool:
        with translated_errors("looking for a broker"):
            node = self._client.exists_async(f"{self._kafka.broker_ids}/{broker_id}")
            return node.get(timeout=timeout.total_seconds()) is not None

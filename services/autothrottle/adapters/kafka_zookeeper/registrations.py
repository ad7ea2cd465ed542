"""Which brokers run and where, according to their ephemeral nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from autothrottle.adapters.concurrency.deadlines import seconds_left
from autothrottle.adapters.zookeeper.codec import registered_hosts
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.broker_ids import broker_id_of
from autothrottle.core.errors import Invalid


class ZooKeeperRegistrations:
    """A `BrokerRegistry`: reads nodes, independently of any snapshot that is being read."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths) -> None:
        self._client, self._kafka = client, kafka

    def is_registered(self, broker_id: int, timeout: timedelta) -> bool:
        with translated_errors("looking for a broker"):
            node = self._client.exists_async(f"{self._kafka.broker_ids}/{broker_id}")
            return node.get(timeout=timeout.total_seconds()) is not None

    def fetch_hosts(self, timeout: timedelta) -> Mapping[int, Sequence[str]]:
        deadline = time.monotonic() + timeout.total_seconds()
        with translated_errors("reading the brokers' hosts"):
            ids = self._client.get_children_async(self._kafka.broker_ids).get(timeout=seconds_left(deadline))
            nodes = {name: self._client.get_async(f"{self._kafka.broker_ids}/{name}") for name in ids}
            hosts_of_brokers: dict[int, Sequence[str]] = {}
            for name, node in nodes.items():
                broker_id = broker_id_of(name)
                with suppress(NoNodeError, NoAuthError, Invalid):  # it has stopped, or cannot be read
                    if broker_id is not None:
                        hosts_of_brokers[broker_id] = registered_hosts(node.get(timeout=seconds_left(deadline))[0])
        return hosts_of_brokers

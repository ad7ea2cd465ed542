"""Chooses the adapters of a configuration: those of Kafka's cluster, and the stores of our own state.

The adapters of the Admin API and of the state in Kafka are imported only where they are used, since they take long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autothrottle.composition.state import StateStores, ZooKeeperState
from autothrottle.composition.zookeeper_cluster import ZooKeeperCluster
from autothrottle.core.errors import Invalid
from autothrottle.runtime.configuration import Configuration, KafkaBackend, StateStore
from autothrottle.runtime.shutdown import Shutdown

if TYPE_CHECKING:
    from autothrottle.composition.admin_cluster import AdminCluster


def new_state(configuration: Configuration, stack: Shutdown, writes: bool = True) -> StateStores:
    """Return the stores of our own state in the configured place; `writes` False: for a command that only looks."""
    if configuration.state_store is StateStore.ZOOKEEPER:
        return ZooKeeperState(configuration, stack)
    from autothrottle.composition.kafka_state import KafkaState

    return KafkaState(configuration, stack, writes)


def new_cluster(configuration: Configuration, stack: Shutdown, state: StateStores) -> ZooKeeperCluster | AdminCluster:
    """Return the adapters for the configured backend, with the Admin API if there are bootstrap servers."""
    if configuration.kafka_backend is KafkaBackend.ADMIN:
        from autothrottle.composition.admin_cluster import AdminCluster

        return AdminCluster(configuration, stack, state)
    if not isinstance(state, ZooKeeperState):  # the configuration refuses it
        raise Invalid("kafka-backend zookeeper needs state-store zookeeper, whose terms fence its writes")
    if not configuration.bootstrap_servers:
        return ZooKeeperCluster(configuration, stack, state)
    from autothrottle.composition.admin_cluster import ZooKeeperClusterWithAdmin

    return ZooKeeperClusterWithAdmin(configuration, stack, state)


def validate_kafka_settings(configuration: Configuration) -> Sequence[str]:
    """Check the Kafka settings without connecting; return warnings about them.

    Raises:
        Invalid: the file that kafka-client-config names cannot be read, or has an unsupported property.
    """
    path = configuration.kafka_client_config
    if not path:
        return ()
    from autothrottle.composition.admin_cluster import kafka_login

    return [f"kafka-client-config {path!r}: {warning}" for warning in kafka_login(path).warnings]

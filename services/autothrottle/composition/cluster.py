"""The adapters of Kafka's cluster: through ZooKeeper, or through the Admin API (`admin_cluster`).

The types to know are `ZooKeeperCluster` and, there, `AdminCluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kazoo.client import KazooClient

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.kafka_common.progress_reader import ProgressReader
from autothrottle.adapters.kafka_zookeeper.client_quotas import ZooKeeperClientQuotas
from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.kafka_zookeeper.placement import ZooKeeperClusterSource, ZooKeeperRegistrations
from autothrottle.adapters.kafka_zookeeper.reassignments import ZooKeeperReassigner
from autothrottle.adapters.kafka_zookeeper.snapshots import ZooKeeperSnapshots
from autothrottle.adapters.state_store.ledger import LedgeredQuotas
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.permissions import ZooKeeperPermissions
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.adapters.zookeeper_state.storage_metrics import ZooKeeperStorageMetrics
from autothrottle.composition.state import StateStores, ZooKeeperState
from autothrottle.core.errors import Invalid
from autothrottle.ports.kafka import (
    BrokerRegistry,
    ConfigWriter,
    FetchSettingsSource,
    PermissionSource,
    QuotaSource,
    Reassigner,
    SnapshotSource,
)
from autothrottle.ports.services import ClusterSource, StorageMetricsSource
from autothrottle.runtime.configuration import Configuration, KafkaBackend, StateStore
from autothrottle.runtime.shutdown import Shutdown

if TYPE_CHECKING:
    from autothrottle.adapters.kafka_admin.sources import KafkaLogSizes
    from autothrottle.composition.admin_cluster import AdminCluster


class ZooKeeperCluster:
    """The cluster through ZooKeeper alone. Its stack closes the adapters."""

    log_sizes: KafkaLogSizes | None = None
    fetch_settings: FetchSettingsSource | None = None
    credentials: Sequence[CredentialFiles] = ()

    def __init__(self, configuration: Configuration, stack: Shutdown, state: ZooKeeperState) -> None:
        self._configuration, self._stack, self._state = configuration, stack, state
        self._paths = KafkaPaths(configuration.zk_prefix)

    @cached_property
    def _placement_session(self) -> KazooClient:
        """Its own session, so that reading a whole cluster does not delay the stores."""
        return self._state.new_session()

    @cached_property
    def _discovery_session(self) -> KazooClient:
        return self._state.new_session()

    def progress(self) -> ProgressReader | None:
        """The background reader of log sizes; None without the Admin API."""
        return None

    def snapshots(self, progress: ProgressReader | None) -> SnapshotSource:
        return self._stack.closing(
            ZooKeeperSnapshots(self._discovery_session, self._paths, self._state.paths, progress)
        )

    def source(self) -> ClusterSource:
        return ZooKeeperClusterSource(self._placement_session, self._paths)

    def storage_metrics(self) -> StorageMetricsSource:
        """The sample of metricsfetcher."""
        return ZooKeeperStorageMetrics(self._placement_session)

    def brokers(self) -> BrokerRegistry:
        return ZooKeeperRegistrations(self._state.session, self._paths)

    def broker_hosts(self) -> BrokerHosts:
        """The hosts, without waiting for ZooKeeper at the start: loads of brokers that a label names need no host."""
        return BrokerHosts(ZooKeeperRegistrations(self._state.background_session(), self._paths))

    def quota_source(self) -> QuotaSource:
        session = self._discovery_session
        return LedgeredQuotas(ZooKeeperLedger(session, self._state.paths), ZooKeeperClientQuotas(session, self._paths))

    def client_quotas(self) -> ZooKeeperClientQuotas:
        return ZooKeeperClientQuotas(self._state.session, self._paths)

    def writer(self) -> ConfigWriter:
        return ZooKeeperConfigWriter(self._state.applier_session, self._paths, self._state.paths)

    def reassigner(self) -> Reassigner:
        return ZooKeeperReassigner(self._state.applier_session, self._paths, self._state.paths)

    def permissions(self) -> Mapping[str, Callable[[], PermissionSource]]:
        """What is accessed -> a function that connects to the permissions there."""
        return {"Kafka's znodes": lambda: ZooKeeperPermissions(self._state.new_session(), self._paths)}


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

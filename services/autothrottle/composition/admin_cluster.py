"""The adapters that use Kafka's Admin API. Importing its library takes 0.2 s of CPU time, and most processes need none.

The types to know are `ZooKeeperClusterWithAdmin` and `AdminCluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_properties import read_client_properties
from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas, fetch_group_clients
from autothrottle.adapters.kafka_admin.config_writer import AdminConfigWriter
from autothrottle.adapters.kafka_admin.placement import AdminClusterSource, LogDirMetrics
from autothrottle.adapters.kafka_admin.reassignments import AdminReassigner
from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.kafka_admin.sources import KafkaFetchSettings, KafkaLogSizes, KafkaPermissions
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.kafka_common.progress_reader import GrowthReader, ProgressReader
from autothrottle.adapters.zookeeper.permissions import ZooKeeperPermissions
from autothrottle.adapters.zookeeper_state.ledger import LedgeredQuotas, LedgerReader
from autothrottle.composition.cluster import ZooKeeperCluster
from autothrottle.composition.state import StateStores
from autothrottle.ports.kafka import PermissionSource, SnapshotSource
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.shutdown import Shutdown


class ZooKeeperClusterWithAdmin(ZooKeeperCluster):
    """The cluster through ZooKeeper, and through the Admin API what ZooKeeper does not have.

    Reassignments go through the Admin API: only it can cancel, and accept several submissions at once.
    """

    def __init__(self, configuration: Configuration, stack: Shutdown, state: StateStores) -> None:
        """Prepare; nothing connects yet.

        Raises:
            Invalid: the file that kafka-client-config names cannot be read, or has an unsupported property.
        """
        super().__init__(configuration, stack, state)
        path = configuration.kafka_client_config
        settings = KafkaSettings(
            bootstrap_servers=configuration.bootstrap_servers,
            bootstrap_controllers=configuration.kafka_bootstrap_controllers,
            client_properties=read_client_properties(path) if path else {},
            request_timeout=configuration.kafka_api_request_timeout,
        )
        self._kafka = stack.cancellable(KafkaAdmin(settings))
        self._sizes = self.log_sizes = KafkaLogSizes(self._kafka)
        self.fetch_settings = KafkaFetchSettings(self._kafka)

    def progress(self) -> ProgressReader:
        return self._stack.closing(ProgressReader(self._sizes, GrowthReader(self._sizes)))

    def storage_metrics(self) -> LogDirMetrics:
        """The brokers' own sizes."""
        return LogDirMetrics(self._kafka)

    def quota_source(self, session: KazooClient) -> LedgeredQuotas:
        fetch_clients = partial(fetch_group_clients, self._kafka)
        return LedgeredQuotas(session, self._state.paths, self.client_quotas(session), fetch_clients)

    def reassigner(self, session: KazooClient) -> AdminReassigner:
        return AdminReassigner(self._kafka, session, self._state.paths, self._state.session_timeout)

    def permissions(self) -> Mapping[str, Callable[[], PermissionSource]]:
        return {
            "Kafka's znodes": lambda: ZooKeeperPermissions(self._state.new_session(), self._paths, submits=False),
            "Kafka's permissions": lambda: KafkaPermissions(self._kafka, writes_configs=False),
        }


class AdminCluster(ZooKeeperClusterWithAdmin):
    """The cluster through the Admin API alone."""

    def snapshots(self, session: KazooClient, progress: ProgressReader | None) -> SnapshotSource:
        ledger = self._stack.closing(LedgerReader(session, self._state.paths))
        poll = self._configuration.discovery_poll
        return self._stack.closing(AdminSnapshots(self._kafka, ledger, poll, progress))

    def source(self) -> AdminClusterSource:
        return AdminClusterSource(self._kafka)

    def brokers(self) -> KafkaAdmin:
        return self._kafka

    def broker_hosts(self) -> BrokerHosts:
        return BrokerHosts(self._kafka)

    def client_quotas(self, session: KazooClient) -> AdminClientQuotas:
        return AdminClientQuotas(self._kafka)

    def writer(self, session: KazooClient) -> AdminConfigWriter:
        return AdminConfigWriter(self._kafka, session, self._state.paths, self._state.session_timeout)

    def permissions(self) -> Mapping[str, Callable[[], PermissionSource]]:
        return {"Kafka's permissions": lambda: KafkaPermissions(self._kafka, writes_configs=True)}

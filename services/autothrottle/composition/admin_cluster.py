"""The adapters that use Kafka's Admin API. Importing its library takes 0.2 s of CPU time, and most processes need none.

The types to know are `ZooKeeperClusterWithAdmin` and `AdminCluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas, fetch_group_clients
from autothrottle.adapters.kafka_admin.config_writer import AdminConfigWriter
from autothrottle.adapters.kafka_admin.login import KafkaLogin, KafkaLoginFile
from autothrottle.adapters.kafka_admin.placement import AdminClusterSource, LogDirMetrics
from autothrottle.adapters.kafka_admin.reassignments import AdminReassigner
from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.kafka_admin.sources import KafkaFetchSettings, KafkaLogSizes, KafkaPermissions
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.kafka_common.progress_reader import GrowthReader, ProgressReader
from autothrottle.adapters.kafka_zookeeper.client_quotas import ZooKeeperClientQuotas
from autothrottle.adapters.state_store.ledger import LedgeredQuotas, QuotaReader
from autothrottle.adapters.zookeeper.permissions import ZooKeeperPermissions
from autothrottle.composition.state import StateStores, ZooKeeperState
from autothrottle.composition.zookeeper_cluster import ZooKeeperCluster
from autothrottle.ports.kafka import FetchSettingsSource, FollowedCluster, PermissionSource
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.shutdown import Shutdown


def kafka_settings(configuration: Configuration) -> KafkaSettings:
    """Return how to reach Kafka.

    Raises:
        Invalid: the file that kafka-client-config names cannot be read, or has an unsupported property.
    """
    return KafkaSettings(
        bootstrap_servers=configuration.bootstrap_servers,
        bootstrap_controllers=configuration.kafka_bootstrap_controllers,
        login=kafka_login(configuration.kafka_client_config),
        request_timeout=configuration.kafka_api_request_timeout,
    )


@cache
def kafka_login(path: str) -> KafkaLogin:
    """Return the login of a file of Kafka's client properties, one for the whole process; "": no file.

    Raises:
        Invalid: the file cannot be read, or has an unsupported property.
    """
    return KafkaLoginFile(path) if path else KafkaLogin()


class _AdminApi:
    """What the Admin API provides in both modes. Its stack closes the adapters."""

    def __init__(self, configuration: Configuration, stack: Shutdown, state: StateStores) -> None:
        """Prepare; nothing connects yet.

        Raises:
            Invalid: the file that kafka-client-config names cannot be read, or has an unsupported property.
        """
        self._stores = state
        settings = kafka_settings(configuration)
        self.credentials: Sequence[CredentialFiles] = settings.login.credentials
        """The files with which this process logs in, which are read again when they change."""
        self._kafka = stack.cancellable(KafkaAdmin(settings))
        self._sizes = KafkaLogSizes(self._kafka)
        self.log_sizes: KafkaLogSizes | None = self._sizes
        self.fetch_settings: FetchSettingsSource | None = KafkaFetchSettings(self._kafka)
        self._closing = stack.closing

    def progress(self) -> ProgressReader:
        return self._closing(ProgressReader(self._sizes, GrowthReader(self._sizes)))

    def storage_metrics(self) -> LogDirMetrics:
        """The brokers' own sizes."""
        return LogDirMetrics(self._kafka)

    def _ledgered(self, quotas: QuotaReader) -> LedgeredQuotas:
        return LedgeredQuotas(self._stores.ledger, quotas, partial(fetch_group_clients, self._kafka))

    def reassigner(self) -> AdminReassigner:
        return AdminReassigner(self._kafka, self._stores.ledger, self._stores.session_timeout)


class ZooKeeperClusterWithAdmin(_AdminApi, ZooKeeperCluster):
    """The cluster through ZooKeeper, and through the Admin API what ZooKeeper does not have.

    Reassignments go through the Admin API: only it can cancel, and accept several submissions at once.
    """

    def __init__(self, configuration: Configuration, stack: Shutdown, state: ZooKeeperState) -> None:
        ZooKeeperCluster.__init__(self, configuration, stack, state)
        _AdminApi.__init__(self, configuration, stack, state)

    def quota_source(self) -> LedgeredQuotas:
        return self._ledgered(ZooKeeperClientQuotas(self._discovery_session, self._paths))

    def permissions(self) -> Mapping[str, Callable[[], PermissionSource]]:
        return {
            "Kafka's znodes": lambda: ZooKeeperPermissions(self._state.new_session(), self._paths, submits=False),
            "Kafka's permissions": lambda: KafkaPermissions(self._kafka, writes_configs=False),
        }


class AdminCluster(_AdminApi):
    """The cluster through the Admin API alone."""

    def __init__(self, configuration: Configuration, stack: Shutdown, state: StateStores) -> None:
        super().__init__(configuration, stack, state)
        self._configuration = configuration

    def snapshots(self, progress: ProgressReader | None) -> FollowedCluster:
        ledger, poll = self._stores.ledger_reader(), self._configuration.discovery_poll
        return self._closing(AdminSnapshots(self._kafka, ledger, poll, progress))

    def source(self) -> AdminClusterSource:
        return AdminClusterSource(self._kafka)

    def brokers(self) -> KafkaAdmin:
        return self._kafka

    def broker_hosts(self) -> BrokerHosts:
        return BrokerHosts(self._kafka)

    def quota_source(self) -> LedgeredQuotas:
        return self._ledgered(self.client_quotas())

    def client_quotas(self) -> AdminClientQuotas:
        return AdminClientQuotas(self._kafka)

    def writer(self) -> AdminConfigWriter:
        return AdminConfigWriter(self._kafka, self._stores.ledger, self._stores.session_timeout)

    def permissions(self) -> Mapping[str, Callable[[], PermissionSource]]:
        return {"Kafka's permissions": lambda: KafkaPermissions(self._kafka, writes_configs=True)}

"""The adapters of Kafka's cluster through ZooKeeper. The type to know is `ZooKeeperCluster`."""

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
from autothrottle.composition.state import ZooKeeperState
from autothrottle.ports.kafka import (
    BrokerRegistry,
    ConfigWriter,
    FetchSettingsSource,
    FollowedCluster,
    PermissionSource,
    QuotaSource,
    Reassigner,
)
from autothrottle.ports.services import ClusterSource, StorageMetricsSource
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.shutdown import Shutdown

if TYPE_CHECKING:
    from autothrottle.adapters.kafka_admin.sources import KafkaLogSizes


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

    def snapshots(self, progress: ProgressReader | None) -> FollowedCluster:
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

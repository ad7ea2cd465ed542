"""A cluster and a store of storage metrics in memory, for placements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta

from autothrottle.adapters.memory.state_store import Outages
from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics


class MemoryPlacementCluster(Outages):
    """A `ClusterSource` with a fixed cluster."""

    _outage = "the cluster does not answer; try again"

    def __init__(self, cluster: PlacementCluster) -> None:
        self.cluster = cluster

    def fetch_brokers(self, cordons_of: Collection[int], timeout: timedelta) -> Mapping[int, PlacementBroker]:
        self._raise_if_down()
        brokers = self.cluster.brokers.items()
        return {id: replace(broker, cordoned=broker.cordoned and id in cordons_of) for id, broker in brokers}

    def fetch_cluster(self, timeout: timedelta) -> PlacementCluster:
        self._raise_if_down()
        return self.cluster


class MemoryStorageMetrics(Outages):
    """A `StorageMetricsStore`."""

    _outage = "the store of metrics does not answer; try again"

    def __init__(self, metrics: StorageMetrics | None = None) -> None:
        self.metrics = metrics

    def fetch_storage_metrics(self, timeout: timedelta, broker_ids: Collection[int] | None = None) -> StorageMetrics:
        self._raise_if_down()
        if self.metrics is None:
            raise Missing("no sample is stored; run metricsfetcher")
        return self.metrics

    def write_storage_metrics(self, metrics: StorageMetrics, compress: bool, timeout: timedelta) -> None:
        self._raise_if_down()
        if not metrics.sizes or not metrics.storage_free or metrics.sampled is None:
            raise Invalid("the sample has no partition, no broker or no time; the stored sample stays")
        self.metrics = StorageMetrics(
            metrics.sizes, metrics.storage_free, metrics.sampled, has_exact_names=metrics.has_exact_names
        )

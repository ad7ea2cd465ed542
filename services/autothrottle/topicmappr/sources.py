"""Connects topicmappr and metricsfetcher to clusters and metrics: the only module here that names adapters.

Adapters are imported where they are used: offline commands need none of them.
"""

from __future__ import annotations

import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from autothrottle.core.capacity.forecasts import HistorySample
from autothrottle.core.errors import Invalid, Missing, Unavailable
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics
from autothrottle.core.placement.partition_map import PartitionReplicas, TopicPartitionKey
from autothrottle.ports.services import ClusterSource, StorageMetricsSource, StorageMetricsStore
from autothrottle.runtime.configuration import KafkaBackend
from autothrottle.topicmappr.cluster_file import parse_cluster
from autothrottle.topicmappr.options import (
    ClusterOptions,
    FetcherOptions,
    FetchSource,
    ForecastOptions,
    MetricsSource,
    PoolsOptions,
    TagOptions,
)
from autothrottle_client.files import read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from kazoo.client import KazooClient

    from autothrottle.adapters.datadog.host_tags import DatadogHostTags
    from autothrottle.adapters.kafka_admin.client import KafkaAdmin
    from autothrottle.adapters.kafka_admin.placement import KafkaCordons

READ_TIMEOUT = timedelta(seconds=120)
"""Timeout of reading a cluster, and of reading its metrics."""

DEFAULT_ZOOKEEPER = ClusterOptions().zk_addr

_CONNECT_TIMEOUT = timedelta(seconds=5)
_SESSION_TIMEOUT = timedelta(seconds=10)


def read_cluster(options: ClusterOptions, with_metrics: bool, max_age: timedelta | None = None) -> PlacementCluster:
    """Return the cluster of the options, from its file or live.

    Args:
        options: where the cluster is.
        with_metrics: whether to read partition sizes and free storage, too.
        max_age: largest age of the sample; None: any.

    Raises:
        Invalid: the file cannot be read, or the sample is too old.
        Unavailable, Missing, Incomplete: the cluster or its metrics cannot be read.
    """
    if options.cluster_file:
        return parse_cluster(_file_text(options.cluster_file))
    with ExitStack() as stack:
        connections = _Connections(options, stack)
        cluster = connections.cluster(options).fetch_cluster(READ_TIMEOUT).complete()
        if not with_metrics:
            return cluster
        metrics = connections.metrics(options).fetch_storage_metrics(READ_TIMEOUT)
    check_age(metrics, max_age, datetime.now(UTC))
    return cluster.with_storage(metrics)


def measured_cluster(
    options: ClusterOptions, sample: timedelta
) -> tuple[PlacementCluster, Mapping[TopicPartitionKey, float], float]:
    """Return a running cluster with its storage, the growth of each log, and the seconds between the two samples.

    Raises:
        Invalid: the options name a cluster file.
        Unavailable, Missing, Incomplete: the cluster cannot be read.
    """
    if options.cluster_file:
        raise Invalid("--cluster-file names an offline cluster, whose growth cannot be measured; leave it out")
    options = replace(options, metrics_source=MetricsSource.KAFKA)
    earlier, start = read_cluster(options, with_metrics=True), time.monotonic()
    time.sleep(sample.total_seconds())
    later, seconds = read_cluster(options, with_metrics=True), time.monotonic() - start
    return later, log_growth(earlier.partitions, later.partitions, seconds), seconds


def log_growth(
    earlier: Iterable[PartitionReplicas], later: Iterable[PartitionReplicas], seconds: float
) -> Mapping[TopicPartitionKey, float]:
    """Return the growth of each log in bytes/s; a log that became smaller has grown by 0.

    Partitions without two known sizes are absent.
    """
    sizes = {entry.key: entry.size for entry in earlier}
    return {
        entry.key: max(entry.size - size, 0) / seconds
        for entry in later
        if entry.size is not None and (size := sizes.get(entry.key)) is not None
    }


@contextmanager
def open_cordons(options: ClusterOptions) -> Iterator[KafkaCordons]:
    """Open the cordons of the cluster's brokers."""
    from autothrottle.adapters.kafka_admin.placement import KafkaCordons

    if options.cluster_file:
        raise Invalid("--cluster-file names an offline cluster, whose brokers cannot be cordoned; leave it out")
    with ExitStack() as stack:
        yield KafkaCordons(_Connections(options, stack).admin)


@contextmanager
def open_host_tags(options: TagOptions) -> Iterator[DatadogHostTags]:
    """Open Datadog's host tags.

    Raises:
        Invalid: a key is absent, or the address is wrong.
    """
    from autothrottle.adapters.datadog.client import DatadogSettings
    from autothrottle.adapters.datadog.host_tags import DatadogHostTags

    if not (options.api_key and options.app_key):
        raise Invalid("Datadog needs both keys. Fix: TOPICMAPPR_API_KEY and TOPICMAPPR_APP_KEY")
    settings = DatadogSettings(options.api_key, options.app_key, options.datadog_url)
    with closing(DatadogHostTags(settings)) as host_tags:
        yield host_tags


def check_age(metrics: StorageMetrics, max_age: timedelta | None, now: datetime) -> None:
    """Raise Invalid if a sample is older than allowed."""
    if metrics.sampled is None or max_age is None or (age := now - metrics.sampled) <= max_age:
        return
    minutes = int(age.total_seconds()) // 60
    shown = f"{minutes // 60}h{minutes % 60}m" if minutes >= 60 else f"{minutes}m"
    raise Invalid(
        f"Metrics metadata is older than allowed: {shown}. Fix: run metricsfetcher, raise --metrics-age, or give "
        "--metrics-source kafka"
    )


def fetch_metrics(options: FetcherOptions, progress: Callable[[str], None]) -> StorageMetrics:
    """Return a new sample from the source of metricsfetcher."""
    with ExitStack() as stack:
        if options.source is FetchSource.KAFKA:
            return _Connections(options, stack).log_dirs().fetch_storage_metrics(READ_TIMEOUT)
        if options.source is FetchSource.PROMETHEUS:
            return _from_prometheus(options, stack)
        from autothrottle.adapters.concurrency.announcements import announce_later
        from autothrottle.adapters.datadog.client import DatadogSettings
        from autothrottle.adapters.datadog.storage_metrics import DatadogStorageMetrics, StorageQueries

        settings = DatadogSettings(options.api_key, options.app_key, options.datadog_url)
        span = int(options.span.total_seconds())
        queries = StorageQueries(
            options.broker_storage_query, options.broker_id_tag, options.partition_size_query, span
        )
        source = stack.enter_context(closing(DatadogStorageMetrics(settings, queries, progress)))
        stack.callback(announce_later(f"Datadog at {options.datadog_url}").cancel)
        return source.fetch_storage_metrics(READ_TIMEOUT)


def _from_prometheus(options: FetcherOptions, stack: ExitStack) -> StorageMetrics:
    from autothrottle.adapters.concurrency.announcements import announce_later
    from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
    from autothrottle.adapters.prometheus import PrometheusSettings
    from autothrottle.adapters.prometheus.storage_metrics import PrometheusStorageMetrics
    from autothrottle.core.traffic.exporters import EXPORTERS

    if not options.prometheus_url:
        raise Invalid("the source prometheus has no server; give --prometheus-url")
    if options.prometheus_token_file and options.prometheus_user_file:
        raise Invalid("--prometheus-token-file and --prometheus-user-file are both given; give one")
    settings = PrometheusSettings(
        url=options.prometheus_url,
        exporter=EXPORTERS["node_exporter"],
        ca_file=options.prometheus_ca,
        token_file=options.prometheus_token_file,
        user_file=options.prometheus_user_file,
        headers_file=options.prometheus_headers_file,
        broker_label=options.broker_label,
        broker_map=options.broker_map,
    )
    has_labels = options.broker_label or options.broker_map
    hosts = None if has_labels else BrokerHosts(_Connections(options, stack).admin)
    queries = options.prometheus_storage_query, options.prometheus_size_query
    source = stack.enter_context(closing(PrometheusStorageMetrics(settings, *queries, hosts)))
    stack.callback(announce_later(f"Prometheus at {options.prometheus_url}").cancel)
    return source.fetch_storage_metrics(READ_TIMEOUT)


def stored_metrics(options: FetcherOptions) -> StorageMetrics | None:
    """Return the stored sample; None if nothing is stored or it cannot be parsed."""
    with ExitStack() as stack:
        try:
            return _Connections(options, stack).store(options.zk_prefix).fetch_storage_metrics(READ_TIMEOUT)
        except (Missing, Invalid):
            return None


def write_metrics(options: FetcherOptions, metrics: StorageMetrics) -> None:
    """Store a sample where topicmappr finds it."""
    with ExitStack() as stack:
        store = _Connections(options, stack).store(options.zk_prefix)
        store.write_storage_metrics(metrics, options.compression, READ_TIMEOUT)


def append_history(options: FetcherOptions, metrics: StorageMetrics) -> Path:
    """Append a sample to the history, with the growth of logs after it if that is to be measured; return its file."""
    from autothrottle.adapters.storage_history import append_sample

    rates: dict[str, float] = defaultdict(float)
    if options.rate_sample:
        earlier, start = fetch_metrics(options, print), time.monotonic()
        time.sleep(options.rate_sample.total_seconds())
        later, seconds = fetch_metrics(options, print), time.monotonic() - start
        for key, size in later.sizes.items():
            rates[key[0]] += max(size - earlier.sizes.get(key, size), 0) / seconds
    return append_sample(options.history, options.cluster_name, metrics, rates)


def read_history(options: ForecastOptions | PoolsOptions) -> Iterator[HistorySample]:
    """Return the samples of the history, the oldest first."""
    from autothrottle.adapters.storage_history import read_samples

    if not options.history:
        raise Invalid("history is not given. Fix: --history=DIR, which metricsfetcher --history=DIR fills")
    return read_samples(options.history, options.cluster_name)


class _Connections:
    """Opens each connection at its first use; the stack closes them."""

    def __init__(self, options: ClusterOptions | FetcherOptions, stack: ExitStack) -> None:
        self._options, self._stack = options, stack

    def cluster(self, options: ClusterOptions) -> ClusterSource:
        if options.kafka_backend is KafkaBackend.ADMIN:
            from autothrottle.adapters.kafka_admin.placement import AdminClusterSource

            return AdminClusterSource(self.admin)
        from autothrottle.adapters.kafka_zookeeper.placement import ZooKeeperClusterSource
        from autothrottle.adapters.zookeeper.paths import KafkaPaths

        return ZooKeeperClusterSource(self.session, KafkaPaths(options.zk_prefix))

    def metrics(self, options: ClusterOptions) -> StorageMetricsSource:
        if options.metrics_source is MetricsSource.KAFKA:
            return self.log_dirs()
        return self.store(options.zk_metrics_prefix)

    def log_dirs(self) -> StorageMetricsSource:
        from autothrottle.adapters.kafka_admin.placement import LogDirMetrics

        return LogDirMetrics(self.admin)

    def store(self, prefix: str) -> StorageMetricsStore:
        from autothrottle.adapters.zookeeper_state.storage_metrics import ZooKeeperStorageMetrics

        return ZooKeeperStorageMetrics(self.session, prefix)

    @cached_property
    def admin(self) -> KafkaAdmin:
        from autothrottle.adapters.kafka_admin.client import KafkaAdmin
        from autothrottle.adapters.kafka_admin.client_properties import read_client_properties
        from autothrottle.adapters.kafka_admin.login import KafkaLogin
        from autothrottle.adapters.kafka_admin.values import KafkaSettings

        path = self._options.kafka_client_config
        login = KafkaLogin(read_client_properties(path) if path else None)
        for warning in login.warnings:
            print(f"{path}: {warning}", file=sys.stderr)
        settings = KafkaSettings(self._options.bootstrap_servers, login=login)
        return self._stack.enter_context(closing(KafkaAdmin(settings)))

    @cached_property
    def session(self) -> KazooClient:
        from autothrottle.adapters.zookeeper.security import SecurityFiles, ZooKeeperSecurity
        from autothrottle.adapters.zookeeper.session import connect, disconnect

        options = self._options
        _require_default_server(options.zk_addr)
        files = SecurityFiles(
            options.zk_tls_ca, options.zk_tls_cert, options.zk_tls_key, options.zk_digest_file, options.zk_sasl_file
        )
        security = ZooKeeperSecurity(files)
        session = connect(",".join(options.zk_addr), _SESSION_TIMEOUT, _CONNECT_TIMEOUT, security=security)
        self._stack.callback(disconnect, session)
        return session


def _require_default_server(servers: Sequence[str]) -> None:
    """Check that something listens at the default address of ZooKeeper, which a cluster on Kafka alone does not have.

    Raises:
        Unavailable: nothing does, and the address is the default.
    """
    if tuple(servers) != DEFAULT_ZOOKEEPER:
        return
    host, _, port = servers[0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT.total_seconds()).close()
    except OSError as error:
        raise Unavailable(
            f"no ZooKeeper listens at {servers[0]}, the default of --zk-addr ({error.strerror or error}). Fix: on "
            "Kafka alone --bootstrap-servers=kafka1:9092, without --kafka-addr, and the sizes come from the brokers; "
            "otherwise --zk-addr=zk1:2181"
        ) from None


def _file_text(path: str) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise Invalid(
            f"cluster-file {path!r} cannot be read: {error.strerror}; name a file of `topicmappr export`"
        ) from None
    except ValueError as error:
        raise Invalid(
            f"cluster-file {path!r} is not a text file: {error}; name a file of `topicmappr export`"
        ) from None

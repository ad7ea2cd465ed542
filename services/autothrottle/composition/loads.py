"""The metrics sources: what each is built from. The type to know is `MetricsSources`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.adapters.kafka_common.log_loads import LogLoads
from autothrottle.composition.zookeeper_cluster import ZooKeeperCluster
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.traffic.broker_matching import parse_broker_label
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.loads import MAX_LINK_RATE, Capacity
from autothrottle.ports.telemetry import LoadSource, NoLoads
from autothrottle.runtime.configuration import METRICS_SOURCE_GROUP, OPTIONS, Configuration
from autothrottle.runtime.shutdown import Shutdown

if TYPE_CHECKING:
    from autothrottle.adapters.datadog import DatadogMetrics
    from autothrottle.composition.admin_cluster import AdminCluster

log = logging.getLogger(__name__)

_CHECK_KEY_TIMEOUT = timedelta(seconds=5)

_CAPACITY = "the capacity of links"


class MetricsSources:
    """Builds the configured metrics source, and Datadog. Its stack closes them."""

    def __init__(
        self, configuration: Configuration, stack: Shutdown, cluster: Callable[[], ZooKeeperCluster | AdminCluster]
    ) -> None:
        self._configuration, self._stack, self._cluster = configuration, stack, cluster
        self._credentials: list[Callable[[], Sequence[CredentialFiles]]] = []

    @property
    def credentials(self) -> Iterator[CredentialFiles]:
        """The files of the sources that are built."""
        for source in self._credentials:
            yield from source()

    def load_source(self) -> LoadSource:
        sources: Mapping[str, Callable[[], LoadSource]] = {
            "datadog": self._checked_datadog,
            "kafka": self._log_loads,
            "none": NoLoads,
            "prometheus": self._prometheus,
            "scrape": self._scraped,
        }
        name = self._configuration.metrics_source
        _log_limits(self._configuration)
        return sources[name]() if name in sources else self._installed_source(name)

    @cached_property
    def datadog(self) -> DatadogMetrics:
        from autothrottle.adapters.datadog import DatadogMetrics, DatadogSettings, read_key_files

        configuration = self._configuration
        paths = (configuration.api_key_file, configuration.app_key_file)
        if key_files := read_key_files((configuration.api_key, configuration.app_key), paths):
            option = "api-key-file" if configuration.api_key_file else "app-key-file"
            self._credentials.append(lambda: (CredentialFiles(option, key_files),))
        settings = DatadogSettings(
            url=configuration.datadog_url,
            api_key=configuration.api_key,
            app_key=configuration.app_key,
            key_files=key_files,
            net_tx_query=configuration.net_tx_query,
            net_rx_query=configuration.net_rx_query,
            net_devices=configuration.net_devices,
            broker_id_tag=configuration.broker_id_tag,
            instance_type_tag=configuration.instance_type_tag,
            capacity_tag=configuration.capacity_tag or None,
            metrics_window=configuration.metrics_window,
            metrics_delay=configuration.metrics_delay,
            event_tags=configuration.dd_event_tags,
        )
        return self._stack.cancellable(DatadogMetrics(settings, configuration.capacities))

    def _checked_datadog(self) -> LoadSource:
        """Check the API key, if Datadog answers: autothrottle also starts while Datadog is down.

        Raises:
            Invalid: Datadog rejects the key.
        """
        try:
            self.datadog.check_api_key(_CHECK_KEY_TIMEOUT)
        except Unavailable as error:
            log.warning("The API key cannot be checked, starting without: %s", error)
        return self.datadog

    def log_growth(self) -> Callable[[], LoadSource] | None:
        """Return what builds the loads from the growth of the logs, without consumers, to compare the source with.

        None: the brokers report no log sizes, or the growth of the logs is the source.
        """
        log_sizes = self._cluster().log_sizes
        if log_sizes is None or self._configuration.metrics_source == "kafka":
            return None
        window = self._configuration.metrics_window
        links = CapacityLimits(default=Capacity(MAX_LINK_RATE, MAX_LINK_RATE))
        return lambda: self._stack.closing(LogLoads(log_sizes, links, 0.0, window))

    def _log_loads(self) -> LoadSource:
        log_sizes = self._cluster().log_sizes
        if log_sizes is None:
            raise Invalid("metrics-source kafka needs bootstrap-servers; give the address of a broker")
        configuration = self._configuration
        limits, fanout, window = configuration.capacities, configuration.consumer_fanout, configuration.metrics_window
        return self._stack.closing(LogLoads(log_sizes, limits, fanout, window))

    def _prometheus(self) -> LoadSource:
        from autothrottle.adapters.prometheus import PrometheusMetrics, PrometheusSettings

        configuration, exporter = self._configuration, self._configuration.exporter
        settings = PrometheusSettings(
            url=configuration.prometheus_url,
            exporter=exporter,
            tx_query=configuration.prometheus_tx_query,
            rx_query=configuration.prometheus_rx_query,
            selector=configuration.prometheus_selector,
            ca_file=configuration.prometheus_ca,
            token_file=configuration.prometheus_token_file,
            user_file=configuration.prometheus_user_file,
            headers_file=configuration.prometheus_headers_file,
            series_kind=configuration.broker_series_kind,
            window=configuration.metrics_window,
            delay=configuration.metrics_delay,
            broker_label=configuration.broker_label or parse_broker_label(exporter.broker_label, "broker-label"),
            broker_map=configuration.broker_map,
        )
        hosts = self._cluster().broker_hosts()
        metrics = self._stack.cancellable(PrometheusMetrics(settings, configuration.capacities, hosts))
        self._credentials.append(lambda: metrics.credentials)
        return metrics

    def _scraped(self) -> LoadSource:
        from autothrottle.adapters.scrape import ScrapedMetrics, ScrapeSettings

        configuration, exporter = self._configuration, self._configuration.exporter
        settings = ScrapeSettings(
            url=configuration.scrape_url or exporter.url,
            exporter=exporter,
            interval=configuration.scrape_interval,
            window=configuration.metrics_window,
            broker_map=configuration.broker_map,
            ca_file=configuration.scrape_ca,
            token_file=configuration.scrape_token_file,
            user_file=configuration.scrape_user_file,
        )
        hosts = self._cluster().broker_hosts()
        metrics = self._stack.cancellable(ScrapedMetrics(settings, configuration.capacities, hosts))
        self._credentials.append(lambda: metrics.credentials)
        return metrics

    def _installed_source(self, name: str) -> LoadSource:
        """Build the source of an entry point; the stack closes it if it can be closed."""
        entry_point = entry_points(group=METRICS_SOURCE_GROUP)[name]
        try:
            source: LoadSource = entry_point.load()(self._configuration)
        except (ImportError, AttributeError) as error:
            raise Invalid(
                f"metrics-source {name} cannot be loaded from {entry_point.value} ({error}); install it again"
            ) from None
        if close := getattr(source, "close", None):
            self._stack.callback(close)
        return source


def _log_limits(configuration: Configuration) -> None:
    """Log which source is used, and what it does not see."""
    source, fanout = configuration.metrics_source, configuration.consumer_fanout
    unseen = _unseen(configuration)
    text = f"Metrics source: {source}"
    if source == "kafka":
        text += f". It computes loads from the growth of logs and --consumer-fanout {fanout:g}"
    if unseen:
        text += f". It does not see {', '.join(unseen)}"
    if _CAPACITY in unseen and not _has_capacities(configuration):
        example = OPTIONS["capacity"].example
        log.warning("%s. No capacity is given, so no broker has a load. Fix: --capacity=%s, for example", text, example)
    else:
        log.info("%s", text)


def _unseen(configuration: Configuration) -> Sequence[str]:
    """Return what the metrics source does not see."""
    exporter = configuration.exporter
    jmx = () if exporter.device_label else ("other traffic of the hosts", "protocol headers")
    of_exporter = (*jmx, *(() if exporter.speed else (_CAPACITY,)))
    window = configuration.metrics_window.total_seconds()
    unseen: Mapping[str, Sequence[str]] = {
        "datadog": ("loads of the last minute", f"hosts without the tag {configuration.broker_id_tag}", _CAPACITY),
        "kafka": (
            "consumers that read old data or from followers",
            "other traffic of the hosts",
            "bytes that compaction removes",
            _CAPACITY,
        ),
        "none": ("any load",),
        "prometheus": ("changes since the last scrape", *of_exporter),
        "scrape": (f"peaks shorter than {window:g} s (--metrics-window)", *of_exporter),
    }
    return unseen.get(configuration.metrics_source, ())


def _has_capacities(configuration: Configuration) -> bool:
    limits = configuration.capacities
    of_hosts = configuration.metrics_source == "datadog" and (configuration.capacity_tag or limits.by_instance_type)
    return bool(of_hosts or limits.by_broker or limits.default)

"""Renders samples as the text that Prometheus scrapes. The type to know is `PrometheusText`."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from autothrottle.core.exported_metrics import SampleSource, series_of


class PrometheusText(Collector):
    """Renders the current samples of a source, with the label `cluster`."""

    def __init__(self, source: SampleSource, cluster: str) -> None:
        self._source, self._cluster = source, cluster

    def render(self) -> str:
        """Return the samples in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering collects no samples."""
        return ()

    def collect(self) -> Iterable[Metric]:
        for metric, series in series_of(self._source, self._cluster).items():
            family = Metric(metric.name.removesuffix("_total"), metric.help, metric.kind)
            for labels, value in series:
                family.add_sample(metric.name, labels, value)
            yield family

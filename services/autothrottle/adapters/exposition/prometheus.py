"""Renders samples as the text that Prometheus scrapes. The type to know is `PrometheusText`."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from autothrottle.core.exported_metrics import CLUSTER, ExportedMetric, SampleSource


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
        families: dict[ExportedMetric, Metric] = {}
        for metric, value, labels in self._source():
            if metric not in families:
                families[metric] = Metric(metric.name.removesuffix("_total"), metric.help, metric.kind.value)
            named = {CLUSTER: self._cluster, **dict(zip(metric.labels, labels, strict=True))}
            families[metric].add_sample(metric.name, named, float(value))
        return families.values()

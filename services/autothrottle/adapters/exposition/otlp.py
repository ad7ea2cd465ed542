"""Sends samples to an OpenTelemetry collector. The type to know is `OtlpMetrics`.

The SDK's instruments cannot do this. They keep at most 2,000 sets of labels each, and count brokers that have left the
reassignments among them. 1,000 brokers with two roles need that many at once.
"""

from __future__ import annotations

import os
import threading
import time

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.environment_variables import OTEL_METRIC_EXPORT_INTERVAL
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from autothrottle import __version__
from autothrottle.adapters.tracing.exports import OutageLog, RenewedExporter, restore_library_log, silence_library
from autothrottle.core.exported_metrics import ExportedMetric, SampleSource, series_of

_MAX_POINTS = 10_000
"""Points in one request: about 1.5 MB. A collector accepts 4 MB."""

_CLOSE_SECONDS = 0.3


class OtlpMetrics:
    """Exports the current samples every minute, or every OTEL_METRIC_EXPORT_INTERVAL milliseconds, until `close`."""

    def __init__(self, service_name: str, source: SampleSource, cluster: str) -> None:
        """Read the OTEL_* variables and start the thread; the first export connects.

        Args:
            service_name: the service name, unless the variables set one.
            source: the samples.
            cluster: value of the label `cluster`.

        Raises:
            ValueError: a variable has no usable value.
            Invalid: a file that a variable names cannot be read, or has other content.
        """
        self._interval = float(os.environ.get(OTEL_METRIC_EXPORT_INTERVAL) or 60_000) / 1000
        if not 0 < self._interval <= threading.TIMEOUT_MAX:
            raise ValueError(
                f"{OTEL_METRIC_EXPORT_INTERVAL} is {self._interval * 1000:g} ms; give more than 0 and at most "
                f"{threading.TIMEOUT_MAX * 1000:g}"
            )
        self._source, self._cluster = source, cluster
        self._exporter = RenewedExporter(
            "METRICS",
            lambda credentials: OTLPMetricExporter(credentials=credentials, max_export_batch_size=_MAX_POINTS),
        )
        self.credentials = self._exporter.credentials
        attributes = dict(OTELResourceDetector().detect().attributes)
        self._resource = Resource.create({SERVICE_NAME: service_name, **attributes})
        self._log = OutageLog("Metrics", "are lost", "OTEL_METRICS_EXPORTER")
        self._began = time.time_ns()
        self._closed = threading.Event()
        silence_library()
        self._thread = threading.Thread(target=self._run, name="otlp-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and abort an export in progress."""
        self._closed.set()
        self._exporter.shutdown()
        self._thread.join(_CLOSE_SECONDS)
        restore_library_log()

    def _run(self) -> None:
        while not self._closed.wait(self._interval):
            self._log.succeeds(lambda: self._exporter.exports(self._data()))

    def _data(self) -> MetricsData:
        now = time.time_ns()
        metrics = [
            _metric(metric, [NumberDataPoint(labels, self._began, now, value) for labels, value in series])
            for metric, series in series_of(self._source, self._cluster).items()
        ]
        scope = ScopeMetrics(InstrumentationScope("autothrottle", __version__), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


def _metric(metric: ExportedMetric, points: list[NumberDataPoint]) -> Metric:
    if metric.kind == "counter":
        data: Sum | Gauge = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(points)
    return Metric(metric.name, metric.help, metric.unit, data)

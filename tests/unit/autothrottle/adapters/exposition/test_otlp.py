"""Metrics over OTLP, received by a stub of a collector."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric, NumberDataPoint

from autothrottle.core.exported_metrics import CYCLES, THROTTLE, MetricSample
from autothrottle.runtime.tracing import export_metrics
from tests.builders import eventually

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class MetricsCollector(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps the metrics of the last request by name."""

    def __init__(self) -> None:
        self.service = ""
        self.metrics: dict[str, Metric] = {}
        self._server = grpc.server(ThreadPoolExecutor(2))
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(
        self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        (process,) = request.resource_metrics
        self.service = next(a.value.string_value for a in process.resource.attributes if a.key == "service.name")
        self.metrics = {metric.name: metric for scope in process.scope_metrics for metric in scope.metrics}
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def stop(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture(autouse=True)
def _no_variables_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [v for v in os.environ if v.startswith("OTEL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsCollector]:
    made = MetricsCollector()
    monkeypatch.setenv(ENDPOINT, made.endpoint)
    yield made
    made.stop()


@pytest.fixture
def exporting() -> Iterator[Callable[[list[MetricSample]], None]]:
    """Exports samples until the end of the test."""
    ends = []
    yield lambda samples: ends.append(export_metrics("autothrottle-planner", lambda: list(samples), "main").close)
    for end in ends:
        end()


def labels(point: NumberDataPoint) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


def test_a_collector_receives_gauges_counters_units_and_labels(
    collector: MetricsCollector, exporting: Callable[[list[MetricSample]], None]
) -> None:
    exporting([THROTTLE.sample(80e6, 1001, "leader", "orders"), CYCLES.sample(7, "ok")])
    eventually(lambda: collector.metrics)
    throttle, cycles = collector.metrics[THROTTLE.name], collector.metrics[CYCLES.name]
    assert (collector.service, throttle.unit) == ("autothrottle-planner", "By/s")
    side = {"cluster": "main", "broker_id": "1001", "role": "leader", "pool": "orders"}
    assert labels(throttle.gauge.data_points[0]) == side
    assert throttle.gauge.data_points[0].as_double == 80e6
    assert cycles.sum.is_monotonic and cycles.sum.data_points[0].as_double == 7
    assert cycles.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def test_brokers_beyond_the_limit_of_the_sdk_are_exported_and_those_that_leave_are_not(
    collector: MetricsCollector, exporting: Callable[[list[MetricSample]], None]
) -> None:
    """The SDK's instruments would keep 2,000 sets of labels, also those of brokers that have left."""
    samples = [THROTTLE.sample(1, broker_id, "leader", "") for broker_id in range(2500)]
    exporting(samples)
    eventually(lambda: collector.metrics and len(collector.metrics[THROTTLE.name].gauge.data_points) == 2500)
    del samples[1:]
    eventually(lambda: len(collector.metrics[THROTTLE.name].gauge.data_points) == 1)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {ENDPOINT: "http://127.0.0.1:4317", "OTEL_METRICS_EXPORTER": "none"},
        {ENDPOINT: "http://127.0.0.1:4317", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_metrics_are_not_exported_by_default_or_if_disabled(
    variables: dict[str, str],
    exporting: Callable[[list[MetricSample]], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    exporting([])
    assert not [thread for thread in threading.enumerate() if thread.name == "otlp-metrics"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("OTEL_METRICS_EXPORTER", "prometheus", "OTEL_METRICS_EXPORTER=prometheus is not supported; use otlp, or none"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "soon", "soon"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1", "OTEL_METRIC_EXPORT_INTERVAL is -1 ms; give more than 0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "nan", "give more than 0"),
    ],
)
def test_unsupported_settings_cause_a_warning_and_turn_the_export_off(
    variable: str,
    text: str,
    words: str,
    exporting: Callable[[list[MetricSample]], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4317")
    monkeypatch.setenv(variable, text)
    exporting([])
    (record,) = caplog.records
    assert record.getMessage().startswith("The export of metrics over OTLP is off: ") and words in record.getMessage()


def test_an_outage_of_the_collector_is_one_warning_and_delays_no_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{silent.getsockname()[1]}")
        end = export_metrics("autothrottle-planner", lambda: [CYCLES.sample(1, "ok")], "main").close
        eventually(lambda: caplog.records)
        began = time.monotonic()
        end()
        assert time.monotonic() - began < 8.0  # 0.3 s plus the noise of a busy machine; an export waits longer
    (record,) = caplog.records
    assert "Metrics cannot be exported and are lost" in record.getMessage()
    assert "OTEL_METRICS_EXPORTER=none" in record.getMessage()

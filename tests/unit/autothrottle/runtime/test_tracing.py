"""Traces follow OpenTelemetry's variables and never delay a cycle."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import grpc
import pytest

from autothrottle.adapters.grpc import DiscoveryClient, MetricsClient
from autothrottle.adapters.memory import MemoryCluster, MemoryElectorate
from autothrottle.core.errors import Unavailable
from autothrottle.core.traffic.loads import Loads
from autothrottle.discovery import DiscoveryServicer
from autothrottle.metrics import MetricsServicer
from autothrottle.ports.telemetry import UNTRACED, Event
from autothrottle.runtime.logs import configure_logs, flush_logs
from autothrottle.runtime.server import ServiceServer
from autothrottle.runtime.tracing import Tracing, configure_tracing
from autothrottle.v1 import discovery_pb2, discovery_pb2_grpc, metrics_pb2, metrics_pb2_grpc
from tests.builders import eventually
from tests.trace_collector import CollectedSpan, Collector, path
from tests.unit.autothrottle.planner.bench import Bench

TIMEOUT = timedelta(seconds=60)
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
WORKER = "OtelBatchSpanRecordProcessor"


@pytest.fixture(autouse=True)
def _no_variables_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [v for v in os.environ if v.startswith("OTEL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        monkeypatch.setenv(ENDPOINT, made.endpoint)
        yield made


@pytest.fixture
def silence() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class LogText(io.StringIO):
    """A stream with all lines that were logged so far."""

    def getvalue(self) -> str:
        flush_logs()
        return super().getvalue()


@pytest.fixture
def lines() -> Iterator[Callable[[str], io.StringIO]]:
    """Configure logs to write to memory; restore the previous configuration afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("autothrottle")
    before = (root.level, ours.level, list(root.handlers))

    def configure(format: str) -> io.StringIO:
        stream = LogText()
        configure_logs(format, "debug", stream)
        return stream

    yield configure
    root.setLevel(before[0])
    ours.setLevel(before[1])
    root.handlers[:] = before[2]


@pytest.fixture
def json_log(lines: Callable[[str], io.StringIO]) -> io.StringIO:
    """The log as JSON lines."""
    return lines("json")


@pytest.fixture
def tracing(collector: Collector, json_log: io.StringIO) -> Iterator[Tracing]:
    made = configure_tracing("autothrottle-test")
    yield made
    made.close()


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == WORKER]


def only(collector: Collector, count: int) -> list[CollectedSpan]:
    """Wait until the only trace has this many spans; return it."""
    eventually(lambda: len(collector.spans) >= count)
    (trace,) = collector.traces()
    assert len(trace) == count
    return trace


class LoggingMetrics:
    """Metrics that log a line, return no loads and refuse every event."""

    def fetch_loads(self, timeout: timedelta) -> Loads:
        logging.getLogger("autothrottle.test").info("fetching loads")
        return Loads()

    def post_event(self, event: Event, timeout: timedelta) -> None:
        raise Unavailable(f"cannot post {event.title}")


# Off.


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {ENDPOINT: ""},
        {ENDPOINT: "http://127.0.0.1:4317", "OTEL_TRACES_EXPORTER": "none"},
        {ENDPOINT: "http://127.0.0.1:4317", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_tracing_is_off_by_default_or_if_disabled(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracing = configure_tracing("autothrottle-test")
    assert tracing.tracer is UNTRACED
    assert not tracing.client_interceptors and not tracing.server_interceptors
    assert not workers() and not caplog.records
    tracing.close()


def test_tracing_that_is_off_imports_nothing_and_starts_no_thread() -> None:
    program = """
import sys, threading
import autothrottle.__main__
from autothrottle.runtime.tracing import configure_tracing
tracing = configure_tracing("autothrottle-test")
with tracing.tracer.span("cycle") as span:
    assert not span.recording
tracing.close()
print([name for name in sys.modules if name.startswith("opentelemetry")], threading.active_count())
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert printed.stdout == "[] 1\n"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is not supported; use otlp, or none"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "the protocol http/protobuf is not supported; use grpc"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "soon"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://u:s3cret@c:4317"},
            "TRACES_ENDPOINT contains a user. Fix",
        ),
    ],
)
def test_unsupported_settings_cause_a_warning_and_turn_tracing_off(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {ENDPOINT: "http://127.0.0.1:4317", **variables}.items():
        monkeypatch.setenv(name, value)
    assert configure_tracing("autothrottle-test").tracer is UNTRACED
    (record,) = caplog.records
    assert record.getMessage().startswith("Tracing is off: ") and words in record.getMessage()
    assert not workers()


# On.


def test_spans_are_exported_with_attributes_events_and_failures(collector: Collector, tracing: Tracing) -> None:
    with tracing.tracer.span("cycle") as cycle:
        cycle.describe({"term": 3, "reason": "interval", "scheduled": True})
        with pytest.raises(Unavailable), tracing.tracer.span("discovery"):
            raise Unavailable("no snapshot")
        with tracing.tracer.span("apply") as apply:
            apply.child("change", {"resource": "brokers/1001", "keys": ["a", "b"]})
            apply.event("change", {"resource": "brokers/1002"})
        cycle.fail("it did not work")
    trace = only(collector, 4)
    assert {"/".join(path(span, trace)) for span in trace} == {
        "cycle",
        "cycle/discovery",
        "cycle/apply",
        "cycle/apply/change",
    }
    named = {span.name: span for span in trace}
    assert named["cycle"].attributes == {"term": 3, "reason": "interval", "scheduled": True}
    assert named["cycle"].failed and named["cycle"].failure == "it did not work"
    assert named["discovery"].failed and named["discovery"].failure == "Unavailable: no snapshot"
    assert named["change"].attributes == {"resource": "brokers/1001", "keys": ["a", "b"]}
    assert named["change"].start == named["apply"].start
    assert named["apply"].events == [("change", {"resource": "brokers/1002"})] and not named["apply"].failed
    assert {span.service for span in trace} == {"autothrottle-test"}


def test_a_span_holds_more_than_a_thousand_events(collector: Collector, tracing: Tracing) -> None:
    """The SDK keeps 128 events by default. Most changes of a large cluster were lost."""
    with tracing.tracer.span("apply") as apply:
        for number in range(1_200):
            apply.event("change", {"resource": f"brokers/{number}"})
    (span,) = only(collector, 1)
    assert len(span.events) == 1_200


@pytest.mark.parametrize(
    "variables", [{"OTEL_SERVICE_NAME": "other"}, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=other,team=a"}]
)
def test_the_operators_service_name_wins(
    variables: dict[str, str], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracing = configure_tracing("autothrottle-test")
    with tracing.tracer.span("cycle"):
        pass
    tracing.close()
    (span,) = collector.spans
    assert span.service == "other"


def test_close_exports_the_remaining_spans(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    tracing = configure_tracing("autothrottle-test")
    with tracing.tracer.span("cycle"):
        pass
    assert not collector.spans
    tracing.close()
    assert len(collector.spans) == 1 and not workers()


def test_json_lines_contain_the_trace_id_of_their_thread(
    collector: Collector, json_log: io.StringIO, tracing: Tracing
) -> None:
    log = logging.getLogger("autothrottle.test")
    with tracing.tracer.span("cycle"):
        log.info("inside")
    log.info("outside")
    (span,) = only(collector, 1)
    inside, outside = [json.loads(line) for line in json_log.getvalue().splitlines()]
    assert inside["trace_id"] == span.trace_id and re.fullmatch("[0-9a-f]{32}", span.trace_id)
    assert "trace_id" not in outside


def test_text_lines_contain_no_trace_id(collector: Collector, lines: Callable[[str], io.StringIO]) -> None:
    text_log = lines("text")
    tracing = configure_tracing("autothrottle-test")
    with tracing.tracer.span("cycle"):
        logging.getLogger("autothrottle.test").info("Autothrottle Running")
    tracing.close()
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d Autothrottle Running\n", text_log.getvalue())


# Over gRPC.


@pytest.fixture
def metrics(tracing: Tracing) -> Iterator[ServiceServer]:
    add = metrics_pb2_grpc.add_MetricsServiceServicer_to_server
    service = (add, MetricsServicer(LoggingMetrics(), LoggingMetrics()), "autothrottle.v1.MetricsService")
    with ServiceServer("metrics", [service], interceptors=tracing.server_interceptors) as server:
        yield server


@pytest.fixture
def discovery(tracing: Tracing) -> Iterator[tuple[ServiceServer, MemoryCluster]]:
    cluster = MemoryCluster(MemoryElectorate(), range(1001, 1005))
    add = discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server
    service = (add, DiscoveryServicer(cluster, cluster), "autothrottle.v1.DiscoveryService")
    with ServiceServer("discovery", [service], interceptors=tracing.server_interceptors) as server:
        yield server, cluster


def test_a_unary_call_continues_the_trace_in_the_servers_thread(
    collector: Collector, json_log: io.StringIO, tracing: Tracing, metrics: ServiceServer
) -> None:
    """A thread of the server's pool logs the line; it does not share the caller's context."""
    client = MetricsClient([metrics.address], tracing.client_interceptors)
    with tracing.tracer.span("cycle"):
        client.fetch_loads(TIMEOUT)
    client.close()
    trace = only(collector, 2)
    assert path(trace[1], trace) == ["cycle", "autothrottle.v1.MetricsService/GetLoads"]
    assert trace[1].attributes == {
        "rpc.system": "grpc",
        "rpc.service": "autothrottle.v1.MetricsService",
        "rpc.method": "GetLoads",
    }
    (line,) = [json.loads(line) for line in json_log.getvalue().splitlines()]
    assert (line["message"], line["trace_id"]) == ("fetching loads", trace[1].trace_id)


def test_a_chunked_response_continues_the_trace(
    collector: Collector, tracing: Tracing, discovery: tuple[ServiceServer, MemoryCluster]
) -> None:
    server, _ = discovery
    client = DiscoveryClient([server.address], tracing.client_interceptors)
    with tracing.tracer.span("cycle"):
        assert len(client.fetch_snapshot(timeout=TIMEOUT).brokers) == 4
    client.close()
    trace = only(collector, 2)
    assert path(trace[1], trace) == ["cycle", "autothrottle.v1.DiscoveryService/GetSnapshot"]
    assert not trace[1].failed


def test_an_error_of_the_server_is_recorded_on_its_span_and_reaches_the_caller_unchanged(
    collector: Collector,
    tracing: Tracing,
    metrics: ServiceServer,
    discovery: tuple[ServiceServer, MemoryCluster],
) -> None:
    server, cluster = discovery
    cluster.unavailable(True)
    events = MetricsClient([metrics.address], tracing.client_interceptors)
    snapshots = DiscoveryClient([server.address], tracing.client_interceptors)
    with tracing.tracer.span("cycle"):
        with pytest.raises(Unavailable, match="cannot post the event"):
            events.post_event(Event("the event", ""), TIMEOUT)
        with pytest.raises(Unavailable):
            snapshots.fetch_snapshot(timeout=TIMEOUT)
    events.close()
    snapshots.close()
    trace = only(collector, 3)
    answered = {span.name.rpartition("/")[2]: span for span in trace[1:]}
    assert answered["PostEvent"].failed and answered["PostEvent"].failure == "cannot post the event"
    assert answered["GetSnapshot"].failed and answered["GetSnapshot"].failure


def test_a_dead_replica_is_skipped_within_the_same_trace(
    collector: Collector, tracing: Tracing, discovery: tuple[ServiceServer, MemoryCluster], metrics: ServiceServer
) -> None:
    gone = "127.0.0.1:1"
    events = MetricsClient([gone, metrics.address], tracing.client_interceptors)
    snapshots = DiscoveryClient([gone, discovery[0].address], tracing.client_interceptors)
    with tracing.tracer.span("cycle"):
        events.fetch_loads(TIMEOUT)
        snapshots.fetch_snapshot(timeout=TIMEOUT)
    events.close()
    snapshots.close()
    with tracing.tracer.span("cycle"), pytest.raises(Unavailable, match="closed"):
        snapshots.fetch_snapshot(timeout=TIMEOUT)
    eventually(lambda: len(collector.spans) == 4)
    first, second = sorted(collector.traces(), key=len, reverse=True)
    assert [span.name.rpartition("/")[2] for span in first] == ["cycle", "GetLoads", "GetSnapshot"]
    assert [span.failed for span in first] == [False] * 3 and [span.name for span in second] == ["cycle"]


def test_a_stream_cancelled_by_its_caller_ends_its_span(
    collector: Collector, tracing: Tracing, discovery: tuple[ServiceServer, MemoryCluster]
) -> None:
    server, _ = discovery
    with grpc.insecure_channel(server.address) as plain, tracing.tracer.span("cycle"):
        channel = grpc.intercept_channel(plain, *tracing.client_interceptors)
        call = discovery_pb2_grpc.DiscoveryServiceStub(channel).WatchSnapshots(discovery_pb2.WatchSnapshotsRequest())
        next(call)
        call.cancel()
    trace = only(collector, 2)
    assert [span.name for span in trace] == ["cycle", "autothrottle.v1.DiscoveryService/WatchSnapshots"]


def test_calls_outside_a_trace_create_no_span(
    collector: Collector, tracing: Tracing, discovery: tuple[ServiceServer, MemoryCluster]
) -> None:
    server, _ = discovery
    client = DiscoveryClient([server.address], tracing.client_interceptors)
    watch = client.watch_snapshots(lambda event: None)
    client.fetch_snapshot(timeout=TIMEOUT)
    watch.close()
    client.close()
    with tracing.tracer.span("cycle"):
        pass
    assert [span.name for span in only(collector, 1)] == ["cycle"]


@pytest.mark.parametrize(
    "claimed", ["", "00-zz-1-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 4_000, "00-" + "a" * 32]
)
def test_a_call_with_malformed_trace_metadata_is_answered_without_a_span(
    claimed: str, collector: Collector, tracing: Tracing, metrics: ServiceServer
) -> None:
    with grpc.insecure_channel(metrics.address) as channel:
        stub = metrics_pb2_grpc.MetricsServiceStub(channel)
        stub.GetLoads(metrics_pb2.GetLoadsRequest(), timeout=60, metadata=(("traceparent", claimed),))
    with tracing.tracer.span("cycle"):
        pass
    assert [span.name for span in only(collector, 1)] == ["cycle"]


# Without a collector.


def test_an_outage_of_the_collector_logs_one_warning_and_one_recovery_line(
    collector: Collector, tracing: Tracing, lines: Callable[[str], io.StringIO]
) -> None:
    text_log = lines("text")
    collector.refuses = True
    for refused in (1, 2, 3):
        with tracing.tracer.span("cycle"):
            pass
        eventually(lambda refused=refused: collector.refused >= refused)  # type: ignore[misc]
    collector.refuses = False
    with tracing.tracer.span("cycle"):
        pass
    eventually(lambda: "exported again" in text_log.getvalue())
    warning, end = text_log.getvalue().splitlines()
    assert "WARNING Traces cannot be exported" in warning and ENDPOINT in warning
    assert end.endswith("Traces are exported again")


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_a_dead_collector_delays_neither_a_cycle_nor_close(
    kind: str, silence: str, monkeypatch: pytest.MonkeyPatch, lines: Callable[[str], io.StringIO]
) -> None:
    text_log = lines("text")
    logging.getLogger("autothrottle.planner").setLevel(logging.ERROR)
    monkeypatch.setenv(ENDPOINT, silence if kind == "silent" else "http://127.0.0.1:1")
    tracing = configure_tracing("autothrottle-test")
    took = []
    with Bench(tracer=tracing.tracer) as bench:
        bench.begin_reassignment()
        for _ in range(50):
            begin = time.perf_counter()
            assert not bench.cycle().error
            took.append(time.perf_counter() - begin)
    logging.getLogger("autothrottle.planner").setLevel(logging.NOTSET)
    assert statistics.median(took) < 1.0  # an export attempt takes 10 s
    begin = time.monotonic()
    tracing.close()
    assert time.monotonic() - begin < 8.0  # two seconds, and the delays of a busy machine
    eventually(lambda: not workers())
    (warning,) = text_log.getvalue().splitlines()
    assert "WARNING Traces cannot be exported" in warning


def test_close_restores_the_librarys_logging(collector: Collector) -> None:
    library = logging.getLogger("opentelemetry")
    before = (library.propagate, list(library.handlers))
    tracing = configure_tracing("autothrottle-test")
    assert not library.propagate
    tracing.close()
    assert (library.propagate, list(library.handlers)) == before

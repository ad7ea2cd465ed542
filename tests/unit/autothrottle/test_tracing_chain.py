"""Each cycle is one trace through all services that take part."""

from __future__ import annotations

import os
import socket
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from autothrottle.adapters.grpc import AdminServiceClient
from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.gateway.server import GatewayServer
from autothrottle.runtime.tracing import Tracing, configure_tracing
from autothrottle.v1 import metrics_pb2, metrics_pb2_grpc
from autothrottle_lab.servers.services import Deployment
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import BROKERS, InProcessServices
from tests.trace_collector import CollectedSpan, Collector, path

SNAPSHOT = "autothrottle.v1.DiscoveryService/GetSnapshot"
LOADS = "autothrottle.v1.MetricsService/GetLoads"
POST = "autothrottle.v1.MetricsService/PostEvent"
APPLY = "autothrottle.v1.ApplierService/Apply"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(autouse=True)
def _no_otel_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [v for v in os.environ if v.startswith("OTEL_")]:
        monkeypatch.delenv(variable)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.endpoint)
        yield made


def recovery(tracing: Tracing) -> int:
    """Replace a broker; return the number of cycles that this took."""
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics, tracing=tracing) as services:
        planner = services.planners[0]
        services.start_planners()
        eventually(lambda: planner.state().last_cycle)
        services.cluster.add_topic("test0", {0: (1001, 1002)})
        services.cluster.submit_reassignment("test0", {0: (1001, 1003)})
        eventually(lambda: len(services.cluster.ledger) == 3)
        services.cluster.finish("test0")
        eventually(lambda: not services.cluster.ledger)
        eventually(lambda: len(metrics.events) == 3)
        planner.stop()
        last = planner.state().last_cycle
        assert last is not None
        return last.number


def paths(trace: list[CollectedSpan]) -> Counter[str]:
    """Path of span names from the root -> number of spans in the trace. Methods have their full names."""
    return Counter(" > ".join(path(span, trace)) for span in trace)


def test_every_cycle_is_one_complete_trace_through_all_services(collector: Collector) -> None:
    tracing = configure_tracing("autothrottle-run")
    cycles = recovery(tracing)
    tracing.close()
    traces = sorted(collector.traces(), key=lambda trace: trace[0].start)
    assert [trace[0].attributes["number"] for trace in traces] == list(range(1, cycles + 1))
    for trace in traces:
        found = paths(trace)  # This fails if a span lacks its parent.
        assert [span.name for span in trace if not span.parent_id] == ["cycle"]
        for child in ("discovery", "metrics", "plan", "apply"):
            assert found[f"cycle > {child}"] == 1
        assert found[f"cycle > discovery > {SNAPSHOT}"] in (1, 2)  # also the replicas of a reassignment that has ended
        assert found["cycle > apply > change"] == next(s for s in trace if s.name == "apply").attributes["changes"]
        assert not any(span.failed for span in trace)
    assert paths(traces[0])[f"cycle > metrics > {LOADS}"] == 1
    writing = [paths(trace) for trace in traces if paths(trace)["cycle > apply > change"]]
    assert len(writing) >= 2 and all(found[f"cycle > apply > {APPLY}"] == 1 for found in writing)
    assert sum(found[f"cycle > {POST}"] for found in map(paths, traces)) == 3


def test_an_http_request_continues_its_trace_and_its_cycle_links_to_it(collector: Collector) -> None:
    tracing = configure_tracing("autothrottle-run")
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics, tracing=tracing) as services:
        services.start_planners()
        eventually(lambda: services.planners[0].state().last_cycle)
        admin = AdminServiceClient([services.address("admin")], tracing.client_interceptors)
        with closing(admin), GatewayServer(admin, "127.0.0.1:0") as gateway:
            headers = {"traceparent": f"00-{TRACE}-{'1' * 16}-01"}
            request = urllib.request.Request(f"http://{gateway.address}/v1/cycles", b"{}", headers, method="POST")
            with urllib.request.urlopen(request, timeout=60) as response:
                assert response.status == 200
        # A cycle is published after it has run.
        eventually(lambda: (last := services.planners[0].state().last_cycle) and "requested by" in last.reason)
    tracing.close()
    (requested,) = [trace for trace in collector.traces() if trace[0].trace_id == TRACE]
    outermost, innermost = requested
    assert outermost.name == "autothrottle.v1.AdminService/RequestCycle" and outermost.parent_id == bytes([0x11] * 8)
    assert innermost.name == "autothrottle.v1.PlannerService/RunCycle" and innermost.parent_id == outermost.span_id
    (cycle,) = [span for span in collector.spans if span.links]
    assert (cycle.name, cycle.links) == ("cycle", [innermost.span_id]) and cycle.trace_id != TRACE


def test_with_tracing_off_no_span_reaches_the_collector(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    tracing = configure_tracing("autothrottle-run")
    assert recovery(tracing) >= 2
    tracing.close()
    assert collector.spans == []


def request_loads(address: str) -> None:
    """Make one traced call; it fails, since the metrics service cannot reach Datadog."""
    with grpc.insecure_channel(address) as channel:
        stub = metrics_pb2_grpc.MetricsServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.GetLoads(
                metrics_pb2.GetLoadsRequest(), timeout=5, metadata=(("traceparent", f"00-{TRACE}-{'1' * 16}-01"),)
            )


def seconds_to_stop(directory: Path) -> float:
    """Return the seconds from SIGTERM to the end of a service that has answered a traced call."""
    deployment = Deployment("127.0.0.1:1", "http://127.0.0.1:1", directory)
    with deployment.process("metrics", "metrics", {"listen": "127.0.0.1:0"}) as process:
        process.wait_until(lambda: " listens on " in process.log.read_text(), within_seconds=30)
        request_loads(process.log.read_text().split(" listens on ")[1].split()[0])
        begin = time.monotonic()
        process.terminate()
        assert process.wait(within_seconds=30) == 0
        return time.monotonic() - begin


def test_a_service_exports_its_spans_before_it_ends(collector: Collector, tmp_path: Path) -> None:
    seconds_to_stop(tmp_path)
    (span,) = collector.spans
    assert (span.service, span.name, span.trace_id) == ("autothrottle-metrics", LOADS, TRACE)
    assert span.parent_id == bytes.fromhex("1" * 16) and span.failed


def test_a_hanging_collector_delays_the_end_of_a_service_by_at_most_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        # 2 s plus the noise of a busy machine; the exporter's own timeout is 10 s.
        assert seconds_to_stop(tmp_path) < 8.0
    lines = (tmp_path / "metrics.log").read_text().splitlines()
    assert [line for line in lines if "WARNING" in line and "Traces cannot be exported" in line]
    assert not [line for line in lines if "Traceback" in line]

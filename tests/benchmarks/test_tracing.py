"""The cost of tracing: a small cycle over gRPC without traces, with a collector, and with a collector that hangs."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.planner.loop import Trigger
from autothrottle.ports.kafka import Term
from autothrottle.runtime.tracing import Tracing, configure_tracing
from tests import builders
from tests.benchmarks.figures import Figures
from tests.builders import mb
from tests.in_process_services import BROKERS, InProcessServices
from tests.trace_collector import Collector

ROUNDS, CYCLES_PER_ROUND = 10, 50
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class TracedPlanner:
    """All services and a leading planner, with one reassignment that never ends."""

    def __init__(self, tracing: Tracing, stack: ExitStack) -> None:
        metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
        self._services = stack.enter_context(InProcessServices(metrics, metrics, tracing=tracing))
        self._services.cluster.add_topic("test0", {p: (1001, 1002) for p in range(100)})
        self._services.cluster.submit_reassignment("test0", {p: (1001, 1003) for p in range(100)})
        self._term = Term(self._services.electorate.begin_term("here"))
        self.milliseconds: list[float] = []

    def run_cycle(self) -> None:
        """Run a scheduled cycle. Only the first one changes throttles."""
        begin = time.perf_counter()
        record = self._services.planners[0].run_cycle(self._term, Trigger("interval", scheduled=True))
        self.milliseconds.append((time.perf_counter() - begin) * 1_000)
        assert not record.error


@contextmanager
def tracing_variants(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Tracing]]:
    """Yields name -> tracing configuration."""
    monkeypatch.delenv(ENDPOINT, raising=False)
    with ExitStack() as stack:
        found = {"untraced": configure_tracing("autothrottle-bench")}
        hanging = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        collector = stack.enter_context(Collector())
        endpoints = {
            "traced": collector.endpoint,
            "traced, the collector hangs": f"http://127.0.0.1:{hanging.getsockname()[1]}",
        }
        for name, endpoint in endpoints.items():
            monkeypatch.setenv(ENDPOINT, endpoint)
            found[name] = configure_tracing("autothrottle-bench")
            stack.callback(found[name].close)
        yield found


def test_cost_of_tracing_a_cycle(figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracing_variants(monkeypatch) as found, ExitStack() as stack:
        planners = {name: TracedPlanner(tracing, stack) for name, tracing in found.items()}
        for planner in planners.values():  # The first cycle connects and writes throttles.
            planner.run_cycle()
            planner.milliseconds.clear()
        for _ in range(ROUNDS):  # Alternate, so that a noisy minute affects all variants.
            for planner in planners.values():
                for _ in range(CYCLES_PER_ROUND):
                    planner.run_cycle()
    for name, planner in planners.items():
        figures.add(f"small cycle over gRPC, {name}", "4 brokers, 100 partitions", "ms", planner.milliseconds)

"""What traces cost: the same small cycle over gRPC untraced, and traced to a collector that answers or hangs."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.planner.triggers import Trigger
from autothrottle.ports.leadership import Term
from autothrottle.runtime.tracing import Tracing, configure_tracing
from tests import builders
from tests.benchmarks.figures import Figures
from tests.builders import mb
from tests.collector import Collector
from tests.services.house import BROKERS, House

ROUNDS, CYCLES_A_ROUND = 10, 50
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Chain:
    """Services and a planner that leads, over a move that stands."""

    def __init__(self, tracing: Tracing, stack: ExitStack) -> None:
        metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
        self._house = stack.enter_context(House(metrics, metrics, tracing=tracing))
        self._house.cluster.add_topic("test0", {p: (1001, 1002) for p in range(100)})
        self._house.cluster.start_reassignment("test0", {p: (1001, 1003) for p in range(100)})
        self._term = Term(self._house.electorate.begin_term("here"))
        self.milliseconds: list[float] = []

    def cycle(self) -> None:
        """One scheduled cycle that finds nothing to change, but for the first."""
        begin = time.perf_counter()
        record = self._house.planners[0].run_cycle(self._term, Trigger("interval", scheduled=True))
        self.milliseconds.append((time.perf_counter() - begin) * 1_000)
        assert not record.error


@contextmanager
def tracings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Tracing]]:
    """Ways to trace, by what they are called."""
    monkeypatch.delenv(ENDPOINT, raising=False)
    with ExitStack() as stack:
        found = {"untraced": configure_tracing("autothrottle-bench")}
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        collector = stack.enter_context(Collector())
        endpoints = {
            "traced": collector.endpoint,
            "traced, the collector hangs": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        for name, endpoint in endpoints.items():
            monkeypatch.setenv(ENDPOINT, endpoint)
            found[name] = configure_tracing("autothrottle-bench")
            stack.callback(found[name].close)
        yield found


def test_cycle_with_and_without_traces(figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracings(monkeypatch) as found, ExitStack() as stack:
        chains = {name: Chain(tracing, stack) for name, tracing in found.items()}
        for chain in chains.values():  # The first cycle connects and writes.
            chain.cycle()
            chain.milliseconds.clear()
        for _ in range(ROUNDS):  # By turns, so that a noisy minute hits all.
            for chain in chains.values():
                for _ in range(CYCLES_A_ROUND):
                    chain.cycle()
    for name, chain in chains.items():
        figures.add(f"small cycle over gRPC, {name}", "4 brokers, 100 partitions", "ms", chain.milliseconds)

"""Tracing: a cycle is one trace, even if each service is a separate process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.simulated_recovery import SimulatedRecovery
from tests.trace_collector import CollectedSpan, Collector, path


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for variable in [v for v in os.environ if v.startswith("OTEL_")]:
        monkeypatch.delenv(variable)
    with Collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield made


def is_complete(trace: list[CollectedSpan]) -> bool:
    """Whether a trace is complete: a cycle that read the snapshot and the loads, and wrote."""
    return {"cycle", "GetSnapshot", "GetLoads", "Apply"} <= {span.name.rpartition("/")[2] for span in trace}


def test_trace_of_a_cycle_spans_the_processes_of_all_services(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path, collector: Collector
) -> None:
    with SimulatedRecovery(fresh_zookeeper, tmp_path, {"t": [30_000, 30_000]}) as recovery:
        # Start before the services, so that the first cycle of the term reads everything and writes. The partitions
        # are large, because a reassignment that ends before that cycle would leave it idle.
        recovery.start_reassignment()
        services = recovery.services(planners=1)
        with services:
            last = recovery.wait_for_cycle(recovery.wait_for_term(), 2)
            assert set(services.stop()) == {0}
    traces = collector.traces()
    numbers = sorted(trace[0].attributes["number"] for trace in traces)
    assert numbers == list(range(1, len(traces) + 1)) and len(traces) >= last.number
    whole = next(trace for trace in traces if is_complete(trace))
    at = {" > ".join(name.rpartition("/")[2] for name in path(span, whole)): span for span in whole}
    made_by = {way: at[way].service.removeprefix("autothrottle-") for way in at if "change" not in way}
    optional = {"cycle > PostEvent": "metrics", "cycle > GetQuotaState": "discovery"}
    assert made_by == {
        "cycle": "planner",
        "cycle > discovery": "planner",
        "cycle > discovery > GetSnapshot": "discovery",
        "cycle > metrics": "planner",
        "cycle > metrics > GetLoads": "metrics",
        "cycle > plan": "planner",
        "cycle > apply": "planner",
        "cycle > apply > Apply": "applier",
    } | {way: service for way, service in optional.items() if way in at}
    assert len({span.instance for span in whole}) == 4
    assert at["cycle > apply > change"].attributes["outcome"] == "applied"

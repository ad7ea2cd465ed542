"""How a cycle reads its input: slow sources in parallel, and each source independent of failures of the others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.snapshot import ANY_SNAPSHOT, Assignment, Snapshot, SnapshotRequest
from autothrottle.planner import calls
from tests.unit.autothrottle.planner.bench import BROKERS, Bench, GatedMetrics

RATES = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
"""The throttles during the bench's reassignment."""


class WaitingCluster(MemoryCluster):
    """A cluster whose snapshot is read only after a read of the loads has begun, and before that one ends."""

    metrics: GatedMetrics

    def fetch_snapshot(self, request: SnapshotRequest = ANY_SNAPSHOT, *, timeout: timedelta) -> Snapshot:
        assert self.metrics.hangs.wait(60), "the loads are read after the snapshot"
        self.metrics.read_gate.set()
        return super().fetch_snapshot(request, timeout=timeout)


def test_loads_and_snapshot_are_read_in_parallel() -> None:
    with Bench() as bench:
        bench.cluster = cluster = WaitingCluster(bench.electorate, BROKERS)
        cluster.metrics = bench.metrics
        bench.metrics.read_gate.clear()
        bench.planner.stop()
        bench.planner = bench.new_planner()
        bench.begin_reassignment()
        assert not bench.cycle().error
        assert bench.rates() == RATES


def test_a_failed_metrics_source_is_not_read_again_for_a_while_even_if_the_snapshot_failed_too() -> None:
    """Otherwise each retry of the snapshot would wait for a hanging metrics source."""
    with Bench() as bench:
        bench.begin_reassignment()
        bench.cluster.unavailable(True)
        bench.metrics.unavailable(True)
        assert bench.cycle().error
        assert bench.cycle("retrying after a failure").error
        assert bench.metrics.reads == 1
        bench.cluster.unavailable(False)
        record = bench.cycle("retrying after a failure")
        assert "metrics cannot be read" in record.findings[0] and not record.error
        bench.metrics.unavailable(False)
        bench.cycle("retrying after a failure", after=15)
        bench.finish_ramps()
        assert (bench.rates(), bench.metrics.reads) == (RATES, 2)


def test_more_partitions_than_one_request_holds_are_read_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catch-ups of brokers with more than 100,000 partitions made discovery refuse the request of every cycle."""
    monkeypatch.setattr(calls, "MAX_SNAPSHOT_PARTITIONS", 2)
    requests: list[SnapshotRequest] = []

    def fetch(request: SnapshotRequest) -> Snapshot:
        requests.append(request)
        return Snapshot(len(requests), assignments={row: Assignment((1,), 1, (1,)) for row in request.partitions})

    rows = [("t", partition) for partition in range(5)]
    snapshot = calls._fetch_in_parts(fetch, SnapshotRequest(partitions=rows))
    assert [len(request.partitions) for request in requests] == [2, 2, 1]
    assert (snapshot.version, list(snapshot.assignments)) == (3, rows)
    assert calls._fetch_in_parts(fetch, ANY_SNAPSHOT).assignments == {}

"""How a cycle reads: what takes long at the same time, and what is known of a source though another one fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.topology import Snapshot
from tests.planner.bench import BROKERS, Bench, GatedMetrics

MOVE = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
"""What stands during the bench's move."""


class ClusterThatWaits(MemoryCluster):
    """A cluster that is not read before a reading of the loads has begun, which ends after that."""

    metrics: GatedMetrics

    def fetch_snapshot(self, **wanted: Any) -> Snapshot:
        assert self.metrics.hangs.wait(60), "the loads are read only when the cluster has been"
        self.metrics.reading_gate.set()
        return super().fetch_snapshot(**wanted)


def test_the_loads_are_read_while_the_cluster_is() -> None:
    with Bench() as bench:
        bench.cluster = cluster = ClusterThatWaits(bench.electorate, BROKERS)
        cluster.metrics = bench.metrics
        bench.metrics.reading_gate.clear()
        bench.planner.stop()
        bench.planner = bench.another_planner()
        bench.begin_move()
        assert not bench.cycle().error
        assert bench.rates() == MOVE


def test_a_source_that_failed_is_left_alone_for_a_while_though_the_cluster_could_not_be_read_either() -> None:
    """Else each cycle that tries the cluster again would wait for a source that hangs."""
    with Bench() as bench:
        bench.begin_move()
        bench.cluster.unavailable(True)
        bench.metrics.unavailable(True)
        assert bench.cycle().error
        assert bench.cycle("trying again").error
        assert bench.metrics.readings == 1
        bench.cluster.unavailable(False)
        record = bench.cycle("trying again")
        assert "metrics cannot be read" in record.findings[0] and not record.error
        bench.metrics.unavailable(False)
        bench.cycle("trying again", after=15)
        bench.rise()
        assert (bench.rates(), bench.metrics.readings) == (MOVE, 2)


class ClusterThatPresumes(MemoryCluster):
    """A cluster whose followers are presumed to be in sync by whoever may presume."""

    asked: list[bool]

    def fetch_snapshot(self, *, may_presume: bool = False, **wanted: Any) -> Snapshot:
        self.asked.append(may_presume)
        found = super().fetch_snapshot(**wanted)
        if not (may_presume and found.reassignments):
            return found
        presumed = tuple(replace(r, isr=tuple((*isr, 1004) for isr in r.isr)) for r in found.reassignments)
        return replace(found, reassignments=presumed, presumed=frozenset(found.topics))


def test_after_what_was_presumed_a_cycle_follows_at_once_that_presumes_nothing() -> None:
    with Bench() as bench:
        bench.cluster = cluster = ClusterThatPresumes(bench.electorate, BROKERS)
        cluster.asked = []
        bench.planner.stop()
        bench.planner = bench.another_planner()
        bench.begin_move()
        assert not bench.cycle().error
        assert bench.lists() == ("0:1001,0:1002,0:1004", "0:1003")
        due = bench.planner._triggers.poll()
        assert due is not None and "leaders and in-sync replicas are read" in due.reason
        assert not bench.cycle(due.reason, after=0).error
        assert bench.lists() == ("0:1001,0:1002", "0:1003")
        assert cluster.asked == [True, False]
        bench.cycle()
        assert cluster.asked == [True, False, True]

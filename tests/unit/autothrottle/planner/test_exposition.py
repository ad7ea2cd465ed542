"""The metrics that a planner exports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import Pause, PauseMode
from autothrottle.core.traffic.loads import Utilization
from tests.builders import NOON, mb
from tests.unit.autothrottle.planner.bench import ADDRESS, Bench

SIDES = {("1001", "leader", ""), ("1003", "follower", "")}
GB = 1_000_000_000


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as made:
        made.election.join(ADDRESS, lambda: None)
        assert made.election.term is not None
        made.term = made.election.term
        yield made


def exported(bench: Bench) -> dict[str, dict[tuple[str, ...], float]]:
    """Name without the prefix -> labels -> value."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for metric, value, labels in bench.planner.samples():
        series = found.setdefault(metric.name.removeprefix("autothrottle_"), {})
        assert labels not in series, "two samples of one series"
        series[labels] = value
    return found


def of_sides(bench: Bench, name: str) -> dict[tuple[str, ...], float]:
    return {side: value / mb(1) for side, value in exported(bench)[f"{name}_bytes_per_second"].items()}


def test_each_link_side_in_a_reassignment_has_its_rates(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    found = {name: of_sides(bench, name) for name in ("throttle", "headroom", "capacity", "utilization")}
    assert found == {
        "throttle": {("1001", "leader", ""): 72, ("1003", "follower", ""): 81},
        "headroom": {("1001", "leader", ""): 72, ("1003", "follower", ""): 81},
        "capacity": dict.fromkeys(SIDES, 100),
        "utilization": {("1001", "leader", ""): 20, ("1003", "follower", ""): 10},
    }
    metrics = exported(bench)
    assert metrics["metrics_age_seconds"] == {("1001", ""): 60, ("1003", ""): 60}
    assert metrics["metrics_failures"] == {("1001", ""): 0, ("1003", ""): 0}
    assert metrics["config_writes_total"]["brokers", "applied"] == 2
    assert metrics["config_writes_total"]["topics", "applied"] == 1
    assert metrics["reassigning_topics"] == {(): 1}


def test_a_broker_in_exactly_one_pool_has_its_name(bench: Bench) -> None:
    bench.broker_pools = {1003: "orders"}
    bench.begin_reassignment()
    bench.cycle()
    assert {*of_sides(bench, "throttle")} == {("1001", "leader", ""), ("1003", "follower", "orders")}
    assert {*exported(bench)["metrics_failures"]} == {("1001", ""), ("1003", "orders")}


def test_throttle_that_is_not_in_force_is_exported_and_posted_once(bench: Bench) -> None:
    """A KRaft broker restarted, described its throttle and copied at link speed (KAFKA-20890). Nothing said so."""
    bench.begin_reassignment()
    for _ in range(4):
        bench.cycle()
        bench.seconds += 60
        end = NOON + timedelta(seconds=bench.seconds)
        measured = Utilization(mb(110), end - timedelta(seconds=11), end)
        bench.metrics.loads = replace(bench.metrics.loads, quota_rates={(1003, ReplicaRole.FOLLOWER): measured})
    record = bench.cycle()
    metrics = exported(bench)
    assert metrics["ineffective_throttles"] == {(): 1}
    assert metrics["throttled_replication_bytes_per_second"] == {("1003", "follower", ""): mb(110)}
    (finding,) = [text for text in record.findings if "not in force" in text]
    bench.cycle()
    bench.planner.stop()
    assert [event.text for event in bench.metrics.events if event.title == "Throttle not in force"] == [finding]


def test_brokers_that_leave_the_reassignments_have_no_sample_any_more(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.cluster.finish("t1")
    bench.cycle()
    assert not any("broker_id" in metric.labels for metric, _, _ in bench.planner.samples())
    assert exported(bench)["reassigning_topics"] == {(): 0}


def test_a_failed_cycle_keeps_the_samples_of_its_predecessor_and_its_age_grows(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    before = of_sides(bench, "throttle")
    bench.cluster.unavailable(True)
    assert bench.cycle().error
    bench.seconds += 30
    metrics = exported(bench)
    assert of_sides(bench, "throttle") == before
    assert metrics["cycle_age_seconds"] == {(): 90}
    assert metrics["cycles_total"] == {("ok",): 1, ("failed",): 1}


def test_only_the_leader_exports_what_concerns_cycles(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    assert exported(bench)["leader"] == {(): 1} and exported(bench)["term"] == {(): 1}
    bench.electorate.begin_term("other:4003")
    assert exported(bench)["leader"] == {(): 0}
    assert set(exported(bench)) == {"leader", "cycles_total", "config_writes_total", "queue_length"}


def test_a_new_term_exports_nothing_of_an_earlier_one(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.electorate.begin_term("other:4003")
    bench.electorate.depose()
    bench.election.leave()
    bench.election.join(ADDRESS, lambda: None)
    assert exported(bench)["term"] == {(): 4}
    assert "throttle_bytes_per_second" not in exported(bench)


def test_bytes_left_eta_and_produce_rates_are_exported_when_log_sizes_are_read(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    assert {"reassignment_left_bytes", "reassignment_eta_seconds", "produce_bytes_per_second"}.isdisjoint(
        exported(bench)
    )
    bench.cluster.tell_progress(bench.now)
    bench.cluster.grow(1001, "t1", 0, 10 * GB)
    bench.cluster.grow(1003, "t1", 0, 0)
    bench.cycle()
    metrics = exported(bench)
    assert metrics["reassignment_left_bytes"] == {(): 10 * GB}
    assert metrics["reassignment_eta_seconds"][("expected",)] == pytest.approx(10_000 / 72)
    bench.seconds += 1000
    assert exported(bench)["reassignment_eta_seconds"][("expected",)] == 0
    for _ in range(3):
        bench.cluster.grow(1001, "t1", 0, 1 * GB)
        bench.cycle(after=20)
    assert exported(bench)["produce_bytes_per_second"]["1003", "follower", ""] > 0


def test_an_override_and_a_pause_are_exported(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.overrides.set_override(1003, StoredOverride(mb(20)))
    bench.cycle()
    metrics = exported(bench)
    assert metrics["overrides"] == {("cluster",): 0, ("broker",): 1} and metrics["paused"] == {(): 0}
    assert metrics["throttle_bytes_per_second"]["1003", "follower", ""] == mb(20)
    assert metrics["headroom_bytes_per_second"]["1003", "follower", ""] == mb(81), "measured under an override, too"
    assert metrics["capacity_bytes_per_second"]["1003", "follower", ""] == mb(100)
    bench.pauses.set_pause(Pause(PauseMode.KEEP))
    bench.cycle()
    metrics = exported(bench)
    assert metrics["paused"] == {(): 1} and "throttle_target_bytes_per_second" not in metrics
    assert metrics["throttle_bytes_per_second"]["1003", "follower", ""] == mb(20)
    assert metrics["client_load_bytes_per_second"]["1003", "follower", ""] == mb(10), "measured as without the pause"
    assert metrics["headroom_bytes_per_second"]["1003", "follower", ""] == mb(81)


def test_failures_count_the_cycles_without_metrics(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.metrics.lose(1003, "no series")
    bench.cycle()
    bench.cycle()
    assert exported(bench)["metrics_failures"] == {("1001", ""): 0, ("1003", ""): 2}


def test_a_shadow_planner_exports_the_current_throttles() -> None:
    with Bench(shadow=True) as bench:
        bench.election.join(ADDRESS, lambda: None)
        assert bench.election.term is not None
        bench.term = bench.election.term
        bench.begin_reassignment()
        bench.cycle()
        assert "throttle_bytes_per_second" not in exported(bench)
        assert of_sides(bench, "headroom")

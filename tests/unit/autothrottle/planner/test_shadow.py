"""A planner in shadow mode makes and records the same decisions, and writes nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import Conflict
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import Pause, PauseMode
from tests.builders import mb
from tests.unit.autothrottle.planner.bench import ADDRESS, FOLLOWER, LEADER, Bench

TIMEOUT = timedelta(seconds=60)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(shadow=True) as made:
        yield made


def test_shadow_mode_decides_as_usual_and_writes_nothing(bench: Bench) -> None:
    bench.begin_reassignment()
    cycle = bench.cycle()
    assert cycle.shadow
    assert {(d.broker_id, d.role.value): d.rate_bytes_per_second for d in cycle.decisions} == {
        (1001, "leader"): mb(72),
        (1003, "follower"): mb(81),
    }
    assert cycle.sentence == "shadow: 1 topics in reassignment; 3 changes would be written"
    assert (cycle.outcomes, cycle.error) == ((), "")
    bench.cluster.finish("t1")
    assert bench.cycle().sentence == "shadow: no reassignments; throttles are up to date"
    assert bench.is_clean() and bench.cluster.writes == []
    assert bench.posted() == [], "no event for the end of the reassignment either: the active planner posts it"


def test_shadow_mode_logs_each_omitted_change_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    bench.begin_reassignment()
    for _ in range(3):
        bench.cycle()
    basis = "based on a 90% max free capacity utilization"
    assert [m for m in caplog.messages if "Shadow" in m or "Updated" in m] == [
        f"Shadow: would throttle broker 1001 [leader] ({basis}) to 72.00MB/s",
        f"Shadow: would throttle broker 1003 [follower] ({basis}) to 81.00MB/s",
        "Shadow: would set the throttled replicas on topic t1",
    ]
    assert any(m.endswith("in shadow mode: nothing is written") for m in caplog.messages)


def test_shadow_mode_logs_a_changed_decision(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    bench.begin_reassignment()
    bench.cycle()
    bench.set_load(1001, outbound=60)
    bench.cycle()
    assert any("would throttle broker 1001 [leader]" in m and "36.00MB/s" in m for m in caplog.messages)


def test_shadow_mode_keeps_throttles_of_an_earlier_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    with Bench() as bench, Bench(shadow=True) as shadow:
        bench.begin_reassignment()
        bench.cycle()
        bench.cluster.finish("t1")
        shadow.planner.stop()
        shadow.cluster, shadow.electorate = bench.cluster, bench.electorate
        shadow.planner = shadow.new_planner()
        cycle = shadow.cycle()
        assert cycle.sentence == "shadow: no reassignments; 3 changes would be written"
        assert bench.rates() and bench.lists() != (None, None)
        assert "Shadow: would remove the throttle on broker 1001" in caplog.messages
        assert "Shadow: would remove the throttled replicas on topic t1" in caplog.messages


def test_shadow_mode_purges_no_override_and_removes_no_foreign_throttle() -> None:
    with Bench(shadow=True, cleanup_after=1, cleanup_foreign=True) as bench:
        foreign = ConfigResource.broker(1004)
        bench.cluster.configs[foreign] = {FOLLOWER.rate_key: "7"}
        bench.overrides.set_override(None, StoredOverride(mb(5), autoremove=True))
        bench.begin_reassignment()
        bench.cycle()
        bench.cluster.finish("t1")
        for _ in range(4):
            bench.cycle()
        assert bench.overrides.read_overrides().cluster is not None
        assert bench.cluster.configs[foreign] == {FOLLOWER.rate_key: "7"}


def test_shadow_mode_refuses_to_submit_and_cancel(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002)})
    bench.election.join(ADDRESS, lambda: None)
    with pytest.raises(Conflict, match="runs in shadow mode"):
        bench.planner.submit_reassignment({("t1", 0): (1001, 1003)}, TIMEOUT)
    bench.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    with pytest.raises(Conflict, match="runs in shadow mode"):
        bench.planner.cancel_reassignment([("t1", 0)], TIMEOUT)
    assert bench.cluster.submissions == []
    assert bench.cluster.topics["t1"][0].moves


def test_shadow_mode_clears_nothing_when_paused(bench: Bench) -> None:
    bench.cluster.configs[ConfigResource.broker(1001)] = {LEADER.rate_key: "7"}
    bench.begin_reassignment()
    bench.pauses.set_pause(Pause(PauseMode.CLEAR))
    cycle = bench.cycle()
    assert cycle.pause is not None and cycle.outcomes == ()
    assert cycle.sentence == "paused (clear): shadow: 1 topics in reassignment; nothing is written"
    assert bench.cluster.writes == []

"""A planner in shadow: the same decisions, recorded and told, and nothing written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest

from autothrottle.core.configs import ConfigResource
from autothrottle.core.errors import Conflict
from autothrottle.core.pause import Pause, PauseMode
from tests.builders import mb
from tests.planner.bench import ADDRESS, FOLLOWER, LEADER, Bench

PATIENT = timedelta(seconds=60)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(shadow=True) as made:
        yield made


def test_it_decides_as_ever_and_writes_nothing(bench: Bench) -> None:
    bench.begin_move()
    cycle = bench.cycle()
    assert cycle.shadow
    assert {(d.broker_id, d.role.value): d.rate for d in cycle.decisions} == {
        (1001, "leader"): mb(72),
        (1003, "follower"): mb(81),
    }
    assert cycle.sentence == "shadow: 1 topics in reassignment; 3 changes would be written"
    assert (cycle.outcomes, cycle.error) == ((), "")
    bench.cluster.finish("t1")
    assert bench.cycle().sentence == "shadow: nothing moves; what stands is right"
    assert bench.is_clean() and bench.cluster.writes == []
    assert bench.posted() == [], "the end of the move neither: who acts tells of it"


def test_the_log_says_what_would_be_and_says_it_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    bench.begin_move()
    for _ in range(3):
        bench.cycle()
    basis = "based on a 90% max free capacity utilization"
    assert [m for m in caplog.messages if "Shadow" in m or "Updated" in m] == [
        f"Shadow: would throttle broker 1001 [leader] ({basis}) to 72.00MB/s",
        f"Shadow: would throttle broker 1003 [follower] ({basis}) to 81.00MB/s",
        "Shadow: would set the throttled replicas on topic t1",
    ]
    assert any(m.endswith("in shadow: nothing is written") for m in caplog.messages)


def test_it_says_when_it_would_decide_otherwise(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    bench.begin_move()
    bench.cycle()
    bench.measure(1001, tx=60)
    bench.cycle()
    assert any("would throttle broker 1001 [leader]" in m and "36.00MB/s" in m for m in caplog.messages)


def test_it_does_not_take_back_what_an_earlier_run_has_set(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    with Bench() as bench, Bench(shadow=True) as shadow:
        bench.begin_move()
        bench.cycle()
        bench.cluster.finish("t1")
        shadow.planner.stop()
        shadow.cluster, shadow.electorate = bench.cluster, bench.electorate
        shadow.planner = shadow.another_planner()
        cycle = shadow.cycle()
        assert cycle.sentence == "shadow: nothing moves; 3 changes would be written"
        assert bench.rates() and bench.lists() != (None, None)
        assert "Shadow: would remove the throttle on broker 1001" in caplog.messages
        assert "Shadow: would remove the throttled replicas on topic t1" in caplog.messages


def test_it_purges_no_override_and_removes_no_throttle_of_others() -> None:
    with Bench(shadow=True, cleanup_after=1, cleanup_foreign=True) as bench:
        foreign = ConfigResource.broker(1004)
        bench.cluster.configs[foreign] = {FOLLOWER.rate_key: "7"}
        bench.overrides.set_override(None, mb(5), True)
        bench.begin_move()
        bench.cycle()
        bench.cluster.finish("t1")
        for _ in range(4):
            bench.cycle()
        assert bench.overrides.read_overrides().cluster is not None
        assert bench.cluster.configs[foreign] == {FOLLOWER.rate_key: "7"}


def test_it_submits_and_cancels_nothing(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002)})
    bench.election.join(ADDRESS, lambda: None)
    with pytest.raises(Conflict, match="runs in shadow"):
        bench.planner.submit_reassignment({("t1", 0): (1001, 1003)}, PATIENT)
    bench.cluster.start_reassignment("t1", {0: (1001, 1003)})
    with pytest.raises(Conflict, match="runs in shadow"):
        bench.planner.cancel_reassignment([("t1", 0)], PATIENT)
    assert bench.cluster.submissions == []
    assert bench.cluster.topics["t1"][0].moves


def test_it_clears_nothing_either_when_it_is_paused(bench: Bench) -> None:
    bench.cluster.configs[ConfigResource.broker(1001)] = {LEADER.rate_key: "7"}
    bench.begin_move()
    bench.pauses.set_pause(Pause(PauseMode.CLEAR))
    cycle = bench.cycle()
    assert cycle.pause is not None and cycle.decisions == ()
    assert cycle.sentence == "paused (clear): shadow: 1 topics in reassignment"
    assert bench.cluster.writes == []

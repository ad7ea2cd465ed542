"""A paused planner: it decides nothing, keeps or gives back what stands, and says so."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from autothrottle.core.configs import ConfigResource
from autothrottle.core.errors import Conflict
from autothrottle.core.pause import Pause, PauseMode
from autothrottle.core.plan import Reason
from autothrottle.ports.leadership import Term
from tests.builders import NOON, eventually, mb
from tests.planner.bench import ADDRESS, FOLLOWER, LEADER, Bench

KEEP = Pause(PauseMode.KEEP, "10.0.0.9:5000", NOON, "a release")
CLEAR = Pause(PauseMode.CLEAR, "10.0.0.9:5000", NOON)
MOVE = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
EXACT = ("0:1001,0:1002", "0:1003")
PATIENT = timedelta(seconds=60)


def moving(bench: Bench) -> int:
    """Let t1 move under its throttles; return how much was written."""
    bench.begin_move()
    bench.cycle()
    assert (bench.rates(), bench.lists()) == (MOVE, EXACT)
    return len(bench.cluster.writes)


# Keep.


def test_while_paused_what_stands_stays_whatever_clients_do(bench: Bench) -> None:
    written = moving(bench)
    bench.pauses.set_pause(KEEP)
    bench.measure(1001, tx=60)
    cycle = bench.cycle()
    assert (cycle.pause, cycle.decisions, cycle.outcomes, cycle.findings) == (KEEP, (), (), ())
    assert cycle.sentence == "paused (keep): 1 topics in reassignment"
    assert (bench.rates(), len(bench.cluster.writes)) == (MOVE, written)


def test_while_paused_lists_stay_too_and_the_cycle_says_where_they_do_not_fit(bench: Bench) -> None:
    written = moving(bench)
    bench.pauses.set_pause(KEEP)
    bench.cluster.finish("t1")
    bench.begin_move("t2")
    (finding,) = bench.cycle("the reassignment of [t1] ended").findings
    assert finding == (
        "Paused: the replica lists of topics [t1 t2] do not fit what moves (what is not listed moves unthrottled, what "
        "has arrived is throttled still); they stay until it is resumed"
    )
    assert (bench.lists("t1"), bench.lists("t2")) == (EXACT, (None, None))
    assert (bench.rates(), len(bench.cluster.writes)) == (MOVE, written)


def test_what_was_missed_is_done_as_soon_as_it_is_resumed(bench: Bench) -> None:
    moving(bench)
    bench.pauses.set_pause(KEEP)
    bench.cluster.finish("t1")
    bench.cycle()
    assert not bench.is_clean()
    bench.pauses.remove_pause()
    cycle = bench.cycle("it was paused or resumed")
    assert cycle.pause is None and bench.is_clean()


def test_somebody_elses_edit_of_our_keys_is_repaired_only_after_the_pause(bench: Bench) -> None:
    moving(bench)
    bench.pauses.set_pause(KEEP)
    broker = ConfigResource.broker(1001)
    bench.cluster.configs[broker][LEADER.rate_key] = "5"
    bench.cycle()
    assert bench.cluster.configs[broker][LEADER.rate_key] == "5"
    bench.pauses.remove_pause()
    bench.cycle()
    bench.rise()
    assert bench.rates() == MOVE


# Clear.


def test_with_clear_everything_of_ours_goes_in_mid_move_and_comes_back_when_resumed(bench: Bench) -> None:
    moving(bench)
    bench.pauses.set_pause(CLEAR)
    cycle = bench.cycle("it was paused or resumed")
    assert bench.is_clean()
    assert cycle.sentence == "paused (clear): 1 topics in reassignment; 3 of 3 changes written"
    assert bench.cycle().sentence == "paused (clear): 1 topics in reassignment"
    bench.pauses.remove_pause()
    bench.cycle("it was paused or resumed")
    assert (bench.rates(), bench.lists()) == (MOVE, EXACT)


def test_with_clear_what_was_refused_is_tried_again(bench: Bench) -> None:
    moving(bench)
    broker = ConfigResource.broker(1003)
    bench.cluster.refuse(broker, "broker 1003 does not answer")
    bench.pauses.set_pause(CLEAR)
    bench.cycle()
    assert bench.rates() == {(1003, "follower"): 81.0}
    bench.cluster.refuse(broker, "")
    bench.cycle("trying again")
    assert bench.is_clean()


@pytest.mark.parametrize("pause", [KEEP, CLEAR])
def test_throttles_of_others_are_left_while_it_is_paused(pause: Pause) -> None:
    with Bench(cleanup_after=1, cleanup_foreign=True) as bench:
        foreign = ConfigResource.broker(1004)
        bench.cluster.configs[foreign] = {FOLLOWER.rate_key: "7"}
        bench.pauses.set_pause(pause)
        for _ in range(4):
            bench.cycle()
        assert bench.cluster.configs[foreign] == {FOLLOWER.rate_key: "7"}
        bench.pauses.remove_pause()
        for _ in range(2):
            bench.cycle()
        assert not bench.cluster.configs[foreign]


# Overrides, metrics, submissions.


@pytest.mark.parametrize("pause", [KEEP, CLEAR])
def test_an_override_waits_for_the_end_of_the_pause(bench: Bench, pause: Pause) -> None:
    moving(bench)
    bench.pauses.set_pause(pause)
    bench.overrides.set_override(1003, mb(5), False)
    bench.cycle("an override changed")
    assert bench.rate(1003, FOLLOWER) == (81.0 if pause is KEEP else None)
    bench.pauses.remove_pause()
    bench.cycle("it was paused or resumed")
    assert bench.rate(1003, FOLLOWER) == 5.0


def test_an_autoremove_override_whose_move_ends_in_a_pause_goes_after_it(bench: Bench) -> None:
    bench.overrides.set_override(None, mb(5), True)
    bench.begin_move()
    bench.cycle()
    bench.pauses.set_pause(KEEP)
    bench.cluster.finish("t1")
    for _ in range(2):
        bench.cycle()
    assert bench.overrides.read_overrides().cluster is not None
    bench.pauses.remove_pause()
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is None and bench.is_clean()


def test_metrics_that_are_missing_while_it_is_paused_count_as_no_failure(bench: Bench) -> None:
    moving(bench)
    bench.pauses.set_pause(KEEP)
    readings = bench.metrics.readings
    bench.metrics.unavailable(True)
    for _ in range(5):
        bench.cycle()
    assert bench.metrics.readings == readings
    bench.pauses.remove_pause()
    assert {d.reason for d in bench.cycle().decisions} == {Reason.KEPT}


def lead(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002)})
    bench.election.join(ADDRESS, lambda: None)
    assert bench.election.term is not None
    bench.term = bench.election.term


def test_while_paused_no_reassignment_is_submitted_but_it_can_be_looked_at(bench: Bench) -> None:
    lead(bench)
    bench.pauses.set_pause(KEEP)
    wanted = {("t1", 0): (1001, 1003)}
    with pytest.raises(Conflict, match=r"nothing was submitted, since autothrottle is paused \(keep, .*: a release\)"):
        bench.planner.submit_reassignment(wanted, PATIENT)
    assert bench.planner.submit_reassignment(wanted, PATIENT, validate_only=True).started == 1
    assert bench.cluster.submissions == []


# Who knows of it.


def test_a_pause_holds_for_the_next_leader_too(bench: Bench) -> None:
    written = moving(bench)
    bench.pauses.set_pause(KEEP)
    bench.cycle()
    bench.cluster.finish("t1")
    bench.term = Term(bench.electorate.begin_term("127.0.0.1:4004"))
    cycle = bench.cycle()
    assert cycle.pause == KEEP and len(bench.cluster.writes) == written


def test_a_pause_that_cannot_be_read_is_as_it_was_last_read(bench: Bench) -> None:
    moving(bench)
    bench.pauses.set_pause(KEEP)
    bench.cycle()
    bench.pauses.unavailable(True)
    bench.measure(1001, tx=60)
    cycle = bench.cycle()
    assert cycle.pause == KEEP and bench.rates() == MOVE
    assert any("the pause cannot be read, what was last read of it holds" in finding for finding in cycle.findings)


def test_a_new_leader_that_cannot_read_the_pause_changes_nothing(bench: Bench) -> None:
    written = moving(bench)
    bench.pauses.unavailable(True)
    bench.cluster.finish("t1")
    bench.term = Term(bench.electorate.begin_term("127.0.0.1:4004"))
    assert bench.cycle().error and len(bench.cluster.writes) == written


def test_a_pause_and_its_end_are_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    bench.pauses.set_pause(KEEP)
    for _ in range(3):
        bench.cycle()
    bench.pauses.remove_pause()
    for _ in range(3):
        bench.cycle()
    assert [m for m in caplog.messages if m.startswith(("Paused", "Resumed"))] == [
        "Paused: keep, since 2026-11-02T12:00:00Z, by 10.0.0.9:5000: a release",
        "Resumed",
    ]


@pytest.mark.parametrize("mode", PauseMode)
def test_an_override_with_autoremove_whose_move_came_and_went_during_a_pause_goes_when_it_is_over(
    bench: Bench, mode: PauseMode
) -> None:
    bench.overrides.set_override(None, mb(50), autoremove=True)
    bench.pauses.set_pause(Pause(mode))
    bench.begin_move()
    bench.cycle()
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is not None, "while it is paused nothing is decided"
    bench.pauses.remove_pause()
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is None


def test_a_pause_and_its_end_start_a_cycle_at_once() -> None:
    with Bench(real_time=True, interval=timedelta(hours=1)) as bench:
        bench.planner.start(ADDRESS)
        eventually(lambda: bench.planner.state().last_cycle)
        bench.pauses.set_pause(KEEP)
        eventually(lambda: (last := bench.planner.state().last_cycle) and last.pause == KEEP)
        bench.pauses.remove_pause()
        eventually(lambda: (last := bench.planner.state().last_cycle) and last.pause is None)

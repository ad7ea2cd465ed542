"""A paused planner decides nothing. It keeps the throttles or removes its own, and reports the pause."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import Conflict
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.records import Pause, PauseMode, Reason
from autothrottle.planner.loop import SPACING
from autothrottle.ports.kafka import Term
from tests.builders import AT_ONCE, NOON, at_once, eventually, mb
from tests.unit.autothrottle.planner.bench import ADDRESS, FOLLOWER, LEADER, Bench

KEEP = Pause(PauseMode.KEEP, "10.0.0.9:5000", NOON, "a release")
CLEAR = Pause(PauseMode.CLEAR, "10.0.0.9:5000", NOON)
RATES = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
EXACT = ("0:1001,0:1002", "0:1003")
TIMEOUT = timedelta(seconds=60)


def begin_throttled_reassignment(bench: Bench) -> int:
    """Begin a reassignment of t1 with its throttles; return the number of writes."""
    bench.begin_reassignment()
    bench.cycle()
    assert (bench.rates(), bench.lists()) == (RATES, EXACT)
    return len(bench.cluster.writes)


# Keep.


def test_a_paused_planner_keeps_throttles_when_the_client_load_changes(bench: Bench) -> None:
    written = begin_throttled_reassignment(bench)
    bench.pauses.set_pause(KEEP)
    bench.set_load(1001, outbound=60)
    cycle = bench.cycle()
    assert (cycle.pause, cycle.outcomes, cycle.findings) == (KEEP, (), ())
    assert cycle.sentence == "paused (keep): 1 topics in reassignment; nothing is written"
    assert (bench.rates(), len(bench.cluster.writes)) == (RATES, written)


@pytest.mark.parametrize("pause", [KEEP, CLEAR])
@pytest.mark.parametrize("policy", [HeadroomPolicy(), AdaptivePolicy()], ids=["headroom", "adaptive"])
def test_clients_capacity_and_headroom_are_measured_during_a_pause_as_without_it(pause: Pause, policy: Policy) -> None:
    """They were "unknown" while paused, just when an operator wants to see clients recover.

    The views, REST and the metrics read the cycle, so it must have the same measurements, and the rates in Kafka.
    """
    with Bench(policy=policy) as running, Bench(policy=policy) as paused:
        begin_throttled_reassignment(running), begin_throttled_reassignment(paused)
        paused.pauses.set_pause(pause)
        for bench in (running, paused):
            bench.set_load(1001, outbound=40)
        measured, cycle = running.cycle(), paused.cycle()
        assert cycle.decisions[0].client_bytes_per_second == mb(40)
        assert [(d.capacity_bytes_per_second, d.client_bytes_per_second) for d in cycle.decisions] == [
            (d.capacity_bytes_per_second, d.client_bytes_per_second) for d in measured.decisions
        ]
        assert [d.headroom_bytes_per_second for d in cycle.decisions] == [
            d.headroom_bytes_per_second for d in measured.decisions
        ]
        in_kafka = {(t.broker_id, t.role.value): t.rate_bytes_per_second / mb(1) for t in cycle.throttles}
        assert in_kafka == paused.rates() == (RATES if pause is KEEP else {})


def test_the_first_rate_after_a_pause_follows_from_the_load_during_it() -> None:
    """Loads were not read while paused, so the first rate followed from the load before the pause."""
    with Bench() as bench:
        begin_throttled_reassignment(bench)
        bench.pauses.set_pause(KEEP)
        bench.set_load(1001, outbound=60)
        bench.cycle()
        bench.metrics.unavailable(True)
        bench.pauses.remove_pause()
        bench.cycle("paused or resumed")
        assert bench.rate(1001, LEADER) == 36


def test_a_paused_planner_keeps_replica_lists_and_reports_stale_ones(bench: Bench) -> None:
    written = begin_throttled_reassignment(bench)
    bench.pauses.set_pause(KEEP)
    bench.cluster.finish("t1")
    bench.begin_reassignment("t2")
    (finding,) = bench.cycle("the reassignment of [t1] ended").findings
    assert finding == (
        "Paused: the throttled replicas of topics [t1 t2] do not match the reassignments. Unlisted replicas are "
        "unthrottled, completed ones are still throttled; resume to update them"
    )
    assert (bench.lists("t1"), bench.lists("t2")) == (EXACT, (None, None))
    assert (bench.rates(), len(bench.cluster.writes)) == (RATES, written)


def test_resuming_runs_the_missed_changes_at_once(bench: Bench) -> None:
    begin_throttled_reassignment(bench)
    bench.pauses.set_pause(KEEP)
    bench.cluster.finish("t1")
    bench.cycle()
    assert not bench.is_clean()
    bench.pauses.remove_pause()
    cycle = bench.cycle("paused or resumed")
    assert cycle.pause is None and bench.is_clean()


def test_a_foreign_edit_of_our_throttle_is_repaired_only_after_the_pause(bench: Bench) -> None:
    begin_throttled_reassignment(bench)
    bench.pauses.set_pause(KEEP)
    broker = ConfigResource.broker(1001)
    bench.cluster.configs[broker][LEADER.rate_key] = "5"
    bench.cycle()
    assert bench.cluster.configs[broker][LEADER.rate_key] == "5"
    bench.pauses.remove_pause()
    bench.cycle()
    bench.finish_ramps()
    assert bench.rates() == RATES


# Clear.


def test_clear_removes_our_throttles_during_a_reassignment_and_resume_sets_them_again(bench: Bench) -> None:
    begin_throttled_reassignment(bench)
    bench.pauses.set_pause(CLEAR)
    cycle = bench.cycle("paused or resumed")
    assert bench.is_clean()
    assert cycle.sentence == "paused (clear): 1 topics in reassignment; 3 of 3 changes written"
    assert bench.cycle().sentence == "paused (clear): 1 topics in reassignment; nothing is written"
    bench.pauses.remove_pause()
    bench.cycle("paused or resumed")
    assert (bench.rates(), bench.lists()) == (RATES, EXACT)


def test_clear_retries_refused_removals(bench: Bench) -> None:
    begin_throttled_reassignment(bench)
    broker = ConfigResource.broker(1003)
    bench.cluster.refused[broker] = "broker 1003 does not answer"
    bench.pauses.set_pause(CLEAR)
    bench.cycle()
    assert bench.rates() == {(1003, "follower"): 81.0}
    bench.cluster.refused[broker] = ""
    bench.cycle("retrying after a failure")
    assert bench.is_clean()


@pytest.mark.parametrize("pause", [KEEP, CLEAR])
def test_foreign_throttles_are_not_cleaned_up_while_paused(pause: Pause) -> None:
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
def test_an_override_set_while_paused_applies_after_the_pause(bench: Bench, pause: Pause) -> None:
    begin_throttled_reassignment(bench)
    bench.pauses.set_pause(pause)
    bench.overrides.set_override(1003, StoredOverride(mb(5)))
    bench.cycle("an override changed")
    assert bench.rate(1003, FOLLOWER) == (81.0 if pause is KEEP else None)
    bench.pauses.remove_pause()
    bench.cycle("paused or resumed")
    assert bench.rate(1003, FOLLOWER) == 5.0


def test_an_autoremove_override_whose_reassignment_ends_while_paused_is_removed_after_the_pause(bench: Bench) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(5), autoremove=True))
    bench.begin_reassignment()
    bench.cycle()
    bench.pauses.set_pause(KEEP)
    bench.cluster.finish("t1")
    for _ in range(2):
        bench.cycle()
    assert bench.overrides.read_overrides().cluster is not None
    bench.pauses.remove_pause()
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is None and bench.is_clean()


def test_missing_metrics_while_paused_do_not_count_as_failures(bench: Bench) -> None:
    begin_throttled_reassignment(bench)
    bench.pauses.set_pause(KEEP)
    bench.metrics.unavailable(True)
    for _ in range(5):
        cycle = bench.cycle()
        assert {(d.reason, d.client_bytes_per_second) for d in cycle.decisions} == {(Reason.KEPT, None)}
        assert len(cycle.findings) == 1
    bench.pauses.remove_pause()
    assert {d.reason for d in bench.cycle().decisions} == {Reason.KEPT}


def lead(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002)})
    bench.election.join(ADDRESS, lambda: None)
    assert bench.election.term is not None
    bench.term = bench.election.term


def test_a_paused_planner_refuses_submissions_but_validates_them(bench: Bench) -> None:
    lead(bench)
    bench.pauses.set_pause(KEEP)
    wanted = {("t1", 0): (1001, 1003)}
    with pytest.raises(Conflict, match=r"nothing was submitted, since autothrottle is paused \(keep, .*: a release\)"):
        bench.planner.submit_reassignment(wanted, TIMEOUT)
    assert bench.planner.submit_reassignment(wanted, TIMEOUT, validate_only=True).submitted == 1
    assert bench.cluster.submissions == []


# Terms, errors, log lines.


def test_a_pause_applies_to_the_next_leader(bench: Bench) -> None:
    written = begin_throttled_reassignment(bench)
    bench.pauses.set_pause(KEEP)
    bench.cycle()
    bench.cluster.finish("t1")
    bench.term = Term(bench.electorate.begin_term("127.0.0.1:4004"))
    cycle = bench.cycle()
    assert cycle.pause == KEEP and len(bench.cluster.writes) == written


def test_an_unreadable_pause_keeps_its_last_known_state(bench: Bench) -> None:
    begin_throttled_reassignment(bench)
    bench.pauses.set_pause(KEEP)
    bench.cycle()
    bench.pauses.unavailable(True)
    bench.set_load(1001, outbound=60)
    cycle = bench.cycle()
    assert cycle.pause == KEEP and bench.rates() == RATES
    assert any("the pause cannot be read; the last known state applies" in finding for finding in cycle.findings)


def test_a_new_leader_that_cannot_read_the_pause_writes_nothing(bench: Bench) -> None:
    written = begin_throttled_reassignment(bench)
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
        "Paused: keep, since 2026-11-02T12:00:00Z, by 10.0.0.9: a release",
        "Resumed",
    ]


@pytest.mark.parametrize("mode", PauseMode)
def test_an_autoremove_override_is_removed_after_a_pause_that_covered_its_whole_reassignment(
    bench: Bench, mode: PauseMode
) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(50), autoremove=True))
    bench.pauses.set_pause(Pause(mode))
    bench.begin_reassignment()
    bench.cycle()
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is not None, "a paused planner decides nothing"
    bench.pauses.remove_pause()
    bench.cycle()
    assert bench.overrides.read_overrides().cluster is None


def test_a_pause_and_its_end_start_a_cycle_at_once() -> None:
    with Bench(real_time=True, interval=timedelta(hours=1)) as bench:
        bench.planner.start(ADDRESS)
        eventually(lambda: bench.planner.state().last_cycle)
        bench.pauses.set_pause(KEEP)
        at_once(
            lambda: (last := bench.planner.state().last_cycle) and last.pause == KEEP, SPACING.total_seconds() + AT_ONCE
        )
        bench.pauses.remove_pause()
        at_once(
            lambda: (last := bench.planner.state().last_cycle) and last.pause is None, SPACING.total_seconds() + AT_ONCE
        )

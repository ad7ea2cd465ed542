"""A rate rises step by step between the cycles, whoever leads, and falls at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import pytest

from autothrottle.core.changes import Change, Edit, Outcome, OutcomeStatus
from autothrottle.core.configs import FOLLOWER_RATE, ConfigResource, ReplicaRole
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.pause import Pause, PauseMode
from autothrottle.core.plan import Plan, Reason
from autothrottle.core.topology import Snapshot
from autothrottle.planner import ramps
from autothrottle.planner.ramps import BUDGET, BUDGET_SPAN, Ramps
from autothrottle.planner.triggers import Trigger, Triggers
from autothrottle.ports.leadership import Term
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.planner.bench import ADDRESS, BROKERS, FOLLOWER, LEADER, Bench

BROKER_1003 = ConfigResource.broker(1003)


pytestmark = pytest.mark.usefixtures("info_lines")


def half_way(bench: Bench) -> None:
    """A move at 27 MB/s for its destination, on the way up to 81, some seconds before it is there."""
    bench.begin_move()
    bench.measure(1003, rx=70)
    bench.cycle()
    assert bench.rate(1003, FOLLOWER) == 27.0
    bench.measure(1003, rx=10)
    bench.cycle()
    for _ in range(5):
        step(bench)
    assert bench.rate(1003, FOLLOWER) == pytest.approx(27 + 6 * 4.05)


def step(bench: Bench) -> None:
    """A second later, what is due then."""
    bench.seconds += 1
    bench.planner.run_step(bench.term)


def key_of(bench: Bench) -> LedgerKey:
    return bench.cluster.ledger[BROKER_1003].keys[FOLLOWER_RATE]


def test_the_first_throttle_of_a_move_stands_at_once(bench: Bench) -> None:
    bench.begin_move()
    bench.cycle()
    assert bench.rates() == {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
    assert key_of(bench).target is None


def test_a_raise_takes_steps_of_a_second_and_arrives_exactly(bench: Bench) -> None:
    half_way(bench)
    assert key_of(bench).target == str(mb(81))
    seen = bench.rise()
    assert seen[-1] == 81.0
    assert all(0 <= new - old <= 4.1 for old, new in pairwise(seen))
    assert seen.index(81.0) <= 20 - 6
    assert key_of(bench) == LedgerKey(None, str(mb(81)))
    written = len(bench.cluster.writes)
    bench.rise()
    assert len(bench.cluster.writes) == written, "and then nothing more is written"


def test_a_ramp_is_one_line_and_one_event(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    half_way(bench)
    bench.cycle()
    bench.rise()
    bench.cycle()
    lines = [line for line in caplog.messages if "broker 1003 [follower]" in line and line.startswith("Repl")]
    assert [line.rpartition(" ")[2] for line in lines] == ["27.00MB/s", "81.00MB/s"]
    assert caplog.messages.count("Updated throttle on broker 1003 [follower]") == 2
    events = [event.text for event in bench.posted() if event.title == "Broker replication throttle set"]
    assert [("[1003, follower, 27.00]" in text, "[1003, follower, 81.00]" in text) for text in events] == [
        (True, False),
        (False, True),
    ]


def test_a_lowering_is_made_at_once_and_ends_the_ramp(bench: Bench) -> None:
    half_way(bench)
    bench.measure(1003, rx=88)
    bench.cycle()
    assert (bench.rate(1003, FOLLOWER) or 0) < 27
    assert key_of(bench).target is None
    stands = bench.rate(1003, FOLLOWER)
    assert set(bench.rise()) == {stands}


def test_a_lower_target_above_what_stands_is_where_the_ramp_goes_on_to(bench: Bench) -> None:
    half_way(bench)
    bench.overrides.set_override(1003, mb(60), autoremove=False)
    bench.cycle("an override changed")
    assert 51 < (bench.rate(1003, FOLLOWER) or 0) < 60
    assert bench.rise()[-1] == 60.0


def test_an_override_rises_too_and_reaches_its_very_value(bench: Bench) -> None:
    bench.begin_move()
    bench.cycle()
    bench.overrides.set_override(None, 10**9 + 7, autoremove=False)
    bench.cycle("an override changed")
    assert bench.rate(1003, FOLLOWER) == pytest.approx(81 + 50, abs=0.1)
    bench.rise()
    assert bench.cluster.configs[BROKER_1003][FOLLOWER_RATE] == str(10**9 + 7)


def test_a_rate_is_compared_with_where_the_standing_one_goes(bench: Bench) -> None:
    half_way(bench)
    bench.measure(1003, rx=14)
    record = bench.cycle("asked for")
    decision = next(d for d in record.decisions if d.broker_id == 1003)
    assert (decision.reason, decision.rate) == (Reason.UNCHANGED, mb(81))
    assert bench.rise()[-1] == 81.0


def test_without_metrics_a_ramp_goes_on_to_where_it_went(bench: Bench) -> None:
    half_way(bench)
    bench.metrics.lose(1003, "host h3 reports nothing")
    record = bench.cycle()
    assert next(d for d in record.decisions if d.broker_id == 1003).reason is Reason.KEPT
    assert bench.rise()[-1] == 81.0


def test_cycles_in_mid_ramp_make_it_no_faster(bench: Bench) -> None:
    half_way(bench)
    before = bench.rate(1003, FOLLOWER)
    for _ in range(4):
        bench.cycle("asked for", after=0.2)
        assert (bench.rate(1003, FOLLOWER) or 0) - (before or 0) <= 4.1
    assert bench.rise()[-1] == 81.0


def test_a_new_leader_goes_on_from_what_stands(bench: Bench) -> None:
    half_way(bench)
    before = bench.rate(1003, FOLLOWER) or 0
    bench.planner.stop()
    bench.planner = bench.another_planner()
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    bench.measure(1003, rx=10 + before)  # without log sizes it takes what stands for what has always stood
    bench.cycle("elected")
    assert bench.rate(1003, FOLLOWER) == pytest.approx(before + 4.05, abs=0.1)
    seen = bench.rise()
    assert all(new - old <= 4.1 for old, new in pairwise([before + 4.05, *seen]))
    assert seen[-1] == 81.0


def test_another_term_makes_no_step_before_its_first_cycle(bench: Bench) -> None:
    """Somebody else may have led in between, and have decided on something else."""
    half_way(bench)
    before = bench.rate(1003, FOLLOWER)
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    assert set(bench.rise()) == {before}
    bench.cycle()
    assert before is not None and bench.rise()[-1] > before


def test_whoever_leads_no_more_makes_no_step(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    half_way(bench)
    before = bench.rate(1003, FOLLOWER)
    bench.electorate.begin_term("10.0.0.2:4003")
    step(bench)
    assert bench.rate(1003, FOLLOWER) == before
    assert any(line.startswith("The ramp ends: ") for line in caplog.messages)
    bench.planner.run_step(None)


def test_a_step_that_finds_another_rate_than_it_left_asks_for_a_cycle_which_goes_on(bench: Bench) -> None:
    half_way(bench)
    bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, "1000000")
    while bench.planner._triggers.poll() is not None:
        pass
    step(bench)
    trigger = bench.planner._triggers.poll()
    assert trigger is not None and "a step of a ramp failed" in trigger.reason
    record = bench.cycle(trigger.reason)
    assert any("somebody set a rate of 1000000" in finding for finding in record.findings)
    assert bench.rate(1003, FOLLOWER) == pytest.approx(1 + 4.05)
    assert bench.rise()[-1] == 81.0


def test_a_broker_that_refuses_its_step_holds_up_no_other_and_is_tried_again_by_the_cycles(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin_move()
    for broker_id in BROKERS:
        bench.measure(broker_id, tx=70, rx=70)
    bench.cycle()
    for broker_id in BROKERS:
        bench.measure(broker_id, tx=10, rx=10)
    bench.cycle()
    bench.cluster.refuse(BROKER_1003, "it is down")
    before = bench.rate(1003, FOLLOWER)
    bench.rise()
    assert (bench.rate(1001, LEADER), bench.rate(1003, FOLLOWER)) == (81.0, before)
    assert sum("was not written" in message for message in caplog.messages) == 1, "and not by every step"
    bench.cluster.refuse(BROKER_1003, "")
    bench.cycle()
    assert bench.rise()[-1] == 81.0


def test_a_pause_holds_a_ramp_where_it_is_and_it_goes_on_afterwards(bench: Bench) -> None:
    half_way(bench)
    before = bench.rate(1003, FOLLOWER)
    bench.pauses.set_pause(Pause(PauseMode.KEEP, "somebody", NOON, "a release"))
    bench.cycle("it was paused or resumed")
    assert set(bench.rise()) == {before}
    bench.pauses.remove_pause()
    bench.cycle("it was paused or resumed")
    assert bench.rise()[-1] == 81.0


def test_a_pause_holds_a_ramp_though_the_cycle_that_read_it_failed(bench: Bench) -> None:
    """The cycle read the pause and then not the cluster; the steps of the plan before went on to its end."""
    half_way(bench)
    before = bench.rate(1003, FOLLOWER)
    bench.pauses.set_pause(Pause(PauseMode.KEEP, "somebody", NOON, "a release"))
    bench.cluster.incomplete("topics cannot be listed")
    assert bench.cycle("it was paused or resumed").error
    bench.cluster.incomplete("")
    assert set(bench.rise()) == {before}
    bench.pauses.remove_pause()
    bench.cycle("it was paused or resumed")
    assert bench.rise()[-1] == 81.0


def test_a_move_that_ends_in_mid_ramp_leaves_nothing(bench: Bench) -> None:
    half_way(bench)
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()
    bench.rise()
    assert bench.is_clean()


def test_the_planners_own_thread_makes_the_steps() -> None:
    with Bench(real_time=True, interval=timedelta(hours=1)) as bench:
        bench.begin_move()
        bench.planner.start(ADDRESS)
        eventually(lambda: bench.rate(1003, FOLLOWER) == 81.0)
        bench.overrides.set_override(1003, mb(95), autoremove=False)
        eventually(lambda: key_of(bench).target == str(mb(95)))
        eventually(lambda: bench.rate(1003, FOLLOWER) == 95.0)
        assert key_of(bench).target is None


def test_a_step_waits_for_a_cycle_that_is_due_and_not_for_one_that_is_not() -> None:
    now = [0.0]
    triggers = Triggers(timedelta(seconds=60), lambda: now[0])
    assert triggers.poll() == Trigger("interval", scheduled=True)
    triggers.step_in(timedelta(seconds=1))
    assert triggers.poll() is None
    now[0] = 1
    triggers.request("asked for")
    assert triggers.poll() == Trigger("asked for", scheduled=False)
    assert triggers.poll() == Trigger("a step", scheduled=False, step=True)
    assert triggers.poll() is None
    triggers.step_in(timedelta(seconds=1))
    triggers.step_in(None)
    now[0] = 3
    assert triggers.poll() is None


# The budget of notifications.


class Raises:
    """Many brokers whose rates rise from 10 to 100 MB/s; their steps are counted in virtual time."""

    def __init__(self, brokers: int) -> None:
        self.seconds, self.written = 0.0, 0
        self.triggers = Triggers(timedelta(hours=1), lambda: self.seconds)
        self.ramps = Ramps(self, self.triggers, self._stood, lambda: self.seconds)
        ids = range(1, brokers + 1)
        decisions = tuple(builders.decision(b, FOLLOWER, mb(100)) for b in ids)
        self.plan = Plan(decisions, hold=True)
        entry = LedgerEntry({FOLLOWER_RATE: LedgerKey(None, str(mb(10)), target=str(mb(100)))}, 1)
        self.snapshot = Snapshot(
            1,
            frozenset(ids),
            throttles={ConfigResource.broker(b): {FOLLOWER_RATE: str(mb(10))} for b in ids},
            ledger={ConfigResource.broker(b): entry for b in ids},
        )

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        self.written += len(changes)
        return [Outcome(change.resource, OutcomeStatus.APPLIED) for change in changes]

    def _stood(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def run(self, seconds: int) -> None:
        self.ramps.took(self.plan, self.snapshot, [], [])
        for _ in range(seconds):
            self.seconds += 1
            while (trigger := self.triggers.poll()) is not None:
                if trigger.step:
                    self.ramps.step(1, 1)

    def arrived(self) -> int:
        return sum(keys[FOLLOWER_RATE] == str(mb(100)) for keys in self.snapshot.throttles.values())


def test_a_thousand_brokers_rise_in_fewer_steps_within_the_budget() -> None:
    raises = Raises(1000)
    raises.run(40)
    assert raises.arrived() == 1000
    assert raises.written <= BUDGET - ramps._RESERVE


def test_few_brokers_rise_second_by_second() -> None:
    raises = Raises(10)
    raises.run(25)
    assert raises.arrived() == 10
    assert raises.written == 10 * 18


def test_where_steps_are_far_apart_there_is_none_before_half_of_that_time_is_over() -> None:
    """So rates that began to rise at different times rise together: of each change there is one notification."""
    raises = Raises(1000)
    raises.run(5)
    assert raises.written == 1000
    elapsed = []
    for _ in range(4):
        raises.seconds += 1
        elapsed.append(raises.ramps.pace(1, FOLLOWER).total_seconds())
    assert elapsed == [0, 0, 3, 4]


@pytest.mark.parametrize("left", [0, ramps._RESERVE])
def test_when_the_budget_is_spent_raises_wait_for_the_brokers_to_forget(left: int) -> None:
    raises = Raises(100)
    edits = (Edit(FOLLOWER_RATE, None, "1"),)
    spent = [Change(ConfigResource.topic(f"t{n}"), edits, None) for n in range(BUDGET - left)]
    outcomes = [Outcome(change.resource, OutcomeStatus.APPLIED) for change in spent]
    raises.ramps.took(raises.plan, raises.snapshot, spent, outcomes)
    raises.run(60)
    assert raises.written == 0
    raises.run(int(BUDGET_SPAN.total_seconds()))
    assert raises.arrived() == 100


def test_both_sides_of_a_broker_rise_in_one_change(bench: Bench) -> None:
    bench.begin_move()
    bench.cluster.add_topic("t2", {0: (1003, 1002)})
    bench.cluster.start_reassignment("t2", {0: (1003, 1004)})
    for broker_id in BROKERS:
        bench.measure(broker_id, tx=80, rx=80)
    bench.cycle()
    for broker_id in BROKERS:
        bench.measure(broker_id, tx=10, rx=10)
    bench.cycle()
    written = len(bench.cluster.writes)
    step(bench)
    assert len(bench.cluster.writes) - written == len({1001, 1003, 1004})
    assert {role: bench.rate(1003, role) for role in (LEADER, FOLLOWER)} == {
        ReplicaRole.LEADER: pytest.approx(18 + 2 * 4.05),
        ReplicaRole.FOLLOWER: pytest.approx(18 + 2 * 4.05),
    }

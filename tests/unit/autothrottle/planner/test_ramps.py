"""Ramps: a rate rises in steps between cycles, also across leaders, and falls at once."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from autothrottle.core.cluster.configs import FOLLOWER_RATE, ConfigResource, LedgerEntry, LedgerKey, ReplicaRole
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.cycle.decision import CycleResults
from autothrottle.core.cycle.input import ControllerState, PlannerSettings
from autothrottle.core.cycle.step import ramp_steps, settle
from autothrottle.core.errors import Unavailable
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import Outcome, OutcomeStatus, Pause, PauseMode, Reason, Throttle
from autothrottle.core.throttles import changes
from autothrottle.core.throttles.changes import BUDGET, BUDGET_SPAN, WriteHistory
from autothrottle.core.throttles.plan import HOLD_ALL, Plan
from autothrottle.planner.loop import Trigger, Triggers
from autothrottle.ports.kafka import Term
from autothrottle_client import ClusterState
from autothrottle_lab.simulation.link import ThrottleMeter
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.unit.autothrottle.planner.bench import ADDRESS, BROKERS, FOLLOWER, LEADER, Bench

BROKER_1003 = ConfigResource.broker(1003)


pytestmark = pytest.mark.usefixtures("info_lines")


def start_ramp(bench: Bench) -> None:
    """Start a reassignment whose follower throttle ramps from 27 to 81 MB/s; stop after 6 steps."""
    bench.begin_reassignment()
    bench.set_load(1003, inbound=70)
    bench.cycle()
    assert bench.rate(1003, FOLLOWER) == 27.0
    bench.set_load(1003, inbound=10)
    bench.cycle()
    for _ in range(5):
        run_step(bench)
    assert bench.rate(1003, FOLLOWER) == pytest.approx(27 + 6 * 2.7)


def run_step(bench: Bench) -> None:
    """Advance one second and run the step that is due."""
    bench.seconds += 1
    bench.planner.run_step(bench.term)


def ledger_key(bench: Bench) -> LedgerKey:
    return bench.cluster.ledger[BROKER_1003].keys[FOLLOWER_RATE]


def test_the_first_throttle_of_a_reassignment_is_set_without_a_ramp(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    assert bench.rates() == {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
    assert ledger_key(bench).target is None


def test_a_raise_takes_one_step_per_second_and_ends_exactly_at_its_target(bench: Bench) -> None:
    start_ramp(bench)
    assert ledger_key(bench).target == str(mb(81))
    seen = bench.finish_ramps()
    assert seen[-1] == 81.0
    assert all(0 <= new - old <= 2.8 for old, new in pairwise(seen))
    assert seen.index(81.0) <= 20 - 6
    assert ledger_key(bench) == LedgerKey(None, str(mb(81)))
    written = len(bench.cluster.writes)
    bench.finish_ramps()
    assert len(bench.cluster.writes) == written, "no writes after the ramp"


def test_a_ramp_is_logged_once_and_posted_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    start_ramp(bench)
    bench.cycle()
    bench.finish_ramps()
    bench.cycle()
    lines = [line for line in caplog.messages if "broker 1003 [follower]" in line and line.startswith("Repl")]
    assert [line.rpartition(" ")[2] for line in lines] == ["27.00MB/s", "81.00MB/s"]
    updates = [line for line in caplog.messages if line.startswith("Updated throttle on broker 1003 [follower]")]
    assert updates == [
        "Updated throttle on broker 1003 [follower]",
        "Updated throttle on broker 1003 [follower] to 29.70MB/s, rising to 81.00MB/s by 12:02:19Z",
    ]
    events = [event.text for event in bench.posted() if event.title == "Broker replication throttle set"]
    rise = "[1003, follower, 29.70, rising to 81.00MB/s by 12:02:19Z]"
    assert [("[1003, follower, 27.00]" in text, rise in text) for text in events] == [
        (True, False),
        (False, True),
    ]


def test_during_a_ramp_state_and_metrics_have_the_rate_in_kafka_and_the_target(bench: Bench) -> None:
    """The decided rate was shown as the throttle: 7.05 MB/s, while Kafka had 1.94 for another 20 s."""
    bench.election.join(ADDRESS, lambda: None)
    assert bench.election.term is not None
    bench.term = bench.election.term
    start_ramp(bench)
    bench.planner._publish(bench.cycle("an override changed"))
    arrival = bench.now() + timedelta(seconds=13)
    for _ in range(15):
        rate = bench.rate(1003, FOLLOWER)
        assert rate is not None
        target, arrival_time = (mb(81), arrival) if rate < 81 else (None, None)
        state = bench.planner.state()
        throttles = ClusterState(1, ADDRESS, state.last_cycle, (), throttles=state.throttles).current_throttles
        assert throttles[1003, FOLLOWER] == Throttle(1003, FOLLOWER, round(rate * mb(1)), target, arrival_time)
        assert throttles[1001, LEADER] == Throttle(1001, LEADER, mb(72))
        series = {(m.name, labels[1]): value for m, value, labels in bench.planner.samples() if "role" in m.labels}
        assert series["autothrottle_throttle_bytes_per_second", "follower"] == round(rate * mb(1))
        assert series["autothrottle_throttle_target_bytes_per_second", "follower"] == mb(81)
        run_step(bench)
    assert bench.rate(1003, FOLLOWER) == 81


def test_a_lower_rate_is_set_at_once_and_ends_the_ramp(bench: Bench) -> None:
    start_ramp(bench)
    bench.set_load(1003, inbound=88)
    bench.cycle()
    assert (bench.rate(1003, FOLLOWER) or 0) < 27
    assert ledger_key(bench).target is None
    current = bench.rate(1003, FOLLOWER)
    assert set(bench.finish_ramps()) == {current}


def test_a_write_that_kafka_refuses_a_pause_and_an_edit_of_another_party_show_the_rate_in_kafka(bench: Bench) -> None:
    bench.cluster.refused[BROKER_1003] = "not now"
    bench.begin_reassignment()
    refused = bench.cycle()
    assert refused.throttles_are_known and refused.throttles == (Throttle(1001, LEADER, mb(72)),)
    bench.cluster.refused[BROKER_1003] = ""
    assert Throttle(1003, FOLLOWER, mb(81)) in bench.cycle().throttles
    bench.pauses.set_pause(Pause(PauseMode.KEEP, "anna"))
    bench.cluster.configs[BROKER_1003] = {FOLLOWER_RATE: "5000000"}
    paused = bench.cycle()
    assert paused.throttles == (Throttle(1001, LEADER, mb(72)), Throttle(1003, FOLLOWER, mb(5)))


def test_in_shadow_mode_the_throttles_are_those_in_kafka() -> None:
    with Bench(shadow=True) as bench:
        bench.begin_reassignment()
        bench.cluster.configs[BROKER_1003] = {FOLLOWER_RATE: "5000000"}
        record = bench.cycle()
        assert [d.rate_bytes_per_second for d in record.decisions] == [mb(72), mb(85.5)]
        assert record.throttles == (Throttle(1003, FOLLOWER, mb(5)),)


def test_a_ramp_continues_to_a_lower_target_above_the_current_rate(bench: Bench) -> None:
    start_ramp(bench)
    bench.overrides.set_override(1003, StoredOverride(mb(60)))
    bench.cycle("an override changed")
    assert 44 < (bench.rate(1003, FOLLOWER) or 0) < 60
    assert bench.finish_ramps()[-1] == 60.0


def test_an_override_is_ramped_and_reaches_its_exact_value(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cycle()
    bench.overrides.set_override(None, StoredOverride(10**9 + 7, beyond_capacity=True))
    bench.cycle("an override changed")
    assert bench.rate(1003, FOLLOWER) == pytest.approx(81 + 1000 / 30, abs=0.1)
    bench.finish_ramps()
    assert bench.cluster.configs[BROKER_1003][FOLLOWER_RATE] == str(10**9 + 7)


def test_the_change_threshold_compares_with_the_target_of_the_ramp(bench: Bench) -> None:
    start_ramp(bench)
    bench.set_load(1003, inbound=14)
    record = bench.cycle("requested")
    decision = next(d for d in record.decisions if d.broker_id == 1003)
    assert (decision.reason, decision.rate_bytes_per_second) == (Reason.UNCHANGED, mb(81))
    assert bench.finish_ramps()[-1] == 81.0


def test_a_ramp_continues_without_metrics(bench: Bench) -> None:
    start_ramp(bench)
    bench.metrics.lose(1003, "host h3 reports nothing")
    record = bench.cycle()
    assert next(d for d in record.decisions if d.broker_id == 1003).reason is Reason.KEPT
    assert bench.finish_ramps()[-1] == 81.0


def test_cycles_during_a_ramp_do_not_speed_it_up(bench: Bench) -> None:
    start_ramp(bench)
    before = bench.rate(1003, FOLLOWER)
    for _ in range(4):
        bench.cycle("requested", after=0.2)
        assert (bench.rate(1003, FOLLOWER) or 0) - (before or 0) <= 2.8
    assert bench.finish_ramps()[-1] == 81.0


def test_a_new_leader_continues_the_ramp_from_the_current_rate(bench: Bench) -> None:
    start_ramp(bench)
    before = bench.rate(1003, FOLLOWER) or 0
    bench.planner.stop()
    bench.planner = bench.new_planner()
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    bench.set_load(1003, inbound=10 + before)  # without log sizes it assumes that the current rate always applied
    bench.cycle("elected")
    assert bench.rate(1003, FOLLOWER) == pytest.approx(before + 2.7, abs=0.1)
    seen = bench.finish_ramps()
    assert all(new - old <= 2.8 for old, new in pairwise([before + 2.7, *seen]))
    assert seen[-1] == 81.0


def test_a_new_term_makes_no_step_before_its_first_cycle(bench: Bench) -> None:
    """Another leader may have decided differently in between."""
    start_ramp(bench)
    before = bench.rate(1003, FOLLOWER)
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    assert set(bench.finish_ramps()) == {before}
    bench.cycle()
    assert before is not None and bench.finish_ramps()[-1] > before


def test_a_deposed_leader_makes_no_step(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    start_ramp(bench)
    before = bench.rate(1003, FOLLOWER)
    bench.electorate.begin_term("10.0.0.2:4003")
    run_step(bench)
    assert bench.rate(1003, FOLLOWER) == before
    assert any(line.startswith("The ramp ended: ") for line in caplog.messages)
    bench.planner.run_step(None)


def test_a_step_that_finds_a_foreign_rate_requests_a_cycle_which_continues_the_ramp(bench: Bench) -> None:
    start_ramp(bench)
    bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, "1000000")
    while bench.planner._triggers.poll() is not None:
        pass
    run_step(bench)
    trigger = bench.planner._triggers.poll()
    assert trigger is not None and "a ramp step failed" in trigger.reason
    record = bench.cycle(trigger.reason)
    assert any("another party changed the rate" in finding and " to 1000000;" in finding for finding in record.findings)
    assert bench.rate(1003, FOLLOWER) == pytest.approx(1 + 2.7)
    assert bench.finish_ramps()[-1] == 81.0


def test_a_refused_step_does_not_delay_other_brokers_and_the_next_cycle_retries_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin_reassignment()
    for broker_id in BROKERS:
        bench.set_load(broker_id, outbound=70, inbound=70)
    bench.cycle()
    for broker_id in BROKERS:
        bench.set_load(broker_id, outbound=10, inbound=10)
    bench.cycle()
    bench.cluster.refused[BROKER_1003] = "it is down"
    before = bench.rate(1003, FOLLOWER)
    bench.finish_ramps()
    assert (bench.rate(1001, LEADER), bench.rate(1003, FOLLOWER)) == (81.0, before)
    assert sum("Ramp step failed" in message for message in caplog.messages) == 1, "not once per step"
    bench.cluster.refused[BROKER_1003] = ""
    bench.cycle()
    assert bench.finish_ramps()[-1] == 81.0


def test_a_pause_stops_a_ramp_which_continues_afterwards(bench: Bench) -> None:
    start_ramp(bench)
    before = bench.rate(1003, FOLLOWER)
    bench.pauses.set_pause(Pause(PauseMode.KEEP, "an operator", NOON, "a release"))
    bench.cycle("paused or resumed")
    assert set(bench.finish_ramps()) == {before}
    bench.pauses.remove_pause()
    bench.cycle("paused or resumed")
    assert bench.finish_ramps()[-1] == 81.0


def test_a_pause_stops_a_ramp_even_if_the_cycle_that_read_it_failed(bench: Bench) -> None:
    """The cycle read the pause and then failed to read the cluster. The steps of the earlier plan continued."""
    start_ramp(bench)
    before = bench.rate(1003, FOLLOWER)
    bench.pauses.set_pause(Pause(PauseMode.KEEP, "an operator", NOON, "a release"))
    bench.cluster.incomplete = "topics cannot be listed"
    assert bench.cycle("paused or resumed").error
    bench.cluster.incomplete = ""
    assert set(bench.finish_ramps()) == {before}
    bench.pauses.remove_pause()
    bench.cycle("paused or resumed")
    assert bench.finish_ramps()[-1] == 81.0


def test_a_reassignment_that_ends_during_a_ramp_is_cleaned_up(bench: Bench) -> None:
    start_ramp(bench)
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()
    bench.finish_ramps()
    assert bench.is_clean()


def test_the_planner_thread_runs_the_steps() -> None:
    with Bench(real_time=True, interval=timedelta(hours=1)) as bench:
        bench.begin_reassignment()
        bench.planner.start(ADDRESS)
        eventually(lambda: bench.rate(1003, FOLLOWER) == 81.0)
        bench.overrides.set_override(1003, StoredOverride(mb(95)))
        eventually(lambda: ledger_key(bench).target == str(mb(95)))
        eventually(lambda: bench.rate(1003, FOLLOWER) == 95.0)
        assert ledger_key(bench).target is None


def test_a_due_cycle_runs_before_a_due_step() -> None:
    now = [0.0]
    triggers = Triggers(timedelta(seconds=60), lambda: now[0])
    assert triggers.poll() == Trigger("interval", scheduled=True)
    triggers.step_in(timedelta(seconds=1))
    assert triggers.poll() is None
    now[0] = 1
    triggers.request("requested")
    assert triggers.poll() == Trigger("requested", scheduled=False)
    assert triggers.poll() == Trigger("ramp step", scheduled=False, step=True)
    assert triggers.poll() is None
    triggers.step_in(timedelta(seconds=1))
    triggers.step_in(None)
    now[0] = 3
    assert triggers.poll() is None


# The budget of change notifications.


class RampBench:
    """Brokers whose rates ramp from 10 to 100 MB/s in virtual time; counts the written changes."""

    def __init__(self, brokers: int, low: float = 10, high: float = 100) -> None:
        self.seconds, self.written = 0.0, 0
        self.target = str(mb(high))
        ids = range(1, brokers + 1)
        self.plan = Plan(tuple(builders.decision(b, FOLLOWER, mb(high)) for b in ids), hold=HOLD_ALL)
        entry = LedgerEntry({FOLLOWER_RATE: LedgerKey(None, str(mb(low)), target=self.target)}, 1)
        self.snapshot = Snapshot(
            1,
            frozenset(ids),
            throttles={ConfigResource.broker(b): {FOLLOWER_RATE: str(mb(low))} for b in ids},
            ledger={ConfigResource.broker(b): entry for b in ids},
        )
        self.state = ControllerState()

    @property
    def rate(self) -> int:
        """The current throttle of broker 1, bytes/s."""
        return int(self.snapshot.throttles[ConfigResource.broker(1)][FOLLOWER_RATE])

    def begin(self) -> None:
        """Continue from a cycle that found the plan and the snapshot."""
        ramp = self.state.term.ramp.begin(self.plan, self.snapshot).after_writes((), (), self.seconds)
        self.state = replace(self.state, term=replace(self.state.term, ramp=ramp))

    def step(self) -> None:
        """Write the steps that are due."""
        decision = ramp_steps(self.state, NOON, self.seconds)
        self.written += len(decision.changes)
        outcomes = tuple(Outcome(change.resource, OutcomeStatus.APPLIED) for change in decision.changes)
        settings = PlannerSettings(builders.limits())
        self.state, _ = settle(settings, decision, CycleResults(NOON, self.seconds, outcomes))
        self.snapshot = self.state.term.ramp.snapshot

    def run(self, seconds: int) -> None:
        """Continue from a cycle, and write every step that is due."""
        self.begin()
        end, due = self.seconds + seconds, self._due()
        while due is not None and due <= end:
            self.seconds = due
            self.step()
            due = self._due()
        self.seconds = end

    def _due(self) -> float | None:
        """The time of the next step, in whole seconds from now on."""
        delay = self.state.term.ramp.due_in(self.state.written, self.seconds)
        return None if delay is None else max(self.seconds + 1, math.ceil(self.seconds + delay.total_seconds()))

    def at_target(self) -> int:
        return sum(keys[FOLLOWER_RATE] == self.target for keys in self.snapshot.throttles.values())


def test_a_thousand_brokers_ramp_in_fewer_steps_within_the_budget() -> None:
    ramping = RampBench(1000)
    ramping.run(40)
    assert ramping.at_target() == 1000
    assert ramping.written <= BUDGET - changes._RESERVE


def test_few_brokers_ramp_with_one_step_per_second() -> None:
    ramping = RampBench(10)
    ramping.run(30)
    assert ramping.at_target() == 10
    assert ramping.written == 10 * 27


def test_a_rate_waits_at_least_half_of_the_step_interval() -> None:
    """Ramps that started at different times then share their steps: one change, with one notification, per broker."""
    ramping = RampBench(1000)
    ramping.run(5)
    assert ramping.written == 1000
    elapsed = []
    for _ in range(4):
        ramping.seconds += 1
        pace = ramping.state.term.ramp.pace(ramping.state.written, ramping.seconds)
        elapsed.append(pace.elapsed((1, FOLLOWER)).total_seconds())
    assert elapsed == [0, 0, 3, 4]


def test_a_late_step_is_not_larger_than_the_others() -> None:
    """A step that came 4 s late was five times as large, and the broker let 11 s of it through at link speed."""
    ramping = RampBench(10)
    ramping.run(5)
    before = ramping.rate
    ramping.seconds += 4
    ramping.step()
    assert ramping.rate - before == pytest.approx(mb(100) / 30, abs=1)


def raised_rates(low: float, high: float, seed: int, failover: bool) -> list[tuple[float, int]]:
    """Return (seconds, bytes/s) of each step of a raise. Some are 3 s late. `failover`: the leader dies halfway."""
    chance, ramping, rates = random.Random(seed), RampBench(1, low, high), list[tuple[float, int]]()
    ramping.begin()
    while not ramping.at_target():
        if failover and ramping.rate >= mb((low + high) / 2):
            failover = False
            ramping.seconds += chance.uniform(4, 8)
            ramping.state = ControllerState()
            ramping.begin()
        ramping.step()
        rates.append((ramping.seconds + chance.uniform(0, 0.07), ramping.rate))
        ramping.seconds += 1 + chance.choice([0.05] * 9 + [3])
    return rates


def peak_second(low: float, rates: Sequence[tuple[float, int]], stall: float = 0) -> float:
    """Return the most MB that a broker lets through in a second, when its throttle is raised from `low` MB/s.

    `stall`: seconds without any traffic, 12 s after the raise begins.
    """
    fetched, link = mb(0.5), mb(200) * 0.02
    meter, passed = ThrottleMeter(), [0.0]
    rate, left = mb(low), list(reversed(rates))
    for millis in range(0, 65_000, 20):
        while left and left[-1][0] <= millis / 1000 - 20:  # until then, the window fills at the low rate
            rate = left.pop()[1]
        allowed = meter.available_rate(millis, rate)
        amount = 0.0 if allowed < 0 or 0 <= millis / 1000 - 32 < stall else min(allowed + fetched, link)
        if amount:
            meter.record(millis, amount)
        passed.append(passed[-1] + amount)
    return max(after - before for before, after in zip(passed[1000:], passed[1050:], strict=False)) / mb(1)


@pytest.mark.parametrize("failover", [False, True], ids=["", "failover"])
@pytest.mark.parametrize("low", [1.5, 3, 6])
def test_peak_second_of_a_raise_carries_at_most_twice_the_new_rate(low: float, failover: bool) -> None:
    """A leader that was killed halfway through a raise left a burst that met the one of the next leader's steps."""
    peaks = [peak_second(low, raised_rates(low, 9, seed, failover)) for seed in range(4)]
    assert max(peaks) <= 2 * 9


@pytest.mark.parametrize("stall", [1, 2, 4])
def test_a_stall_during_a_raise_has_the_burst_of_a_stall_at_the_new_rate(stall: float) -> None:
    """Kafka lets the bytes of a stall through at once, also at a constant rate. No ramp prevents that."""
    raised = max(peak_second(3, raised_rates(3, 9, seed, failover=False), stall) for seed in range(4))
    constant = peak_second(9, [], stall)
    assert constant >= 0.95 * 9 * (stall + 1)
    assert raised <= 1.1 * constant


@pytest.mark.parametrize("left", [0, pytest.param(changes._RESERVE, marks=pytest.mark.repeat)])
def test_ramps_wait_when_the_budget_is_spent_until_brokers_drop_old_notifications(left: int) -> None:
    ramping = RampBench(100)
    ramping.state = replace(ramping.state, written=WriteHistory().add(0, BUDGET - left))
    ramping.run(60)
    assert ramping.written == 0
    ramping.run(int(BUDGET_SPAN.total_seconds()))
    assert ramping.at_target() == 100


def test_both_roles_of_a_broker_ramp_in_one_change(bench: Bench) -> None:
    bench.begin_reassignment()
    bench.cluster.add_topic("t2", {0: (1003, 1002)})
    bench.cluster.submit_reassignment("t2", {0: (1003, 1004)})
    for broker_id in BROKERS:
        bench.set_load(broker_id, outbound=80, inbound=80)
    bench.cycle()
    for broker_id in BROKERS:
        bench.set_load(broker_id, outbound=10, inbound=10)
    bench.cycle()
    written = len(bench.cluster.writes)
    run_step(bench)
    assert len(bench.cluster.writes) - written == len({1001, 1003, 1004})
    assert {role: bench.rate(1003, role) for role in (LEADER, FOLLOWER)} == {
        ReplicaRole.LEADER: pytest.approx(18 + 2 * 2.7),
        ReplicaRole.FOLLOWER: pytest.approx(18 + 2 * 2.7),
    }


@pytest.mark.parametrize("error", [Unavailable("ZooKeeper is away"), KeyError("a bug")])
def test_a_ramp_step_that_raises_ends_the_ramp_and_requests_a_cycle(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    start_ramp(bench)
    before = bench.rate(1003, FOLLOWER)
    with monkeypatch.context() as broken:
        broken.setattr(bench.cluster, "apply", fail)
        run_step(bench)
    assert "Ramp step failed; the next cycle retries it" in caplog.text
    run_step(bench)
    assert bench.rate(1003, FOLLOWER) == before, "no step follows before the cycle has read the throttles"
    bench.cycle()
    assert bench.finish_ramps()[-1] == 81.0

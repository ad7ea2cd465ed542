"""Recorded cycles that are run again decide the same, and differ exactly where the version differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any

import pytest

from autothrottle.adapters.memory import MemoryDecisions
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cycle.decision import CycleDecision
from autothrottle.core.cycle.input import ControllerState, CycleObservation, PlannerSettings
from autothrottle.core.cycle.step import step
from autothrottle.core.operators.sources import StoredOverride, parse_schedule
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy, StaticPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.records import Decision, Pause, PauseMode, Reason
from autothrottle.core.scoring import replay as replay_module
from autothrottle.core.scoring.cycle_records import CYCLE_VERSION, CycleRecord
from autothrottle.core.scoring.replay import DecisionDifference, TermReplay
from autothrottle.core.throttles import plan
from autothrottle.planner import loop
from autothrottle_lab.simulate.virtual_time import SETTINGS, VirtualRecovery, VirtualScenario
from tests.builders import NOON, limits, mb
from tests.system.scorer import golden
from tests.unit.autothrottle.planner.bench import Bench

POLICIES = [AdaptivePolicy(), HeadroomPolicy(), StaticPolicy(mb(30))]
NAMES = [policy.name for policy in POLICIES]


def same(settings: PlannerSettings) -> PlannerSettings:
    return settings


def replayed(
    log: MemoryDecisions,
    changed: Callable[[PlannerSettings], PlannerSettings] = same,
    records: Sequence[CycleRecord] | None = None,
) -> tuple[list[TermReplay], list[DecisionDifference]]:
    """Replay all terms of a log; return their replays, which have the findings, and all differences."""
    replays, differences = [], list[DecisionDifference]()
    kept = log.cycles if records is None else records
    for term in sorted({record.term for record in kept}):
        rates: dict[int, dict[LinkSide, tuple[int, str]]] = {}
        for row in log.decisions:
            if row.term == term:
                side = row.broker_id, ReplicaRole(row.role)
                rates.setdefault(row.cycle, {})[side] = row.rate_decided, row.reason
        replay = TermReplay("kafka", term, changed)
        differences += replay.run([r for r in kept if r.term == term], partial(rates_of, rates))
        replays.append(replay)
    return replays, differences


def rates_of(rates: Mapping[int, Mapping[LinkSide, tuple[int, str]]], cycle: int) -> Mapping[LinkSide, tuple[int, str]]:
    return rates.get(cycle, {})


@cache
def story(name: str) -> MemoryDecisions:
    """Log, once for all tests with this policy, what a controller meets.

    These are a reassignment with ramps, overrides, pauses, missing metrics, a schedule, foreign edits and a new leader.
    """
    log, policy = MemoryDecisions(), POLICIES[NAMES.index(name)]
    schedule = parse_schedule("12:10-12:20=50")
    with Bench(decisions=log, policy=policy, schedule=schedule, cleanup_after=1, cleanup_foreign=True) as bench:
        bench.cycle()
        bench.begin_reassignment(partitions=3)
        bench.cycle("a reassignment started")
        bench.set_load(1001, outbound=60)
        bench.cycle()
        bench.set_load(1001, outbound=5)
        bench.cycle()
        bench.finish_ramps()
        bench.overrides.set_override(1003, StoredOverride(mb(7), expire_time=NOON + timedelta(minutes=8)))
        bench.cycle("an override changed")
        bench.metrics.unavailable(True)
        for _ in range(3):
            bench.cycle()
        bench.metrics.unavailable(False)
        bench.pauses.set_pause(Pause(PauseMode.CLEAR, "ada", NOON, "maintenance"))
        bench.cycle("paused")
        bench.pauses.remove_pause()
        for _ in range(6):
            bench.cycle()
        bench.planner.stop()
        bench.planner = bench.new_planner()
        bench.term = type(bench.term)(bench.electorate.begin_term("another"))
        bench.cluster.finish("t1", 1)
        bench.cycle()
        bench.cluster.finish("t1")
        for _ in range(4):
            bench.cycle()
    return log


@pytest.mark.parametrize("policy", NAMES)
def test_the_version_that_wrote_a_log_decides_the_same_again(policy: str) -> None:
    log = story(policy)
    replays, differences = replayed(log)
    assert differences == []
    assert [replay.findings for replay in replays] == [[], []]
    assert sum(replay.summary.cycles for replay in replays) == len(log.cycles)


def simulated(scenario: VirtualScenario, policy: Policy) -> MemoryDecisions:
    """Return the log of a simulated recovery under a policy."""
    log, settings = MemoryDecisions(), replace(scenario.settings, policy=policy)
    VirtualRecovery(replace(scenario, settings=settings, step=timedelta(seconds=1)), log, "kafka").run()
    return log


def assert_decided_again(log: MemoryDecisions) -> None:
    """Assert that a replay decides each decision of a log as it was logged."""
    replays, differences = replayed(log)
    assert differences == []
    assert sum(replay.summary.decisions for replay in replays) == len(log.decisions)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param("restless", POLICIES[0], id="restless-adaptive"),
        pytest.param("restless", POLICIES[1], id="restless-headroom", marks=pytest.mark.repeat),
        pytest.param("handed-over", POLICIES[0], id="handed-over-adaptive"),
        pytest.param("handed-over", POLICIES[1], id="handed-over-headroom"),
    ],
)
def test_simulated_recoveries_are_decided_the_same_again(name: str, policy: Policy) -> None:
    assert_decided_again(simulated(golden.SCENARIOS[name], policy))


@pytest.mark.parametrize(
    ("policy", "minutes"),
    [
        pytest.param(POLICIES[0], 7, id="adaptive"),
        pytest.param(POLICIES[1], 2, id="headroom", marks=pytest.mark.repeat),
    ],
)
def test_decisions_on_stale_metrics_are_the_same_again(policy: Policy, minutes: int) -> None:
    """The metrics are minutes old, then missing for ten minutes, and old again."""
    late, outage = timedelta(minutes=minutes), (timedelta(minutes=4), timedelta(minutes=14))
    scenario = replace(golden.SCENARIOS["restless"], metrics_delay=late, metrics_outage=outage)
    log = simulated(scenario, policy)
    assert_decided_again(log)
    measured = [row for row in log.decisions if row.measured_to is not None]
    assert 0 < len(measured) < len(log.decisions)
    assert all(row.time - row.measured_to >= late for row in measured if row.measured_to is not None)


@pytest.mark.parametrize("policy", NAMES[:2])
def test_a_version_with_another_minimum_differs_exactly_where_the_minimum_applies(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decisions after it must not differ: their input is that of the log, and so is what was really written."""
    log = story(policy)
    without_load = plan._without_load

    def raised_minimum(*arguments: Any) -> Decision:
        decision = without_load(*arguments)
        if decision.reason is not Reason.MINIMUM:
            return decision
        return replace(decision, rate_bytes_per_second=decision.rate_bytes_per_second + 1)

    minimum = {(row.term, row.cycle, row.broker_id, row.role) for row in log.decisions if row.reason == "minimum"}
    assert minimum
    monkeypatch.setattr(plan, "_without_load", raised_minimum)
    _, differences = replayed(log)
    sides = {(d.term, d.cycle, *d.side) for d in differences if d.side is not None}
    assert {(term, cycle, broker_id, role.value) for term, cycle, broker_id, role in sides} == minimum
    assert len(differences) == len(minimum)
    assert all(d.rate_now == (d.rate_then or 0) + 1 for d in differences)


def test_a_changed_setting_differs_in_every_measured_rate() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_reassignment()
        for _ in range(3):
            bench.cycle()

    def halved(settings: PlannerSettings) -> PlannerSettings:
        return replace(settings, limits=replace(settings.limits, max_tx_ratio=0.45, max_rx_ratio=0.45))

    (replay,), differences = replayed(log, halved)
    assert {(d.cycle, d.side) for d in differences} == {
        (cycle, side) for cycle in (1, 2, 3) for side in [(1001, ReplicaRole.LEADER), (1003, ReplicaRole.FOLLOWER)]
    }
    first = differences[0]
    assert (first.rate_then, first.rate_now) == (mb(72), mb(36))
    assert (replay.summary.cycles, replay.summary.differing_cycles, replay.summary.differences) == (3, 3, 6)


def test_a_damaged_record_ends_only_the_rest_of_its_term() -> None:
    log = story("headroom")
    damaged = [
        replace(record, packed=record.packed[: len(record.packed) // 2])
        if (record.term, record.cycle) == (1, 5)
        else record
        for record in log.cycles
    ]
    replays, differences = replayed(log, records=damaged)
    assert differences == []
    (finding,), others = replays[0].findings, replays[1].findings
    assert "cycles from 5 on are left out" in finding.sentence
    assert others == []
    assert replays[0].summary.cycles == 4
    assert replays[1].summary.cycles == sum(record.term == 2 for record in log.cycles)


def test_a_term_whose_beginning_is_missing_is_compared_after_its_warm_up() -> None:
    outage = timedelta(minutes=2), timedelta(minutes=9)
    begin, step = NOON.replace(hour=23, minute=54), timedelta(seconds=1)
    scenario = golden.scenario(5, golden.BUDGET * 900, metrics_outage=outage, begin=begin, step=step)
    log = MemoryDecisions()
    VirtualRecovery(scenario, log, "kafka").run()
    second_day = [record for record in log.cycles if record.time.day != NOON.day]
    assert second_day[0].is_whole
    assert sum(record.is_whole for record in log.cycles) == 2
    (replay,), differences = replayed(log, records=second_day)
    assert differences == []
    (finding,) = replay.findings
    assert "lacks the state before cycle" in finding.sentence
    assert 0 < replay.summary.skipped_cycles < len(second_day)
    assert replay.summary.cycles + replay.summary.skipped_cycles == len(second_day)


def test_after_a_bug_a_term_is_compared_again_when_it_has_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug changes the state in a way that no record has. The next record must not continue from `settle`."""
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_reassignment()
        bench.cycle()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "settle", lambda *_: 1 // 0)
            assert "ZeroDivisionError" in bench.cycle().error
        for _ in range(20):
            bench.cycle()
    assert [(record.cycle, record.previous, record.is_whole) for record in log.cycles[:3]] == [
        (1, 0, True),
        (3, 0, True),
        (4, 3, False),
    ]
    (replay,), _ = replayed(log)
    (finding,) = replay.findings
    assert "lacks the state before cycle 3" in finding.sentence
    assert (replay.summary.cycles, replay.summary.skipped_cycles) == (6, 15)


def test_a_cycle_in_which_this_version_fails_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    log = story("headroom")

    def failing(settings: PlannerSettings, state: ControllerState, observation: CycleObservation) -> CycleDecision:
        if state.term.cycles == 4:
            raise ZeroDivisionError("no capacity")
        return step(settings, state, observation)

    monkeypatch.setattr(replay_module, "step", failing)
    _, differences = replayed(log)
    first = differences[0]
    assert (first.cycle, first.sentence) == (5, "this version fails with ZeroDivisionError: no capacity")


def test_records_of_a_newer_version_are_left_out() -> None:
    log = story("headroom")
    newer = [replace(record, schema_version=CYCLE_VERSION + 1) for record in log.cycles]
    replays, differences = replayed(log, records=newer)
    assert differences == []
    assert all("newer version" in replay.findings[0].sentence for replay in replays)


def test_settings_have_no_credentials() -> None:
    """The log may be read by more people than the planner's configuration."""
    from autothrottle.core.scoring.cycle_records import cycle_packing

    names = [name for name in cycle_packing().layout.split("\n") if name.startswith(".settings")]
    assert names
    assert not [name for name in names if any(word in name for word in ("key", "password", "token", "secret", "cert"))]
    assert SETTINGS.limits == limits(min_rate=SETTINGS.limits.min_rate)

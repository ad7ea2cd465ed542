"""Another party removes or changes our throttles in mid-move: when the planner restores them, and what it says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest

from autothrottle.core.cluster.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, ConfigResource
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import Pause, PauseMode
from autothrottle.planner.loop import Trigger
from tests.builders import NOON, eventually, mb
from tests.unit.autothrottle.planner.bench import FOLLOWER, Bench

T1, BROKER_1001, BROKER_1003 = ConfigResource.topic("t1"), ConfigResource.broker(1001), ConfigResource.broker(1003)
EDITED = "another party edited the throttles of brokers/1003"


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        bench.begin_reassignment()
        bench.cycle()
        bench.finish_ramps()
        yield bench


class Party:
    """Another party that removes the follower's rate at once whenever it is set; cycles run when the planner asks."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.restored = bench, list[float]()

    def play(self, seconds: int) -> None:
        """Let time pass. Each removal starts a cycle within a second, as discovery does."""
        bench, triggers = self.bench, self.bench.planner._triggers
        while triggers.poll() is not None:
            pass
        for _ in range(seconds):
            bench.seconds += 1
            trigger = triggers.poll()
            if trigger is not None and not trigger.step:
                bench.planner.run_cycle(bench.term, Trigger(trigger.reason, trigger.scheduled))
            if bench.rate(1003, FOLLOWER) is not None:
                self.restored.append(bench.seconds)
                bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, None)


def test_an_edit_starts_a_cycle_that_restores_the_rate() -> None:
    """The rate came back only with the next scheduled cycle, which was a minute or three away."""
    with Bench(real_time=True, interval=timedelta(hours=1)) as bench:
        bench.planner.start("127.0.0.1:1")
        bench.begin_reassignment()
        eventually(lambda: bench.rate(1003, FOLLOWER) is not None and bench.lists()[1] == "0:1003")
        bench.cluster.set_config_as_user(T1, FOLLOWER_REPLICAS, None)
        eventually(lambda: bench.lists()[1] == "0:1003")


def test_a_party_that_removes_the_rate_at_once_is_undone_every_ten_seconds_and_fills_no_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    party = Party(bench)
    with caplog.at_level(logging.INFO):
        party.play(10)
        caplog.clear()
        party.play(300)
    assert 28 <= len(party.restored) <= 35
    shown = [message for message in caplog.messages if "1003" in message]
    assert len(shown) <= 10, shown
    assert sum("Another program removes the throttle of broker 1003 every few seconds" in text for text in shown) <= 1
    state = bench.planner.state().last_cycle
    bench.planner.stop()
    assert len([event for event in bench.metrics.events if "1003" in event.text]) <= 6
    assert state is None or not state.error


def test_the_finding_stands_in_every_cycle_while_the_party_goes_on(bench: Bench) -> None:
    for _ in range(3):
        bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, None)
        record = bench.cycle(EDITED, after=30)
    (finding,) = [text for text in record.findings if "1003" in text]
    assert finding.startswith("another program removes the throttle of broker 1003 about every 30 s; ")
    assert finding in bench.cycle("another event").findings
    assert bench.rate(1003, FOLLOWER) is not None, "the last restoration was long ago"


def test_only_the_contested_throttle_waits(bench: Bench) -> None:
    for _ in range(4):
        bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, None)
        bench.cycle(EDITED)
    assert bench.rate(1003, FOLLOWER) is None
    bench.cluster.set_config_as_user(BROKER_1001, LEADER_RATE, None)
    bench.cluster.set_config_as_user(T1, FOLLOWER_REPLICAS, None)
    bench.cycle(EDITED)
    assert (1001, "leader") in bench.rates() and bench.lists()[1] == "0:1003"
    assert bench.rate(1003, FOLLOWER) is None
    bench.cycle(EDITED, after=10)
    assert bench.rate(1003, FOLLOWER) is not None


def test_a_ramp_step_restores_no_rate_that_waits(bench: Bench) -> None:
    """Steps are decided between two cycles, so a rising rate could come back every second."""
    bench.set_load(1003, inbound=1)
    for _ in range(4):
        bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, "1000000")
        bench.cycle(EDITED)
    assert bench.rate(1003, FOLLOWER) == 1
    for _ in range(5):
        bench.seconds += 1
        bench.planner.run_step(bench.term)
    assert bench.rate(1003, FOLLOWER) == 1


def test_the_end_of_the_move_removes_what_waits(bench: Bench) -> None:
    for _ in range(4):
        bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, "5")
        bench.cycle(EDITED)
    bench.cluster.finish("t1")
    record = bench.cycle("ended")
    assert bench.cluster.configs.get(BROKER_1003) == {FOLLOWER_RATE: "5"}, "the value of the other party stays"
    assert not any("another program" in text for text in record.findings)
    assert not bench.cluster.ledger


@pytest.mark.parametrize("mode", PauseMode)
def test_nothing_is_restored_during_a_pause(bench: Bench, mode: PauseMode) -> None:
    bench.pauses.set_pause(Pause(mode, "alice", NOON))
    bench.cycle("paused")
    writes = len(bench.cluster.writes)
    for _ in range(4):
        bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, None)
        bench.cycle(EDITED)
    assert len(bench.cluster.writes) == writes and bench.rate(1003, FOLLOWER) is None
    bench.pauses.remove_pause()
    bench.cycle("resumed")
    assert bench.rate(1003, FOLLOWER) is not None


@pytest.mark.parametrize("mode", PauseMode)
def test_a_pause_ends_the_contest(bench: Bench, mode: PauseMode) -> None:
    """The alert fired for the whole pause, also after the end of the move, with no finding that named the program."""
    bench.election.join("127.0.0.1:1", lambda: None)
    assert bench.election.term is not None
    bench.term = bench.election.term
    for _ in range(3):
        bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, None)
        bench.cycle(EDITED)
    assert contested_throttles(bench) == 1
    bench.pauses.set_pause(Pause(mode, "alice", NOON))
    record = bench.cycle("paused")
    assert contested_throttles(bench) == 0 and not any("another program" in text for text in record.findings)


def contested_throttles(bench: Bench) -> float:
    name = "autothrottle_contested_throttles"
    return next(value for metric, value, _ in bench.planner.samples() if metric.name == name)


def test_an_override_is_no_edit_of_another_party(bench: Bench) -> None:
    for rate in (3, 4, 5, 6):
        bench.overrides.set_override(1003, StoredOverride(mb(rate)))
        record = bench.cycle("an override changed")
        assert not any("another p" in finding for finding in record.findings)
        bench.finish_ramps()
        assert bench.rate(1003, FOLLOWER) == rate


def test_a_planner_in_shadow_mode_writes_nothing_after_an_edit() -> None:
    with Bench(shadow=True) as bench:
        bench.begin_reassignment()
        for _ in range(4):
            bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER_RATE, "7")
            bench.cycle(EDITED)
        assert not bench.cluster.writes and bench.cluster.configs[BROKER_1003] == {FOLLOWER_RATE: "7"}

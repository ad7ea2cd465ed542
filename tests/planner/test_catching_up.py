"""A broker that catches up under throttle: its lagging replicas are listed, and all is gone when it is in sync."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.core.catch_up import CatchUp
from autothrottle.core.configs import ConfigResource
from autothrottle.core.cycle import CycleRecord
from autothrottle.core.fetching import ClusterSettings
from autothrottle.core.plan import Reason
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Basis
from autothrottle.core.reassignment import Submitted
from autothrottle.core.topology import Problem
from autothrottle.planner.loop import Planner
from autothrottle.ports.leadership import Term
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.planner.bench import ADDRESS, FOLLOWER, LEADER, Bench

CATCH_UP = CatchUp(1003, "an operator")


@contextmanager
def lagging_bench(**settings: Any) -> Iterator[Bench]:
    """A planner, of which 1003 lacks three replicas; a cycle every 30 s."""
    with Bench(interval=timedelta(seconds=30), **settings) as made:
        made.cluster.add_topic("t1", {0: (1001, 1003), 1: (1001, 1003), 2: (1001, 1002)})
        made.cluster.add_topic("t2", {0: (1002, 1003)})
        for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
            made.cluster.leave_isr(topic, partition, 1003)
        yield made


@pytest.fixture
def bench() -> Iterator[Bench]:
    with lagging_bench() as made:
        yield made


pytestmark = pytest.mark.usefixtures("info_lines")


def test_nothing_of_a_broker_that_lags_is_throttled_unasked(bench: Bench) -> None:
    bench.cycle()
    assert bench.is_clean()


def test_what_it_lacks_is_listed_its_rates_come_from_the_headroom_and_all_goes_when_it_is_in_sync(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    assert bench.lists("t1") == ("0:1001,1:1001", "0:1003,1:1003")
    assert bench.lists("t2") == ("0:1002", "0:1003")
    assert bench.rates() == {(1001, "leader"): 72, (1002, "leader"): 72, (1003, "follower"): 81}
    bench.cluster.join_isr("t1", 0, 1003)
    bench.cycle()
    assert bench.lists("t1") == ("1:1001", "1:1003")
    bench.cluster.join_isr("t1", 1, 1003)
    bench.cycle()
    assert bench.lists("t1") == (None, None) and bench.lists("t2") == ("0:1002", "0:1003")
    assert bench.catch_ups.read_catch_ups() == {1003: CATCH_UP}
    bench.cluster.join_isr("t2", 0, 1003)
    bench.cycle()
    assert bench.is_clean()
    assert bench.catch_ups.read_catch_ups() == {}
    said = [line for line in caplog.messages if line.startswith("Broker 1003")]
    assert said == [
        "Broker 1003 catches up under throttle: 3 replicas are not in sync",
        "Broker 1003 catches up under throttle: 2 replicas are not in sync",
        "Broker 1003 catches up under throttle: 1 replicas are not in sync",
        "Broker 1003 is in sync: its catch-up under throttle is over",
    ]


def asked(bench: Bench, seconds: int) -> str:
    """The reasons of all cycles that are due within so many seconds of virtual time."""
    found = []
    for _ in range(seconds * 10):
        bench.seconds += 0.1
        if (trigger := bench.planner._triggers.poll()) is not None:
            found.append(trigger.reason)
    return "; ".join(found)


def test_a_cycle_comes_back_soon_while_a_broker_catches_up_and_not_afterwards(bench: Bench) -> None:
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    assert "a broker catches up" in asked(bench, 5)
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    bench.cycle("a broker catches up")
    bench.cycle("it is over")
    asked(bench, 5)
    assert "a broker catches up" not in asked(bench, 5)


def test_a_broker_that_is_in_sync_already_is_done_at_once(bench: Bench) -> None:
    bench.catch_ups.start_catch_up(CatchUp(1002))
    bench.cycle()
    assert bench.is_clean() and bench.catch_ups.read_catch_ups() == {}


def test_it_is_not_over_while_some_of_the_cluster_is_unknown(bench: Bench) -> None:
    """What cannot be read may be what the broker lacks."""
    bench.cluster.problems.append(Problem("/brokers/topics/t9", "is no JSON"))
    bench.catch_ups.start_catch_up(CatchUp(1002))
    bench.cycle()
    assert bench.catch_ups.read_catch_ups() == {1002: CatchUp(1002)}
    bench.cluster.problems.clear()
    bench.cycle()
    assert bench.catch_ups.read_catch_ups() == {}


def test_a_broker_that_is_down_is_throttled_before_it_starts(bench: Bench) -> None:
    bench.cluster.brokers.discard(1003)
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    bench.cycle()
    assert bench.rate(1003, FOLLOWER) == 81
    assert bench.catch_ups.read_catch_ups() == {1003: CATCH_UP}


def test_when_it_is_stopped_its_throttles_go(bench: Bench) -> None:
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    bench.catch_ups.remove_catch_up(1003)
    bench.cycle()
    assert bench.is_clean()


def test_a_new_leader_goes_on_with_it(bench: Bench) -> None:
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    bench.planner.stop()
    bench.planner, bench.term = bench.another_planner(), type(bench.term)(0)
    writes = len(bench.cluster.writes)
    bench.cycle()
    edited = {edit.key for change in bench.cluster.writes[writes:] for edit in change.edits}
    assert not {key for key in edited if key.endswith("replicas")}, "the lists that stand are right"
    assert bench.lists("t2") == ("0:1002", "0:1003")


def catch_up_of_a_gigabyte_a_minute(bench: Bench) -> list[CycleRecord]:
    """1003 gets 0.5 GB in 30 s from each of two leaders, and its clients 10 MB/s, for three minutes."""
    bench.cluster.tell_progress(bench.now)
    for leader, topic, partition in ((1001, "t1", 0), (1001, "t1", 1), (1002, "t2", 0)):
        bench.cluster.grow(leader, topic, partition, mb(20_000))
        bench.cluster.grow(1003, topic, partition, mb(5_000))
    bench.catch_ups.start_catch_up(CATCH_UP)
    records = [bench.cycle(after=0)]
    for _ in range(6):
        for row, size in ((("t1", 0), 250), (("t1", 1), 250), (("t2", 0), 500)):
            bench.cluster.grow(1003, *row, mb(size))
        bench.seconds += 30
        for broker_id, tx, rx in ((1001, 20 + 500 / 30, 10), (1002, 20 + 500 / 30, 10), (1003, 20, 10 + 1000 / 30)):
            bench.metrics.set_loads(builders.load(broker_id, tx=mb(tx), rx=mb(rx), end=bench.now()))
        records.append(bench.cycle(after=0))
    return records


def test_what_lands_of_it_is_counted_and_not_taken_for_clients() -> None:
    """Nobody read its log sizes: the adaptive policy guessed, for it and for every leader that it copies from."""
    with lagging_bench(policy=AdaptivePolicy()) as bench:
        first, *_, last = catch_up_of_a_gigabyte_a_minute(bench)
    assert (first.bytes_left, last.bytes_left) == (mb(45_000), mb(39_000))
    assert first.eta is not None and first.eta_is_static
    assert last.eta is not None and not last.eta_is_static
    assert (last.eta - bench.now()).total_seconds() == pytest.approx(39_000 / (1000 / 30), rel=0.01)
    for decision in last.decisions:
        assert decision.basis is Basis.COUNTED
        clients = 20 if decision.role is LEADER else 10
        assert decision.client is not None and decision.client == pytest.approx(mb(clients), rel=0.01)


def moving_for_hours(bench: Bench) -> Bench:
    """With a move of 36 TB from 1002 to 1004 beside what 1003 lacks."""
    bench.cluster.add_topic("moves", {0: (1002, 1001)})
    bench.cluster.start_reassignment("moves", {0: (1002, 1004)})
    bench.cluster.grow(1002, "moves", 0, mb(36_000_000))
    bench.cluster.grow(1004, "moves", 0, 0)
    return bench


def test_what_landed_before_anybody_counted_it_is_not_taken_for_clients() -> None:
    """A discovery that was restarted said that nothing had landed before: all of it was clients, and the rate fell."""
    with lagging_bench(policy=AdaptivePolicy()) as bench:
        before = catch_up_of_a_gigabyte_a_minute(bench)[-1]
        bench.planner.stop()
        bench.planner, bench.term = bench.another_planner(), Term(0)
        bench.cluster.tell_progress(bench.now)
        after = bench.cycle(after=2)
    rates = {(d.broker_id, d.role): d.rate for d in before.decisions}
    assert rates[1003, FOLLOWER] == pytest.approx(mb(81), rel=0.02)
    for decision in after.decisions:
        assert (decision.basis, decision.client) == (Basis.GUESSED, None)
        assert decision.rate == pytest.approx(rates[decision.broker_id, decision.role], rel=0.02)


def test_a_broker_that_does_not_run_yet_takes_neither_eta_nor_counts_from_the_moves_of_its_leaders() -> None:
    """Asked for before the broker starts, the catch-up made the ETA unknown, and adaptive guessed at its leaders."""
    with lagging_bench(policy=AdaptivePolicy()) as bench:
        bench.cluster.brokers.discard(1003)
        bench.cluster.tell_progress(bench.now)
        moving_for_hours(bench)
        bench.catch_ups.start_catch_up(CATCH_UP)
        for _ in range(6):
            bench.cluster.grow(1004, "moves", 0, mb(600))
            bench.seconds += 30
            for broker_id, tx, rx in ((1001, 20, 10), (1002, 40, 10), (1004, 20, 30)):
                bench.metrics.set_loads(builders.load(broker_id, tx=mb(tx), rx=mb(rx), end=bench.now()))
            last = bench.cycle(after=0)
        lists, rate = bench.lists("t2"), bench.rate(1003, FOLLOWER)
    assert (lists, rate) == (("0:1002", "0:1003"), 81)
    assert last.bytes_left == mb(36_000_000 - 3600)
    assert last.eta is not None
    found = {(d.broker_id, d.role): d for d in last.decisions}
    for port, clients in (((1001, LEADER), 20), ((1002, LEADER), 20), ((1004, FOLLOWER), 10)):
        assert found[port].basis is Basis.COUNTED
        assert found[port].client == pytest.approx(mb(clients), rel=0.01)


def test_what_is_left_is_unknown_while_the_only_broker_that_catches_up_does_not_run() -> None:
    with lagging_bench() as bench:
        bench.cluster.brokers.discard(1003)
        bench.cluster.tell_progress(bench.now)
        bench.catch_ups.start_catch_up(CATCH_UP)
        bench.cycle()
        assert bench.cycle().bytes_left is None


def test_it_waits_for_no_move_that_takes_hours() -> None:
    """What lags is less safe than it should be until it is there: it gets what clients leave, and not its need."""
    with lagging_bench(policy=AdaptivePolicy()) as bench:
        last = catch_up_of_a_gigabyte_a_minute(moving_for_hours(bench))[-1]
    rates = {(d.broker_id, d.role): d.rate for d in last.decisions}
    assert rates[1003, FOLLOWER] == pytest.approx(mb(81), rel=0.02)
    assert rates[1001, LEADER] == pytest.approx(mb(72), rel=0.02)


def test_a_deadline_of_moves_does_not_hold_it_back() -> None:
    with lagging_bench(finish_by=NOON + timedelta(hours=1000)) as bench:
        last = catch_up_of_a_gigabyte_a_minute(moving_for_hours(bench))[-1]
    reasons = {(d.broker_id, d.role): d.reason for d in last.decisions}
    assert reasons.pop((1004, FOLLOWER)) is Reason.FINISH_BY
    assert set(reasons) == {(1001, LEADER), (1002, LEADER), (1003, FOLLOWER)}
    assert Reason.FINISH_BY not in reasons.values()


def test_a_move_goes_on_beside_it_and_an_override_rules_it(bench: Bench) -> None:
    bench.begin_move("moves")
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.overrides.set_override(1003, mb(5), False)
    bench.cycle()
    assert bench.lists("moves") == ("0:1001,0:1002", "0:1003")
    assert bench.lists("t2") == ("0:1002", "0:1003")
    assert bench.rate(1003, FOLLOWER) == 5
    bench.cluster.finish("moves")
    bench.cycle()
    assert bench.lists("moves") == (None, None) and bench.lists("t2") == ("0:1002", "0:1003")


def test_while_the_store_cannot_be_read_the_last_ones_hold(bench: Bench) -> None:
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    bench.catch_ups.unavailable(True)
    record = bench.cycle()
    assert any("the catch-ups cannot be read, the last ones hold" in finding for finding in record.findings)
    assert bench.lists("t2") == ("0:1002", "0:1003")


def test_in_shadow_and_while_paused_nothing_is_forgotten() -> None:
    with Bench(shadow=True, interval=timedelta(seconds=60)) as bench:
        bench.catch_ups.start_catch_up(CATCH_UP)
        bench.cycle()
        assert bench.is_clean() and bench.catch_ups.read_catch_ups() == {1003: CATCH_UP}
        assert isinstance(bench.planner, Planner)


def test_a_new_leader_that_cannot_read_the_catch_ups_removes_nothing_of_theirs(bench: Bench) -> None:
    """It took none that could be read for none, and the broker went on at the speed of its link."""
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.begin_move("moves")
    bench.cycle()
    standing = bench.lists("t1"), bench.lists("t2"), bench.rates().keys()
    bench.term = Term(bench.cluster.begin_term())
    bench.catch_ups.unavailable(True)
    record = bench.cycle()
    assert any("cannot be read, nothing is removed until they can" in finding for finding in record.findings)
    assert (bench.lists("t1"), bench.lists("t2"), bench.rates().keys()) == standing
    bench.cluster.finish("moves")
    bench.cycle()
    assert bench.lists("moves") != (None, None)

    bench.catch_ups.unavailable(False)
    bench.cycle()
    assert bench.lists("moves") == (None, None) and bench.lists("t2") == ("0:1002", "0:1003")
    bench.catch_ups.remove_catch_up(1003)
    bench.cycle()
    assert bench.is_clean()


def test_catch_ups_that_ended_under_another_leader_are_not_those_that_hold(bench: Bench) -> None:
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    bench.term = Term(bench.cluster.begin_term())
    bench.catch_ups.remove_catch_up(1003)
    bench.catch_ups.unavailable(True)
    assert "t1" not in bench.cycle().topics


def test_what_is_below_min_isr_is_not_held_back_either(bench: Bench) -> None:
    """Its acks=all producers wait for this very broker, and waited for as long as its throttle took."""
    bench.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": 2, "t2": 1})
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    assert bench.lists("t1") == ("0:1001,1:1001", "0:1003,1:1003"), "nobody knows it yet"
    eventually(lambda: bench.planner._guards.settled)
    record = bench.cycle("partitions are below min.insync.replicas")
    assert bench.lists("t1") == (None, None) and bench.lists("t2") == ("0:1002", "0:1003")
    assert bench.rate(1003, FOLLOWER) == 27.0, "two of three copies are free, and so are two thirds of 81 MB/s"
    assert "partitions below min.insync.replicas are not held back: t1-0, t1-1" in record.findings
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    bench.cycle()
    assert bench.is_clean() and not bench.catch_ups.read_catch_ups()


def test_a_move_of_what_lags_below_min_isr_is_throttled_before_it_is_submitted(bench: Bench) -> None:
    bench.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": 2})
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.election.join(ADDRESS, lambda: None)
    assert bench.election.term is not None
    bench.term = bench.election.term
    bench.cycle()
    eventually(lambda: bench.planner._guards.settled)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bench.planner.submit_reassignment, {("t1", 0): (1001, 1004)}, timedelta(seconds=60))

        def submitted() -> bool:
            bench.cycle("a reassignment is to be submitted")
            return waiting.done()

        eventually(submitted)
        assert waiting.result(30) == Submitted(1)


def test_an_override_with_autoremove_outlives_it_and_waits_for_its_reassignment(bench: Bench) -> None:
    """The lists of what caught up were taken for those of a reassignment that was over."""
    bench.overrides.set_override(None, mb(50), autoremove=True)
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    for _ in range(2):
        bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is not None
    bench.begin_move("moves")
    bench.cycle()
    bench.cluster.finish("moves")
    bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is None


def test_an_override_with_autoremove_whose_reassignment_ended_meanwhile_ends_with_it(bench: Bench) -> None:
    bench.overrides.set_override(None, mb(50), autoremove=True)
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.begin_move("moves")
    bench.cycle()
    bench.cluster.finish("moves")
    for _ in range(2):
        bench.cycle()
    assert bench.overrides.read_overrides().cluster is not None, "it rules what catches up, too"
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is None


def test_another_broker_that_refuses_its_writes_does_not_prolong_it(bench: Bench) -> None:
    """While any broker was down it was never over: what fell behind a day later was throttled again."""
    bench.cluster.add_topic("moves", {0: (1001, 1002)})
    bench.cluster.start_reassignment("moves", {0: (1001, 1004)})
    bench.cluster.refuse(ConfigResource.broker(1004), "broker 1004 does not answer")
    bench.catch_ups.start_catch_up(CATCH_UP)
    bench.cycle()
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    bench.cluster.refuse(ConfigResource.broker(1003), "broker 1003 does not answer")
    bench.cycle()
    assert bench.catch_ups.read_catch_ups() == {1003: CATCH_UP}, "its own throttle still stands"
    bench.cluster.refuse(ConfigResource.broker(1003), "")
    bench.cycle()
    assert bench.rate(1003, FOLLOWER) is None and bench.catch_ups.read_catch_ups() == {}

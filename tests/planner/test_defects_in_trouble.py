"""Defects of the original that show when something fails or comes in between; each test tells what went wrong there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.memory import MemoryCluster, MemoryOverrides
from autothrottle.core.changes import Change, Outcome, OutcomeStatus
from autothrottle.core.configs import FOLLOWER_RATE, ConfigResource, ResourceType
from autothrottle.core.overrides import Overrides
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.planner.loop import Planner, back_off
from tests import builders
from tests.builders import NOON, mb
from tests.planner.bench import ADDRESS, BROKERS, FOLLOWER, LEADER, Bench

MOVE = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
EXACT = ("0:1001,0:1002", "0:1003")
BROKER_1003 = ConfigResource.broker(1003)


# An error of discovery in native mode began the next attempt at once: a cluster that was down got as many requests as
# the machine could send.
@given(st.integers(1, 10_000), st.integers(1, 86_400), st.floats(0, 1, exclude_max=True))
def test_d3_no_wait_is_below_a_second_nor_above_the_interval(troubles: int, interval: int, chance: float) -> None:
    wait = back_off(troubles, timedelta(seconds=interval), chance)
    assert timedelta(seconds=1) <= wait <= timedelta(seconds=interval)
    assert wait <= back_off(troubles + 1, timedelta(seconds=interval), chance)


@given(st.integers(1, 7), st.floats(0.1, 1, exclude_max=True))
def test_d3_two_planners_that_failed_together_do_not_try_again_together(troubles: int, chance: float) -> None:
    interval = timedelta(seconds=180)
    assert back_off(troubles, interval, chance) - back_off(troubles, interval, 0) > timedelta(milliseconds=49)


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_d3_failed_cycles_come_more_and_more_rarely_and_spread_by_chance(chance: float) -> None:
    with Bench() as bench:
        planner = Planner(bench.ports(bench.election), bench.settings, bench.now, lambda: bench.seconds, lambda: chance)
        bench.planner.stop()
        bench.planner = planner
        bench.cluster.unavailable(True)
        waits = []
        for _ in range(8):
            assert bench.cycle("trying again").error
            begin = bench.seconds
            while (trigger := planner._triggers.poll()) is None or "trying again" not in trigger.reason:
                bench.seconds += 0.01
            waits.append(bench.seconds - begin)
        share = 1 + chance / 2
        expected = [min(60, seconds * share) for seconds in (1, 2, 4, 8, 16, 32, 64, 64)]
        assert waits == pytest.approx(expected, abs=0.05)


class Interrupted(MemoryCluster):
    """A cluster where a user is faster than the planner once: between its reading and its writing."""

    def before_writing(self, resource: ConfigResource, key: str, value: str) -> None:
        self._edit: tuple[ConfigResource, str, str] | None = (resource, key, value)

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        edit, self._edit = getattr(self, "_edit", None), None
        if edit is not None:
            self.set_config_as_user(*edit)
        return super().apply(fence, changes, timeout)


# A config was read, changed and written back without a look at what stood by then: whatever somebody had written in
# between was gone. And a write that failed was remembered as done: it was left out from then on.
def test_d9_what_a_user_writes_between_reading_and_writing_is_neither_lost_nor_taken_for_ours() -> None:
    with Bench() as bench:
        cluster = Interrupted(bench.electorate, BROKERS)
        bench.cluster = cluster
        bench.planner.stop()
        bench.planner = bench.another_planner()
        bench.begin_move()
        cluster.before_writing(BROKER_1003, FOLLOWER_RATE, "7000000")
        record = bench.cycle()
        refused = [o for o in record.outcomes if o.status is OutcomeStatus.REFUSED]
        assert [o.resource for o in refused] == [BROKER_1003] and "somebody changed it meanwhile" in refused[0].reason
        assert cluster.configs[BROKER_1003] == {FOLLOWER_RATE: "7000000"}
        bench.cycle("trying again")
        assert bench.rates().keys() == MOVE.keys() and bench.rate(1003, FOLLOWER) != 7.0
        cluster.finish("t1")
        bench.cycle()
        assert bench.rates() == {(1003, "follower"): 7.0}, "the user's rate is put back"
        assert cluster.ledger == {}


# Every brokers' node had its value first and its notification then, as two writes: when the second one failed the
# brokers never heard of the first, and it was not repeated since what stood was right.
def test_d9_each_value_that_stands_was_told_to_the_brokers(bench: Bench) -> None:
    bench.begin_move()
    bench.cluster.refuse(BROKER_1003, "the notification could not be written")
    bench.cycle()
    assert "brokers/1003" not in bench.cluster.notifications and bench.rate(1003, FOLLOWER) is None
    bench.cluster.refuse(BROKER_1003, "")
    bench.cycle("trying again")
    assert "brokers/1003" in bench.cluster.notifications and bench.rates() == MOVE


class HastyOperator(MemoryOverrides):
    """Overrides of which one is set anew right after the planner has read them."""

    renewed = False

    def read_overrides(self) -> Overrides:
        found = super().read_overrides()
        if self.renewed:
            self.renewed = False
            self.set_override(None, mb(33), autoremove=True, who="the operator")
        return found


# At the end of a move the override with autoremove was deleted by its name: one that an operator had set in that very
# moment, for his next move, was gone with it.
def test_d15_the_override_that_was_set_while_the_last_one_was_purged_stays() -> None:
    with Bench() as bench:
        store = HastyOperator(bench.electorate)
        bench.overrides = store
        bench.planner.stop()
        bench.planner = bench.another_planner()
        store.set_override(None, mb(30), autoremove=True)
        bench.begin_move()
        bench.cycle()
        assert bench.rate(1003, FOLLOWER) == 30.0
        bench.cluster.finish("t1")
        store.renewed = True
        bench.cycle("the reassignment of [t1] ended")
        standing = store.read_overrides().cluster
        assert standing is not None and standing.rate == mb(33)


# What was to go was deleted by its name in each of its ways to end, whatever stood there by then.
def test_d15_an_override_whose_time_is_over_is_purged_only_as_it_was_read() -> None:
    with Bench() as bench:
        store = HastyOperator(bench.electorate)
        bench.overrides = store
        bench.planner.stop()
        bench.planner = bench.another_planner()
        store.set_override(None, mb(30), False, NOON + timedelta(seconds=90))
        bench.begin_move()
        bench.cycle()
        store.renewed = True
        bench.cycle("an override ends", after=40)
        standing = store.read_overrides().cluster
        assert standing is not None and standing.rate == mb(33), "not the one that was over"


class SlowCluster(MemoryCluster):
    """A cluster whose writes wait for a gate, each after the first."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.begun, self.gate = threading.Event(), threading.Event()

    def _apply(self, change: Change) -> Outcome:
        if self.writes:
            self.begun.set()
            assert self.gate.wait(60), "nobody opened the gate"
        return super()._apply(change)


# Each write was followed by a quarter of a second of sleep, in the loop, and a SIGTERM ended it wherever it was: 4 of
# 40 brokers were written, and no list.
def test_d22_a_stop_in_mid_write_ends_the_write_whole() -> None:
    with Bench(real_time=True) as bench:
        cluster = SlowCluster(bench.electorate, BROKERS)
        bench.cluster = cluster
        bench.planner.stop()
        bench.planner = bench.another_planner()
        for number in range(20):
            bench.begin_move(f"t{number}")
        bench.planner.start(ADDRESS)
        assert cluster.begun.wait(60)
        assert len(cluster.writes) == 1
        stopping = threading.Thread(target=bench.planner.stop)
        stopping.start()
        cluster.gate.set()
        stopping.join(60)
        assert not stopping.is_alive()
        kinds = [change.resource.type for change in cluster.writes]
        assert (kinds.count(ResourceType.BROKER), kinds.count(ResourceType.TOPIC)) == (2, 20)
        assert bench.rates() == MOVE and all(bench.lists(f"t{number}") == EXACT for number in range(20))
        assert bench.election.term is None, "and another one leads at once"


# 0.26 s a broker made 61 s of a cycle of 200 brokers. Here a cycle hands everything over at once, and sleeps never.
def test_d22_a_cycle_writes_all_that_it_has_in_one_call() -> None:
    class Counting(MemoryCluster):
        calls: list[int]

        def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
            self.calls.append(len(changes))
            return super().apply(fence, changes, timeout)

    with Bench() as bench:
        cluster = Counting(bench.electorate, BROKERS)
        cluster.calls = []
        bench.cluster = cluster
        bench.planner.stop()
        bench.planner = bench.another_planner()
        for number in range(200):
            bench.begin_move(f"t{number}")
        bench.cycle()
        assert cluster.calls == [202]
        assert bench.rate(1001, LEADER) == 72.0


# A clock that was set back by an hour: throttles and what had landed were of an hour that was still to come, so that
# nothing was known of any metric, and the move crept at the minimum until that hour was over.
@pytest.mark.parametrize("policy", [HeadroomPolicy(), AdaptivePolicy()], ids=["headroom", "adaptive"])
@pytest.mark.parametrize("has_sizes", [True, False], ids=["log sizes", "no log sizes"])
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_changes_no_rate(policy: Policy, has_sizes: bool, hours: int) -> None:
    with Bench(policy=policy) as bench:
        offset = timedelta(0)

        def now() -> datetime:
            return bench.now() + offset

        planner = Planner(bench.ports(bench.election), bench.settings, now, lambda: bench.seconds)
        bench.planner.stop()
        bench.planner = planner
        if has_sizes:
            bench.cluster.tell_progress(now)
        bench.begin_move()
        for broker_id in (1001, 1003):
            bench.cluster.grow(broker_id, "t1", 0, 10**12 if broker_id == 1001 else 0)
        rates = []
        for minute in range(20):
            offset = timedelta(hours=hours) if minute >= 10 else timedelta(0)
            for _ in range(6):
                landed = 10 * min(bench.rate(1001, LEADER) or 0, bench.rate(1003, FOLLOWER) or 0)
                bench.cluster.grow(1003, "t1", 0, mb(landed))
                bench.seconds += 10
                bench.cluster.fetch_snapshot(timeout=timedelta(seconds=1))  # reads log sizes
                bench.metrics.set_loads(
                    builders.load(1001, tx=mb(20 + landed / 10), rx=mb(10), end=now(), interval=timedelta(seconds=10)),
                    builders.load(1003, tx=mb(20), rx=mb(10 + landed / 10), end=now(), interval=timedelta(seconds=10)),
                )
            bench.cycle(after=0)
            bench.rise()
            rates.append((bench.rate(1001, LEADER), bench.rate(1003, FOLLOWER)))
        assert rates[10:] == [pytest.approx(rates[9], rel=0.1)] * 10

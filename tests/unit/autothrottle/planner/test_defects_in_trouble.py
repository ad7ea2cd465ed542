"""Defects of the original under failures and races; the comment above each test describes the defect."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.memory import MemoryCluster, MemoryOverrides
from autothrottle.core.cluster.configs import FOLLOWER_RATE, ConfigResource, ResourceType
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change
from autothrottle.planner.loop import Planner, back_off
from autothrottle.ports.kafka import Term
from tests import builders
from tests.builders import NOON, mb
from tests.unit.autothrottle.planner.bench import ADDRESS, BROKERS, FOLLOWER, LEADER, Bench

RATES = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
EXACT = ("0:1001,0:1002", "0:1003")
BROKER_1003 = ConfigResource.broker(1003)


@given(st.integers(1, 10_000), st.integers(1, 86_400), st.floats(0, 1, exclude_max=True))
def test_every_back_off_is_between_one_second_and_the_interval(troubles: int, interval: int, chance: float) -> None:
    """D3: in native mode the original retries at once after an error of discovery.

    A cluster that was down got as many requests as the machine could send.
    """
    wait = back_off(troubles, timedelta(seconds=interval), chance)
    assert timedelta(seconds=1) <= wait <= timedelta(seconds=interval)
    assert wait <= back_off(troubles + 1, timedelta(seconds=interval), chance)


@given(st.integers(1, 7), st.floats(0.1, 1, exclude_max=True))
def test_two_planners_that_fail_together_retry_at_different_times(troubles: int, chance: float) -> None:
    """D3: a discovery error made the loop retry without waiting."""
    interval = timedelta(seconds=180)
    assert back_off(troubles, interval, chance) - back_off(troubles, interval, 0) > timedelta(milliseconds=49)


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_failed_cycles_back_off_with_jitter(chance: float) -> None:
    """D3: a discovery error made the loop retry without waiting."""
    with Bench() as bench:
        planner = Planner(
            bench.dependencies(bench.election), bench.settings, bench.now, lambda: bench.seconds, lambda: chance
        )
        bench.planner.stop()
        bench.planner = planner
        bench.cluster.unavailable(True)
        waits = []
        for _ in range(8):
            assert bench.cycle("retrying after a failure").error
            begin = bench.seconds
            while (trigger := planner._triggers.poll()) is None or "retrying after a failure" not in trigger.reason:
                bench.seconds += 0.01
            waits.append(bench.seconds - begin)
        share = 1 + chance / 2
        expected = [min(60, seconds * share) for seconds in (1, 2, 4, 8, 16, 32, 64, 64)]
        assert waits == pytest.approx(expected, abs=0.05)


class RacingUserCluster(MemoryCluster):
    """A cluster in which a user edits a config once between the planner's read and its write."""

    def edit_before_next_write(self, resource: ConfigResource, key: str, value: str) -> None:
        self._edit: tuple[ConfigResource, str, str] | None = (resource, key, value)

    def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        edit, self._edit = getattr(self, "_edit", None), None
        if edit is not None:
            self.set_config_as_user(*edit)
        return super().apply(term, changes, timeout)


def test_a_concurrent_edit_by_a_user_is_neither_lost_nor_taken_for_ours() -> None:
    """D9: the original reads a config and writes it back without a version check, so it loses concurrent edits.

    It also records a failed write as done and never retries it.
    """
    with Bench() as bench:
        cluster = RacingUserCluster(bench.electorate, BROKERS)
        bench.cluster = cluster
        bench.planner.stop()
        bench.planner = bench.new_planner()
        bench.begin_reassignment()
        cluster.edit_before_next_write(BROKER_1003, FOLLOWER_RATE, "7000000")
        record = bench.cycle()
        refused = [o for o in record.outcomes if o.status is OutcomeStatus.REFUSED]
        assert [o.resource for o in refused] == [BROKER_1003] and "when the change was decided" in refused[0].reason
        assert cluster.configs[BROKER_1003] == {FOLLOWER_RATE: "7000000"}
        bench.cycle("retrying after a failure")
        assert bench.rates().keys() == RATES.keys() and bench.rate(1003, FOLLOWER) != 7.0
        cluster.finish("t1")
        bench.cycle()
        assert bench.rates() == {(1003, "follower"): 7.0}, "the user's rate is restored"
        assert cluster.ledger == {}


def test_a_value_is_written_only_together_with_its_notification(bench: Bench) -> None:
    """D9: the original writes a config node and its change notification separately.

    If the notification failed, brokers never applied the value, and the next cycle did not repeat it because the node
    was already right.
    """
    bench.begin_reassignment()
    bench.cluster.refused[BROKER_1003] = "the notification could not be written"
    bench.cycle()
    assert "brokers/1003" not in bench.cluster.notifications and bench.rate(1003, FOLLOWER) is None
    bench.cluster.refused[BROKER_1003] = ""
    bench.cycle("retrying after a failure")
    assert "brokers/1003" in bench.cluster.notifications and bench.rates() == RATES


class RacingOperatorOverrides(MemoryOverrides):
    """Overrides in which an operator sets a new one right after the planner has read them."""

    set_after_read = False

    def read_overrides(self) -> Overrides:
        found = super().read_overrides()
        if self.set_after_read:
            self.set_after_read = False
            self.set_override(None, StoredOverride(mb(33), autoremove=True), who="the operator")
        return found


def test_an_override_set_during_the_purge_of_the_previous_one_stays() -> None:
    """D15: the original deletes an autoremove override by name at the end of a reassignment.

    It also deleted one that an operator had set at that moment for the next reassignment.
    """
    with Bench() as bench:
        store = RacingOperatorOverrides(bench.electorate)
        bench.overrides = store
        bench.planner.stop()
        bench.planner = bench.new_planner()
        store.set_override(None, StoredOverride(mb(30), autoremove=True))
        bench.begin_reassignment()
        bench.cycle()
        assert bench.rate(1003, FOLLOWER) == 30.0
        bench.cluster.finish("t1")
        store.set_after_read = True
        bench.cycle("the reassignment of [t1] ended")
        current = store.read_overrides().cluster
        assert current is not None and current.rate == mb(33)


def test_an_expired_override_is_purged_only_at_the_version_that_was_read() -> None:
    """D15: the original deletes an override by name for every reason to remove it, even if it changed in between."""
    with Bench() as bench:
        store = RacingOperatorOverrides(bench.electorate)
        bench.overrides = store
        bench.planner.stop()
        bench.planner = bench.new_planner()
        store.set_override(None, StoredOverride(mb(30), expire_time=NOON + timedelta(seconds=90)))
        bench.begin_reassignment()
        bench.cycle()
        store.set_after_read = True
        bench.cycle("an override expires", after=40)
        current = store.read_overrides().cluster
        assert current is not None and current.rate == mb(33), "the new override, not the expired one"


class SlowCluster(MemoryCluster):
    """A cluster in which all writes but the first wait for a gate."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.begun, self.gate = threading.Event(), threading.Event()

    def _apply(self, change: Change) -> Outcome:
        if self.writes:
            self.begun.set()
            assert self.gate.wait(60), "the gate stayed closed"
        return super()._apply(change)


def test_stop_waits_until_the_whole_batch_is_written() -> None:
    """Defect D22 of the original.

    The original sleeps 0.25 s after each write, and a SIGTERM ends it at any point: 4 of 40 brokers were written, and
    no list.
    """
    with Bench(real_time=True) as bench:
        cluster = SlowCluster(bench.electorate, BROKERS)
        bench.cluster = cluster
        bench.planner.stop()
        bench.planner = bench.new_planner()
        for number in range(20):
            bench.begin_reassignment(f"t{number}")
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
        assert bench.rates() == RATES and all(bench.lists(f"t{number}") == EXACT for number in range(20))
        assert bench.election.term is None, "another planner can lead at once"


def test_a_cycle_writes_all_changes_in_one_call() -> None:
    """D22: the original's writes take 0.26 s per broker: 61 s for a cycle of 200 brokers.

    This planner writes them in one call.
    """

    class CallCounter(MemoryCluster):
        calls: list[int]

        def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
            self.calls.append(len(changes))
            return super().apply(term, changes, timeout)

    with Bench() as bench:
        cluster = CallCounter(bench.electorate, BROKERS)
        cluster.calls = []
        bench.cluster = cluster
        bench.planner.stop()
        bench.planner = bench.new_planner()
        for number in range(200):
            bench.begin_reassignment(f"t{number}")
        bench.cycle()
        assert cluster.calls == [202]
        assert bench.rate(1001, LEADER) == 72.0


# The clock was set back by one hour, so that the recorded throttles and samples had times in the future. No metric
# could be corrected, and the reassignment ran at the minimum rate for that hour.
@pytest.mark.parametrize("policy", [HeadroomPolicy(), AdaptivePolicy()], ids=["headroom", "adaptive"])
@pytest.mark.parametrize("has_sizes", [True, False], ids=["log sizes", "no log sizes"])
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_change_does_not_change_rates(policy: Policy, has_sizes: bool, hours: int) -> None:
    with Bench(policy=policy) as bench:
        offset = timedelta(0)

        def now() -> datetime:
            return bench.now() + offset

        planner = Planner(bench.dependencies(bench.election), bench.settings, now, lambda: bench.seconds)
        bench.planner.stop()
        bench.planner = planner
        if has_sizes:
            bench.cluster.tell_progress(now)
        bench.begin_reassignment()
        for broker_id in (1001, 1003):
            bench.cluster.grow(broker_id, "t1", 0, 10**12 if broker_id == 1001 else 0)
        rates = []
        for minute in range(20):
            offset = timedelta(hours=hours) if minute >= 10 else timedelta(0)
            for _ in range(6):
                copied = 10 * min(bench.rate(1001, LEADER) or 0, bench.rate(1003, FOLLOWER) or 0)
                bench.cluster.grow(1003, "t1", 0, mb(copied))
                bench.seconds += 10
                bench.cluster.fetch_snapshot(timeout=timedelta(seconds=1))  # reads log sizes
                bench.metrics.set_loads(
                    builders.load(
                        1001, outbound=mb(20 + copied / 10), inbound=mb(10), end=now(), interval=timedelta(seconds=10)
                    ),
                    builders.load(
                        1003, outbound=mb(20), inbound=mb(10 + copied / 10), end=now(), interval=timedelta(seconds=10)
                    ),
                )
            bench.cycle(after=0)
            bench.finish_ramps()
            rates.append((bench.rate(1001, LEADER), bench.rate(1003, FOLLOWER)))
        assert rates[10:] == [pytest.approx(rates[9], rel=0.1)] * 10

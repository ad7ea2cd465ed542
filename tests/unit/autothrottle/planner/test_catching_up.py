"""A catch-up throttles the lagging replicas of a broker until it is in sync."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.records import Basis, CatchUp, Cycle, Reason, Submission
from autothrottle.planner.loop import Planner
from autothrottle.ports.kafka import Term
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.unit.autothrottle.planner.bench import ADDRESS, FOLLOWER, LEADER, Bench

CATCH_UP = CatchUp(1003, "an operator")


@contextmanager
def lagging_bench(**settings: Any) -> Iterator[Bench]:
    """A planner with a cycle every 30 s; three replicas on 1003 lag."""
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


def test_a_lagging_broker_without_a_catch_up_is_not_throttled(bench: Bench) -> None:
    bench.cycle()
    assert bench.is_clean()


def test_lagging_replicas_are_throttled_by_headroom_until_the_broker_is_in_sync(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
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
    assert bench.catch_ups.read() == {1003: CATCH_UP}
    bench.cluster.join_isr("t2", 0, 1003)
    bench.cycle()
    assert bench.is_clean()
    assert bench.catch_ups.read() == {}
    lines = [line for line in caplog.messages if line.startswith("Broker 1003")]
    assert lines == [
        "Broker 1003 catches up under throttle: 3 replicas are out of sync",
        "Broker 1003 catches up under throttle: 2 replicas are out of sync",
        "Broker 1003 catches up under throttle: 1 replicas are out of sync",
        "Broker 1003 is in sync: its catch-up under throttle has ended",
    ]


def reasons_due(bench: Bench, seconds: int) -> str:
    """The reasons of all cycles due within this many seconds of virtual time."""
    found = []
    for _ in range(seconds * 10):
        bench.seconds += 0.1
        if (trigger := bench.planner._triggers.poll()) is not None:
            found.append(trigger.reason)
    return "; ".join(found)


def test_cycles_run_often_only_while_a_broker_catches_up(bench: Bench) -> None:
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.cycle()
    assert "a broker catches up" in reasons_due(bench, 5)
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    bench.cycle("a broker catches up")
    bench.cycle("it ended")
    reasons_due(bench, 5)
    assert "a broker catches up" not in reasons_due(bench, 5)


def test_the_catch_up_of_a_broker_in_sync_ends_at_once(bench: Bench) -> None:
    bench.catch_ups.put(1002, CatchUp(1002))
    bench.cycle()
    assert bench.is_clean() and bench.catch_ups.read() == {}


def test_a_catch_up_does_not_end_while_the_snapshot_is_incomplete(bench: Bench) -> None:
    """The unreadable topic may have lagging replicas of the broker."""
    bench.cluster.problems.append(Problem("/brokers/topics/t9", "is not JSON"))
    bench.catch_ups.put(1002, CatchUp(1002))
    bench.cycle()
    assert bench.catch_ups.read() == {1002: CatchUp(1002)}
    bench.cluster.problems.clear()
    bench.cycle()
    assert bench.catch_ups.read() == {}


def test_a_broker_that_is_down_is_throttled_before_it_starts(bench: Bench) -> None:
    bench.cluster.brokers.discard(1003)
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.cycle()
    bench.cycle()
    assert bench.rate(1003, FOLLOWER) == 81
    assert bench.catch_ups.read() == {1003: CATCH_UP}


def test_stopping_a_catch_up_removes_its_throttles(bench: Bench) -> None:
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.cycle()
    bench.catch_ups.remove(1003)
    bench.cycle()
    assert bench.is_clean()


def test_a_new_leader_continues_a_catch_up(bench: Bench) -> None:
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.cycle()
    bench.planner.stop()
    bench.planner, bench.term = bench.new_planner(), type(bench.term)(0)
    writes = len(bench.cluster.writes)
    bench.cycle()
    edited = {edit.key for change in bench.cluster.writes[writes:] for edit in change.edits}
    assert not {key for key in edited if key.endswith("replicas")}, "the lists are already right"
    assert bench.lists("t2") == ("0:1002", "0:1003")


def run_catch_up(bench: Bench) -> list[Cycle]:
    """Run three minutes: per 30 s 1003 copies 0.5 GB from each of two leaders; its clients produce 10 MB/s."""
    bench.cluster.tell_progress(bench.now)
    for leader, topic, partition in ((1001, "t1", 0), (1001, "t1", 1), (1002, "t2", 0)):
        bench.cluster.grow(leader, topic, partition, mb(20_000))
        bench.cluster.grow(1003, topic, partition, mb(5_000))
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    records = [bench.cycle(after=0)]
    for _ in range(6):
        for row, size in ((("t1", 0), 250), (("t1", 1), 250), (("t2", 0), 500)):
            bench.cluster.grow(1003, *row, mb(size))
        bench.seconds += 30
        for broker_id, outbound, inbound in (
            (1001, 20 + 500 / 30, 10),
            (1002, 20 + 500 / 30, 10),
            (1003, 20, 10 + 1000 / 30),
        ):
            bench.metrics.set_loads(
                builders.load(broker_id, outbound=mb(outbound), inbound=mb(inbound), end=bench.now())
            )
        records.append(bench.cycle(after=0))
    return records


def test_copied_bytes_of_a_catch_up_do_not_count_as_client_load() -> None:
    """Its log sizes were not read. The adaptive policy assumed its replication, and that of each of its leaders."""
    with lagging_bench(policy=AdaptivePolicy()) as bench:
        first, *_, last = run_catch_up(bench)
    assert (first.bytes_left, last.bytes_left) == (mb(45_000), mb(39_000))
    assert first.eta is not None and first.eta_is_static
    assert last.eta is not None and not last.eta_is_static
    assert (last.eta - bench.now()).total_seconds() == pytest.approx(39_000 / (1000 / 30), rel=0.01)
    for decision in last.decisions:
        assert decision.basis is Basis.COUNTED
        clients = 20 if decision.role is LEADER else 10
        assert decision.client_bytes_per_second is not None and decision.client_bytes_per_second == pytest.approx(
            mb(clients), rel=0.01
        )


def begin_long_reassignment(bench: Bench) -> Bench:
    """Begin a reassignment of 36 TB from 1002 to 1004, beside the catch-up of 1003."""
    bench.cluster.add_topic("reassigned", {0: (1002, 1001)})
    bench.cluster.submit_reassignment("reassigned", {0: (1002, 1004)})
    bench.cluster.grow(1002, "reassigned", 0, mb(36_000_000))
    bench.cluster.grow(1004, "reassigned", 0, 0)
    return bench


def test_bytes_copied_before_a_discovery_restart_do_not_count_as_client_load() -> None:
    """A restarted discovery reported 0 bytes copied before. All replication counted as clients, and the rate fell."""
    with lagging_bench(policy=AdaptivePolicy()) as bench:
        before = run_catch_up(bench)[-1]
        bench.planner.stop()
        bench.planner, bench.term = bench.new_planner(), Term(0)
        bench.cluster.tell_progress(bench.now)
        after = bench.cycle(after=2)
    rates = {(d.broker_id, d.role): d.rate_bytes_per_second for d in before.decisions}
    assert rates[1003, FOLLOWER] == pytest.approx(mb(81), rel=0.02)
    for decision in after.decisions:
        assert decision.basis is Basis.GUESSED and (decision.client_bytes_per_second or 0) <= mb(20)
        assert decision.rate_bytes_per_second == pytest.approx(rates[decision.broker_id, decision.role], rel=0.02)


def test_the_catch_up_of_a_stopped_broker_does_not_affect_the_eta_of_other_reassignments() -> None:
    """Such a catch-up made the ETA unknown, and the adaptive policy had no measured replication of its leaders."""
    with lagging_bench(policy=AdaptivePolicy()) as bench:
        bench.cluster.brokers.discard(1003)
        bench.cluster.tell_progress(bench.now)
        begin_long_reassignment(bench)
        bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
        for _ in range(6):
            bench.cluster.grow(1004, "reassigned", 0, mb(600))
            bench.seconds += 30
            for broker_id, outbound, inbound in ((1001, 20, 10), (1002, 40, 10), (1004, 20, 30)):
                bench.metrics.set_loads(
                    builders.load(broker_id, outbound=mb(outbound), inbound=mb(inbound), end=bench.now())
                )
            last = bench.cycle(after=0)
        lists, rate = bench.lists("t2"), bench.rate(1003, FOLLOWER)
    assert (lists, rate) == (("0:1002", "0:1003"), 81)
    assert last.bytes_left == mb(36_000_000 - 3600)
    assert last.eta is not None
    found = {(d.broker_id, d.role): d for d in last.decisions}
    for side, clients in (((1001, LEADER), 20), ((1002, LEADER), 20), ((1004, FOLLOWER), 10)):
        assert found[side].basis is Basis.COUNTED
        assert found[side].client_bytes_per_second == pytest.approx(mb(clients), rel=0.01)


def test_bytes_left_are_unknown_while_the_only_broker_that_catches_up_is_down() -> None:
    with lagging_bench() as bench:
        bench.cluster.brokers.discard(1003)
        bench.cluster.tell_progress(bench.now)
        bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
        bench.cycle()
        assert bench.cycle().bytes_left is None


def test_a_catch_up_gets_the_full_headroom_beside_a_long_reassignment() -> None:
    """Lagging replicas have too few copies. So a catch-up gets the headroom, not only the rate that it needs."""
    with lagging_bench(policy=AdaptivePolicy()) as bench:
        last = run_catch_up(begin_long_reassignment(bench))[-1]
    rates = {(d.broker_id, d.role): d.rate_bytes_per_second for d in last.decisions}
    assert rates[1003, FOLLOWER] == pytest.approx(mb(81), rel=0.02)
    assert rates[1001, LEADER] == pytest.approx(mb(72), rel=0.02)


def test_a_deadline_does_not_limit_a_catch_up() -> None:
    with lagging_bench(finish_by=NOON + timedelta(hours=1000)) as bench:
        last = run_catch_up(begin_long_reassignment(bench))[-1]
    reasons = {(d.broker_id, d.role): d.reason for d in last.decisions}
    assert reasons.pop((1004, FOLLOWER)) is Reason.FINISH_BY
    assert set(reasons) == {(1001, LEADER), (1002, LEADER), (1003, FOLLOWER)}
    assert Reason.FINISH_BY not in reasons.values()


def test_an_override_applies_to_a_catch_up_beside_a_reassignment(bench: Bench) -> None:
    bench.begin_reassignment("reassigned")
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.overrides.set_override(1003, StoredOverride(mb(5)))
    bench.cycle()
    assert bench.lists("reassigned") == ("0:1001,0:1002", "0:1003")
    assert bench.lists("t2") == ("0:1002", "0:1003")
    assert bench.rate(1003, FOLLOWER) == 5
    bench.cluster.finish("reassigned")
    bench.cycle()
    assert bench.lists("reassigned") == (None, None) and bench.lists("t2") == ("0:1002", "0:1003")


def test_the_last_known_catch_ups_stay_while_the_store_cannot_be_read(bench: Bench) -> None:
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.cycle()
    bench.catch_ups.unavailable(True)
    record = bench.cycle()
    assert any("the catch-ups cannot be read; the last known ones stay" in finding for finding in record.findings)
    assert bench.lists("t2") == ("0:1002", "0:1003")


def test_shadow_mode_ends_no_catch_up() -> None:
    with Bench(shadow=True, interval=timedelta(seconds=60)) as bench:
        bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
        bench.cycle()
        assert bench.is_clean() and bench.catch_ups.read() == {1003: CATCH_UP}
        assert isinstance(bench.planner, Planner)


def test_a_new_leader_that_cannot_read_the_catch_ups_removes_no_throttle(bench: Bench) -> None:
    """It took unreadable catch-ups for no catch-ups and removed the throttles. The broker then copied at link speed."""
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.begin_reassignment("reassigned")
    bench.cycle()
    current = bench.lists("t1"), bench.lists("t2"), bench.rates().keys()
    bench.term = Term(bench.cluster.begin_term())
    bench.catch_ups.unavailable(True)
    record = bench.cycle()
    assert any("cannot be read; nothing is removed until they can be read" in finding for finding in record.findings)
    assert (bench.lists("t1"), bench.lists("t2"), bench.rates().keys()) == current
    bench.cluster.finish("reassigned")
    bench.cycle()
    assert bench.lists("reassigned") != (None, None)

    bench.catch_ups.unavailable(False)
    bench.cycle()
    assert bench.lists("reassigned") == (None, None) and bench.lists("t2") == ("0:1002", "0:1003")
    bench.catch_ups.remove(1003)
    bench.cycle()
    assert bench.is_clean()


def test_a_new_term_does_not_reuse_the_catch_ups_of_an_earlier_one(bench: Bench) -> None:
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.cycle()
    bench.term = Term(bench.cluster.begin_term())
    bench.catch_ups.remove(1003)
    bench.catch_ups.unavailable(True)
    assert "t1" not in bench.cycle().topics


def test_a_catch_up_does_not_throttle_partitions_below_min_isr(bench: Bench) -> None:
    """The acks=all producers of such a partition wait for this broker, so they waited for its throttle."""
    bench.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": 2, "t2": 1})
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.cycle()
    assert bench.lists("t1") == ("0:1001,1:1001", "0:1003,1:1003"), "the settings are not known yet"
    eventually(lambda: bench.planner._reader.reading.complete_for is not None)
    record = bench.cycle("partitions are below min.insync.replicas")
    assert bench.lists("t1") == (None, None) and bench.lists("t2") == ("0:1002", "0:1003")
    assert bench.rate(1003, FOLLOWER) == 27.0, (
        "two of three copies are unthrottled, so the rest gets a third of 81 MB/s"
    )
    assert "partitions below min.insync.replicas are not throttled: t1-0, t1-1" in record.findings
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    bench.cycle()
    assert bench.is_clean() and not bench.catch_ups.read()


def test_a_reassignment_of_a_lagging_partition_below_min_isr_is_throttled_before_its_submission(bench: Bench) -> None:
    bench.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": 2})
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.election.join(ADDRESS, lambda: None)
    assert bench.election.term is not None
    bench.term = bench.election.term
    bench.cycle()
    eventually(lambda: bench.planner._reader.reading.complete_for is not None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bench.planner.submit_reassignment, {("t1", 0): (1001, 1004)}, timedelta(seconds=60))

        def submitted() -> bool:
            bench.cycle("a reassignment was requested")
            return waiting.done()

        eventually(submitted)
        assert waiting.result(30) == Submission(1)


def test_an_autoremove_override_stays_after_a_catch_up(bench: Bench) -> None:
    """The lists of the finished catch-up were taken for those of a finished reassignment."""
    bench.overrides.set_override(None, StoredOverride(mb(50), autoremove=True))
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.cycle()
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    for _ in range(2):
        bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is not None
    bench.begin_reassignment("reassigned")
    bench.cycle()
    bench.cluster.finish("reassigned")
    bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is None


def test_an_autoremove_override_ends_after_a_catch_up_that_outlasts_its_reassignment(bench: Bench) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(50), autoremove=True))
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.begin_reassignment("reassigned")
    bench.cycle()
    bench.cluster.finish("reassigned")
    for _ in range(2):
        bench.cycle()
    assert bench.overrides.read_overrides().cluster is not None, "it also applies to the catch-up"
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is None


def test_a_catch_up_ends_even_if_another_broker_refuses_its_writes(bench: Bench) -> None:
    """While any broker was down, no catch-up ended. Replicas that lagged a day later were throttled again."""
    bench.cluster.add_topic("reassigned", {0: (1001, 1002)})
    bench.cluster.submit_reassignment("reassigned", {0: (1001, 1004)})
    bench.cluster.refused[ConfigResource.broker(1004)] = "broker 1004 does not answer"
    bench.catch_ups.put(CATCH_UP.broker_id, CATCH_UP)
    bench.cycle()
    for topic, partition in (("t1", 0), ("t1", 1), ("t2", 0)):
        bench.cluster.join_isr(topic, partition, 1003)
    bench.cluster.refused[ConfigResource.broker(1003)] = "broker 1003 does not answer"
    bench.cycle()
    assert bench.catch_ups.read() == {1003: CATCH_UP}, "its own throttle is still set"
    bench.cluster.refused[ConfigResource.broker(1003)] = ""
    bench.cycle()
    assert bench.rate(1003, FOLLOWER) is None and bench.catch_ups.read() == {}

"""The guard rails as a planner keeps them: what it writes, says and posts, and that it says it once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, timedelta

import pytest

from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.fetching import ClusterSettings, FetchSettings
from autothrottle.core.schedule import Schedule, Window, parse_schedule
from autothrottle.planner import settings_reader
from autothrottle.planner.settings_reader import SettingsReader
from autothrottle.planner.triggers import Trigger
from autothrottle.ports.leadership import Term
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.planner.bench import ADDRESS, BROKERS, FOLLOWER, LEADER, Bench

GB = 1_000_000_000


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(limits=builders.limits(min_rate=mb(2))) as made:
        yield made


pytestmark = pytest.mark.usefixtures("info_lines")


def moving(bench: Bench, size: int = 100 * GB) -> None:
    bench.cluster.tell_progress(bench.now)
    bench.begin_move()
    bench.cluster.grow(1001, "t1", 0, size)
    bench.cluster.grow(1003, "t1", 0, 0)


def test_a_throttle_under_what_is_produced_is_raised_and_written(bench: Bench) -> None:
    moving(bench)
    bench.cycle()
    bench.measure(1003, rx=98)  # its clients alone: the headroom is next to nothing
    bench.seconds += 60
    bench.cluster.grow(1001, "t1", 0, 60 * mb(40))
    record = bench.cycle(after=0)
    follower = next(d for d in record.decisions if (d.broker_id, d.role) == (1003, FOLLOWER))
    assert follower.reason.value == "starvation"
    assert bench.rate(1003, FOLLOWER) == pytest.approx(44)
    assert any("[follower]" in finding and "raised to 44 MB/s" in finding for finding in record.findings)


def test_an_override_is_never_raised(bench: Bench) -> None:
    moving(bench)
    bench.overrides.set_override(None, mb(5), False)
    bench.cycle()
    bench.seconds += 60
    bench.cluster.grow(1001, "t1", 0, 60 * mb(40))
    record = bench.cycle(after=0)
    assert bench.rate(1003, FOLLOWER) == bench.rate(1001, LEADER) == 5
    assert sum("it is an override, which stays" in finding for finding in record.findings) == 2


def test_a_link_that_is_left_to_clients_is_left_to_them_cycle_after_cycle() -> None:
    """Every other cycle the rate stayed as it was, which is another reason, and was raised over the clients' heads."""
    with Bench(limits=builders.limits(pause_over_capacity=True)) as bench:
        moving(bench)
        bench.cycle()
        bench.measure(1003, rx=97)
        seen = []
        for _ in range(4):
            bench.seconds += 60
            bench.cluster.grow(1001, "t1", 0, 60 * mb(5))
            record = bench.cycle(after=0)
            seen.append(bench.rate(1003, FOLLOWER))
            assert any("[follower]" in finding and "clients need the link" in finding for finding in record.findings)
        assert seen == [pytest.approx(2.7)] * 4


def test_a_move_that_stands_still_is_said_and_posted_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    moving(bench)
    for _ in range(8):
        bench.cycle()
    said = [line for line in caplog.messages if "stands still" in line]
    assert len(said) == 1 and said[0].startswith("broker 1003 [follower] stands still: 100000.00 MB are left")
    assert [event.title for event in bench.posted()].count("Reassignment stands still") == 1


def test_partitions_below_min_isr_are_throttled_by_the_first_cycle_and_free_as_soon_as_that_is_known(
    bench: Bench,
) -> None:
    bench.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": 2})
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1001, 1002)})
    bench.cluster.leave_isr("t1", 0, 1002)
    bench.cluster.start_reassignment("t1", {0: (1001, 1003), 1: (1001, 1003)})
    bench.cycle()
    assert bench.lists() == ("0:1001,1:1001,1:1002", "0:1003,1:1003")
    triggers, reasons = bench.planner._triggers, list[str]()

    def asked() -> bool:
        bench.seconds += 1
        if (trigger := triggers.poll()) is not None:
            reasons.append(trigger.reason)
        return any("below min.insync.replicas" in reason for reason in reasons)

    eventually(asked)
    record = bench.cycle("partitions are below min.insync.replicas")
    assert bench.lists() == ("1:1001,1:1002", "1:1003")
    assert "partitions below min.insync.replicas are not held back: t1-0" in record.findings
    assert bench.rate(1003, FOLLOWER) == pytest.approx(40.5), "half of the copies are free, and so is half of 81 MB/s"
    bench.cluster.join_isr("t1", 0, 1002)
    bench.cycle("in sync again")
    assert bench.lists() == ("0:1001,0:1002,1:1001,1:1002", "0:1003,1:1003")
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()


def test_what_is_below_min_isr_is_free_also_while_nothing_may_be_removed(bench: Bench) -> None:
    """One override that could not be read kept it in the lists, and its acks=all producers waiting, until it could."""
    bench.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": 2})
    bench.begin_move(partitions=2)
    bench.cycle()
    eventually(lambda: bench.planner._guards.settled)
    bench.overrides.unreadable[1004] = "it is no JSON"
    bench.cluster.leave_isr("t1", 0, 1002)
    bench.cycle()
    assert bench.lists() == ("1:1001,1:1002", "1:1003")
    bench.cluster.join_isr("t1", 1, 1003)
    bench.cycle()
    assert bench.lists() == ("1:1001,1:1002", "1:1003"), "nothing else goes"
    bench.cluster.finish("t1", 1)
    bench.cycle()
    assert bench.lists() == ("1:1001,1:1002", "1:1003"), "nothing else goes"
    bench.overrides.unreadable.clear()
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()


def test_a_fetch_size_that_exceeds_the_window_is_said_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.cluster.settings = ClusterSettings({1003: FetchSettings(10_000_000_000, 11)})
    bench.begin_move()
    bench.cycle()
    eventually(lambda: bench.planner._guards.settled)
    bench.cycle()
    bench.measure(1001, tx=30)
    bench.cycle()
    said = [line for line in caplog.messages if "replica.fetch.response.max.bytes" in line]
    assert len(said) == 1 and "10000000000 bytes each" in said[0]


def test_without_settings_kafkas_defaults_count_and_that_is_said_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin_move()
    bench.cycle()
    eventually(lambda: bench.planner._guards.settled)
    assert "fetch" not in " ".join(bench.cycle().findings), "at 72 MB/s the defaults are small enough"
    for rate in (mb(0.5), mb(0.6)):
        bench.overrides.set_override(None, rate, autoremove=False)
        bench.cycle()
    said = [line for line in caplog.messages if "replica.fetch.response.max.bytes" in line]
    assert len(said) == 1 and "(Kafka's defaults: its settings are unknown)" in said[0]


@pytest.mark.parametrize("fault", ["nobody answers", "one does not answer"])
def test_settings_that_are_not_told_this_time_are_as_they_were(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer that was late: partitions below min.insync.replicas were held back again, for a minute at least."""
    monkeypatch.setattr(settings_reader, "RETRY_SECONDS", 0.0)
    cluster, read = MemoryCluster(brokers=BROKERS), threading.Semaphore(0)
    cluster.settings = told = ClusterSettings({1003: FetchSettings(5, 7)}, {"t1": 2})
    reader = SettingsReader(cluster, read.release)
    try:
        reader.want({1003}, {"t1"})
        assert read.acquire(timeout=30) and reader.settings == told
        cluster.settings = ClusterSettings()
        cluster.unavailable(fault == "nobody answers")
        reader.want({1003}, {"t1"})
        assert read.acquire(timeout=30) and reader.settings == told
        reader.want({1004}, {"t2"})
        assert read.acquire(timeout=30) and reader.settings == ClusterSettings(), "those of others are forgotten"
    finally:
        reader.close()


NIGHT = Schedule((Window(12 * 60, 13 * 60, 0.5),), UTC)
"""Begins at noon, which is when the bench does."""


def test_in_a_window_of_the_schedule_its_share_rules_and_ends_with_it(caplog: pytest.LogCaptureFixture) -> None:
    with Bench(schedule=NIGHT) as bench:
        bench.begin_move()
        bench.cycle()
        assert bench.rates() == {(1001, "leader"): 40, (1003, "follower"): 45}
        assert "based on a 50% max free capacity utilization" in caplog.text
        triggers = bench.planner._triggers
        while triggers.poll() is not None:
            pass
        bench.seconds = 3_600
        for broker_id, tx, rx in ((1001, 60.0, 10.0), (1003, 20.0, 55.0)):
            bench.measure(broker_id, tx=tx, rx=rx)
        assert triggers.poll() is not None, "a cycle runs when the window ends"
        record = bench.cycle(after=0)
        assert [d.rate for d in record.decisions] == [mb(72), mb(81)], "the target: a raise is made in steps"
        assert "By the schedule replication gets the usual share of the headroom from now on" in caplog.messages


def test_what_a_schedule_rules_is_not_raised() -> None:
    with Bench(schedule=parse_schedule("00:00-24:00=1"), limits=builders.limits(min_rate=mb(0.1))) as bench:
        moving(bench)
        bench.cycle()
        bench.seconds += 60
        bench.cluster.grow(1001, "t1", 0, 60 * mb(40))
        record = bench.cycle(after=0)
        assert bench.rate(1003, FOLLOWER) == pytest.approx(0.9)
        assert any("the schedule stays" in finding for finding in record.findings)


def test_until_a_deadline_a_move_takes_twice_what_that_needs_and_the_headroom_after_it() -> None:
    with Bench(finish_by=NOON + timedelta(seconds=1_000)) as bench:
        moving(bench, 10 * GB)
        bench.cycle(after=0)
        assert bench.rate(1003, FOLLOWER) == bench.rate(1001, LEADER) == pytest.approx(2 * 10_000 / 1_000)
        bench.seconds = 1_001
        record = bench.cycle(after=0)
        assert "finish-by" not in {d.reason.value for d in record.decisions}
        assert [d.rate for d in record.decisions] == [mb(72), mb(81)], "the target: a raise is made in steps"


def test_a_deadline_that_cannot_be_met_is_said_once_with_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    with Bench(finish_by=NOON + timedelta(seconds=60)) as bench:
        moving(bench, 10 * GB)
        for _ in range(4):
            bench.cycle(after=10)
        said = [line for line in caplog.messages if "cannot be done by" in line]
        assert len(said) == 1
        assert said[0].startswith("the moves cannot be done by 2026-11-02T12:01:00Z: broker 1001 [leader] has 10000 MB")
        assert bench.rate(1001, LEADER) == 72, "then the headroom rules"
        bench.term = Term(bench.electorate.begin_term(ADDRESS))
        bench.cycle(after=1)
        first, again = (line for line in caplog.messages if "cannot be done by" in line)
        assert again != first, "another leader has numbers of its own"


def test_a_deadline_is_looked_at_as_soon_as_it_is_known_what_is_left() -> None:
    with Bench(finish_by=NOON + timedelta(hours=1)) as bench:
        moving(bench, 10 * GB)
        triggers = bench.planner._triggers
        while triggers.poll() is not None:
            pass
        bench.cycle(after=0)
        bench.seconds = 3
        assert triggers.poll() == Trigger("what the deadline needs", scheduled=False)


def test_a_deadline_that_is_over_or_of_which_nothing_is_known_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with Bench(finish_by=NOON + timedelta(seconds=120)) as bench:
        bench.cycle(after=0)
        assert "finish-by" not in caplog.text, "nothing moves"
        bench.begin_move()
        for seconds in (10, 50, 60, 60):
            record = bench.cycle(after=seconds)
        said = [
            line.partition(",")[0] for line in caplog.messages if line.startswith("finish-by 2026-11-02T12:02:00Z ")
        ]
        assert said == [
            "finish-by 2026-11-02T12:02:00Z is not kept to",
            "finish-by 2026-11-02T12:02:00Z is over: what moves goes by the headroom",
        ]
        assert said[-1] in record.findings

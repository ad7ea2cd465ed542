"""The guards of a planner: what it writes, logs and posts, each finding once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, timedelta

import pytest

from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.configs import ClusterSettings, FetchSettings
from autothrottle.core.operators.sources import Schedule, ScheduleWindow, StoredOverride, parse_schedule
from autothrottle.core.retries import SETTINGS
from autothrottle.planner import calls
from autothrottle.planner.calls import SettingsReader
from autothrottle.planner.loop import Trigger
from autothrottle.ports.kafka import Term
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.unit.autothrottle.planner.bench import ADDRESS, BROKERS, FOLLOWER, LEADER, Bench

GB = 1_000_000_000


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(limits=builders.limits(min_rate=mb(2))) as made:
        yield made


pytestmark = pytest.mark.usefixtures("info_lines")


def begin_measured_reassignment(bench: Bench, size: int = 100 * GB) -> None:
    bench.cluster.tell_progress(bench.now)
    bench.begin_reassignment()
    bench.cluster.grow(1001, "t1", 0, size)
    bench.cluster.grow(1003, "t1", 0, 0)


def test_a_throttle_below_the_produce_rate_is_raised(bench: Bench) -> None:
    begin_measured_reassignment(bench)
    bench.cycle()
    bench.set_load(1003, inbound=98)  # clients alone: almost no headroom
    bench.seconds += 60
    bench.cluster.grow(1001, "t1", 0, 60 * mb(40))
    record = bench.cycle(after=0)
    follower = next(d for d in record.decisions if (d.broker_id, d.role) == (1003, FOLLOWER))
    assert follower.reason.value == "starvation"
    assert bench.rate(1003, FOLLOWER) == pytest.approx(44)
    assert any("[follower]" in finding and "raised to 44 MB/s" in finding for finding in record.findings)


def test_an_override_is_never_raised(bench: Bench) -> None:
    begin_measured_reassignment(bench)
    bench.overrides.set_override(None, StoredOverride(mb(5)))
    bench.cycle()
    bench.seconds += 60
    bench.cluster.grow(1001, "t1", 0, 60 * mb(40))
    record = bench.cycle(after=0)
    assert bench.rate(1003, FOLLOWER) == bench.rate(1001, LEADER) == 5
    assert sum("the override is kept" in finding for finding in record.findings) == 2


def test_a_link_without_headroom_stays_paused_in_every_cycle() -> None:
    """In every other cycle the rate was unchanged, with that reason. The guard then raised it at the clients' cost."""
    with Bench(limits=builders.limits(pause_over_capacity=True)) as bench:
        begin_measured_reassignment(bench)
        bench.cycle()
        bench.set_load(1003, inbound=97)
        rates = []
        for _ in range(4):
            bench.seconds += 60
            bench.cluster.grow(1001, "t1", 0, 60 * mb(5))
            record = bench.cycle(after=0)
            rates.append(bench.rate(1003, FOLLOWER))
            assert any("[follower]" in finding and "clients need the link" in finding for finding in record.findings)
        assert rates == [pytest.approx(2.7)] * 4


def test_a_stalled_reassignment_is_logged_and_posted_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    begin_measured_reassignment(bench)
    for _ in range(8):
        bench.cycle()
    lines = [line for line in caplog.messages if "is stalled" in line]
    assert len(lines) == 1 and lines[0].startswith("Broker 1003 [follower] is stalled: 100000.00 MB are left")
    assert [event.title for event in bench.posted()].count("Reassignment stalled") == 1


def test_partitions_below_min_isr_are_unthrottled_as_soon_as_the_settings_are_known(
    bench: Bench,
) -> None:
    bench.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": 2})
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1001, 1002)})
    bench.cluster.leave_isr("t1", 0, 1002)
    bench.cluster.submit_reassignment("t1", {0: (1001, 1003), 1: (1001, 1003)})
    bench.cycle()
    assert bench.lists() == ("0:1001,1:1001,1:1002", "0:1003,1:1003")
    triggers, reasons = bench.planner._triggers, list[str]()

    def requested() -> bool:
        bench.seconds += 1
        if (trigger := triggers.poll()) is not None:
            reasons.append(trigger.reason)
        return any("below min.insync.replicas" in reason for reason in reasons)

    eventually(requested)
    record = bench.cycle("partitions are below min.insync.replicas")
    assert bench.lists() == ("1:1001,1:1002", "1:1003")
    assert "partitions below min.insync.replicas are not throttled: t1-0" in record.findings
    assert bench.rate(1003, FOLLOWER) == pytest.approx(40.5), (
        "half of the copies are unthrottled, so the rest gets half of 81 MB/s"
    )
    bench.cluster.join_isr("t1", 0, 1002)
    bench.cycle("in sync again")
    assert bench.lists() == ("0:1001,0:1002,1:1001,1:1002", "0:1003,1:1003")
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()


def test_partitions_below_min_isr_are_unthrottled_even_while_removals_are_blocked(bench: Bench) -> None:
    """An unreadable override blocked removals, so the partition stayed throttled and its acks=all producers waited."""
    bench.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": 2})
    bench.begin_reassignment(partitions=2)
    bench.cycle()
    eventually(lambda: bench.planner._reader.reading.complete_for is not None)
    bench.overrides.unreadable[None] = "it is not JSON"
    bench.cluster.leave_isr("t1", 0, 1002)
    bench.cycle()
    assert bench.lists() == ("1:1001,1:1002", "1:1003")
    bench.cluster.join_isr("t1", 1, 1003)
    bench.cycle()
    assert bench.lists() == ("1:1001,1:1002", "1:1003"), "nothing else is removed"
    bench.cluster.finish("t1", 1)
    bench.cycle()
    assert bench.lists() == ("1:1001,1:1002", "1:1003"), "nothing else is removed"
    bench.overrides.unreadable.clear()
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean()


def test_a_fetch_size_above_the_quota_window_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.cluster.settings = ClusterSettings({1003: FetchSettings(10_000_000_000, 11)})
    bench.begin_reassignment()
    bench.cycle()
    eventually(lambda: bench.planner._reader.reading.complete_for is not None)
    bench.cycle()
    bench.set_load(1001, outbound=30)
    bench.cycle()
    lines = [line for line in caplog.messages if "replica.fetch.response.max.bytes" in line]
    assert len(lines) == 1 and "1 x 10000000000 bytes" in lines[0]


def test_default_fetch_sizes_are_logged_at_the_start_of_a_reassignment_and_are_no_finding(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A finding about fetch sizes came before what mattered, also while nothing moved."""
    bench.cluster.settings = ClusterSettings({1003: FetchSettings()})
    bench.begin_reassignment()
    bench.cycle()
    eventually(lambda: bench.planner._reader.reading.complete_for is not None)
    assert bench.cycle("requested").findings == ()
    bench.set_load(1001, outbound=30)
    assert bench.cycle().findings == ()
    lines = [line for line in caplog.messages if "set replica.fetch.response.max.bytes=2097152" in line]
    assert len(lines) == 1, "it keeps its text, so that it is logged once"


def test_without_settings_kafkas_defaults_apply_and_that_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin_reassignment()
    bench.cycle()
    eventually(lambda: bench.planner._reader.reading.complete_for is not None)
    assert "fetch" not in " ".join(bench.cycle().findings), "at 72 MB/s the quota window is long enough"
    for rate in (mb(0.5), mb(0.6)):
        bench.overrides.set_override(None, StoredOverride(rate))
        bench.cycle()
    lines = [line for line in caplog.messages if "replica.fetch.response.max.bytes" in line]
    assert len(lines) == 1 and "(Kafka's defaults: its settings are unknown)" in lines[0]


@pytest.mark.parametrize("fault", ["no answer", "one broker is missing"])
def test_settings_missing_from_a_read_keep_their_last_values(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One late answer throttled partitions below min.insync.replicas again, for at least a minute."""
    monkeypatch.setattr(calls, "SETTINGS", replace(SETTINGS, first=0.0))
    cluster, read = MemoryCluster(brokers=BROKERS), threading.Semaphore(0)
    cluster.settings = settings = ClusterSettings({1003: FetchSettings(5, 7)}, {"t1": 2})
    reader = SettingsReader(cluster, read.release)
    try:
        reader.want({1003}, {"t1"})
        assert read.acquire(timeout=30) and reader.reading.settings == settings
        cluster.settings = ClusterSettings()
        cluster.unavailable(fault == "no answer")
        reader.want({1003}, {"t1"})
        assert read.acquire(timeout=30) and reader.reading.settings == settings
        reader.want({1004}, {"t2"})
        assert read.acquire(timeout=30) and reader.reading.settings == ClusterSettings(), (
            "settings of other brokers and topics are dropped"
        )
    finally:
        reader.close()


def test_a_bug_in_reading_settings_does_not_end_the_reader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: object) -> None:
        raise KeyError("a bug")

    cluster, read = MemoryCluster(brokers=BROKERS), threading.Semaphore(0)
    cluster.settings = settings = ClusterSettings({1003: FetchSettings(5, 7)}, {"t1": 2})
    with monkeypatch.context() as broken:
        broken.setattr(cluster, "fetch_settings", fail)
        reader = SettingsReader(cluster, read.release)
        reader.want({1003}, {"t1"})
        assert read.acquire(timeout=30)
    try:
        assert "Reading settings failed unexpectedly" in caplog.text
        reader.want({1003}, {"t1", "t2"})
        assert read.acquire(timeout=30) and reader.reading.settings == settings
    finally:
        reader.close()


def test_a_bug_in_the_handling_of_settings_does_not_end_the_reader(caplog: pytest.LogCaptureFixture) -> None:
    """The thread ended. Partitions that fell below min.insync.replicas later stayed throttled."""
    calls = threading.Semaphore(0)

    def fail() -> None:
        calls.release()
        raise KeyError("a bug")

    reader = SettingsReader(MemoryCluster(brokers=BROKERS), fail)
    try:
        for topic in ("t1", "t2"):
            reader.want({1003}, {topic})
            assert calls.acquire(timeout=30)
    finally:
        reader.close()
    assert caplog.messages == ["Handling settings failed unexpectedly"] * 2


NIGHT = Schedule((ScheduleWindow(12 * 60, 13 * 60, 0.5),), UTC)
"""Starts at noon, like the bench."""


def test_a_schedule_window_sets_the_share_of_headroom_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    with Bench(schedule=NIGHT) as bench:
        bench.begin_reassignment()
        bench.cycle()
        assert bench.rates() == {(1001, "leader"): 40, (1003, "follower"): 45}
        assert "based on a 50% max free capacity utilization" in caplog.text
        triggers = bench.planner._triggers
        while triggers.poll() is not None:
            pass
        bench.seconds = 3_600
        for broker_id, outbound, inbound in ((1001, 60.0, 10.0), (1003, 20.0, 55.0)):
            bench.set_load(broker_id, outbound=outbound, inbound=inbound)
        assert triggers.poll() is not None, "a cycle runs when the window ends"
        record = bench.cycle(after=0)
        assert [d.rate_bytes_per_second for d in record.decisions] == [mb(72), mb(81)], (
            "the targets; the raises are ramped"
        )
        assert "Schedule: from now on replication gets the usual share of the headroom" in caplog.messages


def test_the_starvation_guard_does_not_raise_a_scheduled_rate() -> None:
    with Bench(schedule=parse_schedule("00:00-24:00=1"), limits=builders.limits(min_rate=mb(0.1))) as bench:
        begin_measured_reassignment(bench)
        bench.cycle()
        bench.seconds += 60
        bench.cluster.grow(1001, "t1", 0, 60 * mb(40))
        record = bench.cycle(after=0)
        assert bench.rate(1003, FOLLOWER) == pytest.approx(0.9)
        assert any("the schedule is kept" in finding for finding in record.findings)


def test_rates_are_twice_what_the_deadline_needs_and_the_headroom_after_it() -> None:
    with Bench(finish_by=NOON + timedelta(seconds=1_000)) as bench:
        begin_measured_reassignment(bench, 10 * GB)
        bench.cycle(after=0)
        assert bench.rate(1003, FOLLOWER) == bench.rate(1001, LEADER) == pytest.approx(2 * 10_000 / 1_000)
        bench.seconds = 1_001
        record = bench.cycle(after=0)
        assert "finish-by" not in {d.reason.value for d in record.decisions}
        assert [d.rate_bytes_per_second for d in record.decisions] == [mb(72), mb(81)], (
            "the targets; the raises are ramped"
        )


def test_a_deadline_that_cannot_be_met_is_logged_once_with_numbers(caplog: pytest.LogCaptureFixture) -> None:
    with Bench(finish_by=NOON + timedelta(seconds=60)) as bench:
        begin_measured_reassignment(bench, 10 * GB)
        for _ in range(4):
            bench.cycle(after=10)
        lines = [line for line in caplog.messages if "cannot finish by" in line]
        assert len(lines) == 1
        assert lines[0].startswith(
            "The reassignments cannot finish by 2026-11-02T12:01:00Z: broker 1001 [leader] has 10000 MB"
        )
        assert bench.rate(1001, LEADER) == 72, "the headroom applies"
        bench.term = Term(bench.electorate.begin_term(ADDRESS))
        bench.cycle(after=1)
        first, again = (line for line in caplog.messages if "cannot finish by" in line)
        assert again != first, "a new leader logs its own numbers"


def test_a_cycle_applies_the_deadline_as_soon_as_the_bytes_left_are_known() -> None:
    with Bench(finish_by=NOON + timedelta(hours=1)) as bench:
        begin_measured_reassignment(bench, 10 * GB)
        triggers = bench.planner._triggers
        while triggers.poll() is not None:
            pass
        bench.cycle(after=0)
        bench.seconds = 3
        assert triggers.poll() == Trigger("first bytes left for the deadline", scheduled=False)


def test_an_ineffective_deadline_is_logged_once_per_reason(caplog: pytest.LogCaptureFixture) -> None:
    with Bench(finish_by=NOON + timedelta(seconds=120)) as bench:
        bench.cycle(after=0)
        assert "finish-by" not in caplog.text, "no reassignment"
        bench.begin_reassignment()
        for seconds in (10, 50, 60, 60):
            record = bench.cycle(after=seconds)
        lines = [
            line.partition(",")[0] for line in caplog.messages if line.startswith("finish-by 2026-11-02T12:02:00Z ")
        ]
        assert lines == [
            "finish-by 2026-11-02T12:02:00Z has no effect",
            "finish-by 2026-11-02T12:02:00Z has passed: rates follow the headroom",
        ]
        assert lines[-1] in record.findings


def test_a_destination_that_is_down_is_the_first_finding_and_its_last_known_bytes_are_left(bench: Bench) -> None:
    """State, top and page said "unknown" four times, and the first finding was about something else."""
    bench.cluster.tell_progress(bench.now)
    bench.begin_reassignment()
    bench.cluster.grow(1001, "t1", 0, 3_000_000_000)
    bench.cluster.grow(1003, "t1", 0, 1_000_000_000)
    assert bench.cycle().bytes_left == 2_000_000_000
    bench.cluster.brokers.discard(1003)
    del bench.cluster.log_bytes[1003]
    bench.metrics.lose(1003, "no series")
    record = bench.cycle("broker 1003 went")
    assert record.findings[0].startswith(
        "broker 1003 is down since 2026-11-02T12:01:01Z: 1 partition (t1-0) waits for it to copy them, with 2.00 GB "
        "left. Fix: start broker 1003"
    )
    assert not any("no series" in finding for finding in record.findings), "the outage explains it"
    assert (record.bytes_left, record.eta, record.down_brokers) == (2_000_000_000, None, (1003,))
    assert record.sentence.startswith("1 topics in reassignment, left: 2.00 GB, no end while broker 1003 is down; ")
    bench.cluster.brokers.add(1003)
    bench.cluster.grow(1003, "t1", 0, 1_000_000_000)
    assert bench.cycle("broker 1003 came").findings == ()
    events = [event for event in bench.posted() if "is down" in event.title]
    assert [event.title for event in events] == ["Reassignment waits for a broker that is down"]


def test_brokers_without_a_load_share_a_finding(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002), 1: (1002, 1001)})
    bench.cluster.submit_reassignment("t1", {0: (1001, 1003), 1: (1002, 1003)})
    for broker_id in (1001, 1002, 1003):
        bench.metrics.lose(broker_id, f"host-{broker_id} has no series s")
    assert bench.cycle().findings == (
        "3 brokers [1001-1003] have no usable load, such as broker 1001: host-1001 has no series s",
    )

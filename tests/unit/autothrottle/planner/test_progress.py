"""Bytes left and ETA in cycles, and one log line when they are unknown."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.core.forecast.progress import Remainder
from autothrottle.planner import cycle_report
from autothrottle.planner.loop import Trigger
from tests.builders import NOON
from tests.unit.autothrottle.planner.bench import Bench

GB = 1_000_000_000


pytestmark = pytest.mark.usefixtures("info_lines")


def begin_measured_reassignment(bench: Bench, size: int = 10 * GB) -> None:
    """Begin a reassignment with known log sizes and nothing copied yet."""
    bench.cluster.tell_progress(bench.now)
    bench.begin_reassignment()
    bench.cluster.grow(1001, "t1", 0, size)
    bench.cluster.grow(1003, "t1", 0, 0)


def test_a_cycle_shows_the_bytes_left_and_the_eta(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    begin_measured_reassignment(bench)
    first = bench.cycle()
    assert first.sentence == (
        "1 topics in reassignment, left: 10.00 GB, about 2 min at these throttles; 3 of 3 changes written"
    )
    assert (first.bytes_left, first.eta_is_static, first.eta_low, first.eta_high) == (10 * GB, True, None, None)
    assert first.eta == bench.now() + timedelta(seconds=10_000 / 72), "limited by the leader throttle of 72 MB/s"
    bench.cluster.grow(1003, "t1", 0, 1 * GB)
    second = bench.cycle(after=30)
    assert second.sentence == "1 topics in reassignment, left: 9.00 GB, about 4 min; throttles are up to date"
    assert (second.bytes_left, second.eta) == (9 * GB, bench.now() + timedelta(seconds=270))
    assert not second.eta_is_static
    assert "Bytes left to copy: 9.00 GB, about 4 min" in caplog.messages


def test_the_eta_has_an_interval_after_two_sample_spans(bench: Bench) -> None:
    begin_measured_reassignment(bench)
    bench.cycle()
    for copied in (300_000_000, 200_000_000, 400_000_000):
        bench.cluster.grow(1003, "t1", 0, copied)
        record = bench.cycle(after=20)
    assert record.eta is not None and record.eta_low is not None and record.eta_high is not None
    assert record.eta_low < record.eta < record.eta_high
    assert record.eta == bench.now() + timedelta(seconds=9_100 / 15)
    assert "about 10 min (7 min to 16 min)" in record.sentence


def test_a_stalled_reassignment_has_no_eta(bench: Bench) -> None:
    begin_measured_reassignment(bench)
    for _ in range(5):
        record = bench.cycle(after=20)
    assert record.bytes_left == 10 * GB
    assert record.eta is None and not record.eta_is_static


def test_an_event_cycle_does_not_log_the_bytes_left_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    begin_measured_reassignment(bench)
    bench.cycle()
    caplog.clear()
    assert bench.cycle("requested").bytes_left == 10 * GB
    assert not [line for line in caplog.messages if "left" in line]


def test_a_finished_reassignment_has_no_bytes_left(bench: Bench) -> None:
    begin_measured_reassignment(bench)
    bench.cycle()
    bench.cluster.grow(1003, "t1", 0, 10 * GB)
    bench.cluster.finish("t1")
    over = bench.cycle()
    assert (over.bytes_left, over.eta) == (None, None)
    assert "left" not in over.sentence


def test_a_broker_without_log_sizes_makes_the_bytes_left_a_lower_bound(bench: Bench) -> None:
    begin_measured_reassignment(bench)
    bench.cluster.add_topic("t2", {0: (1001, 1002)})
    bench.cluster.submit_reassignment("t2", {0: (1001, 1004)})
    bench.cluster.grow(1001, "t2", 0, 5 * GB)
    record = bench.cycle()
    assert record.sentence.startswith("2 topics in reassignment, left: at least 10.00 GB (1 flows unknown); ")
    assert (record.bytes_left, record.eta) == (10 * GB, None)


def test_unknown_progress_is_logged_once_at_the_start_of_a_reassignment(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.cycle()
    assert cycle_report.UNKNOWN_PROGRESS not in caplog.messages
    bench.begin_reassignment()
    bench.cycle()
    bench.cycle()
    assert bench.cycle().bytes_left is None
    assert caplog.messages.count(cycle_report.UNKNOWN_PROGRESS) == 1


def test_unknown_progress_is_not_logged_if_log_sizes_are_known(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    begin_measured_reassignment(bench)
    bench.cycle()
    assert cycle_report.UNKNOWN_PROGRESS not in caplog.messages


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (89, "89 s"),
        (90, "2 min"),
        (7_169, "119 min"),
        (7_170, "2 h 0 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_the_remaining_time_is_rounded_to_readable_units(seconds: int, words: str) -> None:
    left = Remainder(2 * GB, 0, NOON + timedelta(seconds=seconds), NOON)
    assert cycle_report.progress_words(left) == f"2.00 GB, about {words}"


def test_a_cycle_runs_for_the_first_eta_half_a_minute_after_the_start(bench: Bench) -> None:
    triggers = bench.planner._triggers  # the planner's thread would need real time
    begin_measured_reassignment(bench)
    assert triggers.poll() is not None  # the first scheduled cycle and the event of the reassignment
    bench.cycle(after=0)
    assert triggers.poll() is None
    bench.seconds += 4
    assert triggers.poll() == Trigger("first loads with counted copies", scheduled=False)
    bench.seconds += 26
    assert triggers.poll() == Trigger("first ETA of the reassignment", scheduled=False)
    bench.cycle("first ETA of the reassignment")
    bench.seconds += 29
    assert triggers.poll() == Trigger("interval", scheduled=True)


def test_the_first_eta_counts_from_the_cycle_that_knows_the_whole_start(bench: Bench) -> None:
    triggers = bench.planner._triggers
    bench.cycle()
    assert triggers.poll() is not None
    begin_measured_reassignment(bench)
    bench.begin_reassignment("t2")
    assert triggers.poll() is not None
    bench.cluster.unread_topics = {"t1"}
    bench.cycle(after=1)
    bench.cycle(after=5)
    bench.seconds += 24
    assert triggers.poll() == Trigger("the rest of the reassignments", scheduled=False)
    bench.seconds += 1
    assert triggers.poll() == Trigger("first ETA of the reassignment", scheduled=False)

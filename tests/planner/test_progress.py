"""What a cycle says of the bytes that are left, and that it says so once when it cannot know."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.core.progress import Remainder
from autothrottle.planner import narration
from autothrottle.planner.triggers import Trigger
from tests.builders import NOON
from tests.planner.bench import Bench

GB = 1_000_000_000


pytestmark = pytest.mark.usefixtures("info_lines")


def moving(bench: Bench, size: int = 10 * GB) -> None:
    """A move of which 0 bytes have landed."""
    bench.cluster.tell_progress(bench.now)
    bench.begin_move()
    bench.cluster.grow(1001, "t1", 0, size)
    bench.cluster.grow(1003, "t1", 0, 0)


def test_a_cycle_says_what_is_left_and_then_when_it_is_done(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    moving(bench)
    first = bench.cycle()
    assert first.sentence == (
        "1 topics in reassignment, left: 10.00 GB, about 2 min at these throttles; 3 of 3 changes written"
    )
    assert (first.bytes_left, first.eta_is_static, first.eta_low, first.eta_high) == (10 * GB, True, None, None)
    assert first.eta == bench.now() + timedelta(seconds=10_000 / 72), "the leader, which sends at most 72 MB/s"
    bench.cluster.grow(1003, "t1", 0, 1 * GB)
    second = bench.cycle(after=30)
    assert second.sentence == "1 topics in reassignment, left: 9.00 GB, about 4 min; what stands is right"
    assert (second.bytes_left, second.eta) == (9 * GB, bench.now() + timedelta(seconds=270))
    assert not second.eta_is_static
    assert "Bytes left to be copied: 9.00 GB, about 4 min" in caplog.messages


def test_after_two_spans_of_readings_the_eta_has_an_interval(bench: Bench) -> None:
    moving(bench)
    bench.cycle()
    for landed in (300_000_000, 200_000_000, 400_000_000):
        bench.cluster.grow(1003, "t1", 0, landed)
        record = bench.cycle(after=20)
    assert record.eta is not None and record.eta_low is not None and record.eta_high is not None
    assert record.eta_low < record.eta < record.eta_high
    assert record.eta == bench.now() + timedelta(seconds=9_100 / 15)
    assert "about 10 min (7 min to 16 min)" in record.sentence


def test_a_move_that_gains_nothing_has_no_eta_by_its_throttles_either(bench: Bench) -> None:
    moving(bench)
    for _ in range(5):
        record = bench.cycle(after=20)
    assert record.bytes_left == 10 * GB
    assert record.eta is None and not record.eta_is_static


def test_a_cycle_that_an_event_starts_repeats_no_line_about_what_is_left(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    moving(bench)
    bench.cycle()
    caplog.clear()
    assert bench.cycle("asked for").bytes_left == 10 * GB
    assert not [line for line in caplog.messages if "left" in line]


def test_after_the_move_nothing_is_left(bench: Bench) -> None:
    moving(bench)
    bench.cycle()
    bench.cluster.grow(1003, "t1", 0, 10 * GB)
    bench.cluster.finish("t1")
    over = bench.cycle()
    assert (over.bytes_left, over.eta) == (None, None)
    assert "left" not in over.sentence


def test_what_a_broker_that_does_not_answer_still_receives_is_said_to_be_unknown(bench: Bench) -> None:
    moving(bench)
    bench.cluster.add_topic("t2", {0: (1001, 1002)})
    bench.cluster.start_reassignment("t2", {0: (1001, 1004)})
    bench.cluster.grow(1001, "t2", 0, 5 * GB)
    record = bench.cycle()
    assert record.sentence.startswith("2 topics in reassignment, left: at least 10.00 GB (1 flows unknown); ")
    assert (record.bytes_left, record.eta) == (10 * GB, None)


def test_that_nobody_reads_log_sizes_is_said_once_at_the_start_of_a_move(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.cycle()
    assert narration.UNKNOWN_PROGRESS not in caplog.messages
    bench.begin_move()
    bench.cycle()
    bench.cycle()
    assert bench.cycle().bytes_left is None
    assert caplog.messages.count(narration.UNKNOWN_PROGRESS) == 1


def test_where_log_sizes_are_read_nobody_is_told_that_they_are_not(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    moving(bench)
    bench.cycle()
    assert narration.UNKNOWN_PROGRESS not in caplog.messages


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
def test_the_time_that_is_left_is_said_in_two_digits_or_so(seconds: int, words: str) -> None:
    left = Remainder(2 * GB, 0, NOON + timedelta(seconds=seconds), NOON)
    assert narration.progress_words(left) == f"2.00 GB, about {words}"


def test_a_cycle_half_a_minute_after_the_start_of_a_move_tells_its_eta_however_long_the_interval(bench: Bench) -> None:
    triggers = bench.planner._triggers  # its own thread would take that half a minute
    moving(bench)
    assert triggers.poll() is not None  # the first scheduled one, and that a move began
    bench.cycle(after=0)
    assert triggers.poll() is None
    bench.seconds += 30
    assert triggers.poll() == Trigger("how far the move has come", scheduled=False)
    bench.cycle("how far the move has come")
    bench.seconds += 29
    assert triggers.poll() == Trigger("interval", scheduled=True)

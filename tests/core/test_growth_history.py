"""What counts as growth of a broker's logs, and what is a rise in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.growth import GrowthMark, LogGrowth, risen
from autothrottle.core.growth_history import Copied, Copying, GrowthHistory
from autothrottle.core.progress import BrokerLogSizes, LogSizes
from autothrottle.core.topology import TopicPartition
from tests.builders import NOON, mb, reassignment

A, B, C = ("t", 0), ("t", 1), ("u", 0)
LEADERS: Mapping[TopicPartition, int] = {A: 1001, B: 1002}


class Readings:
    """A history, and the time."""

    def __init__(self) -> None:
        self.history = GrowthHistory()
        self.seconds = 0.0

    def read(
        self,
        sizes: Mapping[int, Mapping[TopicPartition, int]],
        copied: Copied | None = None,
        leaders: Mapping[TopicPartition, int] = LEADERS,
        after: float = 2,
    ) -> Readings:
        self.seconds += after
        at = NOON + timedelta(seconds=self.seconds)
        logs = LogSizes({b: BrokerLogSizes(at, of_one) for b, of_one in sizes.items()})
        self.history = self.history.observe(logs, copied or {}, leaders)
        return self

    def counts(self, broker_id: int = 1001) -> tuple[int, int]:
        growth = self.history.brokers[broker_id]
        return growth.led, growth.received


def test_what_a_broker_leads_was_produced_to_it_and_all_that_grew_it_took_in() -> None:
    readings = Readings().read({1001: {A: 100, B: 50, C: 7}}).read({1001: {A: 130, B: 70, C: 8}})
    assert readings.counts() == (30, 51)
    assert readings.read({1001: {A: 135, B: 70, C: 8}}).counts() == (35, 56)


def test_when_the_clock_was_set_back_counting_begins_anew() -> None:
    readings = Readings().read({1001: {A: 100}}).read({1001: {A: 130}})
    readings.read({1001: {A: 150}}, after=-3600).read({1001: {A: 155}})
    growth = readings.history.told[1001]
    assert (growth.led, growth.since) == (5, NOON + timedelta(seconds=4 - 3600))


def test_nothing_is_told_of_a_broker_that_was_read_only_once() -> None:
    readings = Readings().read({1001: {A: 100}})
    assert readings.history.told == {}
    told = readings.read({1001: {A: 100}}).history.told[1001]
    assert (told.since, told.at) == (NOON + timedelta(seconds=2), NOON + timedelta(seconds=4))
    assert told.recent == (GrowthMark(told.since, 0, 0),)


def test_a_replica_that_is_copied_counts_apart_its_last_bytes_included() -> None:
    copied = {1001: {C}}
    readings = Readings().read({1001: {A: 0, C: 0}}, copied).read({1001: {A: 1, C: 500}}, copied)
    assert readings.counts() == (1, 1)
    # It has joined the ISR: some of this was copied, nobody knows how much.
    assert readings.read({1001: {A: 2, C: 900}}).counts() == (2, 2)
    assert readings.read({1001: {A: 2, C: 910}}).counts() == (2, 12)


def test_a_replica_that_begins_to_be_copied_counts_apart_at_once() -> None:
    readings = Readings().read({1001: {C: 10}}).read({1001: {C: 400}}, {1001: {C}})
    assert readings.counts() == (0, 0)


def test_what_retention_deletes_takes_nothing_back() -> None:
    readings = Readings().read({1001: {A: 100, B: 100}}).read({1001: {A: 40, B: 103}}).read({1001: {A: 45, B: 103}})
    assert readings.counts() == (5, 8)


def test_a_log_that_retention_shortens_is_taken_to_have_grown_on_as_before() -> None:
    """On brokers whose logs lost a segment together, clients seemed to bring less every half minute."""
    readings = Readings().read({1001: {A: 100, B: 100}}).read({1001: {A: 130, B: 100}}).read({1001: {A: 20, B: 60}})
    assert readings.counts() == (60, 60)
    assert readings.read({1001: {A: 90, B: 60}}, after=4).counts() == (130, 130)
    assert readings.read({1001: {A: 10, B: 60}}, after=2).counts() == (165, 165)


def test_a_log_that_is_there_for_the_first_time_counts_from_then_on() -> None:
    readings = Readings().read({1001: {A: 1}}).read({1001: {A: 1, B: 1000}}).read({1001: {A: 1, B: 1003}})
    assert readings.counts() == (0, 3)
    # A log that went and came back: what it was before says nothing.
    assert readings.read({1001: {A: 1}}).read({1001: {A: 1, B: 1009}}).counts() == (0, 3)


def test_when_another_broker_leads_what_is_produced_is_its_from_then_on() -> None:
    readings = Readings().read({1001: {A: 0}, 1002: {A: 0}}).read({1001: {A: 5}, 1002: {A: 5}})
    readings.read({1001: {A: 12}, 1002: {A: 12}}, leaders={A: 1002})
    assert (readings.counts(1001), readings.counts(1002)) == ((5, 12), (7, 12))


def test_a_broker_that_did_not_answer_is_counted_on_when_it_does() -> None:
    readings = Readings().read({1001: {A: 0}, 1002: {B: 0}}).read({1001: {A: 1}}).read({1001: {A: 2}, 1002: {B: 9}})
    assert readings.counts(1002) == (9, 9)


def test_what_a_silent_broker_was_copying_counts_apart_when_it_answers() -> None:
    copied = {1002: {C}}
    readings = Readings().read({1001: {A: 0}, 1002: {B: 0, C: 0}}, copied).read({1001: {A: 1}}).read({1001: {A: 1}})
    assert readings.read({1002: {B: 1, C: 800}}).counts(1002) == (1, 1)


def test_a_broker_that_was_not_read_for_minutes_is_counted_anew() -> None:
    readings = Readings().read({1001: {A: 0}, 1002: {B: 0}}).read({1001: {A: 1}}, after=301)
    assert readings.history.brokers.keys() == {1001}
    readings.read({1002: {B: 100}})
    assert readings.counts(1002) == (0, 0)


def test_two_readings_of_one_moment_lose_nothing() -> None:
    readings = Readings().read({1001: {A: 0}}).read({1001: {A: 5}}).read({1001: {A: 7}}, after=0)
    assert readings.counts() == (5, 5)
    assert readings.read({1001: {A: 9}}).counts() == (9, 9)


def test_earlier_counts_are_kept_for_minutes_the_older_the_sparser() -> None:
    readings = Readings()
    for count in range(600):
        readings.read({1001: {A: count}})
    growth = readings.history.brokers[1001]
    ages = [(growth.at - mark.at).total_seconds() for mark in growth.recent]
    assert ages == sorted(ages, reverse=True)
    assert ages[-20:] == [float(2 * n) for n in range(20, 0, -1)]
    assert 450 <= ages[0] <= 480
    assert len(ages) <= 55
    # Two bytes in four seconds, whichever two counts one takes.
    assert all(mark.led == 599 - round(age / 2) for mark, age in zip(growth.recent, ages, strict=True))


@given(
    steps=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 100)),
            st.sets(st.sampled_from([A, B, C])),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_counts_never_fall_and_what_is_led_is_a_part_of_what_came_in(
    steps: Sequence[tuple[Mapping[TopicPartition, int], set[TopicPartition]]],
) -> None:
    readings, before = Readings(), (0, 0)
    for sizes, copied in steps:
        led, received = readings.read({1001: sizes}, {1001: copied}).counts()
        assert before[0] <= led and before[1] <= received
        assert led <= received
        before = led, received


def test_who_takes_part_is_read_from_what_is_still_to_be_copied() -> None:
    moving = reassignment(
        "t", {0: (1001, (1001, 1002), (1003,), (1002,)), 1: (1004, (1004, 1005), (1005,), ()), 2: (-1, (), (1006,), ())}
    )
    found = Copying.of([moving])
    assert found.copied == {1003: {("t", 0)}, 1006: {("t", 2)}}
    assert found.leaders == {1001}
    assert found.brokers == {1001, 1003, 1006}


def grown(*rates: float, led: bool = True) -> LogGrowth:
    """So many MB/s in each 2 s."""
    marks = [GrowthMark(NOON, 0, 0)]
    for index, rate in enumerate(rates):
        gained = round(2 * mb(rate))
        last = marks[-1]
        at = NOON + timedelta(seconds=2 * index + 2)
        marks.append(GrowthMark(at, last.led + gained * led, last.received + gained))
    return LogGrowth(marks[-1].led, marks[-1].received, marks[-1].at, NOON, tuple(marks[:-1]))


@pytest.mark.parametrize("led", [True, False])
def test_two_readings_above_all_before_are_a_rise_and_say_what_comes_now(led: bool) -> None:
    assert risen(grown(10, 10, 11, 10, 16, 16, led=led)) == mb(16)


def test_one_burst_is_no_rise_nor_is_what_swings_as_before() -> None:
    assert risen(grown(10, 10, 10, 10, 10, 30)) is None
    assert risen(grown(10, 20, 10, 20, 10, 20, 20, 20)) is None
    assert risen(grown(10, 10, 10, 2, 14, 14)) is None, "they make up for what was held up"
    assert risen(grown(100, 100, 100, 109, 109)) is None, "not more than a tenth"
    assert risen(grown(0, 0, 0, 0.9, 0.9)) is None, "less than a megabyte per second"


def test_of_what_was_read_too_seldom_nobody_says_that_it_rises() -> None:
    assert risen(grown(10, 30, 30)) is None
    assert risen(LogGrowth(0, 0, NOON, NOON)) is None


def test_what_is_produced_may_rise_though_all_that_comes_in_is_too_much_to_see_it() -> None:
    led, received = grown(5, 5, 5, 8, 8), grown(100, 100, 100, 103, 103, led=False)
    marks = [GrowthMark(r.at, one.led, r.received) for one, r in zip(led.curve, received.curve, strict=True)]
    both = LogGrowth(led.led, received.received, led.at, NOON, tuple(marks[:-1]))
    assert risen(received) is None
    assert risen(both) == mb(103)

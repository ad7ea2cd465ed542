"""Which bytes count as growth of a broker's logs, and which growth is a rise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.flows import GrowthMark, LogGrowth, rate_after_rise
from autothrottle.core.cluster.snapshot import BrokerLogSizes, LogSizes, TopicPartition
from autothrottle.core.traffic.log_growth_history import Copied, CopyingReplicas, GrowthHistory
from tests.builders import NOON, mb, reassignment

A, B, C = ("t", 0), ("t", 1), ("u", 0)
LEADERS: Mapping[TopicPartition, int] = {A: 1001, B: 1002}


class Samples:
    """A history and its clock."""

    def __init__(self) -> None:
        self.history = GrowthHistory()
        self.seconds = 0.0

    def read(
        self,
        sizes: Mapping[int, Mapping[TopicPartition, int]],
        copied: Copied | None = None,
        leaders: Mapping[TopicPartition, int] = LEADERS,
        after: float = 2,
    ) -> Samples:
        self.seconds += after
        at = NOON + timedelta(seconds=self.seconds)
        logs = LogSizes({b: BrokerLogSizes(at, of_one) for b, of_one in sizes.items()})
        self.history = self.history.observe(logs, copied or {}, leaders)
        return self

    def counts(self, broker_id: int = 1001) -> tuple[int, int]:
        growth = self.history.brokers[broker_id]
        return growth.led, growth.received


def test_growth_of_led_logs_is_produced_and_all_growth_is_received() -> None:
    samples = Samples().read({1001: {A: 100, B: 50, C: 7}}).read({1001: {A: 130, B: 70, C: 8}})
    assert samples.counts() == (30, 51)
    assert samples.read({1001: {A: 135, B: 70, C: 8}}).counts() == (35, 56)


def test_counting_restarts_when_the_clock_is_set_back() -> None:
    samples = Samples().read({1001: {A: 100}}).read({1001: {A: 130}})
    samples.read({1001: {A: 150}}, after=-3600).read({1001: {A: 155}})
    growth = samples.history.reported[1001]
    assert (growth.led, growth.since) == (5, NOON + timedelta(seconds=4 - 3600))


def test_growth_beyond_a_link_is_unknown_and_counting_restarts() -> None:
    """A log directory that is back after an outage shows its bytes at once. They counted as produced by clients."""
    samples = Samples().read({1001: {A: 100}, 1002: {B: 7}}).read({1001: {A: 2**50}, 1002: {B: 9}})
    assert [*samples.history.reported] == [1002]
    assert samples.read({1001: {A: 2**50 + 8}, 1002: {B: 10}}).counts() == (8, 8)
    assert samples.counts(1002) == (3, 3)


def test_broker_sampled_once_is_not_reported() -> None:
    samples = Samples().read({1001: {A: 100}})
    assert samples.history.reported == {}
    reported = samples.read({1001: {A: 100}}).history.reported[1001]
    assert (reported.since, reported.at) == (NOON + timedelta(seconds=2), NOON + timedelta(seconds=4))
    assert reported.recent == (GrowthMark(reported.since, 0, 0),)


def test_growth_of_a_copying_replica_including_its_last_bytes_does_not_count() -> None:
    copied = {1001: {C}}
    samples = Samples().read({1001: {A: 0, C: 0}}, copied).read({1001: {A: 1, C: 500}}, copied)
    assert samples.counts() == (1, 1)
    # It has joined the ISR: an unknown part of these bytes was copied.
    assert samples.read({1001: {A: 2, C: 900}}).counts() == (2, 2)
    assert samples.read({1001: {A: 2, C: 910}}).counts() == (2, 12)


def test_replica_that_starts_copying_stops_counting_at_once() -> None:
    samples = Samples().read({1001: {C: 10}}).read({1001: {C: 400}}, {1001: {C}})
    assert samples.counts() == (0, 0)


def test_retention_takes_nothing_back() -> None:
    samples = Samples().read({1001: {A: 100, B: 100}}).read({1001: {A: 40, B: 103}}).read({1001: {A: 45, B: 103}})
    assert samples.counts() == (5, 8)


def test_log_shortened_by_retention_keeps_its_previous_rate() -> None:
    """On brokers whose logs lost a segment at the same time, the client load seemed to drop every half minute."""
    samples = Samples().read({1001: {A: 100, B: 100}}).read({1001: {A: 130, B: 100}}).read({1001: {A: 20, B: 60}})
    assert samples.counts() == (60, 60)
    assert samples.read({1001: {A: 90, B: 60}}, after=4).counts() == (130, 130)
    assert samples.read({1001: {A: 10, B: 60}}, after=2).counts() == (165, 165)


def test_new_log_counts_from_its_second_sample() -> None:
    samples = Samples().read({1001: {A: 1}}).read({1001: {A: 1, B: 1000}}).read({1001: {A: 1, B: 1003}})
    assert samples.counts() == (0, 3)
    # A log that was deleted and recreated: its earlier size is irrelevant.
    assert samples.read({1001: {A: 1}}).read({1001: {A: 1, B: 1009}}).counts() == (0, 3)


def test_produce_traffic_belongs_to_the_new_leader_from_then_on() -> None:
    samples = Samples().read({1001: {A: 0}, 1002: {A: 0}}).read({1001: {A: 5}, 1002: {A: 5}})
    samples.read({1001: {A: 12}, 1002: {A: 12}}, leaders={A: 1002})
    assert (samples.counts(1001), samples.counts(1002)) == ((5, 12), (7, 12))


def test_silent_broker_continues_its_count_when_it_answers() -> None:
    samples = Samples().read({1001: {A: 0}, 1002: {B: 0}}).read({1001: {A: 1}}).read({1001: {A: 2}, 1002: {B: 9}})
    assert samples.counts(1002) == (9, 9)


def test_bytes_copied_by_a_silent_broker_do_not_count() -> None:
    copied = {1002: {C}}
    samples = Samples().read({1001: {A: 0}, 1002: {B: 0, C: 0}}, copied).read({1001: {A: 1}}).read({1001: {A: 1}})
    assert samples.read({1002: {B: 1, C: 800}}).counts(1002) == (1, 1)


def test_broker_not_sampled_for_minutes_is_counted_anew() -> None:
    samples = Samples().read({1001: {A: 0}, 1002: {B: 0}}).read({1001: {A: 1}}, after=301)
    assert samples.history.brokers.keys() == {1001}
    samples.read({1002: {B: 100}})
    assert samples.counts(1002) == (0, 0)


def test_two_samples_at_the_same_time_lose_nothing() -> None:
    samples = Samples().read({1001: {A: 0}}).read({1001: {A: 5}}).read({1001: {A: 7}}, after=0)
    assert samples.counts() == (5, 5)
    assert samples.read({1001: {A: 9}}).counts() == (9, 9)


def test_marks_are_kept_for_minutes_and_get_sparser_with_age() -> None:
    samples = Samples()
    for count in range(600):
        samples.read({1001: {A: count}})
    growth = samples.history.brokers[1001]
    ages = [(growth.at - mark.at).total_seconds() for mark in growth.recent]
    assert ages == sorted(ages, reverse=True)
    assert ages[-20:] == [float(2 * n) for n in range(20, 0, -1)]
    assert 450 <= ages[0] <= 480
    assert len(ages) <= 55
    # Two bytes in four seconds, between any two marks.
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
def test_counts_never_decrease_and_led_is_part_of_received(
    steps: Sequence[tuple[Mapping[TopicPartition, int], set[TopicPartition]]],
) -> None:
    samples, before = Samples(), (0, 0)
    for sizes, copied in steps:
        led, received = samples.read({1001: sizes}, {1001: copied}).counts()
        assert before[0] <= led and before[1] <= received
        assert led <= received
        before = led, received


def test_copying_replicas_lists_the_participants() -> None:
    moving = reassignment(
        "t", {0: (1001, (1001, 1002), (1003,), (1002,)), 1: (1004, (1004, 1005), (1005,), ()), 2: (-1, (), (1006,), ())}
    )
    found = CopyingReplicas.of([moving])
    assert found.copied == {1003: {("t", 0)}, 1006: {("t", 2)}}
    assert found.leaders == {1001}
    assert found.brokers == {1001, 1003, 1006}


def produced(*rates: float, led: bool = True) -> LogGrowth:
    """Growth at these rates in MB/s, 2 s each."""
    marks = [GrowthMark(NOON, 0, 0)]
    for index, rate in enumerate(rates):
        gained = round(2 * mb(rate))
        last = marks[-1]
        at = NOON + timedelta(seconds=2 * index + 2)
        marks.append(GrowthMark(at, last.led + gained * led, last.received + gained))
    return LogGrowth(marks[-1].led, marks[-1].received, marks[-1].at, NOON, tuple(marks[:-1]))


@pytest.mark.parametrize("led", [True, False])
def test_two_samples_above_all_earlier_ones_are_a_rise(led: bool) -> None:
    assert rate_after_rise(produced(10, 10, 11, 10, 16, 16, led=led)) == mb(16)


def test_single_burst_or_usual_oscillation_is_not_a_rise() -> None:
    assert rate_after_rise(produced(10, 10, 10, 10, 10, 30)) is None
    assert rate_after_rise(produced(10, 20, 10, 20, 10, 20, 20, 20)) is None
    assert rate_after_rise(produced(10, 10, 10, 2, 14, 14)) is None, "clients send what a stall delayed"
    assert rate_after_rise(produced(100, 100, 100, 109, 109)) is None, "not more than 10 %"
    assert rate_after_rise(produced(0, 0, 0, 0.9, 0.9)) is None, "less than 1 MB/s"


def test_too_few_samples_show_no_rise() -> None:
    assert rate_after_rise(produced(10, 30, 30)) is None
    assert rate_after_rise(LogGrowth(0, 0, NOON, NOON)) is None


def test_rise_of_produced_bytes_is_found_beside_much_larger_inbound_traffic() -> None:
    led, received = produced(5, 5, 5, 8, 8), produced(100, 100, 100, 103, 103, led=False)
    marks = [GrowthMark(r.at, one.led, r.received) for one, r in zip(led.curve, received.curve, strict=True)]
    both = LogGrowth(led.led, received.received, led.at, NOON, tuple(marks[:-1]))
    assert rate_after_rise(received) is None
    assert rate_after_rise(both) == mb(103)

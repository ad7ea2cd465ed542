"""The traffic on the brokers' links, from the growth of logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.snapshot import BrokerLogSizes, LogSizes, TopicPartition
from autothrottle.core.traffic.loads import Utilization
from autothrottle.core.traffic.log_growth_history import LogTraffic
from tests.builders import NOON

A, B = ("t", 0), ("t", 1)
LEADERS: Mapping[TopicPartition, int] = {A: 1, B: 2}


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def sample(seconds: float, sizes: Mapping[int, Mapping[TopicPartition, int]], *silent: int) -> LogSizes:
    brokers = {b: BrokerLogSizes(after(seconds), logs) for b, logs in sizes.items()}
    return LogSizes(brokers, dict.fromkeys(silent, "does not answer"))


def observed(*samples: LogSizes, fanout: float = 1, window: float = 60) -> LogTraffic:
    traffic = LogTraffic(timedelta(seconds=window), fanout)
    for one in samples:
        traffic = traffic.observe(one, LEADERS)
    return traffic


def rates(traffic: LogTraffic, broker_id: int) -> tuple[int, int]:
    """Return (outbound, inbound), bytes/s."""
    found = traffic.utilization(broker_id)
    assert found is not None
    return found[0].rate, found[1].rate


def test_a_leader_sends_to_its_followers_and_to_consumers() -> None:
    first = sample(0, {1: {A: 0, B: 0}, 2: {A: 0, B: 0}, 3: {A: 0}})
    second = sample(10, {1: {A: 1000, B: 200}, 2: {A: 1000, B: 200}, 3: {A: 1000}})
    traffic = observed(first, second, fanout=3)
    assert rates(traffic, 1) == (200 + 3 * 100, 120)
    assert rates(traffic, 2) == (20 + 3 * 20, 120)
    assert rates(traffic, 3) == (0, 100)
    assert traffic.utilization(1) == (Utilization(500, NOON, after(10)), Utilization(120, NOON, after(10)))


def test_a_replica_that_is_copied_counts_from_its_first_byte() -> None:
    """The planner subtracts all bytes that a reassignment copied.

    If the bytes before the first sample of a new log were missing here, a part of the client load would be subtracted.
    """
    before = sample(0, {1: {A: 5000}, 3: {}})
    copying = sample(10, {1: {A: 5000}, 3: {A: 700}})
    traffic = observed(before, copying)
    assert (rates(traffic, 1)[0], rates(traffic, 3)[1]) == (70, 70)
    later = traffic.observe(sample(20, {1: {A: 5000}, 3: {A: 1700}}), LEADERS)
    assert (rates(later, 1)[0], rates(later, 3)[1]) == (85, 85)


def test_retention_and_compaction_do_not_lower_the_load() -> None:
    samples = [sample(0, {1: {A: 1000}}), sample(10, {1: {A: 2000}}), sample(20, {1: {A: 500}})]
    assert rates(observed(*samples), 1) == (100, 100)


def test_a_load_covers_the_window_and_names_its_interval() -> None:
    traffic = observed(*(sample(at, {1: {A: at * at}}) for at in range(0, 100, 10)), window=30)
    assert traffic.utilization(1) == (Utilization(150, after(60), after(90)),) * 2
    assert len(traffic.marks[1]) == 4


def test_a_silent_broker_keeps_its_load_and_its_interval_and_a_broker_that_left_has_none() -> None:
    both = {1: {A: 0}, 2: {A: 0}}
    grown = {1: {A: 1000}, 2: {A: 1000}}
    traffic = observed(sample(0, both), sample(10, grown), sample(20, {1: {A: 2000}}, 2))
    assert rates(traffic, 1)[0] == 100 + 100
    assert traffic.utilization(2) == (Utilization(0, NOON, after(10)), Utilization(100, NOON, after(10)))
    gone = traffic.observe(sample(30, {1: {A: 3000}}), LEADERS)
    assert gone.utilization(2) is None
    assert gone.marks[1][-1].replicated == traffic.marks[1][-1].replicated


def test_a_broker_with_one_sample_has_no_load() -> None:
    assert observed(sample(0, {1: {A: 5}})).utilization(1) is None


def test_counting_restarts_after_a_long_gap_and_when_the_clock_is_set_back() -> None:
    first, second = sample(0, {1: {A: 0}}), sample(10, {1: {A: 1000}})
    for late in (sample(10 + 301, {1: {A: 9000}}), sample(-3600, {1: {A: 9000}})):
        restarted = observed(first, second, late)
        assert restarted.utilization(1) is None
    repeated = observed(first, second, second)
    assert repeated.marks == observed(first, second).marks


@given(
    steps=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    lags=st.lists(st.integers(0, 400), min_size=9, max_size=9),
    produced=st.integers(0, 10**9),
    fanout=st.integers(0, 10),
)
def test_steady_rates_are_exact_whenever_each_broker_answers(
    steps: Sequence[int], lags: Sequence[int], produced: int, fanout: int
) -> None:
    traffic, seconds = LogTraffic(timedelta(seconds=60), fanout), 0
    for step, lag in zip((0, *steps), lags, strict=False):
        seconds += step
        times = {1: seconds * 1000, 2: seconds * 1000 + lag}
        brokers = {b: BrokerLogSizes(NOON + timedelta(milliseconds=ms), {A: produced * ms}) for b, ms in times.items()}
        traffic = traffic.observe(LogSizes(brokers), {A: 1})
    assert rates(traffic, 1) == ((1 + fanout) * 1000 * produced, 1000 * produced)
    assert rates(traffic, 2) == (0, 1000 * produced)


_hostile_sizes = st.sampled_from([-1, -(2**63), 2**62, 2**63 - 1, 2**50, 10**16, 0])


@given(st.lists(st.dictionaries(st.sampled_from([A, B, ("x", 0)]), _hostile_sizes), min_size=2, max_size=4))
def test_hostile_sizes_of_one_broker_count_as_no_answer_for_the_others(
    hostile: Sequence[Mapping[TopicPartition, int]],
) -> None:
    """A follower that reports 2^62 bytes added them to the outbound load of its leader.

    Now its sample counts as unreadable: the loads of the others are the same as if the broker had not answered.
    """
    good = [{1: {A: 1000 * n, B: 200 * n}, 2: {A: 1000 * n, B: 200 * n}, 3: {A: 1000 * n}} for n in range(6)]
    samples = [sample(10 * n, sizes) for n, sizes in enumerate(good[:2])]
    silent, odd = [*samples], [*samples]
    for n, sizes in enumerate(hostile, 2):
        others = {b: good[n][b] for b in (1, 2)}
        odd_sample = sample(10 * n, {**others, 3: sizes}).usable()
        is_usable = 3 in odd_sample.brokers and observed(*odd, odd_sample).problems.get(3) is None
        if is_usable:  # small enough to be true
            return
        odd.append(odd_sample)
        silent.append(sample(10 * n, others, 3))
    assert [rates(observed(*odd), b) for b in (1, 2)] == [rates(observed(*silent), b) for b in (1, 2)]


def test_growth_beyond_a_link_is_a_problem_and_counting_starts_again() -> None:
    """A log directory that is back after an outage shows its bytes at once, which no link has carried."""
    samples = [sample(0, {1: {A: 0}}), sample(10, {1: {A: 2**50}}), sample(20, {1: {A: 2**50 + 500}})]
    traffic = observed(*samples[:2])
    assert traffic.utilization(1) is None
    assert traffic.problems[1].startswith("they grew by more than a link carries, 1.126e+14 bytes/s")
    assert (rates(observed(*samples), 1), observed(*samples).problems) == ((50, 50), {})


@pytest.mark.parametrize("size", [-1, 2**52])
def test_size_outside_its_range_is_a_problem_of_its_broker(size: int) -> None:
    found = sample(0, {1: {A: 7}, 2: {A: size}}).usable()
    assert ([*found.brokers], [*found.problems]) == ([1], [2])
    assert f"broker 2 reports {size} bytes" in found.problems[2]

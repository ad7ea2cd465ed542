"""Measured replication and produce traffic: exact where they were counted, otherwise unknown, never guessed."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress, Progress, link_sides_of
from autothrottle.core.cluster.snapshot import NO_LEADER
from autothrottle.core.traffic.replication import LONGEST_STRETCH, CopiedBytes, Replication, ingress
from tests.builders import NOON, mb, progress_samples, reassignment

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
A, B = Flow(1001, 1004), Flow(1002, 1004)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def count(*marks: tuple[float, int], left: int = 1000) -> FlowProgress:
    """A flow's count from (second, bytes copied), the newest last."""
    *recent, (at, copied) = [(after(second), copied) for second, copied in marks]
    return FlowProgress(copied, 0, left, at, after(marks[0][0]), tuple(CopiedMark(*mark) for mark in recent))


def progress(at: float, **flows: FlowProgress) -> Progress:
    return Progress({{"a": A, "b": B}[name]: found for name, found in flows.items()}, at=after(at))


def rate(found: Progress, start: float, end: float, broker_id: int = 1004, role: ReplicaRole = FOLLOWER) -> int | None:
    mean = Replication(found).mean(broker_id, role, after(start), after(end))
    return mean and mean.rate


def test_follower_receives_all_its_flows_and_each_leader_sends_its_own() -> None:
    found = progress(20, a=count((0, 0), (20, 200)), b=count((0, 0), (20, 400)))
    assert rate(found, 0, 20) == 30
    assert rate(found, 0, 20, 1001, LEADER) == 10
    assert rate(found, 0, 20, 1002, LEADER) == 20
    assert rate(found, 0, 20, 1004, LEADER) == 0


def test_times_between_counts_are_interpolated_linearly() -> None:
    found = progress(20, a=count((0, 0), (10, 100), (20, 400)))
    assert rate(found, 5, 15) == 20
    assert rate(found, 8, 10) == 10


def test_nothing_was_copied_before_a_count_of_zero() -> None:
    # The second before the first throttle: 200 MB at link speed, which are not client load.
    found = progress(9, a=count((5, 0), (6, 200), (8, 202), (9, 203)))
    assert rate(found, -3, 9) == round(203 / 12)
    assert rate(found, -20, -10) == 0


def test_an_interval_after_the_beginning_of_a_flow_does_not_contain_its_burst() -> None:
    """With marks far apart, the upper bound counted 30 s of copies in 2 s of an interval.

    The assumed replication exceeded the measured traffic, no clients were left, and the throttle rose into their share.
    """
    counts = progress(62, a=count((0, 0), (2, 200), (32, 500), (62, 800)))
    upper = Replication(counts, is_upper_bound=True)
    for begin, mean in ((30, 10), (5, 10), (0, 17)):
        assert (found := upper.mean(1004, FOLLOWER, after(begin), after(begin + 30))) and found.rate == mean


def test_interval_that_starts_before_counting_is_unknown() -> None:
    found = progress(20, a=count((10, 500), (20, 600)))
    assert rate(found, 5, 20) is None
    assert rate(found, 10, 20) == 10


def test_short_uncounted_tail_takes_the_mean_and_a_long_one_is_unknown() -> None:
    found = progress(20, a=count((0, 0), (20, 200)))
    assert rate(found, 8, 24) == 10
    assert rate(found, 8, 25) is None
    assert rate(found, 20, 30) is None
    copied = Replication(found).copied(1004, FOLLOWER, after(8), after(25))
    assert copied == CopiedBytes(120, after(20), off=98)


def test_interval_is_known_up_to_its_slowest_flow() -> None:
    found = progress(20, a=count((0, 0), (20, 200)), b=count((0, 0), (16, 160)))
    assert Replication(found).copied(1004, FOLLOWER, after(0), after(20)) == CopiedBytes(320, after(16), off=80)


def test_finished_flow_copies_nothing_more() -> None:
    found = progress(100, a=count((0, 0), (20, 200), left=0))
    assert rate(found, 10, 30) == 5
    assert rate(found, 60, 100) == 0


def test_counts_far_apart_are_unknown_unless_nothing_was_copied() -> None:
    far = LONGEST_STRETCH.total_seconds() + 1
    assert rate(progress(far, a=count((0, 1), (far, 200))), 0, far) is None
    assert rate(progress(far, a=count((0, 200), (far, 200))), 0, far) == 0


def test_without_a_sample_nothing_is_known() -> None:
    assert rate(Progress(), 0, 10) is None


def test_interval_of_zero_length_is_unknown() -> None:
    assert rate(progress(20, a=count((0, 0), (20, 200))), 10, 10) is None


def test_link_sides_of_an_uncounted_active_flow_are_unknown() -> None:
    found = Replication(progress(20, a=count((0, 0), (20, 200))), link_sides_of([B]))
    assert found.mean(1004, FOLLOWER, after(0), after(20)) is None
    assert found.mean(1002, LEADER, after(0), after(20)) is None
    assert found.mean(1001, LEADER, after(0), after(20)) == (10, 0)


def off(found: FlowProgress, start: float, end: float) -> int:
    mean = Replication(progress(1000, a=found)).mean(1004, FOLLOWER, after(start), after(end))
    assert mean is not None
    return mean.off


def test_possible_burst_between_two_samples_makes_the_mean_uncertain() -> None:
    found = count(*((2.0 * k, 20 * k) for k in range(20)))
    assert off(found, 4, 20) == 0  # samples at both ends
    assert off(found, 5, 21) == round(2 * 20 * 0.5 / 16)
    assert off(count((0, 0), (2, 0), (4, 500), (20, 500), (22, 600)), 1, 10) == 0  # no bytes around both ends


def test_one_burst_more_or_less_may_follow_the_last_sample() -> None:
    found = [(2.0 * k, 20 * k) for k in range(11)]
    assert off(count(*found), 4, 20.5) == round(10 * 1.0 / 16.5)
    assert off(count(*found, left=0), 4, 22) == 0  # the flow has ended


@st.composite
def counts(draw: st.DrawFn) -> FlowProgress:
    """A flow that was counted every 1 to 30 s from its start, at least up to second 100."""
    marks, second, copied = [(float(draw(st.integers(0, 50))), 0)], 0.0, 0
    second = marks[0][0]
    while second < 100:
        second += draw(st.integers(1, 30))
        copied += draw(st.integers(0, 10**9))
        marks.append((second, copied))
    return count(*marks)


edges = st.floats(-20, 100).map(lambda second: round(second, 3))


@given(a=counts(), b=counts(), start=edges, middle=edges, end=edges)
def test_bytes_of_two_adjacent_intervals_add_up(
    a: FlowProgress, b: FlowProgress, start: float, middle: float, end: float
) -> None:
    start, middle, end = sorted((start, middle, end))
    if not start < middle < end:
        return
    found = Replication(progress(200, a=a, b=b))

    def copied(since: float, until: float) -> int:
        known = found.copied(1004, FOLLOWER, after(since), after(until))
        assert known is not None
        assert known.until == after(until)
        return known.bytes

    assert copied(start, middle) + copied(middle, end) == pytest.approx(copied(start, end), abs=2)
    assert copied(-1000, 100) >= copied(start, end) >= 0


@given(a=counts(), start=edges, end=edges)
def test_uncertainty_is_at_most_the_bytes_around_both_ends(a: FlowProgress, start: float, end: float) -> None:
    start, end = sorted((start, end))
    if end - start < 1:
        return
    found = Replication(progress(200, a=a)).mean(1004, FOLLOWER, after(start), after(end))
    assert found is not None
    assert 0 <= found.off <= 2 * max_between(a) / (end - start) + 1


def max_between(found: FlowProgress) -> int:
    """The most bytes between two samples."""
    marks = [*(mark.bytes_copied for mark in found.recent), found.bytes_copied]
    return max(new - old for old, new in pairwise(marks))


@given(a=counts(), b=counts(), start=edges, end=edges)
def test_leaders_send_what_the_follower_receives(a: FlowProgress, b: FlowProgress, start: float, end: float) -> None:
    found = progress(200, a=a, b=b)
    received = rate(found, start, end)
    if start >= end:
        assert received is None
        return
    sent = [rate(found, start, end, leader, LEADER) for leader in (1001, 1002)]
    # Each of the three numbers of bytes is rounded before it becomes a rate, and each rate is rounded, too.
    rounding = 1.5 / (end - start) + 1.5
    assert received == pytest.approx(sum(s for s in sent if s is not None), abs=rounding)


# Produce traffic.

REASSIGNMENT = reassignment("t", {0: (1001, (1001, 1002), (1003,), (1002,)), 1: (1001, (1001, 1002), (1004,), (1002,))})


def test_produce_traffic_counts_at_both_ends_and_for_in_sync_followers_at_the_leader() -> None:
    produced = {Flow(1001, 1003): [0, mb(20), mb(40)], Flow(1001, 1004): [0, mb(10), mb(20)]}
    found = ingress(progress_samples(produced), [REASSIGNMENT])
    assert {side: one.rate for side, one in found.items()} == {
        (1001, LEADER): mb(6),
        (1003, FOLLOWER): mb(2),
        (1004, FOLLOWER): mb(1),
    }
    assert {one.replication_factor for one in found.values()} == {2.0}


def test_two_copies_of_one_partition_count_the_in_sync_follower_once() -> None:
    twice = reassignment("t", {0: (1001, (1001, 1002), (1003, 1004), ())})
    produced = {Flow(1001, 1003): [0, mb(20)], Flow(1001, 1004): [0, mb(20)]}
    assert ingress(progress_samples(produced), [twice])[1001, LEADER].rate == mb(6)


def test_link_sides_with_unknown_flows_are_absent() -> None:
    produced = {Flow(1001, 1003): [0, mb(20)]}
    assert ingress(progress_samples(produced), [REASSIGNMENT]).keys() == {(1003, FOLLOWER)}
    assert ingress(progress_samples({Flow(1001, 1003): [0]}), [REASSIGNMENT]) == {}, "one sample gives no rate"
    assert ingress([], [REASSIGNMENT]) == {}


def test_offline_partition_does_not_hide_the_produce_rate_of_others() -> None:
    moved = reassignment("t", {0: (1001, (1001,), (1003,), ()), 1: (NO_LEADER, (), (1003,), ())})
    found = ingress(progress_samples({Flow(1001, 1003): [0, mb(20)]}), [moved])
    assert {side: one.rate for side, one in found.items()} == {(1001, LEADER): mb(2), (1003, FOLLOWER): mb(2)}


def test_counts_of_another_discovery_process_are_not_subtracted() -> None:
    before = progress_samples({Flow(1001, 1003): [mb(900)]}, since=100)
    now = progress_samples({Flow(1001, 1003): [0, mb(20)]})
    assert ingress([*before, *now[1:]], [REASSIGNMENT]) == {}
    assert ingress([*before, *now], [REASSIGNMENT])[1003, FOLLOWER].rate == mb(2)


def most(counts: Progress, start: float, end: float) -> int | None:
    mean = Replication(counts, is_upper_bound=True).mean(1004, FOLLOWER, after(start), after(end))
    return mean and mean.rate


def test_an_upper_bound_contains_the_whole_burst_with_which_a_flow_began() -> None:
    counts = progress(20, a=count((0, 0), (2, 200), (10, 208), (20, 218)))
    assert most(counts, -10, 1) == round(200 / 11)
    assert most(counts, 1, 10) == round(208 / 9)
    assert most(counts, 4, 20) == rate(counts, 4, 20), "nothing is uncertain later"


def test_an_upper_bound_is_unknown_while_a_new_flow_may_copy_without_a_throttle() -> None:
    assert most(progress(2, a=count((0, 0), (2, 200))), -10, 3) is None
    assert most(progress(4, a=count((0, 0), (2, 200), (4, 300))), -10, 5) == round(350 / 15)


def test_an_upper_bound_covers_a_short_time_before_the_first_count() -> None:
    counts = progress(20, a=count((1, 500), (3, 600), (20, 700)))
    assert rate(counts, 0, 20) is None
    assert most(counts, 0, 20) == round((200 + 100) / 20)
    assert most(counts, -10, 20) is None

"""Progress from log sizes: bytes copied only grow, and bytes left are never negative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress, Progress
from autothrottle.core.cluster.snapshot import (
    NO_LEADER,
    REMEMBERED,
    BrokerLogSizes,
    LogSizes,
    TopicPartition,
    TopicReassignment,
)
from autothrottle.core.forecast import progress as progress_module
from autothrottle.core.forecast.eta import Forecast, forecast_all
from autothrottle.core.forecast.progress import KEPT, ProgressHistory, remainder
from autothrottle.core.traffic.replication import LONGEST_STRETCH, MeanRate, Replication
from tests import builders
from tests.builders import NOON, reassignment

MB = 1_000_000
A, B = Flow(1001, 1004), Flow(1002, 1004)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def logs(sizes: Mapping[int, Mapping[TopicPartition, int]], seconds: float = 0) -> LogSizes:
    return LogSizes({b: BrokerLogSizes(after(seconds), found) for b, found in sizes.items()})


def one(leader: int = 1001, isr: Sequence[int] = (1001,), adding: Sequence[int] = (1004,)) -> TopicReassignment:
    return reassignment("t", {0: (leader, isr, adding, ())})


def both(leader_size: int, size: int, seconds: float = 0, leader: int = 1001, follower: int = 1004) -> LogSizes:
    return logs({leader: {("t", 0): leader_size}, follower: {("t", 0): size}}, seconds)


def observed(*seen: tuple[TopicReassignment | None, LogSizes], step: float = 10) -> ProgressHistory:
    """The history of these samples, one every `step` seconds."""
    history = ProgressHistory()
    for number, (moving, sizes) in enumerate(seen):
        history = history.observe([moving] if moving else [], sizes, after(number * step))
    return history


def bytes_left(progress: Progress) -> int:
    """The sum over all flows."""
    return sum(flow.bytes_left for flow in progress.flows.values())


def newest(count: FlowProgress) -> FlowProgress:
    """A count without its earlier marks."""
    return replace(count, recent=())


def test_follower_size_is_copied_and_the_difference_is_left() -> None:
    progress = observed((one(), both(100, 30))).progress
    assert progress.flows == {A: FlowProgress(30, 0, 70, NOON, NOON)}
    assert (progress.topics["t"].bytes_copied, bytes_left(progress), progress.at) == (30, 70, NOON)


def test_follower_without_a_log_has_everything_left() -> None:
    progress = observed((one(), logs({1001: {("t", 0): 100}, 1004: {}}))).progress
    assert (progress.flows[A].bytes_copied, progress.flows[A].bytes_left) == (0, 100)


def test_growth_between_two_samples_is_copied() -> None:
    progress = observed((one(), both(100, 30)), (one(), both(120, 70, 10))).progress
    assert newest(progress.flows[A]) == FlowProgress(70, 20, 50, after(10), NOON)


def test_bytes_that_a_lagging_replica_holds_when_first_seen_are_not_copied_now() -> None:
    """When a broker caught up on a day's data, its existing terabyte seemed to be copied within a second.

    After a first fix, it seemed that nothing had been copied before it was first seen.
    """
    lags, lately = {1004: {("t", 0)}}, after(-1)
    history = ProgressHistory().observe([one()], both(1000, 900), NOON, lately, lags)
    assert history.progress.flows == {A: FlowProgress(900, 0, 100, NOON, NOON)}, "and no mark of zero a second ago"
    history = history.observe([one()], both(1020, 950, 10), after(10), None, lags)
    assert newest(history.progress.flows[A]) == FlowProgress(950, 20, 70, after(10), NOON)
    assert history.progress.topics["t"].bytes_copied == 50
    history = history.observe([], both(1020, 1020, 20), after(20))
    assert newest(history.progress.flows[A]) == FlowProgress(1020, 20, 0, after(20), NOON)
    before, since = Replication(history.progress), (after(-60), after(10))
    assert before.mean(1004, ReplicaRole.FOLLOWER, *since) is None, "the bytes copied before noon are unknown"
    assert before.mean(1004, ReplicaRole.FOLLOWER, NOON, after(20)) == MeanRate(6)


def test_bytes_copied_while_unobserved_are_unknown_not_zero() -> None:
    """No planner led for two minutes. The next one took the bytes copied in that time for client load."""
    lags, history = {1004: {("t", 0)}}, ProgressHistory()
    for seconds, size, moving in (
        (0, 100, [one()]),
        (10, 200, [one()]),
        (20, 300, []),
        (30, 400, []),
        (150, 1600, [one()]),
    ):
        history = history.observe(moving, both(9000, size, seconds), after(seconds), None, lags if moving else {})
    meanwhile = Replication(history.progress)
    assert meanwhile.mean(1004, ReplicaRole.FOLLOWER, after(60), after(120)) is None
    history = history.observe([one()], both(9000, 1700, 160), after(160), None, lags)
    assert Replication(history.progress).mean(1004, ReplicaRole.FOLLOWER, after(150), after(160)) == MeanRate(10)


def test_lagging_replica_adds_to_an_existing_flow_only_new_bytes() -> None:
    moved = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1001, (1001,), (1004,), ())})

    def sizes(first: int, second: int, seconds: float) -> LogSizes:
        return logs({1001: {("t", 0): 100, ("t", 1): 900}, 1004: {("t", 0): first, ("t", 1): second}}, seconds)

    history = observed((one(), both(100, 30)))
    lags = {1004: {("t", 1)}}
    for seconds, first, second, copied in ((10, 40, 800, 40), (20, 50, 830, 80)):
        history = history.observe([moved], sizes(first, second, seconds), after(seconds), None, lags)
        assert history.progress.flows[A].bytes_copied == copied
    history = history.observe([one()], sizes(55, 900, 30), after(30))
    history = history.observe([one()], sizes(60, 950, 40), after(40))
    assert history.progress.flows[A].bytes_copied == 160, "an in-sync replica no longer counts"
    history = history.observe([moved], sizes(70, 960, 50), after(50), None, lags)
    assert history.progress.flows[A].bytes_copied == 170, "bytes received in sync are not copied bytes"


def test_retention_does_not_reduce_bytes_copied() -> None:
    progress = observed((one(), both(100, 60)), (one(), both(50, 20, 10)), (one(), both(53, 25, 20))).progress
    assert newest(progress.flows[A]) == FlowProgress(65, 3, 28, after(20), NOON)


def test_counting_restarts_when_the_clock_is_set_back() -> None:
    history = observed((one(), both(100, 30)), (one(), both(120, 70, 10)))
    history = history.observe([one()], both(130, 80, -3600), after(-3600))
    history = history.observe([one()], both(140, 95, -3590), after(-3590))
    count = history.progress.flows[A]
    assert newest(count) == FlowProgress(95, 10, 45, after(-3590), after(-3600))
    assert [mark.at for mark in count.recent] == [after(-3600)]


def test_follower_larger_than_its_leader_has_nothing_left() -> None:
    assert observed((one(), both(40, 60))).progress.flows[A].bytes_left == 0


def test_last_bytes_before_a_replica_joins_the_isr_count() -> None:
    in_sync = one(isr=(1001, 1004))
    history = observed((one(), both(100, 30)))
    assert history.sizes_needed([in_sync]) == {1004: {"t": {0}}}
    progress = history.observe([in_sync], both(100, 100, 10), after(10)).progress
    assert newest(progress.flows[A]) == FlowProgress(100, 0, 0, after(10), NOON)
    assert progress.topics["t"].bytes_copied == 100


def test_finished_reassignment_is_sampled_once_more_and_then_not() -> None:
    history = observed((one(), both(100, 30)))
    assert history.sizes_needed([]) == {1004: {"t": {0}}}
    history = history.observe([], logs({1004: {("t", 0): 100}}, 10), after(10))
    assert history.sizes_needed([]) == {}
    assert history.progress.flows[A].bytes_copied == 100
    assert history.progress.topics == {}


def test_in_sync_replica_is_not_sampled_while_its_topic_is_in_reassignment() -> None:
    moving = reassignment("t", {0: (1001, (1001, 1004), (1004,), ()), 1: (1002, (1002,), (1003,), ())})
    history = observed((one(), both(100, 30))).observe([moving], LogSizes(), after(10))
    assert history.sizes_needed([moving]) == {1002: {"t": {1}}, 1003: {"t": {1}}}


def test_count_of_a_finished_flow_is_kept_for_a_while() -> None:
    history = observed((one(), both(100, 30)), (None, logs({1004: {("t", 0): 100}}, 10)))
    late = history.observe([], LogSizes(), after(10) + KEPT - timedelta(seconds=1))
    assert late.progress.flows[A].bytes_copied == 100
    gone = late.observe([], LogSizes(), after(10) + KEPT)
    assert (gone.progress.flows, gone.counts, gone.copies) == ({}, {}, {})


def test_forgotten_flow_that_reappears_starts_a_new_count() -> None:
    history = observed((one(), both(100, 30)), (None, LogSizes()))
    history = history.observe([], LogSizes(), after(10) + KEPT)
    again = history.observe([one()], both(100, 5, 2000), after(2000)).progress.flows[A]
    assert (again.bytes_copied, again.since) == (5, after(2000))


def counted(times: Sequence[float], unchanged_until: float | None = None) -> FlowProgress:
    """A flow's count after samples at these seconds, at 10 bytes/s from second 0."""
    history = ProgressHistory()
    for second in times:
        sizes = both(10**6, round(10 * second), second)
        known = None if unchanged_until is None else after(unchanged_until)
        history = history.observe([one()], sizes, after(second), known)
    return history.progress.flows[A]


def test_count_keeps_earlier_marks_and_a_zero_from_before_the_reassignment() -> None:
    known = counted([1, 3, 5], unchanged_until=0)
    assert known.recent == (CopiedMark(after(0), 0), CopiedMark(after(1), 10), CopiedMark(after(3), 30))
    assert known.since == after(0)
    assert counted([1, 3]).recent == (CopiedMark(after(1), 10),)


def test_known_start_of_a_flow_is_ignored_once_the_flow_is_counted() -> None:
    history = observed((one(), both(100, 30))).observe([one()], both(100, 40, 10), after(10), after(9))
    assert history.progress.flows[A].recent == (CopiedMark(NOON, 30),)
    assert counted([5], unchanged_until=7).recent == ()


def test_marks_get_sparser_with_age_and_expire() -> None:
    known = counted([2 * n + 1 for n in range(900)], unchanged_until=0)
    ages = [(known.at - mark.at).total_seconds() for mark in known.recent]
    assert len(ages) <= 60
    assert REMEMBERED.total_seconds() - 60 <= ages[0] <= REMEMBERED.total_seconds() + 60
    assert ages == sorted(ages, reverse=True)
    assert max(a - b for a, b in pairwise(ages)) <= 40
    assert max(a - b for a, b in pairwise(a for a in ages if a < 30)) == 2


def test_many_flows_keep_fewer_marks_that_are_still_close_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_module, "_MARKS_OF_ALL", 32)
    adding = (2000, 2001, 2002)
    history = ProgressHistory()
    for second in range(0, 900, 25):
        found = {1001: {("t", 0): 10**9}, **{b: {("t", 0): 10 * second} for b in adding}}
        history = history.observe([one(adding=adding)], logs(found, second), after(second))
    for count in (history.progress.flows[Flow(1001, b)] for b in adding):
        ages = [(count.at - mark.at).total_seconds() for mark in count.recent]
        assert len(ages) <= 16
        assert ages[0] >= 360
        assert max(a - b for a, b in pairwise([*ages, 0])) <= LONGEST_STRETCH.total_seconds()


def test_first_second_of_a_reassignment_is_kept_exactly_for_minutes() -> None:
    known = counted([0.5, *range(2, 200, 2)], unchanged_until=0)
    assert known.recent[:2] == (CopiedMark(after(0), 0), CopiedMark(after(0.5), 5))


def test_samples_close_together_are_not_all_kept_for_the_eta() -> None:
    history = ProgressHistory()
    for second in range(0, 600, 2):
        history = history.observe([one()], both(10_000, 10 * second, second), after(second))
    assert len(history.samples) <= 20
    assert history.progress.eta == after(1000)


def test_exactly_the_leaders_and_followers_still_copying_are_sampled() -> None:
    moving = reassignment(
        "t",
        {
            0: (1001, (1001, 1002), (1003, 1004), (1002,)),
            1: (1002, (1002, 1003), (1003,), ()),
            2: (NO_LEADER, (), (1005,), ()),
        },
    )
    assert ProgressHistory().sizes_needed([moving]) == {
        1001: {"t": {0}},
        1003: {"t": {0}},
        1004: {"t": {0}},
        1005: {"t": {2}},
    }


def test_silent_follower_makes_only_its_own_flows_unknown() -> None:
    moving = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1001, (1001,), (1005,), ())})
    sizes = {1001: {("t", 0): 100, ("t", 1): 100}, 1005: {("t", 1): 40}}
    progress = ProgressHistory().observe([moving], logs(sizes), NOON).progress
    assert progress.flows.keys() == {Flow(1001, 1005)}
    assert bytes_left(progress) == 60
    assert progress.topics == {}


def test_follower_that_answers_again_continues_its_count() -> None:
    silent = logs({1001: {("t", 0): 100}}, 10)
    progress = observed((one(), both(100, 30)), (one(), silent), (one(), both(110, 80, 20))).progress
    assert newest(progress.flows[A]) == FlowProgress(80, 10, 30, after(20), NOON)


def test_silent_leader_makes_its_flow_unknown_but_copied_bytes_count() -> None:
    silent = logs({1004: {("t", 0): 50}}, 10)
    history = observed((one(), both(100, 30)), (one(), silent))
    assert (history.progress.flows, history.progress.topics) == ({}, {})
    progress = history.observe([one()], both(107, 60, 20), after(20)).progress
    assert newest(progress.flows[A]) == FlowProgress(60, 7, 47, after(20), NOON)
    assert progress.topics["t"].bytes_copied == 60


def test_bytes_copied_after_a_leader_change_belong_to_the_new_flow() -> None:
    moved = one(leader=1002)
    progress = observed(
        (one(), both(100, 30)),
        (moved, both(101, 50, 10, leader=1002)),
        (moved, both(105, 60, 20, leader=1002)),
    ).progress
    assert newest(progress.flows[A]) == FlowProgress(50, 0, 0, after(10), NOON)
    assert newest(progress.flows[B]) == FlowProgress(10, 4, 45, after(20), after(10))
    assert progress.topics["t"].bytes_copied == 60


def test_replica_that_leaves_the_isr_again_is_not_counted_twice() -> None:
    in_sync = one(isr=(1001, 1004))
    progress = observed(
        (one(), both(100, 90)), (in_sync, both(100, 100, 10)), (in_sync, LogSizes()), (one(), both(130, 110, 30))
    ).progress
    assert progress.flows[A].bytes_copied == 110


def test_offline_partition_copies_nothing_and_continues_when_it_has_a_leader() -> None:
    offline = one(leader=NO_LEADER, isr=())
    history = observed((one(), both(100, 30)), (offline, logs({1004: {("t", 0): 30}}, 10)))
    assert history.progress.flows[A].bytes_left == 0
    assert history.observe([one()], both(100, 45, 20), after(20)).progress.flows[A].bytes_copied == 45


# ETA.


def test_eta_is_bytes_left_over_the_rate_of_the_last_minutes() -> None:
    history = observed(
        (one(), both(100 * MB, 0)), (one(), both(100 * MB, 10 * MB, 10)), (one(), both(100 * MB, 20 * MB, 20))
    )
    assert history.progress.eta == after(20 + 80)


@pytest.mark.parametrize(("seconds", "known"), [(10, False), (14.9, False), (15, True), (19.9, True)])
def test_eta_needs_samples_over_more_than_a_quota_window(seconds: float, known: bool) -> None:
    history = observed((one(), both(100, 0)), (one(), both(100, 50, seconds)), step=seconds)
    assert (history.progress.eta is not None) is known


def test_produce_traffic_delays_the_end() -> None:
    growing = [(one(), both(1000 + 5 * n, 10 * n, 10 * n)) for n in range(3)]
    assert observed(*growing).progress.eta == after(20 + 990 / 0.5)


@pytest.mark.parametrize("produced", [10, 30], ids=["as fast as it is copied", "faster"])
def test_reassignment_without_gain_has_no_eta(produced: int) -> None:
    losing = [(one(), both(1000 + produced * n, 10 * n, 10 * n)) for n in range(4)]
    assert observed(*losing).progress.eta is None


def test_slowest_follower_determines_the_eta() -> None:
    moving = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1001, (1001,), (1005,), ())})
    history = ProgressHistory()
    for n in range(3):
        sizes = {1001: {("t", 0): 1000, ("t", 1): 1000}, 1004: {("t", 0): 100 * n}, 1005: {("t", 1): 10 * n}}
        history = history.observe([moving], logs(sizes, 10 * n), after(10 * n))
    assert history.progress.eta == after(20 + 980)


def test_unknown_flow_makes_the_eta_unknown() -> None:
    moving = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1001, (1001,), (1005,), ())})
    history = ProgressHistory()
    for n in range(4):
        sizes = {1001: {("t", 0): 1000, ("t", 1): 1000}, 1004: {("t", 0): 100 * n}}
        history = history.observe([moving], logs(sizes, 10 * n), after(10 * n))
    assert history.progress.flows.keys() == {A}
    assert history.progress.eta is None


def test_second_reassignment_to_a_follower_makes_the_eta_unknown_until_its_rate_is_known() -> None:
    two = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1002, (1002,), (1004,), ())})
    history = observed(*((one(), both(1000, 100 * n, 10 * n)) for n in range(3)))
    for n in range(3):
        sizes = {1001: {("t", 0): 1000}, 1002: {("t", 1): 1000}, 1004: {("t", 0): 200, ("t", 1): 100 * n}}
        history = history.observe([two], logs(sizes, 30 + 10 * n), after(30 + 10 * n))
        assert (history.progress.eta is None) is (n < 2)
    assert history.progress.eta == after(50 + 1600 / 10)


def test_only_the_last_minutes_count() -> None:
    slow = [(one(), both(10_000, n, 10 * n)) for n in range(30)]
    fast = [(one(), both(10_000, 29 + 100 * n, 290 + 10 * n)) for n in range(1, 20)]
    progress = observed(*slow, *fast).progress
    assert progress.eta == after(480 + (10_000 - 1_929) / 10)


def test_duration_over_a_year_counts_as_stalled() -> None:
    crawling = [(one(), both(10**12, n, 10 * n)) for n in range(3)]
    assert observed(*crawling).progress.eta is None


def test_counts_with_different_starts_are_never_subtracted() -> None:
    def progress(copied: int, seconds: float, since: datetime) -> Progress:
        return Progress({A: FlowProgress(copied, 0, 100, after(seconds), since)}, at=after(seconds))

    assert forecast_all([progress(0, 0, NOON), progress(100, 60, NOON)]).eta == after(120)
    assert forecast_all([progress(0, 0, NOON), progress(100, 60, after(1))]) == Forecast()


def test_finished_copy_ends_now() -> None:
    assert observed((one(), both(100, 100))).progress.eta == NOON


def test_without_samples_nothing_is_known() -> None:
    assert forecast_all([]) == Forecast()
    assert ProgressHistory().progress == Progress()


# Remainder of a snapshot.


def test_flows_that_ended_since_the_sample_do_not_count() -> None:
    moving = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1002, (1002,), (1004,), ())})
    sizes = {1001: {("t", 0): 10}, 1002: {("t", 1): 20}, 1004: {}}
    progress = ProgressHistory().observe([moving], logs(sizes), NOON).progress
    found = remainder(builders.snapshot(moving, progress=progress))
    assert found and (found.bytes_left, found.unknown_flows) == (30, 0)
    fewer = reassignment("t", {1: (1002, (1002,), (1004,), ())})
    found = remainder(builders.snapshot(fewer, progress=progress))
    assert found and (found.bytes_left, found.unknown_flows) == (20, 0)


def test_end_of_a_reassignment_ignores_a_concurrent_catch_up() -> None:
    """For a reassignment of one minute, commands showed the end of a concurrent catch-up of 15 minutes."""
    lags, history = reassignment("u", {0: (1001, (1001,), (1003,), ())}), ProgressHistory()
    for seconds, held in ((0, 100), (10, 200), (20, 300)):
        sizes = {1001: {("t", 0): 1000, ("u", 0): 10_000}, 1003: {("u", 0): held}, 1004: {("t", 0): held}}
        history = history.observe([one(), lags], logs(sizes, seconds), after(seconds), None, {1003: {("u", 0)}})
    found = remainder(builders.snapshot(one(), progress=history.progress))
    assert found and (found.bytes_left, found.eta) == (700, after(20 + 70))
    found = remainder(builders.snapshot(one(), lags, progress=history.progress))
    assert found and (found.bytes_left, found.eta) == (700 + 9700, after(20 + 970))


def test_flows_that_began_since_the_sample_are_unknown() -> None:
    progress = observed((one(), both(100, 100))).progress
    assert progress.eta is not None
    more = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (NO_LEADER, (), (1004,), ())})
    found = remainder(builders.snapshot(more, progress=progress))
    assert found and (found.bytes_left, found.unknown_flows, found.eta) == (0, 1, None)


def test_without_any_known_flow_there_is_no_remainder() -> None:
    assert remainder(builders.snapshot(one(), progress=Progress(at=NOON))) is None
    assert remainder(builders.snapshot(one(), progress=Progress())) is None
    assert remainder(builders.snapshot(one())) is None


def test_reassignment_that_only_removes_has_nothing_left() -> None:
    found = remainder(builders.snapshot(one(adding=()), progress=Progress(at=NOON)))
    assert found and found.bytes_left == 0


# Properties.

SIZES = st.dictionaries(st.tuples(st.just("t") | st.just("u"), st.integers(0, 2)), st.integers(0, 1000), max_size=6)
BROKERS = st.sampled_from([1, 2, 3])
ROWS = st.tuples(
    BROKERS | st.just(NO_LEADER),
    st.lists(BROKERS, unique=True).map(tuple),
    st.lists(BROKERS, unique=True).map(tuple),
    st.just(()),
)
READINGS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["t", "u"]), st.dictionaries(st.integers(0, 2), ROWS, max_size=3)),
        st.dictionaries(BROKERS, SIZES, max_size=3),
        st.integers(1, 400),
    ),
    max_size=8,
)


@given(READINGS)
def test_counts_only_grow_and_sums_agree(
    samples: list[tuple[dict[str, dict[int, builders.Row]], dict[int, dict[TopicPartition, int]], int]],
) -> None:
    history, now = ProgressHistory(), 0
    for rows, sizes, seconds in samples:
        now += seconds
        before = history
        moving = [reassignment(topic, found) for topic, found in sorted(rows.items())]
        asked = history.sizes_needed(moving)
        answered = {
            b: {(t, p): size for (t, p), size in found.items() if p in asked[b].get(t, ())}
            for b, found in sizes.items()
            if b in asked
        }
        history = history.observe(moving, logs(answered, now), after(now))
        progress = history.progress
        for flow, count in history.counts.items():
            old = before.counts.get(flow)
            if old is not None and old.since == count.since:
                assert count.bytes_copied >= old.bytes_copied
                assert count.bytes_produced >= old.bytes_produced
                assert count.at >= old.at
            assert count.bytes_left >= 0
            assert count.since <= count.at <= after(now)
        for topic, copied in history.copied.items():
            assert copied >= before.copied.get(topic, 0)
        left = sum(topic.bytes_left for topic in progress.topics.values())
        unknown = rows.keys() - progress.topics.keys()
        assert left == bytes_left(progress) if not unknown else left <= bytes_left(progress)
        assert progress.eta is None or progress.eta >= NOON
        assert set(history.copies) <= {(topic, p, b) for topic in ("t", "u") for p in range(3) for b in (1, 2, 3)}

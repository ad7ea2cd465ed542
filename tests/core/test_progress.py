"""How far a move has come, by the sizes of logs: what landed only grows, what is left is never negative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core import progress as progress_module
from autothrottle.core.configs import ReplicaRole
from autothrottle.core.eta import Forecast, forecast_all
from autothrottle.core.flows import Flow, FlowProgress, LandedMark, Progress
from autothrottle.core.progress import KEPT, REMEMBERED, BrokerLogSizes, LogSizes, ProgressHistory, remainder
from autothrottle.core.replication import LONGEST_STRETCH, MeanRate, Replication
from autothrottle.core.topology import NO_LEADER, TopicPartition, TopicReassignment
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
    """The history of these readings, one every `step` seconds."""
    history = ProgressHistory()
    for number, (moving, sizes) in enumerate(seen):
        history = history.observe([moving] if moving else [], sizes, after(number * step))
    return history


def newest(count: FlowProgress) -> FlowProgress:
    """A count without the earlier ones."""
    return replace(count, recent=())


def test_what_the_destination_has_landed_and_what_it_lacks_is_left() -> None:
    progress = observed((one(), both(100, 30))).progress
    assert progress.flows == {A: FlowProgress(30, 0, 70, NOON, NOON)}
    assert (progress.bytes_landed, progress.bytes_left, progress.at) == (30, 70, NOON)


def test_a_destination_without_a_log_yet_has_all_of_it_left() -> None:
    progress = observed((one(), logs({1001: {("t", 0): 100}, 1004: {}}))).progress
    assert (progress.flows[A].bytes_landed, progress.flows[A].bytes_left) == (0, 100)


def test_what_lands_between_two_readings_is_added() -> None:
    progress = observed((one(), both(100, 30)), (one(), both(120, 70, 10))).progress
    assert newest(progress.flows[A]) == FlowProgress(70, 20, 50, after(10), NOON)


def test_what_a_lagging_replica_holds_when_it_is_first_seen_did_not_land() -> None:
    """Of a broker that catches up with a day of a terabyte, the terabyte looked as if it had come within a second.

    Then it looked as if nothing had landed before it was first seen, however long it was copied already.
    """
    lags, lately = {1004: {("t", 0)}}, after(-1)
    history = ProgressHistory().observe([one()], both(1000, 900), NOON, lately, lags)
    assert history.progress.flows == {A: FlowProgress(900, 0, 100, NOON, NOON)}, "nor had nothing landed a second ago"
    history = history.observe([one()], both(1020, 950, 10), after(10), None, lags)
    assert newest(history.progress.flows[A]) == FlowProgress(950, 20, 70, after(10), NOON)
    assert history.progress.topics["t"].bytes_landed == 50
    history = history.observe([], both(1020, 1020, 20), after(20))
    assert newest(history.progress.flows[A]) == FlowProgress(1020, 20, 0, after(20), NOON)
    before, since = Replication(history.progress), (after(-60), after(10))
    assert before.mean(1004, ReplicaRole.FOLLOWER, *since) is None, "nobody knows what landed before noon"
    assert before.mean(1004, ReplicaRole.FOLLOWER, NOON, after(20)) == MeanRate(6)


def test_what_landed_while_nobody_asked_for_a_catch_up_is_unknown_and_not_nothing() -> None:
    """For two minutes no planner led: what was copied meanwhile was clients' to the next one."""
    lags, history = {1004: {("t", 0)}}, ProgressHistory()
    for seconds, size, moving in (
        (0, 100, [one()]),
        (10, 200, [one()]),
        (20, 300, []),
        (30, 400, []),
        (150, 1600, [one()]),
    ):
        history = history.observe(moving, both(9000, size, seconds), after(seconds), None, lags if moving else {})
    meanwhile = Replication(history.progress, [A])
    assert meanwhile.mean(1004, ReplicaRole.FOLLOWER, after(60), after(120)) is None
    history = history.observe([one()], both(9000, 1700, 160), after(160), None, lags)
    assert Replication(history.progress, [A]).mean(1004, ReplicaRole.FOLLOWER, after(150), after(160)) == MeanRate(10)


def test_a_replica_that_begins_to_lag_beside_a_move_adds_to_its_flow_only_what_lands_from_then_on() -> None:
    moved = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1001, (1001,), (1004,), ())})

    def sizes(first: int, second: int, seconds: float) -> LogSizes:
        return logs({1001: {("t", 0): 100, ("t", 1): 900}, 1004: {("t", 0): first, ("t", 1): second}}, seconds)

    history = observed((one(), both(100, 30)))
    lags = {1004: {("t", 1)}}
    for seconds, first, second, landed in ((10, 40, 800, 40), (20, 50, 830, 80)):
        history = history.observe([moved], sizes(first, second, seconds), after(seconds), None, lags)
        assert history.progress.flows[A].bytes_landed == landed
    history = history.observe([one()], sizes(55, 900, 30), after(30))
    history = history.observe([one()], sizes(60, 950, 40), after(40))
    assert history.progress.flows[A].bytes_landed == 160, "in sync it counts no more"
    history = history.observe([moved], sizes(70, 960, 50), after(50), None, lags)
    assert history.progress.flows[A].bytes_landed == 170, "what came in sync did not land"


def test_a_log_that_retention_made_smaller_has_not_given_back_what_landed() -> None:
    progress = observed((one(), both(100, 60)), (one(), both(50, 20, 10)), (one(), both(53, 25, 20))).progress
    assert newest(progress.flows[A]) == FlowProgress(65, 3, 28, after(20), NOON)


def test_when_the_clock_was_set_back_counting_begins_anew() -> None:
    history = observed((one(), both(100, 30)), (one(), both(120, 70, 10)))
    history = history.observe([one()], both(130, 80, -3600), after(-3600))
    history = history.observe([one()], both(140, 95, -3590), after(-3590))
    count = history.progress.flows[A]
    assert newest(count) == FlowProgress(95, 10, 45, after(-3590), after(-3600))
    assert [mark.at for mark in count.recent] == [after(-3600)]


def test_a_destination_that_holds_more_than_its_leader_has_nothing_left() -> None:
    assert observed((one(), both(40, 60))).progress.flows[A].bytes_left == 0


def test_the_last_bytes_before_a_replica_joined_the_isr_count() -> None:
    in_sync = one(isr=(1001, 1004))
    history = observed((one(), both(100, 30)))
    assert history.wanted([in_sync]) == {1004: {"t": {0}}}
    progress = history.observe([in_sync], both(100, 100, 10), after(10)).progress
    assert newest(progress.flows[A]) == FlowProgress(100, 0, 0, after(10), NOON)
    assert progress.topics["t"].bytes_landed == 100


def test_a_move_that_is_over_is_read_once_more_and_then_nobody_is_asked() -> None:
    history = observed((one(), both(100, 30)))
    assert history.wanted([]) == {1004: {"t": {0}}}
    history = history.observe([], logs({1004: {("t", 0): 100}}, 10), after(10))
    assert history.wanted([]) == {}
    assert history.progress.flows[A].bytes_landed == 100
    assert history.progress.topics == {}


def test_a_replica_in_sync_is_asked_no_more_while_its_topic_still_moves() -> None:
    moving = reassignment("t", {0: (1001, (1001, 1004), (1004,), ()), 1: (1002, (1002,), (1003,), ())})
    history = observed((one(), both(100, 30))).observe([moving], LogSizes(), after(10))
    assert history.wanted([moving]) == {1002: {"t": {1}}, 1003: {"t": {1}}}


def test_the_count_of_a_flow_that_ended_stays_for_a_while_and_then_goes() -> None:
    history = observed((one(), both(100, 30)), (None, logs({1004: {("t", 0): 100}}, 10)))
    late = history.observe([], LogSizes(), after(10) + KEPT - timedelta(seconds=1))
    assert late.progress.flows[A].bytes_landed == 100
    gone = late.observe([], LogSizes(), after(10) + KEPT)
    assert (gone.progress.flows, gone.counts, gone.copies) == ({}, {}, {})


def test_a_flow_that_comes_again_after_it_was_forgotten_is_another_count() -> None:
    history = observed((one(), both(100, 30)), (None, LogSizes()))
    history = history.observe([], LogSizes(), after(10) + KEPT)
    again = history.observe([one()], both(100, 5, 2000), after(2000)).progress.flows[A]
    assert (again.bytes_landed, again.since) == (5, after(2000))


def counted(times: Sequence[float], unmoved_until: float | None = None) -> FlowProgress:
    """A flow's count after readings at these seconds, 10 bytes a second from second 0 on."""
    history = ProgressHistory()
    for second in times:
        sizes = both(10**6, round(10 * second), second)
        known = None if unmoved_until is None else after(unmoved_until)
        history = history.observe([one()], sizes, after(second), known)
    return history.progress.flows[A]


def test_a_count_remembers_the_earlier_ones_and_that_nothing_had_landed_before_the_move() -> None:
    known = counted([1, 3, 5], unmoved_until=0)
    assert known.recent == (LandedMark(after(0), 0), LandedMark(after(1), 10), LandedMark(after(3), 30))
    assert known.since == after(0)
    assert counted([1, 3]).recent == (LandedMark(after(1), 10),)


def test_that_a_flow_did_not_move_until_now_is_not_believed_once_it_was_counted() -> None:
    history = observed((one(), both(100, 30))).observe([one()], both(100, 40, 10), after(10), after(9))
    assert history.progress.flows[A].recent == (LandedMark(NOON, 30),)
    assert counted([5], unmoved_until=7).recent == ()


def test_earlier_counts_are_the_sparser_the_older_they_are_and_go_after_some_minutes() -> None:
    known = counted([2 * n + 1 for n in range(900)], unmoved_until=0)
    ages = [(known.at - mark.at).total_seconds() for mark in known.recent]
    assert len(ages) <= 60
    assert REMEMBERED.total_seconds() - 60 <= ages[0] <= REMEMBERED.total_seconds() + 60
    assert ages == sorted(ages, reverse=True)
    assert max(a - b for a, b in pairwise(ages)) <= 40
    assert max(a - b for a, b in pairwise(a for a in ages if a < 30)) == 2


def test_of_very_many_flows_fewer_counts_are_remembered_and_still_close_enough(
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


def test_the_first_second_of_a_move_is_remembered_exactly_for_minutes() -> None:
    known = counted([0.5, *range(2, 200, 2)], unmoved_until=0)
    assert known.recent[:2] == (LandedMark(after(0), 0), LandedMark(after(0.5), 5))


def test_readings_close_together_are_not_all_kept_for_the_eta() -> None:
    history = ProgressHistory()
    for second in range(0, 600, 2):
        history = history.observe([one()], both(10_000, 10 * second, second), after(second))
    assert len(history.readings) <= 20
    assert history.progress.eta == after(1000)


def test_both_ends_of_what_is_still_to_be_copied_are_asked_and_nobody_else() -> None:
    moving = reassignment(
        "t",
        {
            0: (1001, (1001, 1002), (1003, 1004), (1002,)),
            1: (1002, (1002, 1003), (1003,), ()),
            2: (NO_LEADER, (), (1005,), ()),
        },
    )
    assert ProgressHistory().wanted([moving]) == {
        1001: {"t": {0}},
        1003: {"t": {0}},
        1004: {"t": {0}},
        1005: {"t": {2}},
    }


def test_a_destination_that_does_not_answer_is_unknown_and_costs_no_other_flow() -> None:
    moving = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1001, (1001,), (1005,), ())})
    sizes = {1001: {("t", 0): 100, ("t", 1): 100}, 1005: {("t", 1): 40}}
    progress = ProgressHistory().observe([moving], logs(sizes), NOON).progress
    assert progress.flows.keys() == {Flow(1001, 1005)}
    assert progress.bytes_left == 60
    assert progress.topics == {}


def test_a_destination_that_answers_again_is_counted_on_from_where_it_was() -> None:
    silent = logs({1001: {("t", 0): 100}}, 10)
    progress = observed((one(), both(100, 30)), (one(), silent), (one(), both(110, 80, 20))).progress
    assert newest(progress.flows[A]) == FlowProgress(80, 10, 30, after(20), NOON)


def test_a_leader_that_does_not_answer_makes_its_flow_unknown_while_what_lands_is_counted() -> None:
    silent = logs({1004: {("t", 0): 50}}, 10)
    history = observed((one(), both(100, 30)), (one(), silent))
    assert (history.progress.flows, history.progress.topics) == ({}, {})
    progress = history.observe([one()], both(107, 60, 20), after(20)).progress
    assert newest(progress.flows[A]) == FlowProgress(60, 7, 47, after(20), NOON)
    assert progress.topics["t"].bytes_landed == 60


def test_after_a_change_of_the_leader_what_lands_belongs_to_the_new_flow() -> None:
    moved = one(leader=1002)
    progress = observed(
        (one(), both(100, 30)),
        (moved, both(101, 50, 10, leader=1002)),
        (moved, both(105, 60, 20, leader=1002)),
    ).progress
    assert newest(progress.flows[A]) == FlowProgress(50, 0, 0, after(10), NOON)
    assert newest(progress.flows[B]) == FlowProgress(10, 4, 45, after(20), after(10))
    assert progress.topics["t"].bytes_landed == 60


def test_a_replica_that_falls_out_of_the_isr_again_has_not_landed_twice() -> None:
    in_sync = one(isr=(1001, 1004))
    progress = observed(
        (one(), both(100, 90)), (in_sync, both(100, 100, 10)), (in_sync, LogSizes()), (one(), both(130, 110, 30))
    ).progress
    assert progress.flows[A].bytes_landed == 110


def test_a_partition_without_leader_lands_nothing_and_is_counted_on_when_it_has_one() -> None:
    offline = one(leader=NO_LEADER, isr=())
    history = observed((one(), both(100, 30)), (offline, logs({1004: {("t", 0): 30}}, 10)))
    assert history.progress.flows[A].bytes_left == 0
    assert history.observe([one()], both(100, 45, 20), after(20)).progress.flows[A].bytes_landed == 45


# When the last byte lands.


def test_the_eta_is_what_is_left_over_the_rate_of_the_last_minutes() -> None:
    history = observed(
        (one(), both(100 * MB, 0)), (one(), both(100 * MB, 10 * MB, 10)), (one(), both(100 * MB, 20 * MB, 20))
    )
    assert history.progress.eta == after(20 + 80)


@pytest.mark.parametrize(("seconds", "known"), [(10, False), (14.9, False), (15, True), (19.9, True)])
def test_there_is_an_eta_when_the_readings_span_more_than_a_quota_window(seconds: float, known: bool) -> None:
    history = observed((one(), both(100, 0)), (one(), both(100, 50, seconds)), step=seconds)
    assert (history.progress.eta is not None) is known


def test_what_producers_add_meanwhile_delays_the_end() -> None:
    growing = [(one(), both(1000 + 5 * n, 10 * n, 10 * n)) for n in range(3)]
    assert observed(*growing).progress.eta == after(20 + 990 / 0.5)


@pytest.mark.parametrize("grown", [10, 30], ids=["as fast as it lands", "faster"])
def test_a_move_that_gains_nothing_has_no_eta(grown: int) -> None:
    losing = [(one(), both(1000 + grown * n, 10 * n, 10 * n)) for n in range(4)]
    assert observed(*losing).progress.eta is None


def test_the_slowest_destination_decides() -> None:
    moving = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1001, (1001,), (1005,), ())})
    history = ProgressHistory()
    for n in range(3):
        sizes = {1001: {("t", 0): 1000, ("t", 1): 1000}, 1004: {("t", 0): 100 * n}, 1005: {("t", 1): 10 * n}}
        history = history.observe([moving], logs(sizes, 10 * n), after(10 * n))
    assert history.progress.eta == after(20 + 980)


def test_while_a_flow_is_unknown_so_is_the_eta() -> None:
    moving = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1001, (1001,), (1005,), ())})
    history = ProgressHistory()
    for n in range(4):
        sizes = {1001: {("t", 0): 1000, ("t", 1): 1000}, 1004: {("t", 0): 100 * n}}
        history = history.observe([moving], logs(sizes, 10 * n), after(10 * n))
    assert history.progress.flows.keys() == {A}
    assert history.progress.eta is None


def test_a_second_move_to_the_same_destination_makes_it_unknown_until_its_rate_is_known() -> None:
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


def test_what_would_take_more_than_a_year_stands_still() -> None:
    crawling = [(one(), both(10**12, n, 10 * n)) for n in range(3)]
    assert observed(*crawling).progress.eta is None


def test_counts_that_began_at_different_times_are_never_subtracted() -> None:
    def progress(landed: int, seconds: float, since: datetime) -> Progress:
        return Progress({A: FlowProgress(landed, 0, 100, after(seconds), since)}, at=after(seconds))

    assert forecast_all([progress(0, 0, NOON), progress(100, 60, NOON)]).eta == after(120)
    assert forecast_all([progress(0, 0, NOON), progress(100, 60, after(1))]) == Forecast()


def test_what_has_all_landed_is_done_now() -> None:
    assert observed((one(), both(100, 100))).progress.eta == NOON


def test_without_any_reading_nothing_is_known() -> None:
    assert forecast_all([]) == Forecast()
    assert ProgressHistory().progress == Progress()


# What is left of a snapshot.


def test_what_has_ended_since_the_reading_counts_no_longer() -> None:
    moving = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (1002, (1002,), (1004,), ())})
    sizes = {1001: {("t", 0): 10}, 1002: {("t", 1): 20}, 1004: {}}
    progress = ProgressHistory().observe([moving], logs(sizes), NOON).progress
    found = remainder(builders.snapshot(moving, progress=progress))
    assert found and (found.bytes_left, found.unknown_flows) == (30, 0)
    fewer = reassignment("t", {1: (1002, (1002,), (1004,), ())})
    found = remainder(builders.snapshot(fewer, progress=progress))
    assert found and (found.bytes_left, found.unknown_flows) == (20, 0)


def test_the_end_of_what_moves_is_not_that_of_what_catches_up_beside_it() -> None:
    """Who listed or followed a move of a minute was told the end of a catch-up of a quarter of an hour."""
    lags, history = reassignment("u", {0: (1001, (1001,), (1003,), ())}), ProgressHistory()
    for seconds, held in ((0, 100), (10, 200), (20, 300)):
        sizes = {1001: {("t", 0): 1000, ("u", 0): 10_000}, 1003: {("u", 0): held}, 1004: {("t", 0): held}}
        history = history.observe([one(), lags], logs(sizes, seconds), after(seconds), None, {1003: {("u", 0)}})
    found = remainder(builders.snapshot(one(), progress=history.progress))
    assert found and (found.bytes_left, found.eta) == (700, after(20 + 70))
    found = remainder(builders.snapshot(one(), lags, progress=history.progress))
    assert found and (found.bytes_left, found.eta) == (700 + 9700, after(20 + 970))


def test_what_began_since_the_reading_is_unknown() -> None:
    progress = observed((one(), both(100, 100))).progress
    assert progress.eta is not None
    more = reassignment("t", {0: (1001, (1001,), (1004,), ()), 1: (NO_LEADER, (), (1004,), ())})
    found = remainder(builders.snapshot(more, progress=progress))
    assert found and (found.bytes_left, found.unknown_flows, found.eta) == (0, 1, None)


def test_while_no_flow_is_known_nothing_is_said() -> None:
    assert remainder(builders.snapshot(one(), progress=Progress(at=NOON))) is None
    assert remainder(builders.snapshot(one(), progress=Progress())) is None
    assert remainder(builders.snapshot(one())) is None


def test_a_move_that_only_removes_has_nothing_left() -> None:
    found = remainder(builders.snapshot(one(adding=()), progress=Progress(at=NOON)))
    assert found and found.bytes_left == 0


# Laws.

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
def test_whatever_is_read_counts_only_grow_and_sums_agree(
    readings: list[tuple[dict[str, dict[int, builders.Row]], dict[int, dict[TopicPartition, int]], int]],
) -> None:
    history, now = ProgressHistory(), 0
    for rows, sizes, seconds in readings:
        now += seconds
        before = history
        moving = [reassignment(topic, found) for topic, found in sorted(rows.items())]
        asked = history.wanted(moving)
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
                assert count.bytes_landed >= old.bytes_landed
                assert count.bytes_grown >= old.bytes_grown
                assert count.at >= old.at
            assert count.bytes_left >= 0
            assert count.since <= count.at <= after(now)
        for topic, landed in history.landed.items():
            assert landed >= before.landed.get(topic, 0)
        left = sum(topic.bytes_left for topic in progress.topics.values())
        unknown = rows.keys() - progress.topics.keys()
        assert left == progress.bytes_left if not unknown else left <= progress.bytes_left
        assert progress.eta is None or progress.eta >= NOON
        assert set(history.copies) <= {(topic, p, b) for topic in ("t", "u") for p in range(3) for b in (1, 2, 3)}

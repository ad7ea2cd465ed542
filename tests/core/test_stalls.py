"""A move that stands still is seen after three cycles, where its link has room, and only then."""

from __future__ import annotations

from datetime import timedelta

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.plan import Decision, Plan, Reason
from autothrottle.core.stalls import StallWatch
from tests.builders import NOON, mb

FOLLOWER = ReplicaRole.FOLLOWER
LAST = Progress({Flow(1001, 1003): FlowProgress(0, 0, 1, NOON, NOON)}, at=NOON)


def seen(number: int, left: int) -> Progress:
    at = NOON + timedelta(seconds=60 * number)
    return Progress({Flow(1001, 1003): FlowProgress(0, 0, left, at, NOON)}, at=at)


def watched(*left: int) -> StallWatch:
    watch = StallWatch()
    for number, one in enumerate(left):
        watch = watch.observe(seen(number, one))
    return watch


def idle(utilization: int = mb(20), capacity: int | None = mb(100)) -> Plan:
    return Plan((Decision(1003, FOLLOWER, mb(50), Reason.HEADROOM, None, mb(70), utilization, capacity),))


def test_three_cycles_without_progress_on_a_link_with_room_are_a_stall() -> None:
    assert watched(mb(900), mb(900), mb(900)).stalled(idle(), LAST) == {}
    assert watched(mb(900), mb(900), mb(900), mb(900)).stalled(idle(), LAST) == {
        1003: "broker 1003 [follower] stands still: 900.00 MB are left, not less than 3 cycles ago, though 80 of its "
        "100 MB/s are free under a throttle of 50 MB/s; look at its log, at its disks and at leaders [1001]"
    }


def test_what_grows_faster_than_it_lands_stands_still_too() -> None:
    assert watched(mb(900), mb(910), mb(910), mb(920)).stalled(idle(), LAST).keys() == {1003}


def test_any_progress_begins_the_count_anew() -> None:
    assert watched(mb(900), mb(900), mb(900), mb(899), mb(899), mb(899)).stalled(idle(), LAST) == {}


def test_a_link_that_is_full_or_unknown_is_reason_enough() -> None:
    watch = watched(mb(900), mb(900), mb(900), mb(900))
    assert watch.stalled(idle(utilization=mb(95)), LAST) == {}
    assert watch.stalled(idle(capacity=None), LAST) == {}
    assert watch.stalled(Plan(), LAST) == {}


def test_while_nobody_reads_what_is_left_nothing_is_said_to_stand_still() -> None:
    assert watched(mb(900), mb(900), mb(900), mb(900)).stalled(idle(), None) == {}


def test_of_many_leaders_the_first_ten_are_named() -> None:
    watch = watched(mb(900), mb(900), mb(900), mb(900))
    many = Progress({Flow(1001 + n, 1003): FlowProgress(0, 0, 1, NOON, NOON) for n in range(10, 22)}, at=NOON)
    assert watch.stalled(idle(), many)[1003].endswith(
        "leaders [1011, 1012, 1013, 1014, 1015, 1016, 1017, 1018, 1019, 1020 and 2 more]"
    )


def test_a_reading_that_was_seen_already_says_nothing() -> None:
    watch = watched(mb(900), mb(900))
    for _ in range(5):
        watch = watch.observe(seen(1, mb(900)))
    assert watch.stalled(idle(), LAST) == {}


def test_nothing_left_is_no_stall() -> None:
    assert watched(0, 0, 0, 0, 0).stalled(idle(), LAST) == {}

"""A stall is reported after three cycles without progress, and only on a link with free capacity."""

from __future__ import annotations

from datetime import timedelta

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress
from autothrottle.core.forecast.progress import StallWatch
from autothrottle.core.records import Decision, Reason
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


def idle(utilization: int = mb(20), capacity: int | None = mb(100)) -> list[Decision]:
    return [Decision(1003, FOLLOWER, mb(50), Reason.HEADROOM, None, mb(70), utilization, capacity)]


def test_three_cycles_without_progress_on_a_free_link_are_a_stall() -> None:
    assert watched(mb(900), mb(900), mb(900)).stalled(idle(), LAST) == {}
    assert watched(mb(900), mb(900), mb(900), mb(900)).stalled(idle(), LAST) == {
        1003: "broker 1003 [follower] is stalled: 900.00 MB are left, no less than 3 cycles ago, although 80 of its "
        "100 MB/s are free under a throttle of 50 MB/s; check its log, its disks and leaders [1001]"
    }


def test_produce_rate_above_the_copy_rate_is_a_stall() -> None:
    assert watched(mb(900), mb(910), mb(910), mb(920)).stalled(idle(), LAST).keys() == {1003}


def test_any_progress_resets_the_count() -> None:
    assert watched(mb(900), mb(900), mb(900), mb(899), mb(899), mb(899)).stalled(idle(), LAST) == {}


def test_full_or_unmeasured_link_is_not_a_stall() -> None:
    watch = watched(mb(900), mb(900), mb(900), mb(900))
    assert watch.stalled(idle(utilization=mb(95)), LAST) == {}
    assert watch.stalled(idle(capacity=None), LAST) == {}
    assert watch.stalled([], LAST) == {}


def test_without_progress_samples_there_is_no_stall() -> None:
    assert watched(mb(900), mb(900), mb(900), mb(900)).stalled(idle(), None) == {}


def test_only_the_first_ten_leaders_are_named() -> None:
    watch = watched(mb(900), mb(900), mb(900), mb(900))
    many = Progress({Flow(1001 + n, 1003): FlowProgress(0, 0, 1, NOON, NOON) for n in range(10, 22)}, at=NOON)
    assert watch.stalled(idle(), many)[1003].endswith(
        "leaders [1011, 1012, 1013, 1014, 1015, 1016, 1017, 1018, 1019, 1020 and 2 more]"
    )


def test_sample_that_was_already_observed_changes_nothing() -> None:
    watch = watched(mb(900), mb(900))
    for _ in range(5):
        watch = watch.observe(seen(1, mb(900)))
    assert watch.stalled(idle(), LAST) == {}


def test_nothing_left_is_not_a_stall() -> None:
    assert watched(0, 0, 0, 0, 0).stalled(idle(), LAST) == {}

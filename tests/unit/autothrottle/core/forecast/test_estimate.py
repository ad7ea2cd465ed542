"""Estimates: bytes, KIP-73's MoveRatio and MoveTime, and the throttles for a share or a duration."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.snapshot import NO_LEADER, BrokerLogSizes, LogSizes
from autothrottle.core.errors import Invalid
from autothrottle.core.forecast.eta import (
    Goal,
    Transfer,
    Transfers,
    estimate,
    move_time,
    needed_rate,
    restricted_to,
    transfers,
)
from autothrottle.core.records import Decision, Reason
from tests.builders import NOON, mb, reassignment

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
GB = 1_000_000_000


def sizes(found: Mapping[int, Mapping[int, int]], seconds: float = 0) -> LogSizes:
    """Log sizes of topic `t`: broker id -> partition -> bytes."""
    at = NOON + timedelta(seconds=seconds)
    return LogSizes({b: BrokerLogSizes(at, {("t", p): size for p, size in rows.items()}) for b, rows in found.items()})


def decision(broker_id: int, role: ReplicaRole, rate: int, capacity: int | None = mb(100)) -> Decision:
    return Decision(broker_id, role, rate, Reason.HEADROOM, None, rate, mb(10), capacity)


REASSIGNMENT = reassignment(
    "t", {0: (1001, (1001, 1002), (1003, 1004), (1002,)), 1: (1002, (1002, 1001), (1003,), (1001,))}
)


def test_every_copy_counts_at_both_ends() -> None:
    found = transfers([REASSIGNMENT], sizes({1001: {0: 6 * GB}, 1002: {1: 2 * GB}, 1003: {}, 1004: {}}))
    assert (found.size, found.partitions, found.unknown) == (14 * GB, 2, 0)
    assert {side: one.size for side, one in found.sides.items()} == {
        (1001, LEADER): 12 * GB,
        (1002, LEADER): 2 * GB,
        (1003, FOLLOWER): 8 * GB,
        (1004, FOLLOWER): 6 * GB,
    }


def test_bytes_that_the_follower_has_are_not_copied_again() -> None:
    found = transfers(
        [REASSIGNMENT], sizes({1001: {0: 6 * GB}, 1002: {1: 2 * GB}, 1003: {0: 5 * GB}, 1004: {0: 7 * GB}})
    )
    assert found.size == 3 * GB


def test_produce_rate_counts_per_follower_and_for_in_sync_followers_at_the_leader() -> None:
    before = sizes({1001: {0: 6 * GB}, 1002: {1: 2 * GB}})
    later = sizes({1001: {0: 6 * GB + 20 * mb(1)}, 1002: {1: 2 * GB}}, seconds=10)
    found = transfers([REASSIGNMENT], before, later)
    assert {side: one.growth for side, one in found.sides.items()} == {
        (1001, LEADER): mb(6),
        (1002, LEADER): 0,
        (1003, FOLLOWER): mb(2),
        (1004, FOLLOWER): mb(2),
    }


def test_offline_partition_or_unreported_leader_is_unknown() -> None:
    offline = reassignment("t", {0: (NO_LEADER, (), (1003,), ()), 1: (1002, (1002,), (1003,), ())})
    found = transfers([offline], sizes({1003: {}}))
    assert (found.size, found.partitions, found.unknown) == (0, 2, 2)
    assert (
        estimate(found, [decision(1003, FOLLOWER, mb(10)), decision(1002, LEADER, mb(10))], Goal(), 8).seconds is None
    )


def test_slowest_link_side_determines_the_end() -> None:
    carried = Transfers({(1001, LEADER): Transfer(4 * GB), (1003, FOLLOWER): Transfer(4 * GB)}, 4 * GB, 1)
    found = estimate(carried, [decision(1001, LEADER, mb(50)), decision(1003, FOLLOWER, mb(40))], Goal(), 4)
    assert found.seconds == 100
    assert (found.move_ratio, found.warnings) == (0.25, ())


def test_share_of_capacity_is_the_throttle_of_every_link_side() -> None:
    carried = Transfers({(1001, LEADER): Transfer(3 * GB), (1003, FOLLOWER): Transfer(3 * GB)}, 3 * GB, 1)
    decisions = [decision(1001, LEADER, mb(50)), decision(1003, FOLLOWER, mb(20), capacity=mb(50))]
    found = estimate(carried, decisions, Goal(max_ratio=0.3), 4)
    assert [side.rate_bytes_per_second for side in found.sides] == [mb(30), mb(15)]
    assert found.seconds == 200


def test_share_of_an_unknown_capacity_gives_no_rate_but_a_warning() -> None:
    carried = Transfers({(1001, LEADER): Transfer(3 * GB)}, 3 * GB, 1)
    found = estimate(carried, [Decision(1001, LEADER, mb(10), Reason.MINIMUM, None)], Goal(max_ratio=0.3), 4)
    assert (found.sides[0].rate_bytes_per_second, found.seconds) == (None, None)
    assert found.warnings == (
        "broker 1001 [leader]: its capacity is unknown, and so are its rate and time; check its metrics",
    )


def test_duration_that_needs_more_than_the_headroom_gives_a_warning_with_both_rates() -> None:
    carried = Transfers({(1003, FOLLOWER): Transfer(9 * GB, mb(2))}, 9 * GB, 1)
    found = estimate(carried, [decision(1003, FOLLOWER, mb(50))], Goal(within=timedelta(seconds=100)), 4)
    assert found.sides[0].rate_bytes_per_second == mb(92)
    assert found.seconds == 100
    assert found.warnings == ("broker 1003 [follower]: 92.00 MB/s is more than the 50.00 MB/s that clients leave now",)


def test_throttle_not_above_the_produce_rate_never_ends() -> None:
    carried = Transfers({(1003, FOLLOWER): Transfer(9 * GB, mb(12))}, 9 * GB, 1)
    found = estimate(carried, [decision(1003, FOLLOWER, mb(10))], Goal(), 4)
    assert found.seconds is None
    assert found.warnings == (
        "broker 1003 [follower]: at 10.00 MB/s it would never end, because clients produce 12.00 MB/s; "
        "give it a higher rate",
    )


def test_first_warnings_are_shown_and_the_rest_counted() -> None:
    carried = Transfers({(b, LEADER): Transfer(1) for b in range(1, 31)}, 30, 30)
    found = estimate(carried, [], Goal(), 30)
    assert len(found.warnings) == 11 and found.warnings[-1] == "and 20 more link sides with such problems"


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1])
def test_share_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(Invalid, match=r"outside of \(0, 1\]"):
        Goal(max_ratio=ratio)


def test_duration_out_of_range_or_two_goals_are_refused() -> None:
    with pytest.raises(Invalid, match="outside of 1"):
        Goal(within=timedelta(0))
    with pytest.raises(Invalid, match="both given"):
        Goal(max_ratio=0.5, within=timedelta(hours=1))


def test_restricted_to_keeps_only_the_chosen_partitions() -> None:
    assert restricted_to([REASSIGNMENT], {("t", 1), ("u", 0)}) == (
        reassignment("t", {1: (1002, (1002, 1001), (1003,), (1001,))}),
    )


amounts, rates = st.integers(0, 10**13), st.integers(0, 10**10)


@given(amounts, rates, rates, rates)
def test_higher_throttle_never_takes_longer(size: int, growth: int, rate: int, more: int) -> None:
    slow, fast = move_time(size, rate, growth), move_time(size, rate + more, growth)
    assert slow is None or (fast is not None and fast <= slow)


@given(st.integers(1, 10**13), rates, st.integers(1, 10**6))
def test_needed_rate_suffices_and_one_byte_less_does_not(size: int, growth: int, seconds: int) -> None:
    within = timedelta(seconds=seconds)
    rate = needed_rate(size, growth, within)
    time = move_time(size, rate, growth)
    assert time is not None and time <= within + timedelta(microseconds=1)
    less = move_time(size, rate - 1, growth)
    assert less is None or less >= within


@given(st.floats(0.01, 1), amounts, rates, st.integers(1, 10**10))
def test_throttle_for_a_share_never_exceeds_it(ratio: float, size: int, growth: int, capacity: int) -> None:
    carried = Transfers({(1, FOLLOWER): Transfer(size, growth)}, size, 1)
    side = estimate(carried, [decision(1, FOLLOWER, 5, capacity)], Goal(max_ratio=ratio), 1).sides[0]
    assert side.rate_bytes_per_second is not None and side.rate_bytes_per_second <= capacity * ratio + 0.5

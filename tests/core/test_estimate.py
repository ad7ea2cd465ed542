"""What a reassignment would be: bytes, KIP-73's MoveRatio and MoveTime, and the throttles for a share or a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.estimate import Goal, Transfer, Transfers, estimate, only, transfers
from autothrottle.core.move_time import move_time, needed_rate
from autothrottle.core.plan import Decision, Reason
from autothrottle.core.progress import BrokerLogSizes, LogSizes
from autothrottle.core.topology import NO_LEADER
from tests.builders import NOON, mb, reassignment

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
GB = 1_000_000_000


def sizes(found: Mapping[int, Mapping[int, int]], seconds: float = 0) -> LogSizes:
    """Of topic `t`: broker id -> partition -> bytes."""
    at = NOON + timedelta(seconds=seconds)
    return LogSizes({b: BrokerLogSizes(at, {("t", p): size for p, size in rows.items()}) for b, rows in found.items()})


def decision(broker_id: int, role: ReplicaRole, rate: int, capacity: int | None = mb(100)) -> Decision:
    return Decision(broker_id, role, rate, Reason.HEADROOM, None, rate, mb(10), capacity)


MOVE = reassignment("t", {0: (1001, (1001, 1002), (1003, 1004), (1002,)), 1: (1002, (1002, 1001), (1003,), (1001,))})


def test_every_copy_counts_at_both_of_its_ends() -> None:
    found = transfers([MOVE], sizes({1001: {0: 6 * GB}, 1002: {1: 2 * GB}, 1003: {}, 1004: {}}))
    assert (found.size, found.partitions, found.unknown) == (14 * GB, 2, 0)
    assert {port: one.size for port, one in found.ports.items()} == {
        (1001, LEADER): 12 * GB,
        (1002, LEADER): 2 * GB,
        (1003, FOLLOWER): 8 * GB,
        (1004, FOLLOWER): 6 * GB,
    }


def test_what_the_destination_has_already_is_not_copied_again() -> None:
    found = transfers([MOVE], sizes({1001: {0: 6 * GB}, 1002: {1: 2 * GB}, 1003: {0: 5 * GB}, 1004: {0: 7 * GB}}))
    assert found.size == 3 * GB


def test_what_is_produced_counts_for_each_destination_and_at_the_leader_for_its_in_sync_followers_too() -> None:
    before = sizes({1001: {0: 6 * GB}, 1002: {1: 2 * GB}})
    later = sizes({1001: {0: 6 * GB + 20 * mb(1)}, 1002: {1: 2 * GB}}, seconds=10)
    found = transfers([MOVE], before, later)
    assert {port: one.growth for port, one in found.ports.items()} == {
        (1001, LEADER): mb(6),
        (1002, LEADER): 0,
        (1003, FOLLOWER): mb(2),
        (1004, FOLLOWER): mb(2),
    }


def test_a_partition_without_leader_or_whose_leader_tells_nothing_is_unknown() -> None:
    offline = reassignment("t", {0: (NO_LEADER, (), (1003,), ()), 1: (1002, (1002,), (1003,), ())})
    found = transfers([offline], sizes({1003: {}}))
    assert (found.size, found.partitions, found.unknown) == (0, 2, 2)
    assert estimate(found, [decision(1003, FOLLOWER, mb(10)), decision(1002, LEADER, mb(10))], Goal(), 8).time is None


def test_the_slowest_port_says_when_the_move_is_over() -> None:
    carried = Transfers({(1001, LEADER): Transfer(4 * GB), (1003, FOLLOWER): Transfer(4 * GB)}, 4 * GB, 1)
    found = estimate(carried, [decision(1001, LEADER, mb(50)), decision(1003, FOLLOWER, mb(40))], Goal(), 4)
    assert found.time == timedelta(seconds=100)
    assert (found.move_ratio, found.warnings) == (0.25, ())


def test_a_share_of_the_capacity_is_the_throttle_on_every_port() -> None:
    carried = Transfers({(1001, LEADER): Transfer(3 * GB), (1003, FOLLOWER): Transfer(3 * GB)}, 3 * GB, 1)
    decisions = [decision(1001, LEADER, mb(50)), decision(1003, FOLLOWER, mb(20), capacity=mb(50))]
    found = estimate(carried, decisions, Goal(max_ratio=0.3), 4)
    assert [port.rate for port in found.ports] == [mb(30), mb(15)]
    assert found.time == timedelta(seconds=200)


def test_a_share_of_an_unknown_capacity_is_no_rate_and_is_said() -> None:
    carried = Transfers({(1001, LEADER): Transfer(3 * GB)}, 3 * GB, 1)
    found = estimate(carried, [Decision(1001, LEADER, mb(10), Reason.MINIMUM, None)], Goal(max_ratio=0.3), 4)
    assert (found.ports[0].rate, found.time) == (None, None)
    assert found.warnings == (
        "broker 1001 [leader]: its capacity is unknown, and so are its rate and time; see its metrics",
    )


def test_a_time_that_needs_more_than_clients_leave_is_said_with_both_rates() -> None:
    carried = Transfers({(1003, FOLLOWER): Transfer(9 * GB, mb(2))}, 9 * GB, 1)
    found = estimate(carried, [decision(1003, FOLLOWER, mb(50))], Goal(within=timedelta(seconds=100)), 4)
    assert found.ports[0].rate == mb(92)
    assert found.time == timedelta(seconds=100)
    assert found.warnings == ("broker 1003 [follower]: 92.00 MB/s is more than the 50.00 MB/s that clients leave now",)


def test_a_throttle_that_does_not_exceed_what_is_produced_never_ends() -> None:
    carried = Transfers({(1003, FOLLOWER): Transfer(9 * GB, mb(12))}, 9 * GB, 1)
    found = estimate(carried, [decision(1003, FOLLOWER, mb(10))], Goal(), 4)
    assert found.time is None
    assert found.warnings == (
        "broker 1003 [follower]: at 10.00 MB/s it would never end, since 12.00 MB/s is produced meanwhile; "
        "give it a higher rate",
    )


def test_of_many_ports_in_its_way_some_are_named_and_the_rest_counted() -> None:
    carried = Transfers({(b, LEADER): Transfer(1) for b in range(1, 31)}, 30, 30)
    found = estimate(carried, [], Goal(), 30)
    assert len(found.warnings) == 11 and found.warnings[-1] == "and the same of 20 ports more"


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1])
def test_a_share_outside_of_its_range_is_refused(ratio: float) -> None:
    with pytest.raises(Invalid, match=r"outside of \(0, 1\]"):
        Goal(max_ratio=ratio)


def test_a_time_outside_of_its_range_and_two_goals_are_refused() -> None:
    with pytest.raises(Invalid, match="outside of 1"):
        Goal(within=timedelta(0))
    with pytest.raises(Invalid, match="both given"):
        Goal(max_ratio=0.5, within=timedelta(hours=1))


def test_only_keeps_the_rows_that_are_named() -> None:
    assert only([MOVE], {("t", 1), ("u", 0)}) == (reassignment("t", {1: (1002, (1002, 1001), (1003,), (1001,))}),)


amounts, rates = st.integers(0, 10**13), st.integers(0, 10**10)


@given(amounts, rates, rates, rates)
def test_a_higher_throttle_never_takes_longer(size: int, growth: int, rate: int, more: int) -> None:
    slow, fast = move_time(size, rate, growth), move_time(size, rate + more, growth)
    assert slow is None or (fast is not None and fast <= slow)


@given(st.integers(1, 10**13), rates, st.integers(1, 10**6))
def test_the_rate_for_a_time_is_enough_and_a_byte_less_is_not(size: int, growth: int, seconds: int) -> None:
    within = timedelta(seconds=seconds)
    rate = needed_rate(size, growth, within)
    time = move_time(size, rate, growth)
    assert time is not None and time <= within + timedelta(microseconds=1)
    less = move_time(size, rate - 1, growth)
    assert less is None or less >= within


@given(st.floats(0.01, 1), amounts, rates, st.integers(1, 10**10))
def test_the_throttle_for_a_share_never_exceeds_it(ratio: float, size: int, growth: int, capacity: int) -> None:
    carried = Transfers({(1, FOLLOWER): Transfer(size, growth)}, size, 1)
    port = estimate(carried, [decision(1, FOLLOWER, 5, capacity)], Goal(max_ratio=ratio), 1).ports[0]
    assert port.rate is not None and port.rate <= capacity * ratio + 0.5

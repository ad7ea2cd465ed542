"""Just enough bytes leave a full broker."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas, TopicPartitionKey
from autothrottle.core.placement.plan import PlacementPlan
from autothrottle.core.placement.rebalance import relieve

RESERVES = {1: 200, 2: 200, 3: 200, 4: 200}


def relieved(
    sizes: list[int], free: tuple[int, int, int, int], growth: Mapping[TopicPartitionKey, float] | None = None
) -> PlacementPlan:
    """Broker 1 of rack a holds all partitions, beside broker 2 (rack b) or 3 (rack c). Broker 4 is in rack a."""
    partitions = [PartitionReplicas("t", n, (1, 2 + n % 2), size) for n, size in enumerate(sizes)]
    brokers = [PlacementBroker(id, "abca"[id - 1], storage) for id, storage in enumerate(free, 1)]
    return relieve(partitions, brokers, 1, RESERVES, growth or {})


def moved(plan: PlacementPlan) -> list[tuple[int, int]]:
    return [(each.partition.partition, each.destination) for each in plan.relocations]


def test_the_smallest_partition_that_suffices_moves_to_the_emptiest_broker() -> None:
    plan = relieved([10, 60, 90, 500], (150, 900, 900, 1000))
    assert moved(plan) == [(1, 4)]
    assert plan.notes == ("broker 1 is below the limit by 10 bytes",)


def test_the_faster_of_equal_partitions_moves() -> None:
    assert moved(relieved([50, 50, 50], (150, 0, 0, 1000), {("t", 1): 5.0, ("t", 2): 9.0})) == [(2, 4)]


def test_the_faster_of_equal_partitions_move_if_one_does_not_suffice() -> None:
    """The largest partition went first, and among equal ones that was the one that grows slowest."""
    growth = {("t", 1): 5.0, ("t", 2): 9.0}
    assert sorted(moved(relieved([50, 50, 50, 50], (100, 0, 0, 1000), growth))) == [(1, 4), (2, 4)]


def test_partitions_that_suffice_together_beat_a_large_one() -> None:
    """With 100 bytes to move, 90 and then 50 bytes moved, although 90, 5 and 5 suffice."""
    assert sorted(moved(relieved([90, 60, 50, 5, 5], (100, 0, 0, 1000)))) == [(0, 4), (3, 4), (4, 4)]


def test_several_partitions_move_if_one_does_not_suffice() -> None:
    assert sorted(moved(relieved([40, 30, 20], (120, 0, 0, 1000)))) == [(0, 4), (1, 4), (2, 4)]


def test_what_stays_is_said() -> None:
    plan = relieved([40, 30], (0, 0, 0, 235))
    assert moved(plan) == [(1, 4)]
    assert "broker 1 stays 170 bytes above the limit, because no broker has room" in plan.notes[0]


def test_a_broker_below_its_limit_keeps_everything() -> None:
    assert moved(relieved([40], (500, 0, 0, 1000))) == []


def test_an_unknown_broker_is_an_error() -> None:
    with pytest.raises(Invalid, match="broker 9 is unknown"):
        relieve([], [PlacementBroker(1)], 9, {}, {})


@settings(max_examples=50)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 200))
def test_no_more_bytes_move_than_the_largest_first_would_need(sizes: list[int], needed: int) -> None:
    copied = sum(each.partition.size or 0 for each in relieved(sizes, (200 - needed, 0, 0, 5000)).relocations)
    others, greedy = sorted(sizes), 0
    while greedy < needed and others:
        covering = (at for at, size in enumerate(others) if size >= needed - greedy)
        greedy += others.pop(next(covering, -1))
    assert min(needed, sum(sizes)) <= copied <= greedy


@given(
    st.lists(st.integers(0, 400), max_size=12),
    st.tuples(st.integers(0, 300), st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 2000)),
)
def test_no_broker_gets_above_its_limit_and_no_move_is_in_vain(
    sizes: list[int], free: tuple[int, int, int, int]
) -> None:
    plan = relieved(sizes, free)
    after = dict(enumerate(free, 1))
    for each in plan.relocations:
        size = each.partition.size or 0
        after[each.source] += size
        after[each.destination] -= size
        assert each.source == 1 and size
    assert all(after[id] >= 200 for id in after if after[id] < free[id - 1])
    if plan.relocations:
        assert after[1] - max(each.partition.size or 0 for each in plan.relocations) < 200
    racks = "abca"
    assert all(len({racks[id - 1] for id in entry.replicas}) == 2 for entry in plan.new_map)

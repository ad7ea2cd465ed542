"""What a broker lacks looks like a reassignment to it; what is being moved to it anyway stays what it is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.catch_up import held_partitions, lagging, with_lagging
from autothrottle.core.configs import ReplicaRole
from autothrottle.core.topology import Assignment, Snapshot, participants
from tests import builders
from tests.builders import reassignment

BROKER = 1003


def cluster(**assignments: Assignment) -> Snapshot:
    """Topics of one partition each."""
    return replace(builders.snapshot(), assignments={(topic, 0): found for topic, found in assignments.items()})


def test_the_partitions_of_a_broker_are_those_that_it_holds() -> None:
    snapshot = builders.snapshot(replicas={BROKER: {"a": (0, 2), "b": (1,)}, 1004: {"c": (0,)}})
    assert held_partitions(snapshot, [BROKER]) == {("a", 0), ("a", 2), ("b", 1)}
    assert held_partitions(snapshot, [1009]) == frozenset()


def test_what_is_not_in_sync_lags_and_what_is_in_sync_or_elsewhere_does_not() -> None:
    snapshot = cluster(
        behind=Assignment((1001, BROKER), 1001, (1001,)),
        in_sync=Assignment((1001, BROKER), 1001, (1001, BROKER)),
        elsewhere=Assignment((1001, 1002), 1001, (1001,)),
        moving=Assignment((1001, 1002, BROKER), 1001, (1001, 1002), (BROKER,), (1002,)),
    )
    assert lagging(snapshot.assignments, [BROKER]) == {BROKER: {("behind", 0)}}
    assert lagging(snapshot.assignments, []) == {}


def test_a_lagging_replica_looks_as_if_it_were_moved_to_its_broker() -> None:
    snapshot = cluster(t=Assignment((1001, 1002, BROKER), 1001, (1001, 1002)))
    shown = with_lagging(snapshot, {BROKER: {("t", 0)}})
    assert shown.reassignments == (reassignment("t", {0: (1001, (1001, 1002), (BROKER,), ())}),)
    assert participants(shown) == {1001: {ReplicaRole.LEADER}, BROKER: {ReplicaRole.FOLLOWER}}
    assert shown.reassignments[0].copying.follower_replicas.text == f"0:{BROKER}"


def test_what_moves_already_keeps_what_it_awaits() -> None:
    move = reassignment("t", {0: (1001, (1001,), (1004,), (BROKER,)), 2: (1001, (1001,), (1004,), ())})
    snapshot = replace(builders.snapshot(move), assignments={("t", 1): Assignment((1002, BROKER), 1002, (1002,))})
    shown = with_lagging(snapshot, {BROKER: {("t", 1)}})
    assert shown.reassignments == (
        reassignment(
            "t",
            {
                0: (1001, (1001,), (1004,), (BROKER,)),
                1: (1002, (1002,), (BROKER,), ()),
                2: (1001, (1001,), (1004,), ()),
            },
        ),
    )


def test_a_partition_that_is_moved_elsewhere_awaits_the_lagging_replica_too() -> None:
    move = reassignment("t", {0: (1001, (1001,), (1004,), ())})
    standing = Assignment((1001, BROKER, 1004), 1001, (1001,), (1004,))
    snapshot = replace(builders.snapshot(move), assignments={("t", 0): standing})
    shown = with_lagging(snapshot, lagging(snapshot.assignments, [BROKER]))
    assert shown.reassignments == (reassignment("t", {0: (1001, (1001,), (1004, BROKER), ())}),)


def test_two_brokers_may_catch_up_with_one_partition() -> None:
    snapshot = cluster(t=Assignment((1001, 1002, BROKER), 1001, (1001,)))
    shown = with_lagging(snapshot, lagging(snapshot.assignments, [BROKER, 1002]))
    assert shown.reassignments == (reassignment("t", {0: (1001, (1001,), (1002, BROKER), ())}),)


replica_sets = st.lists(st.integers(1001, 1005), min_size=1, max_size=4, unique=True).map(tuple)


@given(st.dictionaries(st.sampled_from("abc"), st.tuples(replica_sets, replica_sets), max_size=3))
def test_whatever_lags_is_in_the_follower_lists_and_nothing_else_is(
    found: dict[str, tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    made = {
        topic: Assignment(replicas, replicas[0], tuple(b for b in replicas if b in isr or b == replicas[0]))
        for topic, (replicas, isr) in found.items()
    }
    snapshot = cluster(**made)
    brokers = (1003, 1004)
    shown = with_lagging(snapshot, lagging(snapshot.assignments, brokers))
    listed = {(r.topic, entry) for r in shown.reassignments for entry in r.copying.follower_replicas.entries}
    behind = {(t, f"0:{b}") for t, a in made.items() for b in brokers if b in a.replicas and b not in a.isr}
    assert listed == behind

"""Lagging replicas appear as reassignments; real reassignments stay unchanged."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.snapshot import Assignment, Snapshot
from autothrottle.core.operators.sources import lagging, partitions_on, with_lagging
from tests import builders
from tests.builders import reassignment

BROKER = 1003


def cluster(**assignments: Assignment) -> Snapshot:
    """Topics of one partition each."""
    return replace(builders.snapshot(), assignments={(topic, 0): found for topic, found in assignments.items()})


def test_partitions_on_a_broker_are_those_it_has_replicas_of() -> None:
    snapshot = builders.snapshot(replicas={BROKER: {"a": (0, 2), "b": (1,)}, 1004: {"c": (0,)}})
    assert partitions_on(snapshot, [BROKER]) == {("a", 0), ("a", 2), ("b", 1)}
    assert partitions_on(snapshot, [1009]) == frozenset()


def test_only_out_of_sync_replicas_of_the_broker_lag() -> None:
    snapshot = cluster(
        behind=Assignment((1001, BROKER), 1001, (1001,)),
        in_sync=Assignment((1001, BROKER), 1001, (1001, BROKER)),
        elsewhere=Assignment((1001, 1002), 1001, (1001,)),
        moving=Assignment((1001, 1002, BROKER), 1001, (1001, 1002), (BROKER,), (1002,)),
    )
    assert lagging(snapshot.assignments, [BROKER]) == {BROKER: {("behind", 0)}}
    assert lagging(snapshot.assignments, []) == {}


def test_lagging_replica_appears_as_adding_replica() -> None:
    snapshot = cluster(t=Assignment((1001, 1002, BROKER), 1001, (1001, 1002)))
    shown = with_lagging(snapshot, {BROKER: {("t", 0)}})
    assert shown.reassignments == (reassignment("t", {0: (1001, (1001, 1002), (BROKER,), ())}),)
    assert shown.participants == {1001: {ReplicaRole.LEADER}, BROKER: {ReplicaRole.FOLLOWER}}
    assert shown.reassignments[0].copying.follower_replicas.text == f"0:{BROKER}"


def test_partition_in_reassignment_keeps_its_adding_replicas() -> None:
    existing = reassignment("t", {0: (1001, (1001,), (1004,), (BROKER,)), 2: (1001, (1001,), (1004,), ())})
    snapshot = replace(builders.snapshot(existing), assignments={("t", 1): Assignment((1002, BROKER), 1002, (1002,))})
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


def test_partition_reassigned_elsewhere_also_awaits_the_lagging_replica() -> None:
    existing = reassignment("t", {0: (1001, (1001,), (1004,), ())})
    current = Assignment((1001, BROKER, 1004), 1001, (1001,), (1004,))
    snapshot = replace(builders.snapshot(existing), assignments={("t", 0): current})
    shown = with_lagging(snapshot, lagging(snapshot.assignments, [BROKER]))
    assert shown.reassignments == (reassignment("t", {0: (1001, (1001,), (1004, BROKER), ())}),)


def test_two_brokers_may_catch_up_on_one_partition() -> None:
    snapshot = cluster(t=Assignment((1001, 1002, BROKER), 1001, (1001,)))
    shown = with_lagging(snapshot, lagging(snapshot.assignments, [BROKER, 1002]))
    assert shown.reassignments == (reassignment("t", {0: (1001, (1001,), (1002, BROKER), ())}),)


replica_sets = st.lists(st.integers(1001, 1005), min_size=1, max_size=4, unique=True).map(tuple)


@given(st.dictionaries(st.sampled_from("abc"), st.tuples(replica_sets, replica_sets), max_size=3))
def test_follower_lists_contain_exactly_the_lagging_replicas(
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

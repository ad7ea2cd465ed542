"""A proposed reassignment: what is wrong with one, how the cluster looks with it, and what it needs to be throttled."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.changes import changes
from autothrottle.core.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    ReplicaRole,
)
from autothrottle.core.errors import Conflict, Invalid, Missing
from autothrottle.core.loads import Loads
from autothrottle.core.plan import plan
from autothrottle.core.reassignment import (
    MAX_PARTITIONS,
    Proposal,
    Targets,
    partitions,
    proposal,
    resources,
    targets,
    unseen,
    unthrottled,
    with_proposed,
)
from autothrottle.core.topology import Assignment, Snapshot, TopicPartition, participants
from tests import builders

BROKERS = (1001, 1002, 1003, 1004)


def placed(*replicas: int, leader: int | None = None, isr: tuple[int, ...] | None = None) -> Assignment:
    return Assignment(replicas, replicas[0] if leader is None else leader, replicas if isr is None else isr)


def cluster(assignments: dict[TopicPartition, Assignment]) -> Snapshot:
    """Brokers 1001 to 1004; what moves is in the reassignments, too."""
    topics: dict[str, dict[int, builders.Row]] = {}
    for (topic, partition), one in assignments.items():
        if one.moves:
            topics.setdefault(topic, {})[partition] = (one.leader, one.isr, one.adding_replicas, one.removing_replicas)
    found = builders.snapshot(*(builders.reassignment(topic, rows) for topic, rows in topics.items()))
    return replace(found, assignments=assignments)


MOVING = Assignment((1003, 1002, 1001), 1001, (1001, 1002), (1003,), (1001,))
"""From 1001, 1002 to 1003, 1002."""


# What is wrong whatever the cluster.


def test_a_broker_that_is_named_twice_is_found_among_many_at_once() -> None:
    """Each was compared with all others: one message of some MB kept the admin service busy for hours."""
    brokers, begun = range(100_000), time.monotonic()
    with pytest.raises(Invalid, match="t-0 names broker 99999 twice"):
        targets([("t", 0, (*brokers, brokers[-1]))])
    assert time.monotonic() - begun < 10


def test_targets_are_read_as_they_are_given() -> None:
    assert targets([("b", 1, (1002, 1001)), ("a", 0, (0,))]) == {("b", 1): (1002, 1001), ("a", 0): (0,)}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "names no partition; name 1 to 100000"),
        ([("t", 0, ())], "t-0 has an empty list of replicas; name at least one broker id"),
        ([("t", 0, (1, 2, 1))], "t-0 names broker 1 twice in [1, 2, 1]; name every broker once"),
        ([("t", 0, (-1,))], "broker id -1 of t-0 is outside of 0..2147483647; give a broker's id"),
        ([("t", 0, (2**31,))], "broker id 2147483648 of t-0 is outside of 0..2147483647"),
        ([("t", -1, (1,))], "partition -1 of topic 't' is outside of 0..2147483647; give its number"),
        ([("", 0, (1,))], "partition 0 has no topic; name it"),
        ([("t", 0, (1,)), ("t", 0, (2,))], "partition t-0 is named twice; name it once"),
    ],
)
def test_what_can_be_right_in_no_cluster_is_refused(rows: list[tuple[str, int, tuple[int, ...]]], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        targets(rows)
    assert said in str(caught.value)


def test_more_partitions_than_a_cluster_moves_at_a_time_are_refused() -> None:
    rows = [("t", number, (1,)) for number in range(MAX_PARTITIONS + 1)]
    assert len(targets(rows[:-1])) == MAX_PARTITIONS
    with pytest.raises(Invalid, match="more than 100000 partitions are named"):
        targets(rows)
    with pytest.raises(Invalid, match="more than 100000 partitions are named"):
        partitions((topic, number) for topic, number, _ in rows)
    with pytest.raises(Invalid, match="no partition is named"):
        partitions([])


# What is left to do.


def test_a_proposal_is_told_apart_by_what_is_left_to_do() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): MOVING, ("t", 2): placed(1003, 1002)})
    wanted: Targets = dict.fromkeys([("t", 0), ("t", 1), ("t", 2)], (1003, 1002))
    found = proposal(snapshot, wanted)
    assert found == Proposal({("t", 0): (1003, 1002)}, frozenset({("t", 1)}), frozenset({("t", 2)}))


def test_another_order_of_the_same_replicas_is_something_to_do() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002)})
    assert proposal(snapshot, {("t", 0): (1002, 1001)}).start == {("t", 0): (1002, 1001)}


def test_a_topic_or_a_partition_that_does_not_exist_is_missing() -> None:
    snapshot = cluster({("t", 0): placed(1001)})
    with pytest.raises(Missing, match="t-1 does not exist; u-0 does not exist; give a partition's name"):
        proposal(snapshot, {("t", 0): (1002,), ("t", 1): (1002,), ("u", 0): (1002,)})


def test_a_broker_that_is_not_registered_receives_nothing_but_may_keep_what_it_has() -> None:
    snapshot = cluster({("t", 0): placed(1009, 1001), ("t", 1): placed(1001)})
    assert proposal(snapshot, {("t", 0): (1009, 1002)}).start
    with pytest.raises(Invalid) as caught:
        proposal(snapshot, {("t", 0): (1009, 1002), ("t", 1): (1009,)})
    assert str(caught.value) == (
        "broker 1009, to which t-1 is to move, is unknown or down; registered are [1001, 1002, 1003, 1004]; "
        "start the broker, or name another"
    )


def test_a_partition_that_moves_elsewhere_is_in_conflict() -> None:
    snapshot = cluster({("t", 1): MOVING})
    with pytest.raises(Conflict) as caught:
        proposal(snapshot, {("t", 1): (1004, 1002)})
    assert str(caught.value) == (
        "t-1 is being reassigned to [1003, 1002] already; wait until it is done, or cancel it first"
    )


def test_an_error_names_some_of_many_problems() -> None:
    with pytest.raises(Missing, match=r"t-4 does not exist and 95 more; give"):
        proposal(cluster({}), {("t", number): (1001,) for number in range(100)})


# How the cluster looks with it.


def test_what_is_proposed_looks_as_if_it_moved() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002, isr=(1001,)), ("t", 1): MOVING, ("a", 0): placed(1004)})
    shown = with_proposed(snapshot, {("t", 0): (1003, 1002, 1004), ("a", 0): (1001,)})
    assert shown.reassignments == (
        builders.reassignment("a", {0: (1004, (1004,), (1001,), (1004,))}),
        builders.reassignment(
            "t",
            {
                0: (1001, (1001,), (1003, 1004), (1001,)),
                1: (1001, (1001, 1002), (1003,), (1001,)),
            },
        ),
    )


def test_what_moves_already_is_gone_or_only_changes_its_order_is_left_as_it_is() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): MOVING})
    wanted: Targets = {("t", 0): (1002, 1001), ("t", 1): (1004,), ("t", 7): (1001,)}
    assert with_proposed(snapshot, wanted) is snapshot


brokers = st.sampled_from(BROKERS)
replicas = st.lists(brokers, min_size=1, max_size=4, unique=True).map(tuple)
rows = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 3))


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Partitions of two topics, some of which move."""
    found: dict[TopicPartition, Assignment] = {}
    for row, held, target in draw(st.lists(st.tuples(rows, replicas, st.none() | replicas))):
        adding = tuple(b for b in target or () if b not in held)
        removing = tuple(b for b in held if target and b not in target)
        found[row] = Assignment((*(target or held), *removing), held[0], held, adding, removing)
    return cluster(found)


@given(clusters(), st.dictionaries(rows, replicas))
def test_a_proposal_changes_nothing_but_the_moves_and_those_as_kafka_would(snapshot: Snapshot, wanted: Targets) -> None:
    shown = with_proposed(snapshot, wanted)
    assert replace(shown, reassignments=()) == replace(snapshot, reassignments=())
    assert [r.topic for r in shown.reassignments] == sorted({r.topic for r in shown.reassignments})
    moves = {
        (r.topic, row[0]): row[1:]
        for r in shown.reassignments
        for row in zip(r.partitions, r.leaders, r.isr, r.adding_replicas, r.removing_replicas, strict=True)
    }
    for row, one in snapshot.assignments.items():
        target = wanted.get(row, one.target) if not one.moves else one.target
        kept = set(one.replicas) - set(one.adding_replicas)
        expected = (one.leader, one.isr, set(target) - kept, kept - set(target))
        found = moves.pop(row, (one.leader, one.isr, (), ()))
        assert (found[0], found[1], set(found[2]), set(found[3])) == expected
    assert not moves


@given(clusters(), st.dictionaries(rows, replicas))
def test_what_the_plan_of_a_proposal_writes_is_all_that_it_needs_to_be_throttled(
    snapshot: Snapshot, wanted: Targets
) -> None:
    start = {row: to for row, to in wanted.items() if row in snapshot.assignments}
    shown = with_proposed(snapshot, start)
    decided = plan(shown, Loads(), builders.limits())
    needed = resources(snapshot, start)
    assert bool(unthrottled(snapshot, start)) == bool(needed)
    throttles: dict[ConfigResource, dict[str, str]] = {}
    for change in changes(decided, shown, term=1).changes:
        throttles[change.resource] = {edit.key: edit.value for edit in change.edits if edit.value is not None}
    assert needed <= throttles.keys()
    assert unthrottled(replace(snapshot, throttles=throttles), start) == ()
    for resource in needed:
        lacking = {other: values for other, values in throttles.items() if other != resource}
        assert unthrottled(replace(snapshot, throttles=lacking), start)


def test_what_does_not_stand_is_named() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): placed(1001, 1002)})
    wanted: Targets = {("t", 0): (1001, 1003), ("t", 1): (1001, 1003)}
    shown = with_proposed(snapshot, wanted)
    assert participants(shown) == {1001: {ReplicaRole.LEADER}, 1003: {ReplicaRole.FOLLOWER}}
    standing = {
        "brokers/1001": {LEADER_RATE: "5"},
        "brokers/1003": {FOLLOWER_RATE: "-1"},
        "topics/t": {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:1003"},
    }
    throttles = {ConfigResource(path): values for path, values in standing.items()}
    assert unthrottled(replace(snapshot, throttles=throttles), wanted) == (
        f"brokers/1003 has no {FOLLOWER_RATE}",
        f"topics/t lacks entries in {FOLLOWER_REPLICAS}",
    )


def test_a_list_that_is_no_list_throttles_nothing() -> None:
    snapshot = cluster({("t", 0): placed(1001)})
    topic = {LEADER_REPLICAS: "none", FOLLOWER_REPLICAS: "0:1002"}
    throttles = {
        ConfigResource.broker(1001): {LEADER_RATE: "5"},
        ConfigResource.broker(1002): {FOLLOWER_RATE: "5"},
        ConfigResource.topic("t"): topic,
    }
    found = unthrottled(replace(snapshot, throttles=throttles), {("t", 0): (1002,)})
    assert found == (f"topics/t lacks entries in {LEADER_REPLICAS}",)


def test_nothing_is_needed_to_remove_replicas_or_to_change_their_order() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): placed(1001, 1002)})
    wanted: Targets = {("t", 0): (1001,), ("t", 1): (1002, 1001)}
    assert resources(snapshot, wanted) == frozenset()
    assert unthrottled(snapshot, wanted) == ()


def test_what_was_submitted_is_unseen_until_it_moves_has_arrived_or_is_gone() -> None:
    arrived = placed(1002, 1003)
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): MOVING, ("t", 2): arrived})
    submitted: Targets = dict.fromkeys([("t", 0), ("t", 1), ("t", 2), ("t", 3)], (1003, 1002))
    assert unseen(snapshot, submitted) == {("t", 0): (1003, 1002)}

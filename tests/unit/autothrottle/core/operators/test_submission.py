"""A proposed reassignment: its validation, the snapshot with it, and the throttles that it needs."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    ReplicaRole,
)
from autothrottle.core.cluster.snapshot import Assignment, Snapshot, TopicPartition
from autothrottle.core.errors import Conflict, Invalid, Missing
from autothrottle.core.operators.submission import (
    MAX_PARTITIONS,
    ProposedReassignment,
    Targets,
    partitions,
    postponement,
    proposal,
    resources,
    targets,
    unseen,
    unthrottled,
    with_one_exchange,
    with_proposed,
)
from autothrottle.core.throttles.changes import changes
from autothrottle.core.throttles.plan import plan
from autothrottle.core.traffic.loads import Loads
from tests import builders

BROKERS = (1001, 1002, 1003, 1004)


def placed(*replicas: int, leader: int | None = None, isr: tuple[int, ...] | None = None) -> Assignment:
    return Assignment(replicas, replicas[0] if leader is None else leader, replicas if isr is None else isr)


def cluster(assignments: dict[TopicPartition, Assignment]) -> Snapshot:
    """Brokers 1001 to 1004; running reassignments are included."""
    topics: dict[str, dict[int, builders.Row]] = {}
    for (topic, partition), one in assignments.items():
        if one.moves:
            topics.setdefault(topic, {})[partition] = (one.leader, one.isr, one.adding_replicas, one.removing_replicas)
    found = builders.snapshot(*(builders.reassignment(topic, rows) for topic, rows in topics.items()))
    return replace(found, assignments=assignments)


MOVING = Assignment((1003, 1002, 1001), 1001, (1001, 1002), (1003,), (1001,))
"""From 1001, 1002 to 1003, 1002."""


# Errors independent of the cluster.


def test_duplicate_broker_is_found_fast_among_many() -> None:
    """Each entry was compared with all others. One message of some MB kept the admin service busy for hours."""
    brokers, begun = range(100_000), time.monotonic()
    with pytest.raises(Invalid, match="t-0 names broker 99999 twice"):
        targets([("t", 0, (*brokers, brokers[-1]))])
    assert time.monotonic() - begun < 10


def test_targets_keep_their_values() -> None:
    assert targets([("b", 1, (1002, 1001)), ("a", 0, (0,))]) == {("b", 1): (1002, 1001), ("a", 0): (0,)}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "names no partition; name 1 to 10000"),
        ([("t", 0, ())], "t-0 has an empty list of replicas; name at least one broker id"),
        ([("t", 0, (1, 2, 1))], "t-0 names broker 1 twice in [1, 2, 1]; name every broker once"),
        ([("t", 0, (-1,))], "broker id -1 of t-0 is outside of 0..2147483647; give a broker's id"),
        ([("t", 0, (2**31,))], "broker id 2147483648 of t-0 is outside of 0..2147483647"),
        ([("t", -1, (1,))], "partition -1 of topic 't' is outside of 0..2147483647; give its number"),
        ([("", 0, (1,))], "partition 0 has no topic; name it"),
        ([("t", 0, (1,)), ("t", 0, (2,))], "partition t-0 is named twice; name it once"),
    ],
)
def test_targets_invalid_in_any_cluster_are_refused(rows: list[tuple[str, int, tuple[int, ...]]], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        targets(rows)
    assert message in str(caught.value)


def test_more_than_the_maximum_of_partitions_is_refused() -> None:
    rows = [("t", number, (1,)) for number in range(MAX_PARTITIONS + 1)]
    assert len(targets(rows[:-1])) == MAX_PARTITIONS
    with pytest.raises(Invalid, match="more than 10000 partitions are named"):
        targets(rows)
    with pytest.raises(Invalid, match="more than 10000 partitions are named"):
        partitions((topic, number) for topic, number, _ in rows)
    with pytest.raises(Invalid, match="no partition is named"):
        partitions([])


# Remaining work.


def test_proposal_is_split_by_what_is_left_to_do() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): MOVING, ("t", 2): placed(1003, 1002)})
    wanted: Targets = dict.fromkeys([("t", 0), ("t", 1), ("t", 2)], (1003, 1002))
    found = proposal(snapshot, wanted)
    assert found == ProposedReassignment({("t", 0): (1003, 1002)}, frozenset({("t", 1)}), frozenset({("t", 2)}))


def test_new_order_of_the_same_replicas_must_be_started() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002)})
    assert proposal(snapshot, {("t", 0): (1002, 1001)}).start == {("t", 0): (1002, 1001)}


def test_unknown_topic_or_partition_is_missing() -> None:
    snapshot = cluster({("t", 0): placed(1001)})
    with pytest.raises(Missing, match=r"^t-1, u-0 do not exist; give a partition's name$"):
        proposal(snapshot, {("t", 0): (1002,), ("t", 1): (1002,), ("u", 0): (1002,)})


def test_unregistered_broker_may_keep_replicas_but_gets_no_new_ones() -> None:
    snapshot = cluster({("t", 0): placed(1009, 1001), ("t", 1): placed(1001)})
    assert proposal(snapshot, {("t", 0): (1009, 1002)}).start
    with pytest.raises(Invalid) as caught:
        proposal(snapshot, {("t", 0): (1009, 1002), ("t", 1): (1009,)})
    assert str(caught.value) == (
        "broker 1009, a target replica of t-1, is unknown or down; "
        "the registered brokers are [1001, 1002, 1003, 1004]; start the broker, or name another"
    )


def test_partition_in_another_reassignment_is_a_conflict() -> None:
    snapshot = cluster({("t", 1): MOVING})
    with pytest.raises(Conflict) as caught:
        proposal(snapshot, {("t", 1): (1004, 1002)})
    assert str(caught.value) == (
        "t-1 is already being reassigned to [1003, 1002]; wait until it is done, or cancel it first"
    )


def test_error_names_some_of_many_problems() -> None:
    with pytest.raises(Missing, match=r"^t-0, t-1, t-2 and 97 more do not exist; give"):
        proposal(cluster({}), {("t", number): (1001,) for number in range(100)})


# The topic of our own state.

STATE = "state"


@given(
    current=st.permutations(range(1001, 1007)),
    target=st.permutations(range(1001, 1007)),
    counts=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    number=st.integers(0, 3),
)
def test_own_state_reaches_its_target_by_exchanges_of_one_replica_and_the_leader_last(
    current: list[int], target: list[int], counts: tuple[int, int], number: int
) -> None:
    replicas, wanted = tuple(current[: counts[0]]), tuple(target[: counts[1]])
    leader = replicas[number % len(replicas)]
    rest = max(len({*wanted} - {*replicas}), len({*replicas} - {*wanted}))
    for later in range(max(rest - 1, 0), -1, -1):
        snapshot = cluster({(STATE, 0): placed(*replicas, leader=leader), ("t", 0): placed(*replicas)})
        step = with_one_exchange(snapshot, {(STATE, 0): wanted, ("t", 0): wanted}, STATE)
        assert step["t", 0] == wanted
        to = step[STATE, 0]
        assert len({*to} - {*replicas}) <= 1 and len({*replicas} - {*to}) <= 1
        postponed, warnings = postponement({(STATE, 0): wanted}, step)
        assert (postponed, len(warnings)) == (later, later > 0)
        assert leader in to or not later
        replicas, leader = to, leader if leader in to else to[0]
    assert replicas == wanted


def test_own_state_that_moves_one_replica_of_its_target_is_in_progress() -> None:
    """Otherwise a caller who repeats a submission without an answer would get a conflict with his own reassignment."""
    wanted: Targets = {(STATE, 0): (1004, 1005, 1003)}
    snapshot = cluster({(STATE, 0): placed(1001, 1002, 1003)})
    step = with_one_exchange(snapshot, wanted, STATE)
    assert step == {(STATE, 0): (1001, 1003, 1004)}
    running = Assignment((1001, 1003, 1004, 1002), 1001, (1001, 1002, 1003), (1004,), (1002,))
    snapshot = cluster({(STATE, 0): running})
    assert with_one_exchange(snapshot, wanted, STATE) == step
    assert proposal(snapshot, step).moving == {(STATE, 0)}
    at_once = Assignment((1004, 1005, 1003, 1001, 1002), 1001, (1001, 1002, 1003), (1004, 1005), (1001, 1002))
    snapshot = cluster({(STATE, 0): at_once})
    assert with_one_exchange(snapshot, wanted, STATE) == wanted, "another tool has started it"


def test_own_state_that_does_not_exist_is_missing() -> None:
    wanted: Targets = {(STATE, 0): (1004,)}
    assert with_one_exchange(cluster({}), wanted, STATE) == wanted


# The snapshot with the proposal.


def test_proposed_partitions_appear_in_reassignment() -> None:
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


def test_running_missing_or_reordered_partitions_stay_unchanged() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): MOVING})
    wanted: Targets = {("t", 0): (1002, 1001), ("t", 1): (1004,), ("t", 7): (1001,)}
    assert with_proposed(snapshot, wanted) is snapshot


brokers = st.sampled_from(BROKERS)
replicas = st.lists(brokers, min_size=1, max_size=4, unique=True).map(tuple)
rows = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 3))


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Partitions of two topics, some of them in reassignment."""
    found: dict[TopicPartition, Assignment] = {}
    for row, held, target in draw(st.lists(st.tuples(rows, replicas, st.none() | replicas))):
        adding = tuple(b for b in target or () if b not in held)
        removing = tuple(b for b in held if target and b not in target)
        found[row] = Assignment((*(target or held), *removing), held[0], held, adding, removing)
    return cluster(found)


@given(clusters(), st.dictionaries(rows, replicas))
def test_proposal_changes_only_the_reassignments_and_as_kafka_would(snapshot: Snapshot, wanted: Targets) -> None:
    shown = with_proposed(snapshot, wanted)
    assert replace(shown, reassignments=()) == replace(snapshot, reassignments=())
    assert [r.topic for r in shown.reassignments] == sorted({r.topic for r in shown.reassignments})
    started = {
        (r.topic, row[0]): row[1:]
        for r in shown.reassignments
        for row in zip(r.partitions, r.leaders, r.isr, r.adding_replicas, r.removing_replicas, strict=True)
    }
    for row, one in snapshot.assignments.items():
        target = wanted.get(row, one.target) if not one.moves else one.target
        kept = set(one.replicas) - set(one.adding_replicas)
        expected = (one.leader, one.isr, set(target) - kept, kept - set(target))
        found = started.pop(row, (one.leader, one.isr, (), ()))
        assert (found[0], found[1], set(found[2]), set(found[3])) == expected
    assert not started


@given(clusters(), st.dictionaries(rows, replicas))
def test_plan_of_a_proposal_writes_everything_it_needs(snapshot: Snapshot, wanted: Targets) -> None:
    start = {row: to for row, to in wanted.items() if row in snapshot.assignments}
    shown = with_proposed(snapshot, start)
    decided = plan(shown, Loads(), builders.limits())
    needed = resources(snapshot, start)
    assert bool(unthrottled(snapshot, start)) == bool(needed)
    throttles: dict[ConfigResource, dict[str, str]] = {}
    for change in changes(decided, shown, builders.NOON, term=1).changes:
        throttles[change.resource] = {edit.key: edit.value for edit in change.edits if edit.value is not None}
    assert needed <= throttles.keys()
    assert unthrottled(replace(snapshot, throttles=throttles), start) == ()
    for resource in needed:
        lacking = {other: values for other, values in throttles.items() if other != resource}
        assert unthrottled(replace(snapshot, throttles=lacking), start)


def test_missing_throttles_are_named() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): placed(1001, 1002)})
    wanted: Targets = {("t", 0): (1001, 1003), ("t", 1): (1001, 1003)}
    shown = with_proposed(snapshot, wanted)
    assert shown.participants == {1001: {ReplicaRole.LEADER}, 1003: {ReplicaRole.FOLLOWER}}
    current = {
        "brokers/1001": {LEADER_RATE: "5"},
        "brokers/1003": {FOLLOWER_RATE: "-1"},
        "topics/t": {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "0:1003"},
    }
    throttles = {ConfigResource(path): values for path, values in current.items()}
    assert unthrottled(replace(snapshot, throttles=throttles), wanted) == (
        f"brokers/1003 has no {FOLLOWER_RATE}",
        f"topics/t lacks entries in {FOLLOWER_REPLICAS}",
    )


def test_invalid_list_throttles_nothing() -> None:
    snapshot = cluster({("t", 0): placed(1001)})
    topic = {LEADER_REPLICAS: "none", FOLLOWER_REPLICAS: "0:1002"}
    throttles = {
        ConfigResource.broker(1001): {LEADER_RATE: "5"},
        ConfigResource.broker(1002): {FOLLOWER_RATE: "5"},
        ConfigResource.topic("t"): topic,
    }
    found = unthrottled(replace(snapshot, throttles=throttles), {("t", 0): (1002,)})
    assert found == (f"topics/t lacks entries in {LEADER_REPLICAS}",)


def test_removals_and_reordering_need_no_throttles() -> None:
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): placed(1001, 1002)})
    wanted: Targets = {("t", 0): (1001,), ("t", 1): (1002, 1001)}
    assert resources(snapshot, wanted) == frozenset()
    assert unthrottled(snapshot, wanted) == ()


def test_submitted_target_is_unseen_until_started_finished_or_deleted() -> None:
    arrived = placed(1002, 1003)
    snapshot = cluster({("t", 0): placed(1001, 1002), ("t", 1): MOVING, ("t", 2): arrived})
    submitted: Targets = dict.fromkeys([("t", 0), ("t", 1), ("t", 2), ("t", 3)], (1003, 1002))
    assert unseen(snapshot, submitted) == {("t", 0): (1003, 1002)}

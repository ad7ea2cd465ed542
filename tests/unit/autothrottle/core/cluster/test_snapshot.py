"""The participants and flows of a reassignment."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ReplicaRole, format_replicas
from autothrottle.core.cluster.flows import Flow, link_sides_of
from autothrottle.core.cluster.snapshot import NO_LEADER, Snapshot, TopicReassignment

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
Row = tuple[int, tuple[int, ...], tuple[int, ...]]
"""(leader, isr, adding replicas) of one partition."""


def moving(*rows: Row) -> Snapshot:
    reassignment = TopicReassignment(
        topic="t",
        partitions=tuple(range(len(rows))),
        leaders=tuple(leader for leader, _, _ in rows),
        isr=tuple(isr for _, isr, _ in rows),
        adding_replicas=tuple(adding for _, _, adding in rows),
        removing_replicas=tuple(() for _ in rows),
    )
    return Snapshot(version=1, reassignments=(reassignment,))


def test_leader_sends_and_adding_replicas_outside_the_isr_receive() -> None:
    snapshot = moving((1, (1, 2, 3), (3, 4, 5)))
    assert snapshot.participants == {1: {LEADER}, 4: {FOLLOWER}, 5: {FOLLOWER}}
    assert snapshot.flows == {Flow(1, 4): 1, Flow(1, 5): 1}


def test_broker_can_have_both_roles() -> None:
    snapshot = moving((1, (1,), (2,)), (2, (2,), (1,)))
    assert snapshot.participants == {1: {LEADER, FOLLOWER}, 2: {LEADER, FOLLOWER}}


def test_flow_counts_its_partitions() -> None:
    assert moving((1, (1,), (2,)), (1, (1,), (2,))).flows == {Flow(1, 2): 2}


def test_offline_partition_has_followers_but_no_flow() -> None:
    snapshot = moving((NO_LEADER, (), (2,)))
    assert snapshot.participants == {2: {FOLLOWER}}
    assert snapshot.flows == {}


def test_in_sync_partition_has_no_participants() -> None:
    assert moving((1, (1, 2), (2,))).participants == {}


def test_reassignment_that_only_removes_has_no_participants() -> None:
    assert moving((1, (1, 2), ())).participants == {}


def test_empty_snapshot_is_oldest_and_knows_nothing() -> None:
    empty = Snapshot.empty()
    assert (empty.version, empty.topics, empty.participants, empty.flows) == (0, (), {}, {})


_ids = st.lists(st.integers(1, 30), max_size=4).map(tuple)


@given(
    partitions=st.lists(st.integers(0, 99), max_size=6),
    rows=st.lists(st.tuples(st.integers(-1, 30), _ids, _ids), min_size=6, max_size=6),
)
def test_copying_matches_the_rows_and_lists_are_in_kafkas_order(partitions: list[int], rows: list[Row]) -> None:
    """For any order of partitions, even with duplicate brokers."""
    leaders, isr, adding = zip(*rows[: len(partitions)], strict=True) if partitions else ((), (), ())
    nothing = tuple(() for _ in partitions)
    copying = TopicReassignment("t", tuple(partitions), leaders, isr, adding, nothing).copying
    copied = [row for row in zip(partitions, leaders, isr, adding, strict=True) if set(row[3]) - set(row[2])]
    assert copying.leaders == {leader for _, leader, _, _ in copied}
    assert copying.followers == {b for _, _, isr, adding in copied for b in adding if b not in isr}
    sending = frozenset(f"{p}:{b}" for p, _, isr, _ in copied for b in isr)
    receiving = frozenset(f"{p}:{b}" for p, _, isr, adding in copied for b in adding if b not in isr)
    assert (copying.leader_replicas.entries, copying.follower_replicas.entries) == (sending, receiving)
    for replicas in (copying.leader_replicas, copying.follower_replicas):
        assert replicas.text == format_replicas(replicas.entries)


ROWS = st.tuples(
    st.sampled_from([NO_LEADER, 1, 2, 3]),
    st.lists(st.integers(1, 5), unique=True, max_size=3),
    st.lists(st.integers(4, 8), unique=True, max_size=2),
)


@given(st.lists(st.lists(ROWS, max_size=4), max_size=3))
def test_flows_and_in_sync_followers_are_those_of_the_rows(
    topics: list[list[tuple[int, list[int], list[int]]]],
) -> None:
    """The columns are merged as a whole, since a loop over 1,000,000 rows takes seconds."""
    snapshot = Snapshot(
        1,
        reassignments=tuple(
            TopicReassignment(
                f"t{number}",
                tuple(range(len(rows))),
                tuple(leader for leader, _, _ in rows),
                tuple(tuple(isr) for _, isr, _ in rows),
                tuple(tuple(adding) for _, _, adding in rows),
                tuple(() for _ in rows),
            )
            for number, rows in enumerate(topics)
        ),
    )
    pending = [
        (leader, max(len(isr) - 1, 0), [b for b in adding if b not in isr])
        for rows in topics
        for leader, isr, adding in rows
        if leader != NO_LEADER
    ]
    assert snapshot.flows == Counter(Flow(leader, b) for leader, _, copies in pending for b in copies)
    expected = {
        leader: sum(f for other, f, copies in pending if copies and other == leader)
        / sum(len(copies) for other, _, copies in pending if other == leader)
        for leader, _, copies in pending
        if any(copies for other, _, copies in pending if other == leader)
    }
    assert snapshot.in_sync_followers == expected
    assert snapshot.uncounted_sides == link_sides_of(snapshot.flows) or any(
        leader == NO_LEADER for rows in topics for leader, _, _ in rows
    )

"""Reassignments that are asked for arrive as they were sent, and what cannot be right does not get through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.errors import Incomplete, Invalid
from autothrottle.core.reassignment import MAX_PARTITIONS, Submitted, Targets
from autothrottle.core.topology import TopicPartition
from autothrottle.v1 import discovery_pb2, types_pb2
from autothrottle.wire.reassignments import (
    partitions_from_messages,
    partitions_from_topics,
    partitions_to_messages,
    partitions_to_topics,
    reassignments_to_list,
    refusals_from_messages,
    refusals_to_messages,
    submitted_from_message,
    submitted_to_message,
    targets_from_messages,
    targets_to_messages,
)
from autothrottle.wire.snapshots import snapshot_from_chunks
from tests import builders
from tests.wire.strategies import int32, text, topic_names

rows = st.tuples(topic_names, int32)
replicas = st.lists(int32, min_size=1, max_size=4, unique=True).map(tuple)


@given(st.dictionaries(rows, replicas, min_size=1, max_size=9))
def test_targets_arrive_as_they_were_sent(wanted: Targets) -> None:
    found = targets_from_messages(targets_to_messages(wanted))
    assert found == wanted and list(found) == list(wanted)


@given(st.lists(rows, unique=True, min_size=1, max_size=9))
def test_partitions_arrive_as_they_were_sent(asked: list[TopicPartition]) -> None:
    assert partitions_from_messages(partitions_to_messages(asked)) == tuple(asked)
    assert set(partitions_from_topics(partitions_to_topics(asked))) == set(asked)
    assert partitions_from_topics([]) == ()


@given(st.dictionaries(rows, text, max_size=4), int32, int32, int32)
def test_what_became_of_it_arrives_as_it_was_sent(
    refused: dict[TopicPartition, str], started: int, moving: int, there: int
) -> None:
    assert refusals_from_messages(refusals_to_messages(refused)) == refused
    submitted = Submitted(started, moving, there, refused)
    assert submitted_from_message(submitted_to_message(submitted)) == submitted


def test_what_can_be_right_in_no_cluster_is_refused() -> None:
    with pytest.raises(Invalid, match="t-0 has an empty list of replicas"):
        targets_from_messages([types_pb2.PartitionTarget(topic="t")])
    with pytest.raises(Invalid, match="partition t-0 is named twice"):
        partitions_from_messages([types_pb2.TopicPartition(topic="t")] * 2)
    with pytest.raises(Invalid, match="partition t-4 is named twice"):
        partitions_from_topics([discovery_pb2.TopicPartitions(topic="t", partitions=[4, 4])])


def test_more_partitions_than_a_cluster_moves_at_a_time_are_refused_unread() -> None:
    many = discovery_pb2.TopicPartitions(topic="t", partitions=[0] * (MAX_PARTITIONS + 1))
    with pytest.raises(Invalid, match="100001 partitions are named; name at most 100000"):
        partitions_from_topics([many])
    with pytest.raises(Invalid, match="100001 partitions are named; name at most 100000"):
        partitions_from_messages([types_pb2.TopicPartition()] * (MAX_PARTITIONS + 1))


def test_a_list_tells_by_topic_what_moves_between_whom_and_what_is_to_be_copied() -> None:
    snapshot = builders.snapshot(
        builders.reassignment("a", {4: (1001, (1001,), (), (1002,))}),
        builders.reassignment(
            "b",
            {
                0: (1001, (1001, 1002), (1004, 1003), (1001,)),
                1: (1001, (1001, 1002, 1003), (1003,), (1002,)),
            },
        ),
    )
    a, b = reassignments_to_list(snapshot).topics
    assert (a.topic, list(a.partitions), list(a.adding_replicas), list(a.removing_replicas)) == ("a", [4], [], [1002])
    assert (b.topic, list(b.partitions), list(b.adding_replicas)) == ("b", [0, 1], [1003, 1004])
    assert list(b.removing_replicas) == [1001, 1002]
    assert (a.partitions_to_copy, b.partitions_to_copy) == (0, 1)


def test_assignments_with_columns_of_unequal_length_are_no_snapshot() -> None:
    uneven = discovery_pb2.TopicAssignment(topic="t", partitions=[0, 1], leaders=[1])
    chunk = discovery_pb2.GetSnapshotResponse(version=1, assignments=[uneven])
    with pytest.raises(Incomplete, match="the column leaders of topic t has 1 values instead of 2"):
        snapshot_from_chunks([chunk])

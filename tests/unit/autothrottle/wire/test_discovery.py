"""Snapshots and progress survive the wire in chunks of any size; malformed columns are refused."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import FOLLOWER_REPLICAS, LEADER_RATE, ConfigResource
from autothrottle.core.cluster.flows import (
    CopiedMark,
    Flow,
    FlowProgress,
    GrowthMark,
    LogGrowth,
    Progress,
    TopicProgress,
)
from autothrottle.core.cluster.snapshot import Snapshot, TopicReassignment
from autothrottle.core.errors import Incomplete
from autothrottle.v1 import discovery_pb2
from autothrottle.v1.discovery_pb2 import GetSnapshotResponse
from autothrottle.v1.discovery_pb2 import Progress as ProgressMessage
from autothrottle.wire.discovery import (
    NO_SNAPSHOT,
    NamedSnapshot,
    named_snapshot_from_chunks,
    progress_from_message,
    progress_to_messages,
    reassignment_to_message,
    snapshot_to_chunks,
)
from tests import builders
from tests.builders import NOON, snapshot_from_chunks
from tests.examples import examples
from tests.unit.autothrottle.wire.strategies import progresses, snapshots

K = TypeVar("K")
V = TypeVar("V")


def sent(
    snapshot: Snapshot, partitions_per_chunk: int = 20_000, name: str = "", base: NamedSnapshot = NO_SNAPSHOT
) -> list[GetSnapshotResponse]:
    """Serialize and parse the chunks of a snapshot."""
    return parsed(snapshot_to_chunks(snapshot, partitions_per_chunk, name, base))


def parsed(chunks: Iterable[GetSnapshotResponse]) -> list[GetSnapshotResponse]:
    return [GetSnapshotResponse.FromString(chunk.SerializeToString()) for chunk in chunks]


@st.composite
def later(draw: st.DrawFn, base: Snapshot) -> Snapshot:
    """A later snapshot, which shares some values with `base`."""
    other = draw(snapshots())

    def some(values: Mapping[K, V]) -> dict[K, V]:
        return {key: value for key, value in values.items() if draw(st.booleans())}

    reassignments = some({r.topic: r for r in base.reassignments}) | some({r.topic: r for r in other.reassignments})
    return replace(
        other,
        reassignments=tuple(reassignments[topic] for topic in sorted(reassignments)),
        throttles=some(base.throttles) | some(other.throttles),
        ledger=some(base.ledger) | some(other.ledger),
        unreadable_configs=some(base.unreadable_configs) | some(other.unreadable_configs),
    )


def reassigning(partitions: int, topic: str = "t1") -> Snapshot:
    rows: dict[int, builders.Row] = {p: (1001 + p % 3, (1001, 1002, 1003), (1004,), (1001,)) for p in range(partitions)}
    return builders.snapshot(builders.reassignment(topic, rows), version=7)


@given(snapshot=snapshots(), partitions_per_chunk=st.integers(1, 12))
def test_snapshot_round_trips_in_chunks_of_any_size(snapshot: Snapshot, partitions_per_chunk: int) -> None:
    received = snapshot_from_chunks(sent(snapshot, partitions_per_chunk))
    assert received == snapshot
    assert list(received.replicas) == list(snapshot.replicas)


def test_large_topic_is_split_and_joined() -> None:
    chunks = sent(reassigning(10), partitions_per_chunk=4)
    assert [len(c.reassignments[0].partitions) for c in chunks] == [4, 4, 2]
    assert [c.reassignments[0].topic for c in chunks] == ["t1"] * 3
    assert snapshot_from_chunks(chunks) == reassigning(10)


def test_broker_without_replicas_differs_from_an_unlisted_broker() -> None:
    snapshot = builders.snapshot(replicas={1001: {}, 1002: {"t": ()}})
    assert snapshot_from_chunks(sent(snapshot)).replicas == {1001: {}, 1002: {"t": ()}}


def test_resource_without_throttles_is_absent_after_the_round_trip() -> None:
    snapshot = builders.snapshot(throttles={"brokers/1001": {}})
    assert snapshot_from_chunks(sent(snapshot)).throttles == {}


def test_long_replica_lists_are_spread_over_chunks_of_bounded_size() -> None:
    lists = {f"topics/t{n}": {FOLLOWER_REPLICAS: "1:1001," * 4_000 + "1:1001"} for n in range(100)}
    snapshot = builders.snapshot(throttles=lists)
    chunks = sent(snapshot)
    assert max(chunk.ByteSize() for chunk in chunks) < 400_000
    assert len(chunks) > 5
    assert snapshot_from_chunks(chunks) == snapshot


def test_only_the_first_chunk_has_the_header() -> None:
    chunks = sent(reassigning(10), partitions_per_chunk=4)
    assert [c.version for c in chunks] == [7, 0, 0]
    assert [len(c.broker_ids) for c in chunks] == [4, 0, 0]


def test_stream_without_chunks_is_incomplete() -> None:
    with pytest.raises(Incomplete, match="before its first chunk"):
        snapshot_from_chunks([])


def test_stream_without_its_first_chunk_is_incomplete() -> None:
    chunks = sent(reassigning(10), partitions_per_chunk=4)
    with pytest.raises(Incomplete, match="chunk 1 of a snapshot has version 0"):
        snapshot_from_chunks(chunks[1:])


def test_empty_snapshot_is_refused_and_not_taken_for_an_idle_cluster() -> None:
    with pytest.raises(Incomplete):
        snapshot_from_chunks(sent(Snapshot.empty()))


def test_two_snapshots_in_one_stream_are_refused() -> None:
    with pytest.raises(Incomplete, match="chunk 2 of a snapshot has version 7"):
        snapshot_from_chunks(sent(reassigning(1)) + sent(reassigning(1)))


def test_parts_of_a_topic_that_are_not_together_are_refused() -> None:
    """Each topic is converted as soon as the next one begins."""
    parts = [TopicReassignment(name, (p,), (1,), ((1,),), ((2,),), ((),)) for p, name in enumerate(("t1", "t2", "t1"))]
    messages = [reassignment_to_message(part, slice(1)) for part in parts]
    with pytest.raises(Incomplete, match="the parts of topic t1 are not together"):
        named_snapshot_from_chunks([GetSnapshotResponse(version=1, reassignments=messages)])


@pytest.mark.parametrize("column", ["leaders", "isr_counts", "isr", "adding_counts", "removing_replicas"])
def test_short_column_of_a_reassignment_is_incomplete(column: str) -> None:
    (chunk,) = sent(reassigning(3))
    getattr(chunk.reassignments[0], column).pop()
    with pytest.raises(Incomplete, match=f"the column {column.removesuffix('_replicas')} of topic t1 has"):
        snapshot_from_chunks([chunk])


def test_negative_replica_count_is_incomplete() -> None:
    (chunk,) = sent(reassigning(2))
    chunk.reassignments[0].adding_counts[:] = [-1, 3]
    with pytest.raises(Incomplete):
        snapshot_from_chunks([chunk])


def test_parsing_does_not_change_the_chunks() -> None:
    chunks = sent(reassigning(10), partitions_per_chunk=4)
    assert snapshot_from_chunks(chunks) == snapshot_from_chunks(chunks)


def test_100_000_partitions_round_trip_in_far_less_than_a_cycle() -> None:
    snapshot = reassigning(100_000)
    started = time.process_time()  # CPU time: independent of other load on the machine.
    raw = [chunk.SerializeToString() for chunk in snapshot_to_chunks(snapshot)]
    received = snapshot_from_chunks(map(GetSnapshotResponse.FromString, raw))
    seconds = time.process_time() - started
    assert received == snapshot
    assert sum(map(len, raw)) < 2_500_000
    assert seconds < 3.0  # CPU time; usually about 0.2.


def test_resource_names_round_trip() -> None:
    snapshot = builders.snapshot(throttles={"topics/a.b_c-1": {FOLLOWER_REPLICAS: "*"}})
    assert list(snapshot_from_chunks(sent(snapshot)).throttles) == [ConfigResource.topic("a.b_c-1")]


def test_short_column_of_assignments_is_incomplete() -> None:
    uneven = discovery_pb2.TopicAssignment(topic="t", partitions=[0, 1], leaders=[1])
    chunk = discovery_pb2.GetSnapshotResponse(version=1, assignments=[uneven])
    with pytest.raises(Incomplete, match="the column leaders of topic t has 1 values instead of 2"):
        snapshot_from_chunks([chunk])


# The difference from a known snapshot.


@settings(max_examples=examples(10, 50))
@given(data=st.data(), base=snapshots(), partitions_per_chunk=st.integers(1, 12))
def test_difference_restores_the_whole_snapshot(data: st.DataObject, base: Snapshot, partitions_per_chunk: int) -> None:
    snapshot, known = data.draw(later(base)), NamedSnapshot("a", base)
    received = named_snapshot_from_chunks(sent(snapshot, partitions_per_chunk, "b", known), known)
    assert received == NamedSnapshot("b", snapshot)


@settings(max_examples=examples(10, 50))
@given(data=st.data(), base=snapshots())
def test_unchanged_topics_and_configs_are_not_sent_and_keep_their_objects(data: st.DataObject, base: Snapshot) -> None:
    snapshot, known = data.draw(later(base)), NamedSnapshot("a", base)
    chunks = sent(snapshot, name="b", base=known)
    before = {r.topic: r for r in base.reassignments}
    same = {r.topic for r in snapshot.reassignments if before.get(r.topic) == r}
    assert not same & {r.topic for chunk in chunks for r in chunk.reassignments}
    received = named_snapshot_from_chunks(chunks, known).snapshot
    assert all(r is before[r.topic] for r in received.reassignments if r.topic in same)
    for here, there in ((received.throttles, base.throttles), (received.ledger, base.ledger)):
        named = {config.resource for chunk in chunks for config in chunk.throttles}
        assert all(value is there[resource] for resource, value in here.items() if resource.path not in named)


def test_difference_without_changes_is_one_small_chunk() -> None:
    known = NamedSnapshot("a", reassigning(100_000))
    (chunk,) = sent(replace(known.snapshot, version=8), name="b", base=known)
    assert chunk.ByteSize() < 100
    assert named_snapshot_from_chunks([chunk], known).snapshot == replace(known.snapshot, version=8)


def test_difference_from_an_unknown_snapshot_is_incomplete() -> None:
    chunks = sent(reassigning(2), name="b", base=NamedSnapshot("a", reassigning(1)))
    for known in (NO_SNAPSHOT, NamedSnapshot("c", reassigning(1))):
        with pytest.raises(Incomplete, match="difference from snapshot 'a'"):
            named_snapshot_from_chunks(chunks, known)


def test_whole_snapshot_replaces_a_known_one() -> None:
    known = NamedSnapshot("a", reassigning(3, "t2"))
    assert named_snapshot_from_chunks(sent(reassigning(2), name="b"), known) == NamedSnapshot("b", reassigning(2))


RECORDED_WHOLE = (
    b'\x08\x07\x12\x08\xe9\x07\xea\x07\xeb\x07\xec\x07\x1a"\n\x02t1\x12\x01\x00\x1a\x02\xe9\x07"\x01\x02*\x04\xe9\x07'
    b'\xea\x072\x01\x01:\x02\xeb\x07B\x01\x01J\x02\xea\x07"6\n\x0cbrokers/1001\x12&\n!'
    b"leader.replication.throttled.rate\x12\x015R\x042f6e"
)
RECORDED_DIFFERENCE = b"\x08\x08\x12\x08\xe9\x07\xea\x07\xeb\x07\xec\x07R\x0431aaZ\x042f6eb\x02t1"


def test_recorded_chunks_of_an_earlier_version_are_read_and_written() -> None:
    """The planner and discovery have different versions during an upgrade. Recorded chunks hold the layout."""
    rows: dict[int, builders.Row] = {0: (1001, (1001, 1002), (1003,), (1002,))}
    throttles = {"brokers/1001": {LEADER_RATE: "5"}}
    first = NamedSnapshot("2f6e", builders.snapshot(builders.reassignment("t1", rows), throttles=throttles, version=7))
    second = NamedSnapshot("31aa", builders.snapshot(throttles=throttles, version=8))
    received = named_snapshot_from_chunks([GetSnapshotResponse.FromString(RECORDED_WHOLE)], second)
    assert received == first
    assert named_snapshot_from_chunks([GetSnapshotResponse.FromString(RECORDED_DIFFERENCE)], received) == second
    assert sent(first.snapshot, name="2f6e") == [GetSnapshotResponse.FromString(RECORDED_WHOLE)]
    assert sent(second.snapshot, name="31aa", base=first) == [GetSnapshotResponse.FromString(RECORDED_DIFFERENCE)]


# Progress.

ONE = Progress(
    flows={
        Flow(1001, 1004): FlowProgress(
            30, 5, 70, NOON, NOON - timedelta(minutes=3), (CopiedMark(NOON - timedelta(seconds=2), 10),)
        )
    },
    topics={"t": TopicProgress(30, 70)},
    at=NOON,
    eta=NOON + timedelta(minutes=7),
    growth={
        1001: LogGrowth(9, 20, NOON, NOON - timedelta(minutes=3), (GrowthMark(NOON - timedelta(seconds=2), 4, 5),))
    },
    last_bytes_left={1006: 5_000_000_000},
)


def received_progress(progress: Progress, rows: int) -> ProgressMessage:
    """Serialize, parse and merge the messages of a progress."""
    whole = ProgressMessage()
    for message in progress_to_messages(progress, rows):
        whole.MergeFrom(ProgressMessage.FromString(message.SerializeToString()))
    return whole


@given(progress=progresses, rows=st.integers(1, 4))
def test_progress_round_trips_in_messages_of_any_size(progress: Progress, rows: int) -> None:
    received = progress_from_message(received_progress(progress, rows))
    assert received == progress
    assert list(received.flows) == list(progress.flows)


@pytest.mark.parametrize(
    "column",
    [
        "followers",
        "bytes_copied",
        "bytes_produced",
        "bytes_left",
        "times_us",
        "since_us",
        "recent_counts",
        "recent_ages_us",
        "recent_bytes_before",
        "growth_led",
        "growth_received",
        "growth_times_us",
        "growth_since_us",
        "growth_recent_counts",
        "growth_recent_ages_us",
        "growth_recent_led_before",
        "growth_recent_received_before",
    ],
)
def test_short_column_of_flows_or_brokers_is_incomplete(column: str) -> None:
    message = received_progress(ONE, 10)
    getattr(message, column).pop()
    with pytest.raises(Incomplete, match=f"the column {column} of the progress has 0 values instead of 1"):
        progress_from_message(message)


@pytest.mark.parametrize("column", ["topic_bytes_copied", "topic_bytes_left"])
def test_short_column_of_topics_is_incomplete(column: str) -> None:
    message = received_progress(ONE, 10)
    getattr(message, column).pop()
    with pytest.raises(Incomplete, match=f"the column {column} of the progress has 0 values instead of 1"):
        progress_from_message(message)


def test_progress_without_a_read_differs_from_absent_progress() -> None:
    def received(progress: Progress | None) -> Progress | None:
        chunks = snapshot_to_chunks(builders.snapshot(progress=progress))
        return snapshot_from_chunks(GetSnapshotResponse.FromString(c.SerializeToString()) for c in chunks).progress

    assert received(Progress()) == Progress()
    assert received(None) is None


def test_10_000_flows_are_spread_over_chunks_of_bounded_size() -> None:
    count = FlowProgress(2**40, 2**40, 2**40, NOON, NOON)
    flows = {Flow(leader, follower): count for leader in range(100) for follower in range(1000, 1100)}
    snapshot = builders.snapshot(
        progress=Progress(flows, {f"topic-{n}": TopicProgress(1, 1) for n in range(1000)}, NOON)
    )
    chunks = list(snapshot_to_chunks(snapshot))
    assert max(chunk.ByteSize() for chunk in chunks) < 400_000
    assert snapshot_from_chunks(chunks) == snapshot

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.configs import FOLLOWER_REPLICAS, ConfigResource
from autothrottle.core.errors import Incomplete
from autothrottle.core.topology import Snapshot
from autothrottle.v1.discovery_pb2 import GetSnapshotResponse
from autothrottle.wire.snapshots import (
    UNKNOWN,
    NamedSnapshot,
    Told,
    named_snapshot_from_chunks,
    snapshot_from_chunks,
    snapshot_to_chunks,
)
from tests import builders
from tests.wire.strategies import snapshots

K = TypeVar("K")
V = TypeVar("V")


def sent(
    snapshot: Snapshot, partitions_per_chunk: int = 20_000, name: str = "", base: NamedSnapshot = UNKNOWN
) -> list[GetSnapshotResponse]:
    """The chunks as they come out of the wire."""
    chunks = snapshot_to_chunks(snapshot, partitions_per_chunk, name, base)
    return [GetSnapshotResponse.FromString(chunk.SerializeToString()) for chunk in chunks]


@st.composite
def later(draw: st.DrawFn, base: Snapshot) -> Snapshot:
    """Another snapshot, some of which is as it is in a first one."""
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


def moving(partitions: int, topic: str = "t1") -> Snapshot:
    rows: dict[int, builders.Row] = {p: (1001 + p % 3, (1001, 1002, 1003), (1004,), (1001,)) for p in range(partitions)}
    return builders.snapshot(builders.reassignment(topic, rows), version=7)


@given(snapshot=snapshots(), partitions_per_chunk=st.integers(1, 12))
def test_a_snapshot_arrives_as_it_was_sent_however_it_is_cut(snapshot: Snapshot, partitions_per_chunk: int) -> None:
    arrived = snapshot_from_chunks(sent(snapshot, partitions_per_chunk))
    assert arrived == snapshot
    assert list(arrived.replicas) == list(snapshot.replicas)


def test_a_large_topic_is_split_and_joined_again() -> None:
    chunks = sent(moving(10), partitions_per_chunk=4)
    assert [len(c.reassignments[0].partitions) for c in chunks] == [4, 4, 2]
    assert [c.reassignments[0].topic for c in chunks] == ["t1"] * 3
    assert snapshot_from_chunks(chunks) == moving(10)


def test_a_broker_that_was_asked_for_and_holds_nothing_is_not_an_unknown_broker() -> None:
    snapshot = builders.snapshot(replicas={1001: {}, 1002: {"t": ()}})
    assert snapshot_from_chunks(sent(snapshot)).replicas == {1001: {}, 1002: {"t": ()}}


def test_no_throttle_on_a_resource_arrives_as_the_absence_that_it_means() -> None:
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
    chunks = sent(moving(10), partitions_per_chunk=4)
    assert [c.version for c in chunks] == [7, 0, 0]
    assert [len(c.broker_ids) for c in chunks] == [4, 0, 0]


def test_a_stream_without_any_chunk_is_incomplete() -> None:
    with pytest.raises(Incomplete, match="before its first chunk"):
        snapshot_from_chunks([])


def test_a_stream_that_lost_its_first_chunk_is_incomplete() -> None:
    chunks = sent(moving(10), partitions_per_chunk=4)
    with pytest.raises(Incomplete, match="chunk 1 of a snapshot has version 0"):
        snapshot_from_chunks(chunks[1:])


def test_the_empty_snapshot_of_which_nothing_is_known_is_never_taken_for_an_idle_cluster() -> None:
    with pytest.raises(Incomplete):
        snapshot_from_chunks(sent(Snapshot.empty()))


def test_two_snapshots_in_one_stream_are_not_mixed() -> None:
    with pytest.raises(Incomplete, match="chunk 2 of a snapshot has version 7"):
        snapshot_from_chunks(sent(moving(1)) + sent(moving(1)))


@pytest.mark.parametrize("column", ["leaders", "isr_counts", "isr", "adding_counts", "removing_replicas"])
def test_a_column_that_is_too_short_is_incomplete(column: str) -> None:
    (chunk,) = sent(moving(3))
    getattr(chunk.reassignments[0], column).pop()
    with pytest.raises(Incomplete, match=f"the column {column.removesuffix('_replicas')} of topic t1 has"):
        snapshot_from_chunks([chunk])


def test_a_negative_count_does_not_shift_replicas_between_partitions() -> None:
    (chunk,) = sent(moving(2))
    chunk.reassignments[0].adding_counts[:] = [-1, 3]
    with pytest.raises(Incomplete):
        snapshot_from_chunks([chunk])


def test_what_was_received_is_not_changed_by_reading_it() -> None:
    chunks = sent(moving(10), partitions_per_chunk=4)
    assert snapshot_from_chunks(chunks) == snapshot_from_chunks(chunks)


def test_100_000_moving_partitions_take_far_less_than_a_cycle() -> None:
    snapshot = moving(100_000)
    started = time.process_time()  # Not what else the machine does meanwhile.
    raw = [chunk.SerializeToString() for chunk in snapshot_to_chunks(snapshot)]
    arrived = snapshot_from_chunks(map(GetSnapshotResponse.FromString, raw))
    seconds = time.process_time() - started
    assert arrived == snapshot
    assert sum(map(len, raw)) < 2_500_000
    assert seconds < 3.0  # Of our own time, which a busy machine does not stretch much: about 0.2.


def test_resources_keep_their_names() -> None:
    snapshot = builders.snapshot(throttles={"topics/a.b_c-1": {FOLLOWER_REPLICAS: "*"}})
    assert list(snapshot_from_chunks(sent(snapshot)).throttles) == [ConfigResource.topic("a.b_c-1")]


# The difference from a snapshot that is known.


@settings(max_examples=50)
@given(data=st.data(), base=snapshots(), partitions_per_chunk=st.integers(1, 12))
def test_a_difference_arrives_as_the_whole_snapshot_that_it_stands_for(
    data: st.DataObject, base: Snapshot, partitions_per_chunk: int
) -> None:
    snapshot, known = data.draw(later(base)), NamedSnapshot("a", base)
    arrived = named_snapshot_from_chunks(sent(snapshot, partitions_per_chunk, "b", known), known)
    assert arrived == NamedSnapshot("b", snapshot)


@settings(max_examples=50)
@given(data=st.data(), base=snapshots())
def test_what_did_not_change_is_neither_sent_nor_made_anew(data: st.DataObject, base: Snapshot) -> None:
    snapshot, known = data.draw(later(base)), NamedSnapshot("a", base)
    chunks = sent(snapshot, name="b", base=known)
    before = {r.topic: r for r in base.reassignments}
    same = {r.topic for r in snapshot.reassignments if before.get(r.topic) == r}
    assert not same & {r.topic for chunk in chunks for r in chunk.reassignments}
    arrived = named_snapshot_from_chunks(chunks, known).snapshot
    assert all(r is before[r.topic] for r in arrived.reassignments if r.topic in same)
    for here, there in ((arrived.throttles, base.throttles), (arrived.ledger, base.ledger)):
        named = {config.resource for chunk in chunks for config in chunk.throttles}
        assert all(value is there[resource] for resource, value in here.items() if resource.path not in named)


def test_nothing_changed_is_one_chunk_of_a_few_bytes() -> None:
    known = NamedSnapshot("a", moving(100_000))
    (chunk,) = sent(replace(known.snapshot, version=8), name="b", base=known)
    assert chunk.ByteSize() < 100
    assert named_snapshot_from_chunks([chunk], known).snapshot == replace(known.snapshot, version=8)


@settings(max_examples=20)
@given(data=st.data(), base=snapshots(), read=snapshots(), partitions_per_chunk=st.integers(1, 12))
def test_what_was_told_early_is_not_told_again_and_what_became_of_it_is(
    data: st.DataObject, base: Snapshot, read: Snapshot, partitions_per_chunk: int
) -> None:
    known, snapshot = data.draw(st.sampled_from([UNKNOWN, NamedSnapshot("a", base)])), data.draw(later(read))
    told, chunks = Told(known), []
    for moves in (read.reassignments[:1], read.reassignments):
        chunks += [
            GetSnapshotResponse.FromString(c.SerializeToString()) for c in told.early(moves, partitions_per_chunk)
        ]
    early = [message.topic for chunk in chunks for message in chunk.early]
    assert early == [r.topic for r in read.reassignments if len(r.partitions) <= partitions_per_chunk]
    rest = sent(snapshot, partitions_per_chunk, "b", told.base)
    assert named_snapshot_from_chunks([*chunks, *rest], known) == NamedSnapshot("b", snapshot)
    unchanged = {r.topic for r in snapshot.reassignments if r in read.reassignments and r.topic in early}
    assert not unchanged & {message.topic for chunk in rest for message in chunk.reassignments}


def test_what_comes_early_after_the_snapshot_has_begun_is_refused() -> None:
    chunks = [*sent(moving(2)), *Told(UNKNOWN).early(moving(2).reassignments)]
    with pytest.raises(Incomplete, match="chunk 2 of a snapshot holds what comes early"):
        snapshot_from_chunks(chunks)


def test_the_difference_from_another_snapshot_than_the_known_one_is_incomplete() -> None:
    chunks = sent(moving(2), name="b", base=NamedSnapshot("a", moving(1)))
    for known in (UNKNOWN, NamedSnapshot("c", moving(1))):
        with pytest.raises(Incomplete, match="difference from snapshot 'a'"):
            named_snapshot_from_chunks(chunks, known)


def test_a_whole_snapshot_is_taken_as_it_is_by_whoever_knows_another() -> None:
    known = NamedSnapshot("a", moving(3, "t2"))
    assert named_snapshot_from_chunks(sent(moving(2), name="b"), known) == NamedSnapshot("b", moving(2))

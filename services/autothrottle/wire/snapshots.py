"""Snapshots to a stream of chunks and back, columns all the way: 100,000 moving partitions are normal.

An empty mapping of throttles arrives as an absent one, which means the same. A chunk is bounded, so that no
snapshot is too large for a message. gRPC itself says when a stream breaks off; one that ended well and
yet is no snapshot is noticed here.

Whoever still has an earlier snapshot is told the difference only. What did not change is the same object in both, so
that nobody thinks about it twice. The type to know is `NamedSnapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autothrottle.core.configs import ConfigResource
from autothrottle.core.errors import Incomplete
from autothrottle.core.ledger import LedgerEntry
from autothrottle.core.topology import Assignment, Problem, Snapshot, TopicPartition, TopicReassignment
from autothrottle.v1 import discovery_pb2
from autothrottle.v1.discovery_pb2 import GetSnapshotResponse
from autothrottle.wire.changes import ledger_from_message, ledger_to_message
from autothrottle.wire.partition_columns import (
    assignments_from_message,
    assignments_to_messages,
    reassignment_from_parts,
    reassignment_to_message,
    slices,
)
from autothrottle.wire.progress import progress_from_message, progress_to_messages

_BYTES_PER_PARTITION = 16
"""What a partition takes in a chunk; configs and problems are weighed by it too."""

_PARTITIONS_PER_FLOW = 4
"""A flow's progress takes as much as so many partitions."""

_Piece = tuple[int, GetSnapshotResponse]
"""A part of a chunk, and its weight in partitions, > 0."""


@dataclass(frozen=True, slots=True)
class NamedSnapshot:
    """A snapshot as one replica of discovery and a client of it know it."""

    name: str = ""
    """Unlike that of any other snapshot; "": nobody knows it by a name."""
    snapshot: Snapshot = Snapshot.empty()  # noqa: RUF009 (frozen)


UNKNOWN = NamedSnapshot()
"""Of which nothing is known: the difference from it is a whole snapshot."""


def snapshot_to_chunks(
    snapshot: Snapshot, partitions_per_chunk: int = 20_000, name: str = "", base: NamedSnapshot = UNKNOWN
) -> Iterator[GetSnapshotResponse]:
    """Yield the chunks that together are one snapshot; the first has the header.

    Args:
        snapshot: of version 1 or later; the empty one, of which nothing is known, is refused there.
        partitions_per_chunk: how many partitions, or what takes as much, one chunk holds at most, > 0.
        name: how the snapshot is called from now on.
        base: what the other side has already; only what is different is sent.
    """
    chunk, weight = _header(snapshot, name, base), 0
    for piece_weight, piece in _pieces(snapshot, base.snapshot, partitions_per_chunk):
        if weight and weight + piece_weight > partitions_per_chunk:
            yield chunk
            chunk, weight = GetSnapshotResponse(), 0
        chunk.MergeFrom(piece)
        weight += piece_weight
    yield chunk


class Told:
    """What the other side has of a snapshot that it is going to get."""

    def __init__(self, base: NamedSnapshot) -> None:
        """Begin with a snapshot that it has."""
        self._base, self._moves = base, {r.topic: r for r in base.snapshot.reassignments}

    @property
    def base(self) -> NamedSnapshot:
        """What it has by now: the snapshot is told as the difference from this."""
        return _with_moves(self._base, self._moves)

    def early(
        self, moves: Iterable[TopicReassignment], partitions_per_chunk: int = 20_000
    ) -> Iterator[GetSnapshotResponse]:
        """Yield the chunks that tell it these as well; what it has already, and what is too large for one, is left out.

        Args:
            moves: the same object for as long as it is the same.
            partitions_per_chunk: how many partitions one chunk holds at most, > 0.
        """
        chunk, weight = GetSnapshotResponse(), 0
        for move in moves:
            size = max(1, len(move.partitions))
            if self._moves.get(move.topic) is move or size > partitions_per_chunk:
                continue
            if weight and weight + size > partitions_per_chunk:
                yield chunk
                chunk, weight = GetSnapshotResponse(), 0
            chunk.early.append(reassignment_to_message(move, slice(None)))
            weight += size
            self._moves[move.topic] = move
        if weight:
            yield chunk


def _with_moves(named: NamedSnapshot, moves: Mapping[str, TopicReassignment]) -> NamedSnapshot:
    return replace(named, snapshot=replace(named.snapshot, reassignments=tuple(moves.values())))


def _header(snapshot: Snapshot, name: str, base: NamedSnapshot) -> GetSnapshotResponse:
    return GetSnapshotResponse(
        version=snapshot.version,
        broker_ids=sorted(snapshot.brokers),
        default_throttles=snapshot.default_throttles,
        name=name,
        base_name=base.name,
        ended_topics=sorted(set(base.snapshot.topics) - set(snapshot.topics)),
        presumed_topics=sorted(snapshot.presumed),
    )


def _pieces(snapshot: Snapshot, base: Snapshot, limit: int) -> Iterator[_Piece]:
    known = {reassignment.topic: reassignment for reassignment in base.reassignments}
    for reassignment in snapshot.reassignments:
        if not _is_same(reassignment, known.get(reassignment.topic)):
            for part in slices(len(reassignment.partitions), limit):
                message = reassignment_to_message(reassignment, part)
                yield max(1, len(message.partitions)), GetSnapshotResponse(reassignments=[message])
    for resource in _changed_configs(snapshot, base):
        config = _config_to_message(snapshot, resource)
        yield _weight(config), GetSnapshotResponse(throttles=[config])
    for broker_id, topics in snapshot.replicas.items():
        for listed in _replicas_to_messages(broker_id, topics, limit):
            yield max(1, len(listed.partitions)), GetSnapshotResponse(replicas=[listed])
    for placed in assignments_to_messages(snapshot.assignments, limit):
        yield len(placed.partitions), GetSnapshotResponse(assignments=[placed])
    for problem in snapshot.problems:
        named = discovery_pb2.Problem(path=problem.path, reason=problem.reason)
        yield _weight(named), GetSnapshotResponse(problems=[named])
    if snapshot.progress is not None:
        for columns in progress_to_messages(snapshot.progress, max(1, limit // _PARTITIONS_PER_FLOW)):
            yield _weight(columns), GetSnapshotResponse(progress=columns)


def _is_same(value: object, other: object) -> bool:
    """Whether two values are equal, known at once where they are one object."""
    return value is other or value == other


def _changed_configs(snapshot: Snapshot, base: Snapshot) -> list[ConfigResource]:
    return sorted(
        {
            resource
            for here, there in (
                (snapshot.throttles, base.throttles),
                (snapshot.ledger, base.ledger),
                (snapshot.unreadable_configs, base.unreadable_configs),
            )
            for resource in here.keys() | there.keys()
            if not _is_same(here.get(resource), there.get(resource))
        }
    )


def _weight(message: discovery_pb2.ResourceThrottles | discovery_pb2.Problem | discovery_pb2.Progress) -> int:
    return 1 + message.ByteSize() // _BYTES_PER_PARTITION


def _replicas_to_messages(
    broker_id: int, topics: Mapping[str, tuple[int, ...]], limit: int
) -> Iterator[discovery_pb2.BrokerReplicas]:
    """A broker without replicas has one message without a topic: it was asked for and holds nothing."""
    for topic, partitions in topics.items() or [("", ())]:
        for part in slices(len(partitions), limit):
            yield discovery_pb2.BrokerReplicas(broker_id=broker_id, topic=topic, partitions=partitions[part])


def _config_to_message(snapshot: Snapshot, resource: ConfigResource) -> discovery_pb2.ResourceThrottles:
    ledger, unreadable = snapshot.ledger.get(resource), snapshot.unreadable_configs.get(resource)
    return discovery_pb2.ResourceThrottles(
        resource=resource.path,
        values=snapshot.throttles.get(resource, {}),
        ledger=None if ledger is None else ledger_to_message(ledger),
        unreadable_path=unreadable.path if unreadable else "",
        unreadable_reason=unreadable.reason if unreadable else "",
    )


def snapshot_from_chunks(chunks: Iterable[GetSnapshotResponse]) -> Snapshot:
    """Return the snapshot that a stream of chunks holds as a whole.

    Raises:
        Incomplete: when the chunks are not one whole snapshot.
    """
    return named_snapshot_from_chunks(chunks).snapshot


def named_snapshot_from_chunks(chunks: Iterable[GetSnapshotResponse], known: NamedSnapshot = UNKNOWN) -> NamedSnapshot:
    """Return the snapshot that a stream of chunks holds, whole or as the difference from the one that is known.

    Raises:
        Incomplete: when the chunks are not one whole snapshot, or the difference from another one.
    """
    header, base = GetSnapshotResponse(), UNKNOWN.snapshot
    parts: dict[str, list[discovery_pb2.TopicReassignment]] = {}
    throttles: dict[ConfigResource, Mapping[str, str]] = {}
    ledger: dict[ConfigResource, LedgerEntry] = {}
    unreadable: dict[ConfigResource, Problem] = {}
    replicas: dict[int, dict[str, tuple[int, ...]]] = {}
    assignments: dict[TopicPartition, Assignment] = {}
    problems: list[Problem] = []
    progress: discovery_pb2.Progress | None = None
    early: dict[str, TopicReassignment] = {}
    for number, chunk in enumerate(_after_early(chunks, early)):
        if bool(chunk.version > 0) is not (number == 0):
            raise _not_one_snapshot(number, chunk.version)
        if number == 0:
            header, base = chunk, _base(chunk, known, early)
            throttles, ledger = dict(base.throttles), dict(base.ledger)
            unreadable = dict(base.unreadable_configs)
        for reassignment in chunk.reassignments:
            parts.setdefault(reassignment.topic, []).append(reassignment)
        for config in chunk.throttles:
            _take_config(config, throttles, ledger, unreadable)
        for listed in chunk.replicas:
            _take_replicas(listed, replicas.setdefault(listed.broker_id, {}))
        for placed in chunk.assignments:
            assignments.update(assignments_from_message(placed))
        problems += (Problem(p.path, p.reason) for p in chunk.problems)
        if chunk.HasField("progress"):
            progress = progress or discovery_pb2.Progress()
            progress.MergeFrom(chunk.progress)
    if header.version == 0:
        raise Incomplete("the stream of a snapshot ended before its first chunk; ask for the snapshot again")
    snapshot = Snapshot(
        version=header.version,
        brokers=frozenset(header.broker_ids),
        reassignments=_reassignments(base, header.ended_topics, parts),
        throttles=throttles,
        default_throttles=dict(header.default_throttles),
        ledger=ledger,
        replicas=replicas,
        assignments=assignments,
        unreadable_configs=unreadable,
        problems=tuple(problems),
        presumed=frozenset(header.presumed_topics),
        progress=None if progress is None else progress_from_message(progress),
    )
    return NamedSnapshot(header.name, snapshot)


def _after_early(
    chunks: Iterable[GetSnapshotResponse], early: dict[str, TopicReassignment]
) -> Iterator[GetSnapshotResponse]:
    """Yield the snapshot's own chunks; `early` takes what comes before them."""
    is_begun = False
    for number, chunk in enumerate(chunks):
        if not chunk.early:
            is_begun = True
            yield chunk
            continue
        if is_begun:
            raise Incomplete(f"chunk {number + 1} of a snapshot holds what comes early; ask for the snapshot again")
        for message in chunk.early:
            early[message.topic] = found = reassignment_from_parts(message.topic, [message])
            _ = found.copying  # Worked out while the other side still reads.


def _base(header: GetSnapshotResponse, known: NamedSnapshot, early: Mapping[str, TopicReassignment]) -> Snapshot:
    """The snapshot that a stream tells the difference from."""
    named = _named_base(header, known)
    if not early:
        return named.snapshot
    return _with_moves(named, {**{r.topic: r for r in named.snapshot.reassignments}, **early}).snapshot


def _named_base(header: GetSnapshotResponse, known: NamedSnapshot) -> NamedSnapshot:
    if not header.base_name:
        return UNKNOWN
    if header.base_name != known.name:
        raise Incomplete(
            f"the stream tells the difference from snapshot {header.base_name!r}, and {known.name!r} is known; "
            "ask for the whole snapshot"
        )
    return known


def _reassignments(
    base: Snapshot, ended: Iterable[str], parts: Mapping[str, Sequence[discovery_pb2.TopicReassignment]]
) -> tuple[TopicReassignment, ...]:
    moving = {reassignment.topic: reassignment for reassignment in base.reassignments}
    for topic in ended:
        moving.pop(topic, None)
    moving.update((topic, reassignment_from_parts(topic, found)) for topic, found in parts.items())
    return tuple(reassignment for _, reassignment in sorted(moving.items()))


def _not_one_snapshot(number: int, version: int) -> Incomplete:
    return Incomplete(
        f"chunk {number + 1} of a snapshot has version {version}; the first needs one > 0 and no other has "
        "one: ask for the snapshot again"
    )


def _take_config(
    message: discovery_pb2.ResourceThrottles,
    throttles: dict[ConfigResource, Mapping[str, str]],
    ledger: dict[ConfigResource, LedgerEntry],
    unreadable: dict[ConfigResource, Problem],
) -> None:
    resource = ConfigResource(message.resource)
    for known in (throttles, ledger, unreadable):
        known.pop(resource, None)
    if message.values:
        throttles[resource] = dict(message.values)
    if message.HasField("ledger"):
        ledger[resource] = ledger_from_message(message.ledger)
    if message.unreadable_path or message.unreadable_reason:
        unreadable[resource] = Problem(message.unreadable_path, message.unreadable_reason)


def _take_replicas(message: discovery_pb2.BrokerReplicas, topics: dict[str, tuple[int, ...]]) -> None:
    if message.topic:
        topics[message.topic] = topics.get(message.topic, ()) + tuple(message.partitions)

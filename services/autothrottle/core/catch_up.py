"""Brokers that catch up under throttle: bootstrapped ones, and those that were away.

What such a broker lacks is throttled as if it were being moved there: to everybody who decides, its replicas that are
not in sync look like a reassignment to it. The type to know is `CatchUp`.

Source: KIP-73 (question 2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from autothrottle.core.flows import Flow, ports_of
from autothrottle.core.topology import Assignment, Snapshot, TopicPartition, TopicReassignment


@dataclass(frozen=True, slots=True)
class CatchUp:
    """That a broker shall catch up under throttle, with who said so."""

    broker_id: int
    """> 0."""
    author: str = ""
    """Who asked for it; empty when unknown."""
    time: datetime | None = None
    """When, UTC; None: unknown."""


Lagging = Mapping[int, Collection[TopicPartition]]
"""Broker id -> its replicas that are not in sync, and that nothing moves."""

NOTHING_LAGS: Lagging = {}


def held_partitions(snapshot: Snapshot, broker_ids: Collection[int]) -> frozenset[TopicPartition]:
    """Return the partitions with a replica on one of these brokers, of which the snapshot must list the replicas."""
    return frozenset(
        (topic, partition)
        for broker_id in broker_ids
        for topic, partitions in snapshot.replicas.get(broker_id, {}).items()
        for partition in partitions
    )


def lagging(
    assignments: Mapping[TopicPartition, Assignment], broker_ids: Collection[int]
) -> Mapping[int, frozenset[TopicPartition]]:
    """Return broker id -> its replicas that are not in sync; what is being moved to it is not among them.

    Args:
        assignments: of their partitions, and any others.
        broker_ids: the brokers that catch up.
    """
    found: dict[int, set[TopicPartition]] = {broker_id: set() for broker_id in broker_ids}
    for row, assignment in assignments.items():
        for broker_id in found.keys() & set(assignment.replicas):
            if broker_id not in assignment.isr and broker_id not in _moving(assignment):
                found[broker_id].add(row)
    return {broker_id: frozenset(rows) for broker_id, rows in found.items()}


def _moving(assignment: Assignment) -> tuple[int, ...]:
    """The replicas that a reassignment brings or takes: these are its own business."""
    return (*assignment.adding_replicas, *assignment.removing_replicas)


def with_lagging(snapshot: Snapshot, lags: Lagging) -> Snapshot:
    """Return the cluster as if the lagging replicas were being moved to their brokers."""
    moves = moves_with_lagging(snapshot.reassignments, lags, snapshot.assignments)
    if moves is snapshot.reassignments:
        return snapshot
    copying = {Flow(snapshot.assignments[row].leader, broker_id) for broker_id, rows in lags.items() for row in rows}
    return replace(snapshot, reassignments=moves, catching_up=ports_of(copying))


def moves_with_lagging(
    moves: tuple[TopicReassignment, ...], lags: Lagging, assignments: Mapping[TopicPartition, Assignment]
) -> tuple[TopicReassignment, ...]:
    """Return what moves, by topic, as if the lagging replicas were being moved to their brokers.

    Leader and in-sync replicas are as they are; a partition that moves has the replica added to those that it awaits.

    Args:
        moves: what does move; returned as it is when nothing lags.
        lags: what brokers lack.
        assignments: of the partitions of these at least.
    """
    pending: dict[str, dict[int, set[int]]] = {}
    for broker_id, rows in lags.items():
        for topic, partition in rows:
            pending.setdefault(topic, {}).setdefault(partition, set()).add(broker_id)
    if not pending:
        return moves
    real = {move.topic: move for move in moves}
    made = {topic: _with(topic, real.get(topic), found, assignments) for topic, found in pending.items()}
    merged = {**real, **made}
    return tuple(merged[topic] for topic in sorted(merged))


def _with(
    topic: str,
    real: TopicReassignment | None,
    pending: Mapping[int, set[int]],
    assignments: Mapping[TopicPartition, Assignment],
) -> TopicReassignment:
    """The columns of what moves, with what lags."""
    rows = dict(_columns(real))
    for partition, brokers in pending.items():
        standing = assignments[topic, partition]
        leader, isr, adding, removing = rows.get(partition, (standing.leader, standing.isr, (), ()))
        rows[partition] = (leader, isr, (*adding, *sorted(brokers.difference(adding))), removing)
    ordered = sorted(rows)
    return TopicReassignment(
        topic=topic,
        partitions=tuple(ordered),
        leaders=tuple(rows[p][0] for p in ordered),
        isr=tuple(rows[p][1] for p in ordered),
        adding_replicas=tuple(rows[p][2] for p in ordered),
        removing_replicas=tuple(rows[p][3] for p in ordered),
    )


def _columns(
    real: TopicReassignment | None,
) -> Iterable[tuple[int, tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]]:
    if real is None:
        return ()
    columns = zip(real.leaders, real.isr, real.adding_replicas, real.removing_replicas, strict=True)
    return zip(real.partitions, columns, strict=True)

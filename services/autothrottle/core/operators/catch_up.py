"""Brokers that catch up under a throttle: new, empty brokers, and brokers that were down.

The missing data of such a broker is throttled like a reassignment: all decisions see its out-of-sync replicas as adding
replicas. The type to know is `CatchUp`.

Source: KIP-73 (question 2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from autothrottle.core.cluster.flows import Flow, link_sides_of
from autothrottle.core.cluster.snapshot import Assignment, Snapshot, TopicPartition, TopicReassignment

Lagging = Mapping[int, Collection[TopicPartition]]
"""Broker id -> its replicas that are out of sync and not part of a reassignment."""

NOTHING_LAGS: Lagging = {}


def partitions_on(snapshot: Snapshot, broker_ids: Collection[int]) -> frozenset[TopicPartition]:
    """Return the partitions with a replica on one of these brokers.

    `snapshot.replicas` must contain these brokers.
    """
    return frozenset(
        (topic, partition)
        for broker_id in broker_ids
        for topic, partitions in snapshot.replicas.get(broker_id, {}).items()
        for partition in partitions
    )


def lagging(
    assignments: Mapping[TopicPartition, Assignment], broker_ids: Collection[int]
) -> Mapping[int, frozenset[TopicPartition]]:
    """Return broker id -> its out-of-sync replicas, without those that a reassignment adds or removes.

    Args:
        assignments: the assignments of the brokers' partitions; may contain others.
        broker_ids: the brokers that catch up.
    """
    found: dict[int, set[TopicPartition]] = {broker_id: set() for broker_id in broker_ids}
    for row, assignment in assignments.items():
        for broker_id in found.keys() & set(assignment.replicas):
            moving = (*assignment.adding_replicas, *assignment.removing_replicas)
            if broker_id not in assignment.isr and broker_id not in moving:
                found[broker_id].add(row)
    return {broker_id: frozenset(rows) for broker_id, rows in found.items()}


def with_lagging(snapshot: Snapshot, lags: Lagging) -> Snapshot:
    """Return the snapshot with the lagging replicas shown as adding replicas."""
    reassignments = reassignments_with_lagging(snapshot.reassignments, lags, snapshot.assignments)
    if reassignments is snapshot.reassignments:
        return snapshot
    copying = {Flow(snapshot.assignments[row].leader, broker_id) for broker_id, rows in lags.items() for row in rows}
    return replace(snapshot, reassignments=reassignments, catching_up=link_sides_of(copying))


def reassignments_with_lagging(
    reassignments: tuple[TopicReassignment, ...], lags: Lagging, assignments: Mapping[TopicPartition, Assignment]
) -> tuple[TopicReassignment, ...]:
    """Return the reassignments by topic, with the lagging replicas shown as adding replicas.

    Leaders and ISRs stay. If a partition is already in reassignment, the lagging replica joins its adding replicas.

    Args:
        reassignments: the actual reassignments; returned unchanged if nothing lags.
        lags: the lagging replicas of each broker.
        assignments: assignments of at least the lagging partitions.
    """
    pending: dict[str, dict[int, set[int]]] = {}
    for broker_id, rows in lags.items():
        for topic, partition in rows:
            pending.setdefault(topic, {}).setdefault(partition, set()).add(broker_id)
    if not pending:
        return reassignments
    real = {reassignment.topic: reassignment for reassignment in reassignments}
    changed = {topic: _with_pending(topic, real.get(topic), found, assignments) for topic, found in pending.items()}
    merged = {**real, **changed}
    return tuple(merged[topic] for topic in sorted(merged))


def _with_pending(
    topic: str,
    real: TopicReassignment | None,
    pending: Mapping[int, set[int]],
    assignments: Mapping[TopicPartition, Assignment],
) -> TopicReassignment:
    """Return the topic's reassignment with the pending replicas added."""
    rows = real.by_partition() if real else {}
    for partition, brokers in pending.items():
        current = assignments[topic, partition]
        leader, isr, adding, removing = rows.get(partition, (current.leader, current.isr, (), ()))
        rows[partition] = (leader, isr, (*adding, *sorted(brokers.difference(adding))), removing)
    return TopicReassignment.of_partitions(topic, rows)

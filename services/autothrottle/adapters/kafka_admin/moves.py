"""What moves, put together from the controller's list of reassignments and a broker's metadata."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from autothrottle.adapters.deadlines import time_left
from autothrottle.adapters.kafka_admin.answers import PartitionMetadata, PartitionReassignment
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.core.errors import AutothrottleError, Missing
from autothrottle.core.topology import NO_LEADER, Assignment, Problem, TopicPartition, TopicReassignment, replicas_on

_OFFLINE = PartitionMetadata(NO_LEADER, (), ())
_STANDS = PartitionReassignment((), (), ())

Metadata = Mapping[str, Mapping[int, PartitionMetadata]]
"""Topic -> partition -> where it is."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What moves at one moment, and where the partitions are that were looked at for it."""

    reassignments: Mapping[str, TopicReassignment] = field(default_factory=dict)
    """Topic -> its reassignment, ordered by name."""
    metadata: Metadata = field(default_factory=dict)
    listed: Mapping[str, Mapping[int, PartitionReassignment]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    """Topics that move and whose partitions cannot be looked at."""

    def assignments(self, asked: Collection[TopicPartition]) -> dict[TopicPartition, Assignment]:
        """Return where partitions are; those that do not exist are absent."""
        found = {}
        for topic, number in asked:
            partition = self.metadata.get(topic, {}).get(number)
            if partition is not None:
                move = self.listed.get(topic, {}).get(number, _STANDS)
                found[topic, number] = Assignment(
                    replicas=move.replicas or partition.replicas,
                    leader=partition.leader,
                    isr=partition.isr,
                    adding_replicas=move.adding_replicas,
                    removing_replicas=move.removing_replicas,
                )
        return found

    def replicas_on(self, broker_ids: frozenset[int]) -> dict[int, dict[str, tuple[int, ...]]]:
        """Return broker -> topic -> its partitions there, of what was looked at."""
        topics = (
            (topic, ((number, partition.replicas) for number, partition in partitions.items()))
            for topic, partitions in sorted(self.metadata.items())
        )
        return replicas_on(broker_ids, topics)


def read_moves(
    kafka: KafkaAdmin, timeout: timedelta, known: Mapping[str, TopicReassignment], topics: Collection[str] | None = ()
) -> Moves:
    """Return what moves; one request while nothing does.

    Args:
        kafka: who is asked.
        timeout: for all of it, > 0.
        known: what was seen to move the last time: so a topic stays that cannot be looked at now.
        topics: which topics' metadata is wanted besides; None: all.

    Raises:
        Unavailable, Invalid: when it cannot be read.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    listed = kafka.reassignments(timeout=time_left(deadline))
    wanted = None if topics is None else listed.keys() | set(topics)
    if wanted is not None and not wanted:
        return Moves()
    found = kafka.partitions(wanted, timeout=time_left(deadline))
    unseen = listed.keys() - found.values.keys()
    if any(isinstance(found.failures.get(topic, Missing()), Missing) for topic in unseen):
        # Deleted in between; or so new that the broker which was asked has not heard of it.
        still = kafka.reassignments(timeout=time_left(deadline))
        listed = {topic: move for topic, move in listed.items() if topic not in unseen or topic in still}
    problems = {t: e for t, e in found.failures.items() if t in listed and not isinstance(e, Missing)}
    return Moves(
        reassignments={
            topic: known[topic]
            if topic in problems and topic in known
            else _reassignment(topic, partitions, found.values.get(topic, {}))
            for topic, partitions in sorted(listed.items())
        },
        metadata=found.values,
        listed=listed,
        problems=tuple(_problem(topic, error) for topic, error in sorted(problems.items())),
    )


def _problem(topic: str, error: AutothrottleError) -> Problem:
    return Problem(f"topics/{topic}", f"leaders and ISR of a topic that moves cannot be read: {error}")


def _reassignment(
    topic: str, moving: Mapping[int, PartitionReassignment], metadata: Mapping[int, PartitionMetadata]
) -> TopicReassignment:
    rows = sorted(moving.items())
    states = [metadata.get(number, _OFFLINE) for number, _ in rows]
    return TopicReassignment(
        topic=topic,
        partitions=tuple(number for number, _ in rows),
        leaders=tuple(state.leader for state in states),
        isr=tuple(state.isr for state in states),
        adding_replicas=tuple(move.adding_replicas for _, move in rows),
        removing_replicas=tuple(move.removing_replicas for _, move in rows),
    )

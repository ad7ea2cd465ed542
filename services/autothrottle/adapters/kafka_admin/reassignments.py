"""Reassignments through Kafka's admin API (KIP-455): KRaft mode, and ZooKeeper mode from 2.4 on.

They are read from the controller's list and a broker's metadata.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from autothrottle.adapters.concurrency.subscriptions import time_left
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.sources import KafkaFetchSettings
from autothrottle.adapters.kafka_admin.values import PartitionMetadata, PartitionReassignment
from autothrottle.adapters.state_store.ledger import Fence
from autothrottle.core.cluster.snapshot import (
    NO_LEADER,
    Assignment,
    Problem,
    ReassignmentRow,
    TopicPartition,
    TopicReassignment,
    replicas_on,
)
from autothrottle.core.errors import Conflict, Missing, Unavailable
from autothrottle.core.operators.cancellation import Cancellation, CancelRule, without_reassignment
from autothrottle.core.operators.submission import Targets, replacements
from autothrottle.ports.kafka import Refusals, Term
from autothrottle.ports.state_store import Terms

_OFFLINE = PartitionMetadata(NO_LEADER, (), ())
_NOT_REASSIGNED = PartitionReassignment((), (), ())
_TOO_LATE = "checking the term took all the time: nothing was submitted; try again"


@dataclass(frozen=True, slots=True)
class ReassignmentReading:
    """The reassignments at one moment, and the metadata that was read with them."""

    reassignments: Mapping[str, TopicReassignment] = field(default_factory=dict)
    """Topic -> its reassignment, ordered by topic."""
    metadata: Mapping[str, Mapping[int, PartitionMetadata]] = field(default_factory=dict)
    """Topic -> partition -> leader, replicas and ISR."""
    listed: Mapping[str, Mapping[int, PartitionReassignment]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    """Reassigned topics whose metadata cannot be read."""

    def assignments(self, requested: Collection[TopicPartition]) -> dict[TopicPartition, Assignment]:
        """Return partition -> its assignment; partitions that do not exist are absent."""
        assignments = {}
        for topic, number in requested:
            partition = self.metadata.get(topic, {}).get(number)
            if partition is not None:
                reassignment = self.listed.get(topic, {}).get(number, _NOT_REASSIGNED)
                assignments[topic, number] = Assignment(
                    replicas=reassignment.replicas or partition.replicas,
                    leader=partition.leader,
                    isr=partition.isr,
                    adding_replicas=reassignment.adding_replicas,
                    removing_replicas=reassignment.removing_replicas,
                )
        return assignments

    def replicas_on(self, broker_ids: frozenset[int]) -> dict[int, dict[str, tuple[int, ...]]]:
        """Return broker -> topic -> its partitions on that broker, for the topics in `metadata`."""
        topics = (
            (topic, ((number, partition.replicas) for number, partition in partitions.items()))
            for topic, partitions in sorted(self.metadata.items())
        )
        return replicas_on(broker_ids, topics)


def read_reassignments(
    kafka: KafkaAdmin,
    timeout: timedelta,
    last: Mapping[str, TopicReassignment],
    topics: Collection[str] | None = (),
) -> ReassignmentReading:
    """Read the reassignments; takes one request if there are none and no topics are given.

    Args:
        kafka: to query.
        timeout: of all requests together, > 0.
        last: the previous result. A topic whose metadata is unreadable keeps its reassignment from here.
        topics: additional topics whose metadata to read; None: all topics.

    Raises:
        Unavailable, Invalid: the reassignments cannot be read.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    listing = kafka.reassignments(timeout=time_left(deadline))
    listed = {topic: rows for topic, rows in listing.values.items() if rows}
    malformed = listing.failures
    requested = None if topics is None else listed.keys() | set(topics)
    if requested is not None and not requested and not malformed:
        return ReassignmentReading()
    metadata = kafka.partitions(requested, timeout=time_left(deadline))
    unread = listed.keys() - metadata.values.keys()
    if any(isinstance(metadata.failures.get(topic, Missing()), Missing) for topic in unread):
        # Deleted since the list was read, or so new that the queried broker does not know the topic yet.
        still = kafka.reassignments(timeout=time_left(deadline)).values
        listed = {
            topic: reassignment for topic, reassignment in listed.items() if topic not in unread or topic in still
        }
    problems = {t: e for t, e in metadata.failures.items() if t in listed and not isinstance(e, Missing)}
    problems.update(malformed)
    return ReassignmentReading(
        reassignments={
            topic: last[topic]
            if topic in problems and topic in last
            else _reassignment(topic, partitions, metadata.values.get(topic, {}))
            for topic, partitions in sorted({**{t: {} for t in malformed if t in last}, **listed}.items())
        },
        metadata=metadata.values,
        listed=listed,
        problems=tuple(
            Problem(f"topics/{topic}", f"leaders and ISR of a topic under reassignment cannot be read: {error}", topic)
            for topic, error in sorted(problems.items())
        ),
    )


def _reassignment(
    topic: str, listed: Mapping[int, PartitionReassignment], metadata: Mapping[int, PartitionMetadata]
) -> TopicReassignment:
    rows: dict[int, ReassignmentRow] = {}
    for number, reassignment in listed.items():
        partition = metadata.get(number, _OFFLINE)
        rows[number] = partition.leader, partition.isr, reassignment.adding_replicas, reassignment.removing_replicas
    return TopicReassignment.of_partitions(topic, rows)


_SAFETY_SHARE, _PROBE = 0.4, timedelta(seconds=5)
"""Most time to read what the safety of a cancellation depends on, as a share of the call's time-out, and the part of it
in which brokers must answer."""


def _in_doubt(
    row: TopicPartition, assignment: Assignment, views: Iterable[Mapping[str, Mapping[int, PartitionMetadata]]]
) -> Assignment:
    """Return the assignment with the least safe ISR of some brokers' views, of which the newest is unknown.

    It has the original replicas that are in sync in all views, and the adding replicas that are in sync in any.
    """
    partitions = (view.get(row[0], {}).get(row[1]) for view in views)
    isrs = [frozenset(assignment.isr), *(frozenset(partition.isr) for partition in partitions if partition)]
    originals = frozenset.intersection(*isrs).difference(assignment.adding_replicas)
    added = frozenset.union(*isrs).intersection(assignment.adding_replicas)
    return replace(assignment, isr=tuple(sorted(originals | added)))


_MOST_ROWS = 50_000
"""Partitions that brokers describe for one cancellation, which take 1 s of CPU time."""


class AdminReassigner:
    """A `Reassigner` on Kafka's admin API; the term is in our state store. Thread-safe."""

    def __init__(self, kafka: KafkaAdmin, terms: Terms, session_timeout: timedelta) -> None:
        """Prepare; this reads and writes nothing.

        Args:
            kafka: executes the reassignments.
            terms: knows the newest term.
            session_timeout: how long the leader may be silent, > 0.
        """
        self._kafka, self._fence = kafka, Fence(terms, session_timeout)

    def submit_reassignments(self, term: Term, targets: Targets, timeout: timedelta) -> Refusals:
        until = self._fence.admit(term, time.monotonic() + timeout.total_seconds(), _TOO_LATE)
        replaced = self._replaced(targets, until)
        refused = self._kafka.alter_reassignments(
            {row: target for row, target in targets.items() if row not in replaced}, until=until
        )
        return replaced | {row: str(error) for row, error in refused.items()}

    def _replaced(self, targets: Targets, deadline: float) -> dict[TopicPartition, str]:
        """Return the partitions whose running reassignment to other replicas the submission would replace -> a reason.

        Kafka would replace it, whichever tool started it, and drop its new replicas even if only they are in sync.
        """
        try:
            listing = self._kafka.reassignments(targets.keys(), timeout=time_left(deadline))
        except Unavailable as error:  # which would mean that Kafka may have received the submission
            raise Conflict(f"nothing was submitted, because running reassignments cannot be read: {error}") from error
        running = {(topic, n): move.target for topic, rows in listing.values.items() for n, move in rows.items()}
        replaced = replacements(targets, running)
        unread = {row: listing.failures[row[0]] for row in targets if row[0] in listing.failures}
        return {**replaced, **{row: f"its running reassignment cannot be read: {why}" for row, why in unread.items()}}

    def cancel_reassignments(
        self, term: Term, partitions: Collection[TopicPartition], timeout: timedelta
    ) -> Cancellation:
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            checked = self._checked(partitions, time.monotonic() + _SAFETY_SHARE * timeout.total_seconds())
        except Unavailable as error:  # which would mean that Kafka may have received the request
            raise Conflict(f"nothing was cancelled, because its safety cannot be checked now: {error}") from error
        not_cancelled = checked.not_cancelled
        until = self._fence.admit(term, deadline, _TOO_LATE)
        refused = self._kafka.alter_reassignments(
            {row: None for row in partitions if row not in not_cancelled}, until=until
        )
        return replace(checked, refused={**checked.refused, **{row: str(error) for row, error in refused.items()}})

    def _checked(self, partitions: Collection[TopicPartition], deadline: float) -> Cancellation:
        """Return the partitions that must not be cancelled, from a new reading."""
        topics = {topic for topic, _ in partitions}
        reading = read_reassignments(self._kafka, time_left(deadline), {}, topics)
        assignments = reading.assignments(partitions)
        unread = {problem.topic: problem.reason for problem in reading.problems}
        refused, unsafe, moving = (
            dict[TopicPartition, str](),
            dict[TopicPartition, str](),
            dict[TopicPartition, Assignment](),
        )
        for row in partitions:
            if row[0] in unread:
                unsafe[row] = f"its in-sync replicas cannot be read: {unread[row[0]]}"
            elif reason := without_reassignment(row, assignments.get(row)):
                refused[row] = reason
            else:
                moving[row] = assignments[row]
        if moving:
            rows = sum(map(len, reading.metadata.values()))
            unsafe |= self._hazards(moving, max(1, _MOST_ROWS // max(rows, 1)), deadline)
        return Cancellation(refused, unsafe)

    def _hazards(
        self, moving: Mapping[TopicPartition, Assignment], most_views: int, deadline: float
    ) -> dict[TopicPartition, str]:
        """Return partition -> why it must not be cancelled.

        Args:
            moving: the partitions.
            most_views: number of brokers that tell the ISRs, too; the others are only asked for a sign of life.
            deadline: on the monotonic clock.
        """
        topics, live = {topic for topic, _ in moving}, self._kafka.brokers(timeout=time_left(deadline))
        settings = KafkaFetchSettings(self._kafka).fetch_settings((), topics, time_left(deadline))
        originals = {b for assignment in moving.values() for b in assignment.original} & live
        topics_of_brokers = {b: topics if n < most_views else () for n, b in enumerate(sorted(originals))}
        answers = self._kafka.partitions_by_broker(topics_of_brokers, timeout=min(time_left(deadline), _PROBE))
        rule = CancelRule(live, settings.min_in_sync_replicas, {b: str(e) for b, e in answers.failures.items()})
        views = answers.values.values()
        return {
            row: hazard
            for row, assignment in moving.items()
            if (hazard := rule.hazard(row, _in_doubt(row, assignment, views)))
        }

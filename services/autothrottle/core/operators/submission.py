"""Submission reassignments: validation, the cluster once they have started, and their state from cycle to cycle.

A submitted reassignment is throttled before Kafka receives it: the cycle sees it as if it had already started. The
first cycle that reads back all of its throttles submits it, after the brokers had time to apply them. A submitted
reassignment stays in the cycles' view until the snapshot contains it, so that no cycle removes its throttles in
between. `plan` decides on running reassignments. The types to know are `ProposedReassignment` and `SubmissionState`.

Source: KIP-455.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from autothrottle.core.cluster.configs import (
    WILDCARD,
    ConfigResource,
    ReplicaRole,
    parse_replicas,
    validate_broker_id,
    validate_topic,
)
from autothrottle.core.cluster.snapshot import Assignment, Snapshot, TopicPartition, TopicReassignment, named
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.plan_refusals import PERMISSIVE, PlanCluster, RefusalKind, refusal_error, refusals
from autothrottle.core.texts import excerpt
from autothrottle.core.units import MAX_INT32

Targets = Mapping[TopicPartition, tuple[int, ...]]
"""Partition -> broker ids of its target replicas, the preferred leader first."""

MAX_PARTITIONS = 10_000
"""Largest number of partitions in one request. A KRaft controller refuses to alter more reassignments at a time
(`QuorumController.MAX_RECORDS_PER_USER_OP`), and larger requests need too much memory."""

MAX_PARTITION = MAX_INT32
"""Largest partition number: Kafka stores it as a signed 32-bit integer."""

_SHOWN = 5
"""Number of problems that an error names."""


SETTLED_AFTER = timedelta(seconds=1)
"""Time from the write of a throttle to the submission. A broker applies a config 7 to 70 ms after the write. A KRaft
broker that reads both in one batch of its metadata log starts to fetch before it applies the config."""

VISIBLE_WITHIN = timedelta(seconds=30)
"""Time within which a submitted reassignment must appear in a snapshot."""

CHECK_FIRST = "list the reassignments before you try again"


@dataclass(frozen=True, slots=True)
class ProposedReassignment:
    """A requested reassignment, split into the partitions to submit and the others."""

    start: Targets
    """The partitions to start."""
    moving: frozenset[TopicPartition] = frozenset()
    """Partitions that are already being reassigned to their targets."""
    in_place: frozenset[TopicPartition] = frozenset()
    """Partitions that already have their target replicas."""


def targets(rows: Iterable[tuple[str, int, Sequence[int]]]) -> Targets:
    """Return the targets in (topic, partition, replicas) rows.

    Raises:
        Invalid: they are invalid in any cluster.
    """
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    # Equal values become one object, which halves the memory of 100,000 partitions.
    names: dict[str, str] = {}
    lists: dict[tuple[int, ...], tuple[int, ...]] = {}
    for topic, partition, replicas in rows:
        row = names.setdefault(topic, topic), partition
        _add_partition(targets, row, MAX_PARTITIONS)
        _validate_replicas(row, replicas)
        targets[row] = lists.setdefault(target := tuple(replicas), target)
    if not targets:
        raise Invalid(f"the reassignment names no partition; name 1 to {MAX_PARTITIONS}")
    return targets


def partitions(rows: Iterable[TopicPartition], at_most: int = MAX_PARTITIONS) -> tuple[TopicPartition, ...]:
    """Return the partitions in the rows.

    Raises:
        Invalid: there are none, too many, a duplicate, or one that cannot exist.
    """
    rows_named: dict[TopicPartition, tuple[int, ...]] = {}
    for row in rows:
        _add_partition(rows_named, row, at_most)
    if not rows_named:
        raise Invalid(f"no partition is named; name 1 to {at_most}")
    return tuple(rows_named)


def _add_partition(rows: dict[TopicPartition, tuple[int, ...]], row: TopicPartition, at_most: int) -> None:
    if row in rows:
        raise Invalid(f"partition {named(row)} is named twice; name it once")
    if len(rows) >= at_most:
        raise Invalid(f"more than {at_most} partitions are named; name 1 to {at_most} at a time")
    if not row[0]:
        raise Invalid(f"partition {row[1]} has no topic; name it")
    validate_topic(row[0])
    if not 0 <= row[1] <= MAX_PARTITION:
        raise Invalid(f"partition {row[1]} of topic {row[0]!r} is outside of 0..{MAX_PARTITION}; give its number")
    rows[row] = ()


def _validate_replicas(row: TopicPartition, replicas: Sequence[int]) -> None:
    if not replicas:
        raise Invalid(f"{named(row)} has an empty list of replicas; name at least one broker id")
    if len(set(replicas)) < len(replicas):
        twice = next(b for b, count in Counter(replicas).items() if count > 1)
        raise Invalid(f"{named(row)} names broker {twice} twice in {list(replicas)}; name every broker once")
    for broker_id in replicas:
        validate_broker_id(broker_id, f" of {named(row)}")


def proposal(snapshot: Snapshot, targets: Targets) -> ProposedReassignment:
    """Return the requested targets, split into those to submit and the others.

    Args:
        snapshot: the cluster, with the assignments of all these partitions.
        targets: the requested targets.

    Raises:
        Missing: a topic or a partition does not exist.
        Invalid: an adding replica's broker is not registered.
        Conflict: a partition is being reassigned to other replicas, or has no live replica to copy from.
    """
    if refused := refusals(PlanCluster(snapshot), targets, PERMISSIVE):
        raise refusal_error(refused, others=0)
    assignments = snapshot.assignments
    moving = frozenset(row for row in targets if assignments[row].moves)
    in_place = frozenset(row for row in targets if row not in moving and assignments[row].replicas == targets[row])
    return ProposedReassignment(
        {r: to for r, to in targets.items() if r not in moving and r not in in_place}, moving, in_place
    )


def replacements(targets: Targets, running: Mapping[TopicPartition, tuple[int, ...]]) -> dict[TopicPartition, str]:
    """Return partition -> why it must not be submitted, of those that are being reassigned to other replicas.

    Args:
        targets: the requested targets.
        running: partition -> target of its running reassignment.
    """
    return {
        row: f"{named(row)} is already being reassigned to {list(running[row])}; {RefusalKind.MOVES_ELSEWHERE.fix}"
        for row, target in targets.items()
        if running.get(row, target) != target
    }


def some(problems: Iterable[str]) -> str:
    """Return the first problems, and the number of the others; "": there are none."""
    return excerpt(list(problems), _SHOWN, "; ")


def with_one_exchange(snapshot: Snapshot, targets: Targets, topic: str) -> Targets:
    """Return the targets, with which each partition of this topic exchanges at most one replica.

    Its other replicas follow when the same targets are submitted again, so nothing has to remember them. The leader is
    exchanged last.

    Args:
        snapshot: the cluster, with the assignments of all these partitions.
        targets: the requested targets.
        topic: the topic of our own state, which must stay writable; "": it has none.
    """
    rows = [row for row in targets if row[0] == topic and row in snapshot.assignments]
    return {**targets, **{row: _with_one_exchange(snapshot.assignments[row], targets[row]) for row in rows}}


def _with_one_exchange(assignment: Assignment, target: tuple[int, ...]) -> tuple[int, ...]:
    current = assignment.original
    adding, removing = [b for b in target if b not in current], [b for b in current if b not in target]
    if max(len(adding), len(removing)) <= 1 or (assignment.moves and assignment.target == target):
        return target
    # Independent of the order of the current replicas, which a running reassignment changes.
    removed = sorted(b for b in removing if b != assignment.leader)[:1]
    return (*(b for b in current if b not in removed), *adding[:1])


def postponement(targets: Targets, step: Targets) -> tuple[int, tuple[str, ...]]:
    """Return how many replicas `with_one_exchange` leaves for later, and a sentence for each of their partitions."""
    rows = [row for row, target in targets.items() if step[row] != target]
    later = sum(max(len({*targets[row]} - {*step[row]}), len({*step[row]} - {*targets[row]})) for row in rows)
    warnings = (
        f"the replicas of autothrottle's own state are exchanged one at a time: {named(row)} now gets "
        f"{list(step[row])}. When that is done, submit the same reassignment again for {list(targets[row])}"
        for row in rows
    )
    return later, tuple(warnings)


def with_proposed(snapshot: Snapshot, proposed: Targets) -> Snapshot:
    """Return the snapshot as if the reassignments to these targets had already started.

    Adding replicas are those that only the target has, removing replicas those that only the partition has. Leaders and
    ISRs stay. Partitions that are already in reassignment, only change their order or no longer exist stay unchanged.
    """
    rows: dict[str, dict[int, Assignment]] = {}
    for (topic, partition), target in proposed.items():
        current = snapshot.assignments.get((topic, partition))
        if current is not None and not current.moves:
            adding = tuple(b for b in target if b not in current.replicas)
            removing = tuple(b for b in current.replicas if b not in target)
            if adding or removing:
                moved = replace(current, adding_replicas=adding, removing_replicas=removing)
                rows.setdefault(topic, {})[partition] = moved
    if not rows:
        return snapshot
    real = {r.topic: r for r in snapshot.reassignments}
    merged = {**real, **{topic: _merged(topic, real.get(topic), assignments) for topic, assignments in rows.items()}}
    return replace(snapshot, reassignments=tuple(merged[topic] for topic in sorted(merged)))


def _merged(topic: str, real: TopicReassignment | None, proposed: Mapping[int, Assignment]) -> TopicReassignment:
    """Return the topic's actual reassignment merged with the proposed one; for each partition the actual one wins."""
    rows = {p: (a.leader, a.isr, a.adding_replicas, a.removing_replicas) for p, a in proposed.items()}
    return TopicReassignment.of_partitions(topic, rows | (real.by_partition() if real else {}))


def unseen(snapshot: Snapshot, submitted: Targets) -> Targets:
    """Return the submitted targets not visible in the snapshot yet: neither in reassignment nor at the target."""
    return {
        row: target
        for row, target in submitted.items()
        if (assignment := snapshot.assignments.get(row))
        and not assignment.moves
        and set(assignment.replicas) != set(target)
    }


def resources(snapshot: Snapshot, proposed: Targets) -> frozenset[ConfigResource]:
    """Return the configs that must be written before these reassignments start; empty: nothing will be copied."""
    alone = _alone(snapshot, proposed)
    brokers = {ConfigResource.broker(b) for b in alone.participants}
    topics = {ConfigResource.topic(r.topic) for r in alone.reassignments if any(row[3] for row in r.rows())}
    return frozenset(brokers | topics)


def _alone(snapshot: Snapshot, proposed: Targets) -> Snapshot:
    return with_proposed(replace(snapshot, reassignments=()), proposed)


def unthrottled(snapshot: Snapshot, proposed: Targets) -> tuple[str, ...]:
    """Return the throttles that are missing before these reassignments may start, one sentence each; empty: none.

    Every participating broker needs a rate. Every partition to copy needs its entries in both replica lists of its
    topic.
    """
    alone = _alone(snapshot, proposed)
    rates = (
        f"{ConfigResource.broker(broker_id)} has no {role.rate_key}"
        for broker_id, roles_of_broker in sorted(alone.participants.items())
        for role in sorted(roles_of_broker, key=lambda role: role.value)
        if snapshot.rates.get((broker_id, role)) is None
    )
    lists = (
        f"{ConfigResource.topic(reassignment.topic)} lacks entries in {role.replicas_key}"
        for reassignment in alone.reassignments
        for role in ReplicaRole
        if not _covered(snapshot, reassignment, role)
    )
    return (*rates, *lists)


def _covered(snapshot: Snapshot, proposed: TopicReassignment, role: ReplicaRole) -> bool:
    current = snapshot.throttles.get(ConfigResource.topic(proposed.topic), {}).get(role.replicas_key, "")
    try:
        entries = parse_replicas(current)
    except Invalid:
        return False
    return entries == {WILDCARD} or entries >= set(_entries(proposed, role))


def _entries(proposed: TopicReassignment, role: ReplicaRole) -> Iterator[str]:
    for partition, _, isr, pending in proposed.rows():
        if pending:
            yield from (f"{partition}:{b}" for b in (isr if role is ReplicaRole.LEADER else pending))


@dataclass(frozen=True, slots=True)
class SubmissionRequest:
    """A reassignment that a caller waits for. As an action of a cycle, it has only the partitions to start."""

    ticket: int
    """Identifies the call, > 0."""
    targets: Targets
    needs: frozenset[ConfigResource] = frozenset()
    """Resources whose change must not have been refused; so in the other actions."""


@dataclass(frozen=True, slots=True)
class SubmissionState:
    """The current submission of a term, and submitted partitions that no snapshot contains yet."""

    unseen: Mapping[TopicPartition, tuple[tuple[int, ...], float]] = field(default_factory=dict)
    """Submission partition -> (its target, monotonic time of the submission in seconds)."""
    ticket: int = 0
    """The call whose reassignment was throttled in the last cycle; 0: none."""
    proposal: ProposedReassignment = ProposedReassignment({})
    throttled_since: float | None = None
    """Monotonic time since which all its throttles are written, in seconds; None: they are not."""
    in_vain: bool = True
    """Whether Kafka has certainly accepted nothing of it."""

    @property
    def submitted(self) -> Targets:
        """The submitted partitions that no snapshot contains yet."""
        return {row: target for row, (target, _) in self.unseen.items()}

    def without(self, rows: Collection[TopicPartition]) -> SubmissionState:
        """Return the state without these partitions: they were cancelled or refused."""
        if self.unseen.keys().isdisjoint(rows):
            return self
        return replace(self, unseen={row: sent for row, sent in self.unseen.items() if row not in rows})

    def with_sent(self, start: Targets, clock: float) -> SubmissionState:
        """Return the state in which Kafka may have received these partitions."""
        return replace(self, unseen={**self.unseen, **{row: (target, clock) for row, target in start.items()}})

    def observe(self, snapshot: Snapshot, request: SubmissionRequest | None, clock: float) -> SubmissionState:
        """Return the state of the next cycle.

        Args:
            snapshot: has the assignments of all these partitions.
            request: the reassignment that a caller waits for; None: no caller waits.
            clock: monotonic time in seconds.

        Raises:
            Missing, Invalid, Conflict: the reassignment is not possible. Observe again without it.
        """
        unseen_targets, oldest = unseen(snapshot, self.submitted), clock - VISIBLE_WITHIN.total_seconds()
        waiting = {row: sent for row, sent in self.unseen.items() if row in unseen_targets and sent[1] >= oldest}
        if request is None:
            return SubmissionState(waiting)
        proposed = proposal(snapshot, request.targets)
        if request.ticket != self.ticket:
            return SubmissionState(waiting, request.ticket, proposed)
        return replace(self, unseen=waiting, proposal=proposed)

"""Reassignments that are proposed: what is wrong with one, and how the cluster looks once it has begun.

A proposal is throttled before Kafka hears of it: the cycle sees it as if it were moving already. Whatever is
decided about moves that are under way is in `plan`. The type to know is `Proposal`.

Source: KIP-455.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autothrottle.core.configs import WILDCARD, ConfigResource, ReplicaRole, parse_replicas
from autothrottle.core.errors import AutothrottleError, Conflict, Invalid, Missing
from autothrottle.core.plan import standing_rate
from autothrottle.core.topology import (
    MAX_BROKER_ID,
    Assignment,
    Snapshot,
    TopicPartition,
    TopicReassignment,
    participants,
)

Targets = Mapping[TopicPartition, tuple[int, ...]]
"""Partition -> the broker ids that it shall be on, the preferred leader first."""

MAX_PARTITIONS = 100_000
"""Of one proposal."""

MAX_PARTITION = 2**31 - 1

_SHOWN = 5
"""How many problems an error names."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A reassignment that was asked for, by what is left to do."""

    start: Targets
    """What is to be started."""
    moving: frozenset[TopicPartition] = frozenset()
    """On their way to these replicas already."""
    there: frozenset[TopicPartition] = frozenset()
    """They have these replicas already."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a reassignment that was asked for."""

    started: int
    """Partitions that Kafka has taken; or would be given, when it was only looked at."""
    already_moving: int = 0
    """On their way to these replicas already."""
    already_there: int = 0
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    """What Kafka did not take, and why."""


def targets(rows: Iterable[tuple[str, int, Sequence[int]]]) -> Targets:
    """Return the targets that (topic, partition, replicas) rows name.

    Raises:
        Invalid: when they cannot be right in any cluster.
    """
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for topic, partition, replicas in rows:
        _take(found, (topic, partition))
        _demand_replicas((topic, partition), replicas)
        found[topic, partition] = tuple(replicas)
    if not found:
        raise Invalid(f"the reassignment names no partition; name 1 to {MAX_PARTITIONS}")
    return found


def partitions(rows: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    """Return the partitions that rows name.

    Raises:
        Invalid: when there is none, or more than Kafka can have.
    """
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for row in rows:
        _take(found, row)
    if not found:
        raise Invalid(f"no partition is named; name 1 to {MAX_PARTITIONS}")
    return tuple(found)


def _take(found: dict[TopicPartition, tuple[int, ...]], row: TopicPartition) -> None:
    if row in found:
        raise Invalid(f"partition {named(row)} is named twice; name it once")
    if len(found) >= MAX_PARTITIONS:
        raise Invalid(f"more than {MAX_PARTITIONS} partitions are named; name 1 to {MAX_PARTITIONS} at a time")
    if not row[0]:
        raise Invalid(f"partition {row[1]} has no topic; name it")
    if not 0 <= row[1] <= MAX_PARTITION:
        raise Invalid(f"partition {row[1]} of topic {row[0]!r} is outside of 0..{MAX_PARTITION}; give its number")
    found[row] = ()


def _demand_replicas(row: TopicPartition, replicas: Sequence[int]) -> None:
    if not replicas:
        raise Invalid(f"{named(row)} has an empty list of replicas; name at least one broker id")
    if len(set(replicas)) < len(replicas):
        twice = next(b for b, count in Counter(replicas).items() if count > 1)
        raise Invalid(f"{named(row)} names broker {twice} twice in {_list(replicas)}; name every broker once")
    for broker_id in replicas:
        if not 0 <= broker_id <= MAX_BROKER_ID:
            raise Invalid(f"broker id {broker_id} of {named(row)} is outside of 0..{MAX_BROKER_ID}; give a broker's id")


def proposal(snapshot: Snapshot, wanted: Targets) -> Proposal:
    """Return what of the targets is left to do in a cluster.

    Args:
        snapshot: with the assignments of all these partitions.
        wanted: what was asked for.

    Raises:
        Missing: when a topic or a partition does not exist.
        Invalid: when a partition is to move to a broker that is not registered.
        Conflict: when a partition is being reassigned to other replicas.
    """
    known = snapshot.assignments
    _refuse(Missing, (f"{named(row)} does not exist" for row in wanted if row not in known), "give a partition's name")
    _refuse(Invalid, _absent_brokers(snapshot, wanted), "start the broker, or name another")
    elsewhere = (row for row in wanted if known[row].moves and known[row].target != wanted[row])
    problems = (f"{named(row)} is being reassigned to {_list(known[row].target)} already" for row in elsewhere)
    _refuse(Conflict, problems, "wait until it is done, or cancel it first")
    moving = frozenset(row for row in wanted if known[row].moves)
    there = frozenset(row for row in wanted if row not in moving and known[row].replicas == wanted[row])
    return Proposal({r: to for r, to in wanted.items() if r not in moving and r not in there}, moving, there)


def _absent_brokers(snapshot: Snapshot, wanted: Targets) -> Iterator[str]:
    """A sentence for each broker that would receive something and is not there; those that hold it may be down."""
    first: dict[int, TopicPartition] = {}
    for row, replicas in wanted.items():
        for broker_id in replicas:
            if broker_id not in snapshot.brokers and broker_id not in snapshot.assignments[row].replicas:
                first.setdefault(broker_id, row)
    for broker_id, row in sorted(first.items()):
        yield f"broker {broker_id}, to which {named(row)} is to move, is unknown or down"
    if first:
        yield f"registered are {_list(sorted(snapshot.brokers))}"


def _refuse(kind: type[AutothrottleError], problems: Iterable[str], fix: str) -> None:
    found = list(problems)
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise kind(f"{'; '.join(found[:_SHOWN])}{more}; {fix}")


def with_proposed(snapshot: Snapshot, proposed: Targets) -> Snapshot:
    """Return the cluster as if these partitions were moving already.

    Adding are the replicas that the target has and the partition has not, removing are those that the target has not;
    leader and in-sync replicas are as they are. What moves already, what only changes its order and what is gone is
    left as it is.
    """
    rows: dict[str, dict[int, Assignment]] = {}
    for (topic, partition), target in proposed.items():
        standing = snapshot.assignments.get((topic, partition))
        if standing is not None and not standing.moves:
            adding = tuple(b for b in target if b not in standing.replicas)
            removing = tuple(b for b in standing.replicas if b not in target)
            if adding or removing:
                moved = replace(standing, adding_replicas=adding, removing_replicas=removing)
                rows.setdefault(topic, {})[partition] = moved
    if not rows:
        return snapshot
    real = {r.topic: r for r in snapshot.reassignments}
    merged = {**real, **{topic: _merged(topic, real.get(topic), found) for topic, found in rows.items()}}
    return replace(snapshot, reassignments=tuple(merged[topic] for topic in sorted(merged)))


def _merged(topic: str, real: TopicReassignment | None, proposed: Mapping[int, Assignment]) -> TopicReassignment:
    """The columns of what moves and of what is proposed; what moves wins."""
    found = {p: (a.leader, a.isr, a.adding_replicas, a.removing_replicas) for p, a in proposed.items()}
    if real is not None:
        columns = zip(real.leaders, real.isr, real.adding_replicas, real.removing_replicas, strict=True)
        found.update(zip(real.partitions, columns, strict=True))
    rows = [found[partition] for partition in sorted(found)]
    return TopicReassignment(
        topic=topic,
        partitions=tuple(sorted(found)),
        leaders=tuple(row[0] for row in rows),
        isr=tuple(row[1] for row in rows),
        adding_replicas=tuple(row[2] for row in rows),
        removing_replicas=tuple(row[3] for row in rows),
    )


def unseen(snapshot: Snapshot, submitted: Targets) -> Targets:
    """Return what of the targets the cluster does not show yet: it neither moves nor has arrived."""
    return {
        row: target
        for row, target in submitted.items()
        if (found := snapshot.assignments.get(row)) and not found.moves and set(found.replicas) != set(target)
    }


def resources(snapshot: Snapshot, proposed: Targets) -> frozenset[ConfigResource]:
    """Return the configs that have to stand before these partitions may move; empty when nothing will be copied."""
    alone = _alone(snapshot, proposed)
    brokers = {ConfigResource.broker(b) for b in participants(alone)}
    topics = {ConfigResource.topic(r.topic) for r in alone.reassignments if any(row[3] for row in r.rows())}
    return frozenset(brokers | topics)


def _alone(snapshot: Snapshot, proposed: Targets) -> Snapshot:
    return with_proposed(replace(snapshot, reassignments=()), proposed)


def unthrottled(snapshot: Snapshot, proposed: Targets) -> tuple[str, ...]:
    """Return what does not stand and would have to before these partitions move, a sentence each; empty: all stands.

    Every broker that takes part needs a rate, every partition that is copied its entries in both lists of its topic.
    """
    alone = _alone(snapshot, proposed)
    rates = (
        f"{ConfigResource.broker(broker_id)} has no {role.rate_key}"
        for broker_id, held in sorted(participants(alone).items())
        for role in sorted(held, key=lambda role: role.value)
        if standing_rate(snapshot, broker_id, role) is None
    )
    lists = (
        f"{ConfigResource.topic(one.topic)} lacks entries in {role.replicas_key}"
        for one in alone.reassignments
        for role in ReplicaRole
        if not _covered(snapshot, one, role)
    )
    return (*rates, *lists)


def _covered(snapshot: Snapshot, proposed: TopicReassignment, role: ReplicaRole) -> bool:
    standing = snapshot.throttles.get(ConfigResource.topic(proposed.topic), {}).get(role.replicas_key, "")
    try:
        entries = parse_replicas(standing)
    except Invalid:
        return False
    return entries == {WILDCARD} or entries >= set(_entries(proposed, role))


def _entries(proposed: TopicReassignment, role: ReplicaRole) -> Iterator[str]:
    for partition, _, isr, pending in proposed.rows():
        if pending:
            yield from (f"{partition}:{b}" for b in (isr if role is ReplicaRole.LEADER else pending))


def named(row: TopicPartition) -> str:
    """Return a partition as Kafka's tools write it.

    >>> named(("orders", 7))
    'orders-7'
    """
    return f"{row[0]}-{row[1]}"


def _list(broker_ids: Collection[int]) -> str:
    return "[" + ", ".join(map(str, broker_ids)) + "]"

"""A partition map: which brokers hold the replicas of each partition. The type to know is `PartitionReplicas`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Protocol

from autothrottle.core.errors import Invalid
from autothrottle.core.texts import datadog_tag, excerpt

TopicPartitionKey = tuple[str, int]
"""(topic, partition)."""


class PartitionReplicas(NamedTuple):
    """The replicas of one partition."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    """Broker ids, the preferred leader first. -1: an offline replica of an unknown broker."""
    size: int | None = None
    """Bytes of one replica; None: unknown."""

    @property
    def key(self) -> TopicPartitionKey:
        """The topic and the partition."""
        return self.topic, self.partition


PartitionMap = tuple[PartitionReplicas, ...]


class MapChange(NamedTuple):
    """One partition before and after a plan."""

    old: PartitionReplicas
    new: PartitionReplicas
    notes: tuple[str, ...]
    """Some of `decreased replication`, `increased replication`, `preferred leader`, `replaced broker`; or `no-op`."""

    @property
    def is_change(self) -> bool:
        """Whether the replicas or their order differ."""
        return self.old.replicas != self.new.replicas

    @property
    def copied_bytes(self) -> int | None:
        """Bytes to copy; None: the size of the partition is unknown."""
        copies = len(set(self.new.replicas) - set(self.old.replicas))
        return 0 if not copies else None if self.old.size is None else self.old.size * copies


def ordered(partitions: Iterable[PartitionReplicas]) -> PartitionMap:
    """Return a map ordered by topic and partition.

    Raises:
        Invalid: the map lists a partition twice.
    """
    result = tuple(sorted(partitions, key=lambda entry: entry.key))
    for previous, entry in pairwise(result):
        if previous.partition == entry.partition and previous.topic == entry.topic:
            raise Invalid(f"the map lists {previous.topic} p{previous.partition} twice; remove one of them")
    return result


def settled(
    partitions: Iterable[PartitionReplicas],
    reassigning: Mapping[TopicPartitionKey, tuple[int, ...]],
    deleting: frozenset[str] = frozenset(),
) -> PartitionMap:
    """Return the map after all reassignments in progress, without topics that wait for their deletion.

    Args:
        partitions: the current map, adding and removing replicas included.
        reassigning: partition -> its replicas at the end of its reassignment.
        deleting: topics that wait for their deletion.
    """
    return ordered(
        entry._replace(replicas=reassigning.get(entry.key, entry.replicas))
        for entry in partitions
        if entry.topic not in deleting
    )


def sizes_by_topic(
    topics: Iterable[str], sizes: Mapping[TopicPartitionKey, int]
) -> tuple[dict[TopicPartitionKey, int], dict[str, str]]:
    """Return the sizes of these topics in a sample of Datadog, which changes names, and why a topic has none.

    A size belongs to the only topic whose name Datadog changes to the name of the sample. Topics with one name in
    Datadog have no sizes, unless the sample has the names of all of them: then they are their own.

    >>> sizes_by_topic(["Orders.V2", "a__b", "a_b"], {("orders.v2", 0): 7, ("a_b", 0): 9})[0]
    {('Orders.V2', 0): 7}
    """
    sampled, topics = {topic for topic, _ in sizes}, {*topics}
    if sampled >= topics:
        return dict(sizes), {}
    named: dict[str, list[str]] = defaultdict(list)
    for topic in sorted(topics):
        named[_name_in_datadog(topic)].append(topic)
    owner_of: dict[str, str] = {}
    ambiguous: dict[str, str] = {}
    for name, group in named.items():
        if sampled.issuperset(group):
            owner_of |= {topic: topic for topic in group}
        elif len(group) == 1:
            owner_of[name] = group[0]
        else:
            reason = f"Datadog has one name, {name}, for the topics {excerpt(group, 3)}"
            ambiguous |= dict.fromkeys(group, f"{reason}. Fix: --metrics-source kafka reads the sizes from the brokers")
    size_of: dict[TopicPartitionKey, int] = {}
    for (topic, partition), size in sizes.items():
        owner = owner_of.get(topic) or owner_of.get(_name_in_datadog(topic))
        if owner is not None:
            size_of[owner, partition] = max(size, size_of.get((owner, partition), 0))
    return size_of, ambiguous


@lru_cache(2**17)
def _name_in_datadog(topic: str) -> str:
    return datadog_tag(f"topic:{topic}").removeprefix("topic:")


class Matcher(Protocol):
    """A compiled regular expression."""

    def fullmatch(self, text: str, /) -> object | None:
        """Return a true value if the expression matches the whole text."""
        ...


Compile = Callable[[str], Matcher]
"""Compiles a regular expression; raises re.error or Invalid."""


def matching_topics(
    topics: Iterable[str], patterns: Iterable[str], excluded: Iterable[str] = (), compile: Compile = re.compile
) -> tuple[str, ...]:
    """Return the topics that match a pattern and no excluded pattern, in order.

    A pattern is a topic's name, or a regular expression that matches a whole name. A name beats an expression: `a.b`
    selects only topic `a.b` if it exists.

    >>> matching_topics(["a.b", "axb", "c"], ["a.b"]), matching_topics(["a1", "a2", "ba1"], ["a.*"], ["a2"])
    (('a.b',), ('a1',))

    Raises:
        Invalid: a pattern is not a regular expression, or no pattern is given.
    """
    names = frozenset(topics)
    included = [pattern for pattern in patterns if pattern]
    if not included:
        raise Invalid("no topic is given; name topics or regular expressions, for example `.*`")
    without = [pattern for pattern in excluded if pattern]
    return tuple(sorted(_matching(names, included, compile) - _matching(names, without, compile)))


def unmatched_patterns(
    topics: Iterable[str], patterns: Iterable[str], compile: Compile = re.compile
) -> tuple[str, ...]:
    """Return the patterns of `matching_topics` that match no topic, in order; empty ones are left out."""
    names = frozenset(topics)
    return tuple(pattern for pattern in patterns if pattern and not _matching(names, [pattern], compile))


def _matching(names: frozenset[str], patterns: Iterable[str], compile: Compile) -> frozenset[str]:
    topics: set[str] = set()
    for pattern in patterns:
        if pattern in names:
            topics.add(pattern)
            continue
        try:
            expression = compile(pattern)
        except re.error as error:
            raise Invalid(f"topic pattern {pattern!r} is not a regular expression: {error}") from error
        topics.update(name for name in names if expression.fullmatch(name))
    return frozenset(topics)


def changes(old_map: PartitionMap, new_map: PartitionMap) -> tuple[MapChange, ...]:
    """Return each partition of a plan with notes about its change.

    Raises:
        Invalid: the maps do not list the same partitions in the same order.
    """
    if [entry.key for entry in old_map] != [entry.key for entry in new_map]:
        raise Invalid("the maps list different partitions; compare a plan's `old_map` with its `new_map`")
    return tuple(
        MapChange(old, new, _notes(old.replicas, new.replicas)) for old, new in zip(old_map, new_map, strict=True)
    )


def _notes(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[str, ...]:
    if old == new:
        return ("no-op",)
    notes = []
    if len(new) < len(old):
        notes.append("decreased replication")
    if len(new) > len(old):
        notes.append("increased replication")
    unchanged = sum(broker in new for broker in old)
    if unchanged < min(len(old), len(new)):
        notes.append("replaced broker")
    elif old[:1] != new[:1] and new[:1] and new[0] in old:
        notes.append("preferred leader")
    return tuple(notes) or ("preferred leader",)


def without_no_ops(old_map: PartitionMap, new_map: PartitionMap) -> PartitionMap:
    """Return the partitions of `new_map` whose replicas or order change."""
    return tuple(new for old, new in zip(old_map, new_map, strict=True) if old.replicas != new.replicas)

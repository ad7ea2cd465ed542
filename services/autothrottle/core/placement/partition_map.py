"""A partition map: which brokers hold the replicas of each partition. The type to know is `PartitionReplicas`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from autothrottle.core.errors import Invalid

TopicPartitionKey = tuple[str, int]
"""(topic, partition)."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")


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

    before: PartitionReplicas
    after: PartitionReplicas
    notes: tuple[str, ...]
    """Some of `decreased replication`, `increased replication`, `preferred leader`, `replaced broker`; or `no-op`."""


def ordered(partitions: Iterable[PartitionReplicas]) -> PartitionMap:
    """Return a map ordered by topic and partition.

    Raises:
        Invalid: the map lists a partition twice.
    """
    raise NotImplementedError


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
    raise NotImplementedError


def matching_topics(topics: Iterable[str], patterns: Iterable[str], excluded: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the topics that match a pattern and no excluded pattern, in order.

    A pattern is a topic's name, or a regular expression that matches a whole name. A name beats an expression: `a.b`
    selects only topic `a.b` if it exists.

    Raises:
        Invalid: a pattern is not a regular expression, or no pattern is given.
    """
    raise NotImplementedError


def changes(before: PartitionMap, after: PartitionMap) -> tuple[MapChange, ...]:
    """Return each partition of a plan with notes about its change.

    Raises:
        Invalid: the maps do not list the same partitions in the same order.
    """
    raise NotImplementedError


def without_no_ops(before: PartitionMap, after: PartitionMap) -> PartitionMap:
    """Return the partitions of `after` whose replicas or order change."""
    return tuple(new for old, new in zip(before, after, strict=True) if old.replicas != new.replicas)

"""A cluster as a plan sees it: brokers, partitions and storage. The type to know is `PlacementCluster`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from autothrottle.core.errors import Incomplete, Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionMap, TopicPartitionKey, sizes_by_topic


@dataclass(frozen=True, slots=True)
class StorageMetrics:
    """Partition sizes and free storage, from one sample."""

    sizes: Mapping[TopicPartitionKey, int] = field(default_factory=dict)
    """(topic, partition) -> bytes of its largest replica."""
    storage_free: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> free bytes; absent: unknown."""
    sampled: datetime | None = None
    """UTC; None: unknown."""
    problems: tuple[str, ...] = ()
    """Values that were skipped, one sentence each."""
    unanswered: tuple[str, ...] = ()
    """Parts of the source that did not answer, one sentence each; the sample is partial then."""
    storage_total: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> bytes of its log directories; absent: unknown."""
    cordoned: frozenset[int] = frozenset()
    """Brokers whose log directories are all cordoned (KIP-1066); the free storage of others excludes cordoned ones."""
    has_exact_names: bool = True
    """Whether the names of topics are Kafka's; False: perhaps those of Datadog, which changes them."""

    def sizes_of(self, topics: Iterable[str]) -> tuple[Mapping[TopicPartitionKey, int], Mapping[str, str]]:
        """Return the sizes of the cluster's topics, by Kafka's names, and why the size of a topic is not clear.

        Args:
            topics: all topics of the cluster.
        """
        return (self.sizes, {}) if self.has_exact_names else sizes_by_topic(topics, self.sizes)


@dataclass(frozen=True, slots=True)
class PlacementCluster:
    """The brokers and partitions of a cluster."""

    brokers: Mapping[int, PlacementBroker]
    """Broker id -> rack, free storage and cordon of each registered broker."""
    partitions: PartitionMap
    """All partitions, after reassignments in progress and without topics that wait for their deletion (T11)."""
    storage_total: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> bytes of its log directories; absent: unknown."""
    problems: tuple[str, ...] = ()
    """Brokers and topics that cannot be read and are absent, one sentence each."""
    unclear_sizes: Mapping[str, str] = field(default_factory=dict)
    """Topic -> why the sample does not say which size is its own."""

    def require_clear_sizes(self, topics: Collection[str]) -> None:
        """Check that no size of these topics may be that of another topic.

        Raises:
            Invalid: a size is not clear.
        """
        for topic in sorted(self.unclear_sizes.keys() & topics):
            raise Invalid(f"size of {topic} is unknown: {self.unclear_sizes[topic]}")

    @property
    def replication(self) -> Mapping[str, int]:
        """Topic -> replicas of its last partition."""
        return {entry.topic: len(entry.replicas) for entry in self.partitions}

    @property
    def storage_totals(self) -> Mapping[int, int]:
        """The storage of each broker; where it is unknown, what is free and what its replicas use."""
        used: dict[int, int] = defaultdict(int)
        for entry in self.partitions:
            for id in entry.replicas:
                used[id] += entry.size or 0
        free = {id: broker.storage_free for id, broker in self.brokers.items() if broker.storage_free is not None}
        return {**{id: size + used[id] for id, size in free.items()}, **self.storage_total}

    def complete(self) -> PlacementCluster:
        """Return the cluster: a plan needs all of it.

        Raises:
            Incomplete: a part of it cannot be read.
        """
        if self.problems:
            raise Incomplete(self.problems[0])
        return self

    def with_storage(self, metrics: StorageMetrics) -> PlacementCluster:
        """Return the cluster with sizes and free storage; what the sample lacks stays unknown."""
        sizes, unclear = metrics.sizes_of({partition.topic for partition in self.partitions})
        return PlacementCluster(
            {
                id: replace(
                    broker,
                    storage_free=metrics.storage_free.get(id),
                    cordoned=broker.cordoned or id in metrics.cordoned,
                )
                for id, broker in self.brokers.items()
            },
            tuple(partition._replace(size=sizes.get(partition.key)) for partition in self.partitions),
            metrics.storage_total,
            unclear_sizes=unclear,
        )

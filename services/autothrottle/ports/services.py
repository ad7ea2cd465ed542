"""The services that other services call, and the sources of the placement service."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import Incomplete, Invalid
from autothrottle.core.operators.submission import Targets
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionMap, TopicPartitionKey, sizes_by_topic
from autothrottle.core.records import PlannerState, Submission


class LeadingPlanner(Protocol):
    """The leading planner, wherever it runs.

    Every method raises Unavailable when no planner answers in time. All methods except `state` raise NotLeader when the
    planners that answer do not lead and do not know the leader.
    """

    def run_cycle(self, reason: str, timeout: timedelta) -> None:
        """Request a cycle and return without waiting for it."""

    def state(self, timeout: timedelta, with_cycle: bool = True) -> PlannerState:
        """Return the leader's state, or another planner's if the leader is unknown or does not answer."""

    def submit_reassignment(self, wanted: Targets, validate_only: bool, timeout: timedelta) -> Submission:
        """Set the throttles of a reassignment and then submit it to Kafka. Idempotent.

        Args:
            wanted: partition -> broker ids of its target replicas.
            validate_only: check the request only; set no throttle and submit nothing.
            timeout: > 0.

        Raises:
            Invalid, Missing: the request is wrong.
            Conflict: nothing was submitted: a partition is already being reassigned to other replicas, another
                submission is in progress, a throttle could not be set, or the planner is paused or in shadow mode.
            Unavailable: the request timed out, or it is unknown whether Kafka accepted it.
        """

    def cancel_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Cancel reassignments; return the partitions that are not cancelled -> why, see `CancelRule`.

        Raises:
            Missing: none of the partitions is being reassigned.
            Invalid: the backend cannot cancel reassignments.
            Conflict: the planner is in shadow mode, or the safety of the partitions cannot be checked now.
            Unavailable: it is unknown whether the request took effect.
        """


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


class ClusterSource(Protocol):
    """Reads the brokers and partitions of a cluster, without storage."""

    def fetch_brokers(self, cordons_of: Collection[int], timeout: timedelta) -> Mapping[int, PlacementBroker]:
        """Return broker id -> its rack, for all registered brokers, without reading the partitions.

        Args:
            cordons_of: only these brokers are asked whether they are cordoned; a silent one counts as not cordoned.
            timeout: > 0.

        Raises:
            Unavailable: the cluster does not answer in time.
        """

    def fetch_cluster(self, timeout: timedelta) -> PlacementCluster:
        """Return the parts of the cluster that can be read, and the problems of the others.

        Raises:
            Unavailable: the cluster does not answer in time.
        """


class StorageMetricsSource(Protocol):
    """Reads partition sizes and free storage."""

    def fetch_storage_metrics(self, timeout: timedelta, broker_ids: Collection[int] | None = None) -> StorageMetrics:
        """Return a sample. Brokers and partitions without a value are absent, with a problem.

        Args:
            timeout: > 0.
            broker_ids: the brokers that are needed, for a source that asks each broker; None: all.

        Raises:
            Unavailable: the source does not answer in time.
            Missing: it has no sample.
            Invalid: the sample cannot be parsed.
        """


class StorageMetricsStore(StorageMetricsSource, Protocol):
    """Keeps the last sample for later plans."""

    def write_storage_metrics(self, metrics: StorageMetrics, compress: bool, timeout: timedelta) -> None:
        """Replace the sample, atomically.

        Args:
            metrics: a sample with at least one partition and one broker; its totals and cordons are not stored.
            compress: whether to store it compressed.
            timeout: > 0.

        Raises:
            Invalid: the sample is empty, or larger than the store accepts.
            Unavailable: the store does not answer; it is unknown whether the sample was replaced.
        """

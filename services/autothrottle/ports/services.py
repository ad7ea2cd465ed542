"""The services that other services call, and the sources of the placement service."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Protocol

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.operators.submission import Targets
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics
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

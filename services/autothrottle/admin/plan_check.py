"""Judges a plan against the cluster before anything is submitted. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from autothrottle.core.cluster.configs import ClusterSettings
from autothrottle.core.cluster.snapshot import Snapshot, SnapshotRequest
from autothrottle.core.errors import AutothrottleError, Missing, Unavailable
from autothrottle.core.operators.plan_refusals import (
    PlanCluster,
    PlanRefusal,
    refusal_error,
    refusals,
    without_refused,
)
from autothrottle.core.operators.submission import Targets
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.core.placement.partition_map import TopicPartitionKey
from autothrottle.core.records import Allowances
from autothrottle.ports.kafka import FetchSettingsSource, SnapshotSource
from autothrottle.ports.services import ClusterSource, StorageMetricsSource

_READ_TIMEOUT = timedelta(seconds=2)
"""Limit of each reading that may stay unknown, so that the call itself does not time out because of it."""

_MAX_SAMPLE_AGE = timedelta(hours=1)
"""An older sample of free storage says nothing about the room of today; topicmappr's `--metrics-age` is the same."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """The part of a plan that may be submitted."""

    targets: Targets
    left_out: tuple[PlanRefusal, ...]
    """Why the other partitions are left out."""
    warnings: tuple[str, ...]
    """What could not be checked, one sentence each."""
    snapshot: Snapshot
    """The cluster, with the assignments of all partitions of the plan."""

    def require_partitions(self) -> None:
        """Raise an error if the plan has no partition that may be submitted.

        Raises:
            Missing, Invalid, Conflict: all partitions are left out.
        """
        if not self.targets:
            raise refusal_error(self.left_out, others=0)


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """Reads what a plan is judged by."""

    snapshots: SnapshotSource
    settings: FetchSettingsSource
    cluster: ClusterSource
    storage: StorageMetricsSource
    state_topic: str = ""
    """The state topic, whose replicas the planner exchanges one at a time; "": the state is in ZooKeeper."""

    def check(self, targets: Targets, allowances: Allowances, timeout: timedelta) -> CheckedPlan:
        """Return the part of a plan that may be submitted: all of it, or with `skip_refused` what is not refused.

        Racks, cordons, storage and `min.insync.replicas` that cannot be read are not checked; a warning says so.

        Raises:
            Missing, Invalid, Conflict: partitions are refused; the message has one line for each reason.
            Unavailable: the cluster cannot be read in time.
            Incomplete: the reassignments cannot be read.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        snapshot = self.snapshots.fetch_snapshot(SnapshotRequest(partitions=targets.keys()), timeout=timeout)
        assignments, warnings = snapshot.assignments, list[str]()
        # The planner knows the next exchange of its own state; to a caller it may look like another reassignment.
        judged = {
            row: target
            for row, target in targets.items()
            if row[0] != self.state_topic or row not in assignments or not assignments[row].moves
        }
        changed = {
            row: target
            for row, target in judged.items()
            if row in assignments and not assignments[row].moves and set(assignments[row].replicas) != set(target)
        }
        adding = {b for row, target in changed.items() for b in target if b not in assignments[row].replicas}
        read = _Readings(deadline, warnings)
        brokers: Mapping[int, PlacementBroker] = {}
        if changed:
            brokers = read("racks and cordons of brokers", lambda limit: self.cluster.fetch_brokers(adding, limit), {})
        metrics = StorageMetrics()
        if brokers_to_read := snapshot.brokers.intersection(adding):
            brokers_to_read |= snapshot.brokers.intersection(assignments[row].leader for row in changed)
            metrics = read("free storage of brokers", lambda limit: self._storage(brokers_to_read, limit), metrics)
        settings = ClusterSettings()
        if cut_topics := sorted(
            {row[0] for row, target in changed.items() if len(target) < len(assignments[row].replicas)}
        ):
            settings = read(
                "min.insync.replicas", lambda limit: self.settings.fetch_settings((), cut_topics, limit), settings
            )
        cluster = PlanCluster(
            snapshot,
            {b: broker.rack for b, broker in brokers.items()},
            {b for b, broker in brokers.items() if broker.cordoned},
            metrics.storage_free,
            self._sizes(metrics, {topic for topic, _ in changed}, read),
            settings.min_in_sync_replicas,
        )
        refused = refusals(cluster, judged, allowances)
        accepted = without_refused(targets, refused)
        if refused and not allowances.skip_refused:
            raise refusal_error(refused, len(accepted))
        return CheckedPlan(accepted, refused, tuple(warnings), snapshot)

    def _sizes(self, metrics: StorageMetrics, topics: Set[str], read: _Readings) -> Mapping[TopicPartitionKey, int]:
        """Return the sizes of partitions. If the sample has names of Datadog, only all topics tell whose size it is."""
        if metrics.has_exact_names or not metrics.sizes:
            return metrics.sizes
        cluster = read(
            "sizes of partitions, whose topics have other names in Datadog", self.cluster.fetch_cluster, None
        )
        if cluster is None:
            return {}
        size_of, unclear = metrics.sizes_of({partition.topic for partition in cluster.partitions})
        read.warnings.extend(
            f"not checked, because its size is unknown: {topic} ({unclear[topic]})"
            for topic in sorted(topics & unclear.keys())
        )
        return size_of

    def _storage(self, broker_ids: frozenset[int], timeout: timedelta) -> StorageMetrics:
        try:
            metrics = self.storage.fetch_storage_metrics(timeout, broker_ids)
        except Missing:  # no metricsfetcher runs
            return StorageMetrics()
        is_old = metrics.sampled is not None and datetime.now(UTC) - metrics.sampled > _MAX_SAMPLE_AGE
        return StorageMetrics() if is_old else metrics


@dataclass(frozen=True, slots=True)
class _Readings:
    """Reads optional facts until a deadline. A reading that fails adds a warning."""

    deadline: float
    warnings: list[str]

    def __call__(self, what: str, fetch: Callable[[timedelta], _T], unknown: _T) -> _T:
        """Return what a call returns within its limit, or else the default, with a warning."""
        limit = min(_READ_TIMEOUT, timedelta(seconds=max(self.deadline - time.monotonic(), 0) / 2))
        try:
            if not limit:
                raise Unavailable("no time is left")
            return fetch(limit)
        except AutothrottleError as error:
            self.warnings.append(f"not checked, because it cannot be read: {what} ({error})")
            return unknown

"""Brokers, partitions and storage for placements, and cordons of brokers, from Kafka's admin API."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.concurrency.subscriptions import time_left
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation, Configs, ConfigValue, LogDirs
from autothrottle.core.errors import Conflict, Invalid, Missing, Unavailable
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics
from autothrottle.core.placement.partition_map import PartitionReplicas, TopicPartitionKey, settled

CORDONED_LOG_DIRS = "cordoned.log.dirs"
"""The broker config with the log directories that accept no new replicas, Kafka 4.3 and later; * means all."""

CORDON_KEYS = (CORDONED_LOG_DIRS, "log.dirs")
"""The configs of a broker that say whether it is cordoned."""


class AdminClusterSource:
    """Brokers and partitions of a cluster; a `ClusterSource`."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self._kafka = kafka

    def fetch_brokers(self, cordons_of: Collection[int], timeout: timedelta) -> Mapping[int, PlacementBroker]:
        deadline = time.monotonic() + timeout.total_seconds()
        racks = self._kafka.racks(timeout=timeout)
        return self._brokers(racks, racks.keys() & set(cordons_of), time_left(deadline))

    def fetch_cluster(self, timeout: timedelta) -> PlacementCluster:
        deadline = time.monotonic() + timeout.total_seconds()
        racks = self._kafka.racks(timeout=timeout)
        listing = self._kafka.reassignments(timeout=time_left(deadline))
        reassigning = {
            (topic, partition): row.target
            for topic, partitions in listing.values.items()
            for partition, row in partitions.items()
        }
        answers = self._kafka.partitions(None, timeout=time_left(deadline))
        # A topic that is deleted between two requests is missing.
        failures = {
            topic: failure
            for topic, failure in (*listing.failures.items(), *answers.failures.items())
            if not isinstance(failure, Missing)
        }
        current = (
            PartitionReplicas(topic, partition, row.replicas)
            for topic, partitions in answers.values.items()
            if topic not in failures
            for partition, row in partitions.items()
        )
        brokers = self._brokers(racks, racks.keys(), time_left(deadline))
        problems = tuple(f"topic {topic} cannot be read: {failure}" for topic, failure in failures.items())
        return PlacementCluster(brokers, settled(current, reassigning), problems=problems)

    def _brokers(
        self, racks: Mapping[int, str], cordons_of: Collection[int], timeout: timedelta
    ) -> Mapping[int, PlacementBroker]:
        """Return the brokers; one is cordoned if all its log directories are (KIP-1066), and not if it is silent."""
        configs = self._kafka.broker_configs(cordons_of, CORDON_KEYS, timeout=timeout).values if cordons_of else {}
        return {
            id: PlacementBroker(id, rack, cordoned=id in configs and is_cordoned(configs[id]))
            for id, rack in sorted(racks.items())
        }


def is_cordoned(values: Configs) -> bool:
    """Return whether all log directories of a broker are cordoned, by its configs `CORDON_KEYS`."""
    cordoned, present = ({*_paths(values.get(key))} for key in CORDON_KEYS)
    return "*" in cordoned or (bool(present) and present <= cordoned)


def _paths(config: ConfigValue | None) -> list[str]:
    return [path.strip() for path in (config.value if config and config.value else "").split(",") if path.strip()]


class LogDirMetrics:
    """Sizes and free storage from DescribeLogDirs; a `StorageMetricsSource`. Free storage needs Kafka 3.3."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self._kafka = kafka

    def fetch_storage_metrics(self, timeout: timedelta, broker_ids: Collection[int] | None = None) -> StorageMetrics:
        deadline, sampled = time.monotonic() + timeout.total_seconds(), datetime.now(UTC)
        brokers = self._kafka.brokers(timeout=timeout) if broker_ids is None else broker_ids
        answers = self._kafka.log_dirs(brokers, timeout=time_left(deadline))
        if not answers.values:
            failure = next(iter(answers.failures.values()), "it has no broker")
            raise Unavailable(f"the cluster reports no log directory: {failure}")
        return storage_metrics(answers.values, sampled, [str(error) for error in answers.failures.values()])


def storage_metrics(brokers: Mapping[int, LogDirs], sampled: datetime, unanswered: Sequence[str]) -> StorageMetrics:
    """Return a sample from the answers of the brokers."""
    sizes: dict[TopicPartitionKey, int] = {}
    for answer in brokers.values():
        for row, size in answer.sizes.items():
            sizes[row] = max(size, sizes.get(row, 0))
    unknown = [
        f"broker {id} does not report its free storage; it needs Kafka 3.3"
        for id in sorted(brokers)
        if brokers[id].usable_bytes is None
    ]
    return StorageMetrics(
        sizes,
        {id: answer.usable_bytes for id, answer in brokers.items() if answer.usable_bytes is not None},
        sampled,
        tuple(unknown),
        tuple(unanswered),
        {id: answer.total_bytes for id, answer in brokers.items() if answer.total_bytes is not None},
        frozenset(id for id, answer in brokers.items() if answer.cordoned),
    )


_ALL = "*"


class KafkaCordons:
    """Sets and removes cordons of whole brokers. It never touches a cordon of single log directories."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self._kafka = kafka

    def cordon(self, broker_ids: Collection[int]) -> tuple[int, ...]:
        """Cordon brokers; return those that were not cordoned before. If one fails, the others are as before.

        Raises:
            Invalid: a broker is older than Kafka 4.3.
            Missing: a broker does not answer.
            Conflict: single log directories of a broker are cordoned.
        """
        current = self._current(broker_ids, "; remove this value first")
        changed: list[int] = []
        try:
            # A busy broker may still report a cordon that has just been removed, so it is written in any case.
            for id in sorted(current):
                if current[id] != _ALL:
                    changed.append(id)
                self._kafka.alter_broker_configs(id, [ConfigEdit(CORDONED_LOG_DIRS, ConfigOperation.SET, _ALL)])
        except Exception:
            self.uncordon(changed)
            raise
        return tuple(changed)

    def uncordon(self, broker_ids: Collection[int]) -> tuple[int, ...]:
        """Remove the cordons of whole brokers; return the brokers that had one. Idempotent.

        Raises:
            Missing: a broker does not answer.
            Conflict: single log directories of a broker are cordoned.
        """
        current = self._current(broker_ids, ", which another party set; it stays")
        for id in current:
            self._kafka.alter_broker_configs(id, [ConfigEdit(CORDONED_LOG_DIRS, ConfigOperation.DELETE)])
        return tuple(sorted(id for id, value in current.items() if value))

    def _current(self, broker_ids: Collection[int], advice: str) -> Mapping[int, str]:
        """Return broker id -> the dynamic value of its config: "" or `_ALL`. `advice` ends the error for others."""
        answers = self._kafka.broker_configs(broker_ids, (CORDONED_LOG_DIRS,))
        for id, failure in answers.failures.items():
            raise Missing(f"broker {id} does not report its configs: {failure}")
        for id, values in answers.values.items():
            if CORDONED_LOG_DIRS not in values:
                raise Invalid(
                    f"broker {id} does not know {CORDONED_LOG_DIRS}: cordons need Kafka 4.3. Fix: leave out --execute, "
                    "and submit the map with `throttlectl reassign`"
                )
        current = {id: values[CORDONED_LOG_DIRS].current or "" for id, values in answers.values.items()}
        for id, value in current.items():
            if value not in ("", _ALL):
                raise Conflict(f"broker {id} has {CORDONED_LOG_DIRS}={value}{advice}")
        return current

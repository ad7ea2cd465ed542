"""Kafka's admin API over an in-memory cluster, with rare behaviour on request: lagging answers and hanging brokers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import (
    Answers,
    ConfigValue,
    PartitionMetadata,
    PartitionReassignment,
)
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.configs import RATE_KEYS, REPLICAS_KEYS, ConfigResource
from autothrottle.core.cluster.snapshot import Problem, TopicPartition
from autothrottle.core.errors import AutothrottleError, Missing, Unavailable
from autothrottle.ports.state_store import LedgerCopy, LedgerReader, Terms


class MemoryKafka(KafkaAdmin):
    """The read methods of a `KafkaAdmin`, and reassignments."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.calls: Counter[str] = Counter()
        """Method -> number of calls."""
        self.silent: set[int] = set()
        """Brokers that are registered but do not answer."""
        self.fenced: set[int] = set()
        self.failures: dict[str, Exception] = {}
        """Method -> the error that it raises."""
        self.topic_failures: dict[str, AutothrottleError] = {}
        """Topic -> the error of every read of it."""
        self.after_listing: Callable[[], None] = lambda: None
        """Called after each list of reassignments is built."""
        self.lagging: Mapping[str, Mapping[int, PartitionMetadata]] | None = None
        """Metadata that a lagging broker reports; None: metadata is up to date."""
        self.views: dict[int, Mapping[str, Mapping[int, PartitionMetadata]]] = {}
        """Broker id -> the metadata that it has; absent: up-to-date metadata."""
        self._lock = threading.Lock()
        self.controllers = False
        """Whether controllers write the configs of brokers that are down."""

    @property
    def has_controllers(self) -> bool:
        return self.controllers

    def close(self) -> None:
        pass

    def brokers(self, *, timeout: timedelta | None = None) -> frozenset[int]:
        self._called("brokers")
        return frozenset(self.cluster.brokers - self.fenced)

    def reassignments(
        self, partitions: Collection[TopicPartition] | None = None, *, timeout: timedelta | None = None
    ) -> Answers[str, Mapping[int, PartitionReassignment]]:
        self._called("reassignments")
        requested = partitions
        reassignments = {
            topic: {
                number: PartitionReassignment(p.replicas, p.adding_replicas, p.removing_replicas)
                for number, p in partitions.items()
                if p.moves and (requested is None or (topic, number) in requested)
            }
            for topic, partitions in dict(self.cluster.topics).items()
        }
        self.after_listing()
        return Answers({topic: partitions for topic, partitions in reassignments.items() if partitions}, {})

    def partitions(
        self, topics: Collection[str] | None, *, timeout: timedelta | None = None
    ) -> Answers[str, Mapping[int, PartitionMetadata]]:
        self._called("partitions")
        known = self.metadata() if self.lagging is None else self.lagging
        return self._answers(known, known if topics is None else topics)

    def metadata(self) -> Mapping[str, Mapping[int, PartitionMetadata]]:
        """Metadata that an up-to-date broker reports."""
        return {
            topic: {number: PartitionMetadata(p.leader, p.replicas, p.isr) for number, p in partitions.items()}
            for topic, partitions in dict(self.cluster.topics).items()
        }

    def partitions_by_broker(
        self, topics: Mapping[int, Collection[str]], *, timeout: timedelta | None = None
    ) -> Answers[int, Mapping[str, Mapping[int, PartitionMetadata]]]:
        self._called("partitions_by_broker")
        views = {b: self.views.get(b, self.metadata()) for b in topics if b not in self.silent}
        return Answers(
            {b: {topic: view[topic] for topic in topics[b] if topic in view} for b, view in views.items()},
            {b: Unavailable(f"broker {b} did not answer") for b in topics if b in self.silent},
        )

    def alter_reassignments(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None], *, until: float | None = None
    ) -> Mapping[TopicPartition, AutothrottleError]:
        self._called("alter_reassignments")
        for (topic, number), target in replicas.items():
            if target is None:
                self.cluster.cancel(topic, number)
            else:
                self.cluster.submit_reassignment(topic, {number: target})
        return {}

    def topic_configs(
        self,
        topics: Collection[str] | None,
        keys: Collection[str] | None = REPLICAS_KEYS,
        *,
        timeout: timedelta | None = None,
    ) -> Answers[str, Mapping[str, ConfigValue]]:
        self._called("topic_configs")
        names = set(self.cluster.topics)
        # `MemoryCluster` allows configs of topics that were never created.
        names |= {r.name for r in dict(self.cluster.configs) if r.path.startswith("topics/")}
        known = {t: self._described(ConfigResource.topic(t), keys or ()) for t in names}
        return self._answers(known, known if topics is None else topics)

    def broker_configs(
        self,
        broker_ids: Collection[int],
        keys: Collection[str] | None = RATE_KEYS,
        *,
        timeout: timedelta | None = None,
    ) -> Answers[int, Mapping[str, ConfigValue]]:
        self._called("broker_configs")
        return Answers(
            {b: self._described(ConfigResource.broker(b), keys or ()) for b in broker_ids if b not in self.silent},
            {b: Unavailable("127.0.0.1:9092 did not answer") for b in broker_ids if b in self.silent},
        )

    def default_broker_configs(
        self, keys: Collection[str] | None = RATE_KEYS, *, timeout: timedelta | None = None
    ) -> Mapping[str, str]:
        self._called("default_broker_configs")
        return {key: value for key, value in self.cluster.default_configs.items() if key in (keys or ())}

    def _called(self, method: str) -> None:
        with self._lock:
            self.calls[method] += 1
        if method in self.failures:
            raise self.failures[method]

    def _answers(self, known: Mapping[str, Mapping], topics: Collection[str]) -> Answers:  # type: ignore[type-arg]
        failures: dict[str, AutothrottleError] = {t: Missing(f"no topic {t}") for t in topics if t not in known}
        failures |= {t: error for t, error in self.topic_failures.items() if t in topics}
        return Answers({t: known[t] for t in topics if t not in failures}, failures)

    def _described(self, resource: ConfigResource, keys: Collection[str]) -> Mapping[str, ConfigValue]:
        """Describe like a broker: a key without its own value has that of `<default>` or the built-in default."""
        found = {}
        for key in keys:
            current = self.cluster.configs.get(resource, {}).get(key)
            default = self.cluster.default_configs.get(key) if resource.path.startswith("brokers/") else None
            found[key] = ConfigValue(current or default or str(2**63 - 1), current, default)
        return found


class MemoryLedger(LedgerReader, Terms):
    """The ledger and the terms of an in-memory cluster."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.unreadable: dict[ConfigResource, Problem] = {}
        self.reads = 0

    def read(self, timeout: timedelta) -> LedgerCopy:
        self.reads += 1
        return LedgerCopy(dict(self.cluster.ledger), dict(self.unreadable))

    def check_term(self, fence: int, deadline: float) -> None:
        self.cluster.electorate.check(fence)

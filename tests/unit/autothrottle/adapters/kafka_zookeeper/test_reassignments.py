"""The partitions on given brokers of a large cluster, in both backends."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin.reassignments import ReassignmentReading as AdminReassignments
from autothrottle.adapters.kafka_admin.values import PartitionMetadata
from autothrottle.adapters.kafka_zookeeper.reassignments import PartitionStates
from autothrottle.adapters.kafka_zookeeper.reassignments import ReassignmentNodes as ZooKeeperReassignments
from autothrottle.adapters.zookeeper.mirror import ParsedNodes, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths

BROKERS, TOPICS, PARTITIONS = 1_000, 100, 1_000
ReplicasByBroker = Mapping[int, Mapping[str, tuple[int, ...]]]
ReplicasOn = Callable[[frozenset[int]], ReplicasByBroker]


@functools.cache
def assignment() -> Mapping[str, Mapping[int, tuple[int, ...]]]:
    """Each topic has replicas on each broker: 300,000 replicas in total."""
    return {
        f"t{t:03}": {p: tuple((t * PARTITIONS + 7 * p + r) % BROKERS for r in range(3)) for p in range(PARTITIONS)}
        for t in range(TOPICS)
    }


def zookeeper_backend() -> ReplicasOn:
    client, kafka = KazooClient(), KafkaPaths()
    mirror = ZnodeMirror(client)
    for topic, partitions in assignment().items():
        data = json.dumps({"version": 1, "partitions": partitions}).encode()
        mirror._values[Part.DATA, kafka.topic(topic)] = (data, 1, 0)
    reassignments = ZooKeeperReassignments(kafka, ParsedNodes(mirror), PartitionStates(client, kafka))
    reassignments.absorb(map(kafka.topic, assignment()))
    return reassignments.replicas_on


def admin_backend() -> ReplicasOn:
    metadata = {
        topic: {p: PartitionMetadata(held[0], held, held) for p, held in partitions.items()}
        for topic, partitions in assignment().items()
    }
    return AdminReassignments(metadata=metadata).replicas_on


@pytest.mark.parametrize("backend", [zookeeper_backend, admin_backend])
def test_replicas_on_reads_all_partitions_once_for_any_number_of_brokers(
    backend: Callable[[], ReplicasOn],
) -> None:
    """An estimate needs all brokers. With 1,000 of them, it blocked all other reads for 5 s (admin API: 9 s)."""
    replicas_on = backend()
    few_brokers, all_brokers = frozenset(range(20)), frozenset(range(BROKERS))
    few_replicas, few_seconds = timed(replicas_on, few_brokers)
    all_replicas, all_seconds = timed(replicas_on, all_brokers)
    assert all_replicas.keys() == all_brokers
    assert all(all_replicas[b] == few_replicas[b] for b in few_brokers)
    assert sum(len(held) for topics in all_replicas.values() for held in topics.values()) == 3 * TOPICS * PARTITIONS
    assert all_seconds < 60 * few_seconds, (few_seconds, all_seconds)


def timed(replicas_on: ReplicasOn, broker_ids: frozenset[int]) -> tuple[ReplicasByBroker, float]:
    """Return the result, and the CPU seconds of this thread."""
    began = time.thread_time()
    found = replicas_on(broker_ids)
    return found, time.thread_time() - began

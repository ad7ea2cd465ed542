"""Which partitions are on which brokers, of a large cluster, in both backends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin.answers import PartitionMetadata
from autothrottle.adapters.kafka_admin.moves import Moves as AdminMoves
from autothrottle.adapters.zookeeper.mirror import Part, ZnodeMirror
from autothrottle.adapters.zookeeper.moves import Moves as ZooKeeperMoves
from autothrottle.adapters.zookeeper.parsed import ParsedNodes
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.states import PartitionStates

BROKERS, TOPICS, PARTITIONS = 1_000, 100, 1_000
Placed = Mapping[int, Mapping[str, tuple[int, ...]]]
ReplicasOn = Callable[[frozenset[int]], Placed]

ASSIGNMENT = {
    f"t{t:03}": {p: tuple((t * PARTITIONS + 7 * p + r) % BROKERS for r in range(3)) for p in range(PARTITIONS)}
    for t in range(TOPICS)
}
"""Each topic is on each broker, which makes 300,000 replicas."""


def by_zookeeper() -> ReplicasOn:
    client, kafka = KazooClient(), KafkaPaths()
    mirror = ZnodeMirror(client)
    for topic, partitions in ASSIGNMENT.items():
        data = json.dumps({"version": 1, "partitions": partitions}).encode()
        mirror._values[Part.DATA, kafka.topic(topic)] = (data, 1, 0)
    moves = ZooKeeperMoves(kafka, ParsedNodes(mirror), PartitionStates(client, kafka))
    moves.absorb(map(kafka.topic, ASSIGNMENT))
    return moves.replicas_on


def by_admin_api() -> ReplicasOn:
    metadata = {
        topic: {p: PartitionMetadata(held[0], held, held) for p, held in partitions.items()}
        for topic, partitions in ASSIGNMENT.items()
    }
    return AdminMoves(metadata=metadata).replicas_on


@pytest.mark.parametrize("backend", [by_zookeeper, by_admin_api])
def test_where_everything_is_takes_one_pass_however_many_brokers_are_asked_for(
    backend: Callable[[], ReplicasOn],
) -> None:
    """An estimate asks for all: with 1,000 brokers nothing else was read for 5 s, and by the admin API it took 9 s."""
    replicas_on = backend()
    some, everybody = frozenset(range(20)), frozenset(range(BROKERS))
    few, took_few = timed(replicas_on, some)
    all_, took_all = timed(replicas_on, everybody)
    assert all_.keys() == everybody
    assert all(all_[b] == few[b] for b in some)
    assert sum(len(held) for topics in all_.values() for held in topics.values()) == 3 * TOPICS * PARTITIONS
    assert took_all < 60 * took_few, (took_few, took_all)


def timed(replicas_on: ReplicasOn, broker_ids: frozenset[int]) -> tuple[Placed, float]:
    """What is returned, and the seconds of this thread that it took."""
    began = time.thread_time()
    found = replicas_on(broker_ids)
    return found, time.thread_time() - began

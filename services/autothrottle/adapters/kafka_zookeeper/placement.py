"""Brokers and partitions for placements, from the nodes that Kafka keeps in ZooKeeper mode."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.concurrency.deadlines import seconds_left
from autothrottle.adapters.zookeeper.bulk import read_nodes
from autothrottle.adapters.zookeeper.codec import TopicNode, parse_reassignments, parse_topic, registered_rack
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.broker_ids import broker_id_of
from autothrottle.core.errors import Incomplete, Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas, TopicPartitionKey, settled
from autothrottle.ports.placement import PlacementCluster


class ZooKeeperClusterSource:
    """Brokers and partitions of a cluster in ZooKeeper mode; a `ClusterSource`."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths) -> None:
        self._client, self._kafka = client, kafka

    def fetch_cluster(self, timeout: timedelta) -> PlacementCluster:
        deadline = time.monotonic() + timeout.total_seconds()
        with translated_errors("reading brokers and topics"):
            brokers = self._nodes(self._kafka.broker_ids, deadline)
            topics = self._nodes(self._kafka.topics, deadline)
            deleting = self._children(self._kafka.topics_to_delete, deadline)
            requested = read_nodes(self._client, [self._kafka.reassign_partitions], deadline)[0]
        nodes = {name: self._topic(name, data) for name, data in topics.items()}
        targets = dict(_targets(nodes))
        if requested and requested[0]:
            targets |= parse_reassignments(requested[0])
        current = (
            PartitionReplicas(topic, partition, replicas)
            for topic, node in nodes.items()
            for partition, replicas in node.replicas.items()
        )
        racks = {id: _rack(id, data) for name, data in brokers.items() if (id := broker_id_of(name)) is not None}
        found = {id: PlacementBroker(id, racks[id]) for id in sorted(racks)}
        return PlacementCluster(found, settled(current, targets, frozenset(deleting)))

    def _nodes(self, parent: str, deadline: float) -> Mapping[str, bytes]:
        """Return the name -> data of each child; one that disappears meanwhile is absent."""
        names = sorted(self._children(parent, deadline))
        nodes = read_nodes(self._client, [f"{parent}/{name}" for name in names], deadline)
        return {name: node[0] or b"" for name, node in zip(names, nodes, strict=True) if node is not None}

    def _children(self, parent: str, deadline: float) -> list[str]:
        try:
            children: list[str] = self._client.get_children_async(parent).get(timeout=seconds_left(deadline))
        except NoNodeError:
            return []
        return children

    def _topic(self, name: str, data: bytes) -> TopicNode:
        try:
            return parse_topic(data)
        except Invalid as error:
            raise Incomplete(f"{self._kafka.topic(name)}: {error}") from None


def _targets(nodes: Mapping[str, TopicNode]) -> Iterator[tuple[TopicPartitionKey, tuple[int, ...]]]:
    for topic, node in nodes.items():
        for partition in node.adding_replicas.keys() | node.removing_replicas.keys():
            removing = node.removing_replicas.get(partition, ())
            replicas = node.replicas.get(partition, ())
            yield (topic, partition), tuple(b for b in replicas if b not in removing)


def _rack(broker_id: int, data: bytes) -> str:
    try:
        return registered_rack(data)
    except Invalid as error:
        raise Incomplete(f"broker {broker_id}: {error}") from None

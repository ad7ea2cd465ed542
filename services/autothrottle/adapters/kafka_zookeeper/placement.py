"""Brokers and partitions, from the nodes that Kafka keeps in ZooKeeper mode.

`ZooKeeperClusterSource` reads them for placements, and `ZooKeeperRegistrations` which brokers run and where.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.zookeeper.bulk import read_nodes
from autothrottle.adapters.zookeeper.codec import (
    TopicNode,
    parse_reassignments,
    parse_topic,
    registered_hosts,
    registered_rack,
)
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import broker_id_of, validate_topic
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas, TopicPartitionKey, settled

_Name = TypeVar("_Name")
_Value = TypeVar("_Value")


class ZooKeeperClusterSource:
    """Brokers and partitions of a cluster in ZooKeeper mode; a `ClusterSource`."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths) -> None:
        self._client, self._kafka = client, kafka

    def fetch_brokers(self, cordons_of: Collection[int], timeout: timedelta) -> Mapping[int, PlacementBroker]:
        # Kafka in ZooKeeper mode has no cordons.
        deadline = time.monotonic() + timeout.total_seconds()
        with translated_errors("reading the brokers' racks"):
            nodes = self._nodes(self._kafka.broker_ids, deadline)
        return self._brokers(nodes)[0]

    def fetch_cluster(self, timeout: timedelta) -> PlacementCluster:
        deadline = time.monotonic() + timeout.total_seconds()
        with translated_errors("reading brokers and topics"):
            brokers = self._nodes(self._kafka.broker_ids, deadline)
            topics = self._nodes(self._kafka.topics, deadline)
            deleting = self._children(self._kafka.topics_to_delete, deadline)
            requested = read_nodes(self._client, [self._kafka.reassign_partitions], deadline)[0]
        nodes, problems = _parsed(topics, lambda name: parse_topic(topics[validate_topic(name)]), self._kafka.topic)
        targets = dict(running_targets(nodes))
        path, submitted = self._kafka.reassign_partitions, requested[0] if requested else None
        requests, unreadable = _parsed(
            [path] if submitted else [], lambda _: parse_reassignments(submitted or b""), str
        )
        problems += unreadable
        targets |= requests.get(path, {})
        current = (
            PartitionReplicas(topic, partition, replicas)
            for topic, node in nodes.items()
            for partition, replicas in node.replicas.items()
        )
        placement_brokers, unreadable = self._brokers(brokers)
        return PlacementCluster(
            placement_brokers, settled(current, targets, frozenset(deleting)), problems=(*problems, *unreadable)
        )

    def _brokers(self, nodes: Mapping[str, bytes]) -> tuple[Mapping[int, PlacementBroker], list[str]]:
        ids = {id: name for name in nodes if (id := broker_id_of(name)) is not None}
        racks, problems = _parsed(sorted(ids), lambda id: registered_rack(nodes[ids[id]]), "broker {}".format)
        return {id: PlacementBroker(id, rack) for id, rack in racks.items()}, problems

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


class ZooKeeperRegistrations:
    """A `BrokerRegistry`: reads nodes, independently of any snapshot that is being read."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths) -> None:
        self._client, self._kafka = client, kafka

    def is_registered(self, broker_id: int, timeout: timedelta) -> bool:
        with translated_errors("looking for a broker"):
            node = self._client.exists_async(f"{self._kafka.broker_ids}/{broker_id}")
            return node.get(timeout=timeout.total_seconds()) is not None

    def fetch_hosts(self, timeout: timedelta) -> Mapping[int, Sequence[str]]:
        deadline = time.monotonic() + timeout.total_seconds()
        with translated_errors("reading the brokers' hosts"):
            ids = self._client.get_children_async(self._kafka.broker_ids).get(timeout=seconds_left(deadline))
            nodes = {name: self._client.get_async(f"{self._kafka.broker_ids}/{name}") for name in ids}
            hosts_of_brokers: dict[int, Sequence[str]] = {}
            for name, node in nodes.items():
                broker_id = broker_id_of(name)
                with suppress(NoNodeError, NoAuthError, Invalid):  # it has stopped, or cannot be read
                    if broker_id is not None:
                        hosts_of_brokers[broker_id] = registered_hosts(node.get(timeout=seconds_left(deadline))[0])
        return hosts_of_brokers


def running_targets(nodes: Mapping[str, TopicNode]) -> Iterator[tuple[TopicPartitionKey, tuple[int, ...]]]:
    """Yield each partition that is being reassigned, with its target."""
    for topic, node in nodes.items():
        for partition in node.adding_replicas.keys() | node.removing_replicas.keys():
            removing = node.removing_replicas.get(partition, ())
            replicas = node.replicas.get(partition, ())
            yield (topic, partition), tuple(b for b in replicas if b not in removing)


def _parsed(
    names: Iterable[_Name], parse: Callable[[_Name], _Value], shown: Callable[[_Name], str]
) -> tuple[dict[_Name, _Value], list[str]]:
    """Return name -> value of the nodes that can be parsed, and the problems of the others."""
    values: dict[_Name, _Value] = {}
    problems = []
    for name in names:
        try:
            values[name] = parse(name)
        except Invalid as error:
            problems.append(f"{shown(name)}: {error}")
    return values, problems

"""Which brokers run, read from a real ZooKeeper."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_zookeeper.registrations import ZooKeeperRegistrations
from autothrottle.core.errors import Unavailable
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.zookeeper_tree import Tree, freeze, session

SLACK = timedelta(seconds=30)


def test_a_broker_is_registered_for_as_long_as_its_node_is_there(zookeeper: ZooKeeperServer) -> None:
    with session(zookeeper) as client:
        tree = Tree(client)
        registry = ZooKeeperRegistrations(client, tree.kafka)
        assert registry.is_registered(1001, SLACK)
        client.delete(f"{tree.kafka.broker_ids}/1001")
        assert not registry.is_registered(1001, SLACK)


def test_a_zookeeper_that_does_not_answer_is_unavailable(fresh_zookeeper: ZooKeeperServer) -> None:
    with session(fresh_zookeeper) as client:
        registry = ZooKeeperRegistrations(client, Tree(client).kafka)
        freeze(fresh_zookeeper)
        with pytest.raises(Unavailable, match="while looking for a broker"):
            registry.is_registered(1001, timedelta(seconds=0.2))
        fresh_zookeeper.thaw()

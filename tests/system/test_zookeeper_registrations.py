"""The broker registrations in a real ZooKeeper."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_zookeeper.registrations import ZooKeeperRegistrations
from autothrottle.core.errors import Unavailable
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.zookeeper_tree import Tree, freeze, session

SLACK = timedelta(seconds=30)


def test_broker_is_registered_while_its_znode_exists(zookeeper: ZooKeeperServer) -> None:
    with session(zookeeper) as client:
        tree = Tree(client)
        registry = ZooKeeperRegistrations(client, tree.kafka)
        assert registry.is_registered(1001, SLACK)
        client.delete(f"{tree.kafka.broker_ids}/1001")
        assert not registry.is_registered(1001, SLACK)


def test_lookup_is_unavailable_while_zookeeper_is_frozen(fresh_zookeeper: ZooKeeperServer) -> None:
    with session(fresh_zookeeper) as client:
        registry = ZooKeeperRegistrations(client, Tree(client).kafka)
        freeze(fresh_zookeeper)
        with pytest.raises(Unavailable, match="while looking for a broker"):
            registry.is_registered(1001, timedelta(seconds=0.2))
        fresh_zookeeper.thaw()

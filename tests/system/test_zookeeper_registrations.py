"""The broker registrations in a real ZooKeeper."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_zookeeper.placement import ZooKeeperRegistrations
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


def test_hosts_are_those_of_all_listeners(zookeeper: ZooKeeperServer) -> None:
    """Kafka writes no host if no listener is PLAINTEXT; a malformed registration must not hide the others."""
    with session(zookeeper) as client:
        tree = Tree(client)
        listeners = {"endpoints": ["SASL_SSL://b1.example:9093", "INTERNAL://[::1]:9094"], "host": None, "port": -1}
        client.set(f"{tree.kafka.broker_ids}/1001", json.dumps(listeners).encode())
        client.set(f"{tree.kafka.broker_ids}/1002", b"[]")
        found = ZooKeeperRegistrations(client, tree.kafka).fetch_hosts(SLACK)
        assert found[1001] == ("b1.example", "::1")
        assert 1002 not in found
        assert len(found) > 1


def test_lookup_is_unavailable_while_zookeeper_is_frozen(fresh_zookeeper: ZooKeeperServer) -> None:
    with session(fresh_zookeeper) as client:
        registry = ZooKeeperRegistrations(client, Tree(client).kafka)
        freeze(fresh_zookeeper)
        with pytest.raises(Unavailable, match="while looking for a broker"):
            registry.is_registered(1001, timedelta(seconds=0.2))
        with pytest.raises(Unavailable, match="while reading the brokers' hosts"):
            registry.fetch_hosts(timedelta(seconds=0.2))
        fresh_zookeeper.thaw()

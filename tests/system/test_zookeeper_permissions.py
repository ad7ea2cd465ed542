"""The ACLs of znodes on a real ZooKeeper: what this client may not do is named, and nothing is written."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Id, Permissions

from autothrottle.adapters.zookeeper.permissions import ZooKeeperPermissions
from autothrottle.core.cluster.configs import ConfigResource
from tests.system.zookeeper_tree import Tree

TIMEOUT = timedelta(seconds=10)
OF_KAFKA = [ACL(Permissions.ALL, Id("digest", "kafka:x"))]
READABLE = [*OF_KAFKA, ACL(Permissions.READ, Id("world", "anyone"))]


@pytest.fixture
def tree(client: KazooClient) -> Tree:
    tree = Tree(client)
    client.create(tree.kafka.reassign_partitions.rpartition("/")[0], b"")
    for topic in ("a", "b"):
        tree.set_config(ConfigResource.topic(topic), {})
    return tree


def missing(tree: Tree, own: bool, submits: bool = True) -> dict[str, str]:
    paths = tree.own if own else tree.kafka
    sentences = ZooKeeperPermissions(tree.client, paths, submits).fetch_missing_permissions(TIMEOUT)
    return {path: text.partition(". Fix:")[0] for path, text in sentences.items()}


def test_open_znodes_allow_everything(tree: Tree) -> None:
    tree.begin_term()
    assert missing(tree, own=True) == {} == missing(tree, own=False)


def test_each_znode_that_only_kafka_may_write_is_named(tree: Tree) -> None:
    """With zookeeper.set.acl=true the first throttle was refused, after the reassignment had begun."""
    changes, topic = f"{tree.kafka.configs}/changes", tree.kafka.config(ConfigResource.topic("a"))
    admin = tree.kafka.reassign_partitions.rpartition("/")[0]
    for path, entries in ((changes, READABLE), (topic, READABLE), (admin, OF_KAFKA)):
        tree.client.set_acls(path, entries)
    assert missing(tree, own=False) == {
        changes: "this client may not create: its ACL is digest:kafka:x rwcda, world:anyone r",
        admin: "this client may not create: it hides its ACL",
        topic: "this client may not write: its ACL is digest:kafka:x rwcda, world:anyone r",
    }
    assert admin not in missing(tree, own=False, submits=False)


def test_place_of_a_state_that_does_not_exist_yet_must_allow_its_creation(tree: Tree) -> None:
    parent = tree.own.root.rpartition("/")[0]
    assert missing(tree, own=True) == {}
    tree.client.set_acls(parent, READABLE)
    assert missing(tree, own=True) == {
        parent: "this client may not create: its ACL is digest:kafka:x rwcda, world:anyone r"
    }
    assert tree.nodes() == set()


def test_entry_for_the_address_of_this_client_allows(tree: Tree) -> None:
    tree.begin_term()
    for network, expected in (("127.0.0.0/8", set()), ("10.0.0.0/8", {tree.own.term})):
        tree.client.set_acls(tree.own.term, [ACL(Permissions.ALL, Id("ip", network))])
        assert set(missing(tree, own=True)) == expected

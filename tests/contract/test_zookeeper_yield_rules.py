"""Yield rules in a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.adapters.zookeeper_state.yield_rules import ZooKeeperYieldRules
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.control.stored_map import unreadable_entries
from autothrottle.core.errors import Incomplete
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.contract.yield_rule_store_contract import RATE, SHARE, YieldRuleStoreContract
from tests.system.zookeeper_tree import Tree, session


@pytest.fixture
def tree(zookeeper: ZooKeeperServer) -> Iterator[Tree]:
    with session(zookeeper) as client:
        yield Tree(client)


@pytest.fixture
def store(zookeeper: ZooKeeperServer, tree: Tree) -> Iterator[ZooKeeperYieldRules]:
    with session(zookeeper) as client, closing(ZooKeeperYieldRules(client, tree.own)) as made:
        yield made


@pytest.fixture
def newest(tree: Tree) -> Callable[[], Sequence[StoredAuditRecord]]:
    trail = AuditTrail(tree.client, tree.own, timedelta(seconds=60))
    return lambda: trail.newest(10).records


class TestZooKeeperYieldRules(YieldRuleStoreContract):
    pass


def test_a_node_that_cannot_be_parsed_is_named_with_the_fix(tree: Tree, store: ZooKeeperYieldRules) -> None:
    tree.write(tree.own.yield_rules, b"5")
    for call in (store.read_rules, lambda: store.set_rule(RATE), lambda: store.remove_rule("etl")):
        with pytest.raises(Incomplete, match=r"yield_rules cannot be parsed.*delete the node"):
            call()


@pytest.mark.parametrize(
    "edits",
    [{"floor": 0}, {"floor": "5"}, {"at_most": 5}, {"user": 5}, {"keys": ["rate"]}, {"keys": []}, {"time": "noon"}],
)
def test_a_wrong_rule_is_a_finding_and_the_others_apply(
    tree: Tree, store: ZooKeeperYieldRules, edits: dict[str, object]
) -> None:
    store.set_rule(SHARE)
    node = json.loads(tree.client.get(tree.own.yield_rules)[0])
    node["rules"]["wrong"] = {**node["rules"]["etl"], **edits}
    tree.write(tree.own.yield_rules, json.dumps(node).encode())
    rules = store.read_rules()
    assert rules == {"etl": SHARE}
    assert "yield_rules: entry 'wrong' cannot be read" in unreadable_entries(rules)["wrong"]


def test_fields_of_newer_versions_are_ignored(tree: Tree, store: ZooKeeperYieldRules) -> None:
    store.set_rule(SHARE)
    node = json.loads(tree.client.get(tree.own.yield_rules)[0])
    node["newer"] = node["rules"]["etl"]["newer"] = 1
    tree.write(tree.own.yield_rules, json.dumps(node).encode())
    assert store.read_rules() == {"etl": SHARE}

"""Yield rules in a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.adapters.zookeeper_state.yield_rules import ZooKeeperYieldRules, format_rules, parse_rules
from autothrottle.core.control.audit import AuditRecord
from autothrottle.core.errors import Invalid
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
def newest(tree: Tree) -> Callable[[], Sequence[AuditRecord]]:
    trail = AuditTrail(tree.client, tree.own, timedelta(seconds=60))
    return lambda: trail.newest(10)


class TestZooKeeperYieldRules(YieldRuleStoreContract):
    pass


def test_a_node_that_cannot_be_parsed_is_named_with_the_fix(tree: Tree, store: ZooKeeperYieldRules) -> None:
    tree.write(tree.own.yield_rules, b"5")
    for call in (store.read_rules, lambda: store.set_rule(RATE), lambda: store.remove_rule("etl")):
        with pytest.raises(Invalid, match="yield_rules cannot be parsed; delete the node"):
            call()


@pytest.mark.parametrize(
    "edits",
    [{"floor": 0}, {"floor": "5"}, {"at_most": 5}, {"user": 5}, {"keys": ["rate"]}, {"keys": []}, {"time": "noon"}],
)
def test_a_node_with_a_wrong_rule_is_refused(edits: dict[str, object]) -> None:
    node = json.loads(format_rules({"etl": SHARE}))
    node["rules"]["etl"].update(edits)
    with pytest.raises(Invalid, match="/own/yield_rules cannot be parsed; delete the node"):
        parse_rules(json.dumps(node).encode(), "/own/yield_rules")


def test_fields_of_newer_versions_are_ignored() -> None:
    node = json.loads(format_rules({"etl": SHARE}))
    node["newer"] = node["rules"]["etl"]["newer"] = 1
    assert parse_rules(json.dumps(node).encode(), "") == {"etl": SHARE}

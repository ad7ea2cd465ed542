"""Uninstalling removes all own znodes from ZooKeeper, except operators' settings, their audit log, and the term."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.state_store.operator_stores import NodeOverrides
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper_state.membership import remove_own_tree
from autothrottle.adapters.zookeeper_state.nodes import ZooKeeperNodeStore
from autothrottle.core.cluster.configs import LEADER_RATE, ConfigResource, LedgerEntry, LedgerKey
from autothrottle.core.errors import Conflict
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.ports.kafka import Term
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import change, eventually
from tests.contract.election_contract import leading, nothing
from tests.system.zookeeper_tree import Tree, session

TIMEOUT = timedelta(seconds=20)
SET, UNSET = (LEADER_RATE, None, "5"), (LEADER_RATE, "5", None)
ENTRY = LedgerEntry({LEADER_RATE: LedgerKey(None, "5")}, 1)
BROKER_PATH, TOPIC_PATH = "brokers/1001", "topics/t1"


class Installation:
    """The znodes that a running autothrottle creates."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.tree = Tree(stack.enter_context(session(server)))
        self.client = stack.enter_context(session(server))
        self.election = ZooKeeperElection(stack.enter_context(session(server)), self.tree.own, timedelta(seconds=10))
        stack.callback(self.election.leave)
        self.election.join("host1:1", nothing)
        eventually(lambda: leading(self.election))
        overrides = NodeOverrides(ZooKeeperNodeStore(self.client, self.tree.own))
        overrides.set_override(None, StoredOverride(5))
        overrides.set_override(1001, StoredOverride(7))
        overrides.close()
        self.apply(SET)

    def apply(self, edit: tuple[str, str | None, str | None]) -> None:
        term = self.election.term
        assert term is not None
        ledger = ENTRY if edit == SET else None
        changes = [change(path, edit, ledger=ledger) for path in (BROKER_PATH, TOPIC_PATH)]
        ZooKeeperConfigWriter(self.client, self.tree.kafka, self.tree.own).apply(Term(term.fence), changes, TIMEOUT)


@pytest.fixture
def installation(zookeeper: ZooKeeperServer) -> Iterator[Installation]:
    with contextlib.ExitStack() as stack:
        yield Installation(zookeeper, stack)


def test_removal_keeps_only_overrides_the_audit_log_and_the_term(installation: Installation) -> None:
    fence = installation.election.term
    installation.apply(UNSET)
    installation.election.leave()
    remove_own_tree(installation.client, installation.tree.own)
    changes = {"/audit", "/audit/change-0000000000", "/audit/change-0000000001"}
    (origin,) = installation.client.get_children(installation.tree.own.term)
    assert installation.tree.nodes() == {"/override_rate", "/override_rate/1001", "/term", f"/term/{origin}"} | changes
    remove_own_tree(installation.client, installation.tree.own)
    leader = installation.election.leader()
    assert fence is not None and leader is not None and leader.fence == fence.fence


def test_removal_is_refused_while_the_ledger_has_entries(installation: Installation) -> None:
    installation.election.leave()
    with pytest.raises(Conflict, match=r"/ledger/brokers is not empty; remove autothrottle's throttles first"):
        remove_own_tree(installation.client, installation.tree.own)
    assert installation.tree.ledger(ConfigResource(BROKER_PATH)) == ENTRY
    assert installation.tree.ledger(ConfigResource(TOPIC_PATH)) == ENTRY


def test_removal_is_refused_while_a_candidate_runs_and_the_candidate_continues(installation: Installation) -> None:
    installation.apply(UNSET)
    before = installation.tree.nodes()
    with pytest.raises(Conflict, match=r"/election is not empty; stop every planner first"):
        remove_own_tree(installation.client, installation.tree.own)
    assert installation.tree.nodes() == before
    installation.apply(SET)


def test_removing_a_missing_tree_does_nothing(zookeeper: ZooKeeperServer) -> None:
    with session(zookeeper) as client:
        tree = Tree(client)
        remove_own_tree(client, tree.own)
        assert tree.nodes() == set()


def test_next_installation_recreates_the_removed_tree(installation: Installation) -> None:
    installation.apply(UNSET)
    installation.election.leave()
    remove_own_tree(installation.client, installation.tree.own)
    again = ZooKeeperElection(installation.client, installation.tree.own, timedelta(seconds=10))
    again.join("host2:1", nothing)
    try:
        eventually(lambda: leading(again))
        installation.election = again
        installation.apply(SET)
        assert installation.tree.ledger(ConfigResource(TOPIC_PATH)) == ENTRY
    finally:
        again.leave()

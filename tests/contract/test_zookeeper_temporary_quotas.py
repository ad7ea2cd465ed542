"""Temporary client quotas in a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.adapters.zookeeper_state.temporary_quotas import ZooKeeperTemporaryQuotas
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.control.stored_map import unreadable_entries
from autothrottle.core.errors import Incomplete
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.contract.temporary_quota_store_contract import FIRST, TemporaryQuotaStoreContract
from tests.system.zookeeper_tree import Tree, session


@pytest.fixture
def tree(zookeeper: ZooKeeperServer) -> Iterator[Tree]:
    with session(zookeeper) as client:
        yield Tree(client)


@pytest.fixture
def store(zookeeper: ZooKeeperServer, tree: Tree) -> Iterator[ZooKeeperTemporaryQuotas]:
    with session(zookeeper) as client, closing(ZooKeeperTemporaryQuotas(client, tree.own)) as made:
        yield made


@pytest.fixture
def fence(tree: Tree) -> int:
    return tree.begin_term()


@pytest.fixture
def newest(tree: Tree) -> Callable[[], Sequence[StoredAuditRecord]]:
    trail = AuditTrail(tree.client, tree.own, timedelta(seconds=60))
    return lambda: trail.newest(10).records


class TestZooKeeperTemporaryQuotas(TemporaryQuotaStoreContract):
    pass


@pytest.mark.parametrize("text", [b"", b"5", b'{"quotas":[]}', b'{"quotas":{},"version":2}'])
def test_a_node_that_cannot_be_parsed_is_named_with_the_fix(
    tree: Tree, store: ZooKeeperTemporaryQuotas, text: bytes
) -> None:
    tree.write(tree.own.temporary_quotas, text)
    for call in (store.read_temporary_quotas, lambda: store.set_temporary_quota(FIRST)):
        with pytest.raises(Incomplete, match=r"temporary_quotas cannot be parsed.*delete the node"):
            call()


@pytest.mark.parametrize(
    "edits",
    [{"values": {"producer_byte_rate": "x"}}, {"values": {"y": "1"}}, {"author": "\ud800"}, {"expire_time": "noon"}],
)
def test_an_unreadable_quota_is_a_finding_and_the_others_apply(
    tree: Tree, store: ZooKeeperTemporaryQuotas, edits: dict[str, object]
) -> None:
    """One odd entry made the whole node unreadable, so that no temporary quota was set or ended."""
    store.set_temporary_quota(FIRST)
    node = json.loads(tree.client.get(tree.own.temporary_quotas)[0])
    node["quotas"]["users/odd"] = {**node["quotas"][FIRST.entity.path], **edits}
    tree.write(tree.own.temporary_quotas, json.dumps(node).encode())
    quotas = store.read_temporary_quotas()
    assert quotas == {FIRST.entity: FIRST}
    assert "temporary_quotas: entry 'users/odd' cannot be read" in unreadable_entries(quotas)["users/odd"]

"""Temporary client quotas in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.adapters.zookeeper_state.temporary_quotas import ZooKeeperTemporaryQuotas
from autothrottle.core.control.audit import AuditRecord
from autothrottle.core.errors import Invalid
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
def newest(tree: Tree) -> Callable[[], Sequence[AuditRecord]]:
    trail = AuditTrail(tree.client, tree.own, timedelta(seconds=60))
    return lambda: trail.newest(10)


class TestZooKeeperTemporaryQuotas(TemporaryQuotaStoreContract):
    pass


@pytest.mark.parametrize("text", [b"", b"5", b'{"quotas":{"topics/t1":{}}}', b'{"quotas":{"users/a":{"values":{}}}}'])
def test_a_node_that_cannot_be_parsed_is_named_with_the_fix(
    tree: Tree, store: ZooKeeperTemporaryQuotas, text: bytes
) -> None:
    tree.write(tree.own.temporary_quotas, text)
    for call in (store.read_temporary_quotas, lambda: store.set_temporary_quota(FIRST)):
        with pytest.raises(Invalid, match="temporary_quotas cannot be parsed; delete the node"):
            call()

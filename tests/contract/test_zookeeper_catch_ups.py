"""Catch-ups in a real ZooKeeper: they outlive sessions, and concurrent changes do not overwrite one another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.adapters.zookeeper_state.catch_ups import ZooKeeperCatchUps
from autothrottle.core.control.audit import AuditRecord
from autothrottle.core.control.catch_up import CatchUp
from autothrottle.core.errors import Invalid
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.contract.catch_up_store_contract import FIRST, SECOND, CatchUpStoreContract
from tests.system.zookeeper_tree import Tree, session


class Subject:
    """Stores of two sessions on one tree."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.server = server
        self.tree = Tree(stack.enter_context(session(server)))
        self.stores = [ZooKeeperCatchUps(stack.enter_context(session(server)), self.tree.own) for _ in range(2)]
        for store in self.stores:
            stack.callback(store.close)


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


class TestZooKeeperCatchUps(CatchUpStoreContract):
    @pytest.fixture
    def store(self, subject: Subject) -> ZooKeeperCatchUps:
        return subject.stores[0]

    @pytest.fixture
    def fence(self, subject: Subject) -> int:
        return subject.tree.begin_term()

    @pytest.fixture
    def newest(self, subject: Subject) -> Iterator[Callable[[], Sequence[AuditRecord]]]:
        with session(subject.server) as client:
            trail = AuditTrail(client, subject.tree.own, timedelta(seconds=60))
            yield lambda: trail.newest(10)


def test_catch_up_of_another_session_is_seen_and_outlives_it(subject: Subject) -> None:
    with session(subject.server) as another:
        store = ZooKeeperCatchUps(another, subject.tree.own)
        store.start_catch_up(FIRST)
        store.close()
    eventually(lambda: subject.stores[0].read_catch_ups() == {1001: FIRST})


def test_concurrent_changes_of_two_sessions_lose_nothing(subject: Subject) -> None:
    wanted = [CatchUp(broker_id) for broker_id in range(1, 13)]
    with ThreadPoolExecutor(2) as pool:
        for number, store in enumerate(subject.stores):
            for catch_up in wanted[number::2]:
                pool.submit(store.start_catch_up, catch_up)
    eventually(lambda: set(subject.stores[0].read_catch_ups()) == {catch_up.broker_id for catch_up in wanted})


def test_purge_is_one_transaction_that_checks_the_term(subject: Subject) -> None:
    store = subject.stores[0]
    store.start_catch_up(FIRST)
    store.start_catch_up(SECOND)
    fence, before = subject.tree.begin_term(), subject.server.last_zxid()
    assert store.purge_catch_up(fence, SECOND)
    assert subject.server.last_zxid() - before == 1
    eventually(lambda: store.read_catch_ups() == {1001: FIRST})


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"brokers":{"x":{}}}', b'{"brokers":{"1":{"author":""}}}', b"\xff"]
)
def test_error_names_the_path_of_an_unreadable_node(subject: Subject, data: bytes) -> None:
    subject.tree.write(subject.tree.own.catch_ups, data)
    with pytest.raises(Invalid, match=subject.tree.own.catch_ups):
        subject.stores[0].read_catch_ups()
    with pytest.raises(Invalid, match="delete the node"):
        subject.stores[0].start_catch_up(FIRST)

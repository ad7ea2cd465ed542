"""Catch-ups in a real ZooKeeper: they outlive sessions, and concurrent changes do not overwrite one another."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.adapters.zookeeper_state.catch_ups import ZooKeeperCatchUps
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.control.stored_map import unreadable_entries
from autothrottle.core.errors import Incomplete
from autothrottle.core.records import CatchUp
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
    def newest(self, subject: Subject) -> Iterator[Callable[[], Sequence[StoredAuditRecord]]]:
        with session(subject.server) as client:
            trail = AuditTrail(client, subject.tree.own, timedelta(seconds=60))
            yield lambda: trail.newest(10).records


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


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"brokers":[1]}', b'{"version":2,"brokers":{}}', b"\xff"])
def test_error_names_the_path_of_an_unreadable_node(subject: Subject, data: bytes) -> None:
    subject.tree.write(subject.tree.own.catch_ups, data)
    with pytest.raises(Incomplete, match=subject.tree.own.catch_ups):
        subject.stores[0].read_catch_ups()
    with pytest.raises(Incomplete, match="delete the node"):
        subject.stores[0].start_catch_up(FIRST)


@pytest.mark.parametrize("name", [str(2**70), str(2**31), "-1", "7_7", "\u0667", " 7", "9" * 5000, "x"])
def test_a_catch_up_of_an_impossible_broker_is_a_finding_and_the_others_apply(subject: Subject, name: str) -> None:
    """A catch-up of broker 2^70 in the node failed every cycle. It hid the catch-ups of all other brokers."""
    store, known = subject.stores[0], {"author": "anna", "time": None}
    subject.tree.write(subject.tree.own.catch_ups, json.dumps({"brokers": {name: known, "1002": known}}).encode())
    catch_ups = store.read_catch_ups()
    assert catch_ups == {1002: CatchUp(1002, "anna")}
    (problem,) = unreadable_entries(catch_ups).values()
    assert subject.tree.own.catch_ups in problem and "is not a broker id" in problem
    store.remove_catch_up(1002)
    assert json.loads(subject.tree.client.get(subject.tree.own.catch_ups)[0])["brokers"] == {name: known}


@pytest.mark.parametrize("edits", [{"author": "\ud800"}, {"author": 5}, {"time": "noon"}, {"time": "2026-11-02"}])
def test_a_broker_catches_up_even_if_its_author_cannot_be_read(subject: Subject, edits: dict[str, object]) -> None:
    """Unknown is not absent: without the entry, the broker would copy its data without a throttle."""
    store = subject.stores[0]
    node = {"brokers": {"1001": {"author": "anna", "time": None, **edits}}}
    subject.tree.write(subject.tree.own.catch_ups, json.dumps(node).encode())
    (catch_up,) = store.read_catch_ups().values()
    assert catch_up == CatchUp(1001, "unreadable")
    assert store.purge_catch_up(subject.tree.begin_term(), catch_up) and store.read_catch_ups() == {}

"""The pause in a real ZooKeeper: it outlives all sessions, and an unreadable node counts as a pause."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from autothrottle.adapters.state_store.operator_stores import NodeOverrides, NodePauses
from autothrottle.adapters.zookeeper_state.nodes import ZooKeeperNodeStore
from autothrottle.core.errors import Unavailable
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import AuditAction, PauseMode
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.contract.pause_store_contract import CLEAR, KEEP, PauseStoreContract
from tests.system.zookeeper_tree import Tree, freeze, session


class Subject:
    """A store under test, and another session for checks."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack, seconds: float = 5) -> None:
        self.server = server
        self.tree = Tree(stack.enter_context(session(server)))
        self.stores = [
            NodePauses(
                ZooKeeperNodeStore(stack.enter_context(session(server)), self.tree.own, timedelta(seconds=seconds))
            )
            for _ in range(2)
        ]
        for store in self.stores:
            stack.callback(store.close)


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


class TestZooKeeperPauses(PauseStoreContract):
    @pytest.fixture
    def store(self, subject: Subject) -> NodePauses:
        return subject.stores[0]


def test_changes_of_another_session_are_seen_and_reported(subject: Subject) -> None:
    here, there = subject.stores
    notified = threading.Event()
    assert here.read_pause() is None
    watch = here.watch_pause(notified.set)
    try:
        there.set_pause(KEEP)
        assert notified.wait(30)
        assert here.read_pause() == KEEP
        notified.clear()
        there.remove_pause()
        assert notified.wait(30)
        assert here.read_pause() is None
    finally:
        watch.close()


def test_pause_and_resume_write_an_audit_record_in_the_same_transaction(subject: Subject) -> None:
    here, _ = subject.stores
    overrides = NodeOverrides(ZooKeeperNodeStore(subject.tree.client, subject.tree.own))
    try:
        overrides.set_override(1001, StoredOverride(7_000_000), who="operator")
        before = subject.server.last_zxid()
        here.set_pause(KEEP)
        here.set_pause(CLEAR)
        assert here.remove_pause("10.0.0.7:1") and not here.remove_pause("10.0.0.8:1")
        kinds = [[o.kind for o in t.operations] for t in subject.server.transactions(before)]
        assert kinds == [["create", "set", "create"], ["set", "set", "create"], ["delete", "set", "create"]]
        resumed, cleared, kept, overridden = overrides.read_audit_records(10).records
    finally:
        overrides.close()
    assert (resumed.action, resumed.who, resumed.pause) == (AuditAction.RESUME, "10.0.0.7:1", CLEAR)
    assert (cleared.action, cleared.who, cleared.pause) == (AuditAction.PAUSE, "", CLEAR)
    assert (kept.action, kept.who, kept.pause) == (AuditAction.PAUSE, KEEP.author, KEEP)
    assert (overridden.action, overridden.pause) == (AuditAction.SET, None)
    assert kept.number == overridden.number + 1


def test_pause_outlives_the_session_that_set_it(zookeeper: ZooKeeperServer, subject: Subject) -> None:
    with session(zookeeper) as another:
        store = NodePauses(ZooKeeperNodeStore(another, subject.tree.own))
        store.set_pause(CLEAR)
        store.close()
    assert subject.stores[0].read_pause() == CLEAR


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"yes",
        b"[]",
        b'{"author":"anna"}',
        b'{"version":1,"mode":"melt","author":"","time":null,"reason":""}',
        b'{"version":1,"mode":"keep","author":"","time":"2026-11-02T12:00:00","reason":""}',
        b'{"version":1,"mode":"keep","author":7,"time":null,"reason":""}',
        b"\xff",
    ],
)
def test_an_unreadable_node_keeps_throttles_and_can_be_removed(subject: Subject, data: bytes) -> None:
    subject.tree.write(subject.tree.own.pause, data)
    store = subject.stores[0]
    pause = store.read_pause()
    assert pause is not None and pause.mode is PauseMode.KEEP
    assert pause.reason == f"{subject.tree.own.pause} cannot be parsed; pause again, or resume"
    assert store.remove_pause() and store.read_pause() is None


def test_a_node_with_null_data_is_a_pause(subject: Subject) -> None:
    """`create /autothrottle/pause` in zkCli creates a node with null data. It was once taken for a missing node."""
    subject.tree.client.create(subject.tree.own.pause, None, makepath=True)
    store = subject.stores[0]
    pause = store.read_pause()
    assert pause is not None and pause.mode is PauseMode.KEEP
    assert store.remove_pause() and store.read_pause() is None


def test_a_frozen_zookeeper_is_unavailable_and_does_not_end_the_pause(fresh_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        store = Subject(fresh_zookeeper, stack, seconds=0.5).stores[0]
        store.set_pause(KEEP)
        freeze(fresh_zookeeper)
        try:
            with pytest.raises(Unavailable):
                store.read_pause()
        finally:
            fresh_zookeeper.thaw()
        eventually(lambda: _pause_or_none(store) == KEEP)


def _pause_or_none(store: NodePauses) -> object:
    with contextlib.suppress(Unavailable):
        return store.read_pause()
    return None

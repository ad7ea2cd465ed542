"""`ZooKeeperLedgerReader` on a real ZooKeeper: snapshots through the Admin API use it to read the whole ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedgerReader
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, LedgerKey
from autothrottle.core.errors import Unavailable
from autothrottle.ports.state_store import LedgerCopy
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually, ledger_entry
from tests.system.zookeeper_tree import Tree, freeze, session

TIMEOUT = timedelta(seconds=20)
BROKER, T1 = ConfigResource.broker(1001), ConfigResource.topic("t1")
ENTRY = ledger_entry(term=3, x="5")


class Subject:
    """A ledger that is written through one session and read through another."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack, session_seconds: float = 10.0) -> None:
        self.tree = Tree(stack.enter_context(session(server)))
        self.reader = ZooKeeperLedgerReader(stack.enter_context(session(server, session_seconds)), self.tree.own)
        stack.callback(self.reader.close)

    def read(self) -> LedgerCopy:
        return self.reader.read(TIMEOUT)

    def write(self, resource: ConfigResource, entry: LedgerEntry) -> None:
        self.tree.write(self.tree.own.ledger_entry(resource), format_ledger_entry(entry))

    def delete(self, resource: ConfigResource) -> None:
        self.tree.client.delete(self.tree.own.ledger_entry(resource))


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


def test_unwritten_ledger_is_empty(subject: Subject) -> None:
    assert subject.read() == LedgerCopy()


def test_read_returns_all_writes_before_the_call(subject: Subject) -> None:
    intended = LedgerEntry({"x": LedgerKey(None, None, intent="6")}, 3)
    subject.read()
    for entry in (ENTRY, intended, ledger_entry(term=4, y="7")):
        subject.write(BROKER, entry)
        assert subject.read() == LedgerCopy({BROKER: entry})
    subject.write(T1, ENTRY)
    subject.delete(BROKER)
    assert subject.read() == LedgerCopy({T1: ENTRY})
    subject.write(BROKER, ENTRY)
    subject.delete(T1)
    assert subject.read() == LedgerCopy({BROKER: ENTRY})


def test_unreadable_entry_is_reported_and_keeps_its_last_value(subject: Subject) -> None:
    path = subject.tree.own.ledger_entry(BROKER)
    subject.write(BROKER, ENTRY)
    subject.write(T1, ENTRY)
    subject.read()
    subject.tree.write(path, b"{")
    damaged = subject.read()
    assert damaged.entries == {BROKER: ENTRY, T1: ENTRY}
    assert damaged.unreadable.keys() == {BROKER}
    assert damaged.unreadable[BROKER].path == path
    assert "repair" in damaged.unreadable[BROKER].reason
    subject.write(BROKER, ENTRY)
    assert subject.read().unreadable == {}
    subject.tree.write(path, b"{")
    subject.delete(BROKER)
    assert subject.read() == LedgerCopy({T1: ENTRY})


def test_entry_without_a_valid_broker_id_is_ignored(subject: Subject) -> None:
    subject.tree.write(f"{subject.tree.own.ledger}/brokers/x", format_ledger_entry(ENTRY))
    subject.write(BROKER, ENTRY)
    assert subject.read() == LedgerCopy({BROKER: ENTRY})


def test_ledger_of_thousands_of_entries_is_read_and_updated(subject: Subject) -> None:
    topics = [ConfigResource.topic(f"t{number}") for number in range(2_500)]
    subject.tree.client.ensure_path(f"{subject.tree.own.ledger}/topics")
    written = [
        subject.tree.client.create_async(subject.tree.own.ledger_entry(topic), format_ledger_entry(ENTRY))
        for topic in topics
    ]
    for answer in written:
        answer.get(timeout=20)
    assert subject.read().entries == dict.fromkeys(topics, ENTRY)
    subject.delete(topics[0])
    changed = ledger_entry(term=9, x="6")
    subject.write(topics[1], changed)
    assert subject.read().entries == {**dict.fromkeys(topics[2:], ENTRY), topics[1]: changed}


def test_read_is_unavailable_while_the_server_is_frozen_and_works_after_the_thaw(
    fresh_zookeeper: ZooKeeperServer,
) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(fresh_zookeeper, stack, session_seconds=30)
        subject.write(BROKER, ENTRY)
        freeze(fresh_zookeeper)
        try:
            with pytest.raises(Unavailable):
                subject.reader.read(timedelta(seconds=0.3))
        finally:
            fresh_zookeeper.thaw()
        eventually(lambda: subject.tree.client.connected)
        subject.write(T1, ENTRY)
        assert subject.read().entries == {BROKER: ENTRY, T1: ENTRY}


def test_ledger_is_read_again_after_a_restart_of_the_server(fresh_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(fresh_zookeeper, stack)
        subject.write(BROKER, ENTRY)
        subject.read()
        fresh_zookeeper.kill()
        with pytest.raises(Unavailable):
            subject.reader.read(timedelta(seconds=0.3))
        fresh_zookeeper.start()
        late = stack.enter_context(session(fresh_zookeeper))
        late.set(subject.tree.own.ledger_entry(BROKER), format_ledger_entry(ledger_entry(x="6")))

        def again() -> bool:
            with contextlib.suppress(Unavailable):
                return subject.read().entries == {BROKER: ledger_entry(x="6")}
            return False

        eventually(again, 60)

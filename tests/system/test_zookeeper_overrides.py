"""Overrides in the original's nodes: read from both formats, never purged by mistake, told of at once."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper.overrides import ZooKeeperOverrides
from autothrottle.core.errors import NotLeader, Unavailable
from autothrottle.core.overrides import Override, Overrides
from autothrottle.lab.zookeeper import ZooKeeperServer
from tests.adapters.contract_override_store import OverrideStoreContract
from tests.builders import eventually
from tests.system.zookeeper_tree import Tree, freeze, session

MB = 1_000_000


class Subject:
    """A store under test; the original program writes through another session."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.server = server
        self.tree = Tree(stack.enter_context(session(server)))
        self.store = ZooKeeperOverrides(stack.enter_context(session(server)), self.tree.own)
        stack.callback(self.store.close)
        self.begin_term = self.tree.begin_term

    def raw(self, broker_id: int | None) -> bytes | None:
        return self.tree.read(self.tree.own.override(broker_id))

    def write_raw(self, name: str, data: bytes) -> None:
        self.tree.write(f"{self.tree.own.overrides}/{name}".rstrip("/"), data)


def without_versions(overrides: Overrides) -> tuple[Override | None, dict[int, Override]]:
    def plain(override: Override) -> Override:
        return Override(override.rate, override.autoremove)

    cluster = overrides.cluster
    return cluster and plain(cluster), {b: plain(o) for b, o in overrides.brokers.items()}


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


class TestZooKeeperOverrides(OverrideStoreContract):
    @pytest.fixture
    def subject(self, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with contextlib.ExitStack() as stack:
            yield Subject(zookeeper, stack)


def test_the_original_reads_what_we_write(subject: Subject) -> None:
    subject.store.set_override(None, 50 * MB, True)
    subject.store.set_override(1001, 2 * MB + 1, False)
    cluster, broker = json.loads(subject.raw(None) or b""), json.loads(subject.raw(1001) or b"")
    assert {k: cluster[k] for k in ("rate", "autoremove")} == {"rate": 50, "autoremove": True}
    assert {k: broker[k] for k in ("rate", "autoremove")} == {"rate": 3, "autoremove": False}
    assert broker["rate_bytes_per_second"] == 2 * MB + 1


def test_we_read_what_the_original_and_its_forebears_write(subject: Subject) -> None:
    subject.write_raw("", b'{"rate":50,"autoremove":true}')
    subject.write_raw("1001", b'{"rate":7,"autoremove":false}')
    subject.write_raw("1002", b"9")
    subject.write_raw("1003", b"")
    assert without_versions(subject.store.read_overrides()) == (
        Override(50 * MB, True),
        {1001: Override(7 * MB), 1002: Override(9 * MB)},
    )


def test_a_rate_of_zero_is_an_override_that_was_removed(subject: Subject) -> None:
    subject.write_raw("", b'{"rate":0,"autoremove":false}')
    subject.write_raw("1001", b'{"rate":0,"autoremove":false}')
    read = subject.store.read_overrides()
    assert read.of(1001) is None
    assert read.active_brokers == frozenset()
    assert subject.store.remove_override(None) is False


def test_removing_the_clusters_keeps_its_node_and_marks_it_as_the_original_does(subject: Subject) -> None:
    subject.store.set_override(None, 5 * MB, True)
    subject.store.set_override(1001, 7 * MB, False)
    assert subject.store.remove_override(None) is True
    assert json.loads(subject.raw(None) or b"")["rate"] == 0
    assert without_versions(subject.store.read_overrides())[1] == {1001: Override(7 * MB)}
    assert subject.store.remove_override(1001) is True
    assert subject.raw(1001) is None
    assert subject.raw(None) is not None


def test_d16_a_child_that_is_no_broker_is_ignored_with_a_warning(subject: Subject) -> None:
    """`POST /throttle/all` made the original fail on every later reading of its overrides."""
    for name in ("all", "0", "-1", "01001", "²", "99999999999"):
        subject.write_raw(name, b'{"rate":5,"autoremove":false}')
    subject.store.set_override(1001, 7 * MB, False)
    read = subject.store.read_overrides()
    assert read.brokers.keys() == {1001}
    assert read.unreadable == {}
    assert len(read.warnings) == 6
    assert any(f"{subject.tree.own.overrides}/all" in w and "remove it" in w for w in read.warnings)


@pytest.mark.parametrize(
    "garbage",
    [b"{", b"null", b"[1]", b'{"rate":"5"}', b'{"rate":-1}', b"-5", b"9" * 5000, b"[" * 50_000, b"\xff", b"0.5"],
)
def test_an_unreadable_override_is_named_and_the_others_stand(subject: Subject, garbage: bytes) -> None:
    subject.store.set_override(1001, 7 * MB, False)
    subject.write_raw("1002", garbage)
    subject.write_raw("", garbage)
    read = subject.store.read_overrides()
    assert read.brokers.keys() == {1001}
    assert read.unreadable.keys() == {None, 1002}
    assert subject.tree.own.override(1002) in read.unreadable[1002]
    assert subject.store.remove_override(1002) is True
    assert subject.store.remove_override(None) is True
    assert subject.store.read_overrides().unreadable == {}


# Purging.


def test_d15_a_purge_spares_an_override_that_was_removed_and_set_anew(subject: Subject) -> None:
    """A node that is made anew starts at the version of the one that was read: the number alone proves nothing."""
    version = subject.store.set_override(1001, 7 * MB, False).version
    subject.store.remove_override(1001)
    later = subject.store.set_override(1001, 7 * MB, False)
    assert subject.store.purge_override(subject.begin_term(), 1001, version) is False
    assert subject.store.read_overrides().brokers == {1001: later}


@pytest.mark.parametrize("broker_id", [None, 1001])
def test_a_purge_is_one_transaction_that_checks_the_term(subject: Subject, broker_id: int | None) -> None:
    version = subject.store.set_override(broker_id, 7 * MB, True).version
    fence, before = subject.begin_term(), subject.server.last_zxid()
    assert subject.store.purge_override(fence, broker_id, version) is True
    (transaction,) = subject.server.transactions(before)
    assert [(o.kind, o.path) for o in transaction.operations] == [
        ("check", subject.tree.own.term),
        ("set" if broker_id is None else "delete", subject.tree.own.override(broker_id)),
    ]


def test_a_purge_of_what_is_gone_still_asks_for_the_term(subject: Subject) -> None:
    version = subject.store.set_override(1001, 7 * MB, False).version
    subject.store.remove_override(1001)
    fence = subject.begin_term()
    assert subject.store.purge_override(fence, 1001, version) is False
    subject.begin_term()
    with pytest.raises(NotLeader):
        subject.store.purge_override(fence, 1001, version)


# Watching.


def test_every_change_by_anybody_is_told_also_when_nobody_reads(subject: Subject) -> None:
    told = threading.Semaphore(0)
    watch = subject.store.watch_overrides(told.release)
    subject.store.read_overrides()
    while told.acquire(timeout=0.3):
        pass  # the first look may tell too
    for act in (
        lambda: subject.write_raw("1001", b"5"),
        lambda: subject.write_raw("1001", b"6"),
        lambda: subject.write_raw("", b"7"),
        lambda: subject.tree.client.delete(subject.tree.own.override(1001)),
        lambda: subject.write_raw("1001", b"5"),
    ):
        act()
        assert told.acquire(timeout=20)
        while told.acquire(timeout=0.1):
            pass  # a node and its parent's list may be told of one by one
    watch.close()
    subject.write_raw("1001", b"9")
    assert not told.acquire(timeout=0.2)


def test_overrides_are_read_and_told_of_again_after_the_server_was_away(fresh_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(fresh_zookeeper, stack)
        told = threading.Event()
        subject.store.set_override(1001, 7 * MB, False)
        subject.store.watch_overrides(told.set)
        assert told.wait(20)
        freeze(fresh_zookeeper)
        with pytest.raises(Unavailable):
            impatient = ZooKeeperOverrides(subject.tree.client, subject.tree.own, timeout=timedelta(seconds=0.3))
            stack.callback(impatient.close)
            impatient.read_overrides()
        fresh_zookeeper.kill()
        fresh_zookeeper.start()
        eventually(lambda: subject.tree.client.connected)
        told.clear()
        subject.write_raw("1002", b"8")
        assert told.wait(20)
        eventually(lambda: subject.store.read_overrides().active_brokers == {1001, 1002})

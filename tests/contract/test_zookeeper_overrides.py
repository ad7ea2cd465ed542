"""Overrides in the znodes of the original: read from both formats, never purged by mistake, reported at once."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from kazoo.client import KazooClient, TransactionRequest

from autothrottle.adapters.state_store.operator_stores import NodeOverrides
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.nodes import ZooKeeperNodeStore
from autothrottle.core.errors import Conflict, NotLeader, Unavailable
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.contract.override_store_contract import OverrideStoreContract
from tests.system.zookeeper_tree import Tree, freeze, session

MB = 1_000_000

PATIENCE = timedelta(seconds=60)
"""Long, since concurrent changes by six threads take longer on a busy machine."""


class Subject:
    """A store under test. The original program writes through another session."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.server = server
        self.tree = Tree(stack.enter_context(session(server)))
        self.records_kept = 20
        self.store = NodeOverrides(
            ZooKeeperNodeStore(stack.enter_context(session(server)), self.tree.own, PATIENCE, self.records_kept)
        )
        stack.callback(self.store.close)
        self.begin_term = self.tree.begin_term

    def raw(self, broker_id: int | None) -> bytes | None:
        return self.tree.read(self.tree.own.override(broker_id))

    def write_raw(self, name: str, data: bytes) -> None:
        self.tree.write(f"{self.tree.own.overrides}/{name}".rstrip("/"), data)


def without_versions(overrides: Overrides) -> tuple[StoredOverride | None, dict[int, StoredOverride]]:
    def unversioned(override: StoredOverride) -> StoredOverride:
        return replace(override, version=0)

    cluster = overrides.cluster
    return cluster and unversioned(cluster), {b: unversioned(o) for b, o in overrides.brokers.items()}


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


class TestZooKeeperOverrides(OverrideStoreContract):
    @pytest.fixture
    def subject(self, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with contextlib.ExitStack() as stack:
            yield Subject(zookeeper, stack)


def test_the_original_can_read_our_overrides(subject: Subject) -> None:
    subject.store.set_override(None, StoredOverride(50 * MB, autoremove=True))
    subject.store.set_override(1001, StoredOverride(2 * MB + 1))
    cluster, broker = json.loads(subject.raw(None) or b""), json.loads(subject.raw(1001) or b"")
    assert {k: cluster[k] for k in ("rate", "autoremove")} == {"rate": 50, "autoremove": True}
    assert {k: broker[k] for k in ("rate", "autoremove")} == {"rate": 3, "autoremove": False}
    assert broker["rate_bytes_per_second"] == 2 * MB + 1


def test_overrides_of_the_original_and_its_earlier_versions_are_read(subject: Subject) -> None:
    subject.write_raw("", b'{"rate":50,"autoremove":true}')
    subject.write_raw("1001", b'{"rate":7,"autoremove":false}')
    subject.write_raw("1002", b"9")
    subject.write_raw("1003", b"")
    assert without_versions(subject.store.read_overrides()) == (
        StoredOverride(50 * MB, True, beyond_capacity=True),
        {b: StoredOverride(rate * MB, beyond_capacity=True) for b, rate in ((1001, 7), (1002, 9))},
    )


def test_a_rate_of_zero_means_a_removed_override(subject: Subject) -> None:
    subject.write_raw("", b'{"rate":0,"autoremove":false}')
    subject.write_raw("1001", b'{"rate":0,"autoremove":false}')
    read = subject.store.read_overrides()
    assert read.of(1001) is None
    assert read.active_brokers == frozenset()
    assert subject.store.remove_override(None) is False


def test_removed_cluster_override_is_marked_as_in_the_original(subject: Subject) -> None:
    subject.store.set_override(None, StoredOverride(5 * MB, autoremove=True))
    subject.store.set_override(1001, StoredOverride(7 * MB))
    assert subject.store.remove_override(None) is True
    assert json.loads(subject.raw(None) or b"")["rate"] == 0
    assert without_versions(subject.store.read_overrides())[1] == {1001: StoredOverride(7 * MB)}
    assert subject.store.remove_override(1001) is True
    assert subject.raw(1001) is None
    assert subject.raw(None) is not None


def test_override_of_broker_0_is_in_the_node_of_the_original(subject: Subject) -> None:
    """The node was refused as no broker id, so an override of broker 0 was stored and never applied."""
    subject.store.set_override(0, StoredOverride(7 * MB))
    node = subject.tree.read(f"{subject.tree.own.root}/override_rate/0")
    assert json.loads(node or b"")["rate"] == 7
    assert without_versions(subject.store.read_overrides())[1] == {0: StoredOverride(7 * MB)}
    assert subject.store.remove_override(0) is True
    assert subject.store.read_overrides() == Overrides()


def test_a_child_without_a_valid_broker_id_is_ignored_with_a_warning(subject: Subject) -> None:
    """D16: `POST /throttle/all` made the original fail at every later read of its overrides."""
    for name in ("all", "-1", "01001", "²", "2147483648", "99999999999"):
        subject.write_raw(name, b'{"rate":5,"autoremove":false}')
    subject.store.set_override(1001, StoredOverride(7 * MB))
    read = subject.store.read_overrides()
    assert read.brokers.keys() == {1001}
    assert read.unreadable == {}
    assert len(read.warnings) == 6
    assert any(f"{subject.tree.own.overrides}/all" in w and "remove it" in w for w in read.warnings)


@pytest.mark.parametrize(
    "garbage",
    [b"{", b"null", b"[1]", b'{"rate":"5"}', b'{"rate":-1}', b"-5", b"9" * 5000, b"[" * 50_000, b"\xff", b"0.5"],
)
def test_an_unreadable_override_is_reported_and_others_stay_valid(subject: Subject, garbage: bytes) -> None:
    subject.store.set_override(1001, StoredOverride(7 * MB))
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


def test_purge_spares_a_recreated_override(subject: Subject) -> None:
    """D15: a recreated znode starts at the version of the deleted one, so the version alone cannot tell them apart."""
    version = subject.store.set_override(1001, StoredOverride(7 * MB)).version
    subject.store.remove_override(1001)
    later = subject.store.set_override(1001, StoredOverride(7 * MB))
    assert subject.store.purge_override(subject.begin_term(), 1001, version) is False
    assert subject.store.read_overrides().brokers == {1001: later}


@pytest.mark.parametrize("broker_id", [None, 1001])
def test_purge_is_one_transaction_that_checks_the_term(subject: Subject, broker_id: int | None) -> None:
    version = subject.store.set_override(broker_id, StoredOverride(7 * MB, autoremove=True)).version
    fence, before = subject.begin_term(), subject.server.last_zxid()
    assert subject.store.purge_override(fence, broker_id, version) is True
    (transaction,) = subject.server.transactions(before)
    assert [(o.kind, o.path) for o in transaction.operations] == [
        ("check", subject.tree.own.term),
        ("set" if broker_id is None else "delete", subject.tree.own.override(broker_id)),
        ("set", subject.tree.own.audit),
        ("create", f"{subject.tree.own.audit_record}0000000001"),
    ]


def test_purge_of_a_removed_override_still_checks_the_term(subject: Subject) -> None:
    version = subject.store.set_override(1001, StoredOverride(7 * MB)).version
    subject.store.remove_override(1001)
    fence = subject.begin_term()
    assert subject.store.purge_override(fence, 1001, version) is False
    subject.begin_term()
    with pytest.raises(NotLeader):
        subject.store.purge_override(fence, 1001, version)


class Interrupted(NodeOverrides):
    """A store that calls a hook between the read and the write of its next change."""

    def __init__(self, client: KazooClient, own: OwnPaths) -> None:
        super().__init__(ZooKeeperNodeStore(client, own, PATIENCE))
        self._session = client

    def between(self, act: Callable[[], object]) -> None:
        begin = self._session.transaction

        def interrupted() -> TransactionRequest:
            self._session.transaction = begin
            act()
            return begin()

        self._session.transaction = interrupted


@pytest.fixture
def interrupted(subject: Subject) -> Iterator[Interrupted]:
    store = Interrupted(subject.tree.client, subject.tree.own)
    yield store
    store.close()


def test_purge_spares_an_override_recreated_between_its_read_and_its_write(
    subject: Subject, interrupted: Interrupted
) -> None:
    """D15: the recreated node has the version that the purge has read. Only the count of all changes differs."""
    version = subject.store.set_override(1001, StoredOverride(7 * MB)).version
    fence, later = subject.begin_term(), []

    def recreate() -> None:
        subject.store.remove_override(1001)
        later.append(subject.store.set_override(1001, StoredOverride(9 * MB)))

    interrupted.between(recreate)
    assert interrupted.purge_override(fence, 1001, version) is False
    assert [subject.store.read_overrides().brokers[1001]] == later


def test_change_of_the_given_version_between_read_and_write_is_a_conflict(
    subject: Subject, interrupted: Interrupted
) -> None:
    version = subject.store.set_override(1001, StoredOverride(7 * MB)).version
    interrupted.between(lambda: subject.store.set_override(1001, StoredOverride(9 * MB)))
    with pytest.raises(Conflict):
        interrupted.set_override(1001, StoredOverride(8 * MB, version=version))
    assert subject.store.read_overrides().brokers[1001].rate == 9 * MB


def test_audit_record_has_the_value_written_between_read_and_write_as_before(
    subject: Subject, interrupted: Interrupted
) -> None:
    subject.store.set_override(1001, StoredOverride(7 * MB))
    interrupted.between(lambda: subject.write_raw("1001", b'{"rate":9,"autoremove":false}'))
    interrupted.set_override(1001, StoredOverride(8 * MB))
    (newest,) = subject.store.read_audit_records(1).records
    assert newest.before is not None and newest.before.rate == 9 * MB


# Audit records.


def test_change_and_audit_record_are_one_transaction(subject: Subject) -> None:
    subject.store.set_override(1001, StoredOverride(6 * MB))
    before = subject.server.last_zxid()
    override = subject.store.set_override(1001, StoredOverride(7 * MB), who="operator")
    (transaction,) = subject.server.transactions(before)
    assert transaction.zxid == override.version
    assert [(o.kind, o.path) for o in transaction.operations] == [
        ("set", subject.tree.own.override(1001)),
        ("set", subject.tree.own.audit),
        ("create", f"{subject.tree.own.audit_record}0000000001"),
    ]


def test_unreadable_audit_records_are_left_out(subject: Subject) -> None:
    subject.store.set_override(1001, StoredOverride(6 * MB))
    subject.write_raw("1001", b"{")
    subject.store.set_override(1001, StoredOverride(7 * MB))
    subject.tree.write(f"{subject.tree.own.audit_record}0000000000", b"{")
    subject.tree.write(f"{subject.tree.own.audit}/notes", b"by hand")
    (record,) = subject.store.read_audit_records(10).records
    assert record.before is None and record.after is not None and record.after.rate == 7 * MB


def test_the_original_can_read_an_override_with_expire_time(subject: Subject) -> None:
    end = datetime(2030, 1, 31, 18, 0, tzinfo=UTC)
    subject.store.set_override(1001, StoredOverride(7 * MB, expire_time=end))
    node = json.loads(subject.raw(1001) or b"")
    assert (node["rate"], node["autoremove"]) == (7, False)
    assert node["expire_time"] == "2030-01-31T18:00:00+00:00"
    subject.write_raw("1001", b'{"rate":8,"autoremove":false}')
    assert subject.store.read_overrides().brokers[1001].expire_time is None


# Watching.


def test_every_change_by_any_client_notifies_without_reads_in_between(subject: Subject) -> None:
    notified = threading.Semaphore(0)
    watch = subject.store.watch_overrides(notified.release)
    subject.store.read_overrides()
    while notified.acquire(timeout=0.3):
        pass  # the first read may notify too
    for act in (
        lambda: subject.write_raw("1001", b"5"),
        lambda: subject.write_raw("1001", b"6"),
        lambda: subject.write_raw("", b"7"),
        lambda: subject.tree.client.delete(subject.tree.own.override(1001)),
        lambda: subject.write_raw("1001", b"5"),
    ):
        act()
        assert notified.acquire(timeout=20)
        while notified.acquire(timeout=0.1):
            pass  # a node and the list of its parent may notify separately
    watch.close()
    subject.write_raw("1001", b"9")
    assert not notified.acquire(timeout=0.2)


def test_overrides_are_read_and_watched_again_after_an_outage(fresh_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(fresh_zookeeper, stack)
        notified = threading.Event()
        subject.store.set_override(1001, StoredOverride(7 * MB))
        subject.store.watch_overrides(notified.set)
        assert notified.wait(20)
        freeze(fresh_zookeeper)
        with pytest.raises(Unavailable):
            impatient = NodeOverrides(
                ZooKeeperNodeStore(subject.tree.client, subject.tree.own, timeout=timedelta(seconds=0.3))
            )
            stack.callback(impatient.close)
            impatient.read_overrides()
        fresh_zookeeper.kill()
        fresh_zookeeper.start()
        eventually(lambda: subject.tree.client.connected)
        notified.clear()
        subject.write_raw("1002", b"8")
        assert notified.wait(20)
        eventually(lambda: subject.store.read_overrides().active_brokers == {1001, 1002})


def test_concurrent_changes_take_turns(subject: Subject) -> None:
    """Each change depends on the newest record. Of 12 concurrent changes 11 were retried, then 10, and so on."""

    def transactions() -> int:
        subject.tree.client.sync("/")
        return int(subject.tree.client.last_zxid)

    subject.store.set_override(1, StoredOverride(MB))  # creates the missing nodes
    before = transactions()
    with ThreadPoolExecutor(12) as pool:
        versions = set(
            pool.map(lambda number: subject.store.set_override(number, StoredOverride(MB)).version, range(2, 14))
        )
    assert len(versions) == 12
    assert transactions() - before < 24
    assert subject.store.read_overrides().brokers.keys() == set(range(1, 14))


def test_two_stores_that_alternate_keep_one_audit_history(subject: Subject) -> None:
    """Each store remembers the record number of its own last change, which the other store has since advanced."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(session(subject.server))
        other = NodeOverrides(ZooKeeperNodeStore(client, subject.tree.own, PATIENCE, subject.records_kept))
        stack.callback(other.close)
        rates = [number * MB for number in range(1, 31)]
        for number, rate in enumerate(rates):
            (subject.store, other)[number // 2 % 2].set_override(1, StoredOverride(rate))
        records = subject.store.read_audit_records(100).records
    assert len(records) == subject.records_kept
    assert [record.after and record.after.rate for record in records] == rates[: -subject.records_kept - 1 : -1]
    assert all(
        newer.before is not None and older.after is not None and newer.before.rate == older.after.rate
        for newer, older in pairwise(records)
    )


def test_a_shared_read_shows_changes_made_before_the_request(subject: Subject) -> None:
    def write_and_read(number: int) -> None:
        for rate in range(1, 11):
            subject.store.set_override(number, StoredOverride(rate * MB))
            assert subject.store.read_overrides().brokers[number].rate == rate * MB

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write_and_read, range(1, 7)))

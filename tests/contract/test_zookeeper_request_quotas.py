"""Request quotas in a real ZooKeeper: they outlive sessions, and concurrent changes do not overwrite one another."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper.session import connect_in_background, disconnect
from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.adapters.zookeeper_state.request_quotas import ZooKeeperRequestQuotas
from autothrottle.core.control.audit import AuditRecord
from autothrottle.core.control.stored_map import unreadable_entries
from autothrottle.core.errors import Incomplete
from autothrottle.core.request_quotas import RequestQuotaEntity, RequestRates
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.contract.request_quota_store_contract import ANNA, RATES, RequestQuotaStoreContract
from tests.system.zookeeper_tree import Tree, session


class Subject:
    """Stores of two sessions on one tree."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.server = server
        self.tree = Tree(stack.enter_context(session(server)))
        self.stores = [ZooKeeperRequestQuotas(stack.enter_context(session(server)), self.tree.own) for _ in range(2)]
        for store in self.stores:
            stack.callback(store.close)


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


class TestZooKeeperRequestQuotas(RequestQuotaStoreContract):
    @pytest.fixture
    def store(self, subject: Subject) -> ZooKeeperRequestQuotas:
        return subject.stores[0]

    @pytest.fixture
    def newest(self, subject: Subject) -> Callable[[], Sequence[AuditRecord]]:
        trail = AuditTrail(subject.tree.client, subject.tree.own, timedelta(seconds=60))
        return lambda: trail.newest(10).records


def test_the_node_has_kafkas_property_name(subject: Subject) -> None:
    """KIP-124 stores `"config": {"request_rate": "100"}`."""
    subject.stores[0].set_request_quota(RequestQuotaEntity("user1"), 100)
    data, _ = subject.tree.client.get(subject.tree.own.request_quotas)
    assert data == b'{"version":1,"quotas":[{"user":"user1","config":{"request_rate":"100"}}]}'


def test_a_change_and_its_audit_record_are_one_transaction(subject: Subject) -> None:
    store = subject.stores[0]
    store.set_request_quota(ANNA, 1)
    before = subject.server.last_zxid()
    store.set_request_quota(ANNA, 2)
    assert subject.server.last_zxid() - before == 1


def test_concurrent_changes_of_two_sessions_lose_nothing(subject: Subject) -> None:
    wanted = {RequestQuotaEntity(f"user-{number}"): number for number in range(1, 13)}
    with ThreadPoolExecutor(2) as pool:
        for number, (entity, rate) in enumerate(wanted.items()):
            pool.submit(subject.stores[number % 2].set_request_quota, entity, rate)
    eventually(lambda: subject.stores[0].read_request_quotas() == wanted)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
    ],
)
def test_an_unreadable_node_is_named_and_changes_no_quotas(
    subject: Subject, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[RequestRates] = []
    store, other = subject.stores
    store.set_request_quota(ANNA, 1)
    other.watch_request_quotas(seen.append)
    eventually(lambda: seen == [{ANNA: 1}])
    with caplog.at_level(logging.WARNING):
        subject.tree.client.set(subject.tree.own.request_quotas, data)
        eventually(lambda: any("The last request quotas stay in effect" in line for line in caplog.messages))
    assert seen == [{ANNA: 1}]
    with pytest.raises(Incomplete, match=f"{subject.tree.own.request_quotas} cannot be parsed.*delete the node"):
        store.read_request_quotas()
    with pytest.raises(Incomplete, match="delete the node"):
        store.set_request_quota(ANNA, 2)


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"user": 7, "config": {"request_rate": "1"}},
        {"user": "a", "config": {"request_rate": "0"}},
        {"user": "a", "config": {"request_rate": "many"}},
        {"user": "a", "config": {"request_rate": "9" * 5000}},
        {"user": "\ud800", "config": {"request_rate": "1"}},
    ],
)
def test_an_unreadable_entry_ends_no_quota_and_the_others_apply(subject: Subject, entry: dict[str, object]) -> None:
    """One entry by hand made the whole node unreadable, so that no later quota applied."""
    quotas: list[RequestRates] = []
    store, other = subject.stores
    store.set_request_quota(ANNA, 1)
    other.watch_request_quotas(quotas.append)
    eventually(lambda: quotas == [{ANNA: 1}])
    node = {"version": 1, "quotas": [entry, {"user": "ben", "config": {"request_rate": "5"}}]}
    subject.tree.client.set(subject.tree.own.request_quotas, json.dumps(node).encode())
    eventually(lambda: quotas[-1] == {ANNA: 1, RequestQuotaEntity("ben"): 5})
    reading = store.read_request_quotas()
    assert list(reading) == [RequestQuotaEntity("ben")]
    assert "entry '0' cannot be read" in unreadable_entries(reading)["0"]
    store.set_request_quota(ANNA, 2)
    stored = json.loads(subject.tree.client.get(subject.tree.own.request_quotas)[0])["quotas"]
    assert entry in stored and len(stored) == 3, "it stays as it is"


def test_a_follower_that_starts_before_zookeeper_reads_the_quotas_later(
    zookeeper: ZooKeeperServer, subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway does not wait for ZooKeeper. Without it there are no quotas, and no warnings of the attempts."""
    for entity, rate in RATES.items():
        subject.stores[0].set_request_quota(entity, rate)
    seen: list[RequestRates] = []
    client = connect_in_background(zookeeper.connect, timedelta(seconds=10))
    store = ZooKeeperRequestQuotas(client, subject.tree.own)
    try:
        store.watch_request_quotas(seen.append)
        eventually(lambda: seen and seen[-1] == RATES)
    finally:
        store.close()
        disconnect(client)
    assert not any("Cannot read the request quotas" in line for line in caplog.messages)

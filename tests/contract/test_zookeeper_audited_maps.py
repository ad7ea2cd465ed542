"""The maps that operators change, in a real ZooKeeper.

They outlive sessions, and concurrent changes do not overwrite one another.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.adapters.state_store.operator_stores import NodeAuditedMap
from autothrottle.adapters.zookeeper.session import connect_in_background, disconnect
from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.adapters.zookeeper_state.nodes import ZooKeeperNodeStore
from autothrottle.core.errors import Incomplete
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle.core.operators.sources import unreadable_entries
from autothrottle.core.records import CatchUp
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.contract.audited_map_contract import (
    CASES,
    CATCH_UP_CASE,
    REQUEST_QUOTA_CASE,
    RULE,
    YIELD_RULE_CASE,
    AuditedMapContract,
    MapCase,
    each_kind,
    only,
)
from tests.system.zookeeper_tree import Tree, session


class Subject:
    """Stores of two sessions on one tree."""

    def __init__(self, server: ZooKeeperServer, case: MapCase, stack: contextlib.ExitStack) -> None:
        self.server, self.case = server, case
        self.tree = Tree(stack.enter_context(session(server)))
        self.path = self.tree.own.audited_map(case.codec.node)
        self.stores: list[NodeAuditedMap[Any, Any]] = [
            stack.enter_context(
                contextlib.closing(
                    NodeAuditedMap(ZooKeeperNodeStore(stack.enter_context(session(server)), self.tree.own), case.codec)
                )
            )
            for _ in range(2)
        ]

    def stored(self) -> Any:
        """Return the entries in the node's text."""
        return json.loads(self.tree.client.get(self.path)[0])[self.case.codec.field]

    def write(self, entries: object) -> None:
        """Write the node as a text with these entries."""
        self.tree.write(self.path, json.dumps({"version": 1, self.case.codec.field: entries}).encode())


@pytest.fixture
def subject(zookeeper: ZooKeeperServer, case: MapCase) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, case, stack)


@pytest.fixture
def store(subject: Subject) -> NodeAuditedMap[Any, Any]:
    return subject.stores[0]


class TestZooKeeperAuditedMap(AuditedMapContract):
    @pytest.fixture
    def fence(self, subject: Subject) -> int:
        return subject.tree.begin_term()

    @pytest.fixture
    def newest(self, subject: Subject) -> Callable[[], Sequence[StoredAuditRecord]]:
        trail = AuditTrail(subject.tree.client, subject.tree.own, timedelta(seconds=60))
        return lambda: trail.newest(10).records


TEXTS = {
    "catch_ups": b'{"version":1,"brokers":{"1001":{"author":"10.0.0.9:5000","time":"2026-11-02T12:00:00.123456+00:00"},'
    b'"1002":{"author":"anna","time":null}}}',
    "temporary_quotas": b'{"version":1,"quotas":{"users/a%2Fb%20%E2%98%83/clients/<default>":{"values":'
    b'{"producer_byte_rate":"20000000","request_percentage":"12.5"},"author":"10.0.0.9:5000",'
    b'"time":"2026-11-02T12:00:00.123456+00:00","expire_time":"2026-11-02T13:00:00.123456+00:00",'
    b'"until_recovered":false},"ips/10.0.0.7":{"values":{"connection_creation_rate":"5"},"author":"anna",'
    b'"time":"2026-11-02T12:00:00.123456+00:00","expire_time":null,"until_recovered":true}}}',
    "yield_rules": b'{"version":1,"rules":{"backfills":{"user":null,"client_id":"backfill-* \\u2603",'
    b'"at_most":9007199254740992,"at_most_share":null,"floor":1,"keys":["consumer_byte_rate","producer_byte_rate"],'
    b'"author":"anna","time":"2026-11-02T12:00:00.123456+00:00"},"etl":{"user":"etl/*","client_id":null,'
    b'"at_most":null,"at_most_share":0.1,"floor":1000000,"keys":["producer_byte_rate"],"author":"10.0.0.9:5000",'
    b'"time":"2026-11-02T12:00:00.123456+00:00"}}}',
    # KIP-124 stores `"config": {"request_rate": "100"}`.
    "request_quotas": b'{"version":1,"quotas":[{"user":"","client_id":"","config":{"request_rate":"1000000"}},'
    b'{"user":"J\\u00fcrgen \\u00d6","client_id":"a \\"client\\", 1","config":{"request_rate":"1"}}]}',
}


@each_kind
def test_the_text_is_the_one_that_every_version_reads(subject: Subject, store: NodeAuditedMap[Any, Any]) -> None:
    """Replicas of several versions share the node during an upgrade."""
    for key, entry in subject.case.entries.items():
        store.put(key, entry)
    path = f"{subject.tree.own.root}/{subject.case.codec.node}"
    assert json.loads(subject.tree.client.get(path)[0]) == json.loads(TEXTS[subject.case.codec.node])


@each_kind
def test_each_change_is_one_transaction_with_its_record_and_the_check_of_the_term(subject: Subject) -> None:
    store, (first, _) = subject.stores[0], subject.case.keys
    store.put(first, subject.case.entries[first])
    fence, zxid = subject.tree.begin_term(), subject.server.last_zxid()
    store.put(first, subject.case.later)
    assert subject.server.last_zxid() - zxid == 1
    assert store.purge(fence, first, subject.case.later)
    assert subject.server.last_zxid() - zxid == 2


@each_kind
def test_an_entry_of_another_session_is_read_and_outlives_it(subject: Subject) -> None:
    first = subject.case.keys[0]
    with session(subject.server) as client:
        store = NodeAuditedMap(ZooKeeperNodeStore(client, subject.tree.own), subject.case.codec)
        store.put(first, subject.case.later)
        store.close()
    eventually(lambda: subject.stores[0].read() == {first: subject.case.later})


@only(CATCH_UP_CASE)
def test_concurrent_changes_of_two_sessions_lose_nothing(subject: Subject) -> None:
    catch_ups = {broker_id: CatchUp(broker_id) for broker_id in range(1, 13)}
    with ThreadPoolExecutor(2) as pool:
        for number, store in enumerate(subject.stores):
            for broker_id in [*catch_ups][number::2]:
                pool.submit(store.put, broker_id, catch_ups[broker_id])
    eventually(lambda: subject.stores[0].read() == catch_ups)


@each_kind
@pytest.mark.parametrize(
    "text",
    [b"", b"5", b"[]", b"{}", b"\xff", b'{"brokers":[1],"quotas":5,"rules":[1]}', b'{"version":2,"FIELD":{}}'],
)
def test_an_unreadable_node_is_named_with_the_fix_and_changes_nothing(
    subject: Subject, store: NodeAuditedMap[Any, Any], text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    case, maps = subject.case, list[Mapping[Any, Any]]()
    first = case.keys[0]
    store.put(first, case.later)
    subject.stores[1].follow(maps.append)
    eventually(lambda: maps == [{first: case.later}])
    with caplog.at_level(logging.WARNING):
        subject.tree.client.set(subject.path, text.replace(b"FIELD", case.codec.field.encode()))
        eventually(lambda: any(f"The last {case.codec.kind.name} stay in effect" in line for line in caplog.messages))
    assert maps == [{first: case.later}]
    for call in (store.read, lambda: store.put(first, case.entries[first]), lambda: store.remove(first)):
        with pytest.raises(Incomplete, match=f"{subject.path} cannot be parsed.*repair or delete the node"):
            call()


NO_BROKERS = (str(2**70), str(2**31), "-1", "7_7", "\u0667", " 7", "9" * 5000, "x")
ODD_NAMES = {"temporary_quotas": "users/odd", "yield_rules": "wrong", "request_quotas": "1"}
ODD_FIELDS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "temporary_quotas": [
        {"values": {"producer_byte_rate": "x"}},
        {"values": {"y": "1"}},
        {"author": "\ud800"},
        {"expire_time": "noon"},
    ],
    "yield_rules": [
        {"floor": 0},
        {"floor": "5"},
        {"at_most": 5},
        {"user": 5},
        {"keys": ["rate"]},
        {"keys": []},
        {"time": "noon"},
    ],
    "request_quotas": [
        {"config": {}},
        {"user": 7},
        {"config": {"request_rate": "0"}},
        {"config": {"request_rate": "many"}},
        {"config": {"request_rate": "9" * 5000}},
        {"user": "\ud800"},
    ],
}
UNREADABLE = [
    *((CATCH_UP_CASE, name, {}) for name in NO_BROKERS),
    *((case, ODD_NAMES[case.codec.node], edits) for case in CASES[1:] for edits in ODD_FIELDS[case.codec.node]),
]


@pytest.mark.parametrize(("case", "name", "edits"), UNREADABLE)
def test_an_unreadable_entry_is_a_finding_and_the_others_apply(
    subject: Subject, name: str, edits: dict[str, object]
) -> None:
    """One odd entry made the whole node unreadable, so that no other entry applied. It stays in the node as it is."""
    case, (store, other), maps = subject.case, subject.stores, list[Mapping[Any, Any]]()
    first, second = case.keys
    store.put(first, case.entries[first])
    other.follow(maps.append)
    eventually(lambda: maps == [{first: case.entries[first]}])
    entries = subject.stored()
    if case.codec.is_list:
        entries.append({**entries[0], **edits})
        odd = entries[-1]
    else:
        odd = entries[name] = {**next(iter(entries.values())), **edits}
    subject.write(entries)
    readable = store.read()
    assert readable == {first: case.entries[first]}
    assert f"{subject.path}: entry {name[:60]!r} cannot be read" in unreadable_entries(readable)[name]
    store.put(second, case.entries[second])
    eventually(lambda: maps[-1] == case.entries)
    store.remove(first)
    stored = subject.stored()
    assert len(stored) == 2 and odd in (stored if case.codec.is_list else stored.values())
    assert store.read() == {second: case.entries[second]}
    stays = case in (CATCH_UP_CASE, REQUEST_QUOTA_CASE)  # the unreadable entry may be the first one
    eventually(lambda: maps[-1] == (case.entries if stays else {second: case.entries[second]}))


@only(CATCH_UP_CASE)
@pytest.mark.parametrize("edits", [{"author": "\ud800"}, {"author": 5}, {"time": "noon"}, {"time": "2026-11-02"}])
def test_a_broker_catches_up_even_if_its_author_cannot_be_read(subject: Subject, edits: dict[str, object]) -> None:
    """Unknown is not absent: without the entry, the broker would copy its data without a throttle."""
    store = subject.stores[0]
    subject.write({"1001": {"author": "anna", "time": None, **edits}})
    assert store.read() == {1001: CatchUp(1001, "unreadable")}
    assert store.purge(subject.tree.begin_term(), 1001, CatchUp(1001, "unreadable")) and store.read() == {}


@only(YIELD_RULE_CASE)
def test_fields_of_newer_versions_are_ignored(subject: Subject, store: NodeAuditedMap[Any, Any]) -> None:
    store.put("etl", RULE)
    node = json.loads(subject.tree.client.get(subject.path)[0])
    node["newer"] = node["rules"]["etl"]["newer"] = 1
    subject.tree.write(subject.path, json.dumps(node).encode())
    assert store.read() == {"etl": RULE}


@only(REQUEST_QUOTA_CASE)
def test_a_follower_that_starts_before_zookeeper_reads_the_quotas_later(
    zookeeper: ZooKeeperServer, subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway does not wait for ZooKeeper. Without it there are no quotas, and no warnings of the attempts."""
    for entity, rate in subject.case.entries.items():
        subject.stores[0].put(entity, rate)
    maps: list[Mapping[Any, Any]] = []
    client = connect_in_background(zookeeper.connect, timedelta(seconds=10))
    store = NodeAuditedMap(ZooKeeperNodeStore(client, subject.tree.own), subject.case.codec)
    try:
        store.follow(maps.append)
        eventually(lambda: maps and maps[-1] == subject.case.entries)
    finally:
        store.close()
        disconnect(client)
    assert not any("cannot read the request quotas" in line for line in caplog.messages)

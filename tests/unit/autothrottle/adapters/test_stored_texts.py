"""Older and newer versions read the same stored values. The last version without a codec has written these texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from autothrottle.adapters.kafka_state import records
from autothrottle.adapters.kafka_state.records import Commit, CopyHeader, CopyPart, StateEdit
from autothrottle.adapters.state_store.operator_stores import MapCodec
from autothrottle.adapters.state_store.registration import format_member, parse_member
from autothrottle.adapters.state_store.state_copy import AuditText, StateCopy, parse_copy
from autothrottle.adapters.zookeeper import codec
from autothrottle.adapters.zookeeper.map_codecs import CATCH_UPS, REQUEST_QUOTAS, TEMPORARY_QUOTAS, YIELD_RULES
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    LedgerEntry,
    LedgerKey,
)
from autothrottle.core.members import Member
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey, TemporaryQuota
from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.core.records import AuditAction, CatchUp, Pause, PauseMode
from autothrottle.core.request_quotas import RequestQuotaEntity
from tests.builders import NOON

LATE = frozenset({"0:1", "0:2"})
LEDGER = LedgerEntry(
    {
        LEADER_RATE: LedgerKey(None, "5", intent="7", target="9"),
        FOLLOWER_RATE: LedgerKey("5", "6", late=frozenset({"8", "7"}), settles=NOON),
        LEADER_REPLICAS: LedgerKey("0:1", "0:1,0:2", frozenset({"0:2"})),
        FOLLOWER_REPLICAS: LedgerKey("9:1", "9:1", late=LATE, settles=NOON),
        "intended": LedgerKey(None, None, intent="7"),
        "released": LedgerKey("5", "5", late=frozenset({"7"}), settles=NOON),
    },
    3,
    9,
)
OVERRIDE = StoredOverride(2_000_001, True, 12, NOON, True)
PAUSE = Pause(PauseMode.KEEP, "anna", NOON, "a release")
AUDIT = StoredAuditRecord(
    7,
    NOON,
    "anna ö",
    AuditAction.PAUSE,
    1001,
    OVERRIDE,
    StoredOverride(5_000_000, version=9),
    "why",
    PAUSE,
    "done",
)
SMALL_AUDIT = StoredAuditRecord(7, NOON, "anna", AuditAction.RESUME)
PAIR, CLIENTS = ClientQuotaEntity("a b", "c"), ClientQuotaEntity(client_id=DEFAULT)
QUOTAS = {
    PAIR: TemporaryQuota(
        PAIR,
        {QuotaKey.PRODUCER_BYTE_RATE: 1024, QuotaKey.REQUEST_PERCENTAGE: 50.0},
        "anna",
        NOON,
        NOON + timedelta(days=1),
        True,
    ),
    CLIENTS: TemporaryQuota(CLIENTS, {QuotaKey.CONSUMER_BYTE_RATE: 2048}, "", NOON),
}
RULES = {
    "batch": YieldRule(
        "batch",
        1_000_000,
        None,
        "batch-*",
        5_000_000,
        None,
        frozenset({QuotaKey.PRODUCER_BYTE_RATE}),
        "anna",
        NOON,
    ),
    "other": YieldRule("other", 1, "anna", at_most_share=0.5, time=NOON),
}
MEMBER = Member("planner", ("planner", "admin"), "1.2.3", "a:1", "h1", 12, NOON)
COPY = StateCopy(7, {"pause": "{}", "ledger/brokers/1": "ö"}, (AuditText(NOON, 5, "text"),))
HEADER = CopyHeader("c-1", 10, 2, 20, 5, "topic", 3, 9, 2, True, "00ff")
EDIT = StateEdit(
    id="p-1",
    fence=7,
    versions={"/a": 0},
    texts={"/a": "ö", "/b": None},
    origins={"/a": 6},
    audit="audit",
    topic="topic",
    time=1_795_000_000_000,
    epoch=0,
    digest=(4, "00ff"),
    is_strict=True,
)


def parse_audit(data: bytes) -> StoredAuditRecord:
    return codec.parse_audit_record(data, 7, NOON, 9)


class Kind(NamedTuple):
    """One kind of stored value."""

    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    text: str
    """As the last version without a codec has written it."""


def of_map(map_codec: MapCodec[Any, Any], entries: Mapping[Any, Any], text: str) -> Kind:
    return Kind(
        entries,
        lambda value: map_codec.format(value, map_codec.parse(None, "/map")),
        lambda data: map_codec.parse(data, "/map").stored,
        text,
    )


def of_record(value: Any, text: str) -> Kind:
    return Kind(value, lambda record: bytes(record.encoded()), records.parsed, text)


KINDS = {
    "ledger": Kind(
        LEDGER,
        codec.format_ledger_entry,
        codec.parse_ledger_entry,
        '{"version":1,"keys":{"leader.replication.throttled.rate":{"before":null,"written":"5","intent":"'
        '7","target":"9"},"follower.replication.throttled.rate":{"before":"5","written":"6","late":"7,8",'
        '"settles":"2026-11-02T12:00:00+00:00"},"leader.replication.throttled.replicas":{"before":"0:1","'
        'written":"0:1,0:2","owned":"0:2"},"follower.replication.throttled.replicas":{"before":"9:1","wri'
        'tten":"9:1","owned":"0:1,0:2","intent":"0:1,0:2","late":"0:1,0:2","settles":"2026-11-02T12:00:00'
        '+00:00"},"intended":{"before":null,"written":null,"intent":"7"},"released":{"before":"5","writte'
        'n":"5","intent":"7","late":"7","settles":"2026-11-02T12:00:00+00:00"}},"term":3,"cycle":9}',
    ),
    "override": Kind(
        OVERRIDE,
        codec.format_override,
        lambda data: codec.parse_override(data, 12),
        '{"rate":3,"autoremove":true,"rate_bytes_per_second":2000001,"beyond_capacity":true,"expire_time"'
        ':"2026-11-02T12:00:00+00:00"}',
    ),
    "pause": Kind(
        PAUSE,
        codec.format_pause,
        lambda data: codec.parse_pause(data, "/pause"),
        '{"version":1,"mode":"keep","author":"anna","time":"2026-11-02T12:00:00+00:00","reason":"a release"}',
    ),
    "unknown pause": Kind(
        Pause(PauseMode.CLEAR),
        codec.format_pause,
        lambda data: codec.parse_pause(data, "/pause"),
        '{"version":1,"mode":"clear","author":"","time":null,"reason":""}',
    ),
    "audit": Kind(
        AUDIT,
        codec.format_audit_record,
        parse_audit,
        '{"version":1,"who":"anna \\u00f6","action":"pause","broker_id":1001,"before":{"rate":3,"autoremov'
        'e":true,"rate_bytes_per_second":2000001,"beyond_capacity":true,"expire_time":"2026-11-02T12:00:0'
        '0+00:00","version":12},"after":{"rate":5,"autoremove":false,"rate_bytes_per_second":5000000,"bey'
        'ond_capacity":false},"reason":"why","pause":{"mode":"keep","author":"anna","time":"2026-11-02T12'
        ':00:00+00:00","reason":"a release"},"result":"done"}',
    ),
    "small audit": Kind(
        SMALL_AUDIT,
        codec.format_audit_record,
        parse_audit,
        '{"version":1,"who":"anna","action":"resume","broker_id":null,"before":null,"after":null,"reason":""}',
    ),
    "catch ups": of_map(
        CATCH_UPS,
        {1001: CatchUp(1001, "anna", NOON), 1002: CatchUp(1002)},
        '{"version":1,"brokers":{"1001":{"author":"anna","time":"2026-11-02T12:00:00+00:00"},"1002":{"aut'
        'hor":"","time":null}}}',
    ),
    "temporary quotas": of_map(
        TEMPORARY_QUOTAS,
        QUOTAS,
        '{"version":1,"quotas":{"users/a%20b/clients/c":{"values":{"producer_byte_rate":"1024","request_p'
        'ercentage":"50.0"},"author":"anna","time":"2026-11-02T12:00:00+00:00","expire_time":"2026-11-03T'
        '12:00:00+00:00","until_recovered":true},"clients/<default>":{"values":{"consumer_byte_rate":"204'
        '8"},"author":"","time":"2026-11-02T12:00:00+00:00","expire_time":null,"until_recovered":false}}}',
    ),
    "yield rules": of_map(
        YIELD_RULES,
        RULES,
        '{"version":1,"rules":{"batch":{"user":null,"client_id":"batch-*","at_most":5000000,"at_most_shar'
        'e":null,"floor":1000000,"keys":["producer_byte_rate"],"author":"anna","time":"2026-11-02T12:00:0'
        '0+00:00"},"other":{"user":"anna","client_id":null,"at_most":null,"at_most_share":0.5,"floor":1,"'
        'keys":["consumer_byte_rate","producer_byte_rate"],"author":"","time":"2026-11-02T12:00:00+00:00"'
        "}}}",
    ),
    "request quotas": of_map(
        REQUEST_QUOTAS,
        {RequestQuotaEntity("anna", "c"): 100, RequestQuotaEntity("", None): 5},
        '{"version":1,"quotas":[{"user":"","config":{"request_rate":"5"}},{"user":"anna","client_id":"c",'
        '"config":{"request_rate":"100"}}]}',
    ),
    "member": Kind(
        MEMBER,
        format_member,
        parse_member,
        '{"service": "planner", "roles": ["planner", "admin"], "version": "1.2.3", "address": "a:1", "hos'
        't": "h1", "pid": 12, "start_time": "2026-11-02T12:00:00+00:00"}',
    ),
    "copy": Kind(
        COPY,
        lambda copy: copy.encoded().encode(),
        lambda data: parse_copy(data.decode()),
        '{\n "version": 1,\n "fence": 7,\n "nodes": {\n  "ledger/brokers/1": "ö",\n  "pause": "{}"\n },\n "audit'
        '": [\n  {\n   "time": "2026-11-02T12:00:00+00:00",\n   "version": 5,\n   "text": "text"\n  }\n ]\n}',
    ),
    "edit": of_record(
        EDIT,
        '{"v":1,"id":"p-1","fence":7,"versions":{"/a":0},"texts":{"/a":"ö","/b":null},"origins":{"/a":6},'
        '"audit":"audit","topic":"topic","time":1795000000000,"digest":[4,"00ff"],"strict":true,"epoch":0'
        "}",
    ),
    "small edit": of_record(StateEdit(id="p-2"), '{"v":1,"id":"p-2"}'),
    "part": of_record(
        CopyPart(HEADER, 1, (["strict"], ["node", "/a", "x", 7, 1])),
        '{"snapshot":{"v":1,"id":"c-1","base":10,"parts":2,"last_version":20,"lost_before":5,"topic":"top'
        'ic","epoch":3,"last_record":9,"tree_epoch":2,"is_strict":true,"digest":"00ff","part":1,"rows":[['
        '"strict"],["node","/a","x",7,1]]}}',
    ),
    "small part": of_record(
        CopyPart(CopyHeader("c-2", None, 1), 0, ()),
        '{"snapshot":{"v":1,"id":"c-2","base":null,"parts":1,"last_version":0,"lost_before":null,"topic":'
        '"","epoch":-1,"last_record":-1,"tree_epoch":-1,"is_strict":false,"digest":"","part":0,"rows":[]}'
        "}",
    ),
    "commit": of_record(
        Commit(HEADER, 1, 2, 3),
        '{"commit":{"v":1,"id":"c-1","base":10,"parts":2,"last_version":20,"lost_before":5,"topic":"topic'
        '","epoch":3,"last_record":9,"tree_epoch":2,"is_strict":true,"digest":"00ff","begin":1,"after":2,'
        '"after_epoch":3}}',
    ),
}
for_each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@for_each_kind
def test_the_texts_of_earlier_versions_are_read(kind: Kind) -> None:
    assert kind.decode(kind.text.encode()) == kind.value


@for_each_kind
def test_earlier_versions_read_the_same_keys_and_values(kind: Kind) -> None:
    assert json.loads(kind.encode(kind.value)) == json.loads(kind.text)


@for_each_kind
def test_fields_of_later_versions_are_ignored(kind: Kind) -> None:
    value = json.loads(kind.text)
    part = value.get("snapshot") or value.get("commit") or value
    part["of_a_later_version"] = {"x": 1}
    assert kind.decode(json.dumps(value).encode()) == kind.value

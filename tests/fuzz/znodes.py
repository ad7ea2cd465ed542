"""The door of znodes: the text of every node that the product reads, Kafka's and its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kazoo.client import KazooClient

from autothrottle.adapters.kafka_zookeeper.reassignments import PartitionStates, ReassignmentNodes
from autothrottle.adapters.kafka_zookeeper.snapshots import ThrottleConfigs
from autothrottle.adapters.state_store.registration import parse_member
from autothrottle.adapters.zookeeper import codec, map_codecs
from autothrottle.adapters.zookeeper.mirror import ParsedNodes, Part, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper_state.storage_metrics import parse_partition_sizes, parse_storage_free
from autothrottle.admin import quotas as quotas_wire
from autothrottle.admin import servicer as admin_wire
from autothrottle.core.cluster.configs import (
    THROTTLE_KEYS,
    ConfigResource,
    broker_id_of,
    format_replicas,
    parse_rate,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import Snapshot, TopicReassignment
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.quotas.keys import QuotaKey, entity_of_path, parse_value
from autothrottle.v1 import admin_pb2, types_pb2
from autothrottle.wire.common import SAME_NAMES
from autothrottle.wire.discovery import named_snapshot_from_chunks, snapshot_to_chunks
from tests.fuzz import hostile
from tests.fuzz.hostile import Choices
from tests.fuzz.series import MOST_ID, require, require_ids, require_same

PATH = "/autothrottle/node"
_CLIENT = KazooClient()
"""Never connected."""
MADE = datetime(2026, 11, 2, 12, tzinfo=UTC)

REGISTRATION = {
    "endpoints": ["PLAINTEXT://b1.example:9092", "SSL://[::1]:9093"],
    "host": "b1.example",
    "port": 9092,
    "rack": "r1",
    "version": 4,
}
TOPIC = {
    "version": 3,
    "partitions": {"0": [1001, 1002], "1": [1002, 1003]},
    "adding_replicas": {"0": [1002]},
    "removing_replicas": {"0": [1001]},
}
STATE = {"controller_epoch": 1, "leader": 1001, "version": 1, "leader_epoch": 4, "isr": [1001, 1002]}
REASSIGNMENTS = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1001, 1002]}]}
CONFIG = {
    "version": 1,
    "config": {
        "leader.replication.throttled.rate": "10000000",
        "follower.replication.throttled.rate": "10000000",
        "leader.replication.throttled.replicas": "0:1001,1:1002",
        "follower.replication.throttled.replicas": "*",
        "producer_byte_rate": "1024",
        "request_percentage": "200.0",
        "retention.ms": "1000",
    },
}
LEDGER = {
    "version": 1,
    "keys": {
        "leader.replication.throttled.rate": {"before": None, "written": "5", "intent": "7", "target": "9"},
        "follower.replication.throttled.rate": {"before": "5", "written": None, "intent": "7"},
        "leader.replication.throttled.replicas": {"before": "0:1", "written": "0:1,0:2", "owned": "0:2"},
    },
    "term": 3,
    "cycle": 9,
}
OVERRIDE = {
    "rate": 50,
    "autoremove": True,
    "rate_bytes_per_second": 50_000_000,
    "expire_time": "2026-11-02T12:00:00+00:00",
}
PAUSE = {"version": 1, "mode": "keep", "author": "anna", "time": "2026-11-02T12:00:00+00:00", "reason": "a release"}
AUDIT = {
    "version": 1,
    "who": "anna",
    "action": "set",
    "broker_id": 1001,
    "before": {**OVERRIDE, "version": 12},
    "after": OVERRIDE,
    "reason": "",
    "pause": {"mode": "keep", "author": "anna", "time": None, "reason": ""},
    "result": "done",
}
CATCH_UPS = {
    "version": 1,
    "brokers": {
        "1001": {"author": "anna", "time": "2026-11-02T12:00:00+00:00"},
        "1002": {"author": "", "time": None},
    },
}
QUOTAS = {
    "version": 1,
    "quotas": {
        "users/a%20b/clients/c": {
            "values": {"producer_byte_rate": "1024", "request_percentage": "50.0"},
            "author": "anna",
            "time": "2026-11-02T12:00:00+00:00",
            "expire_time": "2026-11-03T12:00:00+00:00",
            "until_recovered": True,
        },
        "clients/<default>": {
            "values": {"consumer_byte_rate": "2048"},
            "author": "",
            "time": "2026-11-02T12:00:00+00:00",
            "expire_time": None,
            "until_recovered": False,
        },
    },
}
RULES = {
    "version": 1,
    "rules": {
        "batch": {
            "user": None,
            "client_id": "batch-*",
            "at_most": 5_000_000,
            "at_most_share": None,
            "floor": 1_000_000,
            "keys": ["producer_byte_rate"],
            "author": "anna",
            "time": "2026-11-02T12:00:00+00:00",
        },
        "other": {
            "user": "anna",
            "client_id": None,
            "at_most": None,
            "at_most_share": 0.5,
            "floor": 1,
            "keys": ["consumer_byte_rate"],
            "author": "",
            "time": "2026-11-02T12:00:00+00:00",
        },
    },
}
REQUEST_QUOTAS = {
    "version": 1,
    "quotas": [
        {"user": "anna", "client_id": "c", "config": {"request_rate": "100"}},
        {"user": "b", "config": {"request_rate": "5"}},
    ],
}
MEMBER = {
    "service": "planner",
    "roles": ["leader"],
    "version": "0.2.0",
    "address": "10.0.0.1:7000",
    "host": "h1",
    "pid": 12,
    "start_time": "2026-11-02T12:00:00+00:00",
}
SIZES = {"t": {"0": {"Size": 1.5e9}, "1": {"Size": 7}}}
FREE = {"1001": {"StorageFree": 1.2e12}, "1002": {"StorageFree": 7}}


MAPS = {"catch-ups": "brokers", "temporary quotas": "quotas", "yield rules": "rules", "request quotas": "quotas"}
"""Kind of a node that holds many entries -> the field with the entries."""


class Attack(NamedTuple):
    """The text of one node."""

    kind: str
    data: bytes
    is_inside: bool = False
    """Whether only the last entry of a map is hostile, so that the first one applies."""


class Znodes:
    """The codecs of znodes, and the readers of brokers, topics and the ledger."""

    name = "znodes"

    def make(self, choices: Choices) -> Attack:
        kind = choices.of(tuple(KINDS))
        if kind not in MAPS or choices.one_in(3):
            return Attack(kind, hostile.json_text(KINDS[kind].documents, choices))
        (document,), field = KINDS[kind].documents, MAPS[kind]
        entries = document[field]
        last = len(entries) - 1 if isinstance(entries, list) else [*entries][-1]
        attacked = hostile.mutated(entries[last], choices)
        if isinstance(entries, list):
            whole = {**document, field: [*entries[:-1], attacked]}
        else:
            name = choices.of(hostile.TEXTS) if choices.one_in(4) else last
            whole = {**document, field: {**{key: entries[key] for key in [*entries][:-1]}, name: attacked}}
        data = hostile.encoded(whole)
        return Attack(kind, data, hostile.is_json(data))

    def check(self, attack: Attack) -> None:
        try:
            KINDS[attack.kind].check(attack.data)
        except AutothrottleError:
            require(not attack.is_inside, f"one hostile entry makes all {attack.kind} unreadable")
            raise

    def close(self) -> None:
        """Nothing to release."""


def sent(snapshot: Snapshot) -> Snapshot:
    """Send a snapshot through its messages."""
    encoded = [chunk.SerializeToString() for chunk in snapshot_to_chunks(snapshot)]
    received = named_snapshot_from_chunks(map(type(next(snapshot_to_chunks(snapshot))).FromString, encoded)).snapshot
    require_same("a snapshot", snapshot, received)
    return received


# Kafka's nodes.


def check_registration(data: bytes) -> None:
    hosts = codec.registered_hosts(data)
    require(all(isinstance(host, str) for host in hosts), "a host of a registration is not a text")
    for host in hosts:
        host.encode()


def check_topic(data: bytes) -> None:
    node = codec.parse_topic(data)
    for replicas in (node.replicas, node.adding_replicas, node.removing_replicas):
        require_ids("the partitions of a topic", replicas)
        for ids in replicas.values():
            require_ids("the replicas of a topic", ids)
    check_views({"t": data}, "t")


def check_state(data: bytes) -> None:
    node = codec.parse_state(data)
    require_ids("the leader of a partition", [node.leader], least=-1)
    require_ids("the ISR of a partition", node.isr)
    moved = TopicReassignment("t", (0,), (node.leader,), (tuple(node.isr),), ((1003,),), ((),))
    sent(Snapshot(1, reassignments=(moved,)))


def check_reassignments(data: bytes) -> None:
    for (topic, partition), replicas in codec.parse_reassignments(data).items():
        topic.encode()
        require_ids("a reassignment", [partition, *replicas])


def check_config(data: bytes) -> None:
    config = codec.parse_config(data)
    require_same("a config", config, codec.parse_config(codec.format_config(config)))
    check_throttles({key: text for key, text in config.items() if key in THROTTLE_KEYS})
    for key in QuotaKey:
        if key in config:
            try:
                value = parse_value(key, config[key])
            except Invalid:
                continue
            quotas_wire.values_to_message({key: value}).SerializeToString()


def check_throttles(throttles: Mapping[str, str]) -> None:
    """The values that a plan reads: lists in Kafka's order, and rates."""
    for key, text in throttles.items():
        try:
            if key.endswith(".replicas"):
                format_replicas(parse_replicas(text))
            else:
                parse_rate(text)
        except Invalid:
            continue


def check_resource_nodes(data: bytes) -> None:
    """A broker's and a topic's config and ledger entry beside those of others, as discovery reads and sends them."""
    clean, attacked = _resources(None), _resources(data)
    for resource, value in clean.items():
        require(attacked.get(resource) == value, f"{resource} changes because of another resource's node")


def _resources(data: bytes | None) -> dict[str, object]:
    kafka, own = KafkaPaths(), OwnPaths("autothrottle")
    mirror = ZnodeMirror(_CLIENT)
    configs = ThrottleConfigs(kafka, own, mirror, ParsedNodes(mirror))
    nodes = {f"{kafka.configs}/{path}": hostile.encoded(CONFIG) for path in ("brokers/1001", "topics/t1")}
    nodes |= {f"{own.ledger}/{path}": hostile.encoded(LEDGER) for path in ("brokers/1001", "topics/t1")}
    if data is not None:
        for path in ("brokers/1002", "topics/t2"):
            nodes |= {f"{kafka.configs}/{path}": data, f"{own.ledger}/{path}": data}
        nodes[kafka.default_broker_config] = data
    for path, text in nodes.items():
        mirror._values[Part.DATA, path] = (text, 1, 0)
        configs.absorb(path)
    snapshot = Snapshot(
        1,
        throttles=configs.throttles,
        ledger=configs.ledger,
        default_throttles=configs.default_throttles,
        unreadable_configs=dict(configs.unreadable()),
    )
    received = sent(snapshot)
    for values in received.throttles.values():
        check_throttles(values)
    clean = [ConfigResource("brokers/1001"), ConfigResource("topics/t1")]
    return {str(one): (received.throttles.get(one), received.ledger.get(one)) for one in clean}


def check_views(topics: Mapping[str, bytes], attacked: str) -> None:
    """A topic beside another one that moves: what is assembled of both can be sent, and the other stays."""
    kafka, mirror = KafkaPaths(), ZnodeMirror(_CLIENT)
    nodes = ReassignmentNodes(kafka, ParsedNodes(mirror), PartitionStates(_CLIENT, kafka))
    for topic, data in {"clean": hostile.encoded(TOPIC), **topics}.items():
        mirror._values[Part.DATA, kafka.topic(topic)] = (data, 1, 0)
        nodes.absorb([kafka.topic(topic)])
    nodes.assemble()
    received = sent(Snapshot(1, reassignments=nodes.reassignments))
    require("clean" in received.topics, "a topic disappears because of another topic's node")
    sent(Snapshot(1, replicas=nodes.replicas_on(frozenset({1001, 1002}))))


# Our own nodes.


def check_ledger(data: bytes) -> None:
    entry = codec.parse_ledger_entry(data)
    require_same("a ledger entry", entry, codec.parse_ledger_entry(codec.format_ledger_entry(entry)))
    sent(Snapshot(1, ledger={ConfigResource("brokers/1001"): entry}))
    for key in entry.keys.values():
        check_throttles(
            {
                f"{number}.replicas" if ":" in text else f"{number}.rate": text
                for number, text in enumerate((key.before, key.written, key.intent, key.target))
                if text is not None
            }
        )


def check_override(data: bytes) -> None:
    override = codec.parse_override(data, 7)
    if override is not None:
        admin_wire.override_to_message(1001, override).SerializeToString()
        require_same("an override", override, codec.parse_override(codec.format_override(override), 7))


def check_pause(data: bytes) -> None:
    pause = codec.parse_pause(data, PATH)
    SAME_NAMES.to_message(types_pb2.Pause, pause).SerializeToString()
    codec.format_pause(pause)


def check_audit(data: bytes) -> None:
    record = codec.parse_audit_record(data, 1, MADE, 7)
    admin_wire.audit_record_to_message(record).SerializeToString()
    codec.format_audit_record(record)


def check_catch_ups(data: bytes) -> None:
    entries = map_codecs.CATCH_UPS.parse(data, PATH).stored
    require_ids("the catch-ups", entries)
    for catch_up in entries.values():
        SAME_NAMES.to_message(admin_pb2.CatchUp, catch_up).SerializeToString()


def check_temporary_quotas(data: bytes) -> None:
    for entity, quota in map_codecs.TEMPORARY_QUOTAS.parse(data, PATH).stored.items():
        quotas_wire.quota_to_message(entity, quota.values, quota).SerializeToString()


def check_rules(data: bytes) -> None:
    for rule in map_codecs.YIELD_RULES.parse(data, PATH).stored.values():
        quotas_wire.rule_to_message(rule).SerializeToString()


def check_request_quotas(data: bytes) -> None:
    entries = map_codecs.REQUEST_QUOTAS.parse(data, PATH).stored
    for rate in entries.values():
        require(type(rate) is int and 0 < rate < 2**31, "a request rate is outside 1..2^31-1")
    for entity in entries:
        str(entity).encode()


def check_member(data: bytes) -> None:
    SAME_NAMES.to_message(admin_pb2.Member, parse_member(data)).SerializeToString()


def check_sizes(data: bytes) -> None:
    sizes, problems = parse_partition_sizes(data)
    for (topic, partition), size in sizes.items():
        require(topic, "a partition size has no topic")
        require_ids("the partition sizes", [partition])
        require(type(size) is int and 0 <= size < 2**63, "a partition size is outside 0..2^63-1")
    "".join(problems).encode()


def check_free(data: bytes) -> None:
    free, problems = parse_storage_free(data)
    require_ids("the brokers' free storage", free)
    require(all(type(size) is int and 0 <= size < 2**63 for size in free.values()), "free storage is outside 0..2^63-1")
    "".join(problems).encode()


def check_name(data: bytes) -> None:
    """Names of nodes: ZooKeeper accepts any text without a slash."""
    name = data.decode(errors="replace").strip('"').replace("/", "")
    broker_id = broker_id_of(name)
    require(broker_id is None or 0 <= broker_id <= MOST_ID, "a node's name is a broker id outside 0..2^31-1")
    entity = entity_of_path(f"users/{name}")
    if entity is not None:
        quotas_wire.entity_to_message(entity).SerializeToString()
        require_same("an entity", entity, entity_of_path(entity.path))


class _Kind(NamedTuple):
    documents: tuple[Any, ...]
    """Valid documents."""
    check: Callable[[bytes], None]


KINDS: Mapping[str, _Kind] = {
    "registration": _Kind((REGISTRATION,), check_registration),
    "topic": _Kind((TOPIC,), check_topic),
    "state": _Kind((STATE,), check_state),
    "reassignments": _Kind((REASSIGNMENTS,), check_reassignments),
    "config": _Kind((CONFIG,), check_config),
    "resources": _Kind((CONFIG, LEDGER), check_resource_nodes),
    "ledger": _Kind((LEDGER,), check_ledger),
    "override": _Kind((OVERRIDE, {"rate": 50, "autoremove": False}, 50), check_override),
    "pause": _Kind((PAUSE,), check_pause),
    "audit record": _Kind((AUDIT,), check_audit),
    "catch-ups": _Kind((CATCH_UPS,), check_catch_ups),
    "temporary quotas": _Kind((QUOTAS,), check_temporary_quotas),
    "yield rules": _Kind((RULES,), check_rules),
    "request quotas": _Kind((REQUEST_QUOTAS,), check_request_quotas),
    "member": _Kind((MEMBER,), check_member),
    "partition sizes": _Kind((SIZES,), check_sizes),
    "free storage": _Kind((FREE,), check_free),
    "name": _Kind(("1001", "users", "a b"), check_name),
}
"""Kind of node -> its valid documents and its check."""

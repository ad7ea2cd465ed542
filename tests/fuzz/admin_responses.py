"""The door of Kafka's admin responses: answers as kafka-python decodes them, of one broker or topic beside another.

A hostile answer can be anything that Kafka's protocol can carry, and damaged bytes that can still be decoded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import kafka.protocol.admin
import kafka.protocol.metadata

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas
from autothrottle.adapters.kafka_admin.completeness import complete
from autothrottle.adapters.kafka_admin.placement import AdminClusterSource, LogDirMetrics
from autothrottle.adapters.kafka_admin.reassignments import read_reassignments
from autothrottle.adapters.kafka_admin.sources import KafkaFetchSettings, KafkaLogSizes
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation, ConfigValue, KafkaSettings
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.admin.quotas import quotas_to_messages
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    THROTTLE_KEYS,
    ConfigResource,
)
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.quotas.keys import ClientQuotaEntity, QuotaKey
from autothrottle.wire.discovery import log_sizes_to_messages, settings_to_message
from tests.fuzz import hostile
from tests.fuzz.hostile import Choices
from tests.fuzz.metrics_answers import check_storage
from tests.fuzz.series import require, require_bytes, require_ids, require_same
from tests.fuzz.znodes import check_throttles, sent

TIMEOUT = timedelta(seconds=20)
CLEAN, ATTACKED = 1, 2
"""Broker ids."""
TOPICS = ("clean", "t")


def _config(name: str, value: str, source: int) -> dict[str, Any]:
    synonyms = [{"name": name, "value": value, "source": source}, {"name": name, "value": "9", "source": 5}]
    return {"name": name, "value": value, "config_source": source, "synonyms": synonyms}


def _configs(kind: int, names: Sequence[str]) -> dict[str, Any]:
    keys = (
        {LEADER_REPLICAS: "0:1001", FOLLOWER_REPLICAS: "", "min.insync.replicas": "2"}
        if kind == 2
        else {LEADER_RATE: "5", FOLLOWER_RATE: "7", "replica.fetch.response.max.bytes": "10485760", "log.dirs": "/a,/b"}
    )
    level = 3 if names == [""] else (1 if kind == 2 else 2)
    return {
        "results": [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [_config(key, text, level) for key, text in keys.items()],
            }
            for name in names
        ]
    }


def _partition(number: int) -> dict[str, Any]:
    return {
        "partition_index": number,
        "leader_id": 1,
        "replica_nodes": [1, 2],
        "isr_nodes": [1],
        "error_code": 0,
        "offline_replicas": [],
    }


METADATA = {
    "brokers": [{"node_id": b, "host": f"b{b}", "port": 9092, "rack": "r"} for b in (CLEAN, ATTACKED)],
    "controller_id": 1,
    "topics": [{"name": name, "partitions": [_partition(0), _partition(1)], "error_code": 0} for name in TOPICS],
}
REASSIGNMENTS = {
    "topics": [
        {
            "name": name,
            "partitions": [
                {"partition_index": 0, "replicas": [1, 2, 3], "adding_replicas": [3], "removing_replicas": [1]}
            ],
        }
        for name in TOPICS
    ]
}
LOG_DIRS = {
    "results": [
        {
            "log_dir": directory,
            "total_bytes": 100 + number,
            "usable_bytes": 50,
            "topics": [{"name": name, "partitions": [{"partition_index": 0, "partition_size": 7}]} for name in TOPICS],
        }
        for number, directory in enumerate(("/a", "/b"))
    ]
}
QUOTAS = {
    "entries": [
        {
            "entity": [{"entity_type": kind, "entity_name": name}],
            "values": [{"key": "producer_byte_rate", "value": 1024.0}, {"key": "request_percentage", "value": 50.0}],
        }
        for kind, name in (("user", "clean"), ("client-id", "a"), ("user", None))
    ]
}
GROUPS = {"groups": [{"group_id": name, "protocol_type": "consumer", "group_state": "Stable"} for name in TOPICS]}
MEMBERS = {
    "groups": [
        {"group_id": name, "members": [{"member_id": "m", "client_id": "c", "client_host": "h"}]} for name in TOPICS
    ]
}
REFUSED_CONFIGS = {
    "responses": [
        {"error_code": 7, "error_message": "no", "resource_type": 2, "resource_name": name} for name in TOPICS
    ]
}
REFUSED_MOVES = {
    "responses": [
        {"name": name, "partitions": [{"partition_index": 0, "error_code": 3, "error_message": "no"}]}
        for name in TOPICS
    ]
}
REFUSED_QUOTAS = {"entries": [{"error_code": 42, "entity": [{"entity_type": "user", "entity_name": "clean"}]}]}

_ADMIN: Any = kafka.protocol.admin
_METADATA: Any = kafka.protocol.metadata


class _Kind(NamedTuple):
    response: Any
    """kafka-python's class."""
    document: Mapping[str, Any]
    read: str
    """Which of the readers below read it."""


KINDS: Mapping[str, _Kind] = {
    "topic configs": _Kind(_ADMIN.DescribeConfigsResponse, _configs(2, TOPICS), "topic configs"),
    "broker configs": _Kind(_ADMIN.DescribeConfigsResponse, _configs(4, [str(ATTACKED)]), "broker configs"),
    "default configs": _Kind(_ADMIN.DescribeConfigsResponse, _configs(4, [""]), "default configs"),
    "metadata": _Kind(_METADATA.MetadataResponse, METADATA, "cluster"),
    "reassignments": _Kind(_ADMIN.ListPartitionReassignmentsResponse, REASSIGNMENTS, "cluster"),
    "log directories": _Kind(_ADMIN.DescribeLogDirsResponse, LOG_DIRS, "logs"),
    "quotas": _Kind(_ADMIN.DescribeClientQuotasResponse, QUOTAS, "quotas"),
    "groups": _Kind(_ADMIN.ListGroupsResponse, GROUPS, "groups"),
    "members": _Kind(_ADMIN.DescribeGroupsResponse, MEMBERS, "groups"),
    "refused configs": _Kind(_ADMIN.IncrementalAlterConfigsResponse, REFUSED_CONFIGS, "refusals"),
    "refused moves": _Kind(_ADMIN.AlterPartitionReassignmentsResponse, REFUSED_MOVES, "refusals"),
    "refused quotas": _Kind(_ADMIN.AlterClientQuotasResponse, REFUSED_QUOTAS, "refusals"),
}


class Attack(NamedTuple):
    """One decoded answer."""

    kind: str
    is_inside: bool
    """Whether only the last item is hostile."""
    response: Any


class CannedRouting:
    """Answers requests from memory; broker 2 gives the hostile answer, or every broker if they answer for all."""

    def __init__(self) -> None:
        self.attack: Attack | None = None
        self._clean = {name: built(kind.response, kind.document) for name, kind in KINDS.items()}
        self._clean_broker = built(_ADMIN.DescribeConfigsResponse, _configs(4, [str(CLEAN)]))

    def metadata(self, deadline: float) -> Any:
        return self._answer(_METADATA.MetadataResponse)

    def ask_any(self, build: Callable[[], Any], deadline: float, *, again: bool = True) -> Any:
        return completed(build(), self._answer(_response_type(build()), build()))

    ask_controller = ask_any

    def each(self, builds: Mapping[int, Callable[[], Any]], deadline: float, again: bool = True) -> Mapping[int, Any]:
        return {b: self._of_broker(b, build()) for b, build in builds.items()}

    def _of_broker(self, broker_id: int, request: Any) -> Any:
        kind = _response_type(request)
        if broker_id == CLEAN:
            name = _name_of(kind)
            return completed(
                request, self._clean_broker if kind is _ADMIN.DescribeConfigsResponse else self._clean[name]
            )
        return completed(request, self._answer(kind, request))

    def _answer(self, kind: Any, request: Any = None) -> Any:
        attack = self.attack
        if attack is not None and KINDS[attack.kind].response is kind and _asks(request, attack.kind):
            return attack.response
        return self._clean[_config_kind(request) if kind is _ADMIN.DescribeConfigsResponse else _name_of(kind)]

    def close(self) -> None:
        """Do nothing: no connection is open."""


def completed(request: Any, response: Any) -> Any:
    """Return what the connections hand out: a copy of the response with exactly what was asked for."""
    response = copy.deepcopy(response)
    complete(request, response)
    return response


def _response_type(request: Any) -> Any:
    name = type(request).__name__.replace("Request", "Response")
    return getattr(_ADMIN, name, None) or getattr(_METADATA, name)


def _name_of(kind: Any) -> str:
    return next(name for name, one in KINDS.items() if one.response is kind)


def _config_kind(request: Any) -> str:
    resource = request.resources[0]
    if resource.resource_type == 2:
        return "topic configs"
    return "broker configs" if resource.resource_name else "default configs"


def _asks(request: Any, kind: str) -> bool:
    return not kind.endswith(" configs") or kind == "refused configs" or _config_kind(request) == kind


def built(kind: Any, document: Mapping[str, Any], version: int | None = None) -> Any:
    """Return a message of kafka-python with the fields of a document, after its way over the wire."""
    version = kind.max_version if version is None else version
    encoded = _built(kind, document, version).encode()
    return kind.decode(bytes(encoded), version=version)


def _built(kind: Any, document: Mapping[str, Any], version: int) -> Any:
    values = {
        name: [_built(kind.fields[name].data_class, part, version) for part in value]
        if kind.fields[name].is_struct_array()
        else value
        for name, value in document.items()
    }
    return kind(version=version, **values)


class AdminResponses:
    """A client of Kafka and the readers above it, over answers from memory."""

    name = "admin responses"

    def __init__(self) -> None:
        self._kafka = KafkaAdmin(KafkaSettings(("b1:9092",)))
        self._kafka.close()
        self._routing = CannedRouting()
        setattr(self._kafka, "_routing", self._routing)  # noqa: B010
        self._readers: Mapping[str, Callable[[Attack], None]] = {
            "topic configs": self._check_topic_configs,
            "broker configs": self._check_broker_configs,
            "default configs": self._check_default_configs,
            "cluster": self._check_cluster,
            "logs": self._check_logs,
            "quotas": self._check_quotas,
            "groups": self._check_groups,
            "refusals": self._check_refusals,
        }
        self._clean_brokers = self._kafka.broker_configs([CLEAN, ATTACKED]).values
        self._clean_topics = self._kafka.topic_configs(TOPICS).values
        self._clean_moves = read_reassignments(self._kafka, TIMEOUT, {}, None)
        self._clean_quotas = self._kafka.client_quotas()

    def make(self, choices: Choices) -> Attack:
        name = choices.of(tuple(KINDS))
        kind = KINDS[name]
        for _ in range(_TRIALS):
            is_inside = not choices.one_in(3)
            document = copy.deepcopy(dict(kind.document))
            for _ in range(1 + choices.below(2)):
                _attack(kind.response, document, choices, is_inside)
            version = _version(kind.response, choices)
            try:
                data = bytes(_built(kind.response, document, version).encode())
                if choices.one_in(10):
                    data, is_inside = hostile.damaged(data, choices), False
                return Attack(name, is_inside, kind.response.decode(data, version=version))
            except Exception:  # kafka-python cannot encode or decode it, so that it never reaches us
                continue
        return Attack(name, True, built(kind.response, kind.document))

    def check(self, attack: Attack) -> None:
        self._routing.attack = attack
        try:
            self._readers[KINDS[attack.kind].read](attack)
        finally:
            self._routing.attack = None

    def _check_topic_configs(self, attack: Attack) -> None:
        answers = self._kafka.topic_configs(TOPICS)
        if attack.is_inside:
            require_same("the configs of another topic", self._clean_topics["clean"], answers.values.get("clean"))
        _check_configs({f"topics/{topic}": values for topic, values in answers.values.items()})
        settings_to_message(
            KafkaFetchSettings(self._kafka).fetch_settings([CLEAN], TOPICS, TIMEOUT)
        ).SerializeToString()

    def _check_broker_configs(self, attack: Attack) -> None:
        answers = self._kafka.broker_configs([CLEAN, ATTACKED])
        require_same("the configs of another broker", self._clean_brokers[CLEAN], answers.values.get(CLEAN))
        require(
            ATTACKED in answers.values or ATTACKED in answers.failures, "a broker has neither configs nor a failure"
        )
        _check_configs({f"brokers/{broker}": values for broker, values in answers.values.items()})
        settings = KafkaFetchSettings(self._kafka).fetch_settings([CLEAN, ATTACKED], TOPICS, TIMEOUT)
        require(CLEAN in settings.brokers, "the settings of another broker are lost")
        settings_to_message(settings).SerializeToString()
        AdminClusterSource(self._kafka).fetch_cluster(TIMEOUT).complete()

    def _check_default_configs(self, attack: Attack) -> None:
        values = self._kafka.default_broker_configs()
        check_throttles(values)
        sent(Snapshot(1, default_throttles=values))

    def _check_cluster(self, attack: Attack) -> None:
        reading = read_reassignments(self._kafka, TIMEOUT, {}, None)
        clean = self._clean_moves.reassignments["clean"]
        if attack.is_inside:
            require_same("the reassignment of another topic", clean, reading.reassignments.get("clean"))
        rows = [(topic, number) for topic, found in reading.metadata.items() for number in found]
        received = sent(
            Snapshot(
                1,
                self._kafka.brokers(),
                tuple(reading.reassignments.values()),
                assignments=reading.assignments(rows),
                replicas=reading.replicas_on(frozenset({CLEAN, ATTACKED})),
                problems=reading.problems,
            )
        )
        for one in received.reassignments:
            require_ids("a reassignment", one.partitions)
            require_ids("leaders", one.leaders, least=-1)
            for column in (one.isr, one.adding_replicas, one.removing_replicas):
                require_ids("replicas", (b for ids in column for b in ids))
        require_ids("registered brokers", received.brokers)
        for host in BrokerHosts(self._kafka).read(TIMEOUT)[0].values():
            "".join(host).encode()
        AdminClusterSource(self._kafka).fetch_cluster(TIMEOUT).complete()

    def _check_logs(self, attack: Attack) -> None:
        sizes = KafkaLogSizes(self._kafka).fetch_log_sizes({CLEAN: None, ATTACKED: None}, TIMEOUT)
        require(CLEAN in sizes.brokers, "the log sizes of another broker are lost")
        for message in log_sizes_to_messages(sizes):
            message.SerializeToString()
        for broker in sizes.brokers.values():
            require_bytes("a log size", broker.sizes.values())
            require_ids("log sizes", (partition for _, partition in broker.sizes))
        storage = LogDirMetrics(self._kafka).fetch_storage_metrics(TIMEOUT)
        require(CLEAN in storage.storage_free, "the storage of another broker is lost")
        require_bytes("total storage", storage.storage_total.values())
        check_storage(storage)

    def _check_quotas(self, attack: Attack) -> None:
        quotas = AdminClientQuotas(self._kafka)
        reading = quotas.fetch_quotas(TIMEOUT)
        clean = ClientQuotaEntity("clean")
        if attack.is_inside:
            require_same("the quotas of another entity", self._clean_quotas[clean], reading.quotas.get(clean))
        for message in quotas_to_messages(reading.quotas, {}):
            message.SerializeToString()
        quotas.fetch_texts([entity.resource for entity in reading.quotas], TIMEOUT)

    def _check_groups(self, attack: Attack) -> None:
        groups = self._kafka.groups([CLEAN, ATTACKED])
        require(CLEAN in groups.values, "the groups of another broker are lost")
        clients = self._kafka.group_clients(groups.values)
        for ids in clients.values.values():
            "".join(ids).encode()

    def _check_refusals(self, attack: Attack) -> None:
        edits = [ConfigEdit(LEADER_RATE, ConfigOperation.SET, "5")]
        refused: list[object] = [*self._kafka.alter_topic_configs(dict.fromkeys(TOPICS, edits)).values()]
        refused += self._kafka.alter_reassignments({(topic, 0): (1, 2) for topic in TOPICS}).values()
        "".join(map(str, refused)).encode()
        self._kafka.alter_client_quotas(ClientQuotaEntity("clean"), {QuotaKey.PRODUCER_BYTE_RATE: 5})

    def close(self) -> None:
        """Nothing to release: the client never connects."""


def _check_configs(configs: Mapping[str, Mapping[str, ConfigValue]]) -> None:
    throttles = {
        path: {
            key: value.current for key, value in values.items() if key in THROTTLE_KEYS and value.current is not None
        }
        for path, values in configs.items()
    }
    for values in throttles.values():
        check_throttles(values)
    sent(Snapshot(1, throttles={ConfigResource(path): values for path, values in throttles.items() if values}))


# Hostile fields.

_TRIALS = 5


def _version(kind: Any, choices: Choices) -> int:
    """Return a version of the protocol, mostly the newest."""
    newest: int = kind.max_version
    return newest - choices.below(newest - kind.min_version + 1) if choices.one_in(2) else newest


_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_DOUBLES = (*hostile.FLOATS, 9.3e18, 2.0**63, 2.0**53 + 2)
_SENDABLE = tuple(text for text in hostile.TEXTS if not any("\ud800" <= letter <= "\udfff" for letter in text))


def _attack(kind: Any, document: dict[str, Any], choices: Choices, is_inside: bool) -> None:
    """Make one field hostile, at any depth; inside: of the last item of the first list."""
    lists = [name for name, value in document.items() if kind.fields[name].is_struct_array() and value]
    if is_inside:
        name = lists[-1]
        if not choices.one_in(8):
            _attack(kind.fields[name].data_class, document[name][-1], choices, False)
        else:
            document[name].append(copy.deepcopy(document[name][-1]))
        return
    names = [name for name in kind.fields if not kind.fields[name].is_struct_array()]
    if lists and (not names or not choices.one_in(3)):
        name = choices.of(lists)
        change = choices.below(12)
        if change == 9:
            document[name] = []
        elif change == 10:
            document[name] = document[name] * 3
        elif change == 11:
            document[name] = document[name][:-1]
        else:
            _attack(kind.fields[name].data_class, choices.of(document[name]), choices, False)
        return
    if not names:  # lists alone, which are empty
        return
    name = choices.of(names)
    document[name] = _hostile(kind.fields[name], choices)


def _hostile(field: Any, choices: Choices) -> Any:
    kind = field.type_str
    if kind.startswith("[]"):
        return [_scalar(kind[2:], choices) for _ in range(choices.below(4))]
    return _scalar(kind, choices)


def _scalar(kind: str, choices: Choices) -> Any:
    if kind in _BITS:
        least, most = -(2 ** _BITS[kind]), 2 ** _BITS[kind] - 1
        return min(max(hostile.integer(choices), least), most)
    if kind == "float64":
        return choices.of(_DOUBLES)
    if kind == "bool":
        return bool(choices.below(2))
    if kind == "string":
        return None if choices.one_in(12) else choices.of(_SENDABLE)[:30_000]
    return b"" if kind == "bytes" else None

"""Builds Kafka's requests and converts its responses to values; no IO. Field names are those of Kafka's protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import chain
from operator import itemgetter
from typing import Any, ParamSpec, TypeVar

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.errors import code_error
from autothrottle.adapters.kafka_admin.schemas import ConsumerGroupDescribeRequest
from autothrottle.adapters.kafka_admin.values import (
    Answers,
    ConfigEdit,
    Configs,
    ConfigValue,
    LogDirs,
    PartitionMetadata,
    PartitionReassignment,
)
from autothrottle.core.cluster.configs import MAX_VALUE_BYTES, TOPIC_NAME
from autothrottle.core.cluster.snapshot import NO_LEADER, TopicPartition
from autothrottle.core.errors import FIELD_ERRORS, AutothrottleError, Invalid, Unavailable
from autothrottle.core.quotas.keys import (
    DEFAULT,
    ClientQuotaEntity,
    Default,
    QuotaEdits,
    QuotaKey,
    QuotaValues,
    stored_value,
)
from autothrottle.core.traffic.loads import MAX_BYTES

K = TypeVar("K")
T = TypeVar("T")
P = ParamSpec("P")

_TOPIC = re.compile(TOPIC_NAME)

TOPIC = 2
"""Kafka's number of the resource type."""
BROKER = 4

_KINDS = {TOPIC: "topic", BROKER: "broker"}

DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG = 1, 2, 3
"""Kafka's numbers of the levels at which a key is set: on a topic, on a broker, and on `<default>` for all brokers."""


def _checked(parse: Callable[P, T]) -> Callable[P, T]:
    """Let a reader of responses raise Unavailable for a malformed response."""

    @wraps(parse)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> T:
        try:
            return parse(*arguments, **keywords)
        except FIELD_ERRORS as error:
            raise _malformed("a request", error) from error

    return checked


def _malformed(what: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"Kafka's answer to {what} is malformed ({type(error).__name__}: {str(error)[:100]}). "
        "Fix: check the broker's version and its log"
    )


def _refuse_negative(what: str, columns: Iterable[Iterable[int]], least: int = 0) -> None:
    """Check numbers that the protocol limits to 32 bits; a negative one is an error of the broker.

    It checks all columns at once, because a function for each of 100,000 partitions takes half as long as reading them.
    """
    smallest = min(chain.from_iterable(columns), default=least)
    if smallest < least:
        raise ValueError(f"{what} {smallest} is negative")


def _by_topic(topics: Iterable[Any], parse: Callable[[Any], T]) -> Answers[str, T]:
    """Read each topic of a response; one that is malformed or has an error is a failure of that topic alone."""
    values: dict[str, T] = {}
    failures: dict[str, AutothrottleError] = {}
    for topic in topics:
        # Kafka has no topic without a name, or with another kind of name.
        if topic.name is None or not _TOPIC.fullmatch(topic.name):
            continue
        try:
            if code := getattr(topic, "error_code", 0):
                raise code_error(code, None, f"topic {topic.name}")
            values[topic.name] = parse(topic)
        except AutothrottleError as error:
            failures[topic.name] = error
        except FIELD_ERRORS as error:
            failures[topic.name] = _malformed(f"a request for topic {topic.name}", error)
    return Answers(values, failures)


# Metadata


@_checked
def hosts(response: Any) -> Mapping[int, str]:
    """Return broker id -> host at the listener of the request, for the live brokers."""
    return {broker.node_id: broker.host or "" for broker in response.brokers if broker.node_id >= 0}


@_checked
def racks(response: Any) -> Mapping[int, str]:
    """Return broker id -> rack of the live brokers; "": it has none."""
    return {broker.node_id: broker.rack or "" for broker in response.brokers if broker.node_id >= 0}


def describe_topics(topics: Collection[str] | None) -> Any:
    """Build a request for topics' metadata; None: all topics."""
    request_type = kafka.protocol.metadata.MetadataRequest
    return request_type(
        topics=None if topics is None else [request_type.MetadataRequestTopic(name=topic) for topic in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


@_checked
def partitions(response: Any) -> Answers[str, Mapping[int, PartitionMetadata]]:
    """Return topic -> partition -> leader, replicas and ISR."""
    return _by_topic(response.topics, _partitions)


def _partitions(topic: Any) -> Mapping[int, PartitionMetadata]:
    # A partition's error only says that its leader or a replica is down, which its fields show too.
    partitions = {
        p.partition_index: PartitionMetadata(p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes))
        for p in topic.partitions
    }
    rows = partitions.values()
    _refuse_negative("partition", [partitions])
    _refuse_negative("leader", [[row.leader for row in rows]], NO_LEADER)
    _refuse_negative("broker id", chain([row.replicas for row in rows], [row.isr for row in rows]))
    return partitions


# Permissions


_OPERATIONS = {
    3: "Read",
    4: "Write",
    6: "Delete",
    7: "Alter",
    8: "Describe",
    10: "DescribeConfigs",
    11: "AlterConfigs",
}
"""Kafka's number of an ACL operation -> its name in kafka-acls."""


def describe_operations() -> Any:
    """Build a request for the operations that this client may do on the cluster and on each topic (KIP-430)."""
    return kafka.protocol.metadata.MetadataRequest(
        topics=None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
        min_version=8,
        max_version=10,  # later versions have only those of topics
    )


@_checked
def permitted_operations(response: Any) -> tuple[frozenset[str], Answers[str, frozenset[str]]]:
    """Return the operations that this client may do on the cluster, and topic -> those on the topic."""
    return _operations(response), _by_topic(response.topics, _operations)


def _operations(resource: Any) -> frozenset[str]:
    return frozenset(name for number, name in _OPERATIONS.items() if number in resource.authorized_operations)


# Configs


def describe_configs(kind: int, names: Collection[str], keys: Collection[str] | None) -> Any:
    """Build a request for these keys (None: all keys) with all levels at which they are set."""
    request_type = kafka.protocol.admin.DescribeConfigsRequest
    resource_type = partial(request_type.DescribeConfigsResource, resource_type=kind)
    configuration_keys = None if keys is None else list(keys)
    resources = [resource_type(resource_name=name, configuration_keys=configuration_keys) for name in names]
    return request_type(resources=resources, include_synonyms=True, include_documentation=False, min_version=1)


@_checked
def configs(response: Any) -> Mapping[str, Configs | AutothrottleError]:
    """Return resource name -> key -> value, or the resource's error."""
    return {result.resource_name: _described(result) for result in response.results}


@_checked
def configs_of(response: Any, name: str) -> Configs | AutothrottleError:
    """Return the configs of the only broker in a response, or its error; "" is `<default>`."""
    return configs(response)[name]


def _described(result: Any) -> Configs | AutothrottleError:
    if result.error_code:
        return code_error(result.error_code, result.error_message, _resource(result))
    return {config.name: _config_value(config) for config in result.configs if config.name is not None}


def _config_value(config: Any) -> ConfigValue:
    # A key may have synonyms (log.retention.ms, log.retention.hours); only entries with its own name count.
    levels = {level.source: level.value for level in reversed(config.synonyms or ()) if level.name == config.name}
    levels.setdefault(config.config_source, config.value)  # the level in force, also in an answer without synonyms
    current = levels.get(DYNAMIC_BROKER_CONFIG, levels.get(DYNAMIC_TOPIC_CONFIG))
    return ConfigValue(config.value, current, levels.get(DYNAMIC_DEFAULT_BROKER_CONFIG))


def alter_configs(kind: int, resources: Mapping[str, Sequence[ConfigEdit]]) -> Any:
    """Build a request for edits; those of one resource succeed or fail together."""
    request_type = kafka.protocol.admin.IncrementalAlterConfigsRequest
    resource_type = partial(request_type.AlterConfigsResource, resource_type=kind)
    config = request_type.AlterConfigsResource.AlterableConfig
    configs_of_resources = {
        name: [config(name=e.key, config_operation=e.operation.value, value=e.value) for e in edits]
        for name, edits in resources.items()
    }
    return request_type(
        resources=[resource_type(resource_name=name, configs=c) for name, c in configs_of_resources.items()],
        validate_only=False,
    )


def sendable(
    edits: Mapping[K, Sequence[ConfigEdit]],
) -> tuple[Mapping[K, Sequence[ConfigEdit]], dict[K, AutothrottleError]]:
    """Separate edits that can be sent from those at which Kafka would close the connection."""
    refused: dict[K, AutothrottleError] = {
        name: Invalid(f"{edit.key} of {name} has {size} bytes; Kafka accepts {MAX_VALUE_BYTES}. Fix: use * instead")
        for name, of_one in edits.items()
        for edit in of_one
        if (size := len((edit.value or "").encode())) > MAX_VALUE_BYTES
    }
    return {name: of_one for name, of_one in edits.items() if name not in refused}, refused


@_checked
def refused_configs(response: Any, names: Collection[K]) -> dict[K, AutothrottleError]:
    """Return resource name -> why Kafka refused its edits."""
    wrong = {r.resource_name: r for r in response.responses if r.error_code}
    refusals = {name: wrong[str(name)] for name in names if str(name) in wrong}
    return {name: code_error(r.error_code, r.error_message, _resource(r)) for name, r in refusals.items()}


def _resource(result: Any) -> str:
    return f"{_KINDS.get(result.resource_type, 'resource')} {result.resource_name or '<default>'}"


# Reassignments


def list_reassignments(partitions: Iterable[TopicPartition] | None, timeout_milliseconds: int) -> Any:
    """Build a request for the reassignments of some partitions; None: of all."""
    request_type = kafka.protocol.admin.ListPartitionReassignmentsRequest
    topic, topics = request_type.ListPartitionReassignmentsTopics, dict[str, list[int]]()
    for name, number in partitions or ():
        topics.setdefault(name, []).append(number)
    rows = None if partitions is None else [topic(name=name, partition_indexes=n) for name, n in topics.items()]
    return request_type(timeout_ms=timeout_milliseconds, topics=rows)


@_checked
def reassignments(response: Any) -> Answers[str, Mapping[int, PartitionReassignment]]:
    """Return topic -> partition -> reassignment."""
    return _by_topic(response.topics, _reassignments)


def _reassignments(topic: Any) -> Mapping[int, PartitionReassignment]:
    columns = {p.partition_index: (p.replicas, p.adding_replicas, p.removing_replicas) for p in topic.partitions}
    _refuse_negative("partition", [columns])
    _refuse_negative("broker id", chain.from_iterable(columns.values()))
    return {partition: PartitionReassignment(*map(tuple, ids)) for partition, ids in columns.items()}


def alter_reassignments(replicas: Mapping[TopicPartition, Sequence[int] | None], timeout_milliseconds: int) -> Any:
    """Build a request to start reassignments; None: cancel."""
    request_type = kafka.protocol.admin.AlterPartitionReassignmentsRequest
    topic, partition = request_type.ReassignableTopic, request_type.ReassignableTopic.ReassignablePartition
    topics: dict[str, list[Any]] = {}
    for (name, number), to in sorted(replicas.items(), key=itemgetter(0)):
        target = partition(partition_index=number, replicas=None if to is None else list(to))
        topics.setdefault(name, []).append(target)
    return request_type(
        timeout_ms=timeout_milliseconds, topics=[topic(name=name, partitions=rows) for name, rows in topics.items()]
    )


@_checked
def refused_reassignments(response: Any) -> Mapping[TopicPartition, AutothrottleError]:
    """Return partition -> why Kafka refused it."""
    return {
        (topic.name, p.partition_index): code_error(
            p.error_code, p.error_message, f"partition {topic.name}-{p.partition_index}"
        )
        for topic in response.responses
        for p in topic.partitions
        if p.error_code
    }


# Logs


def describe_log_dirs(partitions: Mapping[str, Collection[int]] | None) -> Any:
    """Build a request for log sizes; None: of all logs."""
    request_type = kafka.protocol.admin.DescribeLogDirsRequest
    if partitions is None:
        return request_type(topics=None)
    topic = request_type.DescribableLogDirTopic
    return request_type(topics=[topic(topic=name, partitions=sorted(numbers)) for name, numbers in partitions.items()])


@_checked
def log_sizes(broker_id: int, response: Any) -> Mapping[TopicPartition, int]:
    """Return partition -> log size in bytes on this broker, or raise why it is unknown."""
    codes = [getattr(response, "error_code", 0) or 0, *(directory.error_code for directory in response.results)]
    sizes = {
        (topic.name, p.partition_index): _size(topic.name, p)
        for directory in response.results
        for topic in directory.topics
        for p in topic.partitions
        if not p.is_future_key  # a copy on its way to another log directory of the same broker
    }
    _refuse_negative("partition", [[partition for _, partition in sizes]])
    wrong = next((code for code in codes if code), 0)
    # The logs in other directories are valid even if one directory is offline.
    if wrong and not sizes:
        raise code_error(wrong, None, f"the log directories of broker {broker_id}")
    return sizes


def _size(topic: str | None, partition: Any) -> int:
    size: int = partition.partition_size
    if topic is None or size < 0:
        raise ValueError(f"the log of {topic}-{partition.partition_index} has {size} bytes")
    return size


@_checked
def log_dirs(broker_id: int, response: Any) -> LogDirs:
    """Return a broker's log sizes and free storage, or raise why they are unknown.

    Directories with the same total and usable bytes are on one volume, which counts once.
    """
    sizes = log_sizes(broker_id, response)
    online = [directory for directory in response.results if not directory.error_code]
    measured = [directory for directory in online if directory.total_bytes >= 0]
    total = {(directory.total_bytes, directory.usable_bytes) for directory in measured}
    usable = {(directory.total_bytes, directory.usable_bytes) for directory in measured if not directory.is_cordoned}
    return LogDirs(
        sizes,
        min(sum(size for size, _ in total), MAX_BYTES) if measured else None,
        min(sum(max(free, 0) for _, free in usable), MAX_BYTES) if measured else None,
        bool(online) and all(directory.is_cordoned for directory in online),
    )


# Client quotas


def describe_client_quotas() -> Any:
    """Build a request for the quotas of all entities."""
    return kafka.protocol.admin.DescribeClientQuotasRequest(components=[], strict=False)


@_checked
def client_quotas(response: Any) -> Mapping[ClientQuotaEntity, QuotaValues]:
    """Return entity -> its quotas. Kinds of entities and keys of newer versions of Kafka are absent."""
    key_names, quotas = set(QuotaKey), dict[ClientQuotaEntity, QuotaValues]()
    for entry in response.entries or ():
        parts = {part.entity_type: DEFAULT if part.entity_name is None else part.entity_name for part in entry.entity}
        if not parts.keys() <= {"user", "client-id", "ip"}:
            continue
        values = {QuotaKey(v.key): v.value for v in entry.values if v.key in key_names}
        if values:
            entity = ClientQuotaEntity(parts.get("user"), parts.get("client-id"), parts.get("ip"))
            quotas[entity] = {key: stored_value(key, value) for key, value in values.items()}
    return quotas


def alter_client_quotas(entity: ClientQuotaEntity, edits: QuotaEdits, validate_only: bool) -> Any:
    """Build a request for edits of one entity; they succeed or fail together."""
    request_type = kafka.protocol.admin.AlterClientQuotasRequest
    entry = request_type.EntryData
    parts = [
        entry.EntityData(entity_type=kind, entity_name=None if isinstance(name, Default) else name)
        for kind, name in entity.parts.items()
    ]
    ops = [entry.OpData(key=str(k), value=float(value or 0), remove=value is None) for k, value in edits.items()]
    return request_type(entries=[entry(entity=parts, ops=ops)], validate_only=validate_only)


@_checked
def refused_client_quotas(response: Any, entity: ClientQuotaEntity) -> AutothrottleError | None:
    """Return why Kafka refused the edits of an entity; None: it did not."""
    refusal = next((entry for entry in response.entries if entry.error_code), None)
    if refusal is None:
        return None
    return code_error(refusal.error_code, refusal.error_message, f"the quotas of {entity}")


# Groups

_GROUPS_AT_ONCE = 100
"""Groups in one request; the response has the assignments of all their members."""
_CLASSIC, _CONSUMER = "classic", "consumer"
_GONE = kafka.errors.GroupIdNotFoundError.errno


def list_groups() -> Any:
    """Build a request for the groups that a broker coordinates."""
    return kafka.protocol.admin.ListGroupsRequest(states_filter=[], types_filter=[])


@_checked
def groups(broker_id: int, response: Any) -> Mapping[str, str] | AutothrottleError:
    """Return group -> its type, for groups that have members; Kafka before 3.8 names neither type nor members."""
    if response.error_code:
        return code_error(response.error_code, None, f"the groups of broker {broker_id}")
    return {
        group.group_id: (getattr(group, "group_type", "") or _CLASSIC).lower()
        for group in response.groups
        if group.group_id is not None and getattr(group, "group_state", "") not in ("Empty", "Dead")
    }


def undescribable_groups(types: Mapping[str, str]) -> Mapping[str, AutothrottleError]:
    """Return the groups of other types than classic and consumer -> why their members are unknown."""
    return {
        group: Invalid(
            f"group {group} has the type {kind}, which autothrottle cannot describe. "
            "Fix: name its client ids in a rule, without wildcards"
        )
        for group, kind in types.items()
        if kind not in (_CLASSIC, _CONSUMER)
    }


def describe_groups(types: Mapping[str, str]) -> Iterator[Callable[[], Any]]:
    """Yield what builds the requests for the members of all groups.

    Args:
        types: group -> its type; all have the same coordinator.
    """
    classic_type = kafka.protocol.admin.DescribeGroupsRequest
    for kind, request_type, field in (
        (_CLASSIC, classic_type, "groups"),
        (_CONSUMER, ConsumerGroupDescribeRequest, "group_ids"),
    ):
        names = sorted(group for group, of_group in types.items() if of_group == kind)
        for start in range(0, len(names), _GROUPS_AT_ONCE):
            some = names[start : start + _GROUPS_AT_ONCE]
            yield partial(request_type, include_authorized_operations=False, **{field: some})


@_checked
def group_clients(response: Any) -> Mapping[str, frozenset[str] | AutothrottleError]:
    """Return group -> the client ids of its members, none if the group is gone."""
    return {
        group.group_id: code_error(group.error_code, getattr(group, "error_message", None), f"group {group.group_id}")
        if group.error_code not in (0, _GONE)
        else frozenset(member.client_id for member in group.members if member.client_id is not None)
        for group in response.groups
        if group.group_id is not None
    }

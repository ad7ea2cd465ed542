"""Compares each answer of Kafka with its request: an answer has exactly what was asked for.

A broker that delays this client may answer without a partition, and a damaged answer may lack anything. What is missing
must never count as absent in Kafka: as no throttle, no log, no broker, or as a write that succeeded. So it becomes an
entry with the error `NOT_ANSWERED`, which the readers in `messages` report for this resource alone. Other entries are
dropped.

An empty list is an answer only where Kafka has such lists: reassignments, client quotas, groups, and the topics of a
request for all topics. The type to know is `complete`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from autothrottle.core.cluster.configs import REPLICAS_KEYS
from autothrottle.core.errors import FIELD_ERRORS

NOT_ANSWERED = -32_768
"""Error code, which Kafka does not have, of an entry that an answer lacks."""

_TOPIC, _BROKER = 2, 4
_DESCRIBED: Mapping[int, frozenset[str]] = {
    _TOPIC: frozenset({*REPLICAS_KEYS, "min.insync.replicas", "cleanup.policy"}),
    _BROKER: frozenset({"replica.fetch.response.max.bytes"}),
}
"""Type of a resource -> keys that Kafka always describes, set or not, if they are asked for."""


class Gaps(NamedTuple):
    """What an answer lacks."""

    missing: Collection[Hashable] = ()
    """Keys of the entries that it lacks."""
    is_empty: bool = False
    """Whether it has nothing of what was asked for."""


def complete(request: Any, response: Any) -> Gaps:
    """Leave exactly what was asked for in a response, and return what it lacked. A malformed one lacks everything."""
    rule = _RULES.get(type(request).__name__)
    try:
        return rule(request, response) if rule else Gaps()
    except FIELD_ERRORS:  # the reader of a write's response reports the field
        return Gaps(["a readable answer"], True)


def is_repeatable(request: Any) -> bool:
    """Whether a request only reads, so that it can be repeated at once."""
    return type(request).__name__ in _READS


def _entries(
    response: Any,
    field: str,
    requested_keys: Iterable[Hashable],
    key: Callable[[Any], Hashable],
    create: Callable[[Any], Any],
    is_answered: Callable[[Any], bool] = lambda entry: True,
) -> Gaps:
    """Complete a list of entries with a key and an error code each.

    Args:
        response: its owner.
        field: name of the list.
        requested_keys: those of the request.
        key: entry -> its key.
        create: key -> an entry with the error.
        is_answered: whether an entry without an error has all that Kafka always says about it.
    """
    entries: dict[Hashable, Any] = {}
    for entry in getattr(response, field) or ():
        try:
            if entry.error_code or is_answered(entry):
                entries[key(entry)] = entry
        except FIELD_ERRORS:  # a malformed entry is none
            continue
    keys = list(dict.fromkeys(requested_keys))
    missing = [k for k in keys if k not in entries]
    lacking = frozenset(missing)
    setattr(response, field, [create(k) if k in lacking else entries[k] for k in keys])
    return Gaps(missing, len(missing) == len(keys) > 0)


def _rows(response: Any, field: str, rows: str, requested: Mapping[str, Collection[int]]) -> Gaps:
    """Complete topics with partitions that have an error code each; `requested` is topic -> partitions."""
    answered = {
        (topic.name, _index(row)): row for topic in getattr(response, field) or () for row in getattr(topic, rows)
    }
    keys = [(name, number) for name, numbers in requested.items() for number in numbers]
    missing = [k for k in keys if k not in answered]
    topic_type = response.fields[field].data_class
    row_type = topic_type.fields[rows].data_class
    index = "index" if "index" in row_type.fields else "partition_index"
    for k in missing:
        answered[k] = row_type(**{index: k[1], "error_code": NOT_ANSWERED})
    topics = [topic_type(name=n, **{rows: [answered[n, i] for i in numbers]}) for n, numbers in requested.items()]
    setattr(response, field, topics)
    return Gaps(missing, len(missing) == len(keys) > 0)


def _index(row: Any) -> int:
    return int(row.index if "index" in row.fields else row.partition_index)


def _metadata(request: Any, response: Any) -> Gaps:
    """A cluster has at least the broker that answers, and a topic at least one partition."""
    is_broken = not response.brokers or bool(response.error_code)
    gaps = Gaps()
    if request.topics is not None:
        create = response.fields["topics"].data_class
        gaps = _entries(
            response,
            "topics",
            [topic.name for topic in request.topics],
            lambda topic: topic.name,
            lambda name: create(name=name, error_code=NOT_ANSWERED),
            lambda topic: bool(topic.partitions),
        )
    return Gaps((*gaps.missing, "brokers"), True) if is_broken else gaps


def _described_configs(request: Any, response: Any) -> Gaps:
    create = response.fields["results"].data_class
    keys = {(r.resource_type, r.resource_name): r.configuration_keys for r in request.resources}

    def has_configs(result: Any) -> bool:
        if result.resource_type == _BROKER and not result.resource_name:
            return True  # only what is set on <default> is described
        config_keys, always = keys[result.resource_type, result.resource_name], _DESCRIBED[result.resource_type]
        required = always if config_keys is None else always & {*config_keys}
        return {config.name for config in result.configs} >= required

    return _entries(
        response,
        "results",
        keys,
        lambda result: (result.resource_type, result.resource_name),
        lambda k: create(resource_type=k[0], resource_name=k[1], error_code=NOT_ANSWERED),
        has_configs,
    )


def _altered_configs(request: Any, response: Any) -> Gaps:
    create = response.fields["responses"].data_class
    return _entries(
        response,
        "responses",
        [(r.resource_type, r.resource_name) for r in request.resources],
        lambda result: (result.resource_type, result.resource_name),
        lambda k: create(resource_type=k[0], resource_name=k[1], error_code=NOT_ANSWERED),
    )


def _log_dirs(request: Any, response: Any) -> Gaps:
    """A broker has at least one log directory. It leaves out partitions without a replica on it."""
    if not response.results and not response.error_code:
        response.error_code = NOT_ANSWERED
        return Gaps(["log directories"], True)
    if request.topics is not None:
        requested = {topic.topic: {*topic.partitions} for topic in request.topics}
        for directory in response.results:
            directory.topics = [topic for topic in directory.topics if topic.name in requested]
            for topic in directory.topics:
                topic.partitions = [row for row in topic.partitions if row.partition_index in requested[topic.name]]
    return Gaps()


def _client_quotas(request: Any, response: Any) -> Gaps:
    """No quota is an empty list; null comes with an error."""
    if response.entries is None and not response.error_code:
        response.error_code = NOT_ANSWERED
        return Gaps(["entries"], True)
    return Gaps()


def _altered_client_quotas(request: Any, response: Any) -> Gaps:
    create = response.fields["entries"].data_class
    entities = {_entity(entry): entry.entity for entry in request.entries}
    return _entries(response, "entries", entities, _entity, lambda k: create(entity=[], error_code=NOT_ANSWERED))


def _entity(entry: Any) -> frozenset[tuple[str, str | None]]:
    return frozenset((part.entity_type, part.entity_name) for part in entry.entity)


def _listed_reassignments(request: Any, response: Any) -> Gaps:
    """A partition that is not listed is not being reassigned."""
    if request.topics is not None:
        requested = {topic.name: {*topic.partition_indexes} for topic in request.topics}
        response.topics = [topic for topic in response.topics if topic.name in requested]
        for topic in response.topics:
            topic.partitions = [row for row in topic.partitions if row.partition_index in requested[topic.name]]
    return Gaps()


def _altered_reassignments(request: Any, response: Any) -> Gaps:
    """A request with partitions that are not in the answer has no known result as a whole."""
    answered = {(topic.name, row.partition_index) for topic in response.responses for row in topic.partitions}
    requested = [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]
    missing = [row for row in requested if row not in answered]
    if missing and not response.error_code:
        response.error_code = NOT_ANSWERED
    requested_topics = {topic for topic, _ in requested}
    response.responses = [topic for topic in response.responses if topic.name in requested_topics]
    return Gaps(missing, len(missing) == len(requested))


def _groups(request: Any, response: Any) -> Gaps:
    create = response.fields["groups"].data_class
    names = request.groups if "groups" in request.fields else request.group_ids
    return _entries(
        response,
        "groups",
        names,
        lambda group: group.group_id,
        lambda name: create(group_id=name, error_code=NOT_ANSWERED),
    )


def _created_topics(request: Any, response: Any) -> Gaps:
    create = response.fields["topics"].data_class
    return _entries(
        response,
        "topics",
        [topic.name for topic in request.topics],
        lambda topic: topic.name,
        lambda name: create(name=name, error_code=NOT_ANSWERED),
    )


def _produced(request: Any, response: Any) -> Gaps:
    requested = {topic.name: [row.index for row in topic.partition_data] for topic in request.topic_data}
    return _rows(response, "responses", "partition_responses", requested)


def _offsets(request: Any, response: Any) -> Gaps:
    requested = {topic.name: [row.partition_index for row in topic.partitions] for topic in request.topics}
    return _rows(response, "topics", "partitions", requested)


def _fetched(request: Any, response: Any) -> Gaps:
    """Kafka's own way to delay reads is an answer without partitions, which the reader of the topic waits for."""
    requested = {str(topic.topic_id): {row.partition for row in topic.partitions} for topic in request.topics}
    response.responses = [topic for topic in response.responses if str(topic.topic_id) in requested]
    for topic in response.responses:
        numbers = requested[str(topic.topic_id)]
        topic.partitions = [row for row in topic.partitions if row.partition_index in numbers]
    return Gaps()


_READS: Mapping[str, Callable[[Any, Any], Gaps]] = {
    "MetadataRequest": _metadata,
    "DescribeConfigsRequest": _described_configs,
    "DescribeLogDirsRequest": _log_dirs,
    "DescribeClientQuotasRequest": _client_quotas,
    "ListPartitionReassignmentsRequest": _listed_reassignments,
    "DescribeGroupsRequest": _groups,
    "ConsumerGroupDescribeRequest": _groups,
    "ListOffsetsRequest": _offsets,
}
_RULES: Mapping[str, Callable[[Any, Any], Gaps]] = {
    **_READS,
    "FetchRequest": _fetched,
    "ProduceRequest": _produced,
    "CreateTopicsRequest": _created_topics,
    "DeleteRecordsRequest": _offsets,
    "IncrementalAlterConfigsRequest": _altered_configs,
    "AlterPartitionReassignmentsRequest": _altered_reassignments,
    "AlterClientQuotasRequest": _altered_client_quotas,
}
"""Name of a request -> how to complete its response. ListGroups and DescribeCluster may be answered with nothing."""

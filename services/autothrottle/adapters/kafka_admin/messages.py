"""Kafka's requests, and its responses as values; no IO. Field names are those of Kafka's protocol (kafka.protocol)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from autothrottle.adapters.kafka_admin.answers import (
    Answers,
    ConfigEdit,
    ConfigSource,
    ConfigValue,
    PartitionMetadata,
    PartitionReassignment,
)
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.translation import code_error
from autothrottle.core.configs import MAX_VALUE_BYTES
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.topology import TopicPartition

K = TypeVar("K")

TOPIC = 2
"""Kafka's number of the resource type."""
BROKER = 4

_KINDS = {TOPIC: "topic", BROKER: "broker"}
_SOURCES = {source.value: source for source in ConfigSource}


# Metadata


def describe_topics(topics: Collection[str] | None) -> Any:
    """Ask for partitions; None: of all topics."""
    asked = kafka.protocol.metadata.MetadataRequest
    return asked(
        topics=None if topics is None else [asked.MetadataRequestTopic(name=topic) for topic in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def partitions(response: Any) -> Answers[str, Mapping[int, PartitionMetadata]]:
    """Return topic -> partition -> where it is."""
    values: dict[str, Mapping[int, PartitionMetadata]] = {}
    failures: dict[str, AutothrottleError] = {}
    for topic in response.topics:
        if topic.error_code:
            failures[topic.name] = code_error(topic.error_code, None, f"topic {topic.name}")
            continue
        # The error of a partition only says that its leader or a replica is down, which its columns say as well.
        values[topic.name] = {
            p.partition_index: PartitionMetadata(p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes))
            for p in topic.partitions
        }
    return Answers(values, failures)


# Configs


def describe_configs(kind: int, names: Collection[str], keys: Collection[str] | None) -> Any:
    """Ask for these keys, None: all, with the levels at which they are set."""
    asked = kafka.protocol.admin.DescribeConfigsRequest
    wanted = None if keys is None else list(keys)
    return asked(
        resources=[
            asked.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=wanted)
            for name in names
        ],
        include_synonyms=True,
        include_documentation=False,
        min_version=1,
    )


def configs(response: Any) -> Mapping[str, Mapping[str, ConfigValue] | AutothrottleError]:
    """Return resource name -> key -> value, or what is wrong with the resource."""
    return {result.resource_name: _described(result) for result in response.results}


def _described(result: Any) -> Mapping[str, ConfigValue] | AutothrottleError:
    if result.error_code:
        return code_error(result.error_code, result.error_message, _resource(result))
    return {config.name: _config_value(config) for config in result.configs}


def _config_value(config: Any) -> ConfigValue:
    # Of several names for one thing (log.retention.ms, log.retention.hours) only its own counts.
    levels = {
        _source(synonym.source): synonym.value
        for synonym in reversed(config.synonyms or ())
        if synonym.value is not None and synonym.name == config.name
    }
    return ConfigValue(config.value, _source(config.config_source), levels)


def _source(number: int) -> ConfigSource:
    return _SOURCES.get(number, ConfigSource.UNKNOWN)


def alter_configs(kind: int, resources: Mapping[str, Sequence[ConfigEdit]]) -> Any:
    """Ask for edits, of which those of one resource are all or nothing."""
    asked = kafka.protocol.admin.IncrementalAlterConfigsRequest
    config = asked.AlterConfigsResource.AlterableConfig
    return asked(
        resources=[
            asked.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[config(name=e.key, config_operation=e.operation.value, value=e.value) for e in edits],
            )
            for name, edits in resources.items()
        ],
        validate_only=False,
    )


def sendable(
    edits: Mapping[K, Sequence[ConfigEdit]],
) -> tuple[Mapping[K, Sequence[ConfigEdit]], dict[K, AutothrottleError]]:
    """Tell apart what can be sent, and what Kafka would answer by closing the connection."""
    refused: dict[K, AutothrottleError] = {}
    for name, of_one in edits.items():
        for edit in of_one:
            size = len((edit.value or "").encode())
            if size > MAX_VALUE_BYTES:
                refused[name] = Invalid(
                    f"{edit.key} of {name} has {size} bytes; Kafka takes at most {MAX_VALUE_BYTES}. Fix: use * instead"
                )
    return {name: of_one for name, of_one in edits.items() if name not in refused}, refused


def refused_configs(response: Any, asked: Collection[K]) -> dict[K, AutothrottleError]:
    """Return resource name -> why Kafka refused its edits."""
    wrong = {r.resource_name: r for r in response.responses if r.error_code}
    return {
        name: code_error(wrong[str(name)].error_code, wrong[str(name)].error_message, _resource(wrong[str(name)]))
        for name in asked
        if str(name) in wrong
    }


def _resource(result: Any) -> str:
    return f"{_KINDS.get(result.resource_type, 'resource')} {result.resource_name or '<default>'}"


# Reassignments


def top_code(response: Any) -> int:
    """Return the error code of a whole response."""
    code: int = response.error_code
    return code


def list_reassignments(timeout_milliseconds: int) -> Any:
    """Ask for all reassignments."""
    return kafka.protocol.admin.ListPartitionReassignmentsRequest(timeout_ms=timeout_milliseconds, topics=None)


def reassignments(response: Any) -> Mapping[str, Mapping[int, PartitionReassignment]]:
    """Return topic -> partition -> reassignment."""
    return {
        topic.name: {
            p.partition_index: PartitionReassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for p in topic.partitions
        }
        for topic in response.topics
    }


def alter_reassignments(replicas: Mapping[TopicPartition, Sequence[int] | None], timeout_milliseconds: int) -> Any:
    """Ask for reassignments; None cancels."""
    asked = kafka.protocol.admin.AlterPartitionReassignmentsRequest
    topic, partition = asked.ReassignableTopic, asked.ReassignableTopic.ReassignablePartition
    return asked(
        timeout_ms=timeout_milliseconds,
        topics=[
            topic(
                name=name,
                partitions=[
                    partition(partition_index=number, replicas=None if to is None else list(to))
                    for (_, number), to in of_one
                ],
            )
            for name, of_one in groupby(sorted(replicas.items(), key=lambda item: item[0]), lambda item: item[0][0])
        ],
    )


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


def describe_log_dirs(asked_for: Mapping[str, Collection[int]] | None) -> Any:
    """Ask for the sizes of logs; None: of all."""
    asked = kafka.protocol.admin.DescribeLogDirsRequest
    if asked_for is None:
        return asked(topics=None)
    topic = asked.DescribableLogDirTopic
    return asked(topics=[topic(topic=name, partitions=sorted(numbers)) for name, numbers in asked_for.items()])


def log_sizes(broker_id: int, response: Any) -> Mapping[TopicPartition, int] | AutothrottleError:
    """Return partition -> bytes of its log on this broker."""
    codes = [getattr(response, "error_code", 0) or 0, *(directory.error_code for directory in response.results)]
    found = {
        (topic.name, p.partition_index): p.partition_size
        for directory in response.results
        for topic in directory.topics
        for p in topic.partitions
        if not p.is_future_key  # a copy on its way to another directory of the same broker
    }
    wrong = next((code for code in codes if code), 0)
    # A directory that is offline takes nothing away from what the others hold.
    if wrong and not found:
        return code_error(wrong, None, f"the log directories of broker {broker_id}")
    return found

"""Malformed answers of Kafka concern the topic, broker or entity that they are about, and no other."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.reassignments import read_reassignments
from autothrottle.adapters.kafka_admin.sources import KafkaFetchSettings
from autothrottle.admin.quotas import quota_to_message, values_from_message
from autothrottle.core.errors import Unavailable
from autothrottle.core.quotas.keys import ClientQuotaEntity, QuotaKey, format_value, parse_value
from autothrottle.wire.discovery import settings_to_message
from tests.fuzz.admin_responses import KINDS, AdminResponses, Attack, built

TIMEOUT = timedelta(seconds=20)


def reading(kind: str, document: dict[str, Any]) -> AdminResponses:
    """Return a client that gets this answer."""
    door = AdminResponses()
    door._routing.attack = Attack(kind, True, built(KINDS[kind].response, document))
    return door


@pytest.mark.parametrize("name", [None, "7", ""])
def test_a_broker_that_describes_nothing_is_a_failure_of_that_broker(name: str | None) -> None:
    """One broker's answer without its own configs was a KeyError. No broker's rates were read, in any cycle."""
    results = [] if name is None else [{"resource_type": 4, "resource_name": name, "configs": []}]
    answers = reading("broker configs", {"results": results})._kafka.broker_configs([1, 2])
    assert [*answers.values] == [1]
    assert "answer lacks broker 2. Fix: " in str(answers.failures[2])


def test_a_topic_that_is_not_described_is_a_failure_and_not_absent() -> None:
    """A requested topic that the answer left out had neither configs nor a failure: its list counted as not set."""
    answers = reading("topic configs", {"results": []})._kafka.topic_configs(["clean"])
    assert isinstance(answers.failures["clean"], Unavailable)


@pytest.mark.parametrize("replicas", [[1, -5], [-(2**31)]])
def test_a_reassignment_of_negative_brokers_is_a_problem_of_its_topic(replicas: list[int]) -> None:
    """The ids passed into the snapshot, whose messages and lists cannot hold them. Other topics were lost with it."""
    moves: dict[str, Any] = {
        "topics": [
            {"name": name, "partitions": [{"partition_index": 0, "replicas": [1, 2], "adding_replicas": ids}]}
            for name, ids in (("clean", [2]), ("t", replicas))
        ]
    }
    found = read_reassignments(reading("reassignments", moves)._kafka, TIMEOUT, {})
    assert [*found.reassignments] == ["clean"]
    (problem,) = found.problems
    assert problem.path == "topics/t" and "is negative" in problem.reason


def test_an_unreadable_reassignment_keeps_its_last_known_value() -> None:
    """Without it the topic counted as done, and its throttles were removed while it moved."""
    door = AdminResponses()
    known = read_reassignments(door._kafka, TIMEOUT, {}).reassignments
    listed = {"topics": [{"name": "t", "partitions": [{"partition_index": -1}]}]}
    found = read_reassignments(reading("reassignments", listed)._kafka, TIMEOUT, known)
    assert found.reassignments == {"t": known["t"]}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("producer_byte_rate", float(2**63 - 1), 2**63 - 1),
        ("consumer_byte_rate", float("inf"), 2**63 - 1),
        ("producer_byte_rate", 1e19, 2**63 - 1),
        ("producer_byte_rate", -5.0, -5),
        ("producer_byte_rate", float("nan"), 2**63 - 1),
        ("request_percentage", float("nan"), sys.float_info.max),
        ("connection_creation_rate", float(2**31), 2**31 - 1),
        ("connection_creation_rate", -1e19, 1 - 2**31),
        ("request_percentage", float("inf"), sys.float_info.max),
        ("controller_mutation_rate", float("-inf"), -sys.float_info.max),
    ],
)
def test_a_quota_beyond_its_range_limits_nothing_and_the_others_are_read(
    key: str, value: float, expected: float
) -> None:
    """Kafka's protocol has doubles. int() refuses infinity, and a message refuses 2^63: the quotas of all were lost."""
    entries = [
        {"entity": [{"entity_type": "user", "entity_name": name}], "values": [{"key": key, "value": v}]}
        for name, v in (("clean", 1024.0), ("a", value))
    ]
    found = messages.client_quotas(built(kafka.protocol.admin.DescribeClientQuotasResponse, {"entries": entries}))
    assert found[ClientQuotaEntity("clean")] == {QuotaKey(key): 1024}
    assert found[ClientQuotaEntity("a")] == {QuotaKey(key): expected}
    for entity, values in found.items():
        assert values_from_message(quota_to_message(entity, values).values) == values
        assert {key: parse_value(key, format_value(key, value)) for key, value in values.items()} == values


@pytest.mark.parametrize("text", ["9" * 5_000, "2147483648", "\u0667", "-1", ""])
def test_an_impossible_setting_counts_as_its_default(text: str) -> None:
    """int() refuses more than 4,300 digits, and a message more than 32 bits. The settings of no broker were known."""
    config = {"name": "replica.fetch.response.max.bytes", "value": text, "synonyms": []}
    results = [{"resource_type": 4, "resource_name": "2", "configs": [config]}]
    settings = KafkaFetchSettings(reading("broker configs", {"results": results})._kafka)
    found = settings.fetch_settings([1, 2], (), TIMEOUT)
    assert [b.response_max_bytes for b in found.brokers.values()] == [10_485_760, 10_485_760]
    settings_to_message(found).SerializeToString()


def test_a_log_with_a_negative_size_is_a_failure_of_its_broker() -> None:
    logs: dict[str, Any] = {
        "results": [{"topics": [{"name": "t", "partitions": [{"partition_index": 0, "partition_size": -7}]}]}]
    }
    answers = reading("log directories", logs)._kafka.log_dirs([1, 2])
    assert [*answers.values] == [1] and "the log of t-0 has -7 bytes" in str(answers.failures[2])


def test_sums_of_storage_stay_within_64_bits() -> None:
    directory = {"total_bytes": 2**63 - 1, "usable_bytes": 2**63 - 1, "topics": []}
    logs: dict[str, Any] = {"results": [directory, {**directory, "usable_bytes": 2**63 - 2}]}
    found = reading("log directories", logs)._kafka.log_dirs([2]).values[2]
    assert (found.total_bytes, found.usable_bytes) == (2**63 - 1, 2**63 - 1)


def test_a_null_list_is_a_malformed_answer() -> None:
    response = built(kafka.protocol.admin.ListPartitionReassignmentsResponse, {"topics": []})
    response.topics = None
    with pytest.raises(Unavailable, match="malformed"):
        messages.reassignments(response)

"""The operations that Kafka's authorizer allows, from a response of Metadata."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.messages import permitted_operations
from autothrottle.adapters.kafka_admin.sources import KafkaPermissions
from autothrottle.adapters.kafka_admin.values import Answers
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.errors import Unavailable
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryKafka

ALL = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
ALTER, ALTER_CONFIGS = 7, 11


def response(cluster: Collection[int] | None, topics: Mapping[str, Collection[int] | None]) -> Any:
    described = [SimpleNamespace(name=t, error_code=0, authorized_operations=numbers) for t, numbers in topics.items()]
    return SimpleNamespace(authorized_operations=cluster, topics=described)


class GuardedKafka(MemoryKafka):
    """Kafka with an authorizer."""

    def __init__(self, answer: Any) -> None:
        super().__init__(MemoryCluster())
        self.answer = answer

    def permitted_operations(
        self, *, timeout: timedelta | None = None
    ) -> tuple[frozenset[str], Answers[str, frozenset[str]]]:
        return permitted_operations(self.answer)


def missing(answer: Any, writes_configs: bool = True) -> Mapping[str, str]:
    return KafkaPermissions(GuardedKafka(answer), writes_configs).fetch_missing_permissions(timedelta(seconds=1))


def test_nothing_is_missing_without_an_authorizer() -> None:
    assert missing(response(ALL, {"a": ALL, "b": ALL})) == {}


def test_missing_operations_are_named_with_the_command_that_allows_them() -> None:
    sentences = missing(response(ALL - {ALTER, ALTER_CONFIGS}, {"a": ALL, "b": ALL - {ALTER_CONFIGS}, "c": {8}}))
    assert {name: text.partition(". Fix:")[0] for name, text in sentences.items()} == {
        "Kafka, cluster": "this client may not Alter, AlterConfigs",
        "topic b": "this client may not AlterConfigs",
        "topic c": "this client may not DescribeConfigs, AlterConfigs",
    }
    assert "--operation Alter --operation AlterConfigs --cluster" in sentences["Kafka, cluster"]


def test_operations_that_all_topics_lack_are_one_finding() -> None:
    assert [*missing(response(ALL, {topic: {8, 10} for topic in "abc"}))] == ["all topics"]


def test_only_what_is_used_through_the_admin_api_is_needed() -> None:
    answer = response({7, 8, 10}, {"a": {8, 10}})
    assert missing(answer, writes_configs=False) == {}
    assert [*missing(answer)] == ["Kafka, cluster", "topic a"]


def test_topic_with_a_malformed_answer_is_a_problem_of_its_own() -> None:
    sentences = missing(response(ALL, {"a": None, "b": {8}}))
    assert [*sentences] == ["topic b", "topic a"]
    assert "malformed" in sentences["topic a"]
    with pytest.raises(Unavailable, match="malformed"):
        missing(response(None, {}))

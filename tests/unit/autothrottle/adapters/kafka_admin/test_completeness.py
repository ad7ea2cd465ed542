"""Answers of Kafka without what was asked for, with a part of it, and with what was not asked for."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.completeness import NOT_ANSWERED, complete, is_repeatable
from autothrottle.adapters.kafka_admin.connections import Connections, kafka
from autothrottle.adapters.kafka_admin.schemas import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation, KafkaSettings
from autothrottle.core.cluster.configs import RATE_KEYS, REPLICAS_KEYS
from autothrottle.core.errors import AutothrottleError, Missing, Unavailable
from autothrottle.core.quotas.keys import ClientQuotaEntity, QuotaKey
from tests.fuzz.admin_responses import built

ADMIN, METADATA = kafka.protocol.admin, kafka.protocol.metadata
CONSUMER, PRODUCER = kafka.protocol.consumer, kafka.protocol.producer
TOPICS = ("a", "b")
EDITS = [ConfigEdit("k", ConfigOperation.DELETE)]


class Api(NamedTuple):
    """A request, its answer in full, and where the answer has its entries."""

    request: Any
    response: Any
    document: Mapping[str, Any]
    path: tuple[str, ...] = ()
    """Names of the lists from the answer to its entries."""


def rows(row: Mapping[str, Any], field: str = "partitions") -> list[dict[str, Any]]:
    return [{"name": name, field: [dict(row)]} for name in TOPICS]


def topic_partitions(kind: Any, field: str, row: Callable[[Any], Any], **more: Any) -> Any:
    topic = kind.fields[field].data_class
    part = topic.fields["partitions"].data_class
    return kind(**{field: [topic(name=n, partitions=[row(part)]) for n in TOPICS]}, **more)


def configs(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"name": name, "value": ""} for name in names]


def groups(request: Any, response: Any) -> Api:
    return Api(request, response, {"groups": [{"group_id": name} for name in TOPICS]}, ("groups",))


PRODUCE = PRODUCER.ProduceRequest
PRODUCED = PRODUCE.TopicProduceData
BROKER_ROWS = [{"node_id": 1, "host": "h", "port": 1}]
APIS: Mapping[str, Api] = {
    "topics": Api(
        messages.describe_topics(TOPICS),
        METADATA.MetadataResponse,
        {"brokers": BROKER_ROWS, "topics": rows({"partition_index": 0, "leader_id": 1})},
        ("topics",),
    ),
    "configs": Api(
        messages.describe_configs(messages.TOPIC, TOPICS, REPLICAS_KEYS),
        ADMIN.DescribeConfigsResponse,
        {
            "results": [
                {"resource_type": 2, "resource_name": name, "configs": configs(REPLICAS_KEYS)} for name in TOPICS
            ]
        },
        ("results",),
    ),
    "altered configs": Api(
        messages.alter_configs(messages.TOPIC, dict.fromkeys(TOPICS, EDITS)),
        ADMIN.IncrementalAlterConfigsResponse,
        {"responses": [{"resource_type": 2, "resource_name": name} for name in TOPICS]},
        ("responses",),
    ),
    "altered reassignments": Api(
        messages.alter_reassignments({(name, 0): [1] for name in TOPICS}, 1),
        ADMIN.AlterPartitionReassignmentsResponse,
        {"responses": rows({"partition_index": 0})},
        ("responses",),
    ),
    "altered quotas": Api(
        messages.alter_client_quotas(ClientQuotaEntity("a"), {QuotaKey.PRODUCER_BYTE_RATE: 1}, False),
        ADMIN.AlterClientQuotasResponse,
        {"entries": [{"entity": [{"entity_type": "user", "entity_name": "a"}]}]},
        ("entries",),
    ),
    "classic groups": groups(ADMIN.DescribeGroupsRequest(groups=list(TOPICS)), ADMIN.DescribeGroupsResponse),
    "groups": groups(ConsumerGroupDescribeRequest(group_ids=list(TOPICS)), ConsumerGroupDescribeResponse),
    "offsets": Api(
        topic_partitions(CONSUMER.ListOffsetsRequest, "topics", lambda part: part(partition_index=0), replica_id=-1),
        CONSUMER.ListOffsetsResponse,
        {"topics": rows({"partition_index": 0, "offset": 7})},
        ("topics",),
    ),
    "deleted records": Api(
        topic_partitions(ADMIN.DeleteRecordsRequest, "topics", lambda part: part(partition_index=0), timeout_ms=1),
        ADMIN.DeleteRecordsResponse,
        {"topics": rows({"partition_index": 0, "low_watermark": 7})},
        ("topics",),
    ),
    "produced records": Api(
        PRODUCE(
            topic_data=[
                PRODUCE.TopicProduceData(
                    name=n, partition_data=[PRODUCE.TopicProduceData.PartitionProduceData(index=0)]
                )
                for n in TOPICS
            ],
            max_version=12,
        ),
        PRODUCER.ProduceResponse[12],
        {"responses": rows({"index": 0, "base_offset": 3}, "partition_responses")},
        ("responses",),
    ),
    "created topics": Api(
        ADMIN.CreateTopicsRequest(topics=[ADMIN.CreateTopicsRequest.CreatableTopic(name=n) for n in TOPICS]),
        ADMIN.CreateTopicsResponse,
        {"topics": [{"name": name} for name in TOPICS]},
        ("topics",),
    ),
}


def answer(api: Api, change: Callable[[list[dict[str, Any]]], object] = lambda entries: None) -> Any:
    document = copy.deepcopy(dict(api.document))
    change(document[api.path[0]])
    kind, version = api.response, None
    if kind._class_version is not None:
        kind, version = kind[None], kind._class_version
    return built(kind, document, version)


def errors(api: Api, response: Any) -> list[int]:
    """Return all error codes of an answer."""
    codes = [getattr(response, "error_code", 0)]
    for entry in getattr(response, api.path[0]):
        parts = [entry, *getattr(entry, "partitions", ()), *getattr(entry, "partition_responses", ())]
        codes += [part.error_code for part in parts if "error_code" in part.fields]
    return codes


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_a_complete_answer_stays_as_it_is(api: Api) -> None:
    response, expected = answer(api), answer(api)
    assert complete(api.request, response) == ((), False) or complete(api.request, response) == ([], False)
    assert response == expected


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_missing_entry_is_an_error_of_its_resource(api: Api, is_first: bool) -> None:
    """An entry that an answer lacks counted as a write that succeeded, or as a topic that is not there."""
    response = answer(api, lambda entries: entries.pop(0 if is_first else -1))
    gaps = complete(api.request, response)
    assert len(gaps.missing) == 1 and gaps.is_empty == (len(api.document[api.path[0]]) == 1)
    assert errors(api, response).count(NOT_ANSWERED) == 1


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_an_empty_answer_is_an_error_of_all_that_was_asked_for(api: Api) -> None:
    response = answer(api, list.clear)
    assert complete(api.request, response).is_empty
    assert NOT_ANSWERED in errors(api, response)


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_what_was_not_asked_for_is_dropped(api: Api) -> None:
    def add(entries: list[dict[str, Any]]) -> None:
        other = copy.deepcopy(entries[0])
        for field in ("name", "group_id", "resource_name"):
            if field in other:
                other[field] = "other"
        if "entity" in other:
            other["entity"][0]["entity_name"] = "other"
        entries.insert(0, other)

    response = answer(api, add)
    complete(api.request, response)
    assert response == answer(api)


def test_metadata_without_brokers_is_empty_whatever_topics_it_has() -> None:
    """A broker is one of the cluster's brokers. Without any, all moves looked as if all their brokers were down."""
    every: tuple[list[str] | None, ...] = ([], None)
    for topics in every:
        request = messages.describe_topics(topics)
        assert complete(request, built(METADATA.MetadataResponse, {"topics": []})).is_empty
        assert not complete(request, built(METADATA.MetadataResponse, {"brokers": BROKER_ROWS})).missing


def test_lists_that_may_be_empty_are_answers() -> None:
    for request, kind in (
        (messages.list_reassignments(None, 1), ADMIN.ListPartitionReassignmentsResponse),
        (messages.list_reassignments([("a", 0)], 1), ADMIN.ListPartitionReassignmentsResponse),
        (messages.describe_client_quotas(), ADMIN.DescribeClientQuotasResponse),
        (messages.list_groups(), ADMIN.ListGroupsResponse),
    ):
        document: dict[str, Any] = {"entries": []} if "entries" in kind.fields else {}
        response = built(kind, document)
        assert not complete(request, response).missing and not response.error_code


def test_broker_without_log_directories_and_quotas_that_are_null_are_no_answers() -> None:
    """A broker always has a log directory. Without one, all its logs had 0 bytes."""
    response = built(ADMIN.DescribeLogDirsResponse, {"results": []})
    assert complete(messages.describe_log_dirs(None), response).is_empty
    with pytest.raises(Unavailable, match="answer lacks the log directories of broker 1"):
        messages.log_sizes(1, response)
    quotas = ADMIN.DescribeClientQuotasResponse(entries=None)
    assert complete(messages.describe_client_quotas(), quotas).is_empty and quotas.error_code == NOT_ANSWERED


def test_topic_described_without_its_lists_is_no_answer_and_a_broker_without_rates_is_one() -> None:
    """Kafka describes the lists of a topic also if they are not set, and a rate of a broker only if it is set."""
    for kind, name, keys, is_answer in (
        (messages.TOPIC, "a", REPLICAS_KEYS, False),
        (messages.TOPIC, "a", ["min.insync.replicas"], False),
        (messages.TOPIC, "a", ["other"], True),
        (messages.BROKER, "1", RATE_KEYS, True),
        (messages.BROKER, "1", ["replica.fetch.response.max.bytes"], False),
        (messages.BROKER, "", ["replica.fetch.response.max.bytes"], True),
    ):
        result = {"resource_type": kind, "resource_name": name, "configs": []}
        response = built(ADMIN.DescribeConfigsResponse, {"results": [result]})
        assert bool(complete(messages.describe_configs(kind, [name], keys), response).missing) != is_answer


def test_topic_without_partitions_is_no_answer() -> None:
    """The state topic with 0 partitions ended the start with exit status 2."""
    response = built(METADATA.MetadataResponse, {"brokers": BROKER_ROWS, "topics": [{"name": "a", "partitions": []}]})
    assert complete(messages.describe_topics(["a"]), response).is_empty
    assert isinstance(messages.partitions(response).failures["a"], Unavailable)
    missing = {"brokers": BROKER_ROWS, "topics": [{"name": "a", "error_code": 3}]}
    response = built(METADATA.MetadataResponse, missing)
    assert not complete(messages.describe_topics(["a"]), response).missing
    assert isinstance(messages.partitions(response).failures["a"], Missing)


def test_only_reads_are_repeated() -> None:
    repeated = {name for name, api in APIS.items() if is_repeatable(api.request)}
    assert repeated == {"topics", "configs", "classic groups", "groups", "offsets"}


def test_metadata_of_all_topics_is_not_kept_by_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a catch-up, each cycle reads all topics. kafka-python kept all partitions, and delayed all requests."""

    async def send(*_: Any) -> Any:
        topic = {"name": "a", "partitions": [{"partition_index": 0, "leader_id": 1}]}
        return built(METADATA.MetadataResponse, {"brokers": BROKER_ROWS, "topics": [topic]})

    async def connected(*_: Any) -> None:
        """Do nothing: no connection is open."""

    with closing(Connections(["127.0.0.1:1"], {}, timedelta(seconds=1))) as connections:
        monkeypatch.setattr(connections, "_connection", connected)
        monkeypatch.setattr(connections, "_send", send)
        (node,) = connections.bootstrap_nodes
        updates: list[Any] = []
        monkeypatch.setattr(connections._manager.cluster, "update_metadata", updates.append)
        for topics in (None, ["a"], []):
            answer = connections.exchange({node: messages.describe_topics(topics)}, time.monotonic() + 60)[node]
            assert isinstance(answer, METADATA.MetadataResponse)
            assert len(updates) == (topics == [])


class Ready:
    """A connection that is set up."""

    closed = False

    def __init__(self, *apis: int) -> None:
        self.broker_version_data = SimpleNamespace(api_versions=dict.fromkeys(apis, (0, 1)))
        self.init_future = kafka.future.Future()

    def __await__(self) -> Iterator[Any]:
        yield from ()

    def close(self, error: Exception) -> None:
        self.closed = True


@pytest.mark.parametrize(("apis", "is_usable"), [((3, 18), True), ((18, 52, 60), True), ((18,), False), ((), False)])
def test_versions_of_brokers_and_of_controllers_are_answers(
    apis: Sequence[int], is_usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KRaft controller supports no metadata requests, so each answer of one counted as damaged.

    The throttles of brokers that are down could not be written any more.
    """

    async def send(*_: Any) -> str:
        return "answer"

    with closing(Connections(["127.0.0.1:1"], {}, timedelta(seconds=1))) as connections:
        monkeypatch.setattr(connections._manager, "get_connection", lambda *_, **__: Ready(*apis))
        monkeypatch.setattr(connections, "_send", send)
        (node,) = connections.bootstrap_nodes
        answer = connections.exchange({node: object()}, time.monotonic() + 60)[node]
        assert (answer == "answer") == is_usable, answer


class Routed:
    """Answers each request with no entry."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def ask_any(self, build: Callable[[], Any], deadline: float, *, again: bool = True) -> Any:
        complete(build(), self._response)
        return self._response

    ask_controller = ask_any

    def each(self, builds: Mapping[int, Callable[[], Any]], deadline: float, again: bool = True) -> Mapping[int, Any]:
        return {b: self.ask_any(build, deadline) for b, build in builds.items()}

    def close(self) -> None:
        """Do nothing: no connection is open."""


@pytest.mark.parametrize(
    ("api", "write"),
    [
        ("altered configs", lambda admin: admin.alter_topic_configs({"a": EDITS})["a"]),
        ("altered configs", lambda admin: admin.alter_broker_configs(1, EDITS)),
        ("altered reassignments", lambda admin: admin.alter_reassignments({("a", 0): [1]})),
        ("altered quotas", lambda admin: admin.alter_client_quotas(ClientQuotaEntity("a"), {})),
    ],
    ids=["topic", "broker", "reassignment", "quota"],
)
def test_a_write_without_a_result_is_not_done(
    api: str, write: Callable[[KafkaAdmin], AutothrottleError | None]
) -> None:
    """It counted as done: the ledger had the throttle as written, and nothing was written again."""
    with closing(KafkaAdmin(KafkaSettings(("h:1",)))) as admin:
        setattr(admin, "_routing", Routed(answer(APIS[api], list.clear)))  # noqa: B010
        try:
            problem = write(admin)
        except Unavailable as error:
            problem = error
        assert isinstance(problem, Unavailable) and "answer lacks" in str(problem)

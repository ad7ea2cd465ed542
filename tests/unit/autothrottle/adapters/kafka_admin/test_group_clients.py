"""Clients in groups and quota plug-ins, read from brokers whose requests and responses pass through kafka-python."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import fetch_group_clients
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.schemas import ConsumerGroupDescribeResponse
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, ClientReading

TIMEOUT = timedelta(seconds=5)
PLUG_IN = "client.quota.callback.class"
LISTED, DESCRIBED = kafka.protocol.admin.ListGroupsResponse, kafka.protocol.admin.DescribeGroupsResponse
NOT_AUTHORIZED, NOT_FOUND, LOADING = 30, 69, 14
"""Kafka's error codes."""


@dataclass
class Broker:
    """A broker that coordinates groups."""

    groups: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """Name -> (type, client ids of the members)."""
    errors: dict[str, int] = field(default_factory=dict)
    """Group -> Kafka's error code of its description."""
    list_error: int = 0
    plug_in: str | None = None
    list_version: int = 5
    silent: bool = False
    described: list[tuple[str, ...]] = field(default_factory=list)
    """The groups of each request so far."""

    def answer(self, request: Any) -> Any:
        """Answer one request."""
        if request.name == "DescribeConfigsRequest":
            return self._configs()
        version = self.list_version if request.name == "ListGroupsRequest" else 0
        received = type(request).decode(request.encode(version=version), version=version)
        response = self._listed() if request.name == "ListGroupsRequest" else self._described(received)
        return type(response).decode(response.encode(version=version), version=version)

    def _configs(self) -> Any:
        result = kafka.protocol.admin.DescribeConfigsResponse.DescribeConfigsResult
        config = result.DescribeConfigsResourceResult(name=PLUG_IN, value=self.plug_in, synonyms=[])
        found = result(error_code=0, resource_type=messages.BROKER, resource_name="", configs=[config])
        return kafka.protocol.admin.DescribeConfigsResponse(results=[found])

    def _listed(self) -> Any:
        return LISTED(
            throttle_time_ms=0,
            error_code=self.list_error,
            groups=[
                LISTED.ListedGroup(
                    group_id=name,
                    protocol_type="consumer",
                    group_state="Stable" if members else "Empty",
                    group_type=kind,
                )
                for name, (kind, members) in self.groups.items()
            ],
        )

    def _described(self, request: Any) -> Any:
        classic = request.name == "DescribeGroupsRequest"
        names = tuple(request.groups if classic else request.group_ids)
        self.described.append(names)
        made = DESCRIBED if classic else ConsumerGroupDescribeResponse
        return made(throttle_time_ms=0, groups=[self._group(made.DescribedGroup, name, classic) for name in names])

    def _group(self, made: Any, name: str, classic: bool) -> Any:
        error = self.errors.get(name, 0)
        clients = () if error else self.groups[name][1]
        if classic:
            member = made.DescribedGroupMember
            members = [
                member(member_id="m", client_id=c, client_host="h", member_metadata=b"1", member_assignment=b"2")
                for c in clients
            ]
            named = {"protocol_type": "consumer", "protocol_data": "range"}
            return made(error_code=error, group_id=name, group_state="Stable", members=members, **named)
        some = made.Member.Assignment(topic_partitions=[])
        members = [
            made.Member(
                member_id="m",
                member_epoch=1,
                client_id=c,
                client_host="h",
                subscribed_topic_names=["t"],
                assignment=some,
                target_assignment=some,
            )
            for c in clients
        ]
        epochs = {"group_epoch": 1, "assignment_epoch": 1, "assignor_name": "uniform"}
        return made(error_code=error, group_id=name, group_state="Stable", members=members, **epochs)


class Brokers:
    """A `Routing` to these brokers."""

    def __init__(self, brokers: Mapping[int, Broker]) -> None:
        self.brokers = brokers
        self.rounds = 0

    def metadata(self, deadline: float) -> Any:
        response = kafka.protocol.metadata.MetadataResponse
        return response(brokers=[response.MetadataResponseBroker(node_id=b) for b in self.brokers])

    def each(self, builds: Mapping[int, Any], deadline: float) -> Mapping[int, Any]:
        assert deadline > time.monotonic(), "a round without time"
        self.rounds += 1
        return {b: self._answer(b, build()) for b, build in builds.items()}

    def _answer(self, broker_id: int, request: Any) -> Any | AutothrottleError:
        broker = self.brokers[broker_id]
        if broker.silent:
            return Unavailable(f"broker {broker_id} is unreachable")
        answer = broker.answer(request)
        if request.name == "DescribeConfigsRequest":
            answer.results[0].resource_name = str(broker_id)
        return answer


def read(brokers: Brokers, monkeypatch: pytest.MonkeyPatch, timeout: timedelta = TIMEOUT) -> ClientReading:
    admin = KafkaAdmin(KafkaSettings(("127.0.0.1:1",)))
    monkeypatch.setattr(admin, "_routing", brokers)
    return fetch_group_clients(admin, timeout)


def clients(*names: str) -> frozenset[ClientQuotaEntity]:
    return frozenset(ClientQuotaEntity(DEFAULT, name) for name in names)


def test_members_of_groups_of_both_protocols_are_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Broker({"g1": ("Classic", ("app", "backfill-1")), "g2": ("Consumer", ("backfill-2",))})
    second = Broker({"g3": ("Classic", ("app",)), "idle": ("Classic", ())}, plug_in="io.strimzi.Quotas")
    found = read(Brokers({1: first, 2: second}), monkeypatch)
    assert found == ClientReading(clients("app", "backfill-1", "backfill-2"), {2: "io.strimzi.Quotas"})
    assert second.described == [("g3",)], "a group without members needs no description"


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_the_list_is_understood(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker({"g": ("Classic", ("app",)), "idle": ("Classic", ())}, list_version=version)
    assert read(Brokers({1: broker}), monkeypatch) == ClientReading(clients("app"))


def test_client_ids_that_cannot_have_quotas_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker({"g": ("Classic", ("", ".", "..", "x" * 5_000, "a/b"))})
    assert read(Brokers({1: broker}), monkeypatch) == ClientReading(clients("a/b"))


def test_groups_that_cannot_be_described_are_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"g1": NOT_AUTHORIZED, "g2": NOT_AUTHORIZED, "gone": NOT_FOUND}
    groups = {name: ("Classic", ("secret",)) for name in errors}
    broker = Broker({**groups, "mine": ("Consumer", ("app",)), "shared": ("Share", ("app-2",))}, errors)
    found = read(Brokers({1: broker}), monkeypatch)
    assert found.entities == clients("app")
    (warning,) = found.warnings
    assert warning.startswith("cannot read the members of group g1 and of 2 more: Kafka answers for group g1: ")
    assert "Describe on groups" in warning


def test_a_group_of_another_type_is_a_warning_with_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(Brokers({1: Broker({"shared": ("Share", ("app",))})}), monkeypatch)
    assert found.entities == frozenset()
    assert "group shared has the type share, which autothrottle cannot describe. Fix: " in found.warnings[0]


def test_a_broker_without_an_answer_is_a_warning_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = {1: Broker({"g": ("Classic", ("app",))}), 2: Broker(silent=True), 3: Broker(list_error=LOADING)}
    found = read(Brokers(brokers), monkeypatch)
    assert found.entities == clients("app")
    plug_ins, groups = found.warnings
    assert plug_ins == f"cannot read {PLUG_IN} of broker 2: broker 2 is unreachable"
    assert groups == "cannot read the groups of broker 2 and of 1 more: broker 2 is unreachable"


def test_thousands_of_groups_are_described_in_parallel_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = {
        b: Broker({f"g-{b}-{n}": ("Consumer" if n % 2 else "Classic", (f"app-{b}-{n}",)) for n in range(count)})
        for b, count in {1: 1_000, 2: 1_700, 3: 10}.items()
    }
    routing = Brokers(brokers)
    found = read(routing, monkeypatch)
    assert len(found.entities) == 2_710
    assert found.warnings == ()
    assert max(len(names) for broker in brokers.values() for names in broker.described) == 100
    assert routing.rounds == 2 + 18, "the configs, the lists, and the rounds of the largest coordinator"


def test_groups_without_time_left_are_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Broker):
        def _described(self, request: Any) -> Any:
            time.sleep(0.1)
            return super()._described(request)

    broker = Slow({f"g-{n:03}": ("Classic", (f"app-{n}",)) for n in range(300)})
    found = read(Brokers({1: broker}), monkeypatch, timedelta(seconds=0.15))
    assert len(found.entities) < 300
    (warning,) = found.warnings
    assert "more: Kafka did not describe it in time" in warning

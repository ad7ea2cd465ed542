"""The stores in a topic keep the contracts of their ports, in memory and on a real Kafka."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_state.nodes import kafka_map, kafka_overrides, kafka_pauses
from autothrottle.adapters.kafka_state.topic import Topic
from autothrottle.adapters.memory.state_topic import MemoryPartition, MemoryTopic
from autothrottle.adapters.state_store.operator_stores import NodeAuditedMap, NodePauses
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle_lab.servers.kafka import KafkaCluster
from tests.contract.audited_map_contract import AuditedMapContract, MapCase
from tests.contract.election_contract import ElectionContract
from tests.contract.kafka_state_subject import StateSubject, TopicSource
from tests.contract.membership_contract import MembershipContract
from tests.contract.override_store_contract import OverrideStoreContract
from tests.contract.pause_store_contract import PauseStoreContract

PATIENCE = timedelta(seconds=30)
_numbers = itertools.count(1)


class MemoryTopics(TopicSource):
    """One topic in memory."""

    def __init__(self) -> None:
        self.partition = MemoryPartition()

    def client(self) -> Topic:
        return MemoryTopic(self.partition)

    def delete(self) -> None:
        self.partition.delete()


class KafkaTopics(TopicSource):
    """One topic of a real cluster."""

    def __init__(self, cluster: KafkaCluster, stack: ExitStack) -> None:
        self.cluster, self.name = cluster, f"state-{next(_numbers)}"
        stack.callback(self._remove)

    def client(self) -> Topic:
        return TopicLog(KafkaSettings(tuple(self.cluster.bootstrap_servers.split(","))), self.name)

    def delete(self) -> None:
        self.cluster.delete_topic(self.name)

    def _remove(self) -> None:
        if any(topic == self.name for topic, _ in self.cluster.partitions()):
            self.delete()


@pytest.fixture(
    params=[pytest.param("memory", id="memory"), pytest.param("kraft_cluster", id="kafka", marks=pytest.mark.repeat)]
)
def source(request: pytest.FixtureRequest) -> Iterator[TopicSource]:
    with ExitStack() as stack:
        if request.param == "memory":
            yield MemoryTopics()
        else:
            yield KafkaTopics(request.getfixturevalue(request.param), stack)


@pytest.fixture
def subject(source: TopicSource) -> Iterator[StateSubject]:
    with ExitStack() as stack:
        yield StateSubject(source, stack)


class TestKafkaElection(ElectionContract):
    pass


class TestKafkaMembership(MembershipContract):
    pass


class OverridesSubject:
    """A store that keeps few audit records."""

    records_kept = 7

    def __init__(self, source: TopicSource, stack: ExitStack) -> None:
        state = StateSubject(source, stack, audit_records=self.records_kept)
        self.store = kafka_overrides(state.log, state.own, PATIENCE)
        self.begin_term = state.begin_term
        stack.callback(self.store.close)


class TestKafkaOverrides(OverrideStoreContract):
    @pytest.fixture
    def subject(self, source: TopicSource) -> Iterator[OverridesSubject]:
        with ExitStack() as stack:
            yield OverridesSubject(source, stack)


class TestKafkaPauses(PauseStoreContract):
    @pytest.fixture
    def store(self, subject: StateSubject) -> Iterator[NodePauses]:
        pauses = kafka_pauses(subject.log, subject.own, PATIENCE)
        yield pauses
        pauses.close()


class TestKafkaAuditedMap(AuditedMapContract):
    @pytest.fixture
    def store(self, subject: StateSubject, case: MapCase) -> Iterator[NodeAuditedMap[Any, Any]]:
        store = kafka_map(subject.log, subject.own, case.codec, PATIENCE)
        yield store
        store.close()

    @pytest.fixture
    def fence(self, subject: StateSubject) -> int:
        return subject.begin_term()

    @pytest.fixture
    def newest(self, subject: StateSubject) -> Iterator[Callable[[], Sequence[StoredAuditRecord]]]:
        overrides = kafka_overrides(subject.log, subject.own, PATIENCE)
        yield lambda: overrides.read_audit_records(100).records
        overrides.close()

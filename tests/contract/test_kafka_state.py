"""The stores in a topic keep the contracts of their ports, in memory and on a real Kafka."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_state.membership import remove_own_nodes
from autothrottle.adapters.kafka_state.nodes import KafkaNodeStore
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.kafka_state.topic import Topic
from autothrottle.adapters.memory.state_topic import MemoryPartition, MemoryTopic
from autothrottle.adapters.state_store.operator_stores import NodeAuditedMap, NodeOverrides, NodePauses
from autothrottle.core.errors import Conflict, Missing, Unavailable
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle_lab.servers.kafka import KafkaCluster
from tests.builders import eventually
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


def test_removal_waits_for_candidates_that_died_and_is_refused_while_one_lives(subject: StateSubject) -> None:
    """A log that has just been read cannot know how long another process has been silent.

    After the leader had ended normally and another planner was killed, each `uninstall` found that planner alive.
    """
    dead = f"{subject.own.election}/dead"
    subject.log.append(StateEdit(texts={dead: "{}"}), deadline())
    session_timeout = timedelta(seconds=subject.seconds)
    remove_own_nodes(subject.new_log(), subject.own, session_timeout)
    with subject.log.synced(deadline()) as tree:
        assert not tree.children(subject.own.election)
    candidate = subject.candidate()
    candidate.join("a:1", lambda: None)
    eventually(lambda: candidate.term is not None)
    with pytest.raises(Conflict, match="stop every planner"):
        remove_own_nodes(subject.new_log(), subject.own, session_timeout)


class OverridesSubject:
    """A store that keeps few audit records."""

    records_kept = 7

    def __init__(self, source: TopicSource, stack: ExitStack) -> None:
        state = StateSubject(source, stack, audit_records=self.records_kept)
        self.store = NodeOverrides(KafkaNodeStore(state.log, state.own, PATIENCE))
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
        pauses = NodePauses(KafkaNodeStore(subject.log, subject.own, PATIENCE))
        yield pauses
        pauses.close()


class TestKafkaAuditedMap(AuditedMapContract):
    @pytest.fixture
    def store(self, subject: StateSubject, case: MapCase) -> Iterator[NodeAuditedMap[Any, Any]]:
        store = NodeAuditedMap(KafkaNodeStore(subject.log, subject.own, PATIENCE), case.codec)
        yield store
        store.close()

    @pytest.fixture
    def fence(self, subject: StateSubject) -> int:
        return subject.begin_term()

    @pytest.fixture
    def newest(self, subject: StateSubject) -> Iterator[Callable[[], Sequence[StoredAuditRecord]]]:
        overrides = NodeOverrides(KafkaNodeStore(subject.log, subject.own, PATIENCE))
        yield lambda: overrides.read_audit_records(100).records
        overrides.close()


def test_records_in_a_codec_that_is_not_read_have_no_effect_and_the_setting_is_named(
    kraft_cluster: KafkaCluster,
) -> None:
    """A broker compresses records again if its compression.type says so. No process could read those in zstd."""
    with ExitStack() as stack:
        source = KafkaTopics(kraft_cluster, stack)
        topic = stack.enter_context(closing(source.client()))
        topic.create(deadline())
        eventually(lambda: is_located(topic))
        topic_id, _ = topic.locate(deadline())
        assert topic.risks(deadline()) == {}

        def values() -> list[bytes]:
            topic.append([b"1", b"2"], deadline())
            records = topic.read(topic_id, 0, -1, 1.0, deadline()).records
            assert [record.offset for record in records] == list(range(len(records)))
            return [record.value for record in records][-2:]

        assert values() == [b"1", b"2"]
        kraft_cluster.set_configs_as_a_user({"compression.type": "zstd"}, topic=source.name)
        eventually(lambda: values() == [b"", b""])
        eventually(lambda: "must be gzip" in topic.risks(deadline()).get("compression.type", ""))
        kraft_cluster.set_configs_as_a_user({"compression.type": "gzip"}, topic=source.name)
        eventually(lambda: values() == [b"1", b"2"])


def is_located(topic: Topic) -> bool:
    """Whether the broker that is asked knows a new topic yet."""
    try:
        topic.locate(deadline())
    except (Missing, Unavailable):
        return False
    return True


def deadline() -> float:
    return time.monotonic() + PATIENCE.total_seconds()


def test_process_whose_clock_is_ahead_of_the_brokers_appends(
    kraft_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka refuses a time that is an hour ahead in a topic with CreateTime. The process ended at its start."""
    hour_ahead = time.time_ns() + 65 * 60 * 10**9
    with ExitStack() as stack:
        source = KafkaTopics(kraft_cluster, stack)
        topic = stack.enter_context(closing(source.client()))
        assert isinstance(topic, TopicLog)
        topic.create(deadline())
        eventually(lambda: is_located(topic))
        topic_id, _ = topic.locate(deadline())
        kraft_cluster.set_configs_as_a_user({"message.timestamp.type": "CreateTime"}, topic=source.name)
        topic.append([b"1"], deadline())
        times = [record.time for record in topic.read(topic_id, 0, -1, 1.0, deadline()).records]
        monkeypatch.setattr(time, "time_ns", lambda: hour_ahead)
        topic.append([b"2"], deadline())
        assert not topic.problems, "with CreateTime, the broker does not tell its time"
        monkeypatch.undo()
        later = [record.time for record in topic.read(topic_id, 1, 0, 1.0, deadline()).records]
        assert later == times[-1:]
        assert topic.risks(deadline()) == {}
        kraft_cluster.set_configs_as_a_user({"message.timestamp.before.max.ms": "1000"}, topic=source.name)
        kraft_cluster.set_configs_as_a_user({"max.message.bytes": "100000"}, topic=source.name)
        names = {"message.timestamp.before.max.ms", "max.message.bytes"}
        eventually(lambda: topic.risks(deadline()).keys() == names)
        kraft_cluster.set_configs_as_a_user({"message.timestamp.type": "LogAppendTime"}, topic=source.name)
        eventually(lambda: topic.risks(deadline()).keys() == {"max.message.bytes"})
        topic.append([b"3"], deadline())
        assert not topic.problems
        monkeypatch.setattr(time, "time_ns", lambda: hour_ahead)
        topic.append([b"4"], deadline())
        (problem,) = topic.problems
        assert "s ahead of that of the broker" in problem

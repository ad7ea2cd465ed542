"""Cancellations and submissions drop no replicas that are needed: the twin, and the adapter of the admin API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from autothrottle.adapters.kafka_admin.reassignments import AdminReassigner
from autothrottle.adapters.kafka_admin.values import PartitionMetadata
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource
from autothrottle.core.errors import Conflict, Unavailable
from autothrottle.core.operators.cancellation import Cancellation
from autothrottle.ports.kafka import Reassigner, Term
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryKafka, MemoryLedger

TIMEOUT = timedelta(seconds=5)
BROKERS = (1001, 1002, 1003, 1004)
T = TypeVar("T")


class Subject:
    """t1 moves from 1001 and 1002 to 1003 and 1004; partition 0 has only 1003 in sync, partition 1 all replicas."""

    def __init__(self, reassigner: Callable[[MemoryCluster], Reassigner]) -> None:
        self.cluster = MemoryCluster(brokers=BROKERS)
        self.cluster.add_topic("t1", {0: (1001, 1002), 1: (1001, 1002)})
        self.cluster.submit_reassignment("t1", {0: (1003, 1004), 1: (1003, 1004)})
        for partition, broker_id in ((0, 1003), (1, 1003), (1, 1004)):
            self.cluster.join_isr("t1", partition, broker_id)
        for broker_id in (1001, 1002):
            self.cluster.leave_isr("t1", 0, broker_id)
        self.set_min_in_sync_replicas(2)
        self.reassigner = reassigner(self.cluster)

    def set_min_in_sync_replicas(self, count: int) -> None:
        self.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": count})
        self.cluster.set_config_as_user(ConfigResource.topic("t1"), "min.insync.replicas", str(count))

    def cancel(self, *partitions: int) -> Cancellation:
        rows = [("t1", partition) for partition in partitions]
        return self.reassigner.cancel_reassignments(Term(self.cluster.begin_term()), rows, TIMEOUT)

    def moves(self) -> list[bool]:
        return [self.cluster.topics["t1"][partition].moves for partition in (0, 1)]


def twin(cluster: MemoryCluster) -> Reassigner:
    return cluster


def adapter(cluster: MemoryCluster) -> Reassigner:
    return AdminReassigner(MemoryKafka(cluster), MemoryLedger(cluster), timedelta(seconds=60))


@pytest.fixture(params=[twin, adapter], ids=["twin", "adapter"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param)


def test_the_unsafe_partition_goes_on_and_the_others_are_cancelled(subject: Subject) -> None:
    """3.9 in ZooKeeper mode cancelled the reassignment of a partition whose original replicas were dead (KAFKA-14424).

    The partition was offline afterwards, and the command reported success.
    """
    cancellation = subject.cancel(0, 1, 7)
    assert cancellation.refused == {("t1", 7): "t1-7 does not exist; name a partition that does"}
    assert cancellation.unsafe.keys() == {("t1", 0)}
    assert cancellation.unsafe["t1", 0].startswith(
        "it needs 1 of its original replicas [1001, 1002] alive and in sync, and has 0: broker 1001 is not in sync"
    )
    assert subject.moves() == [True, False]
    assert subject.cancel(1).refused == {
        ("t1", 1): "t1-1 is not being reassigned; there is nothing to cancel",
    }


def test_a_dead_original_replica_does_not_count(subject: Subject) -> None:
    subject.cluster.brokers.discard(1002)
    assert "has 1: broker 1002 is down" in subject.cancel(1).unsafe["t1", 1]
    subject.set_min_in_sync_replicas(1)
    assert not subject.cancel(1).not_cancelled
    assert subject.moves() == [True, False]


def test_a_submission_replaces_no_running_reassignment(subject: Subject) -> None:
    """Another tool may start a move after the check of the plan. Kafka replaces it, with all that it has copied."""
    subject.cluster.add_topic("t2", {0: (1001, 1002)})
    targets = {("t1", 0): (1003, 1002), ("t1", 1): (1003, 1004), ("t2", 0): (1001, 1003)}
    refused = subject.reassigner.submit_reassignments(Term(subject.cluster.begin_term()), targets, TIMEOUT)
    assert refused == {
        ("t1", 0): "t1-0 is already being reassigned to [1003, 1004]; wait until it is done, or cancel it first"
    }
    assert subject.cluster.topics["t1"][0].target == (1003, 1004)
    assert subject.cluster.topics["t2"][0].adding_replicas == (1003,)


class OnKafka(Subject):
    """A subject whose answers of Kafka's admin API can be changed."""

    def __init__(self) -> None:
        super().__init__(self._new)

    def _new(self, cluster: MemoryCluster) -> Reassigner:
        self.kafka = MemoryKafka(cluster)
        return AdminReassigner(self.kafka, MemoryLedger(cluster), timedelta(seconds=60))


def test_a_broker_that_does_not_answer_is_not_alive() -> None:
    """A broker that has just been killed is registered until its session expires."""
    subject = OnKafka()
    subject.kafka.silent = {1001, 1002}
    assert "broker 1001 does not answer, broker 1002 does not answer" in subject.cancel(1).unsafe["t1", 1]


def test_an_original_replica_must_be_in_sync_in_the_view_of_each_of_them() -> None:
    subject = OnKafka()
    newer = {"t1": {1: PartitionMetadata(1003, (1003, 1004, 1001, 1002), (1002, 1003, 1004))}}
    subject.kafka.views = {1002: newer}
    assert "has 1: broker 1001 is not in sync" in subject.cancel(1).unsafe["t1", 1]


def test_of_many_partitions_some_brokers_tell_the_isr_and_the_others_that_they_live() -> None:
    """10,000 partitions on 100 brokers would take 20 s of CPU time if each broker described all of them."""
    subject = OnKafka()
    subject.cluster.add_topic("t1", dict.fromkeys(range(60_000), (1001, 1002)))
    subject.cluster.submit_reassignment("t1", dict.fromkeys(range(2), (1003, 1004)))
    subject.kafka.views = {1002: {"t1": {0: PartitionMetadata(1001, (1001, 1002), (1001,))}}}
    assert not subject.cancel(0).not_cancelled, "only 1001 describes the topic"
    subject.kafka.silent = {1002}
    subject.cluster.join_isr("t1", 1, 1003)
    assert "broker 1002 does not answer" in subject.cancel(1).unsafe["t1", 1]


def test_without_a_reading_nothing_is_cancelled() -> None:
    subject = OnKafka()
    subject.kafka.topic_failures["t1"] = Unavailable("not described")
    assert subject.cancel(0).unsafe == {
        ("t1", 0): "its in-sync replicas cannot be read: leaders and ISR of a topic under reassignment cannot be read: "
        "not described"
    }
    subject.kafka.topic_failures.clear()
    subject.kafka.failures["reassignments"] = Unavailable("no controller")
    with pytest.raises(Conflict, match="nothing was submitted, because running reassignments cannot be read"):
        subject.reassigner.submit_reassignments(Term(subject.cluster.begin_term()), {("t1", 0): (1003, 1004)}, TIMEOUT)
    subject.kafka.failures.clear()
    subject.kafka.failures["brokers"] = Unavailable("no broker answers")
    with pytest.raises(Conflict, match="nothing was cancelled, because its safety cannot be checked now: no broker"):
        subject.cancel(1)
    assert subject.moves() == [True, True]

"""Reassignments through the Admin API of real Kafka in ZooKeeper and KRaft mode, fenced by autothrottle's term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.reassignments import AdminReassigner
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import Unavailable
from autothrottle.ports.kafka import Term
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.contract.reassigner_contract import TIMEOUT, ReassignerContract
from tests.system.zookeeper_tree import Tree, freeze, session

HELD = (1001, 1002)
SESSION = timedelta(seconds=60)


class Subject:
    """A reassigner under test, and the reassignments of the real controller."""

    def __init__(self, cluster: KafkaCluster, reassigner: AdminReassigner, tree: Tree) -> None:
        self.cluster, self.reassigner, self.begin_term = cluster, reassigner, tree.begin_term

    def started(self) -> Mapping[TopicPartition, Sequence[int]]:
        found = self.cluster.partitions(["t1"])
        targets = {row: [b for b in one.replicas if b not in one.removing_replicas] for row, one in found.items()}
        return {row: target for row, target in targets.items() if tuple(target) != HELD}


class TestAdminReassigner(ReassignerContract):
    @pytest.fixture
    def subject(self, each_cluster: KafkaCluster, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        kafka = KafkaAdmin(KafkaSettings(tuple(each_cluster.bootstrap_servers.split(","))))
        each_cluster.create_topic("t1", dict.fromkeys(range(3), HELD))
        try:
            with session(zookeeper) as client, session(zookeeper) as other:
                tree = Tree(other)
                yield Subject(each_cluster, AdminReassigner(kafka, ZooKeeperLedger(client, tree.own), SESSION), tree)
        finally:
            kafka.close()
            each_cluster.delete_topic("t1")

    def test_refusals_of_kafka_are_returned_and_the_rest_is_submitted(self, subject: Subject) -> None:
        targets: dict[TopicPartition, tuple[int, ...]] = {
            ("t1", 0): (1003, 1002),
            ("t1", 1): (1001, 4711),
            ("t1", 9): (1001,),
        }
        fence = subject.begin_term()
        refused = {
            **subject.reassigner.submit_reassignments(Term(fence), targets, TIMEOUT),
            **subject.reassigner.cancel_reassignments(Term(fence), [("t1", 2)], TIMEOUT).refused,
        }
        assert set(refused) == {("t1", 1), ("t1", 2), ("t1", 9)}
        assert all(refused.values())
        assert subject.started() == {("t1", 0): [1003, 1002]}


def test_without_a_check_of_the_term_no_request_is_sent(fresh_zookeeper: ZooKeeperServer) -> None:
    kafka = KafkaAdmin(KafkaSettings(("127.0.0.1:1",)))
    with session(fresh_zookeeper) as client:
        tree = Tree(client)
        fence = tree.begin_term()
        reassigner = AdminReassigner(kafka, ZooKeeperLedger(client, tree.own), timedelta(seconds=1.5))
        freeze(fresh_zookeeper)
        try:
            with pytest.raises(Unavailable, match="ZooKeeper did not answer while checking the term"):
                reassigner.submit_reassignments(Term(fence), {("t1", 0): (1001,)}, TIMEOUT)
        finally:
            fresh_zookeeper.thaw()
    kafka.close()

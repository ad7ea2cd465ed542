"""Reassignments started through a real ZooKeeper: fenced, one list at a time, and within what ZooKeeper takes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import pytest

from autothrottle.adapters.zookeeper.reassigner import MAX_LIST_BYTES, ZooKeeperReassigner
from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle.core.topology import TopicPartition
from autothrottle.lab.zookeeper import ZooKeeperServer
from tests.adapters.contract_reassigner import TIMEOUT, WANTED, ReassignerContract
from tests.system.zookeeper_tree import Tree, freeze, session


class Subject:
    """A reassigner under test; the cluster is read through another session."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.cluster = Tree(stack.enter_context(session(server)))
        self.cluster.add_topic("t1", dict.fromkeys(range(3), (1001, 1002)))
        self.cluster.client.ensure_path(self.cluster.kafka.reassign_partitions.rpartition("/")[0])
        client = stack.enter_context(session(server))
        self.reassigner = ZooKeeperReassigner(client, self.cluster.kafka, self.cluster.own)
        self.begin_term = self.cluster.begin_term

    def started(self) -> Mapping[TopicPartition, Sequence[int]]:
        data = self.cluster.read(self.cluster.kafka.reassign_partitions)
        if data is None:
            return {}
        value = json.loads(data)
        assert value["version"] == 1
        return {(row["topic"], row["partition"]): row["replicas"] for row in value["partitions"]}


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


class TestZooKeeperReassigner(ReassignerContract):
    @pytest.fixture
    def subject(self, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with contextlib.ExitStack() as stack:
            yield Subject(zookeeper, stack)


def test_another_list_in_the_node_is_a_conflict(subject: Subject) -> None:
    subject.cluster.reassign_by_znode({("t1", 1): [1003]})
    with pytest.raises(Conflict, match="a reassignment that was started through ZooKeeper is under way"):
        subject.reassigner.alter_reassignments(subject.begin_term(), WANTED, TIMEOUT)
    assert subject.started() == {("t1", 1): [1003]}


def test_nothing_is_cancelled_through_zookeeper_and_the_error_names_the_fix(subject: Subject) -> None:
    with pytest.raises(Invalid, match=r"needs Kafka's admin API. Fix: .*--cancel, or --kafka-backend admin"):
        subject.reassigner.alter_reassignments(subject.begin_term(), {("t1", 0): None}, TIMEOUT)


def test_as_many_partitions_as_zookeeper_takes_at_once_and_not_one_more(subject: Subject) -> None:
    wanted = {("t1", number): (1001, 1002, 1003) for number in range(50_000)}
    with pytest.raises(Invalid, match=r"50000 partitions are \d+ bytes, .*submit at most about \d+") as caught:
        subject.reassigner.alter_reassignments(subject.begin_term(), wanted, TIMEOUT)
    most = int(str(caught.value).rpartition("at most about ")[2].partition(" ")[0])
    fitting = dict(list(wanted.items())[:most])
    assert subject.reassigner.alter_reassignments(subject.begin_term(), fitting, TIMEOUT) == {}
    assert len(subject.started()) == most
    data = subject.cluster.read(subject.cluster.kafka.reassign_partitions)
    assert data is not None and 0.9 * MAX_LIST_BYTES < len(data) <= MAX_LIST_BYTES


def test_without_an_answer_it_is_unknown_whether_it_was_submitted(fresh_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(fresh_zookeeper, stack)
        fence = subject.begin_term()
        freeze(fresh_zookeeper)
        try:
            with pytest.raises(Unavailable, match="it is unknown whether it was submitted"):
                subject.reassigner.alter_reassignments(fence, WANTED, timedelta(seconds=0.5))
        finally:
            fresh_zookeeper.thaw()

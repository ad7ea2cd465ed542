"""Reassignments submitted through a real ZooKeeper: fenced, one list at a time, and within the size limit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_zookeeper.reassignments import MAX_LIST_BYTES, ZooKeeperReassigner
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle.ports.kafka import Term
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.contract.reassigner_contract import TIMEOUT, WANTED, ReassignerContract
from tests.system.zookeeper_tree import Tree, freeze, session


class Subject:
    """A reassigner under test. Another session reads the cluster."""

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


def test_submission_during_another_reassignment_is_a_conflict(subject: Subject) -> None:
    subject.cluster.reassign_by_znode({("t1", 1): [1003]})
    with pytest.raises(Conflict, match="a reassignment that was started through ZooKeeper is in progress"):
        subject.reassigner.submit_reassignments(Term(subject.begin_term()), WANTED, TIMEOUT)
    assert subject.started() == {("t1", 1): [1003]}


def test_a_submission_replaces_no_running_reassignment(subject: Subject) -> None:
    """The list cannot be in the way of a move that was started through the admin API. Kafka would replace that move."""
    subject.cluster.submit_reassignment("t1", {0: (1004, 1002)})
    assert subject.reassigner.submit_reassignments(Term(subject.begin_term()), WANTED, TIMEOUT) == {
        ("t1", 0): "t1-0 is already being reassigned to [1004, 1002]; wait until it is done, or cancel it first"
    }
    assert subject.started() == {("t1", 2): [1004]}


def test_cancelling_through_zookeeper_fails_with_an_error_that_names_the_fix(subject: Subject) -> None:
    with pytest.raises(Invalid, match=r"only through the admin API. Fix: .*--bootstrap-servers"):
        subject.reassigner.cancel_reassignments(Term(subject.begin_term()), [("t1", 0)], TIMEOUT)


def test_too_large_a_list_is_refused_with_the_largest_permitted_count(subject: Subject) -> None:
    wanted = {("t1", number): (1001, 1002, 1003) for number in range(50_000)}
    with pytest.raises(Invalid, match=r"50000 partitions are \d+ bytes, .*submit at most about \d+") as caught:
        subject.reassigner.submit_reassignments(Term(subject.begin_term()), wanted, TIMEOUT)
    most = int(str(caught.value).rpartition("at most about ")[2].partition(" ")[0])
    fitting = dict(list(wanted.items())[:most])
    assert subject.reassigner.submit_reassignments(Term(subject.begin_term()), fitting, TIMEOUT) == {}
    assert len(subject.started()) == most
    data = subject.cluster.read(subject.cluster.kafka.reassign_partitions)
    assert data is not None and 0.9 * MAX_LIST_BYTES < len(data) <= MAX_LIST_BYTES


def test_without_a_response_the_result_of_a_submission_is_unknown(
    fresh_zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(fresh_zookeeper, stack)
        fence = subject.begin_term()
        freeze(fresh_zookeeper)
        try:
            with pytest.raises(Unavailable, match="did not answer while reading the running reassignments"):
                subject.reassigner.submit_reassignments(Term(fence), WANTED, timedelta(seconds=0.5))
            # As if the server had frozen after this reading.
            monkeypatch.setattr(subject.reassigner, "_running", lambda *_: {})
            with pytest.raises(Unavailable, match="it is unknown whether it was submitted"):
                subject.reassigner.submit_reassignments(Term(fence), WANTED, timedelta(seconds=0.5))
        finally:
            fresh_zookeeper.thaw()

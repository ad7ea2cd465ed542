"""`PartitionStates` on a real ZooKeeper: fresh and watched states, also missing, unreadable and very many ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, UnimplementedError

from autothrottle.adapters.kafka_zookeeper.reassignments import PartitionStates
from autothrottle.adapters.zookeeper import bulk
from autothrottle.adapters.zookeeper.bulk import BATCH_NODES, data_of, read_nodes
from autothrottle.adapters.zookeeper.codec import StateNode
from autothrottle.adapters.zookeeper.mirror import ZnodeMirror
from autothrottle.core.errors import Unavailable
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests import builders
from tests.system.zookeeper_tree import Tree, session

SECONDS = 30.0
MANY = BATCH_NODES + 300
"""More znodes than fit into one request."""


class Subject:
    """The partition states under test; the controller writes through another session."""

    def __init__(self, client: KazooClient, cluster: Tree) -> None:
        self.client, self.cluster = client, cluster
        self.states = PartitionStates(client, cluster.kafka)
        self._mirror = ZnodeMirror(client)

    def read_all_changes(self) -> set[str]:
        """Read everything written before this call; return the topics with changed states."""
        self._mirror.sync(SECONDS)
        read: set[str] = set()
        while some := self.states.read_changed(SECONDS):
            read |= some
            self._mirror.sync(SECONDS)
        return read

    def learn_that_the_server_is_old(self) -> None:
        """Read until it succeeds: the server closes the connection after a request that it does not know."""
        self.states.follow("first", [0])
        is_read = False
        while not is_read:
            builders.eventually(lambda: self.client.connected, SECONDS)
            with contextlib.suppress(ConnectionLoss, Unavailable):
                is_read = bool(self.states.read_changed(SECONDS))
        self.read_all_changes()
        self.states.forget("first", [0])

    def close(self) -> None:
        self._mirror.close()
        self.states.close()


@pytest.fixture(params=[True, False], ids=["server of 3.9", "older server"])
def is_current(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the server has bulk reads and watches of subtrees. An older one does not know their operations."""
    if not request.param:
        monkeypatch.setattr(bulk, "_ADD_WATCH", 998)
        monkeypatch.setattr(bulk._MultiRead, "type", 999)
    return bool(request.param)


@pytest.fixture
def subject(zookeeper: ZooKeeperServer, is_current: bool) -> Iterator[Subject]:
    with session(zookeeper) as client, session(zookeeper) as other:
        subject = Subject(client, Tree(other))
        if not is_current:
            subject.learn_that_the_server_is_old()
        yield subject
        subject.close()


def create_states(cluster: Tree, topic: str, count: int) -> None:
    """Write the states of `count` partitions; the leader of each is the broker with the partition's number."""
    root = f"{cluster.kafka.topic(topic)}/partitions"
    cluster.client.ensure_path(root)
    for start in range(0, count, 250):
        transaction = cluster.client.transaction()
        for number in range(start, min(start + 250, count)):
            transaction.create(f"{root}/{number}", b"")
            transaction.create(cluster.kafka.state(topic, number), b'{"leader":%d,"isr":[%d,9]}' % (number, number))
        assert not any(isinstance(result, Exception) for result in transaction.commit())


def test_many_states_are_read_and_then_only_the_changed_ones(subject: Subject) -> None:
    create_states(subject.cluster, "t1", MANY)
    subject.cluster.set_state("t2", 0, 1001, [1001])
    subject.states.follow("t1", range(MANY))
    subject.states.follow("t2", [0])
    assert subject.read_all_changes() == {"t1", "t2"}
    assert subject.states.of("t1") == {p: StateNode(p, (p, 9)) for p in range(MANY)}
    assert subject.read_all_changes() == set()
    for leader in (7, 8):  # a watch that has fired is set again
        subject.cluster.set_state("t1", MANY - 1, leader, [leader])
        assert subject.read_all_changes() == {"t1"}
        assert subject.states.of("t1")[MANY - 1] == StateNode(leader, (leader,))


def test_state_is_read_when_its_node_appears_and_when_it_reappears(subject: Subject) -> None:
    subject.cluster.set_state("t1", 0, 1001, [1001])
    subject.states.follow("t1", [0, 1])
    subject.read_all_changes()
    assert subject.states.of("t1") == {0: StateNode(1001, (1001,))}
    for leader in (1002, 1003):
        subject.cluster.set_state("t1", 1, leader, [leader])
        subject.read_all_changes()
        assert subject.states.of("t1")[1] == StateNode(leader, (leader,))
        subject.cluster.client.delete(subject.cluster.kafka.state("t1", 1))
        subject.read_all_changes()
        assert subject.states.of("t1").keys() == {0}


def test_read_that_ran_out_of_time_is_completed_by_the_next_one(subject: Subject) -> None:
    create_states(subject.cluster, "t1", MANY)
    create_states(subject.cluster, "t2", 3)
    subject.states.follow("t1", range(MANY))
    subject.states.follow("t2", range(3))
    topics: set[str] = set()
    for seconds in (0.0, 0.001, 0.01, 0.1):  # the timeout interrupts the read at different points
        with contextlib.suppress(Unavailable):
            topics |= subject.states.read_changed(seconds)
    assert topics | subject.read_all_changes() == {"t1", "t2"}
    assert (len(subject.states.of("t1")), len(subject.states.of("t2"))) == (MANY, 3)


def test_state_no_longer_followed_is_not_read_again(subject: Subject) -> None:
    for partition in (0, 1):
        subject.cluster.set_state("t1", partition, 1001, [1001])
    subject.states.follow("t1", [0, 1])
    subject.read_all_changes()
    subject.states.forget("t1", [1])
    subject.cluster.set_state("t1", 1, 1002, [1002])
    assert subject.read_all_changes() == set()
    subject.states.forget("t1", [0])
    assert subject.states.of("t1") == {}
    subject.states.follow("t1", [1])
    subject.read_all_changes()
    assert subject.states.of("t1") == {1: StateNode(1002, (1002,))}


def test_unreadable_state_is_reported_until_it_is_readable(subject: Subject) -> None:
    subject.cluster.set_state("t1", 0, 1001, [1001])
    subject.states.follow("t1", [0])
    subject.read_all_changes()
    path = subject.cluster.kafka.state("t1", 0)
    subject.cluster.write(path, b'{"leader":true,"isr":[1001]}')
    subject.read_all_changes()
    assert subject.states.problems.keys() == {path}
    assert subject.states.of("t1") == {0: StateNode(1001, (1001,))}
    subject.cluster.set_state("t1", 0, 1002, [1002])
    subject.read_all_changes()
    assert not subject.states.problems
    assert subject.states.of("t1") == {0: StateNode(1002, (1002,))}


def test_states_are_fresh_after_a_restart_of_the_server(fresh_zookeeper: ZooKeeperServer, is_current: bool) -> None:
    with session(fresh_zookeeper) as client, session(fresh_zookeeper) as other:
        subject = Subject(client, Tree(other))
        if not is_current:
            subject.learn_that_the_server_is_old()
        create_states(subject.cluster, "t1", MANY)
        subject.states.follow("t1", range(MANY))
        subject.read_all_changes()
        fresh_zookeeper.kill()
        fresh_zookeeper.start()
        with session(fresh_zookeeper) as later:
            subject.cluster.client = later
            subject.cluster.set_state("t1", 5, 1001, [1001])
            builders.eventually(lambda: client.connected, SECONDS)
            assert subject.read_all_changes() == {"t1"}
            subject.cluster.set_state("t1", 6, 1002, [1002])
            assert subject.read_all_changes() == {"t1"}
        assert (subject.states.of("t1")[5].leader, subject.states.of("t1")[6].leader) == (1001, 1002)
        assert len(subject.states.of("t1")) == MANY
        subject.close()


def test_every_later_change_of_a_topic_is_seen_until_it_is_forgotten(subject: Subject) -> None:
    """A state may change again before it is read, or be deleted and created, and its topic may be followed again."""
    for partition in range(3):
        subject.cluster.set_state("t1", partition, 1001, [1001])
    for _ in range(2):
        subject.states.follow("t1", range(3))
        assert subject.read_all_changes() == {"t1"}
        for leader in (1002, 1003):
            for partition in (0, 2, 2):
                subject.cluster.set_state("t1", partition, leader, [leader])
            subject.cluster.client.delete(subject.cluster.kafka.state("t1", 1))
            subject.cluster.set_state("t1", 1, leader, [leader])
            assert subject.read_all_changes() == {"t1"}
            assert {state.leader for state in subject.states.of("t1").values()} == {leader}
        subject.states.forget("t1", range(3))


@pytest.mark.parametrize("is_current", [True], indirect=True)
def test_topic_is_watched_as_a_whole_until_it_is_forgotten(subject: Subject, zookeeper: ZooKeeperServer) -> None:
    """A watch of each of 1,000,000 states cost the server and discovery more than the reads."""
    create_states(subject.cluster, "t1", 100)
    count = watch_count(zookeeper)
    subject.states.follow("t1", range(100))
    subject.read_all_changes()
    assert watch_count(zookeeper) - count <= 2
    subject.states.forget("t1", range(50))
    subject.cluster.set_state("t1", 99, 1001, [1001])
    assert subject.read_all_changes() == {"t1"}
    subject.states.forget("t1", range(50, 100))
    subject.read_all_changes()
    assert watch_count(zookeeper) == count


def watch_count(server: ZooKeeperServer) -> int:
    lines = server.four_letter_word("mntr").splitlines()
    return int(dict(line.split("\t", 1) for line in lines if "\t" in line)["zk_watch_count"])


def test_read_without_an_answer_about_its_watches_sets_them_again(subject: Subject) -> None:
    """A topic counted as watched although its server had not confirmed it, and had refused it after the time-out."""
    subject.cluster.set_state("t1", 0, 1001, [1001])
    subject.states.follow("t1", [0])
    with contextlib.suppress(Unavailable):
        subject.states.read_changed(0.0)
    subject.read_all_changes()
    subject.cluster.set_state("t1", 0, 1002, [1002])
    assert subject.read_all_changes() == {"t1"}


def test_nodes_with_other_names_below_a_topic_are_ignored(subject: Subject) -> None:
    subject.cluster.set_state("t1", 0, 1001, [1001])
    subject.states.follow("t1", [0])
    subject.read_all_changes()
    for name in ("x", "-1", "\u0667", "9" * 30, "0/state/below"):
        subject.cluster.client.create(
            f"{subject.cluster.kafka.topic('t1')}/partitions/{name}/state", b"{", makepath=True
        )
    assert subject.read_all_changes() == set()
    subject.cluster.set_state("t1", 0, 1002, [1002])
    assert subject.read_all_changes() == {"t1"}


@pytest.mark.parametrize("is_current", [True], indirect=True)
def test_server_without_multi_read_is_read_node_by_node(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper before 3.6 does not implement multi-read."""
    subject.cluster.set_state("t1", 0, 1001, [1001])
    paths = [subject.cluster.kafka.state("t1", partition) for partition in (0, 1)]
    refusal = subject.client.handler.async_result()
    refusal.set_exception(UnimplementedError())
    monkeypatch.setattr(bulk, "get_many_async", lambda *_: refusal)
    existing, missing = read_nodes(subject.client, paths, time.monotonic() + SECONDS)
    assert existing is not None
    assert existing[0] == subject.cluster.read(paths[0])
    assert missing is None
    assert data_of(subject.client, paths, refusal, time.monotonic() + SECONDS) == [existing[0], None]

"""Snapshots by the admin API of real brokers, with ZooKeeper and without: the same contract as the other backends."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin, KafkaSettings
from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.adapters.zookeeper.ledger_reader import LedgerReader
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    ResourceType,
)
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.topology import Assignment, TopicPartition
from autothrottle.lab.kafka import CLIENT, KafkaCluster, kafka
from autothrottle.lab.traffic import fill
from autothrottle.lab.zookeeper import ZooKeeperServer
from autothrottle.ports.cluster import SnapshotEvent, SnapshotSource
from tests.adapters.contract_snapshot_source import BROKER, SnapshotSourceContract, SnapshotSourceSubject, fetched
from tests.builders import eventually
from tests.system.zookeeper_tree import session

TIMEOUT = timedelta(seconds=30)
BROKERS = frozenset({1001, 1002, 1003, 1004, 1005})
HELD_BYTES = 12_000_000
"""So much of each partition moves: at one byte per second about a fetch of 0.5 MB comes through in 11 s."""


class RealCluster:
    """What happens to a real cluster; moves stand still until they are let go."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka
        self._topics: set[str] = set()
        self._set: set[tuple[ConfigResource | None, str]] = set()

    def add_topic(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
        self.kafka.create_topic(topic, assignment)
        self._topics.add(topic)

    def start_reassignment(self, topic: str, target: Mapping[int, Sequence[int]]) -> None:
        """Start a move of which nothing arrives until `let_in` or `finish`."""
        fill(self.kafka, topic, HELD_BYTES)
        states = self.kafka.partitions([topic])
        adding = {(p, b) for p, replicas in target.items() for b in replicas if b not in states[topic, p].replicas}
        self._hold(topic, adding)
        # A broker takes a config up some time after it was written: on a busy machine the move was over before that.
        for broker_id in {b for _, b in adding}:
            eventually(lambda b=broker_id: self.kafka.described_configs(b).get(FOLLOWER_RATE) == "1", 60)  # type: ignore[misc]
        eventually(lambda: FOLLOWER_REPLICAS in self.kafka.described_topic_configs(topic), 60)
        time.sleep(0.5)  # the topic's config was told by one broker, and the others follow
        self.kafka.reassign_through_bootstrap({(topic, p): list(replicas) for p, replicas in target.items()})
        eventually(lambda: {(topic, p) for p in target} <= self.kafka.reassigning(), 60)

    def _hold(self, topic: str, entries: set[tuple[int, int]]) -> None:
        for broker_id in {b for _, b in entries}:
            self.set_config_as_user(ConfigResource.broker(broker_id), FOLLOWER_RATE, "1")
        replicas = ",".join(f"{p}:{b}" for p, b in sorted(entries)) or None
        self.set_config_as_user(ConfigResource.topic(topic), FOLLOWER_REPLICAS, replicas)

    def let_in(self, topic: str, held: set[tuple[int, int]], partition: int, broker_id: int) -> None:
        """Let one replica catch up and hold others back."""
        self._hold(topic, held)
        eventually(lambda: broker_id in self.kafka.partitions([topic])[topic, partition].isr, 60)

    def prefer_leader(self, topic: str, partition: int) -> None:
        """Let the first of its replicas lead."""
        admin = kafka.KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers.split(","), **CLIENT)
        try:
            admin.elect_leaders(0, {topic: [partition]})
        finally:
            admin.close()

    def finish(self, topic: str, *partitions: int) -> None:
        assert not partitions, "a real move ends as a whole"
        self._hold(topic, set())
        eventually(lambda: topic not in {t for t, _ in self.kafka.reassigning()}, 60)

    def join_isr(self, topic: str, partition: int, broker_id: int) -> None:
        raise AssertionError("a real move is over when the only new replica is in sync")

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        raise AssertionError("a real controller leads where it likes; see `prefer_leader`")

    def set_config_as_user(self, resource: ConfigResource, key: str, value: str | None) -> None:
        self._set.add((resource, key))
        if resource.type is ResourceType.BROKER:
            self.kafka.set_configs_as_a_user({key: value}, broker_id=resource.broker_id)
        else:
            self.kafka.set_configs_as_a_user({key: value}, topic=resource.name)

    def set_default_as_user(self, key: str, value: str | None) -> None:
        self._set.add((None, key))
        self.kafka.set_configs_as_a_user({key: value}, default=True)

    def restore(self) -> None:
        """Take everything back."""
        for resource, key in self._set:
            if resource is None:
                self.kafka.set_configs_as_a_user({key: None}, default=True)
            elif resource.type is ResourceType.BROKER:
                self.kafka.set_configs_as_a_user({key: None}, broker_id=resource.broker_id)
        moving = {p for p in self.kafka.reassigning() if p[0] in self._topics}
        if moving:
            self.kafka.reassign_through_bootstrap(dict.fromkeys(moving))
        for topic in self._topics:
            self.kafka.delete_topic(topic)


class Subject:
    """A source under test, with a ledger of its own."""

    def __init__(self, cluster: KafkaCluster, zookeeper: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.cluster = RealCluster(cluster)
        self.client = stack.enter_context(session(zookeeper))
        self.own = OwnPaths(f"test-{uuid.uuid4().hex}")
        self.kafka = KafkaAdmin(KafkaSettings(tuple(cluster.bootstrap_servers.split(","))))
        stack.callback(self.kafka.close)
        ledger = LedgerReader(self.client, self.own)
        stack.callback(ledger.close)
        self.admin = AdminSnapshots(self.kafka, ledger)
        self.source: SnapshotSource = self.admin
        stack.callback(self.admin.close)
        stack.callback(self.cluster.restore)
        self._changed = threading.Condition()
        self.events: list[SnapshotEvent] = []
        self.admin.watch_snapshots(self._heard)

    def _heard(self, event: SnapshotEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def told(self, words: str, act: Callable[[], object] = lambda: None) -> SnapshotEvent:
        with self._changed:
            self.events.clear()
        act()
        with self._changed:
            assert self._changed.wait_for(lambda: any(words in e.reason for e in self.events), 90), self.events
            return next(e for e in self.events if words in e.reason)

    def write_ledger(self, resource: ConfigResource, **keys: str) -> None:
        entry = LedgerEntry({name.replace("_", "."): LedgerKey(None, value) for name, value in keys.items()}, 1)
        self.client.create(self.own.ledger_entry(resource), format_ledger_entry(entry), makepath=True)


@contextlib.contextmanager
def subjects(cluster: KafkaCluster, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(cluster, zookeeper, stack)


@pytest.fixture
def subject(each_cluster: KafkaCluster, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with subjects(each_cluster, zookeeper) as made:
        yield made


class TestAdminSnapshotsOfRealBrokers(SnapshotSourceContract):
    brokers = BROKERS

    @pytest.fixture
    def subject(self, each_cluster: KafkaCluster, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with subjects(each_cluster, zookeeper) as made:
            yield made

    def test_a_replica_that_caught_up_and_a_new_leader_are_seen(self, subject: SnapshotSourceSubject) -> None:
        """As the contract has it, but with a second destination: else the move would be over."""
        assert isinstance(subject, Subject)
        cluster = subject.cluster
        cluster.add_topic("t1", {0: [1001, 1002]})
        subject.told("[t1]", lambda: cluster.start_reassignment("t1", {0: [1004, 1003]}))
        subject.told("ISR of t1 changed", lambda: cluster.let_in("t1", {(0, 1003)}, 0, 1004))
        subject.told("leader of t1 changed", lambda: cluster.prefer_leader("t1", 0))
        (reassignment,) = fetched(subject).reassignments
        assert reassignment.leaders == (1004,)
        assert set(reassignment.isr[0]) == {1001, 1002, 1004}
        assert [pending for *_, pending in reassignment.rows()] == [(1003,)]
        (assignment,) = subject.source.fetch_snapshot(partitions=[("t1", 0)], timeout=TIMEOUT).assignments.values()
        assert assignment.target == (1004, 1003)


def test_where_a_partition_is_that_does_not_move(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002], 1: [1003, 1001]})
    asked = [("t1", 1), ("t1", 2), ("no-such-topic", 0)]
    found: dict[TopicPartition, Assignment] = {}

    def is_found() -> bool:
        found.update(subject.source.fetch_snapshot(partitions=asked, timeout=TIMEOUT).assignments)
        return bool(found)

    eventually(is_found, 60)  # a broker hears of a new topic some milliseconds later
    assert found == {("t1", 1): Assignment((1003, 1001), 1003, (1003, 1001))}


def test_a_topic_that_is_deleted_in_mid_move_moves_no_more(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.add_topic("t2", {0: [1001, 1002]})
    subject.told("[t1]", lambda: subject.cluster.start_reassignment("t1", {0: [1004, 1002]}))
    subject.told("[t2]", lambda: subject.cluster.start_reassignment("t2", {0: [1003, 1002]}))
    subject.cluster._topics.remove("t1")
    subject.told("reassignment ended: [t1]", lambda: subject.cluster.kafka.delete_topic("t1"))
    snapshot = fetched(subject)
    assert (snapshot.topics, snapshot.problems) == (("t2",), ())


def test_lists_that_somebody_deletes_in_mid_move_are_told(subject: Subject) -> None:
    """Strimzi's topic operator does that (strimzi #9972)."""
    t1 = ConfigResource.topic("t1")
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.told("[t1]", lambda: subject.cluster.start_reassignment("t1", {0: [1004, 1002]}))
    # Held by the leader too, or the move would be over as soon as the list is gone.
    subject.cluster.set_config_as_user(BROKER, LEADER_RATE, "1")
    subject.cluster.set_config_as_user(t1, LEADER_REPLICAS, "0:1001")
    subject.write_ledger(t1, follower_replication_throttled_replicas="0:1004")
    lists = {LEADER_REPLICAS: "0:1001", FOLLOWER_REPLICAS: "0:1004"}
    eventually(lambda: fetched(subject).throttles.get(t1) == lists, 60)
    snapshot = fetched(subject)
    assert snapshot.ledger[t1].keys[FOLLOWER_REPLICAS].written == "0:1004"
    delete = subject.cluster.set_config_as_user
    event = subject.told("throttles of topics/t1", lambda: delete(t1, FOLLOWER_REPLICAS, None))
    assert event.urgent


def test_a_broker_that_is_down_is_named_delays_nobody_and_is_told_when_it_is_back(subject: Subject) -> None:
    broker, rate = ConfigResource.broker(1005), {LEADER_RATE: "5000000"}
    for broker_id in (1004, 1005):
        subject.cluster.set_config_as_user(ConfigResource.broker(broker_id), LEADER_RATE, rate[LEADER_RATE])
    subject.write_ledger(broker, leader_replication_throttled_rate=rate[LEADER_RATE])
    eventually(lambda: fetched(subject).throttles == {ConfigResource.broker(b): rate for b in (1004, 1005)}, 60)
    cluster = subject.cluster.kafka
    cluster.kill_broker(1005)
    try:
        # Registered for some seconds more, then not.
        began = time.monotonic()
        dying = fetched(subject)
        assert time.monotonic() - began < 15
        assert dying.throttles == {ConfigResource.broker(1004): rate}
        assert re.search(r"broker 1005 (\(.+\) )?is unreachable", dying.unreadable_configs[broker].reason)
        eventually(lambda: fetched(subject).brokers == BROKERS - {1005}, 60)
        gone = fetched(subject)
        assert gone.throttles == dying.throttles
        assert "it is not registered" in gone.unreadable_configs[broker].reason
        assert gone.problems == ()
        subject.told("brokers registered: [1005]", lambda: cluster.start_broker(1005))
    finally:
        cluster.start_broker(1005)
    eventually(lambda: not fetched(subject).unreadable_configs, 60)
    eventually(lambda: fetched(subject).throttles == {ConfigResource.broker(b): rate for b in (1004, 1005)}, 60)


def test_a_second_source_takes_up_where_the_first_one_left(
    subject: Subject, each_cluster: KafkaCluster, zookeeper: ZooKeeperServer
) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    event = subject.told("[t1]", lambda: subject.cluster.start_reassignment("t1", {0: [1004, 1002]}))
    with subjects(each_cluster, zookeeper) as other:
        other.told("reassignment found: [t1]")
        assert fetched(other, min_version=event.version).reassignments == fetched(subject).reassignments


def test_a_broker_that_hangs_is_named_and_delays_a_snapshot_by_seconds_at_most(subject: Subject) -> None:
    broker, rate = ConfigResource.broker(1005), {LEADER_RATE: "5000000"}
    subject.cluster.set_config_as_user(broker, LEADER_RATE, rate[LEADER_RATE])
    eventually(lambda: fetched(subject).throttles == {broker: rate}, 60)
    process = subject.cluster.kafka.brokers[1005].process
    took = []
    process.freeze()
    try:
        for _ in range(3):
            began = time.monotonic()
            snapshot = fetched(subject)
            took.append(time.monotonic() - began)
            assert snapshot.throttles == {}
            assert snapshot.problems == ()
            if 1005 in snapshot.brokers:
                assert re.search(r"broker 1005 (\(.+\) )?is unreachable", snapshot.unreadable_configs[broker].reason)
    finally:
        process.thaw()
    assert max(took) < 20, took
    eventually(lambda: fetched(subject).brokers == BROKERS and fetched(subject).throttles == {broker: rate}, 90)

"""Snapshots through the Admin API of real brokers in ZooKeeper and KRaft mode, under the contract of all backends."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedgerReader
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ResourceType,
)
from autothrottle.core.cluster.snapshot import Assignment, SnapshotRequest, TopicPartition
from autothrottle.core.errors import Invalid
from autothrottle.ports.kafka import SnapshotEvent, SnapshotSource
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.contract.snapshot_source_contract import BROKER, SnapshotSourceContract, SnapshotSourceSubject, fetched
from tests.server_fixtures import repeat_on_kraft
from tests.system.zookeeper_tree import session

TIMEOUT = timedelta(seconds=30)
BROKERS = frozenset({1001, 1002, 1003, 1004, 1005})
HELD_BYTES = 12_000_000
"""Size of each reassigned partition. At one byte per second about one fetch of 0.5 MB passes in 11 s."""


class RealCluster:
    """Changes a real cluster. Reassignments make no progress until a test releases them."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka
        self._topics: set[str] = set()
        self._set: set[tuple[ConfigResource | None, str]] = set()
        self._rates = itertools.count(1)

    def add_topic(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
        self.kafka.create_topic(topic, assignment)
        self._topics.add(topic)

    def submit_reassignment(self, topic: str, target: Mapping[int, Sequence[int]]) -> None:
        """Start a reassignment that makes no progress until `let_in` or `finish`."""
        fill(self.kafka, topic, HELD_BYTES)
        states = self.kafka.partitions([topic])
        adding = {(p, b) for p, replicas in target.items() for b in replicas if b not in states[topic, p].replicas}
        self._throttle(topic, adding)
        self.kafka.reassign_through_bootstrap({(topic, p): list(replicas) for p, replicas in target.items()})
        eventually(lambda: {(topic, p) for p in target} <= self.kafka.reassigning(), 60)

    def _throttle(self, topic: str, entries: set[tuple[int, int]]) -> None:
        """Throttle these replicas to a few bytes per second, and wait until the throttle is in force.

        A broker applies configs some time after they are written, in the order of the writes. A reported rate is in
        force, so this writes a new rate last and waits for it. The reported topic config proves nothing, since a
        broker in ZooKeeper mode reports the content of ZooKeeper. Without the wait, the reassignment finished on a
        slow machine before the list was in force.
        """
        replicas = ",".join(f"{p}:{b}" for p, b in sorted(entries)) or None
        self.set_config_as_user(ConfigResource.topic(topic), FOLLOWER_REPLICAS, replicas)
        rate = str(next(self._rates))
        brokers = {b for _, b in entries}
        for broker_id in brokers:
            self.set_config_as_user(ConfigResource.broker(broker_id), FOLLOWER_RATE, rate)
        for broker_id in brokers:
            eventually(lambda b=broker_id: self.kafka.described_configs(b).get(FOLLOWER_RATE) == rate, 60)  # type: ignore[misc]

    def let_in(self, topic: str, held: set[tuple[int, int]], partition: int, broker_id: int) -> None:
        """Let one replica catch up and throttle the others in `held`."""
        self._throttle(topic, held)
        eventually(lambda: broker_id in self.kafka.partitions([topic])[topic, partition].isr, 60)

    def prefer_leader(self, topic: str, partition: int) -> None:
        """Elect the preferred replica as leader."""
        admin = kafka.KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers.split(","), **CLIENT)
        try:
            admin.elect_leaders(0, {topic: [partition]})
        finally:
            admin.close()
        first = self.kafka.partitions([topic])[topic, partition].replicas[0]
        eventually(lambda: self.kafka.partitions([topic])[topic, partition].leader == first, 60)

    def finish(self, topic: str, *partitions: int) -> None:
        assert not partitions, "a real reassignment finishes as a whole"
        self._throttle(topic, set())
        eventually(lambda: topic not in {t for t, _ in self.kafka.reassigning()}, 60)

    def join_isr(self, topic: str, partition: int, broker_id: int) -> None:
        raise AssertionError("a real reassignment is finished when its only adding replica is in sync")

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        raise AssertionError("a real controller chooses the leader; see `prefer_leader`")

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
        """Remove all configs, reassignments and topics of the test."""
        for resource, key in self._set:
            if resource is None:
                self.kafka.set_configs_as_a_user({key: None}, default=True)
            elif resource.type is ResourceType.BROKER:
                self.kafka.set_configs_as_a_user({key: None}, broker_id=resource.broker_id)
        reassigning = {p for p in self.kafka.reassigning() if p[0] in self._topics}
        if reassigning:
            with contextlib.suppress(Invalid):  # some may have ended in the meantime, as nothing throttles them now
                self.kafka.reassign_through_bootstrap(dict.fromkeys(reassigning))
        for topic in self._topics:
            self.kafka.delete_topic(topic)


class Subject:
    """A source under test, with its own ledger."""

    def __init__(self, cluster: KafkaCluster, zookeeper: ZooKeeperServer, stack: contextlib.ExitStack) -> None:
        self.cluster = RealCluster(cluster)
        self.client = stack.enter_context(session(zookeeper))
        self.own = OwnPaths(f"test-{uuid.uuid4().hex}")
        self.kafka = KafkaAdmin(KafkaSettings(tuple(cluster.bootstrap_servers.split(","))))
        stack.callback(self.kafka.close)
        ledger = ZooKeeperLedgerReader(self.client, self.own)
        stack.callback(ledger.close)
        self.admin = AdminSnapshots(self.kafka, ledger)
        self.source: SnapshotSource = self.admin
        stack.callback(self.admin.close)
        stack.callback(self.cluster.restore)
        self._changed = threading.Condition()
        self.events: list[SnapshotEvent] = []
        self.admin.watch_snapshots(self._on_event)

    def _on_event(self, event: SnapshotEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def await_event(self, words: str, act: Callable[[], object] = lambda: None) -> SnapshotEvent:
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

    def test_snapshot_shows_a_changed_isr_and_a_new_leader(self, subject: SnapshotSourceSubject) -> None:
        """Like the contract, but with a second adding replica. Otherwise the reassignment would be finished."""
        assert isinstance(subject, Subject)
        cluster = subject.cluster
        cluster.add_topic("t1", {0: [1001, 1002]})
        subject.await_event("[t1]", lambda: cluster.submit_reassignment("t1", {0: [1004, 1003]}))
        subject.await_event("ISR of t1 changed", lambda: cluster.let_in("t1", {(0, 1003)}, 0, 1004))
        subject.await_event("leader of t1 changed", lambda: cluster.prefer_leader("t1", 0))
        (reassignment,) = fetched(subject).reassignments
        assert reassignment.leaders == (1004,)
        assert set(reassignment.isr[0]) == {1001, 1002, 1004}
        assert [pending for *_, pending in reassignment.rows()] == [(1003,)]
        (assignment,) = subject.source.fetch_snapshot(
            SnapshotRequest(partitions=[("t1", 0)]), timeout=TIMEOUT
        ).assignments.values()
        assert assignment.target == (1004, 1003)


def test_assignment_of_a_partition_that_is_not_reassigned(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002], 1: [1003, 1001]})
    requested = [("t1", 1), ("t1", 2), ("no-such-topic", 0)]
    found: dict[TopicPartition, Assignment] = {}

    def is_found() -> bool:
        found.update(subject.source.fetch_snapshot(SnapshotRequest(partitions=requested), timeout=TIMEOUT).assignments)
        return bool(found)

    eventually(is_found, 60)  # a broker knows a new topic after some milliseconds
    assert found == {("t1", 1): Assignment((1003, 1001), 1003, (1003, 1001))}


def test_topic_deleted_during_its_reassignment_leaves_the_snapshot(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.add_topic("t2", {0: [1001, 1002]})
    subject.await_event("[t1]", lambda: subject.cluster.submit_reassignment("t1", {0: [1004, 1002]}))
    subject.await_event("[t2]", lambda: subject.cluster.submit_reassignment("t2", {0: [1003, 1002]}))
    subject.cluster._topics.remove("t1")
    subject.await_event("reassignment ended: [t1]", lambda: subject.cluster.kafka.delete_topic("t1"))
    snapshot = fetched(subject)
    assert (snapshot.topics, snapshot.problems) == (("t2",), ())


def test_lists_deleted_by_another_party_during_a_reassignment_are_reported(subject: Subject) -> None:
    """Strimzi's topic operator deletes such lists (strimzi #9972)."""
    t1 = ConfigResource.topic("t1")
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.await_event("[t1]", lambda: subject.cluster.submit_reassignment("t1", {0: [1004, 1002]}))
    # Also throttle the leader. Otherwise the reassignment would finish when the list is deleted.
    subject.cluster.set_config_as_user(BROKER, LEADER_RATE, "1")
    subject.cluster.set_config_as_user(t1, LEADER_REPLICAS, "0:1001")
    subject.write_ledger(t1, follower_replication_throttled_replicas="0:1004")
    lists = {LEADER_REPLICAS: "0:1001", FOLLOWER_REPLICAS: "0:1004"}
    eventually(lambda: fetched(subject).throttles.get(t1) == lists, 60)
    snapshot = fetched(subject)
    assert snapshot.ledger[t1].keys[FOLLOWER_REPLICAS].written == "0:1004"
    delete = subject.cluster.set_config_as_user
    event = subject.await_event("throttles of topics/t1", lambda: delete(t1, FOLLOWER_REPLICAS, None))
    assert event.urgent


def test_a_broker_that_is_down_is_reported_without_delay_and_again_when_it_returns(subject: Subject) -> None:
    broker, rate = ConfigResource.broker(1005), {LEADER_RATE: "5000000"}
    for broker_id in (1004, 1005):
        subject.cluster.set_config_as_user(ConfigResource.broker(broker_id), LEADER_RATE, rate[LEADER_RATE])
    subject.write_ledger(broker, leader_replication_throttled_rate=rate[LEADER_RATE])
    eventually(lambda: fetched(subject).throttles == {ConfigResource.broker(b): rate for b in (1004, 1005)}, 60)
    cluster = subject.cluster.kafka
    cluster.kill_broker(1005)
    try:
        # The broker stays registered for some seconds.
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
        subject.await_event("brokers registered: [1005]", lambda: cluster.start_broker(1005))
    finally:
        cluster.start_broker(1005)
    eventually(lambda: not fetched(subject).unreadable_configs, 60)
    eventually(lambda: fetched(subject).throttles == {ConfigResource.broker(b): rate for b in (1004, 1005)}, 60)


def test_a_second_source_continues_from_the_version_of_the_first(
    subject: Subject, each_cluster: KafkaCluster, zookeeper: ZooKeeperServer
) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    event = subject.await_event("[t1]", lambda: subject.cluster.submit_reassignment("t1", {0: [1004, 1002]}))
    with subjects(each_cluster, zookeeper) as other:
        other.await_event("reassignment found: [t1]")
        assert fetched(other, min_version=event.version).reassignments == fetched(subject).reassignments


@repeat_on_kraft
def test_a_hanging_broker_is_reported_and_delays_a_snapshot_only_by_seconds(subject: Subject) -> None:
    broker, rate = ConfigResource.broker(1005), {LEADER_RATE: "5000000"}
    subject.cluster.set_config_as_user(broker, LEADER_RATE, rate[LEADER_RATE])
    eventually(lambda: fetched(subject).throttles == {broker: rate}, 60)
    process = subject.cluster.kafka.brokers[1005]
    seconds = []
    process.freeze()
    try:
        for _ in range(3):
            began = time.monotonic()
            snapshot = fetched(subject)
            seconds.append(time.monotonic() - began)
            assert snapshot.throttles == {}
            assert snapshot.problems == ()
            if 1005 in snapshot.brokers:
                assert re.search(r"broker 1005 (\(.+\) )?is unreachable", snapshot.unreadable_configs[broker].reason)
    finally:
        process.thaw()
    assert max(seconds) < 20, seconds
    eventually(lambda: fetched(subject).brokers == BROKERS and fetched(subject).throttles == {broker: rate}, 90)

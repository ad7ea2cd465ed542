"""Contract of every `SnapshotSource`. Inherit from it and define the fixture `subject`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import pytest

from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE, ConfigResource
from autothrottle.core.cluster.snapshot import Assignment, Snapshot, SnapshotRequest, TopicPartition
from autothrottle.core.errors import Unavailable
from autothrottle.ports.kafka import SnapshotEvent, SnapshotSource
from tests import builders

TIMEOUT = timedelta(seconds=60)
BROKER = ConfigResource.broker(1001)


class Controller(Protocol):
    """Changes the cluster. `MemoryCluster` has these methods."""

    def add_topic(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None: ...
    def submit_reassignment(self, topic: str, target: Mapping[int, Sequence[int]]) -> None: ...
    def join_isr(self, topic: str, partition: int, broker_id: int) -> None: ...
    def move_leader(self, topic: str, partition: int, broker_id: int) -> None: ...
    def finish(self, topic: str, *partitions: int) -> None: ...
    def set_config_as_user(self, resource: ConfigResource, key: str, value: str | None) -> None: ...
    def set_default_as_user(self, key: str, value: str | None) -> None: ...


class SnapshotSourceSubject(Protocol):
    """A source and its cluster. The cluster has no topic with a name used in this contract."""

    @property
    def source(self) -> SnapshotSource: ...
    @property
    def cluster(self) -> Controller: ...


class Events:
    """Collects the events of a watch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.seen: list[SnapshotEvent] = []

    def notify(self, event: SnapshotEvent) -> None:
        with self._changed:
            self.seen.append(event)
            self._changed.notify_all()

    def await_count(self, count: int) -> list[SnapshotEvent]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, 60), self.seen
            return list(self.seen)


def fetched(
    subject: SnapshotSourceSubject,
    min_version: int = 0,
    replicas_of: Sequence[int] = (),
    partitions: Sequence[TopicPartition] = (),
) -> Snapshot:
    return subject.source.fetch_snapshot(SnapshotRequest(min_version, replicas_of, partitions), timeout=TIMEOUT)


class SnapshotSourceContract:
    brokers = frozenset({1001, 1002, 1003, 1004})

    def test_idle_cluster_has_brokers_and_no_reassignments(self, subject: SnapshotSourceSubject) -> None:
        subject.cluster.add_topic("t1", {0: [1001, 1002]})
        snapshot = fetched(subject)
        assert snapshot.brokers == self.brokers
        assert snapshot.reassignments == ()
        assert snapshot.version > 0

    def test_reassignment_contains_only_reassigned_partitions(self, subject: SnapshotSourceSubject) -> None:
        subject.cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1003]})
        subject.cluster.submit_reassignment("t1", {1: [1004, 1002]})
        assert fetched(subject).reassignments == (
            builders.reassignment("t1", {1: (1002, (1002, 1003), (1004,), (1003,))}),
        )

    def test_snapshot_shows_a_changed_isr_and_a_new_leader(self, subject: SnapshotSourceSubject) -> None:
        subject.cluster.add_topic("t1", {0: [1001, 1002]})
        subject.cluster.submit_reassignment("t1", {0: [1004, 1002]})
        subject.cluster.join_isr("t1", 0, 1004)
        subject.cluster.move_leader("t1", 0, 1004)
        (reassignment,) = fetched(subject).reassignments
        assert reassignment.leaders == (1004,)
        assert set(reassignment.isr[0]) == {1001, 1002, 1004}

    def test_topics_are_sorted_by_name(self, subject: SnapshotSourceSubject) -> None:
        for topic in ("b", "a", "c"):
            subject.cluster.add_topic(topic, {0: [1001]})
            subject.cluster.submit_reassignment(topic, {0: [1002]})
        assert fetched(subject).topics == ("a", "b", "c")

    def test_finished_reassignment_is_not_in_the_snapshot(self, subject: SnapshotSourceSubject) -> None:
        subject.cluster.add_topic("t1", {0: [1001, 1002]})
        subject.cluster.submit_reassignment("t1", {0: [1004, 1002]})
        before = fetched(subject).version
        subject.cluster.finish("t1")
        builders.eventually(lambda: fetched(subject).reassignments == (), 60)
        assert fetched(subject).version > before

    def test_snapshot_shows_throttles_and_no_other_configs(self, subject: SnapshotSourceSubject) -> None:
        subject.cluster.set_config_as_user(BROKER, LEADER_RATE, "5")
        subject.cluster.set_config_as_user(BROKER, "log.cleaner.threads", "2")
        # A broker applies a config some milliseconds after the write, also the removal of an earlier test's config.
        builders.eventually(lambda: fetched(subject).throttles == {BROKER: {LEADER_RATE: "5"}}, 60)

    def test_default_throttles_are_separate_from_broker_throttles(self, subject: SnapshotSourceSubject) -> None:
        subject.cluster.set_config_as_user(BROKER, LEADER_RATE, "5")
        subject.cluster.set_default_as_user(LEADER_RATE, "7")
        subject.cluster.set_default_as_user(FOLLOWER_RATE, "8")
        subject.cluster.set_default_as_user("log.cleaner.threads", "2")
        builders.eventually(lambda: fetched(subject).default_throttles == {LEADER_RATE: "7", FOLLOWER_RATE: "8"}, 60)
        builders.eventually(lambda: fetched(subject).throttles == {BROKER: {LEADER_RATE: "5"}}, 60)
        subject.cluster.set_default_as_user(LEADER_RATE, None)
        builders.eventually(lambda: fetched(subject).default_throttles == {FOLLOWER_RATE: "8"}, 60)

    def test_replicas_are_listed_only_for_requested_brokers(self, subject: SnapshotSourceSubject) -> None:
        subject.cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1003], 2: [1003, 1002]})
        assert fetched(subject).replicas == {}
        # A broker knows a new topic after some milliseconds.
        builders.eventually(lambda: "t1" in fetched(subject, replicas_of=[1002]).replicas[1002], 60)
        replicas = fetched(subject, replicas_of=[1002]).replicas
        assert replicas.keys() == {1002}
        assert replicas[1002]["t1"] == (0, 1, 2)
        listed = fetched(subject, replicas_of=[1001, 1003, 4711]).replicas
        assert {broker_id: topics.get("t1") for broker_id, topics in listed.items()} == {
            1001: (0,),
            1003: (1, 2),
            4711: None,
        }

    def test_assignments_are_listed_only_for_requested_partitions(self, subject: SnapshotSourceSubject) -> None:
        subject.cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1003], 2: [1001, 1004]})
        subject.cluster.submit_reassignment("t1", {1: [1004, 1002]})
        assert fetched(subject).assignments == {}
        requested = [("t1", 0), ("t1", 1), ("t1", 7), ("t2", 0)]
        assert fetched(subject, partitions=requested).assignments == {
            ("t1", 0): Assignment((1001, 1002), 1001, (1001, 1002)),
            ("t1", 1): Assignment((1004, 1002, 1003), 1002, (1002, 1003), (1004,), (1003,)),
        }

    def test_a_version_that_never_existed_is_unavailable(self, subject: SnapshotSourceSubject) -> None:
        never = fetched(subject).version + 10**9
        with pytest.raises(Unavailable):
            subject.source.fetch_snapshot(SnapshotRequest(min_version=never), timeout=timedelta(seconds=0.3))

    def test_watch_reports_a_reassignment_that_the_snapshot_shows(self, subject: SnapshotSourceSubject) -> None:
        events = Events()
        subject.cluster.add_topic("t1", {0: [1001, 1002]})
        watch = subject.source.watch_snapshots(events.notify)
        try:
            subject.cluster.submit_reassignment("t1", {0: [1004, 1002]})
            event = events.await_count(1)[0]
        finally:
            watch.close()
        assert "t1" in event.reason
        assert fetched(subject, min_version=event.version).topics == ("t1",)

    def test_closed_watch_reports_nothing(self, subject: SnapshotSourceSubject) -> None:
        closed, other = Events(), Events()
        subject.cluster.add_topic("t1", {0: [1001, 1002]})
        subject.source.watch_snapshots(closed.notify).close()
        watch = subject.source.watch_snapshots(other.notify)
        try:
            subject.cluster.submit_reassignment("t1", {0: [1004, 1002]})
            other.await_count(1)
        finally:
            watch.close()
            watch.close()
        assert closed.seen == []

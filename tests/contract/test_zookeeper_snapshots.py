"""Snapshots of a cluster in a real ZooKeeper: complete, fresh, with all unreadable nodes reported."""

from __future__ import annotations

import contextlib
import copy
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.states import KazooState

from autothrottle.adapters.kafka_common.progress_reader import ProgressReader
from autothrottle.adapters.kafka_zookeeper import reassignments, snapshots
from autothrottle.adapters.kafka_zookeeper.reassignments import PartitionStates
from autothrottle.adapters.kafka_zookeeper.snapshots import ZooKeeperSnapshots
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
)
from autothrottle.core.cluster.snapshot import Snapshot, SnapshotRequest
from autothrottle.core.errors import Unavailable
from autothrottle.ports.kafka import SnapshotEvent
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually, ledger_entry, reassignment
from tests.contract.snapshot_source_contract import SnapshotSourceContract
from tests.system.zookeeper_tree import Tree, encoded, freeze, session

TIMEOUT = timedelta(seconds=20)
BROKER = ConfigResource.broker(1001)
T1 = ConfigResource.topic("t1")


class Subject:
    """A source under test. Another session writes the cluster."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack, zk_prefix: str | None = None) -> None:
        self.cluster = Tree(stack.enter_context(session(server)), zk_prefix)
        self.stack, self.server = stack, server
        self.source = self.another()

    def another(self, session_seconds: float = 10.0, progress: ProgressReader | None = None) -> ZooKeeperSnapshots:
        client = self.stack.enter_context(session(self.server, session_seconds))
        source = ZooKeeperSnapshots(client, self.cluster.kafka, self.cluster.own, progress)
        self.stack.callback(source.close)
        return source

    def snapshot(self) -> Snapshot:
        return self.source.fetch_snapshot(timeout=TIMEOUT)


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


class TestZooKeeperSnapshots(SnapshotSourceContract):
    @pytest.fixture
    def subject(self, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with contextlib.ExitStack() as stack:
            yield Subject(zookeeper, stack)


def content(source: ZooKeeperSnapshots) -> Snapshot:
    """Return a snapshot with version 0, for comparisons."""
    return replace(source.fetch_snapshot(SnapshotRequest(replicas_of=range(1001, 1005)), timeout=TIMEOUT), version=0)


# Both forms of reassignments.


def test_a_reassignment_in_both_forms_is_counted_once(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1001]})
    subject.cluster.reassign_by_znode({("t1", 0): [1003, 1002]})
    subject.cluster.submit_reassignment("t1", {0: [1003, 1002]})
    assert subject.snapshot().reassignments == (reassignment("t1", {0: (1001, (1001, 1002), (1003,), (1001,))}),)


def test_a_reassignment_only_in_the_old_node_adds_the_replicas_that_are_not_in_sync(subject: Subject) -> None:
    """Kafka before 2.4 never writes adding_replicas, and no controller writes them at the start."""
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.reassign_by_znode({("t1", 0): [1002, 1003, 1004]})
    assert subject.snapshot().reassignments == (reassignment("t1", {0: (1001, (1001, 1002), (1003, 1004), ())}),)
    subject.cluster.set_topic("t1", {0: [1001, 1002, 1003, 1004]})
    subject.cluster.join_isr("t1", 0, 1003)
    (found,) = subject.snapshot().reassignments
    assert [pending for *_, pending in found.rows()] == [(1004,)]
    subject.cluster.client.delete(subject.cluster.kafka.reassign_partitions)
    assert subject.snapshot().reassignments == ()


def test_partitions_of_one_topic_may_be_reassigned_in_different_forms(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001], 1: [1002], 2: [1003]})
    subject.cluster.submit_reassignment("t1", {2: [1004]})
    subject.cluster.reassign_by_znode({("t1", 0): [1002]})
    assert subject.snapshot().reassignments == (
        reassignment("t1", {0: (1001, (1001,), (1002,), ()), 2: (1003, (1003,), (1004,), (1003,))}),
    )


def test_a_topic_that_waits_for_its_deletion_does_not_move_and_shows_nothing_to_write(subject: Subject) -> None:
    """Its nodes show the reassignment and its throttles until its last broker returns, perhaps for days.

    Kafka copies nothing any more, and answers that the topic does not exist; so do the views, plans and cancellations.
    """
    cluster, client, admin = subject.cluster, subject.cluster.client, subject.cluster.kafka
    for topic in ("t1", "t2"):
        cluster.add_topic(topic, {0: [1001, 1002]})
        cluster.submit_reassignment(topic, {0: [1001, 1003]})
        cluster.set_config(ConfigResource.topic(topic), {LEADER_REPLICAS: "0:1001"})
        client.create(
            cluster.own.ledger_entry(ConfigResource.topic(topic)), format_ledger_entry(ledger_entry()), makepath=True
        )
    client.ensure_path(f"{admin.topics_to_delete}/t1")
    request = SnapshotRequest(replicas_of=(1001,), partitions=(("t1", 0), ("t2", 0)))
    snapshot = subject.source.fetch_snapshot(request, timeout=TIMEOUT)
    assert (snapshot.topics, snapshot.problems) == (("t2",), ())
    assert ([*snapshot.assignments], snapshot.replicas) == ([("t2", 0)], {1001: {"t2": (0,)}})
    assert [*snapshot.throttles] == [*snapshot.ledger] == [ConfigResource.topic("t2")]
    client.delete(f"{admin.topics_to_delete}/t1")  # delete.topic.enable=false: Kafka drops the request
    assert subject.snapshot().topics == ("t1", "t2") and T1 in subject.snapshot().throttles


# Events.


class EventRecorder:
    """Records the events of a source and measures their delay."""

    def __init__(self, source: ZooKeeperSnapshots) -> None:
        self._arrived = threading.Condition()
        self.reasons: list[str] = []
        self.version = 0
        self.watch = source.watch_snapshots(self._on_event)

    def _on_event(self, event: SnapshotEvent) -> None:
        with self._arrived:
            self.reasons.append(event.reason)
            self.version = event.version
            self._arrived.notify_all()

    def seconds_until(self, words: str, act: Callable[[], None]) -> float:
        with self._arrived:
            self.reasons.clear()
        act()
        acted = time.monotonic()
        with self._arrived:
            assert self._arrived.wait_for(lambda: any(words in r for r in self.reasons), 20), (words, self.reasons)
        return time.monotonic() - acted


def recorder_after_first_read(source: ZooKeeperSnapshots) -> EventRecorder:
    """Record events after the first read of a source. Earlier reassignments are reported as found, not started."""
    eventually(lambda: source._watched_since is not None)
    return EventRecorder(source)


def test_every_change_relevant_to_a_cycle_is_reported_at_once(subject: Subject) -> None:
    cluster, recorder = subject.cluster, recorder_after_first_read(subject.source)
    delays = []
    for number in range(3):
        topic = f"t{number}"
        cluster.add_topic(topic, {0: [1001, 1002]})
        for words, act in (
            (f"reassignment started: [{topic}]", partial(cluster.submit_reassignment, topic, {0: [1003, 1002]})),
            (f"ISR of {topic} changed", partial(cluster.join_isr, topic, 0, 1003)),
            (f"leader of {topic} changed", partial(cluster.move_leader, topic, 0, 1003)),
            (f"reassignment ended: [{topic}]", partial(cluster.finish, topic)),
        ):
            delays.append(recorder.seconds_until(words, act))
    broker = f"{cluster.kafka.broker_ids}/1009"
    delays.append(recorder.seconds_until("brokers registered: [1009]", lambda: cluster.write(broker, b"")))
    delays.append(recorder.seconds_until("brokers gone: [1009]", lambda: cluster.client.delete(broker)))
    assert statistics.median(delays) < 0.3, delays
    assert max(delays) < 2.0, delays


def test_a_bug_in_a_watcher_does_not_end_the_events(subject: Subject) -> None:
    """The thread that follows the cluster ended. No new reassignment was detected until the next interval."""
    failed = threading.Event()

    def fail_once(_: SnapshotEvent) -> None:
        if not failed.is_set():
            failed.set()
            raise KeyError("a bug")

    eventually(lambda: subject.source._watched_since is not None)
    subject.source.watch_snapshots(fail_once)
    recorder = EventRecorder(subject.source)
    broker = f"{subject.cluster.kafka.broker_ids}/1009"
    subject.cluster.write(broker, b"")
    assert failed.wait(30)
    recorder.seconds_until("brokers gone: [1009]", lambda: subject.cluster.client.delete(broker))


def test_a_reassignment_found_at_the_first_read_is_reported(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher of a source that is still in its first read would otherwise miss the event."""
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.submit_reassignment("t1", {0: [1003, 1002]})
    watched, follow = threading.Event(), ZooKeeperSnapshots._follow
    monkeypatch.setattr(ZooKeeperSnapshots, "_follow", lambda self: watched.wait(60) and follow(self))
    recorder = EventRecorder(source := subject.another())
    watched.set()
    eventually(lambda: recorder.reasons == ["reassignment found: [t1]"])
    source.fetch_snapshot(timeout=TIMEOUT)
    assert len(recorder.reasons) == 1


def test_changes_unrelated_to_reassignments_are_not_reported(subject: Subject) -> None:
    recorder = recorder_after_first_read(subject.source)
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.set_config(BROKER, {LEADER_RATE: "5"})
    subject.cluster.delete_topic("t1")
    subject.cluster.add_topic("t2", {0: [1001]})
    recorder.seconds_until("started", lambda: subject.cluster.submit_reassignment("t2", {0: [1002]}))
    assert recorder.reasons == ["reassignment started: [t2]"]


# Edits of our throttles by other parties.


@pytest.fixture
def throttled(subject: Subject) -> EventRecorder:
    """A reassignment with the list and the rate that our writer sets, and a recorder of the events from then on."""
    cluster, recorder = subject.cluster, recorder_after_first_read(subject.source)
    cluster.add_topic("t1", {0: [1001, 1002]})
    recorder.seconds_until("started", lambda: cluster.submit_reassignment("t1", {0: [1003, 1002]}))
    write_as_ours(cluster, BROKER, LEADER_RATE, "5", 1)
    write_as_ours(cluster, T1, LEADER_REPLICAS, "0:1001,0:1002", 1)
    return recorder


def write_as_ours(cluster: Tree, resource: ConfigResource, key: str, value: str, cycle: int) -> None:
    """Write a throttle with its ledger entry in one transaction, as a cycle does."""
    for path in (cluster.kafka.config(resource), cluster.own.ledger_entry(resource)):
        cluster.client.ensure_path(path)
    entry = format_ledger_entry(LedgerEntry({key: LedgerKey(None, value)}, 1, cycle))
    with cluster.client.transaction() as transaction:
        config = encoded({"version": 1, "config": {**cluster.current(resource), key: value}})
        transaction.set_data(cluster.kafka.config(resource), config)
        transaction.set_data(cluster.own.ledger_entry(resource), entry)


def test_an_edit_by_another_party_is_reported_within_two_seconds(subject: Subject, throttled: EventRecorder) -> None:
    """Only the next scheduled cycle noticed it: 214 MB were copied at a throttle of 3.6 MB/s."""
    edit = subject.cluster.set_config_as_user
    for cycle, (resource, key, value, ours) in enumerate(
        [
            (BROKER, LEADER_RATE, None, "5"),
            (BROKER, LEADER_RATE, "900000000", "5"),
            (T1, LEADER_REPLICAS, None, "0:1001,0:1002"),
            (T1, LEADER_REPLICAS, "0:1001", "0:1001,0:1002"),
        ],
        2,
    ):
        reason = f"another party edited the throttles of {resource}"
        assert throttled.seconds_until(reason, partial(edit, resource, key, value)) < 2
        write_as_ours(subject.cluster, resource, key, ours, cycle)
        edit(resource, key, value)  # before the source has seen our write
        eventually(lambda reason=reason: throttled.reasons.count(reason) == 2)  # type: ignore[misc]
        write_as_ours(subject.cluster, resource, key, ours, cycle + 10)


def test_our_own_writes_are_not_reported(subject: Subject, throttled: EventRecorder) -> None:
    for cycle in range(2, 40):
        write_as_ours(subject.cluster, BROKER, LEADER_RATE, str(cycle), cycle)
        write_as_ours(subject.cluster, T1, LEADER_REPLICAS, f"0:1001,0:{cycle}", cycle)
    throttled.seconds_until("ISR of t1 changed", lambda: subject.cluster.join_isr("t1", 0, 1003))
    assert throttled.reasons == ["ISR of t1 changed"]
    subject.cluster.set_config_as_user(BROKER, LEADER_RATE, None)  # nothing is copied any more
    throttled.seconds_until("ended: [t1]", lambda: subject.cluster.finish("t1"))
    assert throttled.reasons == ["reassignment ended: [t1]"]


# Freshness.


def test_a_snapshot_shows_every_earlier_write_of_any_client(subject: Subject) -> None:
    generator = random.Random(1)
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.submit_reassignment("t1", {0: [1003, 1002]})
    leader, rate, version = 1001, "0", 0
    for number in range(200):
        if generator.random() < 0.5:
            leader = generator.choice([1001, 1002, 1003])
            subject.cluster.set_state("t1", 0, leader, [1001, 1002])
        else:
            rate = str(number)
            subject.cluster.set_config(BROKER, {LEADER_RATE: rate})
        written = subject.cluster.client.last_zxid
        snapshot = subject.source.fetch_snapshot(SnapshotRequest(min_version=written), timeout=TIMEOUT)
        assert snapshot.version >= max(written, version)
        assert snapshot.reassignments[0].leaders == (leader,)
        assert snapshot.throttles.get(BROKER, {}).get(LEADER_RATE, "0") == rate
        version = snapshot.version


@pytest.mark.parametrize("seed", range(4))
def test_after_any_sequence_of_changes_the_cache_equals_a_fresh_read(subject: Subject, seed: int) -> None:
    generator, cluster = random.Random(seed), subject.cluster

    def change() -> None:
        topic = f"t{generator.randrange(4)}"
        brokers = generator.sample([1001, 1002, 1003, 1004], 3)
        action = generator.randrange(10)
        with contextlib.suppress(NoNodeError, NodeExistsError):
            if action <= 1 and cluster.read(cluster.kafka.topic(topic)) is None:
                cluster.add_topic(topic, {0: brokers[:2], 1: brokers[1:]})
            elif action == 2:
                cluster.delete_topic(topic)
            elif action <= 5 and cluster.read(cluster.kafka.topic(topic)) is not None:
                cluster.set_topic(topic, {0: brokers, 1: brokers}, {generator.randrange(2): brokers[:1]})
            elif action == 6 and cluster.read(cluster.kafka.topic(topic)) is not None:
                cluster.set_topic(topic, {0: brokers, 1: brokers})
            elif action == 7 and cluster.read(cluster.kafka.topic(topic)) is not None:
                cluster.set_state(topic, generator.randrange(2), brokers[0], brokers)
            elif action == 8:
                if generator.random() < 0.5:
                    cluster.reassign_by_znode({(topic, 0): brokers})
                else:
                    cluster.client.delete(cluster.kafka.reassign_partitions)
            else:
                path = cluster.own.ledger_entry(ConfigResource.topic(topic))
                if generator.random() < 0.5:
                    cluster.write(path, format_ledger_entry(ledger_entry(term=generator.randrange(9), x="1")))
                else:
                    cluster.client.delete(path)

    for _ in range(40):
        for _ in range(generator.randrange(1, 8)):
            change()
        if generator.random() < 0.3:
            content(subject.source)
    cached, fresh = content(subject.source), content(subject.another())
    assert cached == fresh


def test_writes_during_a_bulk_read_are_not_missed(subject: Subject) -> None:
    """Several hundred nodes are read in bulk, and their watches are set only after their content is read."""

    def fetch(source: ZooKeeperSnapshots, read: threading.Event) -> None:
        source.fetch_snapshot(timeout=TIMEOUT)
        read.set()

    cluster, generator = subject.cluster, random.Random(1)
    topics = [ConfigResource.topic(f"t{number}") for number in range(400)]
    for topic in topics:
        cluster.client.create_async(cluster.kafka.config(topic), encoded({"version": 1, "config": {}}))
    rates: dict[ConfigResource, dict[str, str]] = {}
    for _ in range(5):
        source, read = subject.another(), threading.Event()
        reader = threading.Thread(target=partial(fetch, source, read))
        reader.start()
        for number in range(2_000):
            topic = generator.choice(topics)
            path = cluster.kafka.config(topic)
            if generator.random() < 0.2 and rates.pop(topic, {}):
                cluster.client.delete(path)
                cluster.client.create(path, encoded({"version": 1, "config": {}}))
            else:
                rates[topic] = {LEADER_REPLICAS: f"{number}:1001"}
                cluster.set_config(topic, rates[topic])
            if number > 50 and read.is_set():
                break
        reader.join()
        assert source.fetch_snapshot(timeout=TIMEOUT).throttles == rates
    assert subject.snapshot().throttles == rates


def topic_life_cycle(subject: Subject, number: int) -> None:
    """Create, reassign and delete a topic."""
    topic = f"topic-{number}"
    entry = subject.cluster.own.ledger_entry(ConfigResource.topic(topic))
    subject.cluster.add_topic(topic, {0: [1001, 1002]})
    subject.cluster.submit_reassignment(topic, {0: [1003, 1002]})
    subject.cluster.write(entry, format_ledger_entry(ledger_entry(x="1")))
    subject.cluster.set_config(BROKER, {LEADER_RATE: str(number)})
    content(subject.source)
    subject.cluster.join_isr(topic, 0, 1003)
    subject.cluster.client.delete(entry)
    subject.cluster.finish(topic)
    content(subject.source)
    subject.cluster.delete_topic(topic)
    content(subject.source)


def test_the_number_of_watches_does_not_grow(fresh_zookeeper: ZooKeeperServer) -> None:
    """If every read left another watch, the server would run out of memory within weeks."""

    def watches() -> int:
        lines = dict(
            line.split("\t", 1) for line in fresh_zookeeper.four_letter_word("mntr").splitlines() if "\t" in line
        )
        return int(lines["zk_watch_count"])

    with contextlib.ExitStack() as stack:
        subject = Subject(fresh_zookeeper, stack)
        for number in range(3):
            topic_life_cycle(subject, number)
        before = watches()
        for number in range(3, 60):
            topic_life_cycle(subject, number)
        assert before >= 8
        assert watches() == before


# Lost connections.


@pytest.mark.parametrize("frozen_seconds", [0.5, 2.5], ids=["less-than-the-session", "more-than-the-session"])
def test_changes_are_seen_again_after_an_outage(own_zookeeper: ZooKeeperServer, frozen_seconds: float) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack)
        source = subject.another(session_seconds=1.2)
        subject.cluster.add_topic("t1", {0: [1001, 1002]})
        recorder = recorder_after_first_read(source)
        # Report the reassignment before the outage, since everything first seen after it arrives as one event. The
        # event is "started" or "found", depending on the time of the first read.
        recorder.seconds_until(": [t1]", lambda: subject.cluster.submit_reassignment("t1", {0: [1003, 1002]}))
        freeze(own_zookeeper)
        try:
            with pytest.raises(Unavailable):
                source.fetch_snapshot(timeout=timedelta(seconds=0.3))
            time.sleep(frozen_seconds)
        finally:
            own_zookeeper.thaw()
        eventually(lambda: subject.cluster.client.connected)
        recorder.seconds_until("leader of t1 changed", lambda: subject.cluster.move_leader("t1", 0, 1002))
        assert source.fetch_snapshot(timeout=TIMEOUT).reassignments[0].leaders == (1002,)
        subject.cluster.finish("t1")
        assert content(source) == content(subject.another())


def test_changes_during_a_server_restart_are_seen_afterwards(own_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack, zk_prefix="")
        subject.cluster.add_topic("t1", {0: [1001, 1002]})
        before = subject.snapshot()
        recorder = recorder_after_first_read(subject.source)
        own_zookeeper.kill()
        own_zookeeper.start()
        # A new session writes first, perhaps before the source has reconnected.
        late = copy.copy(subject.cluster)
        late.client = stack.enter_context(session(own_zookeeper))
        recorder.seconds_until("reassignment started: [t1]", lambda: late.submit_reassignment("t1", {0: [1003, 1002]}))
        after = subject.snapshot()
        assert after.version > before.version
        assert after.topics == ("t1",)
        late.set_config(BROKER, {LEADER_RATE: "5"})
        assert subject.snapshot().throttles == {BROKER: {LEADER_RATE: "5"}}


# Long reads.


class PartRead:
    """Lets sources read one topic at a time. The first read of reassignments stops after its first topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, large_rest: int = 4) -> None:
        self.go_on, self.parts = threading.Event(), 0
        monkeypatch.setattr(reassignments, "_PARTITIONS_AT_ONCE", 2)
        monkeypatch.setattr(snapshots, "_LARGE_REST", large_rest)
        read_changed = PartitionStates.read_changed

        def read_part(states: PartitionStates, timeout_seconds: float) -> set[str]:
            if self.parts:
                assert self.go_on.wait(20)
            topics = read_changed(states, timeout_seconds)
            self.parts += bool(topics)
            return topics

        monkeypatch.setattr(PartitionStates, "read_changed", read_part)


SHORT = timedelta(seconds=0.2)
FOUR_TOPICS = ("t1", "t2", "t3", "t4")


@pytest.fixture
def four_topics(subject: Subject) -> Subject:
    for topic in FOUR_TOPICS:
        subject.cluster.add_topic(topic, {0: [1001, 1002], 1: [1002, 1001]})
    return subject


def reassign_at_once(subject: Subject) -> None:
    """Reassign four topics of two partitions, so that one read sees all of them."""
    with subject.source._lock:
        for topic in FOUR_TOPICS:
            subject.cluster.submit_reassignment(topic, {0: [1003, 1002], 1: [1003, 1001]})


def test_the_read_of_a_large_start_hands_out_a_part_and_then_the_whole(
    four_topics: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, recorder = four_topics.source, recorder_after_first_read(four_topics.source)
    part_read = PartRead(monkeypatch)
    reassign_at_once(four_topics)
    eventually(lambda: recorder.reasons)
    part = source.fetch_snapshot(SnapshotRequest(recorder.version, accept_partial=True), timeout=TIMEOUT)
    assert (len(part.topics), part.unread_partitions) == (1, 6)
    assert recorder.reasons == [f"reassignment started: [{part.topics[0]}]"]
    assert part.problems[-1].path == four_topics.cluster.kafka.topics and not part.problems[-1].topic
    with pytest.raises(Unavailable):
        source.fetch_snapshot(timeout=SHORT)
    newer, replicas = SnapshotRequest(part.version + 1), SnapshotRequest(replicas_of=[1001])
    for request in (newer, replicas, SnapshotRequest(partitions=[("t1", 0)])):
        with pytest.raises(Unavailable):
            source.fetch_snapshot(replace(request, accept_partial=True), timeout=SHORT)
    part_read.go_on.set()
    rest = " ".join(topic for topic in FOUR_TOPICS if topic not in part.topics)
    eventually(lambda: recorder.reasons[1:] == [f"reassignment started: [{rest}]"])
    whole = source.fetch_snapshot(SnapshotRequest(accept_partial=True), timeout=TIMEOUT)
    assert (whole.topics, whole.unread_partitions, whole.problems) == (FOUR_TOPICS, 0, ())
    assert part.reassignments[0] in whole.reassignments and content(source) == content(four_topics.another())


def test_states_that_were_read_before_are_never_handed_out_old(
    four_topics: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost connection every state is read again, and any leader may have changed."""
    reassign_at_once(four_topics)
    assert four_topics.snapshot().topics == FOUR_TOPICS
    source, recorder = four_topics.source, recorder_after_first_read(four_topics.source)
    part_read = PartRead(monkeypatch)
    source._states._state_changed(KazooState.CONNECTED)
    eventually(lambda: part_read.parts)
    with pytest.raises(Unavailable):
        source.fetch_snapshot(SnapshotRequest(accept_partial=True), timeout=SHORT)
    part_read.go_on.set()
    assert source.fetch_snapshot(timeout=TIMEOUT).topics == FOUR_TOPICS
    assert not any("ended" in reason for reason in recorder.reasons)


def test_a_short_read_hands_out_no_part(four_topics: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorder_after_first_read(four_topics.source)
    part_read = PartRead(monkeypatch, large_rest=7)
    reassign_at_once(four_topics)
    eventually(lambda: part_read.parts)
    part_read.go_on.set()
    eventually(lambda: recorder.reasons == ["reassignment started: [t1 t2 t3 t4]"])


# Unreadable nodes.

GARBAGE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b'{"config":null}',
    b'{"version":1,"config":{"x":1}}',
    b'{"partitions":{"0":"12"}}',
    b'{"partitions":null}',
    b'{"leader":"1001","isr":[1]}',
    b'{"leader":Infinity,"isr":[Infinity]}',
    b'{"keys":{"x":{"before":1,"written":2}},"term":1,"cycle":1}',
    b"\xff\xfe",
    b"[" * 50_000,
    b"9" * 5_000,
    b'{"version":1,"partitions":[{"topic":"t1","par',
]


@pytest.fixture
def moving(subject: Subject) -> Subject:
    """Topics t1 and t2 are in reassignment, two brokers have rates, and one has a ledger entry."""
    for topic in ("t1", "t2"):
        subject.cluster.add_topic(topic, {0: [1001, 1002]})
    subject.cluster.submit_reassignment("t1", {0: [1003, 1002]})
    subject.cluster.reassign_by_znode({("t2", 0): [1003, 1002]})
    subject.cluster.set_config(BROKER, {LEADER_RATE: "5"})
    subject.cluster.set_config(ConfigResource.broker(1002), {FOLLOWER_RATE: "6"})
    subject.cluster.write(subject.cluster.own.ledger_entry(BROKER), format_ledger_entry(ledger_entry(x="5")))
    return subject


@pytest.mark.parametrize("part", ["reassignments", "topic", "state", "config", "ledger"])
def test_an_unreadable_node_is_reported_and_keeps_its_last_value(moving: Subject, part: str) -> None:
    cluster, kafka = moving.cluster, moving.cluster.kafka
    path = {
        "reassignments": kafka.reassign_partitions,
        "topic": kafka.topic("t1"),
        "state": kafka.state("t1", 0),
        "config": kafka.config(BROKER),
        "ledger": cluster.own.ledger_entry(BROKER),
    }[part]
    whole, before = cluster.read(path), content(moving.source)
    assert whole is not None and before.topics == ("t1", "t2") and before.problems == ()
    for garbage in GARBAGE:
        cluster.write(path, garbage)
        damaged = content(moving.source)
        if part in ("config", "ledger"):
            assert damaged.problems == ()
            assert damaged.unreadable_configs.keys() == {BROKER}
            problem = damaged.unreadable_configs[BROKER]
        else:
            assert damaged.unreadable_configs == {}
            (problem,) = damaged.problems
        assert problem.path == path
        assert "repair" in problem.reason
        assert replace(damaged, problems=(), unreadable_configs={}) == before
        rate = str(len(garbage) + 1)
        cluster.set_config(ConfigResource.broker(1002), {FOLLOWER_RATE: rate})
        assert moving.snapshot().throttles[ConfigResource.broker(1002)] == {FOLLOWER_RATE: rate}
        cluster.set_config(ConfigResource.broker(1002), {FOLLOWER_RATE: "6"})
    cluster.write(path, whole)
    assert content(moving.source) == before


def test_a_source_that_starts_with_unreadable_nodes_reads_the_others(moving: Subject) -> None:
    cluster, kafka = moving.cluster, moving.cluster.kafka
    broken = [kafka.topic("t1"), kafka.config(BROKER), cluster.own.ledger_entry(T1)]
    for path in broken:
        cluster.write(path, b'{"config": null}')
    started = content(moving.another())
    assert started.topics == ("t2",)
    assert [p.path for p in started.problems] == [kafka.topic("t1")]
    assert {p.path for p in started.unreadable_configs.values()} == set(broken[1:])
    assert started.throttles == {ConfigResource.broker(1002): {FOLLOWER_RATE: "6"}}


@pytest.mark.parametrize("name", ["..", "a/b", "\ud800"])
def test_reassignments_are_reported_after_an_impossible_topic_name(subject: Subject, name: str) -> None:
    """The state of `..` has no valid path in ZooKeeper. This once ended the watching thread silently."""
    cluster = subject.cluster
    for topic in ("t1", "t2"):
        cluster.add_topic(topic, {0: [1001, 1002]})
    recorder = recorder_after_first_read(subject.source)
    submit = partial(cluster.reassign_by_znode, {(name, 0): [1003], ("t1", 0): [1003, 1002]})
    recorder.seconds_until("reassignment started: [t1]", submit)
    cluster.client.delete(cluster.kafka.reassign_partitions)
    recorder.seconds_until("reassignment started: [t2]", partial(cluster.submit_reassignment, "t2", {0: [1003, 1002]}))
    assert subject.snapshot().topics == ("t2",)


def test_an_unexpected_error_does_not_end_the_watching_of_the_cluster(subject: Subject) -> None:
    class Failing(ProgressReader):
        failures = 0

        def follow(self, *reassignments: Any) -> None:
            self.failures += 1
            if self.failures == 1:
                raise ZeroDivisionError
            super().follow(*reassignments)

    failing = Failing(MemoryCluster())
    subject.stack.callback(failing.close)
    recorder = EventRecorder(subject.another(progress=failing))
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    eventually(lambda: failing.failures > 1)
    start = partial(subject.cluster.submit_reassignment, "t1", {0: [1003, 1002]})
    recorder.seconds_until("[t1]", start)


def test_a_removed_unreadable_node_is_no_longer_a_problem(moving: Subject) -> None:
    cluster = moving.cluster
    cluster.write(cluster.kafka.reassign_partitions, b"{")
    cluster.write(cluster.kafka.config(T1), b"{")
    cluster.write(cluster.kafka.topic("t1"), b"{")
    assert len(content(moving.source).problems) == 2
    cluster.client.delete(cluster.kafka.reassign_partitions)
    cluster.delete_topic("t1")
    left = content(moving.source)
    assert (left.problems, left.unreadable_configs, left.topics) == ((), {}, ())


def test_default_throttles_are_separate_and_keep_their_last_value_while_unreadable(subject: Subject) -> None:
    default = subject.cluster.kafka.default_broker_config
    assert subject.snapshot().default_throttles == {}
    subject.cluster.write(default, encoded({"version": 1, "config": {LEADER_RATE: "1", "log.cleaner.threads": "2"}}))
    subject.cluster.set_config(BROKER, {FOLLOWER_RATE: "5"})
    snapshot = subject.snapshot()
    assert snapshot.default_throttles == {LEADER_RATE: "1"}
    assert snapshot.throttles == {BROKER: {FOLLOWER_RATE: "5"}}
    subject.cluster.write(default, b"{")
    unread = subject.snapshot()
    assert (unread.default_throttles, unread.problems) == ({LEADER_RATE: "1"}, ())
    subject.cluster.write(default, encoded({"version": 1, "config": {FOLLOWER_RATE: "3"}}))
    assert subject.snapshot().default_throttles == {FOLLOWER_RATE: "3"}
    assert subject.another().fetch_snapshot(timeout=TIMEOUT).default_throttles == {FOLLOWER_RATE: "3"}
    subject.cluster.client.delete(default)
    assert subject.snapshot().default_throttles == {}


def test_nodes_with_invalid_names_are_ignored(subject: Subject) -> None:
    configs = f"{subject.cluster.kafka.configs}/brokers"
    for name in ("01001", "²", "x"):
        subject.cluster.write(f"{configs}/{name}", encoded({"version": 1, "config": {LEADER_RATE: "1"}}))
    subject.cluster.write(f"{subject.cluster.kafka.broker_ids}/²", b"")
    snapshot = subject.snapshot()
    assert (snapshot.throttles, snapshot.problems, snapshot.unreadable_configs) == ({}, (), {})
    assert snapshot.brokers == {1001, 1002, 1003, 1004}


def test_snapshot_separates_throttled_lists_from_other_topic_configs(subject: Subject) -> None:
    subject.cluster.set_config(T1, {LEADER_REPLICAS: "0:1001", "retention.ms": "1"})
    assert subject.snapshot().throttles == {T1: {LEADER_REPLICAS: "0:1001"}}

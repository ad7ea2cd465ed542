"""Snapshots of a cluster in a real ZooKeeper: complete, fresh, and honest about what cannot be read."""

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

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError

from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.adapters.zookeeper.offer import Offer
from autothrottle.adapters.zookeeper.snapshots import ZooKeeperSnapshots
from autothrottle.core.configs import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS, ConfigResource
from autothrottle.core.errors import Unavailable
from autothrottle.core.topology import Snapshot
from autothrottle.lab.zookeeper import ZooKeeperServer
from autothrottle.ports.cluster import SnapshotEvent
from tests.adapters.contract_snapshot_source import SnapshotSourceContract
from tests.builders import eventually, ledger_entry, reassignment
from tests.system.zookeeper_tree import Tree, encoded, freeze, session

TIMEOUT = timedelta(seconds=20)
BROKER = ConfigResource.broker(1001)
T1 = ConfigResource.topic("t1")


class Subject:
    """A source under test; the cluster is written through another session, as in life."""

    def __init__(self, server: ZooKeeperServer, stack: contextlib.ExitStack, zk_prefix: str | None = None) -> None:
        self.cluster = Tree(stack.enter_context(session(server)), zk_prefix)
        self.stack, self.server = stack, server
        self.source = self.another()

    def another(
        self, session_seconds: float = 10.0, many_states: int = 10_000, offer: Offer | None = None
    ) -> ZooKeeperSnapshots:
        client = self.stack.enter_context(session(self.server, session_seconds))
        source = ZooKeeperSnapshots(client, self.cluster.kafka, self.cluster.own, None, many_states, offer)
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
    """All that a snapshot shows but for its version."""
    return replace(source.fetch_snapshot(replicas_of=range(1001, 1005), timeout=TIMEOUT), version=0)


# Both forms of reassignments.


def test_a_move_in_both_forms_is_counted_once(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1001]})
    subject.cluster.reassign_by_znode({("t1", 0): [1003, 1002]})
    subject.cluster.start_reassignment("t1", {0: [1003, 1002]})
    assert subject.snapshot().reassignments == (reassignment("t1", {0: (1001, (1001, 1002), (1003,), (1001,))}),)


def test_a_move_that_only_the_old_node_names_adds_what_is_not_in_sync(subject: Subject) -> None:
    """Kafka before 2.4 never writes adding_replicas, and no controller does so at the moment of the start."""
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.reassign_by_znode({("t1", 0): [1002, 1003, 1004]})
    assert subject.snapshot().reassignments == (reassignment("t1", {0: (1001, (1001, 1002), (1003, 1004), ())}),)
    subject.cluster.set_topic("t1", {0: [1001, 1002, 1003, 1004]})
    subject.cluster.join_isr("t1", 0, 1003)
    (moving,) = subject.snapshot().reassignments
    assert [pending for *_, pending in moving.rows()] == [(1004,)]
    subject.cluster.client.delete(subject.cluster.kafka.reassign_partitions)
    assert subject.snapshot().reassignments == ()


def test_partitions_of_one_topic_may_move_in_different_forms(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001], 1: [1002], 2: [1003]})
    subject.cluster.start_reassignment("t1", {2: [1004]})
    subject.cluster.reassign_by_znode({("t1", 0): [1002]})
    assert subject.snapshot().reassignments == (
        reassignment("t1", {0: (1001, (1001,), (1002,), ()), 2: (1003, (1003,), (1004,), (1003,))}),
    )


# Events.


class Heard:
    """The events of a source, and when each came."""

    def __init__(self, source: ZooKeeperSnapshots) -> None:
        self._arrived = threading.Condition()
        self.reasons: list[str] = []
        self.version = 0
        self.watch = source.watch_snapshots(self._hear)

    def _hear(self, event: SnapshotEvent) -> None:
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


def heard_from_now_on(source: ZooKeeperSnapshots) -> Heard:
    """What a source tells after its first look: what moved before that was found, and did not start."""
    eventually(lambda: source._watched_since is not None)
    return Heard(source)


def test_whatever_a_cycle_should_see_is_told_at_once(subject: Subject) -> None:
    cluster, heard = subject.cluster, heard_from_now_on(subject.source)
    took = []
    for number in range(3):
        topic = f"t{number}"
        cluster.add_topic(topic, {0: [1001, 1002]})
        for words, act in (
            (f"reassignment started: [{topic}]", partial(cluster.start_reassignment, topic, {0: [1003, 1002]})),
            (f"ISR of {topic} changed", partial(cluster.join_isr, topic, 0, 1003)),
            (f"leader of {topic} changed", partial(cluster.move_leader, topic, 0, 1003)),
            (f"reassignment ended: [{topic}]", partial(cluster.finish, topic)),
        ):
            took.append(heard.seconds_until(words, act))
    took.append(
        heard.seconds_until(
            "brokers registered: [1009]", lambda: cluster.write(f"{cluster.kafka.broker_ids}/1009", b"")
        )
    )
    assert statistics.median(took) < 0.3, took
    assert max(took) < 2.0, took


def test_a_start_that_is_told_before_its_states_are_read_is_told_once(subject: Subject) -> None:
    source, cluster = subject.another(many_states=2), subject.cluster
    heard = heard_from_now_on(source)
    for topic in ("t1", "t2"):
        cluster.add_topic(topic, {0: [1001, 1002], 1: [1002, 1001]})
    source.fetch_snapshot(timeout=TIMEOUT)
    reasons = []
    for topic in ("t1", "t2"):
        target = {0: [1003, 1002], 1: [1003, 1001]}
        heard.seconds_until(f"reassignment started: [{topic}]", partial(cluster.start_reassignment, topic, target))
        source.fetch_snapshot(timeout=TIMEOUT)  # comes after the reading that the start was told in
        reasons += heard.reasons
        heard.seconds_until(f"ISR of {topic} changed", partial(cluster.join_isr, topic, 0, 1003))
        reasons += heard.reasons
    assert [r for r in dict.fromkeys(reasons) if "started" in r] == [
        "reassignment started: [t1]",
        "reassignment started: [t2]",
    ]
    assert sum("reassignment started: [t1]" in r for r in reasons) == 1
    assert content(source) == content(subject.source)


def patient() -> Offer:
    """What is offered is offered for as long as a test takes."""
    return Offer(to_take_seconds=60, to_return_seconds=60)


def begin(subject: Subject, heard: Heard, topic: str) -> None:
    """Let a topic of two partitions begin to move, one of whose replicas was behind."""
    start = partial(subject.cluster.start_reassignment, topic, {0: [1001, 1003], 1: [1003, 1002]})
    heard.seconds_until(f"reassignment started: [{topic}]", start)


def test_what_begins_to_move_may_be_presumed_until_its_states_are_read(subject: Subject) -> None:
    source, cluster = subject.another(many_states=2, offer=patient()), subject.cluster
    heard = heard_from_now_on(source)
    for topic in ("t1", "t2"):
        cluster.add_topic(topic, {0: [1001, 1002], 1: [1002, 1001]})
        cluster.move_leader(topic, 0, 1002)
        cluster.set_state(topic, 1, 1002, [1002])
    settled = source.fetch_snapshot(may_presume=True, timeout=TIMEOUT)
    assert (settled.reassignments, settled.presumed) == ((), frozenset())
    begin(subject, heard, "t1")
    early = source.fetch_snapshot(min_version=heard.version, replicas_of=[1002], may_presume=True, timeout=TIMEOUT)
    (move,) = early.reassignments
    assert (early.presumed, early.replicas[1002]["t1"]) == (frozenset({"t1"}), (0, 1))
    assert (move.leaders, move.isr) == ((1001, 1002), ((1001, 1002), (1002, 1001))), "as their replicas stood"
    assert (move.adding_replicas, move.removing_replicas) == (((1003,), (1003,)), ((1002,), (1001,)))
    begin(subject, heard, "t2")
    both = source.fetch_snapshot(min_version=heard.version, may_presume=True, timeout=TIMEOUT)
    assert (both.topics, both.presumed) == (("t1", "t2"), frozenset({"t1", "t2"}))
    assert both.reassignments[0] is move, "what follows from it is not worked out again"
    whole = source.fetch_snapshot(timeout=TIMEOUT)
    assert whole.presumed == frozenset()
    assert {(m.leaders, m.isr) for m in whole.reassignments} == {((1002, 1002), ((1001, 1002), (1002,)))}
    assert content(source) == content(subject.source)


def test_what_was_presumed_rightly_stays_the_same_object(subject: Subject) -> None:
    source, cluster = subject.another(many_states=2, offer=patient()), subject.cluster
    heard = heard_from_now_on(source)
    cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1001]})
    source.fetch_snapshot(timeout=TIMEOUT)
    begin(subject, heard, "t1")
    early = source.fetch_snapshot(min_version=heard.version, may_presume=True, timeout=TIMEOUT)
    whole = source.fetch_snapshot(timeout=TIMEOUT)
    assert early.presumed and not whole.presumed
    assert whole.reassignments[0] is early.reassignments[0]


def test_what_only_the_old_node_names_may_be_presumed_too(subject: Subject) -> None:
    source, cluster = subject.another(many_states=2, offer=patient()), subject.cluster
    heard = heard_from_now_on(source)
    cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1001]})
    source.fetch_snapshot(timeout=TIMEOUT)
    targets = {("t1", 0): [1003, 1001], ("t1", 1): [1003, 1002]}
    heard.seconds_until("reassignment started: [t1]", partial(cluster.reassign_by_znode, targets))
    early = source.fetch_snapshot(min_version=heard.version, may_presume=True, timeout=TIMEOUT)
    (move,) = early.reassignments
    assert early.presumed == {"t1"}
    assert (move.leaders, move.isr) == ((1001, 1002), ((1001, 1002), (1002, 1001)))
    assert move.adding_replicas == ((1003,), (1003,))
    assert source.fetch_snapshot(timeout=TIMEOUT).reassignments[0] is move


def test_what_moves_at_the_first_look_is_not_presumed(subject: Subject) -> None:
    """It may have moved for hours, and be in sync where it is copied to."""
    subject.cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1001]})
    subject.cluster.start_reassignment("t1", {0: [1003, 1002], 1: [1003, 1001]})
    source = subject.another(many_states=2, offer=patient())
    assert source.fetch_snapshot(may_presume=True, timeout=TIMEOUT).presumed == frozenset()
    assert content(source) == content(subject.source)


def test_nobody_who_wants_the_whole_waits_for_those_who_do_not(subject: Subject) -> None:
    source, cluster = subject.another(many_states=2, offer=patient()), subject.cluster
    heard = heard_from_now_on(source)
    cluster.add_topic("t1", {0: [1001, 1002], 1: [1002, 1001]})
    source.fetch_snapshot(timeout=TIMEOUT)
    begin(subject, heard, "t1")
    assert source.fetch_snapshot(min_version=heard.version, timeout=TIMEOUT).presumed == frozenset()
    assert not list(source.moves_so_far(TIMEOUT))


def test_what_moves_already_at_the_first_look_is_told_too(subject: Subject) -> None:
    """Who watches a source that still reads the cluster for the first time would wait for its event in vain."""
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.start_reassignment("t1", {0: [1003, 1002]})
    heard = Heard(source := subject.another())
    eventually(lambda: heard.reasons == ["reassignment found: [t1]"])
    source.fetch_snapshot(timeout=TIMEOUT)
    assert len(heard.reasons) == 1


def test_what_does_not_concern_a_move_is_not_told(subject: Subject) -> None:
    heard = heard_from_now_on(subject.source)
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.set_config(BROKER, {LEADER_RATE: "5"})
    subject.cluster.delete_topic("t1")
    subject.cluster.add_topic("t2", {0: [1001]})
    heard.seconds_until("started", lambda: subject.cluster.start_reassignment("t2", {0: [1002]}))
    assert heard.reasons == ["reassignment started: [t2]"]


# Freshness.


def test_a_snapshot_after_anybodys_write_shows_it(subject: Subject) -> None:
    dice = random.Random(1)
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.cluster.start_reassignment("t1", {0: [1003, 1002]})
    leader, rate, version = 1001, "0", 0
    for number in range(200):
        if dice.random() < 0.5:
            leader = dice.choice([1001, 1002, 1003])
            subject.cluster.set_state("t1", 0, leader, [1001, 1002])
        else:
            rate = str(number)
            subject.cluster.set_config(BROKER, {LEADER_RATE: rate})
        written = subject.cluster.client.last_zxid
        snapshot = subject.source.fetch_snapshot(min_version=written, timeout=TIMEOUT)
        assert snapshot.version >= max(written, version)
        assert snapshot.reassignments[0].leaders == (leader,)
        assert snapshot.throttles.get(BROKER, {}).get(LEADER_RATE, "0") == rate
        version = snapshot.version


@pytest.mark.parametrize("seed", range(4))
def test_after_any_sequence_of_changes_the_copy_equals_a_fresh_reading(subject: Subject, seed: int) -> None:
    dice, cluster = random.Random(seed), subject.cluster

    def change() -> None:
        topic = f"t{dice.randrange(4)}"
        brokers = dice.sample([1001, 1002, 1003, 1004], 3)
        deed = dice.randrange(10)
        with contextlib.suppress(NoNodeError, NodeExistsError):
            if deed <= 1 and cluster.read(cluster.kafka.topic(topic)) is None:
                cluster.add_topic(topic, {0: brokers[:2], 1: brokers[1:]})
            elif deed == 2:
                cluster.delete_topic(topic)
            elif deed <= 5 and cluster.read(cluster.kafka.topic(topic)) is not None:
                cluster.set_topic(topic, {0: brokers, 1: brokers}, {dice.randrange(2): brokers[:1]})
            elif deed == 6 and cluster.read(cluster.kafka.topic(topic)) is not None:
                cluster.set_topic(topic, {0: brokers, 1: brokers})
            elif deed == 7 and cluster.read(cluster.kafka.topic(topic)) is not None:
                cluster.set_state(topic, dice.randrange(2), brokers[0], brokers)
            elif deed == 8:
                if dice.random() < 0.5:
                    cluster.reassign_by_znode({(topic, 0): brokers})
                else:
                    cluster.client.delete(cluster.kafka.reassign_partitions)
            else:
                path = cluster.own.ledger_entry(ConfigResource.topic(topic))
                if dice.random() < 0.5:
                    cluster.write(path, format_ledger_entry(ledger_entry(term=dice.randrange(9), x="1")))
                else:
                    cluster.client.delete(path)

    for _ in range(40):
        for _ in range(dice.randrange(1, 8)):
            change()
        if dice.random() < 0.3:
            content(subject.source)
    copied, fresh = content(subject.source), content(subject.another())
    assert copied == fresh


def test_what_is_written_while_many_nodes_are_read_at_once_is_not_missed(subject: Subject) -> None:
    """From a few hundred nodes on they are read in bulk, and their watches stand only after their content is known."""

    def fetch(source: ZooKeeperSnapshots, read: threading.Event) -> None:
        source.fetch_snapshot(timeout=TIMEOUT)
        read.set()

    cluster, dice = subject.cluster, random.Random(1)
    topics = [ConfigResource.topic(f"t{number}") for number in range(400)]
    for topic in topics:
        cluster.client.create_async(cluster.kafka.config(topic), encoded({"version": 1, "config": {}}))
    rates: dict[ConfigResource, dict[str, str]] = {}
    for _ in range(5):
        source, read = subject.another(), threading.Event()
        reader = threading.Thread(target=partial(fetch, source, read))
        reader.start()
        for number in range(2_000):
            topic = dice.choice(topics)
            path = cluster.kafka.config(topic)
            if dice.random() < 0.2 and rates.pop(topic, {}):
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


def turn(subject: Subject, number: int) -> None:
    """A topic comes, moves and goes."""
    topic = f"topic-{number}"
    entry = subject.cluster.own.ledger_entry(ConfigResource.topic(topic))
    subject.cluster.add_topic(topic, {0: [1001, 1002]})
    subject.cluster.start_reassignment(topic, {0: [1003, 1002]})
    subject.cluster.write(entry, format_ledger_entry(ledger_entry(x="1")))
    subject.cluster.set_config(BROKER, {LEADER_RATE: str(number)})
    content(subject.source)
    subject.cluster.join_isr(topic, 0, 1003)
    subject.cluster.client.delete(entry)
    subject.cluster.finish(topic)
    content(subject.source)
    subject.cluster.delete_topic(topic)
    content(subject.source)


def test_watches_do_not_pile_up(fresh_zookeeper: ZooKeeperServer) -> None:
    """Every reading that left another watch would fill the server's memory in weeks."""

    def watches() -> int:
        lines = dict(line.split("\t", 1) for line in fresh_zookeeper.say("mntr").splitlines() if "\t" in line)
        return int(lines["zk_watch_count"])

    with contextlib.ExitStack() as stack:
        subject = Subject(fresh_zookeeper, stack)
        for number in range(3):
            turn(subject, number)
        before = watches()
        for number in range(3, 60):
            turn(subject, number)
        assert before >= 8
        assert watches() == before


# Lost connections.


@pytest.mark.parametrize("frozen_seconds", [0.5, 2.5], ids=["less-than-the-session", "more-than-the-session"])
def test_after_the_server_was_silent_changes_are_seen_again(
    own_zookeeper: ZooKeeperServer, frozen_seconds: float
) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack)
        source = subject.another(session_seconds=1.2)
        subject.cluster.add_topic("t1", {0: [1001, 1002]})
        heard = heard_from_now_on(source)
        # Announced before the silence: what is first seen after it comes as one event, whatever else changed. It
        # started, or was found: the source may have its first look before or after it.
        heard.seconds_until(": [t1]", lambda: subject.cluster.start_reassignment("t1", {0: [1003, 1002]}))
        freeze(own_zookeeper)
        try:
            with pytest.raises(Unavailable):
                source.fetch_snapshot(timeout=timedelta(seconds=0.3))
            time.sleep(frozen_seconds)
        finally:
            own_zookeeper.thaw()
        eventually(lambda: subject.cluster.client.connected)
        heard.seconds_until("leader of t1 changed", lambda: subject.cluster.move_leader("t1", 0, 1002))
        assert source.fetch_snapshot(timeout=TIMEOUT).reassignments[0].leaders == (1002,)
        subject.cluster.finish("t1")
        assert content(source) == content(subject.another())


def test_what_changed_while_the_server_was_away_is_seen_when_it_is_back(own_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack, zk_prefix="")
        subject.cluster.add_topic("t1", {0: [1001, 1002]})
        before = subject.snapshot()
        heard = heard_from_now_on(subject.source)
        own_zookeeper.kill()
        own_zookeeper.start()
        # A session of its own is the first to write: the source may not be back yet.
        late = copy.copy(subject.cluster)
        late.client = stack.enter_context(session(own_zookeeper))
        heard.seconds_until("reassignment started: [t1]", lambda: late.start_reassignment("t1", {0: [1003, 1002]}))
        after = subject.snapshot()
        assert after.version > before.version
        assert after.topics == ("t1",)
        late.set_config(BROKER, {LEADER_RATE: "5"})
        assert subject.snapshot().throttles == {BROKER: {LEADER_RATE: "5"}}


# What cannot be read.

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
    """Topics t1 and t2 move, brokers have rates, and the ledger knows of one."""
    for topic in ("t1", "t2"):
        subject.cluster.add_topic(topic, {0: [1001, 1002]})
    subject.cluster.start_reassignment("t1", {0: [1003, 1002]})
    subject.cluster.reassign_by_znode({("t2", 0): [1003, 1002]})
    subject.cluster.set_config(BROKER, {LEADER_RATE: "5"})
    subject.cluster.set_config(ConfigResource.broker(1002), {FOLLOWER_RATE: "6"})
    subject.cluster.write(subject.cluster.own.ledger_entry(BROKER), format_ledger_entry(ledger_entry(x="5")))
    return subject


@pytest.mark.parametrize("part", ["reassignments", "topic", "state", "config", "ledger"])
def test_what_cannot_be_read_is_named_and_stays_as_it_was_last_read(moving: Subject, part: str) -> None:
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


def test_a_source_that_starts_among_garbage_reads_the_rest(moving: Subject) -> None:
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
def test_after_a_name_that_no_topic_can_have_it_is_told_what_begins_to_move(subject: Subject, name: str) -> None:
    """The state of `..` has no path in ZooKeeper: that ended the thread that follows the cluster, in silence."""
    cluster = subject.cluster
    for topic in ("t1", "t2"):
        cluster.add_topic(topic, {0: [1001, 1002]})
    heard = heard_from_now_on(subject.source)
    listed = partial(cluster.reassign_by_znode, {(name, 0): [1003], ("t1", 0): [1003, 1002]})
    heard.seconds_until("reassignment started: [t1]", listed)
    cluster.client.delete(cluster.kafka.reassign_partitions)
    heard.seconds_until("reassignment started: [t2]", partial(cluster.start_reassignment, "t2", {0: [1003, 1002]}))
    assert subject.snapshot().topics == ("t2",)


def test_what_nobody_expected_does_not_end_the_following_of_the_cluster(subject: Subject) -> None:
    class Failing(Offer):
        failures = 0

        def withdraw(self) -> None:
            self.failures += 1
            if self.failures == 1:
                raise ZeroDivisionError

    failing = Failing()
    heard = Heard(subject.another(offer=failing))
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    eventually(lambda: failing.failures > 1)
    start = partial(subject.cluster.start_reassignment, "t1", {0: [1003, 1002]})
    heard.seconds_until("[t1]", start)


def test_a_node_that_is_broken_and_then_removed_is_no_problem_any_more(moving: Subject) -> None:
    cluster = moving.cluster
    cluster.write(cluster.kafka.reassign_partitions, b"{")
    cluster.write(cluster.kafka.config(T1), b"{")
    cluster.write(cluster.kafka.topic("t1"), b"{")
    assert len(content(moving.source).problems) == 2
    cluster.client.delete(cluster.kafka.reassign_partitions)
    cluster.delete_topic("t1")
    left = content(moving.source)
    assert (left.problems, left.unreadable_configs, left.topics) == ((), {}, ())


def test_the_brokers_default_throttles_are_seen_apart_and_kept_while_they_cannot_be_read(subject: Subject) -> None:
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


def test_strange_names_are_not_ours_to_read(subject: Subject) -> None:
    configs = f"{subject.cluster.kafka.configs}/brokers"
    for name in ("01001", "²", "x"):
        subject.cluster.write(f"{configs}/{name}", encoded({"version": 1, "config": {LEADER_RATE: "1"}}))
    subject.cluster.write(f"{subject.cluster.kafka.broker_ids}/²", b"")
    snapshot = subject.snapshot()
    assert (snapshot.throttles, snapshot.problems, snapshot.unreadable_configs) == ({}, (), {})
    assert snapshot.brokers == {1001, 1002, 1003, 1004}


def test_a_topics_lists_and_its_other_configs_are_told_apart(subject: Subject) -> None:
    subject.cluster.set_config(T1, {LEADER_REPLICAS: "0:1001", "retention.ms": "1"})
    assert subject.snapshot().throttles == {T1: {LEADER_REPLICAS: "0:1001"}}

"""Snapshots by the admin API over a cluster in memory: what a real one does too rarely to wait for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.kafka_admin.edits import edits
from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.changes import Change, Edit
from autothrottle.core.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    RATE_KEYS,
    ConfigResource,
    ReplicaRole,
)
from autothrottle.core.errors import Incomplete, Invalid, Unavailable
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.plan import standing_rate
from autothrottle.core.topology import Assignment, Problem, Snapshot
from autothrottle.ports.cluster import SnapshotEvent, SnapshotSource
from tests.adapters.contract_snapshot_source import SnapshotSourceContract
from tests.adapters.kafka_in_memory import MemoryKafka, MemoryLedger
from tests.builders import eventually, ledger_entry, reassignment

TIMEOUT = timedelta(seconds=30)
POLL = timedelta(milliseconds=20)
BROKERS = (1001, 1002, 1003, 1004)
BROKER, T1 = ConfigResource.broker(1001), ConfigResource.topic("t1")
RATE = {LEADER_RATE: "5"}


class Subject:
    """A source, its cluster, and what was told since the last time that one asked."""

    def __init__(self, poll: timedelta = POLL, reaches_controllers: bool = False) -> None:
        self.cluster = MemoryCluster(brokers=BROKERS)
        self.kafka, self.ledger = MemoryKafka(self.cluster), MemoryLedger(self.cluster)
        self._changed = threading.Condition()
        self.events: list[SnapshotEvent] = []
        self.admin = AdminSnapshots(self.kafka, self.ledger, poll, reaches_controllers)
        self.source: SnapshotSource = self.admin
        self.admin.watch_snapshots(self._heard)

    def _heard(self, event: SnapshotEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def snapshot(self) -> Snapshot:
        return self.source.fetch_snapshot(timeout=TIMEOUT)

    def told(self, words: str, act: Callable[[], object] = lambda: None) -> SnapshotEvent:
        """What is told after a deed."""
        with self._changed:
            self.events.clear()
        act()
        with self._changed:
            assert self._changed.wait_for(lambda: any(words in e.reason for e in self.events), 30), self.events
            return next(e for e in self.events if words in e.reason)

    def reasons_after_polls(self, polls: int = 5) -> list[str]:
        """What was told, after the cluster was looked at so many times more."""
        # One more: the first may be on its way already.
        self.await_calls("reassignments", polls + 1)
        return [e.reason for e in self.events]

    def await_calls(self, method: str, more: int) -> None:
        before = self.kafka.calls[method]
        eventually(lambda: self.kafka.calls[method] >= before + more, 30)

    def begin_move(self) -> None:
        """1001 leads t1-0 and 1004 replaces 1002; the lists and rates are ours."""
        self.cluster.add_topic("t1", {0: [1001, 1002]})
        self.told("[t1]", lambda: self.cluster.start_reassignment("t1", {0: [1001, 1004]}))

    def write(self, resource: ConfigResource, key: str, value: str | None, owned: str = "") -> None:
        """Write a throttle and its ledger entry."""
        standing = self.cluster.configs.get(resource, {}).get(key)
        entry = self.cluster.ledger.get(resource)
        keys = {**(entry.keys if entry else {})}
        keys.pop(key, None)
        if value is not None:
            keys[key] = LedgerKey(None, value, frozenset(filter(None, owned.split(","))))
        change = Change(resource, (Edit(key, standing, value),), LedgerEntry(keys, 1) if keys else None)
        (outcome,) = self.cluster.apply(self.cluster.electorate.fence, [change], TIMEOUT)
        assert outcome.status.value == "applied", outcome


@contextlib.contextmanager
def subjects(poll: timedelta = POLL, reaches_controllers: bool = False) -> Iterator[Subject]:
    subject = Subject(poll, reaches_controllers)
    try:
        yield subject
    finally:
        subject.admin.close()


@pytest.fixture
def subject() -> Iterator[Subject]:
    with subjects() as made:
        yield made


class TestAdminSnapshots(SnapshotSourceContract):
    @pytest.fixture
    def subject(self) -> Iterator[Subject]:
        with subjects() as made:
            yield made


# What stands.


def test_d14_a_rate_that_was_removed_is_no_previous_rate_of_the_next_move(subject: Subject) -> None:
    """The original's native mode remembered the rate that it had removed, and went on to subtract it."""
    subject.begin_move()
    subject.write(BROKER, LEADER_RATE, "5000000")
    assert standing_rate(subject.snapshot(), 1001, ReplicaRole.LEADER) == 5_000_000
    subject.write(BROKER, LEADER_RATE, None)
    assert standing_rate(subject.snapshot(), 1001, ReplicaRole.LEADER) is None


# What moves.


def test_a_topic_that_is_deleted_between_two_requests_moves_no_more(subject: Subject) -> None:
    def delete() -> None:
        subject.kafka.after_listing = lambda: None
        subject.cluster.delete_topic("t1")

    subject.begin_move()
    subject.cluster.add_topic("t2", {0: [1001, 1002]})
    subject.cluster.start_reassignment("t2", {0: [1001, 1003]})
    subject.kafka.after_listing = delete
    eventually(lambda: subject.snapshot().topics == ("t2",))
    snapshot = subject.snapshot()
    assert (snapshot.topics, snapshot.problems) == (("t2",), ())


def test_a_topic_that_the_broker_has_not_heard_of_yet_moves_and_has_no_leader(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.kafka.lagging = {}
    subject.cluster.start_reassignment("t1", {0: [1001, 1004]})
    snapshot = subject.snapshot()
    assert snapshot.reassignments == (reassignment("t1", {0: (-1, (), (1004,), (1002,))}),)
    assert snapshot.problems == ()


def test_a_partition_without_leader_still_holds_its_destination_back(subject: Subject) -> None:
    subject.begin_move()
    subject.cluster.move_leader("t1", 0, -1)
    assert subject.snapshot().reassignments == (reassignment("t1", {0: (-1, (1001, 1002), (1004,), (1002,))}),)


def test_a_topic_that_cannot_be_looked_at_stays_as_it_was_seen_and_nothing_is_removed(subject: Subject) -> None:
    subject.begin_move()
    before = subject.snapshot().reassignments
    subject.kafka.topic_failures["t1"] = Invalid("not authorized to describe t1")
    subject.cluster.join_isr("t1", 0, 1004)
    snapshot = subject.snapshot()
    assert snapshot.reassignments == before
    assert [p.path for p in snapshot.problems] == ["topics/t1"]
    assert "not authorized" in snapshot.problems[0].reason
    subject.kafka.topic_failures.clear()
    assert subject.snapshot().problems == ()
    assert set(subject.snapshot().reassignments[0].isr[0]) == {1001, 1002, 1004}


@pytest.mark.parametrize(
    ("said", "raised"), [(Unavailable("no controller"), Unavailable), (Invalid("not authorized"), Incomplete)]
)
def test_d1_what_cannot_be_read_is_never_taken_for_an_idle_cluster(
    subject: Subject, said: Unavailable | Invalid, raised: type[Exception]
) -> None:
    subject.begin_move()
    subject.events.clear()
    subject.kafka.failures["reassignments"] = said
    with pytest.raises(raised, match=str(said)):
        subject.snapshot()
    assert subject.reasons_after_polls() == []
    subject.kafka.failures.clear()
    assert subject.snapshot().topics == ("t1",)
    assert "reassignment ended: [t1]" not in subject.reasons_after_polls()


def test_where_partitions_are_is_told_of_those_that_were_asked_for(subject: Subject) -> None:
    subject.begin_move()
    subject.cluster.add_topic("t2", {0: [1003], 1: [1002, 1003]})
    asked = [("t1", 0), ("t2", 1), ("t2", 7), ("t3", 0)]
    assert subject.source.fetch_snapshot(partitions=asked, timeout=TIMEOUT).assignments == {
        ("t1", 0): Assignment((1001, 1004, 1002), 1001, (1001, 1002), (1004,), (1002,)),
        ("t2", 1): Assignment((1002, 1003), 1002, (1002, 1003)),
    }
    assert subject.snapshot().assignments == {}


# What stands.


def test_only_values_of_the_broker_itself_stand_not_those_of_the_default_or_the_file(subject: Subject) -> None:
    """D14 and Cruise Control #2385: who takes a default for a value of his own clears it for ever."""
    subject.cluster.set_default_as_user(LEADER_RATE, "7")
    subject.cluster.set_config_as_user(BROKER, FOLLOWER_RATE, "5")
    snapshot = subject.snapshot()
    assert snapshot.throttles == {BROKER: {FOLLOWER_RATE: "5"}}
    assert snapshot.default_throttles == {LEADER_RATE: "7"}


def test_lists_left_behind_on_any_topic_are_seen_while_nothing_moves(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001]})
    subject.cluster.add_topic("t2", {0: [1001]})
    subject.cluster.set_config_as_user(ConfigResource.topic("t2"), LEADER_REPLICAS, "*")
    assert subject.snapshot().throttles == {ConfigResource.topic("t2"): {LEADER_REPLICAS: "*"}}


def test_lists_of_the_ledger_are_seen_whatever_moves(subject: Subject) -> None:
    subject.cluster.add_topic("t2", {0: [1001]})
    subject.write(ConfigResource.topic("t2"), LEADER_REPLICAS, "0:1001", "0:1001")
    subject.begin_move()
    assert subject.snapshot().throttles == {ConfigResource.topic("t2"): {LEADER_REPLICAS: "0:1001"}}


def test_a_broker_that_does_not_answer_is_named_and_the_others_go_on(subject: Subject) -> None:
    for broker_id in BROKERS:
        subject.write(ConfigResource.broker(broker_id), LEADER_RATE, "5")
    subject.kafka.silent.add(1002)
    snapshot = subject.snapshot()
    assert snapshot.throttles == {ConfigResource.broker(b): RATE for b in (1001, 1003, 1004)}
    assert snapshot.unreadable_configs.keys() == {ConfigResource.broker(1002)}
    problem = snapshot.unreadable_configs[ConfigResource.broker(1002)]
    assert problem.path == "brokers/1002"
    assert problem.reason.startswith("its rates cannot be read: 127.0.0.1:9092 did not answer")


def test_a_broker_that_is_down_is_named_when_it_takes_part_or_we_wrote_to_it_and_is_not_asked(subject: Subject) -> None:
    subject.write(ConfigResource.broker(1003), LEADER_RATE, "5")
    subject.kafka.fenced |= {1002, 1003, 1004}
    subject.begin_move()
    snapshot = subject.source.fetch_snapshot(replicas_of=[1002], timeout=TIMEOUT)
    assert snapshot.brokers == {1001}
    assert snapshot.problems == ()
    assert snapshot.unreadable_configs.keys() == {ConfigResource.broker(b) for b in (1002, 1003, 1004)}
    assert all("is not registered" in problem.reason for problem in snapshot.unreadable_configs.values())
    assert snapshot.ledger.keys() == {ConfigResource.broker(1003)}


def test_with_the_controllers_at_hand_what_we_wrote_to_a_broker_that_is_down_can_be_taken_back() -> None:
    """KIP-919: the controller takes the configs of any registered broker, but describes none of them."""
    with subjects(reaches_controllers=True) as subject:
        subject.write(ConfigResource.broker(1003), LEADER_RATE, "5")
        subject.kafka.fenced |= {1003, 1004}
        subject.begin_move()
        snapshot = subject.snapshot()
        assert snapshot.throttles == {ConfigResource.broker(1003): RATE}
        assert snapshot.unreadable_configs.keys() == {ConfigResource.broker(1004)}


def test_a_ledger_entry_that_cannot_be_read_makes_its_resource_unreadable(subject: Subject) -> None:
    problem = Problem("/autothrottle/ledger/brokers/1001", "no JSON")
    subject.ledger.unreadable[BROKER] = problem
    assert subject.snapshot().unreadable_configs == {BROKER: problem}


def test_a_topics_lists_that_cannot_be_read_are_no_reason_to_stop(subject: Subject) -> None:
    subject.begin_move()
    subject.kafka.topic_failures["t9"] = Invalid("not authorized")
    subject.write(ConfigResource.topic("t9"), LEADER_REPLICAS, "0:1001", "0:1001")
    snapshot = subject.snapshot()
    assert snapshot.unreadable_configs.keys() == {ConfigResource.topic("t9")}
    assert snapshot.problems == ()


# What is told.


def test_whatever_a_cycle_should_see_is_told_in_the_words_of_the_other_backend(subject: Subject) -> None:
    cluster = subject.cluster
    cluster.add_topic("t1", {0: [1001, 1002], 1: [1001, 1002]})
    assert subject.told("started: [t1]", lambda: cluster.start_reassignment("t1", {0: [1003, 1002]})).urgent
    assert subject.told("of t1 grew", lambda: cluster.start_reassignment("t1", {1: [1003, 1002]})).urgent
    assert not subject.told("ISR of t1 changed", lambda: cluster.join_isr("t1", 0, 1003)).urgent
    assert subject.told("leader of t1 changed", lambda: cluster.move_leader("t1", 0, 1003)).urgent
    assert not subject.told("partitions of t1 are done", lambda: cluster.finish("t1", 0)).urgent
    assert not subject.told("brokers registered: [1009]", lambda: cluster.brokers.add(1009)).urgent
    assert not subject.told("ended: [t1]", lambda: cluster.finish("t1")).urgent


def test_an_event_is_older_than_every_snapshot_that_is_read_after_it(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    event = subject.told("[t1]", lambda: subject.cluster.start_reassignment("t1", {0: [1003, 1002]}))
    snapshot = subject.source.fetch_snapshot(min_version=event.version, timeout=TIMEOUT)
    assert snapshot.version > event.version
    assert subject.snapshot().version > snapshot.version
    # Of another replica of discovery, whose clock is ahead.
    ahead = subject.source.fetch_snapshot(min_version=snapshot.version + 30_000, timeout=TIMEOUT)
    assert ahead.version >= snapshot.version + 30_000


def test_while_nothing_moves_the_poll_asks_one_thing(subject: Subject) -> None:
    subject.await_calls("reassignments", 2)
    subject.snapshot()
    # The poll's own first look at the brokers is over: what comes now is all that it ever asks.
    subject.await_calls("reassignments", 2)
    before = subject.kafka.calls.copy()
    subject.await_calls("reassignments", 20)
    after = subject.kafka.calls.copy()
    after.subtract(before)
    assert {method for method, count in after.items() if count} == {"reassignments"}


def test_the_poll_rests_ten_times_as_long_as_it_worked() -> None:
    with subjects(timedelta(milliseconds=1)) as subject:
        subject.await_calls("reassignments", 2)
        subject.kafka.after_listing = lambda: time.sleep(0.02)
        subject.await_calls("reassignments", 1)
        began, before = time.monotonic(), subject.kafka.calls["reassignments"]
        subject.await_calls("reassignments", 5)
        took = time.monotonic() - began
        # Of five looks the first may be in its rest already; a machine under load is only slower.
        assert took >= 0.2 * (subject.kafka.calls["reassignments"] - before - 2)


def test_a_broker_that_an_override_or_the_ledger_waits_for_is_told_while_nothing_moves(subject: Subject) -> None:
    subject.kafka.fenced |= {1002, 1003}
    subject.write(ConfigResource.broker(1003), LEADER_RATE, "5")
    subject.source.fetch_snapshot(replicas_of=[1002], timeout=TIMEOUT)
    subject.told("brokers registered: [1002]", lambda: subject.kafka.fenced.remove(1002))
    subject.told("brokers registered: [1003]", lambda: subject.kafka.fenced.remove(1003))
    assert len(subject.reasons_after_polls()) == 1


def test_a_broker_that_went_and_that_nobody_waits_for_is_not_told_at_every_snapshot(subject: Subject) -> None:
    subject.await_calls("reassignments", 2)
    subject.cluster.brokers.remove(1004)
    for _ in range(3):
        assert subject.snapshot().brokers == {1001, 1002, 1003}
        assert subject.reasons_after_polls(2) == []


def test_a_participant_that_is_registered_all_the_time_is_told_when_it_answers_again(subject: Subject) -> None:
    subject.begin_move()
    subject.kafka.silent.add(1004)
    subject.await_calls("broker_configs", 3)
    event = subject.told("broker 1004 answers again", lambda: subject.kafka.silent.remove(1004))
    assert not event.urgent


def test_a_snapshot_that_was_behind_what_was_told_is_made_up_for(subject: Subject) -> None:
    """The broker that was asked for the snapshot had not heard of the new leader yet; nothing else changes later."""
    subject.begin_move()
    before = subject.kafka.metadata()
    subject.told("leader of t1 changed", lambda: subject.cluster.move_leader("t1", 0, 1002))
    subject.kafka.lagging = before
    behind = subject.snapshot()
    assert behind.reassignments[0].leaders == (1001,)
    subject.told("leader of t1 changed", lambda: setattr(subject.kafka, "lagging", None))
    assert subject.snapshot().reassignments[0].leaders == (1002,)


def test_the_poll_goes_on_after_an_error_and_says_it_once(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    subject.kafka.failures["reassignments"] = Unavailable("no controller")
    subject.await_calls("reassignments", 4)
    subject.kafka.failures.clear()
    subject.begin_move()
    assert [m for m in caplog.messages if "cannot be read" in m] == ["the cluster cannot be read: no controller"]


def test_a_bug_in_one_look_does_not_end_the_poll(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    def stumble() -> None:
        subject.kafka.after_listing = lambda: None
        raise ZeroDivisionError

    subject.kafka.after_listing = stumble
    subject.await_calls("reassignments", 2)
    subject.begin_move()
    assert caplog.messages.count("the poll of the cluster failed unexpectedly") == 1


# Edits of what keeps a move throttled.


@pytest.fixture
def throttled(subject: Subject) -> Subject:
    """A move with its lists and rates, as our own writer sets them."""
    subject.begin_move()
    subject.events.clear()
    subject.write(BROKER, LEADER_RATE, "5")
    subject.write(ConfigResource.broker(1004), FOLLOWER_RATE, "5")
    subject.write(T1, LEADER_REPLICAS, "0:1001,0:1002", "0:1001,0:1002")
    subject.write(T1, FOLLOWER_REPLICAS, "0:1004", "0:1004")
    return subject


def test_our_own_writes_are_no_news(throttled: Subject) -> None:
    assert throttled.reasons_after_polls() == []
    for rate in ("6", "7", "8"):
        throttled.write(BROKER, LEADER_RATE, rate)
        throttled.await_calls("broker_configs", 2)
    throttled.write(BROKER, LEADER_RATE, None)
    throttled.write(T1, FOLLOWER_REPLICAS, None)
    assert throttled.reasons_after_polls() == []


def test_lists_that_somebody_deletes_in_mid_move_are_told_at_once_and_once(throttled: Subject) -> None:
    """Strimzi's topic operator does that (#9972)."""
    delete = throttled.cluster.set_config_as_user
    event = throttled.told("throttles of topics/t1", lambda: delete(T1, FOLLOWER_REPLICAS, None))
    assert event.urgent
    assert len(throttled.reasons_after_polls()) == 1
    throttled.told("throttles of topics/t1", lambda: delete(T1, LEADER_REPLICAS, None))
    # Repaired and deleted again.
    throttled.write(T1, FOLLOWER_REPLICAS, "0:1004", "0:1004")
    throttled.reasons_after_polls()
    throttled.told("throttles of topics/t1", lambda: delete(T1, FOLLOWER_REPLICAS, None))


def test_a_rate_that_somebody_edits_in_mid_move_is_told(throttled: Subject) -> None:
    edit = throttled.cluster.set_config_as_user
    assert throttled.told("throttles of brokers/1004", lambda: edit(ConfigResource.broker(1004), FOLLOWER_RATE, "9"))
    assert len(throttled.reasons_after_polls()) == 1


def test_what_the_move_needs_no_more_may_go(throttled: Subject) -> None:
    """Between the removal of a list and that of its ledger entry it looks as if somebody had deleted it."""
    throttled.told("ISR of t1 changed", lambda: throttled.cluster.join_isr("t1", 0, 1004))
    throttled.events.clear()
    throttled.cluster.set_config_as_user(T1, FOLLOWER_REPLICAS, None)
    throttled.cluster.set_config_as_user(BROKER, LEADER_RATE, None)
    assert throttled.reasons_after_polls() == []


ENTRIES = st.frozensets(st.sampled_from(["0:1", "0:2", "1:1", "1:2"]))


def _list(entries: frozenset[str]) -> str | None:
    return ",".join(sorted(entries, reverse=True)) or None


@given(before=ENTRIES, after=ENTRIES, appended=ENTRIES, subtracted=ENTRIES)
def test_while_a_list_is_being_changed_entry_by_entry_nothing_looks_like_an_edit(
    before: frozenset[str], after: frozenset[str], appended: frozenset[str], subtracted: frozenset[str]
) -> None:
    between = (before | (appended & after)) - (subtracted - after)
    ours = LedgerKey(None, _list(before), before | after, _list(after) or "")
    standing = {T1: {LEADER_REPLICAS: ",".join(between)} if between else {}}
    found = edits({T1: (LEADER_REPLICAS,)}, standing, {T1: LedgerEntry({LEADER_REPLICAS: ours}, 1)})
    if between or not before:
        assert found == {}


@given(owned=ENTRIES, standing=ENTRIES)
def test_a_settled_list_is_edited_as_soon_as_one_entry_differs(owned: frozenset[str], standing: frozenset[str]) -> None:
    value = ",".join(standing)
    ours = LedgerEntry({LEADER_REPLICAS: LedgerKey(None, ",".join(sorted(owned)), owned)}, 1)
    found = edits({T1: (LEADER_REPLICAS,)}, {T1: {LEADER_REPLICAS: value}}, {T1: ours})
    assert found == ({} if owned == standing else {(T1, LEADER_REPLICAS): value})


@pytest.mark.parametrize("standing", [None, "9", "-1"])
def test_a_rate_is_edited_unless_it_is_what_was_written_or_is_about_to_be(standing: str | None) -> None:
    entry = LedgerEntry({LEADER_RATE: LedgerKey(None, "5", intent="6")}, 1)
    config = {} if standing is None else {LEADER_RATE: standing}
    assert edits({BROKER: RATE_KEYS}, {BROKER: config}, {BROKER: entry}) == {(BROKER, LEADER_RATE): standing}
    for ours in ("5", "6"):
        assert edits({BROKER: RATE_KEYS}, {BROKER: {LEADER_RATE: ours}}, {BROKER: entry}) == {}


def test_what_was_not_read_or_is_not_ours_was_not_edited() -> None:
    entry = ledger_entry(leader_replication_throttled_rate="5")
    assert edits({BROKER: RATE_KEYS}, {}, {BROKER: entry}) == {}
    assert edits({BROKER: RATE_KEYS}, {BROKER: RATE}, {}) == {}
    assert edits({BROKER: (FOLLOWER_RATE,)}, {BROKER: {}}, {BROKER: entry}) == {}


def test_a_list_that_is_no_list_is_an_edit() -> None:
    entry = LedgerEntry({LEADER_REPLICAS: LedgerKey(None, "0:1001", frozenset({"0:1001"}))}, 1)
    standing = {T1: {LEADER_REPLICAS: "nonsense"}}
    assert edits({T1: (LEADER_REPLICAS,)}, standing, {T1: entry}) == {(T1, LEADER_REPLICAS): "nonsense"}

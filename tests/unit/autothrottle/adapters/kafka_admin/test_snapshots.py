"""Snapshots through the admin API of an in-memory cluster: behaviour that is too rare on a real one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ReplicaRole,
)
from autothrottle.core.cluster.snapshot import Assignment, Problem, Snapshot, SnapshotRequest
from autothrottle.core.errors import Incomplete, Invalid, Unavailable
from autothrottle.core.throttles.changes import Change, Edit
from autothrottle.ports.kafka import FollowedCluster, SnapshotEvent, Term
from tests.builders import eventually, reassignment
from tests.contract.snapshot_source_contract import SnapshotSourceContract
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryKafka, MemoryLedger

TIMEOUT = timedelta(seconds=30)
POLL = timedelta(milliseconds=20)
CHECK_TICK = timedelta(milliseconds=2)
BROKERS = (1001, 1002, 1003, 1004)
BROKER, T1 = ConfigResource.broker(1001), ConfigResource.topic("t1")
RATE = {LEADER_RATE: "5"}


class Subject:
    """A source, its cluster, and the events since the last call of `event_after`."""

    def __init__(self, poll: timedelta = POLL, reaches_controllers: bool = False) -> None:
        self.cluster = MemoryCluster(brokers=BROKERS)
        self.kafka, self.ledger = MemoryKafka(self.cluster), MemoryLedger(self.cluster)
        self._changed = threading.Condition()
        self.events: list[SnapshotEvent] = []
        self.kafka.controllers = reaches_controllers
        self.admin = AdminSnapshots(self.kafka, self.ledger, poll, check_tick=CHECK_TICK)
        self.source: FollowedCluster = self.admin
        self.admin.watch_snapshots(self._record)

    def _record(self, event: SnapshotEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def snapshot(self) -> Snapshot:
        return self.source.fetch_snapshot(timeout=TIMEOUT)

    def event_after(self, words: str, act: Callable[[], object] = lambda: None) -> SnapshotEvent:
        """Run an action; return the first event after it with these words."""
        with self._changed:
            self.events.clear()
        act()
        with self._changed:
            assert self._changed.wait_for(lambda: any(words in e.reason for e in self.events), 30), self.events
            return next(e for e in self.events if words in e.reason)

    def reasons_after_polls(self, polls: int = 5) -> list[str]:
        """Return the reasons of all events after this many more polls."""
        # One more, because the first may already be running.
        self.await_calls("reassignments", polls + 1)
        return [e.reason for e in self.events]

    def await_calls(self, method: str, more: int) -> None:
        before = self.kafka.calls[method]
        eventually(lambda: self.kafka.calls[method] >= before + more, 30)

    def start_reassignment(self) -> None:
        """Reassign t1-0, led by 1001, from 1002 to 1004."""
        self.cluster.add_topic("t1", {0: [1001, 1002]})
        self.event_after("[t1]", lambda: self.cluster.submit_reassignment("t1", {0: [1001, 1004]}))

    def write(self, resource: ConfigResource, key: str, value: str | None, owned: str = "") -> None:
        """Write a throttle and its ledger entry."""
        current = self.cluster.configs.get(resource, {}).get(key)
        entry = self.cluster.ledger.get(resource)
        keys = {**(entry.keys if entry else {})}
        keys.pop(key, None)
        if value is not None:
            keys[key] = LedgerKey(None, value, frozenset(filter(None, owned.split(","))))
        change = Change(resource, (Edit(key, current, value),), LedgerEntry(keys, 1) if keys else None)
        (outcome,) = self.cluster.apply(Term(self.cluster.electorate.fence), [change], TIMEOUT)
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
    with subjects() as subject:
        yield subject


class TestAdminSnapshots(SnapshotSourceContract):
    @pytest.fixture
    def subject(self) -> Iterator[Subject]:
        with subjects() as subject:
            yield subject


# Current throttles.


def test_a_removed_rate_is_not_the_previous_rate_of_the_next_reassignment(subject: Subject) -> None:
    """D14: the original's native mode remembered the rate that it had removed, and kept subtracting it."""
    subject.start_reassignment()
    subject.write(BROKER, LEADER_RATE, "5000000")
    assert subject.snapshot().rates.get((1001, ReplicaRole.LEADER)) == 5_000_000
    subject.write(BROKER, LEADER_RATE, None)
    assert subject.snapshot().rates.get((1001, ReplicaRole.LEADER)) is None


# Reassignments.


def test_topic_deleted_between_two_requests_has_no_reassignment(subject: Subject) -> None:
    def delete() -> None:
        subject.kafka.after_listing = lambda: None
        subject.cluster.delete_topic("t1")

    subject.start_reassignment()
    subject.cluster.add_topic("t2", {0: [1001, 1002]})
    subject.cluster.submit_reassignment("t2", {0: [1001, 1003]})
    subject.kafka.after_listing = delete
    eventually(lambda: subject.snapshot().topics == ("t2",))
    snapshot = subject.snapshot()
    assert (snapshot.topics, snapshot.problems) == (("t2",), ())


def test_topic_unknown_to_a_lagging_broker_is_reassigned_without_a_leader(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    subject.kafka.lagging = {}
    subject.cluster.submit_reassignment("t1", {0: [1001, 1004]})
    snapshot = subject.snapshot()
    assert snapshot.reassignments == (reassignment("t1", {0: (-1, (), (1004,), (1002,))}),)
    assert snapshot.problems == ()


def test_partition_without_leader_keeps_its_adding_replica(subject: Subject) -> None:
    subject.start_reassignment()
    subject.cluster.move_leader("t1", 0, -1)
    assert subject.snapshot().reassignments == (reassignment("t1", {0: (-1, (1001, 1002), (1004,), (1002,))}),)


def test_topic_with_unreadable_metadata_keeps_its_last_reassignment(subject: Subject) -> None:
    subject.start_reassignment()
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
    ("error", "raised"), [(Unavailable("no controller"), Unavailable), (Invalid("not authorized"), Incomplete)]
)
def test_unreadable_reassignments_never_look_like_an_idle_cluster(
    subject: Subject, error: Unavailable | Invalid, raised: type[Exception]
) -> None:
    """D1: an outage or an unreadable node read as an idle cluster, and its throttles were removed."""
    subject.start_reassignment()
    subject.events.clear()
    subject.kafka.failures["reassignments"] = error
    with pytest.raises(raised, match=str(error)):
        subject.snapshot()
    assert subject.reasons_after_polls() == []
    subject.kafka.failures.clear()
    assert subject.snapshot().topics == ("t1",)
    assert "reassignment ended: [t1]" not in subject.reasons_after_polls()


def test_assignments_are_those_of_the_requested_partitions(subject: Subject) -> None:
    subject.start_reassignment()
    subject.cluster.add_topic("t2", {0: [1003], 1: [1002, 1003]})
    requested = [("t1", 0), ("t2", 1), ("t2", 7), ("t3", 0)]
    assert subject.source.fetch_snapshot(SnapshotRequest(partitions=requested), timeout=TIMEOUT).assignments == {
        ("t1", 0): Assignment((1001, 1004, 1002), 1001, (1001, 1002), (1004,), (1002,)),
        ("t2", 1): Assignment((1002, 1003), 1002, (1002, 1003)),
    }
    assert subject.snapshot().assignments == {}


# Throttle configs.


def test_throttles_are_the_brokers_own_values_not_defaults(subject: Subject) -> None:
    """D14 and Cruise Control #2385: if a default counts as the broker's own value, it gets deleted for good."""
    subject.cluster.set_default_as_user(LEADER_RATE, "7")
    subject.cluster.set_config_as_user(BROKER, FOLLOWER_RATE, "5")
    snapshot = subject.snapshot()
    assert snapshot.throttles == {BROKER: {FOLLOWER_RATE: "5"}}
    assert snapshot.default_throttles == {LEADER_RATE: "7"}


def test_leftover_lists_of_any_topic_are_read_without_reassignments(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001]})
    subject.cluster.add_topic("t2", {0: [1001]})
    subject.cluster.set_config_as_user(ConfigResource.topic("t2"), LEADER_REPLICAS, "*")
    assert subject.snapshot().throttles == {ConfigResource.topic("t2"): {LEADER_REPLICAS: "*"}}


def test_lists_in_the_ledger_are_read_during_other_reassignments(subject: Subject) -> None:
    subject.cluster.add_topic("t2", {0: [1001]})
    subject.write(ConfigResource.topic("t2"), LEADER_REPLICAS, "0:1001", "0:1001")
    subject.start_reassignment()
    assert subject.snapshot().throttles == {ConfigResource.topic("t2"): {LEADER_REPLICAS: "0:1001"}}


def test_silent_broker_is_unreadable_and_others_are_read(subject: Subject) -> None:
    for broker_id in BROKERS:
        subject.write(ConfigResource.broker(broker_id), LEADER_RATE, "5")
    subject.kafka.silent.add(1002)
    snapshot = subject.snapshot()
    assert snapshot.throttles == {ConfigResource.broker(b): RATE for b in (1001, 1003, 1004)}
    assert snapshot.unreadable_configs.keys() == {ConfigResource.broker(1002)}
    problem = snapshot.unreadable_configs[ConfigResource.broker(1002)]
    assert problem.path == "brokers/1002"
    assert problem.reason.startswith("its rates cannot be read: 127.0.0.1:9092 did not answer")


def test_broker_that_is_down_is_unreadable_if_it_is_involved(subject: Subject) -> None:
    subject.write(ConfigResource.broker(1003), LEADER_RATE, "5")
    subject.kafka.fenced |= {1002, 1003, 1004}
    subject.start_reassignment()
    snapshot = subject.source.fetch_snapshot(SnapshotRequest(replicas_of=[1002]), timeout=TIMEOUT)
    assert snapshot.brokers == {1001}
    assert snapshot.problems == ()
    assert snapshot.unreadable_configs.keys() == {ConfigResource.broker(b) for b in (1002, 1003, 1004)}
    for problem in snapshot.unreadable_configs.values():
        assert "is not registered" in problem.reason and "give kafka-bootstrap-controllers" in problem.reason
    assert snapshot.ledger.keys() == {ConfigResource.broker(1003)}


def test_with_controllers_our_rate_of_a_broker_that_is_down_is_its_current_value() -> None:
    """KIP-919: a controller edits the configs of any registered broker, but describes none."""
    with subjects(reaches_controllers=True) as subject:
        subject.write(ConfigResource.broker(1003), LEADER_RATE, "5")
        subject.kafka.fenced |= {1003, 1004}
        subject.start_reassignment()
        snapshot = subject.snapshot()
        assert snapshot.throttles == {ConfigResource.broker(1003): RATE}
        assert snapshot.unreadable_configs == {}


def test_with_controllers_the_foreign_rates_of_a_broker_that_went_down_are_those_last_read() -> None:
    with subjects(reaches_controllers=True) as subject:
        broker = ConfigResource.broker(1004)
        subject.cluster.configs[broker] = {LEADER_RATE: "7", FOLLOWER_RATE: "8"}
        subject.snapshot()
        subject.kafka.fenced.add(1004)
        subject.write(broker, FOLLOWER_RATE, "9")
        subject.start_reassignment()
        assert subject.snapshot().throttles[broker] == {LEADER_RATE: "7", FOLLOWER_RATE: "9"}
        subject.ledger.unreadable[broker] = Problem("/ledger/brokers/1004", "no JSON")
        assert subject.snapshot().unreadable_configs.keys() == {broker}


def test_with_controllers_a_removed_rate_of_a_broker_that_is_down_is_the_one_before_ours() -> None:
    with subjects(reaches_controllers=True) as subject:
        broker = ConfigResource.broker(1004)
        subject.cluster.ledger[broker] = LedgerEntry({FOLLOWER_RATE: LedgerKey("7", "9")}, 1)
        subject.cluster.configs[broker] = {FOLLOWER_RATE: "9"}
        subject.snapshot()
        subject.kafka.fenced.add(1004)
        subject.start_reassignment()
        assert subject.snapshot().throttles[broker] == {FOLLOWER_RATE: "9"}
        del subject.cluster.ledger[broker]  # a controller has restored the rate
        assert subject.snapshot().throttles[broker] == {FOLLOWER_RATE: "7"}


def test_unreadable_ledger_entry_makes_its_resource_unreadable(subject: Subject) -> None:
    problem = Problem("/autothrottle/ledger/brokers/1001", "no JSON")
    subject.ledger.unreadable[BROKER] = problem
    assert subject.snapshot().unreadable_configs == {BROKER: problem}


def test_unreadable_lists_of_one_topic_do_not_fail_the_snapshot(subject: Subject) -> None:
    subject.start_reassignment()
    subject.kafka.topic_failures["t9"] = Invalid("not authorized")
    subject.write(ConfigResource.topic("t9"), LEADER_REPLICAS, "0:1001", "0:1001")
    snapshot = subject.snapshot()
    assert snapshot.unreadable_configs.keys() == {ConfigResource.topic("t9")}
    assert snapshot.problems == ()


# Events.


def test_every_relevant_change_is_an_event_worded_as_in_the_other_backend(subject: Subject) -> None:
    cluster = subject.cluster
    cluster.add_topic("t1", {0: [1001, 1002], 1: [1001, 1002]})
    assert subject.event_after("started: [t1]", lambda: cluster.submit_reassignment("t1", {0: [1003, 1002]})).urgent
    assert subject.event_after("of t1 grew", lambda: cluster.submit_reassignment("t1", {1: [1003, 1002]})).urgent
    assert not subject.event_after("ISR of t1 changed", lambda: cluster.join_isr("t1", 0, 1003)).urgent
    assert subject.event_after("leader of t1 changed", lambda: cluster.move_leader("t1", 0, 1003)).urgent
    assert not subject.event_after("reassignment of partitions of t1 ended", lambda: cluster.finish("t1", 0)).urgent
    assert not subject.event_after("brokers registered: [1009]", lambda: cluster.brokers.add(1009)).urgent
    assert not subject.event_after("ended: [t1]", lambda: cluster.finish("t1")).urgent


def test_snapshots_read_after_an_event_have_newer_versions(subject: Subject) -> None:
    subject.cluster.add_topic("t1", {0: [1001, 1002]})
    event = subject.event_after("[t1]", lambda: subject.cluster.submit_reassignment("t1", {0: [1003, 1002]}))
    snapshot = subject.source.fetch_snapshot(SnapshotRequest(min_version=event.version), timeout=TIMEOUT)
    assert snapshot.version > event.version
    assert subject.snapshot().version > snapshot.version
    # The version may come from another discovery replica, whose clock is ahead.
    ahead = subject.source.fetch_snapshot(SnapshotRequest(min_version=snapshot.version + 30_000), timeout=TIMEOUT)
    assert ahead.version >= snapshot.version + 30_000


def test_poll_sends_one_request_without_reassignments(subject: Subject) -> None:
    subject.await_calls("reassignments", 2)
    subject.snapshot()
    # The poll has already read the brokers for the first time, so these are all its regular requests.
    subject.await_calls("reassignments", 2)
    before = subject.kafka.calls.copy()
    subject.await_calls("reassignments", 20)
    after = subject.kafka.calls.copy()
    after.subtract(before)
    assert {method for method, count in after.items() if count} == {"reassignments"}


def test_poll_rests_ten_times_as_long_as_it_worked() -> None:
    with subjects(timedelta(milliseconds=1)) as subject:
        subject.await_calls("reassignments", 2)
        subject.kafka.after_listing = lambda: time.sleep(0.02)
        subject.await_calls("reassignments", 5)
        began, before = time.monotonic(), subject.kafka.calls["reassignments"]
        subject.await_calls("reassignments", 5)
        took = time.monotonic() - began
        # The first of five polls may already be in its rest; a loaded machine is only slower.
        assert took >= 0.2 * (subject.kafka.calls["reassignments"] - before - 2)


def test_polls_that_waited_for_a_dying_broker_are_followed_by_no_long_rest() -> None:
    """A poll of 2.4 s, while a broker was killed, made discovery rest for 24 s and see no change meanwhile."""
    with subjects(timedelta(milliseconds=1)) as subject:
        subject.await_calls("reassignments", 5)
        subject.kafka.after_listing = lambda: time.sleep(0.2)
        subject.await_calls("reassignments", 3)
        subject.kafka.after_listing = lambda: None
        began = time.monotonic()
        subject.await_calls("reassignments", 3)
        assert time.monotonic() - began < 1.5, "a rest of ten times as long would take 2 s"


def test_awaited_broker_is_reported_without_reassignments(subject: Subject) -> None:
    subject.kafka.fenced |= {1002, 1003}
    subject.write(ConfigResource.broker(1003), LEADER_RATE, "5")
    subject.source.fetch_snapshot(SnapshotRequest(replicas_of=[1002]), timeout=TIMEOUT)
    subject.event_after("brokers registered: [1002]", lambda: subject.kafka.fenced.remove(1002))
    subject.event_after("brokers registered: [1003]", lambda: subject.kafka.fenced.remove(1003))
    assert len(subject.reasons_after_polls()) == 1


def test_a_removed_broker_is_reported_once(subject: Subject) -> None:
    subject.await_calls("reassignments", 2)
    subject.cluster.brokers.remove(1004)
    for _ in range(3):
        assert subject.snapshot().brokers == {1001, 1002, 1003}
        assert subject.reasons_after_polls(2) == ["brokers gone: [1004]"]


def test_silent_participant_is_reported_when_it_answers_again(subject: Subject) -> None:
    subject.start_reassignment()
    subject.kafka.silent.add(1004)
    subject.await_calls("broker_configs", 3)
    event = subject.event_after("broker 1004 answers again", lambda: subject.kafka.silent.remove(1004))
    assert not event.urgent


def test_change_is_reported_again_after_a_snapshot_that_missed_it(subject: Subject) -> None:
    """The broker that answered for the snapshot did not know the new leader yet, and nothing changed afterwards."""
    subject.start_reassignment()
    before = subject.kafka.metadata()
    subject.event_after("leader of t1 changed", lambda: subject.cluster.move_leader("t1", 0, 1002))
    subject.kafka.lagging = before
    behind = subject.snapshot()
    assert behind.reassignments[0].leaders == (1001,)
    subject.event_after("leader of t1 changed", lambda: setattr(subject.kafka, "lagging", None))
    assert subject.snapshot().reassignments[0].leaders == (1002,)


def test_poll_goes_on_after_an_error_and_logs_it_once(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    subject.kafka.failures["reassignments"] = Unavailable("no controller")
    subject.await_calls("reassignments", 4)
    assert subject.source.problem == "no controller"
    subject.kafka.failures.clear()
    subject.start_reassignment()
    eventually(lambda: not subject.source.problem)
    assert [m for m in caplog.messages if "cannot be read" in m] == ["The cluster cannot be read: no controller"]


def test_cluster_that_can_be_read_again_is_reported_at_once(subject: Subject) -> None:
    """After an outage of all brokers no change was reported. Reassignments had no throttle until the next retry."""
    subject.kafka.failures["reassignments"] = Unavailable("no broker answers")
    subject.await_calls("reassignments", 2)
    assert subject.event_after("the cluster can be read again", subject.kafka.failures.clear).urgent


def test_bug_in_one_poll_does_not_end_polling(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    def fail_once() -> None:
        subject.kafka.after_listing = lambda: None
        raise ZeroDivisionError

    subject.kafka.after_listing = fail_once
    subject.await_calls("reassignments", 2)
    subject.start_reassignment()
    assert caplog.messages.count("The poll of the cluster failed unexpectedly") == 1


def test_bug_in_the_comparison_of_rates_is_logged(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    """The comparison runs in a pool of threads. Its error was in a future that no code read."""
    subject.kafka.failures["broker_configs"] = KeyError("a bug")
    subject.start_reassignment()
    eventually(lambda: "Comparing throttles failed unexpectedly" in caplog.messages)


# Edits of our throttles by other parties.


@pytest.fixture
def throttled(subject: Subject) -> Subject:
    """A reassignment with the lists and rates that our own writer sets."""
    subject.start_reassignment()
    subject.events.clear()
    subject.write(BROKER, LEADER_RATE, "5")
    subject.write(ConfigResource.broker(1004), FOLLOWER_RATE, "5")
    subject.write(T1, LEADER_REPLICAS, "0:1001,0:1002", "0:1001,0:1002")
    subject.write(T1, FOLLOWER_REPLICAS, "0:1004", "0:1004")
    return subject


def test_our_own_writes_cause_no_events(throttled: Subject) -> None:
    assert throttled.reasons_after_polls() == []
    for rate in ("6", "7", "8"):
        throttled.write(BROKER, LEADER_RATE, rate)
        throttled.await_calls("broker_configs", 2)
    throttled.write(BROKER, LEADER_RATE, None)
    throttled.write(T1, FOLLOWER_REPLICAS, None)
    assert throttled.reasons_after_polls() == []


def test_lists_deleted_by_another_party_are_reported_once_and_urgently(throttled: Subject) -> None:
    """Strimzi's topic operator deletes them (#9972)."""
    delete = throttled.cluster.set_config_as_user
    event = throttled.event_after("throttles of topics/t1", lambda: delete(T1, FOLLOWER_REPLICAS, None))
    assert event.urgent
    assert len(throttled.reasons_after_polls()) == 1
    throttled.event_after("throttles of topics/t1", lambda: delete(T1, LEADER_REPLICAS, None))
    # The list is restored and deleted again.
    throttled.write(T1, FOLLOWER_REPLICAS, "0:1004", "0:1004")
    throttled.reasons_after_polls()
    throttled.event_after("throttles of topics/t1", lambda: delete(T1, FOLLOWER_REPLICAS, None))


def test_rate_edited_by_another_party_is_reported(throttled: Subject) -> None:
    edit = throttled.cluster.set_config_as_user
    assert throttled.event_after(
        "throttles of brokers/1004", lambda: edit(ConfigResource.broker(1004), FOLLOWER_RATE, "9")
    )
    assert len(throttled.reasons_after_polls()) == 1


def test_removal_of_throttles_that_are_no_longer_needed_is_not_reported(throttled: Subject) -> None:
    """Between the removal of a list and of its ledger entry, it looks as if another party had deleted it."""
    throttled.event_after("ISR of t1 changed", lambda: throttled.cluster.join_isr("t1", 0, 1004))
    throttled.events.clear()
    throttled.cluster.set_config_as_user(T1, FOLLOWER_REPLICAS, None)
    throttled.cluster.set_config_as_user(BROKER, LEADER_RATE, None)
    assert throttled.reasons_after_polls() == []

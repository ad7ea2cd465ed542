"""Which process repairs the replicas of the state topic after the loss of a broker, when, and to what."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_state import replica_repair
from autothrottle.adapters.kafka_state.election import KafkaElection
from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.kafka_state.replica_repair import ReplicaRepair
from autothrottle.adapters.kafka_state.topic import ReplicaChange
from autothrottle.adapters.memory.state_topic import MemoryPartition, MemoryTopic
from autothrottle.core.errors import Conflict, Invalid, Unavailable
from tests.builders import eventually
from tests.unit.autothrottle.adapters.kafka_state.processes import OWN, Processes, put, soon

STUCK = 5.0
"""Seconds for which appends have failed."""


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def repair_of(topic: MemoryTopic, time: Time, turn: int = 0) -> ReplicaRepair:
    repair = ReplicaRepair(topic, "state", time)
    repair.turn = lambda: turn
    return repair


@pytest.fixture
def partition() -> MemoryPartition:
    """Three replicas, whose leader is lost."""
    partition = MemoryPartition()
    partition.silent_brokers = {1}
    return partition


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Whose turn it is.


def test_the_last_leader_repairs_at_once_and_each_other_process_ten_seconds_after_the_one_before(
    partition: MemoryPartition,
) -> None:
    """All repaired at once. Two that reached different brokers could overwrite each other's change."""
    for turn in range(3):
        partition.replicas, time = [1, 2, 3], Time()
        repair = repair_of(MemoryTopic(partition), time, turn)
        for _ in range(5 * turn):
            repair.attempt(STUCK)
            assert partition.replicas == [1, 2, 3]
            time.seconds += 2
        repair.attempt(STUCK)
        assert partition.replicas == [2, 3]


def test_a_process_awaits_its_turn_again_after_the_replicas_have_changed(partition: MemoryPartition) -> None:
    time = Time()
    repair = repair_of(MemoryTopic(partition), time, turn=1)
    repair.attempt(STUCK)
    partition.replicas, partition.silent_brokers = [1, 3, 2], {3}
    time.seconds += 9
    repair.attempt(STUCK)
    partition.replicas = [2, 3]
    time.seconds += 2
    repair.attempt(STUCK)
    assert partition.replicas == [2, 3]
    time.seconds += 9
    repair.attempt(STUCK)
    assert partition.replicas == [2, 3]
    partition.silent_brokers = set()
    time.seconds += 2
    repair.attempt(STUCK)
    assert partition.replicas == [2, 3, 1]


def test_two_processes_at_once_ask_for_the_same_and_the_second_one_changes_nothing(
    partition: MemoryPartition, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [MemoryTopic(partition) for _ in range(2)]
    changes = [topic.fetch_repair(soon(), is_stuck=True) for topic in topics]
    assert changes == [ReplicaChange((1, 2, 3), (2, 3), 1)] * 2
    assert changes[1] is not None
    time = Time()
    repair_of(topics[0], time).attempt(STUCK)
    with pytest.raises(Conflict):
        topics[1].change_replicas(changes[1], soon())
    repair_of(topics[1], time).attempt(0.0)
    assert partition.replicas == [2, 3]
    assert len(warnings(caplog)) == 1


class ContestedTopic(MemoryTopic):
    """Another party changes the replicas to others directly after each change."""

    def change_replicas(self, change: ReplicaChange, deadline: float) -> Sequence[int]:
        super().change_replicas(change, deadline)
        self.partition.replicas = [3, 1]
        return self.partition.replicas


def test_a_process_whose_change_another_party_overwrites_rests_for_a_minute(
    partition: MemoryPartition, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time()
    repair = repair_of(ContestedTopic(partition), time)
    assert repair.attempt(STUCK) == 60
    assert warnings(caplog) == [
        "Changed the replicas of topic state from 1, 2, 3 to 2, 3, because broker 1 does not answer, but they are 3, 1 "
        "now: another party changes them, too. autothrottle leaves them as they are for 60 s"
    ]


def test_turns_follow_from_the_last_tree(processes: Processes, log: StateLog) -> None:
    election = KafkaElection(log, OWN, timedelta(seconds=30))
    others = [f"{name}" * 32 for name in "0f"]
    put(log, json.dumps({"holder": others[1]}), OWN.term)
    for name in others:
        put(log, '{"joined": 1}', f"{OWN.election}/{name}")
    election.join("a:1", lambda: None)
    eventually(lambda: log.repair.turn is not None and len(log.living(OWN.election, 30)) == 3)
    assert log.repair.turn is not None
    assert log.repair.turn() == 2, "after the last leader, and after a smaller name"
    log.append(StateEdit(texts={f"{OWN.election}/{others[1]}": None}), soon())
    assert log.repair.turn() == 1, "the last leader has left"
    put(log, json.dumps({"holder": election._name}), OWN.term)
    assert log.repair.turn() == 0
    election.leave()
    assert log.repair.turn() == 1, "it has no node any more"


def test_candidates_that_died_earlier_have_no_turn(processes: Processes, log: StateLog) -> None:
    """Each start has a new name. Without this, a process would wait 10 s for every crash since the last snapshot."""
    put(log, '{"joined": 1}', f"{OWN.election}/{'0' * 32}")
    election = KafkaElection(log, OWN, timedelta(seconds=0.6))
    election.join("a:1", lambda: None)
    eventually(lambda: log.repair.turn is not None and log.repair.turn() == 0, 20)
    election.leave()


@pytest.mark.usefixtures("_short_silence")
def test_a_process_in_shadow_mode_and_one_that_only_uses_the_state_repair_nothing(
    processes: Processes, log: StateLog
) -> None:
    """`--shadow` decides and records, and changes nothing in Kafka. It repaired the replicas, though."""
    put(log, "1")
    shadow = KafkaElection(log, OWN, timedelta(seconds=30), repairs=False)
    shadow.join("a:1", lambda: None)
    eventually(lambda: log.living(OWN.election, 30))
    processes.partition.silent_brokers = {3}
    with pytest.raises(Unavailable):
        log.append(StateEdit(), soon(1.5))
    assert processes.partition.replicas == [1, 2, 3]
    processes.partition.silent_brokers = set()
    shadow.leave()


# What is changed.


def test_a_topic_in_reassignment_is_not_repaired(partition: MemoryPartition) -> None:
    """A repair would replace the operator's reassignment, for example the decommissioning of a broker."""
    partition.is_moving = True
    repair = repair_of(MemoryTopic(partition), Time())
    with pytest.raises(Conflict):
        repair.attempt(STUCK)
    assert partition.replicas == [1, 2, 3]
    partition.is_moving = False
    repair.attempt(STUCK)
    assert partition.replicas == [2, 3]


def test_a_cordoned_broker_gets_no_replica(partition: MemoryPartition) -> None:
    """A broker whose replica was moved away got it back, although it was cordoned for its decommissioning."""
    partition.replicas, partition.silent_brokers, partition.cordoned_brokers = [2, 3], set(), {1}
    repair = repair_of(MemoryTopic(partition), Time())
    repair.attempt(0.0)
    assert partition.replicas == [2, 3]
    partition.cordoned_brokers = set()
    repair.attempt(0.0)
    assert partition.replicas == [2, 3, 1]


def test_a_process_removes_only_one_replica_a_minute(partition: MemoryPartition) -> None:
    """A process that reached only one broker could otherwise move the topic to and fro, against another process."""
    time = Time()
    repair = repair_of(MemoryTopic(partition), time)
    repair.attempt(STUCK)
    assert partition.replicas == [2, 3]
    partition.replicas, partition.silent_brokers = [2, 3, 1], {2}
    time.seconds += 59
    repair.attempt(STUCK)
    assert partition.replicas == [2, 3, 1]
    time.seconds += 2
    repair.attempt(STUCK)
    assert partition.replicas == [3, 1]


# A whole process.


@pytest.fixture
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_repair, "SILENCE_SECONDS", 0.3)


@pytest.fixture
def leader(log: StateLog) -> StateLog:
    """A process that repairs first."""
    log.repair.turn = lambda: 0
    return log


@pytest.mark.usefixtures("_short_silence")
@pytest.mark.parametrize("lost", [pytest.param(1, id="the leader"), pytest.param(3, id="a follower")])
def test_a_lost_replica_is_dropped_and_a_broker_is_added_when_it_answers(
    processes: Processes, leader: StateLog, caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    """Kafka waits for a lost replica until the session of its broker ends, 9 s by default. No cycle ran until then."""
    put(leader, "1")
    processes.partition.silent_brokers = {lost}
    put(leader, "2")
    others = sorted({1, 2, 3} - {lost})
    assert processes.partition.replicas == others
    processes.partition.silent_brokers = set()

    def lines() -> list[str]:
        leader.check_settings()
        return warnings(caplog)

    eventually(lambda: len(lines()) == 2)
    before, after = "1, 2, 3", ", ".join(map(str, others))
    assert warnings(caplog) == [
        f"Changed the replicas of topic state from {before} to {after}, because broker {lost} does not answer",
        f"Changed the replicas of topic state from {after} to {after}, {lost}, so that it has three again",
    ]
    assert processes.partition.replicas == [*others, lost]


def test_a_short_silence_changes_no_replica(processes: Processes, leader: StateLog) -> None:
    put(leader, "1")
    repair = leader.repair
    processes.partition.silent_brokers = {1}
    repair.attempt(replica_repair.SILENCE_SECONDS - 0.1)
    assert processes.partition.replicas == [1, 2, 3]
    repair.attempt(replica_repair.SILENCE_SECONDS)
    assert processes.partition.replicas == [2, 3]


@pytest.mark.usefixtures("_short_silence")
def test_a_repair_that_fails_unexpectedly_is_tried_again(
    processes: Processes, leader: StateLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(leader, "1")
    topic = processes.topic(leader)
    errors, change_replicas = [KeyError("a bug"), Invalid("Alter on the cluster is denied")], topic.change_replicas

    def fail_twice(change: ReplicaChange, deadline: float) -> Sequence[int]:
        if errors:
            raise errors.pop(0)
        return change_replicas(change, deadline)

    monkeypatch.setattr(topic, "change_replicas", fail_twice)
    processes.partition.silent_brokers = {1}
    put(leader, "2")
    assert warnings(caplog)[:2] == [
        "Repairing the replicas of the state topic failed unexpectedly",
        "The replicas of the state topic cannot be repaired: Alter on the cluster is denied",
    ]


def test_a_process_that_cannot_append_adds_a_replica_without_a_leading_planner(
    processes: Processes, leader: StateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a second loss only one replica is in sync. No planner can lead then, so each process repairs the topic."""
    put(leader, "1")
    processes.partition.replicas, append = [2, 3], processes.topic(leader).append

    def append_to_three(values: Sequence[bytes], deadline: float) -> None:
        if len(processes.partition.replicas) < 3:
            raise Unavailable("too few replicas are in sync")
        append(values, deadline)

    monkeypatch.setattr(processes.topic(leader), "append", append_to_three)
    put(leader, "2")
    assert processes.partition.replicas == [2, 3, 1]

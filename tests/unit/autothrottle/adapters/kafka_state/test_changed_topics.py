"""Another party changes the settings of the state topic, or compacts it."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_state.election import KafkaElection
from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.core.errors import Incomplete, Invalid
from tests.builders import eventually
from tests.unit.autothrottle.adapters.kafka_state.processes import OWN, Processes, X, Y, put, soon, text

RISK = "topic state has retention.ms=7, so records of our state could be lost; it must be -1. Fix: kafka-configs.sh"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_leader_warns_once_of_each_change_of_a_setting(
    processes: Processes, log: StateLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.prepare(soon(), lambda: False)
    log.check_settings()
    assert not log.is_snapshot_due
    for _ in range(2):
        processes.partition.faults = {"retention.ms": RISK}
        log.check_settings()
        log.check_settings()
        processes.partition.faults = {}
        log.check_settings()
    assert warnings(caplog) == [f"T{RISK[1:]}"] * 2


def test_a_leader_checks_the_settings_without_being_asked(
    processes: Processes, log: StateLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.prepare(soon(), lambda: False)
    processes.partition.faults = {"retention.ms": RISK}
    election = KafkaElection(log, OWN, timedelta(seconds=1.5))
    election.join("a:1", lambda: None)
    try:
        eventually(lambda: warnings(caplog) == [f"T{RISK[1:]}"])
    finally:
        election.leave()


def test_a_refused_candidate_says_so_once_with_the_setting_that_explains_it(
    processes: Processes, log: StateLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka refuses our records while cleanup.policy is compact. The log had a line per second, and no fix."""
    log.prepare(soon(), lambda: False)
    refusals = 0

    def refuse(*_: object) -> None:
        nonlocal refusals
        refusals += 1
        raise Invalid("InvalidRecordError")

    monkeypatch.setattr(processes.topic(log), "append", refuse)
    processes.partition.faults = {"cleanup.policy": RISK}
    election = KafkaElection(log, OWN, timedelta(seconds=0.6))
    election.join("a:1", lambda: None)
    try:
        eventually(lambda: refusals > 4)
        assert warnings(caplog) == [
            "The election is interrupted, trying again: InvalidRecordError",
            f"T{RISK[1:]}",
        ]
    finally:
        election.leave()


def test_a_compacted_topic_is_refused_until_a_process_that_knows_all_records_writes_a_snapshot(
    processes: Processes, log: StateLog
) -> None:
    """Kafka's cleaner removes records without a key, but the log still starts at offset 0.

    A new process took what was left for the whole state, and the ledger was gone without a message.
    """
    for number in range(5):
        put(log, str(number), f"{X}/{number % 2}")
    partition = processes.partition
    partition.faults = {"cleanup.policy": RISK}
    log.check_settings()
    partition.records = partition.records[3:]
    late = processes.log()
    with pytest.raises(Incomplete, match="lacks its beginning"):
        late.prepare(soon(2.0), lambda: False)
    partition.faults = {}
    log.check_settings()
    assert log.is_snapshot_due
    log.write_snapshot()
    assert not log.is_snapshot_due
    late.prepare(soon(), lambda: False)
    assert (text(late, f"{X}/0"), text(late, f"{X}/1")) == ("4", "3")


def test_records_compacted_in_the_middle_are_missed_as_well(processes: Processes, log: StateLog) -> None:
    for number in range(6):
        put(log, str(number))
    partition = processes.partition
    partition.records = [r for r in partition.records if not 2 <= r.offset <= 3]
    late = processes.log()
    with pytest.raises(Incomplete, match="before offset 4 are deleted or damaged"):
        late.prepare(soon(2.0), lambda: False)
    log.append(StateEdit(), soon())
    assert text(log) == "5"


def test_the_offset_in_the_message_is_where_an_operator_deletes_damaged_records(
    processes: Processes, log: StateLog
) -> None:
    for number in range(6):
        put(log, str(number))
    partition = processes.partition
    partition.records = [r for r in partition.records if not 2 <= r.offset <= 3]
    late = processes.log()
    with pytest.raises(Incomplete, match="before offset 4 are") as refusal:
        late.prepare(soon(1.0), lambda: False)
    assert "kafka-delete-records.sh up to this offset" in str(refusal.value)
    assert not log.is_snapshot_due
    partition.delete_before(4)
    log.append(StateEdit(), soon())
    assert log.is_snapshot_due
    log.write_snapshot()
    assert text(late) == "5"


def test_a_process_that_missed_two_new_topics_writes_again_what_only_it_had_read(
    processes: Processes, log: StateLog
) -> None:
    """The versions of a restored topic exceed all earlier ones. So the second restore seemed to include all edits.

    What a process had read before both, and the restoring process had not, was lost.
    """
    log.mark_strict(0, soon())
    put(log, "1")
    second = processes.log()
    assert text(second) == "1"
    processes.topic(log).is_cut = True
    put(second, "kept", Y)
    processes.topic(second).is_cut = True
    processes.partition.delete()
    processes.topic(log).is_cut = False
    put(log, "2")
    processes.partition.delete()
    put(log, "3")
    processes.topic(second).is_cut = False
    eventually(lambda: text(log, Y) == "kept")
    assert (text(second), text(second, Y)) == ("3", "kept")


def test_a_snapshot_that_follows_the_restore_of_an_older_memory_does_not_include_a_newer_one(
    processes: Processes, log: StateLog
) -> None:
    """A process that had slept took it for one that includes all that it had read. An edit of its own was lost."""
    log.mark_strict(0, soon())
    put(log, "1")
    second = processes.log()
    assert text(second) == "1"
    processes.topic(log).is_cut = True
    put(second, "kept", Y)
    processes.topic(second).is_cut = True
    processes.partition.delete_before(processes.partition.end)
    processes.topic(log).is_cut = False
    put(log, "2")
    log.write_snapshot()
    processes.topic(second).is_cut = False
    eventually(lambda: text(log, Y) == "kept")
    assert (text(second), text(second, Y)) == ("2", "kept")

"""A process appends, reads back and restores its state, whatever happens to its connections and to the topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.adapters.kafka_state.copy import export_state, import_state
from autothrottle.adapters.kafka_state.election import KafkaElection
from autothrottle.adapters.kafka_state.ledger import KafkaLedger, KafkaLedgerReader
from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.nodes import KafkaNodeStore
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.kafka_state.topic import UNCLEAN_ELECTIONS, Records
from autothrottle.adapters.kafka_state.tree import Effect
from autothrottle.adapters.state_store.operator_stores import NodeOverrides
from autothrottle.adapters.state_store.state_copy import StateCopy, parse_copy
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import Conflict, Incomplete, Invalid, NotLeader, Unavailable
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import OutcomeStatus
from autothrottle.core.retries import STATE_TOPIC
from tests.builders import eventually, ledger_entry
from tests.unit.autothrottle.adapters.kafka_state.processes import OWN, Processes, X, Y, put, soon, text

BROKER = ConfigResource.broker(1001)


def test_every_process_reads_what_another_was_told_is_written(processes: Processes) -> None:
    first, second = processes.log(), processes.log()
    put(first, "1")
    assert text(second) == "1"


def test_the_first_process_creates_the_topic(processes: Processes, log: StateLog) -> None:
    assert processes.partition.topic_id is None
    log.prepare(soon(), lambda: False)
    assert processes.partition.topic_id is not None and not log.problem()


def test_an_edit_whose_answer_was_lost_is_sent_again_and_applied_once(processes: Processes, log: StateLog) -> None:
    log.prepare(soon(), lambda: False)
    processes.topic(log).loses_answers = True
    results: list[int] = []
    writer = threading.Thread(target=lambda: results.append(put(log, "1")))
    writer.start()
    eventually(lambda: len(processes.partition.records) > 3)
    assert not results, "it was not acknowledged"
    processes.topic(log).loses_answers = False
    writer.join()
    with log.synced(soon()) as tree:
        assert tree.version(X) == results[0] == tree.last_version


def test_a_process_without_connection_fails_and_says_why(processes: Processes, log: StateLog) -> None:
    put(log, "1")
    processes.topic(log).is_cut = True
    with pytest.raises(Unavailable, match="the state topic state cannot be read: no broker answers"):
        log.append(StateEdit(), soon(1.5))
    eventually(log.problem)
    processes.topic(log).is_cut = False
    assert text(log) == "1"
    eventually(lambda: not log.problem())


def test_a_caller_gets_the_reason_of_an_outage_before_its_own_deadline(processes: Processes, log: StateLog) -> None:
    """Reads waited for the topic as long as operators' calls last. Commands said that admin does not answer."""
    put(log, "1")
    processes.topic(log).is_cut = True
    eventually(log.problem)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="cannot be read: no broker answers"), log.synced(soon()):
        pass
    assert 0.9 < time.monotonic() - began < 3.0


def test_a_leader_that_answers_reads_at_once_without_records_is_asked_at_intervals(
    processes: Processes, log: StateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader has a record that its followers do not have yet. All processes asked it 700 times in a second."""
    put(log, "1")
    reads: list[float] = []

    def answered_at_once(topic_id: str, offset: int, epoch: int, wait: float, deadline: float) -> Records:
        reads.append(time.monotonic())
        return Records([], offset, 0)

    monkeypatch.setattr(processes.topic(log), "read", answered_at_once)
    eventually(lambda: len(reads) > 5)
    assert reads[5] - reads[0] >= 4 * STATE_TOPIC.first


def test_a_topic_whose_settings_could_lose_records_is_refused(processes: Processes, log: StateLog) -> None:
    processes.partition.faults = {"retention.ms": "retention.ms is 7; it must be -1. Fix: kafka-configs.sh"}
    with pytest.raises(Invalid, match="must be -1"):
        log.prepare(soon(), lambda: False)


def test_a_snapshot_replaces_the_records_before_it(processes: Processes, log: StateLog) -> None:
    for number in range(30):
        put(log, str(number), f"{X}/{number % 3}")
    log.write_snapshot()
    assert processes.partition.start > 25
    fresh = processes.log()
    assert [text(fresh, f"{X}/{n}") for n in range(3)] == ["27", "28", "29"]


def test_a_process_that_was_stopped_during_a_snapshot_continues_after_it(processes: Processes, log: StateLog) -> None:
    late = processes.log()
    put(log, "1")
    assert text(late) == "1"
    processes.topic(late).is_cut = True
    put(log, "2")
    time.sleep(0.7)
    put(log, "3")
    log.write_snapshot()
    processes.topic(late).is_cut = False
    assert text(late) == "3"


def test_a_process_with_another_tree_reads_the_log_again_while_others_write(
    processes: Processes, log: StateLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process in doubt waited for half a second without a record, which a busy log never has. It lost its term."""
    log.mark_strict(0, soon())
    put(log, "1")
    other = processes.log()
    assert text(other) == "1"
    with other.current() as tree:
        tree.put(X, None)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.2):
            log.append(StateEdit(texts={Y: "beat"}), soon())

    writer = threading.Thread(target=beat)
    writer.start()
    try:
        eventually(lambda: other.resets == 1)
        assert text(other) == "1" and log.resets == 0
        assert "The state of the topic replaces it" in caplog.text
        assert put(other, "2")
    finally:
        stop.set()
        writer.join()


# LogLoss of the topic or of its records.


def test_a_deleted_topic_is_restored_with_all_versions(
    processes: Processes, log: StateLog, caplog: pytest.LogCaptureFixture
) -> None:
    version = put(log, "1")
    processes.partition.delete()
    with log.synced(soon()) as tree:
        assert tree.version(X) == version
    assert "Restored 1 entries from memory" in caplog.text
    assert text(processes.log()) == "1"


def test_what_a_process_that_begins_anew_lacks_is_written_again(
    processes: Processes, log: StateLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process had begun a new topic. The entries that it did not know were lost for all, with an error."""
    put(log, "1")
    put(log, "kept", Y)
    processes.topic(log).is_cut = True
    processes.partition.delete()
    beginner = processes.log()
    put(beginner, "2")
    processes.topic(log).is_cut = False
    assert (text(log), text(log, Y)) == ("2", "kept")
    assert text(beginner, Y) == "kept"
    assert "Restored 1 entries from memory" in caplog.text


def test_a_topic_without_its_beginning_is_refused_until_a_process_restores_it(
    processes: Processes, log: StateLog
) -> None:
    put(log, "1")
    processes.partition.delete_before(processes.partition.end)
    fresh = processes.log()
    with pytest.raises(Incomplete, match=r"lacks its beginning: the records before offset \d+ are deleted or damaged"):
        fresh.prepare(soon(0.8), lambda: False)
    assert log.is_snapshot_due
    log.write_snapshot()
    assert text(fresh) == "1"


def test_processes_that_all_lost_their_position_restore_the_state(processes: Processes, log: StateLog) -> None:
    put(log, "1")
    processes.topic(log).is_cut = True
    time.sleep(0.7)
    processes.partition.append([b"another party's"] * 3)
    processes.partition.delete_before(processes.partition.end)
    processes.topic(log).is_cut = False
    assert text(log) == "1"
    assert text(processes.log()) == "1"


def test_the_only_process_restores_a_log_whose_records_were_all_deleted_once(
    processes: Processes, log: StateLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing showed that older versions may read the log, so its own restore was void. It was repeated for good."""
    put(log, "1")
    processes.topic(log).is_cut = True
    time.sleep(0.7)
    processes.partition.append([b"another party's"])
    processes.partition.delete_before(processes.partition.end)
    processes.topic(log).is_cut = False
    eventually(lambda: not log.problem())
    assert caplog.text.count("Restored 1 entries from memory") == 1


# The ledger.


def begin_term(log: StateLog, holder: str = "{}") -> int:
    with log.synced(soon()) as tree:
        versions = {OWN.term: tree.fence}
    return log.append(StateEdit(versions=versions, texts={OWN.term: holder}), soon()).version


def test_the_ledger_is_written_in_its_term_only(log: StateLog) -> None:
    ledger, reader, fence = KafkaLedger(log, OWN), KafkaLedgerReader(log, OWN), begin_term(log)
    entry = ledger_entry(leader_replication_throttled_rate="7")
    assert ledger.write(fence, {BROKER: entry}, soon())[BROKER].status is OutcomeStatus.APPLIED
    assert ledger.read([BROKER], soon()) == {BROKER: entry}
    assert reader.read(timedelta(seconds=20)).entries == {BROKER: entry}
    begin_term(log)
    with pytest.raises(NotLeader, match=f"term {fence} is over"):
        ledger.write(fence, {BROKER: None}, soon())
    with pytest.raises(NotLeader):
        ledger.check_term(fence, soon())
    assert ledger.read([BROKER], soon()) == {BROKER: entry}


def test_many_entries_are_written_in_several_edits_and_an_absent_one_is_deleted(log: StateLog) -> None:
    ledger, reader, fence = KafkaLedger(log, OWN), KafkaLedgerReader(log, OWN), begin_term(log)
    value = ",".join(f"{n}:{n}" for n in range(3_000))
    entries = {
        ConfigResource.topic(f"t{n}"): ledger_entry(leader_replication_throttled_replicas=value) for n in range(30)
    }
    outcomes = ledger.write(fence, {**entries, BROKER: None}, soon())
    assert {outcome.status for outcome in outcomes.values()} == {OutcomeStatus.APPLIED}
    assert reader.read(timedelta(seconds=20)).entries == entries


def test_an_unreadable_entry_stays_as_it_was_last_read(log: StateLog) -> None:
    ledger, reader, fence = KafkaLedger(log, OWN), KafkaLedgerReader(log, OWN), begin_term(log)
    entry = ledger_entry(leader_replication_throttled_rate="7")
    other = ConfigResource.broker(1002)
    ledger.write(fence, {BROKER: entry, other: entry}, soon())
    assert reader.read(timedelta(seconds=20)).entries == {BROKER: entry, other: entry}
    put(log, "garbage", OWN.ledger_entry(other))
    copy = reader.read(timedelta(seconds=20))
    assert copy.entries == {BROKER: entry, other: entry}
    assert list(copy.unreadable) == [other]


# Election.


def test_a_leader_that_is_cut_off_steps_down_before_another_leads(processes: Processes) -> None:
    session = timedelta(seconds=0.9)
    logs: Sequence[StateLog] = [processes.log(), processes.log()]
    first, second = (KafkaElection(log, OWN, session) for log in logs)
    first.join("a:1", lambda: None)
    eventually(lambda: first.term)
    second.join("b:1", lambda: None)
    terms: list[tuple[bool, bool]] = []
    processes.topic(logs[0]).is_cut = True
    while not second.term:
        terms.append((first.term is not None, second.term is not None))
        time.sleep(0.001)
    assert terms[0] == (True, False) and terms[-1] == (False, False)
    assert (True, True) not in terms
    processes.topic(logs[0]).is_cut = False
    for election in (second, first):
        election.leave()


def test_an_earlier_leader_waits_if_the_log_may_have_lost_the_term_of_another(processes: Processes) -> None:
    """It claimed at once, since the log still named it. The leader whose claim was lost still held its term."""
    session = timedelta(seconds=1.5)
    logs: Sequence[StateLog] = [processes.log(), processes.log()]
    first, second = (KafkaElection(log, OWN, session) for log in logs)
    first.join("a:1", lambda: None)
    eventually(lambda: first.term)
    processes.partition.faults = {UNCLEAN_ELECTIONS: "another party allows them"}
    logs[0].check_settings()
    processes.topic(logs[0]).is_cut = True
    end = processes.partition.end
    second.join("b:1", lambda: None)
    eventually(lambda: second.term)
    processes.topic(logs[1]).is_cut = True
    processes.partition.truncate(end)
    processes.topic(logs[0]).is_cut = False
    while second.term:
        assert first.term is None
        time.sleep(0.001)
    eventually(lambda: first.term)
    processes.topic(logs[1]).is_cut = False
    for election in (second, first):
        election.leave()


def test_a_candidate_that_hears_nothing_cannot_depose_the_leader(processes: Processes) -> None:
    """It could append, but its reads came late. Its claim expects a heartbeat that is not the last one."""
    session = timedelta(seconds=0.9)
    logs = [processes.log(), processes.log()]
    leader, deaf = (KafkaElection(log, OWN, session) for log in logs)
    leader.join("a:1", lambda: None)
    eventually(lambda: leader.term)
    assert leader.term is not None
    fence = leader.term.fence
    with logs[1].synced(soon()) as tree:
        (holder,) = tree.children(OWN.election)
        path = f"{OWN.election}/{holder}"
        versions = {OWN.term: tree.fence, path: tree.version(path)}
    time.sleep(1.5)
    result = logs[1].append(StateEdit(versions=versions, texts={OWN.term: "{}"}), soon())
    assert result.effect is Effect.OUTRUN
    assert leader.term is not None and leader.term.fence == fence
    for election in (leader, deaf):
        election.leave()


# Copies.


def test_a_copy_loads_into_an_empty_topic_and_owns_everything_again(processes: Processes, log: StateLog) -> None:
    overrides = NodeOverrides(KafkaNodeStore(log, OWN))
    overrides.set_override(1001, StoredOverride(7_000_000), who="anna")
    fence = begin_term(log)
    entry = ledger_entry(leader_replication_throttled_rate="7")
    KafkaLedger(log, OWN).write(fence, {BROKER: entry}, soon())
    records = overrides.read_audit_records(10).records
    overrides.close()
    copy = export_state(log, OWN)
    assert (copy.fence, len(copy.nodes), len(copy.audit)) == (fence, 2, 1)

    other = Processes(ExitStack())
    loaded = other.log()
    import_state(loaded, OWN, copy)
    overrides = NodeOverrides(KafkaNodeStore(loaded, OWN))
    assert overrides.read_overrides().brokers[1001].rate == 7_000_000
    assert [(r.who, r.time) for r in overrides.read_audit_records(10).records] == [
        (r.who, r.time.replace(tzinfo=UTC)) for r in records
    ]
    assert KafkaLedger(loaded, OWN).read([BROKER], soon()) == {BROKER: entry}
    assert begin_term(loaded) > fence
    overrides.close()
    with pytest.raises(Conflict, match="an empty store"):
        import_state(loaded, OWN, copy)
    loaded.close()


def test_the_terms_of_an_imported_state_follow_those_of_its_store(log: StateLog) -> None:
    future = (int(datetime.now(UTC).timestamp() * 1000) + 10**9) * 1000
    import_state(log, OWN, parse_copy(StateCopy(future, {"pause": "{}"}).encoded()))
    assert begin_term(log) > future

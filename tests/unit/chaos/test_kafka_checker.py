"""The checker of runs on Kafka accepts a correct history, and finds each violation in a modified one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from autothrottle.core.cluster.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LedgerEntry, LedgerKey
from autothrottle_lab.observation.metadata_log import ConfigWritten, MetadataRecord
from tests.chaos.on_kafka import checker
from tests.chaos.on_kafka.checker import ConfigRequest, Evidence, judge
from tests.chaos.on_kafka.state import Claim, FencedRecord, Heartbeat, LedgerWrite, StateHistory

BROKER = "brokers/1003"
SET, DELETE, APPEND = 0, 1, 2


def rate_request(at: float, process: str, value: str | None) -> ConfigRequest:
    return ConfigRequest(at, process, {BROKER: {FOLLOWER_RATE: (DELETE if value is None else SET, value)}})


def rate_record(offset: int, at: float, value: str | None) -> MetadataRecord:
    return MetadataRecord(offset, datetime.fromtimestamp(at, UTC), ConfigWritten(BROKER, FOLLOWER_RATE, value))


def ledger_write(at: float, fence: int, key: LedgerKey | None) -> LedgerWrite:
    entry = None if key is None else LedgerEntry({FOLLOWER_RATE: key}, fence)
    return LedgerWrite(at, BROKER, entry, fence)


CORRECT = Evidence(
    state=StateHistory(
        claims=[Claim(100.0, 1, "run-1"), Claim(110.0, 2, "run-2")],
        ledger=[
            ledger_write(101.0, 1, LedgerKey(None, None, intent="5")),
            ledger_write(101.2, 1, LedgerKey(None, "5")),
            ledger_write(111.0, 2, LedgerKey(None, "5", intent="6")),
            ledger_write(111.2, 2, LedgerKey(None, "6")),
            ledger_write(113.0, 2, None),
        ],
        heartbeats={
            "run-1": [Heartbeat(100.0, 100.1), Heartbeat(101.0, 101.1)],
            "run-2": [Heartbeat(110.0, 110.1), Heartbeat(111.0, 111.1), Heartbeat(112.0, 112.1)],
        },
    ),
    requests=[
        rate_request(101.1, "run-1", "5"),
        rate_request(111.1, "run-2", "6"),
        rate_request(112.5, "run-2", None),
    ],
    records=[rate_record(1, 101.1, "5"), rate_record(2, 111.1, "6"), rate_record(3, 112.5, None)],
    operators=[],
    stops={},
    planners_write=True,
    lease_seconds=2.0,
)


def with_request(request: ConfigRequest) -> Evidence:
    requests = sorted([*CORRECT.requests, request], key=lambda r: r.at)
    return replace(CORRECT, requests=requests)


def with_record(record: MetadataRecord) -> Evidence:
    return replace(CORRECT, records=sorted([*CORRECT.records, record], key=lambda r: r.time))


def rules(evidence: Evidence) -> set[str]:
    return {violation.rule for violation in judge(evidence).violations}


def test_correct_history_has_no_violation_and_is_counted() -> None:
    judgement = judge(CORRECT)
    assert [str(violation) for violation in judgement.violations] == []
    assert (judgement.writes, judgement.terms, judgement.stale) == (3, 2, ())


def test_write_of_a_deposed_leader_is_a_violation() -> None:
    assert checker.TWO_LEADERS in rules(with_request(rate_request(111.5, "run-1", "6")))


def test_write_right_after_a_stop_is_a_violation_unless_another_one_left_right_before() -> None:
    """A leader sends the rates of all brokers at once, and may be stopped between two of them."""
    evidence = with_request(rate_request(111.5, "run-1", "5"))
    assert rules(replace(evidence, stops={"run-1": [(105.0, 111.4)]})) == {checker.AFTER_STOP}
    judgement = judge(replace(evidence, stops={"run-1": [(101.2, 111.4)]}))
    assert (judgement.violations, judgement.late) == ((), 1)


def test_write_after_the_deadline_of_its_own_leader_is_a_violation() -> None:
    assert rules(with_request(rate_request(103.5, "run-1", "5"))) == {checker.AFTER_DEADLINE, checker.UNANNOUNCED}


def test_heartbeat_that_was_not_read_back_does_not_extend_the_deadline() -> None:
    heartbeats = {**CORRECT.state.heartbeats, "run-1": [Heartbeat(98.0, 98.1), Heartbeat(101.0, 101.2)]}
    evidence = replace(CORRECT, state=replace(CORRECT.state, heartbeats=heartbeats))
    assert rules(evidence) == {checker.AFTER_DEADLINE}


def test_write_of_a_value_that_only_a_void_record_announces_is_a_violation() -> None:
    assert rules(with_request(rate_request(111.3, "run-2", "7"))) == {checker.UNANNOUNCED}


def test_write_to_a_list_entry_that_the_ledger_does_not_own_is_a_violation() -> None:
    key = LedgerKey("9:9", "0:1,9:9", frozenset({"0:1"}))
    write = LedgerWrite(111.0, "topics/t", LedgerEntry({FOLLOWER_REPLICAS: key}, 2), 2)
    state = replace(CORRECT.state, ledger=[*CORRECT.state.ledger[:4], write, CORRECT.state.ledger[4]])

    def appended(entry: str) -> Evidence:
        request = ConfigRequest(111.5, "run-2", {"topics/t": {FOLLOWER_REPLICAS: (APPEND, entry)}})
        return replace(with_request(request), state=state)

    assert rules(appended("0:1")) == set()
    assert rules(appended("9:9")) == {checker.UNANNOUNCED}


def test_record_of_a_term_by_another_process_is_a_violation() -> None:
    def written_by(process: str) -> Evidence:
        return replace(CORRECT, state=replace(CORRECT.state, fenced=[FencedRecord(2, process)]))

    assert rules(written_by("run-2")) == set()
    assert rules(written_by("run-1")) == {checker.TWO_ACTORS}


def test_term_that_does_not_increase_is_a_violation() -> None:
    state = replace(CORRECT.state, claims=[*CORRECT.state.claims, Claim(120.0, 2, "run-1")])
    assert rules(replace(CORRECT, state=state)) == {checker.TERM_DECREASES}


def test_write_of_another_key_is_a_violation() -> None:
    request = ConfigRequest(111.5, "run-2", {BROKER: {"log.cleaner.threads": (SET, "2")}})
    assert checker.FOREIGN_KEY in rules(with_request(request))


def test_interleaved_ledger_writes_are_a_violation() -> None:
    late = ledger_write(112.0, 1, LedgerKey(None, "5"))
    state = replace(CORRECT.state, ledger=[*CORRECT.state.ledger, late])
    assert checker.TWO_WRITERS in rules(replace(CORRECT, state=state))


def test_late_write_that_arrives_must_be_repaired() -> None:
    repaired = replace(
        CORRECT, records=[CORRECT.records[0], CORRECT.records[1], rate_record(4, 111.5, "5"), CORRECT.records[2]]
    )
    judgement = judge(repaired)
    assert judgement.violations == ()
    assert judgement.stale == ("brokers/1003 follower.replication.throttled.rate = '5' for 1.0 s",)
    forgotten = replace(repaired, records=[*CORRECT.records, rate_record(4, 114.0, "5")])
    assert rules(forgotten) == {checker.UNREPAIRED}


def test_rate_of_an_operator_is_not_a_late_write() -> None:
    evidence = with_record(rate_record(4, 114.0, "9"))
    assert rules(evidence) == {checker.UNREPAIRED}
    assert rules(replace(evidence, operators=[(113.9, BROKER, FOLLOWER_RATE)])) == set()

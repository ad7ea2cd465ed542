"""The checker accepts a correct log, and finds each violation in a modified one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autothrottle.adapters.zookeeper.codec import (
    format_change_notification,
    format_config,
    format_ledger_entry,
)
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.cluster.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LedgerEntry, LedgerKey
from autothrottle_lab.servers.zookeeper import Operation, Transaction
from tests.chaos import checker
from tests.chaos.checker import Subject, judge

KAFKA, OWN = KafkaPaths("/k"), OwnPaths("own")
USER, FIRST, SECOND, APPLIER = 1, 2, 3, 4
"""Sessions of the user, of two candidates, and of the applier."""
BROKER, TOPIC = "brokers/1", "topics/t"
BEFORE = {BROKER: {"log.cleaner.threads": "2"}, TOPIC: {FOLLOWER_REPLICAS: "9:9"}}
WHEN = datetime(2026, 11, 21, tzinfo=UTC)
SETUP_END = 10
"""The last zxid before the start of the services."""

Keys = dict[str, str]
Log = list[Transaction]


def multi(zxid: int, session: int, *operations: Operation, error: int = 0) -> Transaction:
    return Transaction(zxid, session, WHEN, "multi", operations, error)


def check_term(fence: int) -> Operation:
    return Operation("check", OWN.term, version=fence)


def config(entity: str, keys: Keys, kind: str = "set") -> tuple[Operation, Operation]:
    """A config and its notification."""
    return (
        Operation(kind, f"{KAFKA.configs}/{entity}", format_config(keys)),
        Operation("create", f"{KAFKA.change_notification}0000000001", format_change_notification(entity)),
    )


def ledger(entity: str, kind: str = "create", **keys: LedgerKey) -> Operation:
    """A ledger entry; `rate` and `list` are short for the keys of a follower."""
    names = {"rate": FOLLOWER_RATE, "list": FOLLOWER_REPLICAS}
    entry = LedgerEntry({names[name]: key for name, key in keys.items()}, term=1)
    return Operation(kind, f"{OWN.ledger}/{entity}", None if kind == "delete" else format_ledger_entry(entry))


def elected(zxid: int, session: int, fence: int, candidate: int) -> Log:
    """The transactions by which a candidate wins a term."""
    path = f"{OWN.election}/{session:032x}-{candidate:010d}"
    return [
        Transaction(zxid, session, WHEN, "create", (Operation("create", path, b"", ephemeral=True),)),
        multi(zxid + 1, session, Operation("check", path, version=0), Operation("set", OWN.term, b"{}", fence)),
    ]


def withdrawn(zxid: int, session: int, candidate: int) -> Transaction:
    path = f"{OWN.election}/{session:032x}-{candidate:010d}"
    return Transaction(zxid, session, WHEN, "close_session", (Operation("delete", path),))


SET = multi(
    20,
    APPLIER,
    check_term(1),
    *config(BROKER, {**BEFORE[BROKER], FOLLOWER_RATE: "5"}),
    ledger(BROKER, rate=LedgerKey(None, "5")),
    *config(TOPIC, {FOLLOWER_REPLICAS: "0:1,9:9"}),
    ledger(TOPIC, list=LedgerKey("9:9", "0:1,9:9", frozenset({"0:1"}))),
)
REMOVED = multi(
    60,
    APPLIER,
    check_term(2),
    *config(BROKER, BEFORE[BROKER]),
    ledger(BROKER, "delete"),
    *config(TOPIC, {**BEFORE[TOPIC], "retention.ms": "1"}),
    ledger(TOPIC, "delete"),
)
CORRECT: Log = [
    *(multi(1 + n, USER, *config(entity, dict(keys), "create")) for n, (entity, keys) in enumerate(BEFORE.items())),
    *elected(12, FIRST, 1, 0),
    SET,
    Transaction(30, SECOND, WHEN, "create", (Operation("create", f"{OWN.election}/{'a' * 32}-0000000001", b""),)),
    multi(35, USER, *config(TOPIC, {FOLLOWER_REPLICAS: "0:1,9:9", "retention.ms": "1"})),
    withdrawn(40, FIRST, 0),
    Transaction(41, SECOND, WHEN, "delete", (Operation("delete", f"{OWN.election}/{'a' * 32}-0000000001"),)),
    *elected(45, SECOND, 2, 2),
    multi(50, APPLIER, error=-103),
    multi(51, USER, error=-103),
    multi(52, APPLIER, check_term(2), error=-103),
    REMOVED,
]
SUBJECT = Subject(KAFKA, OWN, frozenset({USER}), SETUP_END, {**BEFORE, TOPIC: {**BEFORE[TOPIC], "retention.ms": "1"}})


def modified(*, original: Transaction, replacement: Transaction | None) -> Log:
    """The correct log with one transaction replaced, or removed."""
    at = CORRECT.index(original)
    return [*CORRECT[:at], *([replacement] if replacement else []), *CORRECT[at + 1 :]]


def rules(log: Sequence[Transaction], subject: Subject = SUBJECT) -> set[str]:
    return {violation.rule for violation in judge(log, subject).violations}


def test_correct_log_has_no_violation_and_is_counted() -> None:
    verdict = judge(CORRECT, SUBJECT)
    assert [str(violation) for violation in verdict.violations] == []
    assert (verdict.writes, verdict.terms, verdict.late) == (2, 2, 1)


def test_write_without_a_term_check_is_a_violation() -> None:
    unfenced = replace(SET, operations=SET.operations[1:])
    assert rules(modified(original=SET, replacement=unfenced)) == {checker.UNFENCED}


@pytest.mark.parametrize("path", [f"{OWN.ledger}/{BROKER}", KAFKA.reassign_partitions, f"{KAFKA.configs}/{BROKER}"])
def test_deletion_without_a_term_check_is_a_violation(path: str) -> None:
    removal = Transaction(61, APPLIER, WHEN, "delete", (Operation("delete", path),))
    assert checker.UNFENCED in rules([*CORRECT, removal])


def test_write_of_an_ended_term_is_a_violation() -> None:
    late = replace(REMOVED, operations=(check_term(1), *REMOVED.operations[1:]))
    assert rules(modified(original=REMOVED, replacement=late)) == {checker.ENDED_TERM}


def test_interleaved_writes_of_two_leaders_are_a_violation() -> None:
    again = multi(61, APPLIER, check_term(1), *config(BROKER, BEFORE[BROKER]))
    assert checker.TWO_LEADERS in rules([*CORRECT, again])


@pytest.mark.parametrize("case", ["no check", "not the first", "not there"])
def test_term_without_an_election_is_a_violation(case: str) -> None:
    at = next(n for n, t in enumerate(CORRECT) if any((o.kind, o.path) == ("set", OWN.term) for o in t.operations))
    candidate, won = CORRECT[at - 1], CORRECT[at]
    earlier = Transaction(11, APPLIER, WHEN, "create", (Operation("create", f"{OWN.election}/b-0000000000", b""),))
    log = {
        "no check": modified(original=won, replacement=replace(won, operations=won.operations[1:])),
        "not the first": [*CORRECT[:2], earlier, *CORRECT[2:]],
        "not there": modified(original=candidate, replacement=None),
    }[case]
    assert rules(log) == {checker.NOT_ELECTED}


def test_write_to_a_key_that_is_not_a_throttle_is_a_violation() -> None:
    keys = {"log.cleaner.threads": "8", FOLLOWER_RATE: "5"}
    replacement = replace(SET, operations=(check_term(1), *config(BROKER, keys), *SET.operations[3:]))
    assert rules(modified(original=SET, replacement=replacement)) == {checker.FOREIGN_KEY}


def test_throttle_without_a_ledger_entry_is_a_violation() -> None:
    unknown = multi(55, APPLIER, check_term(2), *config("brokers/2", {FOLLOWER_RATE: "5"}, "create"))
    subject = replace(SUBJECT, expected={**SUBJECT.expected, "brokers/2": {FOLLOWER_RATE: "5"}})
    assert rules([*CORRECT[:-1], unknown, REMOVED], subject) == {checker.FOREIGN_KEY}


@pytest.mark.parametrize("written", ["6", "4"])
def test_throttle_that_differs_from_the_ledger_is_a_violation(written: str) -> None:
    entry = ledger(BROKER, rate=LedgerKey(None, written))
    replacement = replace(SET, operations=(*SET.operations[:3], entry, *SET.operations[4:]))
    assert rules(modified(original=SET, replacement=replacement)) == {checker.LEDGER_MISMATCH}


def test_throttle_that_outlives_its_ledger_entry_is_a_violation_at_once_and_at_the_end() -> None:
    kept = {**BEFORE[BROKER], FOLLOWER_RATE: "5"}
    replacement = replace(REMOVED, operations=(check_term(2), *config(BROKER, kept), *REMOVED.operations[3:]))
    assert rules(modified(original=REMOVED, replacement=replacement)) == {
        checker.LEDGER_MISMATCH,
        checker.WRONG_END_STATE,
    }


def test_config_write_without_a_notification_is_a_violation() -> None:
    replacement = replace(SET, operations=tuple(o for o in SET.operations if b"brokers/1" not in (o.data or b"")))
    assert rules(modified(original=SET, replacement=replacement)) == {checker.NOT_NOTIFIED}


def test_throttles_and_ledger_entries_left_at_the_end_are_violations() -> None:
    assert rules(modified(original=REMOVED, replacement=None)) == {checker.WRONG_END_STATE, checker.LEDGER_LEFT}


@pytest.mark.parametrize(
    "expected",
    [
        {**SUBJECT.expected, BROKER: {}},
        {**SUBJECT.expected, TOPIC: {**SUBJECT.expected[TOPIC], FOLLOWER_REPLICAS: "8:8"}},
        {**SUBJECT.expected, "brokers/7": {FOLLOWER_RATE: "7"}},
    ],
    ids=["extra key", "different value", "missing entity"],
)
def test_unexpected_final_configs_are_a_violation(expected: checker.Configs) -> None:
    assert rules(CORRECT, replace(SUBJECT, expected=expected)) == {checker.WRONG_END_STATE}


def test_list_order_and_empty_entities_make_no_difference() -> None:
    found = {TOPIC: {FOLLOWER_REPLICAS: "2:1,10:1"}, "brokers/4": {}}
    assert checker.differences(found, {TOPIC: {FOLLOWER_REPLICAS: "10:1,2:1"}}) == []


def test_writes_before_the_start_of_the_services_are_not_checked() -> None:
    stray = Transaction(9, APPLIER, WHEN, "set", (config(BROKER, BEFORE[BROKER])[0],))
    assert rules([*CORRECT[:2], stray, *CORRECT[2:]]) == set()


def test_violation_names_rule_transaction_and_values() -> None:
    late = replace(REMOVED, operations=(check_term(1), *REMOVED.operations[1:]))
    (violation,) = (v for v in judge(modified(original=REMOVED, replacement=late), SUBJECT).violations)
    assert str(violation).startswith("a write of an ended term at 0x3c: ['/k/config/brokers/1'")
    assert json.dumps(violation.details)

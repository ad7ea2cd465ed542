"""The checker finds nothing in a good log, and each broken promise in a doctored one."""

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
from autothrottle.core.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.lab.chaos import checker
from autothrottle.lab.chaos.checker import Subject, judge
from autothrottle.lab.zookeeper import Operation, Transaction

KAFKA, OWN = KafkaPaths("/k"), OwnPaths("own")
USER, FIRST, SECOND, APPLIER = 1, 2, 3, 4
"""Sessions: of somebody else, of two candidates, and of what writes."""
BROKER, TOPIC = "brokers/1", "topics/t"
BEFORE = {BROKER: {"log.cleaner.threads": "2"}, TOPIC: {FOLLOWER_REPLICAS: "9:9"}}
WHEN = datetime(2026, 11, 21, tzinfo=UTC)
STAGE_SET = 10
"""The last zxid before the services start."""

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
    """An entry; `rate` and `list` stand for the keys of a follower."""
    names = {"rate": FOLLOWER_RATE, "list": FOLLOWER_REPLICAS}
    entry = LedgerEntry({names[name]: key for name, key in keys.items()}, term=1)
    return Operation(kind, f"{OWN.ledger}/{entity}", None if kind == "delete" else format_ledger_entry(entry))


def elected(zxid: int, session: int, fence: int, candidate: int) -> Log:
    """A candidate wins a term."""
    path = f"{OWN.election}/{session:032x}-{candidate:010d}"
    return [
        Transaction(zxid, session, WHEN, "create", (Operation("create", path, b"", ephemeral=True),)),
        multi(zxid + 1, session, Operation("check", path, version=0), Operation("set", OWN.term, b"{}", fence)),
    ]


def gone(zxid: int, session: int, candidate: int) -> Transaction:
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
TAKEN_BACK = multi(
    60,
    APPLIER,
    check_term(2),
    *config(BROKER, BEFORE[BROKER]),
    ledger(BROKER, "delete"),
    *config(TOPIC, {**BEFORE[TOPIC], "retention.ms": "1"}),
    ledger(TOPIC, "delete"),
)
GOOD: Log = [
    *(multi(1 + n, USER, *config(entity, dict(keys), "create")) for n, (entity, keys) in enumerate(BEFORE.items())),
    *elected(12, FIRST, 1, 0),
    SET,
    Transaction(30, SECOND, WHEN, "create", (Operation("create", f"{OWN.election}/{'a' * 32}-0000000001", b""),)),
    multi(35, USER, *config(TOPIC, {FOLLOWER_REPLICAS: "0:1,9:9", "retention.ms": "1"})),
    gone(40, FIRST, 0),
    Transaction(41, SECOND, WHEN, "delete", (Operation("delete", f"{OWN.election}/{'a' * 32}-0000000001"),)),
    *elected(45, SECOND, 2, 2),
    multi(50, APPLIER, error=-103),
    multi(51, USER, error=-103),
    multi(52, APPLIER, check_term(2), error=-103),
    TAKEN_BACK,
]
SUBJECT = Subject(KAFKA, OWN, frozenset({USER}), STAGE_SET, {**BEFORE, TOPIC: {**BEFORE[TOPIC], "retention.ms": "1"}})


def doctored(*, instead_of: Transaction, ours: Transaction | None) -> Log:
    """The good log with another transaction, or none, in one place."""
    at = GOOD.index(instead_of)
    return [*GOOD[:at], *([ours] if ours else []), *GOOD[at + 1 :]]


def rules(log: Sequence[Transaction], subject: Subject = SUBJECT) -> set[str]:
    return {violation.rule for violation in judge(log, subject).violations}


def test_a_good_log_has_no_violation_and_is_counted() -> None:
    verdict = judge(GOOD, SUBJECT)
    assert [str(violation) for violation in verdict.violations] == []
    assert (verdict.writes, verdict.terms, verdict.late) == (2, 2, 1)


def test_a_write_that_checks_no_term_is_found() -> None:
    unfenced = replace(SET, operations=SET.operations[1:])
    assert rules(doctored(instead_of=SET, ours=unfenced)) == {checker.UNFENCED}


@pytest.mark.parametrize("path", [f"{OWN.ledger}/{BROKER}", KAFKA.reassign_partitions, f"{KAFKA.configs}/{BROKER}"])
def test_a_removal_that_checks_no_term_is_found(path: str) -> None:
    removal = Transaction(61, APPLIER, WHEN, "delete", (Operation("delete", path),))
    assert checker.UNFENCED in rules([*GOOD, removal])


def test_a_write_of_an_ended_term_is_found() -> None:
    late = replace(TAKEN_BACK, operations=(check_term(1), *TAKEN_BACK.operations[1:]))
    assert rules(doctored(instead_of=TAKEN_BACK, ours=late)) == {checker.ENDED_TERM}


def test_writes_of_two_leaders_at_a_time_are_found() -> None:
    again = multi(61, APPLIER, check_term(1), *config(BROKER, BEFORE[BROKER]))
    assert checker.TWO_LEADERS in rules([*GOOD, again])


@pytest.mark.parametrize("how", ["no check", "not the first", "not there"])
def test_a_term_that_was_not_won_is_found(how: str) -> None:
    at = next(n for n, t in enumerate(GOOD) if any((o.kind, o.path) == ("set", OWN.term) for o in t.operations))
    candidate, won = GOOD[at - 1], GOOD[at]
    earlier = Transaction(11, APPLIER, WHEN, "create", (Operation("create", f"{OWN.election}/b-0000000000", b""),))
    log = {
        "no check": doctored(instead_of=won, ours=replace(won, operations=won.operations[1:])),
        "not the first": [*GOOD[:2], earlier, *GOOD[2:]],
        "not there": doctored(instead_of=candidate, ours=None),
    }[how]
    assert rules(log) == {checker.NOT_ELECTED}


def test_a_write_to_a_key_that_is_no_throttle_is_found() -> None:
    keys = {"log.cleaner.threads": "8", FOLLOWER_RATE: "5"}
    ours = replace(SET, operations=(check_term(1), *config(BROKER, keys), *SET.operations[3:]))
    assert rules(doctored(instead_of=SET, ours=ours)) == {checker.FOREIGN_KEY}


def test_a_throttle_that_never_was_in_the_ledger_is_found() -> None:
    unknown = multi(55, APPLIER, check_term(2), *config("brokers/2", {FOLLOWER_RATE: "5"}, "create"))
    subject = replace(SUBJECT, expected={**SUBJECT.expected, "brokers/2": {FOLLOWER_RATE: "5"}})
    assert rules([*GOOD[:-1], unknown, TAKEN_BACK], subject) == {checker.FOREIGN_KEY}


@pytest.mark.parametrize("written", ["6", "4"])
def test_a_throttle_that_the_ledger_does_not_know_is_found(written: str) -> None:
    entry = ledger(BROKER, rate=LedgerKey(None, written))
    ours = replace(SET, operations=(*SET.operations[:3], entry, *SET.operations[4:]))
    assert rules(doctored(instead_of=SET, ours=ours)) == {checker.HALF_WRITTEN}


def test_a_throttle_that_outlives_its_ledger_is_found_at_once_and_in_the_end() -> None:
    kept = {**BEFORE[BROKER], FOLLOWER_RATE: "5"}
    ours = replace(TAKEN_BACK, operations=(check_term(2), *config(BROKER, kept), *TAKEN_BACK.operations[3:]))
    assert rules(doctored(instead_of=TAKEN_BACK, ours=ours)) == {checker.HALF_WRITTEN, checker.AT_THE_END}


def test_a_config_without_its_notification_is_found() -> None:
    ours = replace(SET, operations=tuple(o for o in SET.operations if b"brokers/1" not in (o.data or b"")))
    assert rules(doctored(instead_of=SET, ours=ours)) == {checker.UNANNOUNCED}


def test_throttles_and_a_ledger_that_are_left_are_found() -> None:
    assert rules(doctored(instead_of=TAKEN_BACK, ours=None)) == {checker.AT_THE_END, checker.LEDGER_LEFT}


@pytest.mark.parametrize(
    "expected",
    [
        {**SUBJECT.expected, BROKER: {}},
        {**SUBJECT.expected, TOPIC: {**SUBJECT.expected[TOPIC], FOLLOWER_REPLICAS: "8:8"}},
        {**SUBJECT.expected, "brokers/7": {FOLLOWER_RATE: "7"}},
    ],
    ids=["a key too many", "another value", "an entity that is gone"],
)
def test_any_other_end_than_the_expected_one_is_found(expected: checker.Configs) -> None:
    assert rules(GOOD, replace(SUBJECT, expected=expected)) == {checker.AT_THE_END}


def test_lists_in_another_order_and_entities_without_keys_are_the_same() -> None:
    found = {TOPIC: {FOLLOWER_REPLICAS: "2:1,10:1"}, "brokers/4": {}}
    assert checker.differences(found, {TOPIC: {FOLLOWER_REPLICAS: "10:1,2:1"}}) == []


def test_what_was_wrong_before_the_services_started_is_nobodys_fault() -> None:
    stray = Transaction(9, APPLIER, WHEN, "set", (config(BROKER, BEFORE[BROKER])[0],))
    assert rules([*GOOD[:2], stray, *GOOD[2:]]) == set()


def test_a_violation_names_rule_transaction_and_values() -> None:
    late = replace(TAKEN_BACK, operations=(check_term(1), *TAKEN_BACK.operations[1:]))
    (violation,) = (v for v in judge(doctored(instead_of=TAKEN_BACK, ours=late), SUBJECT).violations)
    assert str(violation).startswith("a write of an ended term at 0x3c: ['/k/config/brokers/1'")
    assert json.dumps(violation.what)

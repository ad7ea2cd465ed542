"""Processes show that another one has another state, and count the losses of records."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.membership import KafkaMembership, disagreement
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.core.members import Member
from tests.builders import NOON, eventually
from tests.unit.autothrottle.adapters.kafka_state.processes import OWN, Processes, X, put, soon, text

SESSION = timedelta(seconds=3)
MEMBER = Member("gateway", ("gateway",), "1.0", "10.0.0.2:9000", "host2", 71, NOON)


def damage(log: StateLog) -> None:
    """Change a node in the memory of a process, and what the process remembers of it."""
    with log.current() as tree:
        tree.put(X, None)
        log._reader.replica._remember(log._reader.replica.position)


@pytest.fixture
def second(processes: Processes, log: StateLog) -> StateLog:
    """Another process, after the strict rules have begun."""
    second = processes.log()
    log.mark_strict(0, soon())
    put(log, "1")
    assert text(second) == "1"
    return second


def test_member_with_another_state_is_named_until_it_agrees(log: StateLog, second: StateLog) -> None:
    damage(second)
    membership = KafkaMembership(second, OWN, SESSION)
    membership.join(MEMBER)
    try:
        eventually(lambda: disagreement(log, OWN, SESSION))
        assert disagreement(log, OWN, SESSION) == (
            "The state of these processes is not that of the state topic state, which this process has read again: "
            "gateway on host2 (pid 71, address 10.0.0.2:9000). Fix: restart them"
        )
        assert log.resets == 0
        log.append(StateEdit(), soon())  # the other process reads its digest, and then the whole log
        eventually(lambda: second.resets == 1)
        eventually(lambda: not disagreement(log, OWN, SESSION))
        assert text(second) == "1"
    finally:
        membership.leave()


def test_process_that_has_ended_is_not_named_any_more(log: StateLog, second: StateLog) -> None:
    """A process that was restarted has another id. The old one would be named for ever."""
    damage(second)
    path = f"{OWN.election}/abc"
    with closing(second):
        second.append(StateEdit(texts={path: "{}"}), soon())
        eventually(lambda: log.differing)
        (process,) = log.differing
        assert f"process {process}" in disagreement(log, OWN, timedelta(hours=1))
    eventually(lambda: not disagreement(log, OWN, timedelta(seconds=0.1)))


def test_losses_of_records_are_counted_once_by_their_kind(
    processes: Processes, log: StateLog, second: StateLog
) -> None:
    partition = processes.partition
    log.write_snapshot()
    put(second, "2")
    assert text(log) == "2"
    partition.truncate(partition.end - 2)
    expected = {"tail": 1, "beginning": 0, "topic": 0}
    eventually(lambda: log.losses == second.losses == expected)
    eventually(lambda: text(second) == text(log) == "2")
    partition.delete_before(partition.end)
    put(log, "3")
    expected |= {"beginning": 1}
    eventually(lambda: log.losses == second.losses == expected)
    log.write_snapshot()
    partition.delete()
    eventually(lambda: log.losses == second.losses == expected | {"topic": 1})
    eventually(lambda: text(second) == text(log) == "3")

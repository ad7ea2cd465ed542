"""The readings that notice edits of throttles by other parties: their pace, and brokers that do not answer."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

import pytest

from autothrottle.adapters.kafka_admin.throttle_checks import (
    BROKERS_AT_ONCE,
    LISTS_TICKS,
    ROUND_TICKS,
    Rounds,
    ThrottleChecks,
)
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE, ConfigResource, LedgerEntry, LedgerKey
from autothrottle.core.cluster.snapshot import TopicReassignment
from autothrottle.core.throttles.foreign_edits import RECHECK
from tests.builders import eventually, reassignment
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryKafka, MemoryLedger

TICK = RECHECK.total_seconds()


@pytest.mark.parametrize(("brokers", "longest"), [(1, 1.6), (150, 1.6), (200, 2.0), (1_000, 10.0)])
def test_each_broker_is_asked_in_time_and_at_most_a_hundred_in_a_second(brokers: int, longest: float) -> None:
    """Rates were read at the pace of the slowest answer: after a broker died, edits went unnoticed for 30 s."""
    rounds = Rounds(BROKERS_AT_ONCE, TICK)
    resources = dict.fromkeys(ConfigResource.broker(b) for b in range(brokers))
    times_of: dict[ConfigResource, list[float]] = {resource: [] for resource in resources}
    per_tick = []
    for number in range(200):
        due = rounds.due(resources, ROUND_TICKS * TICK, number * TICK)
        per_tick.append(len(due))
        for resource in due:
            times_of[resource].append(number * TICK)
    assert max(sum(per_tick[start : start + 5]) for start in range(len(per_tick))) <= 100
    gaps = [later - earlier for times in times_of.values() for earlier, later in pairwise(times)]
    assert max(gaps) <= longest + 1e-6 and min(gaps) >= (ROUND_TICKS - 1) * TICK
    assert all(times for times in times_of.values())


def test_suspects_are_asked_first() -> None:
    rounds, resources = Rounds(2, TICK), [ConfigResource.broker(b) for b in range(10)]
    assert rounds.due(resources, 1.0, 0.0) == resources[:2]
    assert rounds.due(resources, 1.0, TICK, suspects=[resources[0]]) == [resources[0], resources[2]]


def test_lists_are_read_once_a_second() -> None:
    rounds = Rounds(1_000, TICK)
    topics = [ConfigResource.topic("t1")]
    readings = sum(bool(rounds.due(topics, LISTS_TICKS * TICK, number * TICK)) for number in range(51))
    assert readings == 11


class Checks:
    """Checks of a cluster in memory, with small ticks."""

    def __init__(self, brokers: int) -> None:
        self.cluster = MemoryCluster(brokers=range(brokers))
        self.kafka, self.ledger = MemoryKafka(self.cluster), MemoryLedger(self.cluster)
        self.reasons: list[str] = []
        self._lock = threading.Lock()
        self.checks = ThrottleChecks(self.kafka, self.ledger, self._publish, timedelta(milliseconds=2))

    def _publish(self, differences: object) -> None:
        with self._lock:
            self.reasons += [reason for reason, _ in differences]  # type: ignore[attr-defined]

    def throttle(self, broker_id: int, key: str) -> None:
        resource = ConfigResource.broker(broker_id)
        self.cluster.ledger[resource] = LedgerEntry({key: LedgerKey(None, "5")}, 1)
        self.cluster.configs[resource] = {key: "5"}


@pytest.fixture
def checks() -> Iterator[Checks]:
    checks = Checks(40)
    yield checks
    checks.checks.close()


def moving(brokers: int) -> list[TopicReassignment]:
    """Broker 0 sends to all others."""
    return [reassignment("t1", {b: (0, (0,), (b,), ()) for b in range(1, brokers)})]


def test_nothing_is_read_while_nothing_moves(checks: Checks) -> None:
    time.sleep(0.03)
    assert not checks.kafka.calls and not checks.ledger.reads
    checks.checks.follow(moving(40), frozenset(range(40)))
    eventually(lambda: checks.kafka.calls["broker_configs"] > 3)
    checks.checks.follow([], frozenset(range(40)))
    time.sleep(0.03)
    calls = Counter(checks.kafka.calls)
    time.sleep(0.05)
    assert checks.kafka.calls == calls


def test_no_reassignment_is_kept_after_its_end(checks: Checks) -> None:
    """The threads kept 100,000 partitions until the next reassignment."""
    reassignments = moving(40)
    held_by_the_test = sys.getrefcount(reassignments[0])
    checks.checks.follow(reassignments, frozenset(range(40)))
    eventually(lambda: checks.kafka.calls["broker_configs"] > 3 and checks.kafka.calls["topic_configs"] > 1)
    checks.checks.follow([], frozenset(range(40)))
    eventually(lambda: sys.getrefcount(reassignments[0]) == held_by_the_test)


def test_a_broker_that_does_not_answer_delays_no_other(checks: Checks) -> None:
    """One request held all brokers' rates, so that a dying broker delayed the comparison of all."""
    held, broker_configs = threading.Event(), checks.kafka.broker_configs

    def slow(broker_ids, *arguments, **options):  # type: ignore[no-untyped-def]
        if 7 in broker_ids and checks.kafka.calls["broker_configs"] > 3:
            held.wait(20)
        return broker_configs(broker_ids, *arguments, **options)

    checks.throttle(0, LEADER_RATE)
    checks.throttle(1, FOLLOWER_RATE)
    checks.kafka.silent.add(7)
    checks.kafka.broker_configs = slow  # type: ignore[method-assign]
    checks.checks.follow(moving(40), frozenset(range(40)))
    eventually(lambda: checks.kafka.calls["broker_configs"] > 6)
    checks.cluster.configs[ConfigResource.broker(1)] = {}
    eventually(lambda: checks.reasons == ["another party edited the throttles of brokers/1"])
    checks.kafka.silent.clear()
    held.set()
    eventually(lambda: "broker 7 answers again" in checks.reasons)


def test_after_an_outage_of_all_brokers_their_rates_are_compared_at_the_usual_pace(checks: Checks) -> None:
    """Two silent brokers were asked in a tick: 1,000 of them took 100 s after their return."""
    checks.kafka.silent.update(range(40))
    checks.checks.follow(moving(40), frozenset(range(40)))
    eventually(lambda: checks.checks._of_silent.at_once == BROKERS_AT_ONCE)
    checks.kafka.silent.clear()
    eventually(lambda: sum("answers again" in reason for reason in checks.reasons) == 40)
    eventually(lambda: checks.checks._of_silent.at_once == 2)


def test_the_ledger_is_read_once_for_each_reading_of_lists(checks: Checks) -> None:
    """With the state in Kafka each reading of the ledger is a record, so that rates alone must not cause any."""
    checks.throttle(1, FOLLOWER_RATE)
    checks.checks.follow(moving(40), frozenset(range(40)))
    eventually(lambda: checks.kafka.calls["broker_configs"] > 20)
    assert checks.ledger.reads <= checks.kafka.calls["topic_configs"] + 1

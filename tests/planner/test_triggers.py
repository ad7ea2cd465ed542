"""When a cycle runs, by a clock that the test moves; what blocks is tried with real threads."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest

from autothrottle.planner.triggers import Trigger, Triggers
from tests.builders import eventually

MINUTE = timedelta(minutes=1)
SLACK = 60.0
INTERVAL = Trigger("interval", scheduled=True)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def at(self, seconds: float) -> None:
        """Set the time since the begin."""
        self.seconds = 100.0 + seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def triggers(clock: Clock) -> Triggers:
    """Triggers whose first scheduled cycle was taken at 0 s."""
    made = Triggers(MINUTE, clock)
    assert made.poll() == INTERVAL
    return made


def event(reason: str) -> Trigger:
    return Trigger(reason, scheduled=False)


def test_the_first_scheduled_cycle_is_due_at_once_and_one_only(clock: Clock) -> None:
    made = Triggers(MINUTE, clock)
    assert made.poll() == INTERVAL
    assert made.poll() is None


def test_scheduled_cycles_come_once_per_interval(clock: Clock, triggers: Triggers) -> None:
    for minute in (1, 2, 3):
        clock.at(minute * 60 - 0.001)
        assert triggers.poll() is None
        clock.at(minute * 60)
        assert triggers.poll() == INTERVAL


def test_after_a_cycle_that_came_late_the_interval_counts_from_its_start(clock: Clock, triggers: Triggers) -> None:
    clock.at(75)
    assert triggers.poll() == INTERVAL
    clock.at(134)
    assert triggers.poll() is None
    clock.at(135)
    assert triggers.poll() == INTERVAL


def test_the_first_event_starts_a_cycle_at_once_also_right_after_a_scheduled_one(triggers: Triggers) -> None:
    triggers.request("a reassignment started")
    assert triggers.poll() == event("a reassignment started")


def test_cycles_that_events_start_are_a_second_apart(clock: Clock, triggers: Triggers) -> None:
    triggers.request("first")
    assert triggers.poll() == event("first")
    clock.at(0.2)
    triggers.request("second")
    assert triggers.poll() is None
    clock.at(0.999)
    assert triggers.poll() is None
    clock.at(1)
    assert triggers.poll() == event("second")
    clock.at(5)
    triggers.request("third")
    assert triggers.poll() == event("third")


def test_requests_that_come_together_share_one_cycle_and_each_is_named_once(clock: Clock, triggers: Triggers) -> None:
    for reason in ("a leader changed", "a replica joined", "a leader changed"):
        triggers.request(reason)
    assert triggers.poll() == event("a leader changed; a replica joined")
    clock.at(10)
    assert triggers.poll() is None


def test_a_scheduled_cycle_serves_the_requests_that_are_due(clock: Clock, triggers: Triggers) -> None:
    clock.at(60)
    triggers.request("an override changed")
    triggers.request("trying again", after=timedelta(seconds=3))
    assert triggers.poll() == Trigger("an override changed", scheduled=True)
    clock.at(62.999)
    assert triggers.poll() is None
    clock.at(63)
    assert triggers.poll() == event("trying again")


def test_a_delayed_request_waits_for_its_time_and_the_earliest_time_counts(clock: Clock, triggers: Triggers) -> None:
    triggers.request("trying again", after=timedelta(seconds=8))
    triggers.request("trying again", after=timedelta(seconds=4))
    triggers.request("trying again", after=timedelta(seconds=6))
    clock.at(3.999)
    assert triggers.poll() is None
    clock.at(4)
    assert triggers.poll() == event("trying again")
    clock.at(9)
    assert triggers.poll() is None


def test_a_restart_makes_a_scheduled_cycle_due_and_forgets_what_was_asked_before(
    clock: Clock, triggers: Triggers
) -> None:
    triggers.request("of the old term")
    triggers.request("trying again", after=timedelta(seconds=2))
    clock.at(10)
    triggers.restart()
    assert triggers.poll() == INTERVAL
    assert triggers.poll() is None
    clock.at(69)
    assert triggers.poll() is None
    clock.at(70)
    assert triggers.poll() == INTERVAL


def waiting(pool: ThreadPoolExecutor, triggers: Triggers) -> Future[Trigger | None]:
    """A thread that waits, and has had the time to fall asleep."""
    found = pool.submit(triggers.wait)
    eventually(found.running)
    time.sleep(0.05)
    assert not found.done()
    return found


def test_whoever_waits_wakes_for_a_request() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    with ThreadPoolExecutor(1) as pool:
        found = waiting(pool, triggers)
        triggers.request("asked for")
        assert found.result(SLACK) == event("asked for")


def test_whoever_waits_wakes_by_itself_when_something_becomes_due() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    started = time.monotonic()
    triggers.request("trying again", after=timedelta(seconds=0.2))
    assert triggers.wait() == event("trying again")
    assert 0.2 <= time.monotonic() - started < SLACK


def test_whoever_waits_for_a_later_request_wakes_for_an_earlier_one() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    triggers.request("trying again", after=timedelta(seconds=50))
    with ThreadPoolExecutor(1) as pool:
        found = waiting(pool, triggers)
        triggers.request("a leader changed")
        assert found.result(SLACK) == event("a leader changed")


def test_a_trigger_knows_the_newest_of_those_who_asked(clock: Clock, triggers: Triggers) -> None:
    clock.at(10)
    for origin in range(40):
        triggers.request("asked for by two", origin=origin)
    triggers.request("a leader changed")
    triggers.request("asked for by one", origin="one")
    found = triggers.poll()
    assert found is not None and found.origins == (*range(9, 40), "one")
    clock.at(20)
    triggers.request("a leader changed")
    assert triggers.poll() == event("a leader changed")


def test_whoever_waits_wakes_for_a_restart() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    with ThreadPoolExecutor(1) as pool:
        found = waiting(pool, triggers)
        triggers.restart()
        assert found.result(SLACK) == INTERVAL


def test_stopping_ends_the_wait_and_every_later_one_whatever_is_due() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    with ThreadPoolExecutor(1) as pool:
        found = waiting(pool, triggers)
        triggers.stop()
        assert found.result(SLACK) is None
    triggers.request("too late")
    assert triggers.wait() is None


# Kafka's controller takes a reassignment of many partitions up one by one, each a write of the topic's node. With a
# second between all event cycles the first partition was throttled after 0.05 s and the other eleven after 1.05 s:
# a second at link speed.
def test_what_moves_unthrottled_waits_for_a_fifth_of_a_second_only(triggers: Triggers, clock: Clock) -> None:
    clock.at(10)
    triggers.request("reassignment started: [t]", urgent=True)
    assert triggers.poll() == Trigger("reassignment started: [t]", scheduled=False)
    triggers.request("reassignment of t grew", urgent=True)
    triggers.request("ISR of t changed")
    clock.at(10.1)
    assert triggers.poll() is None
    clock.at(10.2)
    assert triggers.poll() == Trigger("reassignment of t grew; ISR of t changed", scheduled=False)
    triggers.request("ISR of t changed")
    clock.at(11.1)
    assert triggers.poll() is None
    clock.at(11.2)
    assert triggers.poll() == Trigger("ISR of t changed", scheduled=False)

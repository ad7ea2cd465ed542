"""When a cycle runs: with a virtual clock, and with real threads for blocking calls."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest

from autothrottle.planner.loop import Trigger, Triggers
from tests.builders import eventually

MINUTE = timedelta(minutes=1)
SLACK = 60.0
INTERVAL = Trigger("interval", scheduled=True)


class Clock:
    """A virtual clock."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def at(self, seconds: float) -> None:
        """Set the seconds since the start."""
        self.seconds = 100.0 + seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def triggers(clock: Clock) -> Triggers:
    """Triggers after their first scheduled cycle, at 0 s."""
    made = Triggers(MINUTE, clock)
    assert made.poll() == INTERVAL
    return made


def event(reason: str) -> Trigger:
    return Trigger(reason, scheduled=False)


def test_one_scheduled_cycle_is_due_at_the_start(clock: Clock) -> None:
    made = Triggers(MINUTE, clock)
    assert made.poll() == INTERVAL
    assert made.poll() is None


def test_scheduled_cycles_run_once_per_interval(clock: Clock, triggers: Triggers) -> None:
    for minute in (1, 2, 3):
        clock.at(minute * 60 - 0.001)
        assert triggers.poll() is None
        clock.at(minute * 60)
        assert triggers.poll() == INTERVAL


def test_the_interval_counts_from_the_start_of_a_late_cycle(clock: Clock, triggers: Triggers) -> None:
    clock.at(75)
    assert triggers.poll() == INTERVAL
    clock.at(134)
    assert triggers.poll() is None
    clock.at(135)
    assert triggers.poll() == INTERVAL


def test_the_first_event_starts_a_cycle_at_once_even_after_a_scheduled_one(triggers: Triggers) -> None:
    triggers.request("a reassignment started")
    assert triggers.poll() == event("a reassignment started")


def test_event_cycles_are_at_least_a_second_apart(clock: Clock, triggers: Triggers) -> None:
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


def test_simultaneous_requests_share_a_cycle_that_names_each_reason_once(clock: Clock, triggers: Triggers) -> None:
    for reason in ("a leader changed", "a replica joined", "a leader changed"):
        triggers.request(reason)
    assert triggers.poll() == event("a leader changed; a replica joined")
    clock.at(10)
    assert triggers.poll() is None


def test_a_scheduled_cycle_serves_due_requests(clock: Clock, triggers: Triggers) -> None:
    clock.at(60)
    triggers.request("an override changed")
    triggers.request("retrying after a failure", after=timedelta(seconds=3))
    assert triggers.poll() == Trigger("an override changed", scheduled=True)
    clock.at(62.999)
    assert triggers.poll() is None
    clock.at(63)
    assert triggers.poll() == event("retrying after a failure")


def test_the_earliest_due_time_of_delayed_requests_counts(clock: Clock, triggers: Triggers) -> None:
    triggers.request("retrying after a failure", after=timedelta(seconds=8))
    triggers.request("retrying after a failure", after=timedelta(seconds=4))
    triggers.request("retrying after a failure", after=timedelta(seconds=6))
    clock.at(3.999)
    assert triggers.poll() is None
    clock.at(4)
    assert triggers.poll() == event("retrying after a failure")
    clock.at(9)
    assert triggers.poll() is None


def test_a_restart_drops_requests_and_makes_a_scheduled_cycle_due(clock: Clock, triggers: Triggers) -> None:
    triggers.request("of the previous term")
    triggers.request("retrying after a failure", after=timedelta(seconds=2))
    clock.at(10)
    triggers.restart()
    assert triggers.poll() == INTERVAL
    assert triggers.poll() is None
    clock.at(69)
    assert triggers.poll() is None
    clock.at(70)
    assert triggers.poll() == INTERVAL


def start_waiting(pool: ThreadPoolExecutor, triggers: Triggers) -> Future[Trigger | None]:
    """Call `wait` in a thread; return once it blocks."""
    found = pool.submit(triggers.wait)
    eventually(found.running)
    time.sleep(0.05)
    assert not found.done()
    return found


def test_a_waiting_thread_wakes_for_a_request() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    with ThreadPoolExecutor(1) as pool:
        found = start_waiting(pool, triggers)
        triggers.request("requested")
        assert found.result(SLACK) == event("requested")


def test_a_waiting_thread_wakes_when_a_delayed_request_becomes_due() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    started = time.monotonic()
    triggers.request("retrying after a failure", after=timedelta(seconds=0.2))
    assert triggers.wait() == event("retrying after a failure")
    assert 0.2 <= time.monotonic() - started < SLACK


def test_a_waiting_thread_wakes_for_an_earlier_request() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    triggers.request("retrying after a failure", after=timedelta(seconds=50))
    with ThreadPoolExecutor(1) as pool:
        found = start_waiting(pool, triggers)
        triggers.request("a leader changed")
        assert found.result(SLACK) == event("a leader changed")


def test_a_trigger_keeps_the_newest_origins(clock: Clock, triggers: Triggers) -> None:
    clock.at(10)
    for origin in range(40):
        triggers.request("requested by two", origin=origin)
    triggers.request("a leader changed")
    triggers.request("requested by one", origin="one")
    found = triggers.poll()
    assert found is not None and found.origins == (*range(9, 40), "one")
    clock.at(20)
    triggers.request("a leader changed")
    assert triggers.poll() == event("a leader changed")


def test_a_waiting_thread_wakes_for_a_restart() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    with ThreadPoolExecutor(1) as pool:
        found = start_waiting(pool, triggers)
        triggers.restart()
        assert found.result(SLACK) == INTERVAL


def test_stop_ends_the_current_wait_and_all_later_ones() -> None:
    triggers = Triggers(MINUTE)
    assert triggers.wait() == INTERVAL
    with ThreadPoolExecutor(1) as pool:
        found = start_waiting(pool, triggers)
        triggers.stop()
        assert found.result(SLACK) is None
    triggers.request("too late")
    assert triggers.wait() is None


# Kafka's controller starts a reassignment of many partitions one by one, with one write of the topic's node each. With
# a second between all event cycles, the first partition was throttled after 0.05 s and the other eleven after 1.05 s,
# so they copied for a second at link speed.
def test_urgent_cycles_are_only_a_fifth_of_a_second_apart(triggers: Triggers, clock: Clock) -> None:
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


def test_any_number_of_requests_takes_bounded_memory_and_one_short_reason(triggers: Triggers, clock: Clock) -> None:
    """Each distinct reason was kept and joined to the cycle's reason. 1,500 requests made a reason of 1.5 MB."""
    clock.at(2)
    for number in range(1_500):
        triggers.request(f"request {number} {'x' * 900}")
    assert len(triggers._requests) < 10
    trigger = triggers.poll()
    assert trigger is not None
    assert trigger.reason.startswith("request 0 xxx") and trigger.reason.endswith("; and more requests")
    assert len(trigger.reason) < 2_000
    assert triggers.poll() is None


def test_delayed_requests_keep_their_time_beside_many_immediate_ones(triggers: Triggers, clock: Clock) -> None:
    clock.at(2)
    for number in range(20):
        triggers.request(f"request {number}")
    triggers.request("an override expires", timedelta(seconds=10))
    assert triggers.poll() is not None
    clock.at(11.9)
    assert triggers.poll() is None
    clock.at(12)
    assert triggers.poll() == Trigger("an override expires", scheduled=False)

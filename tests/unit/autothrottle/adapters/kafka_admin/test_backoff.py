from __future__ import annotations

from itertools import pairwise

from autothrottle.adapters.kafka_admin.backoff import Backoff, ConnectFailure

FIRST, SECOND = ("b1", 9092), ("b2", 9092)
ERROR = OSError("refused")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def tries(backoff: Backoff, clock: Clock, seconds: float) -> list[float]:
    """Try an address that is always down whenever it is allowed, for so many seconds; return the times."""
    times, end = list[float](), clock.now + seconds
    while clock.now < end:
        if backoff.begin(FIRST) is None:
            times.append(clock.now)
            backoff.failed(FIRST, ERROR)
        clock.now += 0.01
    return times


def test_address_that_stays_down_is_tried_once_in_five_seconds_and_a_restart_is_seen_after_a_tenth_of_its_time() -> (
    None
):
    clock = Clock()
    times = tries(Backoff(clock), clock, 3600.0)
    outages = [time - times[0] for time in times]
    assert len(times) < 3600 / 5 + 60
    assert all(later - outage < min(5.0, 0.1 * outage + 0.05) + 0.02 for outage, later in pairwise(outages))


def test_tries_of_one_address_are_claimed_by_one_connection() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    backoff.failed(FIRST, ERROR)
    assert backoff.begin(FIRST) == ConnectFailure(ERROR, 100.0)
    clock.now += 0.06
    assert [backoff.begin(FIRST), backoff.begin(FIRST)] == [None, ConnectFailure(ERROR, 100.0)]


def test_success_at_one_address_lets_all_be_tried_at_once() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    tries(backoff, clock, 60.0)
    backoff.failed(SECOND, ERROR)
    clock.now += 0.1
    backoff.failed(FIRST, ERROR)
    assert backoff.begin(SECOND) is None and backoff.begin(FIRST) is not None
    backoff.succeeded(SECOND)
    assert backoff.begin(FIRST) is None
    assert backoff.begin(FIRST) is not None, "one success allows one try"

"""What a throttle's meter has not seen does not go out at once; simulated by Kafka's own rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.meter import SPAN_SECONDS, Meter
from tests.builders import mb

TARGET = mb(4.45)
LINK = mb(5)
"""What clients leave of the link: hardly more than the throttle."""
TICK = 0.02
FETCH = mb(0.2)


class Quota:
    """Kafka's meter: samples of a second, eleven and the one in hand."""

    def __init__(self) -> None:
        self.samples: list[list[float]] = []

    def record(self, now: float, size: float) -> None:
        if not self.samples or now - self.samples[-1][0] >= 1:
            self.samples.append([now, 0.0, now])
        self.samples[-1][1] += size
        self.samples[-1][2] = now
        del self.samples[:-12]

    def rate(self, now: float) -> float:
        self.samples = [sample for sample in self.samples if now - sample[2] < 11]
        if not self.samples:
            return 0.0
        return sum(sample[1] for sample in self.samples) / max(now - self.samples[0][0], 1.0)


def received(gaps: list[tuple[float, float]], *, follows: bool, used: float = 1.0, seconds: int = 100) -> list[float]:
    """What a destination receives in each second, bytes, with gaps in which nothing is asked for.

    Args:
        gaps: begin and end of each, seconds.
        follows: whether the rate follows the meter.
        used: share of what is sent that lands.
        seconds: length.
    """
    quota, meter, rate, fetching, landed, read = Quota(), Meter(), TARGET, 0.0, 0.0, 0.0
    found = [0.0] * seconds
    for tick in range(round(seconds / TICK)):
        now = tick * TICK
        if tick % round(0.5 / TICK) == 0:
            meter, read = meter.observe(now, landed - read, rate), landed
        if follows and tick % round(1 / TICK) == 0:
            rate = meter.held(TARGET, now)
        asked = not any(begin <= now < end for begin, end in gaps)
        if fetching <= 0 and asked and quota.rate(now) <= rate:
            fetching = FETCH
        if fetching > 0:
            fetching -= LINK * TICK
            found[int(now)] += LINK * TICK
            landed += LINK * TICK * used
            if fetching <= 0:
                quota.record(now, FETCH)
    return found


def full(seconds: list[float]) -> int:
    """In how many seconds the link was full."""
    return sum(amount >= 0.97 * LINK for amount in seconds)


@pytest.mark.parametrize("used", [1.0, 0.9, 0.76])
def test_what_a_gap_left_unspent_does_not_go_out_at_once(used: float) -> None:
    gap = [(30.0, 31.5)]
    burst, even = received(gap, follows=False, used=used), received(gap, follows=True, used=used)
    assert full(burst) > 25, "without it the link is full, silent, full again, to the end"
    assert full(even) <= 3
    assert sum(even) > 0.97 * sum(burst)


def test_a_rate_whose_meter_is_even_is_left_alone() -> None:
    assert received([], follows=True) == received([], follows=False)


def test_what_is_slow_for_another_reason_is_not_slowed_down() -> None:
    meter = Meter()
    for half in range(60):
        meter = meter.observe(half / 2, mb(2.2), TARGET)
    for half in range(60, 200):
        meter = meter.observe(half / 2, mb(1.0), TARGET)
        assert meter.held(TARGET, half / 2) >= mb(2.0) * 1.04
    assert meter.held(TARGET, 99.5) == TARGET, "in the end it is not the throttle that holds it"


def test_what_is_fetched_at_once_is_no_gap() -> None:
    meter = Meter()
    for half in range(60):
        meter = meter.observe(half / 2, 0.0 if half > 56 else mb(2.2), TARGET)
    assert meter.held(TARGET, 29.5, under_way=mb(2)) < TARGET
    assert meter.held(TARGET, 29.5, under_way=mb(10)) == TARGET


def test_a_raise_lets_the_new_rate_through_and_no_more() -> None:
    meter = Meter()
    for half in range(60):
        meter = meter.observe(half / 2, mb(1.5), mb(3))
    held = meter.held(mb(9), 29.5)
    assert held * SPAN_SECONDS == pytest.approx(mb(3) * (SPAN_SECONDS - 1) + mb(9), rel=0.05)


def test_old_readings_hold_nothing_back() -> None:
    meter = Meter()
    for half in range(60):
        meter = meter.observe(half / 2, 0.0 if half > 56 else mb(2.2), TARGET)
    assert meter.held(TARGET, 29.6) < TARGET
    assert meter.held(TARGET, 32.0) == TARGET


def test_before_a_whole_window_was_seen_nothing_is_held_back() -> None:
    meter = Meter()
    assert meter.held(TARGET, 0.0) == TARGET
    for half in range(20):
        meter = meter.observe(half / 2, 0.0, TARGET)
        assert meter.held(TARGET, half / 2) == TARGET


@given(
    amounts=st.lists(st.floats(0, 1e8), min_size=1, max_size=80),
    target=st.integers(1, 10**9),
    late=st.floats(0, 5),
)
def test_what_stands_is_never_above_the_target_and_never_negative(
    amounts: list[float], target: int, late: float
) -> None:
    meter = Meter()
    for half, amount in enumerate(amounts):
        meter = meter.observe(half / 2, amount, target)
    assert 0 <= meter.held(target, (len(amounts) - 1) / 2 + late) <= target

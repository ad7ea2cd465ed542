"""Ramps: bounded steps, bounded time, and immediate lowering."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from autothrottle.core.throttles.ownership import LONGEST_PACE, PACE, RISE, needs_ramp, step

rates = st.integers(0, 10**10)
times = st.floats(0, LONGEST_PACE.total_seconds()).map(lambda seconds: timedelta(seconds=seconds))


@given(current=rates, target=rates, elapsed=times)
def test_step_never_overshoots_its_target_nor_goes_back(current: int, target: int, elapsed: timedelta) -> None:
    found = step(current, target, elapsed)
    assert found == target if target <= current else current <= found <= target


@given(current=rates, target=rates, elapsed=times)
def test_step_is_at_most_a_sixth_of_the_target(current: int, target: int, elapsed: timedelta) -> None:
    assert step(current, target, elapsed) - current <= target / 6 + 1


@given(current=rates, target=rates)
@example(current=0, target=59)
def test_any_raise_ends_within_30_steps_of_a_second(current: int, target: int) -> None:
    steps = 0
    while current < target:
        current, steps = step(current, target, PACE), steps + 1
    assert steps <= RISE / PACE + 1


def test_raise_to_three_times_the_rate_takes_20_seconds() -> None:
    seen = [30_000]
    while seen[-1] < 90_000:
        seen.append(step(seen[-1], 90_000, PACE))
    assert len(seen) - 1 == 20
    assert max(b - a for a, b in pairwise(seen)) == 90_000 / 30


@given(current=rates, target=rates)
def test_no_step_directly_after_a_step(current: int, target: int) -> None:
    assert step(current, target, PACE / 2.1) == min(current, target)


@given(current=rates, target=rates)
def test_only_raises_by_more_than_a_tenth_need_a_ramp(current: int, target: int) -> None:
    assert needs_ramp(current, target) is (target * 10 > current * 11)

"""How a rate rises: bounded steps, bounded time, and a lowering at once."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from autothrottle.core.ramp import LONGEST_STEP, PACE, RISE, needs_ramp, step

rates = st.integers(0, 10**10)
times = st.floats(0, 100).map(lambda seconds: timedelta(seconds=seconds))


@given(standing=rates, target=rates, elapsed=times)
def test_a_step_never_goes_past_its_target_nor_back(standing: int, target: int, elapsed: timedelta) -> None:
    found = step(standing, target, elapsed)
    assert found == target if target <= standing else standing <= found <= target


@given(standing=rates, target=rates, elapsed=times)
def test_no_step_is_larger_than_a_quarter_of_what_shall_stand(standing: int, target: int, elapsed: timedelta) -> None:
    assert step(standing, target, elapsed) - standing <= target * (LONGEST_STEP / RISE) + 1


@given(standing=rates, target=rates)
@example(standing=0, target=22)
def test_a_raise_is_done_within_20_steps_of_a_second_however_large_it_is(standing: int, target: int) -> None:
    steps = 0
    while standing < target:
        standing, steps = step(standing, target, PACE), steps + 1
    assert steps <= RISE / PACE + 1


def test_a_raise_to_three_times_the_rate_takes_14_seconds_in_steps_of_a_twentieth() -> None:
    seen = [30_000]
    while seen[-1] < 90_000:
        seen.append(step(seen[-1], 90_000, PACE))
    assert len(seen) - 1 == 14
    assert max(b - a for a, b in pairwise(seen)) == 90_000 / 20


@given(standing=rates, target=rates)
def test_right_after_a_step_there_is_none(standing: int, target: int) -> None:
    assert step(standing, target, PACE / 2.1) == min(standing, target)


@given(standing=rates, target=rates)
def test_only_raises_by_more_than_a_tenth_take_steps(standing: int, target: int) -> None:
    assert needs_ramp(standing, target) is (target * 10 > standing * 11)

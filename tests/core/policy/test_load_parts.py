"""What overlapping metrics tell of the parts that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.policy.load_parts import LoadParts, MeanLoad

CLEAR = 5.0
"""Bytes/s."""
LOADS = st.floats(min_value=0.0, max_value=1000.0)


def metrics(load: Callable[[int], float], ends: Sequence[int], seconds: int = 120) -> list[MeanLoad]:
    """What metrics of so many seconds say of a load."""
    return [
        MeanLoad(sum(load(s) for s in range(end - seconds, end)) / seconds, float(end - seconds), float(end))
        for end in ends
    ]


def newest(means: Sequence[MeanLoad], off: float = 0.0) -> list[MeanLoad]:
    """What is believed of the newest part after each metric."""
    parts, before, found = LoadParts.of(means[0]), means[0], []
    for mean in means:
        parts, before = parts.plus(before, mean, CLEAR, off), mean
        found.append(parts.newest or mean)
    return found


def stepping(before: float, after: float, at: int) -> Callable[[int], float]:
    return lambda second: before if second < at else after


@given(LOADS, LOADS, st.integers(min_value=30, max_value=90))
def test_a_step_is_known_in_full_from_the_first_part_behind_it_on(before: float, after: float, step: int) -> None:
    """However far apart metrics come, as long as they overlap."""
    found = newest(metrics(stepping(before, after, 1000), range(1000 - step, 2000, step)))
    for part in found[2:]:
        assert abs(part.rate - after) <= CLEAR + 1e-6 * before


@given(st.lists(LOADS, min_size=40, max_size=40), st.integers(min_value=5, max_value=200))
def test_a_part_is_never_negative_and_a_load_that_calms_down_is_known_two_intervals_later(
    loads: list[float], step: int
) -> None:
    """Whatever was before, overlapping or not: what was wrong of a part does not come back with every metric."""

    def wild_then_calm(second: int) -> float:
        return loads[second // 30] if second < 1200 else 100.0

    found = newest(metrics(wild_then_calm, range(120, 2000, step)))
    assert all(part.rate >= 0.0 for part in found)
    assert all(abs(part.rate - 100.0) <= 1e-6 for part in found if part.end >= 1200 + 240 + 2 * step)


def test_one_metric_that_was_wrong_is_forgotten_with_the_next_interval() -> None:
    """The rate swung with the length of the metric for ever: each part was told from the one that left."""
    means = metrics(lambda _: 100.0, range(120, 1200, 30))
    means[5] = MeanLoad(130.0, means[5].start, means[5].end)
    found = newest(means)
    assert found[5].rate > 200.0, "taken for a step"
    assert all(part.rate == 100.0 for part in found[11:])


def test_what_replication_may_be_off_by_is_no_step() -> None:
    means = metrics(stepping(100.0, 110.0, 1000), range(970, 1300, 30))
    assert found_steps(means, off=0.0)
    assert not found_steps(means, off=120 * 10.0)


def found_steps(means: Sequence[MeanLoad], off: float) -> bool:
    return newest(means, off) != list(means)


def test_a_metric_that_is_read_again_and_parts_that_are_too_short_change_nothing() -> None:
    means = metrics(stepping(100.0, 200.0, 1000), [970, 1000, 1030, 1030, 1040, 1060])
    assert [round(part.rate) for part in newest(means)] == [100, 100, 200, 200, 200, 200]

"""When a resource reaches its limit, from its daily peaks."""

from __future__ import annotations

from math import inf, isfinite
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.capacity.growth import LEAST_DAYS, MOST_DAYS, Exhaustion, exhaustion
from autothrottle.core.errors import Invalid
from tests.unit.autothrottle.core.capacity.growth_traces import growth_trace

HORIZON = 30
HELD_OUT = range(20)
"""Seeds that were not used while the rules were written; those were 1000 to 2199."""


def test_dates_and_intervals_of_held_out_traces() -> None:
    traces = [growth_trace(seed, HORIZON) for seed in HELD_OUT]
    results = [exhaustion(trace.peaks, trace.limit) for trace in traces]
    pairs = list(zip(traces, results, strict=True))
    assert sum(abs(result.days - trace.days) <= 0.1 * HORIZON for trace, result in pairs) >= 18
    assert sum(result.earliest <= trace.days <= result.latest for trace, result in pairs) >= 15
    assert median(result.latest - result.earliest for result in results) <= 0.25 * HORIZON


def test_a_straight_line_is_continued() -> None:
    result = exhaustion([100.0 + day for day in range(60)], 189)
    assert abs(result.days - 30) <= 1
    assert result.earliest < 30 < result.latest


def test_peaks_of_one_byte_have_a_forecast() -> None:
    """The logarithm of 1 is 0, and the least deviation of a value was a share of the value.

    Constant peaks of 1 byte/s ended in a division by zero.
    """
    assert exhaustion([1.0] * 30, 100) == Exhaustion(inf, inf, inf)


def test_a_limit_that_is_reached_already_is_reached_now() -> None:
    assert exhaustion([float(day) for day in range(1, 30)], 20) == Exhaustion(0, 0, 0)


@pytest.mark.parametrize("slope", [0.0, -1.0])
def test_what_does_not_grow_never_reaches_its_limit(slope: float) -> None:
    result = exhaustion([1000 + slope * day for day in range(60)], 2000)
    assert (result.days, result.latest) == (inf, inf)


def test_absent_days_and_outliers_change_little() -> None:
    peaks: list[float | None] = [100.0 + day for day in range(60)]
    peaks[10] = peaks[11] = None
    peaks[30] = 10.0
    assert abs(exhaustion(peaks, 189).days - 30) <= 1


def test_a_changed_retention_does_not_look_like_growth() -> None:
    """The retention doubles on day 30. A line through all days would reach the limit twice as early."""
    peaks = [(100.0 + day) * (2 if day >= 30 else 1) for day in range(60)]
    assert abs(exhaustion(peaks, 2 * 189).days - 30) <= 2


def test_too_few_days_are_an_error_with_the_fix() -> None:
    with pytest.raises(Invalid, match=rf"13 days are measured, and a trend needs {LEAST_DAYS}. Fix: "):
        exhaustion([1.0] * 13 + [None] * 5, 10)


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1e18)), min_size=LEAST_DAYS, max_size=60),
    st.floats(1, 1e18),
)
def test_any_history_has_an_answer_or_an_error(peaks: list[float | None], limit: float) -> None:
    try:
        result = exhaustion(peaks, limit)
    except Invalid:
        return
    assert 0 <= result.earliest <= result.latest
    assert result.days == inf or (isfinite(result.days) and result.days <= MOST_DAYS)

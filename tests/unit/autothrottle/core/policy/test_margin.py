"""The spread of the forecast errors: only loads above the forecast count, and old errors fade."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.policy.measurements import LEAST, MOST, ErrorSpread


def seen(*intervals: list[float]) -> ErrorSpread:
    spread = ErrorSpread()
    for errors in intervals:
        spread = spread.observe(errors)
    return spread


def test_clients_above_their_forecast_widen_the_margin_but_clients_below_do_not() -> None:
    assert seen(*[[0.1]] * 40).sigma == 0.1
    assert seen(*[[-0.1]] * 40).sigma == LEAST


def test_outliers_of_an_hour_are_forgotten_in_the_next_hours() -> None:
    wild = [[0.1]] * 30
    assert seen(*wild).sigma > 0.09
    assert seen(*wild, *[[0.0]] * 60).sigma == LEAST


def test_interval_weighs_the_same_for_any_number_of_link_sides() -> None:
    for sides in (1, 7, 1000):
        assert abs(seen([0.1] * sides, [0.0]).sigma - seen([0.1], [0.0]).sigma) < 1e-9
    assert seen([], [0.02], []) == seen([0.02])


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=5), max_size=20))
def test_margin_stays_within_its_bounds(intervals: list[list[float]]) -> None:
    assert LEAST <= seen(*intervals).sigma <= MOST

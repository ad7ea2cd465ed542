"""What other settings would have done, and which of them is recommended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.counterfactual import Cell, Setting, estimate, forecast_error, recommended
from autothrottle.core.plan import Reason
from autothrottle.core.score import Stretch
from tests.core.test_score import stretches


def seen(client: float, forecast: float | None = None) -> Stretch:
    """Ten seconds of a link of 100, of which clients use so much."""
    return Stretch(10, 100, client, client if forecast is None else forecast, 50, 50, 50, 50, Reason.HEADROOM.value)


LOADS = [seen(20), seen(40), seen(60), seen(10), seen(50), seen(30)]


def cell(ratio: float, seconds: float, harmed: float = 0.0, writes: int = 10, cluster: str = "c") -> Cell:
    """What a ratio would have meant."""
    return Cell(cluster, ratio, 0.1, 1, 30.0, False, 1, seconds, harmed, writes)


def today(seconds: float = 1000, harmed: float = 0.0, cluster: str = "c") -> Cell:
    """What was in force."""
    return Cell(cluster, None, None, 1, 30.0, True, 1, seconds, harmed, 10)


def test_a_longer_interval_decides_less_often() -> None:
    writes = [estimate(LOADS, 1e9, 0, Setting(0.9, 0.0, every)).writes for every in (1, 2, 3, 6)]
    assert writes == [6, 3, 2, 1]


@given(st.lists(stretches(0.1), min_size=1, max_size=8), st.integers(1, 4))
def test_between_decisions_only_an_override_changes_a_rate(logged: Sequence[Stretch], every: int) -> None:
    logged = [replace(stretch, reason=Reason.HEADROOM.value) for stretch in logged]
    writes = estimate(logged, 1e9, 0, Setting(0.9, 0.0, every)).writes
    assert writes <= -(-len(logged) // every)


def test_a_rate_that_just_fitted_loads_that_are_badly_foreseen_is_a_risk() -> None:
    steady, jumping = [seen(40)] * 4, [seen(40, forecast=20), seen(40, forecast=60)] * 2
    assert (forecast_error(steady), forecast_error(jumping)) == (0.0, 20.0)
    setting = Setting(0.9, 1.0)  # 54, respectively 72, all along
    assert estimate(steady, 1e9, 0, setting).harmed_bytes == 0.0
    # Of a link of 100: 60 that clients might have wanted and 72 leave 32 too much.
    assert estimate(jumping, 1e9, 0, setting).harmed_bytes == pytest.approx(32 * 40)


def test_the_fastest_cell_is_recommended_that_leaves_clients_as_much_room() -> None:
    (best,) = recommended([today(harmed=0.02), cell(0.9, 500, 0.03), cell(0.8, 600, 0.02), cell(0.7, 700)])
    assert (best.ratio, best.estimated_seconds, best.today_seconds) == (0.8, 600, 1000)


def test_of_cells_that_are_about_as_fast_the_one_with_the_fewest_writes_is_recommended() -> None:
    (best,) = recommended([cell(0.9, 500, writes=90), cell(0.8, 504, writes=3), cell(0.7, 600, writes=1), today()])
    assert best.ratio == 0.8


def test_every_cluster_has_its_own_recommendation_or_none() -> None:
    cells = [today(cluster="b"), cell(0.9, 500, cluster="b"), today(), cell(0.9, 500, harmed=0.5)]
    assert [best.cluster for best in recommended(cells)] == ["b"]

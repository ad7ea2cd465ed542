"""Counterfactual results of settings, and the recommended setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.records import Reason
from autothrottle.core.scoring.counterfactual import Cell, Setting, estimate, forecast_error, recommended
from autothrottle.core.scoring.score import Stretch
from tests.unit.autothrottle.core.scoring.test_score import stretches


def seen(client: float, forecast: float | None = None) -> Stretch:
    """Ten seconds of a link of 100 with this client load."""
    return Stretch(10, 100, client, client if forecast is None else forecast, 50, 50, 50, 50, Reason.HEADROOM.value)


LOADS = [seen(20), seen(40), seen(60), seen(10), seen(50), seen(30)]


def cell(ratio: float, seconds: float, harmed: float = 0.0, writes: int = 10, cluster: str = "c") -> Cell:
    """The cell of a ratio."""
    return Cell(cluster, ratio, 0.1, 1, 30.0, False, 1, seconds, harmed, writes)


def today(seconds: float = 1000, harmed: float = 0.0, cluster: str = "c") -> Cell:
    """The cell of the logged setting."""
    return Cell(cluster, None, None, 1, 30.0, True, 1, seconds, harmed, 10)


def test_longer_interval_decides_less_often() -> None:
    writes = [estimate(LOADS, 1e9, 0, Setting(0.9, 0.0, every)).writes for every in (1, 2, 3, 6)]
    assert writes == [6, 3, 2, 1]


@given(st.lists(stretches(0.1), min_size=1, max_size=8), st.integers(1, 4))
def test_only_an_override_changes_a_rate_between_decisions(logged: Sequence[Stretch], every: int) -> None:
    logged = [replace(stretch, reason=Reason.HEADROOM.value) for stretch in logged]
    writes = estimate(logged, 1e9, 0, Setting(0.9, 0.0, every)).writes
    assert writes <= -(-len(logged) // every)


def test_rate_that_just_fits_badly_forecast_loads_is_a_risk() -> None:
    steady, jumping = [seen(40)] * 4, [seen(40, forecast=20), seen(40, forecast=60)] * 2
    assert (forecast_error(steady), forecast_error(jumping)) == (0.0, 20.0)
    setting = Setting(0.9, 1.0)  # constantly 54 or 72
    assert estimate(steady, 1e9, 0, setting).harmed_bytes == 0.0
    # On a link of 100, a possible client load of 60 and a rate of 72 exceed it by 32.
    assert estimate(jumping, 1e9, 0, setting).harmed_bytes == pytest.approx(32 * 40)


def test_fastest_setting_that_does_not_harm_clients_more_is_recommended() -> None:
    (best,) = recommended([today(harmed=0.02), cell(0.9, 500, 0.03), cell(0.8, 600, 0.02), cell(0.7, 700)])
    assert (best.ratio, best.estimated_seconds, best.today_seconds) == (0.8, 600, 1000)


def test_fewest_writes_decide_between_equally_fast_settings() -> None:
    (best,) = recommended([cell(0.9, 500, writes=90), cell(0.8, 504, writes=3), cell(0.7, 600, writes=1), today()])
    assert best.ratio == 0.8


def test_every_cluster_has_its_own_recommendation_or_none() -> None:
    cells = [today(cluster="b"), cell(0.9, 500, cluster="b"), today(), cell(0.9, 500, harmed=0.5)]
    assert [best.cluster for best in recommended(cells)] == ["b"]

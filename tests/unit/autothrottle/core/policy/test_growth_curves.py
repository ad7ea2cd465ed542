"""The growth of logs now and during a metric: noise is ignored, and a step counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest

from autothrottle.core.policy.growth_curves import now_and_then
from autothrottle.core.policy.series import CumulativeSeries


def produced(*rates: float, seconds: float = 10.0) -> CumulativeSeries:
    """A series sampled at these intervals, with these growth rates between the samples."""
    times = tuple(seconds * n for n in range(len(rates) + 1))
    return CumulativeSeries(times, tuple(accumulate((rate * seconds for rate in rates), initial=0.0)))


@pytest.mark.parametrize(
    ("lately", "now"),
    [((100, 100, 110), 310 / 3), ((100, 100, 90), 290 / 3), ((100, 100, 150), 150), ((100, 100, 50), 50)],
)
def test_newest_of_rare_samples_counts_alone_only_beyond_noise(lately: Sequence[float], now: float) -> None:
    found = now_and_then(produced(100, 100, 100, *lately), start=10.0, end=50.0, now=60.0)
    assert found is not None and found == pytest.approx((now, 100.0))


def test_step_includes_all_growth_since_the_metric() -> None:
    series = produced(100, 100, 100, 100, 100, 200, 300)
    assert now_and_then(series, start=10.0, end=50.0, now=70.0) == (250.0, 100.0)


def test_outdated_sample_gives_no_current_rate() -> None:
    series = produced(100, 100, 100, 100)
    assert now_and_then(series, start=0.0, end=30.0, now=100.0) == (100.0, 100.0)
    assert now_and_then(series, start=0.0, end=30.0, now=101.0) is None


def test_partially_covered_metric_interval_gives_no_rates() -> None:
    series = produced(100, 100, 100, 100)
    assert now_and_then(series, start=-1.0, end=30.0, now=40.0) is None
    assert now_and_then(series, start=0.0, end=55.0, now=55.0) == (100.0, 100.0)
    assert now_and_then(series, start=0.0, end=56.0, now=56.0) is None
    assert now_and_then(produced(), start=0.0, end=0.0, now=0.0) is None

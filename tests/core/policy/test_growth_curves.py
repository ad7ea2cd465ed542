"""How fast logs grow now and while a metric was measured: noise is left out, and a step counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest

from autothrottle.core.policy.growth_curves import now_and_then
from autothrottle.core.policy.series import Series


def grown(*rates: float, seconds: float = 10.0) -> Series:
    """What was read so often, with what it grew by per second in between."""
    times = tuple(seconds * n for n in range(len(rates) + 1))
    return Series(times, tuple(accumulate((rate * seconds for rate in rates), initial=0.0)))


@pytest.mark.parametrize(
    ("lately", "now"),
    [((100, 100, 110), 310 / 3), ((100, 100, 90), 290 / 3), ((100, 100, 150), 150), ((100, 100, 50), 50)],
)
def test_of_logs_that_are_read_rarely_the_newest_reading_counts_alone_only_if_it_is_no_noise(
    lately: Sequence[float], now: float
) -> None:
    found = now_and_then(grown(100, 100, 100, *lately), start=10.0, end=50.0, now=60.0)
    assert found is not None and found == pytest.approx((now, 100.0))


def test_a_step_counts_with_all_that_came_since_the_metric() -> None:
    series = grown(100, 100, 100, 100, 100, 200, 300)
    assert now_and_then(series, start=10.0, end=50.0, now=70.0) == (250.0, 100.0)


def test_what_was_read_last_a_while_ago_tells_nothing_of_now() -> None:
    series = grown(100, 100, 100, 100)
    assert now_and_then(series, start=0.0, end=30.0, now=100.0) == (100.0, 100.0)
    assert now_and_then(series, start=0.0, end=30.0, now=101.0) is None


def test_without_the_whole_interval_of_the_metric_nothing_is_known() -> None:
    series = grown(100, 100, 100, 100)
    assert now_and_then(series, start=-1.0, end=30.0, now=40.0) is None
    assert now_and_then(series, start=0.0, end=55.0, now=55.0) == (100.0, 100.0)
    assert now_and_then(series, start=0.0, end=56.0, now=56.0) is None
    assert now_and_then(grown(), start=0.0, end=0.0, now=0.0) is None

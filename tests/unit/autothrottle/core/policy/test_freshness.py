"""Fresh metrics give the adaptive policy more slack and take the margin from bottlenecks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.flows import Flow
from autothrottle.core.policy.adaptive import FRESH, AdaptivePolicy, Tuning, freshness
from tests.builders import mb
from tests.unit.autothrottle.core.policy.simulated_world import LEADER, World, steady


@pytest.mark.parametrize(
    ("window", "delay", "share"), [(120, 120, 1.5), (120, 0, 1.5), (30, 30, 1.5), (20, 20, 1.61), (5, 0, 1.75)]
)
def test_slack_grows_as_metrics_become_fresher(window: int, delay: int, share: float) -> None:
    """It was 1.5 times the need for all metrics: too little where a surge later made the link side the bottleneck."""
    flows = {Flow(1, 3): 6e11, Flow(2, 3): 1e11}
    world = World(AdaptivePolicy(), steady(mb(40)), flows, window=window, delay=delay, interval=10)
    decided = world.run(until=700)[-1]
    assert decided[2, LEADER].rate_bytes_per_second == pytest.approx(share * 0.9 * mb(60) / 7, rel=0.03)


def test_bottlenecks_keep_no_margin_when_metrics_are_fresh() -> None:
    """A nearly full small broker took 1.5 times as long as with perfect knowledge of the load, for the margin alone."""

    def rate(window: int, delay: int) -> int:
        careful = AdaptivePolicy(tuning=Tuning(margin_waited_for=20.0))
        world = World(careful, steady(mb(85)), {Flow(1, 2): 1e12}, window=window, delay=delay, interval=10)
        return min(decision.rate_bytes_per_second for decision in world.run(until=700)[-1].values())

    assert rate(window=120, delay=120) == pytest.approx(Tuning().least_share * 0.9 * mb(15), rel=0.01)
    assert rate(window=5, delay=0) == pytest.approx(0.9 * mb(15), rel=0.01)


@given(delays=st.lists(st.floats(0, 1000), min_size=2, max_size=2))
def test_older_metrics_never_give_more_slack(delays: list[float]) -> None:
    fresher, older = (Tuning().towards(FRESH, freshness(delay)) for delay in sorted(delays))
    assert Tuning().slack <= older.slack <= fresher.slack <= FRESH.slack
    assert older.margin_waited_for >= fresher.margin_waited_for


def test_metrics_a_minute_old_leave_the_tuning_as_it_is() -> None:
    assert Tuning().towards(FRESH, freshness(60.0)) == Tuning()
    assert Tuning().towards(FRESH, freshness(0.0)) == FRESH

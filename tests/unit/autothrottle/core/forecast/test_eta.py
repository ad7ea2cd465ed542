"""The ETA: the mean rate gives the end, and the scatter of the rates gives its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, LinkSide, Progress, TopicProgress
from autothrottle.core.forecast.eta import (
    Forecast,
    ForecastPoint,
    forecast,
    forecast_all,
    last_of,
    static_end,
    with_topics,
)
from autothrottle.core.records import Throttle
from tests.builders import NOON, mb

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
A, B = Flow(1001, 1004), Flow(1002, 1004)
GB = 1_000_000_000


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def points(*gained: int, step: float = 20) -> list[ForecastPoint]:
    return [ForecastPoint(after(number * step), one) for number, one in enumerate(gained)]


def test_interval_of_a_constant_rate_is_a_point() -> None:
    assert forecast(points(0, 100, 200, 300), 500) == Forecast(after(160), after(160), after(160))


def test_interval_widens_with_the_scatter_of_the_rates() -> None:
    little, much = (forecast(points(*gained), 900) for gained in ((0, 90, 200, 300), (0, 30, 260, 300)))
    assert little.eta == much.eta == after(60 + 180)
    for one in (little, much):
        assert one.low and one.eta and one.low < one.eta
    assert little.high and (much.high is None or much.high > little.high)
    assert much.low and little.low and much.low < little.low


def test_single_span_has_an_eta_but_no_interval() -> None:
    assert forecast(points(0, 100), 100) == Forecast(after(40), None, None)


def test_interval_is_open_if_a_stall_is_within_the_scatter() -> None:
    found = forecast(points(0, 0, 100, 100), 100)
    assert found.eta == after(60 + 60)
    assert found.low is not None and found.high is None


@pytest.mark.parametrize("gained", [(0, 0, 0), (0, -5, -10)])
def test_no_gain_has_no_eta(gained: Sequence[int]) -> None:
    assert forecast(points(*gained), 100).eta is None


def test_value_unknown_in_one_forecast_is_unknown_in_the_last() -> None:
    one, other = Forecast(after(10), after(5), after(20)), Forecast(after(30), None, after(15))
    assert last_of([one, other]) == Forecast(after(30), None, after(20))


@given(
    st.lists(st.integers(0, 10**9), min_size=2, max_size=12),
    st.integers(1, 10**12),
    st.floats(5, 60),
)
def test_interval_contains_the_eta(steps: list[int], left: int, step: float) -> None:
    total, gained = 0, []
    for one in steps:
        total += one
        gained.append(total)
    found = forecast(points(*gained, step=step), left)
    if found.eta is not None and found.low is not None:
        assert found.low <= found.eta
    if found.high is not None:
        assert found.eta is not None and found.eta <= found.high


def sample(seconds: float, left: dict[str, int], flow: int | None = None) -> Progress:
    """A sample of topics in which one flow has all bytes left."""
    total = sum(left.values()) if flow is None else flow
    count = FlowProgress(10**12 - total, 0, total, after(seconds), NOON)
    return Progress({A: count}, {topic: TopicProgress(0, some) for topic, some in left.items()}, after(seconds))


def test_each_topic_has_its_own_eta_not_later_than_the_whole() -> None:
    samples = [sample(20 * n, {"fast": 900 - 300 * n, "slow": 1000 - 10 * n}) for n in range(4)]
    whole = forecast_all(samples)
    topics = with_topics(samples, whole)
    assert topics["fast"].eta == after(60), "it has nothing left"
    slow = topics["slow"]
    assert whole.eta is not None and slow.eta == whole.eta, "alone it gets the rate of all"
    assert (slow.eta_low, slow.eta_high) == (whole.low, whole.high) == (whole.eta, whole.eta)


def test_stalled_topic_has_no_eta() -> None:
    samples = [sample(20 * n, {"active": 900 - 100 * n, "stalled": 500}) for n in range(4)]
    topics = with_topics(samples, forecast_all(samples))
    assert topics["active"].eta == after(60 + 120) and topics["stalled"].eta is None


def test_throttles_give_the_eta_of_a_new_reassignment() -> None:
    progress = Progress({A: FlowProgress(0, 0, 4 * GB, NOON, NOON), B: FlowProgress(0, 0, 2 * GB, NOON, NOON)}, at=NOON)
    throttles = {(1001, LEADER): mb(50), (1002, LEADER): mb(50), (1004, FOLLOWER): mb(60)}
    assert static_end(progress, [A, B], at(throttles)) == after(100)
    assert static_end(progress, [A, B], at(throttles | {(1001, LEADER): mb(20)})) == after(200)


def at(rates: Mapping[LinkSide, int]) -> Mapping[LinkSide, Throttle]:
    return {side: Throttle(*side, rate) for side, rate in rates.items()}


def test_the_eta_of_a_new_reassignment_takes_a_ramp_into_account() -> None:
    progress = Progress({A: FlowProgress(0, 0, 4 * GB, NOON, NOON)}, at=NOON)
    rising = Throttle(1004, FOLLOWER, mb(20), mb(60), after(20))
    assert static_end(progress, [A], {(1004, FOLLOWER): rising}) == after(20 + (4 * GB - 20 * mb(40)) / mb(60))


def test_produce_traffic_reduces_the_throttles() -> None:
    progress = Progress({A: FlowProgress(0, 10 * mb(20), 4 * GB, after(10), NOON)}, at=after(10))
    assert static_end(progress, [A], at({(1004, FOLLOWER): mb(60)})) == after(110)
    assert static_end(progress, [A], at({(1004, FOLLOWER): mb(20)})) is None, "it would never end"


def test_reassignment_sampled_for_long_has_no_static_eta() -> None:
    progress = Progress({A: FlowProgress(0, 0, 4 * GB, after(30), NOON)}, at=after(30))
    assert static_end(progress, [A], at({(1004, FOLLOWER): mb(60)})) is None
    assert static_end(Progress(at=NOON), [A], at({(1004, FOLLOWER): mb(60)})) is None, "it is unknown"

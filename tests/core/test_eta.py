"""When a move is over: the mean rate says when, and how far the rates scatter says between when and when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.eta import Forecast, Point, forecast, forecast_all, last_of, static_end, with_topics
from autothrottle.core.flows import Flow, FlowProgress, Progress, TopicProgress
from tests.builders import NOON, mb

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
A, B = Flow(1001, 1004), Flow(1002, 1004)
GB = 1_000_000_000


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def points(*gained: int, step: float = 20) -> list[Point]:
    return [Point(after(number * step), one) for number, one in enumerate(gained)]


def test_at_an_even_rate_the_interval_is_a_point() -> None:
    assert forecast(points(0, 100, 200, 300), 500) == Forecast(after(160), after(160), after(160))


def test_the_more_the_rates_scatter_the_wider_is_the_interval() -> None:
    little, much = (forecast(points(*gained), 900) for gained in ((0, 90, 200, 300), (0, 30, 260, 300)))
    assert little.eta == much.eta == after(60 + 180)
    for one in (little, much):
        assert one.low and one.eta and one.low < one.eta
    assert little.high and (much.high is None or much.high > little.high)
    assert much.low and little.low and much.low < little.low


def test_one_span_has_an_eta_and_no_interval() -> None:
    assert forecast(points(0, 100), 100) == Forecast(after(40), None, None)


def test_where_standing_still_is_within_the_scatter_the_end_is_open() -> None:
    found = forecast(points(0, 0, 100, 100), 100)
    assert found.eta == after(60 + 60)
    assert found.low is not None and found.high is None


@pytest.mark.parametrize("gained", [(0, 0, 0), (0, -5, -10)])
def test_what_gains_nothing_has_no_eta(gained: Sequence[int]) -> None:
    assert forecast(points(*gained), 100).eta is None


def test_what_is_unknown_of_one_is_unknown_of_all() -> None:
    one, other = Forecast(after(10), after(5), after(20)), Forecast(after(30), None, after(15))
    assert last_of([one, other]) == Forecast(after(30), None, after(20))


@given(
    st.lists(st.integers(0, 10**9), min_size=2, max_size=12),
    st.integers(1, 10**12),
    st.floats(5, 60),
)
def test_the_interval_holds_the_eta(steps: list[int], left: int, step: float) -> None:
    total, gained = 0, []
    for one in steps:
        total += one
        gained.append(total)
    found = forecast(points(*gained, step=step), left)
    if found.eta is not None and found.low is not None:
        assert found.low <= found.eta
    if found.high is not None:
        assert found.eta is not None and found.eta <= found.high


def reading(seconds: float, left: dict[str, int], flow: int | None = None) -> Progress:
    """A reading of topics, of which one flow has what is left of all."""
    total = sum(left.values()) if flow is None else flow
    count = FlowProgress(10**12 - total, 0, total, after(seconds), NOON)
    return Progress({A: count}, {topic: TopicProgress(0, some) for topic, some in left.items()}, after(seconds))


def test_each_topic_has_an_eta_of_its_own_that_is_not_later_than_the_whole() -> None:
    readings = [reading(20 * n, {"fast": 900 - 300 * n, "slow": 1000 - 10 * n}) for n in range(4)]
    whole = forecast_all(readings)
    topics = with_topics(readings, whole)
    assert topics["fast"].eta == after(60), "nothing is left of it"
    slow = topics["slow"]
    assert whole.eta is not None and slow.eta == whole.eta, "alone it will be as fast as all together"
    assert (slow.eta_low, slow.eta_high) == (whole.low, whole.high) == (whole.eta, whole.eta)


def test_a_topic_that_stands_still_has_no_eta() -> None:
    readings = [reading(20 * n, {"moves": 900 - 100 * n, "stands": 500}) for n in range(4)]
    topics = with_topics(readings, forecast_all(readings))
    assert topics["moves"].eta == after(60 + 120) and topics["stands"].eta is None


def test_the_throttles_of_a_move_that_has_only_begun_say_when_its_slowest_port_is_done() -> None:
    progress = Progress({A: FlowProgress(0, 0, 4 * GB, NOON, NOON), B: FlowProgress(0, 0, 2 * GB, NOON, NOON)}, at=NOON)
    rates = {(1001, LEADER): mb(50), (1002, LEADER): mb(50), (1004, FOLLOWER): mb(60)}
    assert static_end(progress, [A, B], rates) == after(100)
    assert static_end(progress, [A, B], rates | {(1001, LEADER): mb(20)}) == after(200)


def test_what_is_produced_takes_its_part_of_the_throttles() -> None:
    progress = Progress({A: FlowProgress(0, 10 * mb(20), 4 * GB, after(10), NOON)}, at=after(10))
    assert static_end(progress, [A], {(1004, FOLLOWER): mb(60)}) == after(110)
    assert static_end(progress, [A], {(1004, FOLLOWER): mb(20)}) is None, "it would never end"


def test_a_move_that_has_been_read_for_long_has_no_eta_by_its_throttles() -> None:
    progress = Progress({A: FlowProgress(0, 0, 4 * GB, after(30), NOON)}, at=after(30))
    assert static_end(progress, [A], {(1004, FOLLOWER): mb(60)}) is None
    assert static_end(Progress(at=NOON), [A], {(1004, FOLLOWER): mb(60)}) is None, "it is unknown"

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.counterfactual import Setting, estimate
from autothrottle.core.plan import Reason
from autothrottle.core.score import REFERENCE_RATIO, Cause, Stretch, bound_seconds, budget, port_seconds, unused

RATES = st.floats(0, 1e9)
PIECES = st.lists(
    st.tuples(st.floats(0.1, 100), st.just(0.0) | st.floats(0.001, 100)), min_size=1, max_size=20
)  # (seconds, rate)
REASONS = st.sampled_from([reason.value for reason in Reason])


def stretches(shortest: float = 0.0) -> st.SearchStrategy[Stretch]:
    """Any stretch."""
    return st.builds(
        Stretch,
        seconds=st.floats(shortest, 1e4),
        capacity=st.floats(1, 1e9),
        client=RATES,
        forecast=st.none() | RATES,
        headroom=st.none() | RATES,
        decided=RATES,
        applied=st.none() | RATES,
        achieved=RATES,
        reason=REASONS,
        min_rate=RATES,
    )


def steady(reason: Reason, decided: float, headroom: float | None = 72.0) -> Stretch:
    """A link of 100 of which clients use 20, so that its budget is 72, and a rate that was decided and achieved."""
    forecast = None if headroom is None else 20.0
    return Stretch(10, 100, 20, forecast, headroom, decided, decided, decided, reason.value)


@given(stretches(), st.floats(0.01, 1))
def test_causes_sum_up_to_what_of_the_budget_was_not_carried(stretch: Stretch, ratio: float) -> None:
    whole = budget(stretch.capacity, stretch.client, ratio, stretch.min_rate)
    assert sum(unused(stretch, ratio).values()) == pytest.approx(whole - stretch.achieved, abs=1e-3, rel=1e-9)


@pytest.mark.parametrize(
    ("stretch", "cause", "lost"),
    [
        (steady(Reason.CLUSTER_OVERRIDE, 36), Cause.OVERRIDE, 36),
        (steady(Reason.MINIMUM, 10, headroom=None), Cause.FAIL_SAFE, 62),
        (steady(Reason.KEPT, 50, headroom=None), Cause.FAIL_SAFE, 22),
        (steady(Reason.HEADROOM, 36, headroom=36), Cause.HEADROOM_UNUSED, 36),
        (steady(Reason.UNCHANGED, 65), Cause.CHANGE_THRESHOLD, 7),
        (Stretch(10, 100, 20, 40.0, 54.0, 54, 54, 54, "headroom"), Cause.METRICS_LATE, 18),
        (Stretch(10, 100, 20, 20.0, 72.0, 72, 30, 30, "headroom"), Cause.NOT_APPLIED, 42),
        (Stretch(10, 100, 20, 20.0, 72.0, 72, 72, 50, "headroom"), Cause.ELSEWHERE, 22),
    ],
)
def test_one_fault_has_one_cause(stretch: Stretch, cause: Cause, lost: float) -> None:
    found = {name: amount for name, amount in unused(stretch, REFERENCE_RATIO).items() if abs(amount) > 1e-9}
    assert found == {cause: pytest.approx(lost)}


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.just(0.0) | st.floats(0.001, 100)), min_size=1, max_size=20),
    st.floats(0, 1e5),
)
def test_by_the_time_of_a_port_it_has_carried_everything_and_not_before(
    pieces: list[tuple[float, float]], amount: float
) -> None:
    end = port_seconds(pieces, amount)

    def carried(until: float) -> float:
        total, at = 0.0, 0.0
        for index, (seconds, rate) in enumerate(pieces):
            last = index == len(pieces) - 1
            here = until - at if last else min(max(until - at, 0.0), seconds)
            total += rate * max(here, 0.0)
            at += seconds
        return total

    if math.isinf(end):
        assert pieces[-1][1] == 0
        assert carried(1e6) < amount or amount == 0
    else:
        assert carried(end) == pytest.approx(amount, rel=1e-6, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.just(0.0) | st.floats(0.001, 100)), min_size=1, max_size=20),
    st.floats(0, 1e5),
)
def test_more_budget_never_takes_longer(pieces: list[tuple[float, float]], amount: float) -> None:
    more = [(seconds, rate + 1) for seconds, rate in pieces]
    assert port_seconds(more, amount) <= port_seconds(pieces, amount) * (1 + 1e-9)


def test_the_bound_is_that_of_the_slowest_port() -> None:
    assert bound_seconds([([(10, 10)], 50), ([(10, 10)], 80)]) == 8.0
    assert bound_seconds([]) == 0.0


def test_an_estimate_of_the_settings_in_force_is_what_happened() -> None:
    found = estimate([steady(Reason.HEADROOM, 72)] * 3, 2160, 0.0, Setting(0.9, 0.1))
    assert (found.seconds, found.harmed_bytes, found.client_bytes, found.writes) == (30.0, 0.0, 600.0, 1)


@given(st.lists(stretches(0.1), min_size=1, max_size=10), st.floats(1, 1e9))
def test_a_larger_share_is_never_estimated_to_be_slower_without_a_threshold(
    logged: list[Stretch], amount: float
) -> None:
    small, large = (estimate(logged, amount, 0.0, Setting(ratio, 0.0)) for ratio in (0.5, 0.9))
    assert large.seconds <= small.seconds * (1 + 1e-9)
    assert large.harmed_bytes >= small.harmed_bytes - 1e-3

"""The rules of scores for one link side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.records import Reason
from autothrottle.core.scoring.score import REFERENCE_RATIO, Cause, available_rate
from tests.unit.autothrottle.core.scoring.rules import Stretch, unused

RATES = st.floats(0, 1e9)
PIECES = st.lists(
    st.tuples(st.floats(0.1, 100), st.just(0.0) | st.floats(0.001, 100)), min_size=1, max_size=20
)  # (seconds, rate)
REASONS = st.sampled_from([reason.value for reason in Reason])


def stretches(shortest: float = 0.0) -> st.SearchStrategy[Stretch]:
    """A strategy for arbitrary stretches."""
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
    """A link of 100 with clients at 20, so that the available rate is 72, and a decided and an achieved rate."""
    forecast = None if headroom is None else 20.0
    return Stretch(10, 100, 20, forecast, headroom, decided, decided, decided, reason.value)


@given(stretches(), st.floats(0.01, 1))
def test_causes_add_up_to_the_unused_available_rate(stretch: Stretch, ratio: float) -> None:
    whole = available_rate(stretch.capacity, stretch.client, ratio, stretch.min_rate)
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

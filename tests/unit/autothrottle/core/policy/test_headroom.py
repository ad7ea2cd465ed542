"""The formula of the headroom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.policy.headroom import client_load, headroom
from autothrottle.core.units import MEGABYTE

rates = st.integers(0, 10**11)
capacities = st.integers(1, 10**11)


def test_example_of_the_specification() -> None:
    rate = headroom(80 * MEGABYTE, 20 * MEGABYTE, 200 * MEGABYTE, 0.9, 20 * MEGABYTE)
    assert rate == 126 * MEGABYTE


def test_megabyte_is_a_million_bytes_on_both_sides_of_the_formula() -> None:
    """Defect D18 of the original.

    The original divides metrics by 1024^2 and multiplies rates by 10^6: its headroom of an idle link of 100 MB/s
    depends by 4.9 % on the source of the number.
    """
    assert MEGABYTE == 10**6
    assert headroom(50 * 10**6, 0, 100 * 10**6, 1.0, 1) == 50 * 10**6


def test_throttle_above_the_traffic_gives_zero_clients() -> None:
    assert client_load(80, 100) == 0
    assert headroom(80, 100, 200, 1.0, 1) == 200


def test_traffic_over_capacity_counts_twice() -> None:
    # 110 - 80 = 30 of clients and 10 over: 100 - 30 - 10 = 60.
    assert headroom(110, 80, 100, 1.0, 1) == 60


def test_broker_without_headroom_gets_the_floor() -> None:
    assert headroom(300, 0, 100, 0.9, 7) == 7


def test_floor_also_applies_to_a_nearly_full_link() -> None:
    assert headroom(95, 0, 100, 0.9, 10) == 10


@pytest.mark.parametrize(("ratio", "rate"), [(1.0, 120), (0.5, 60), (0.25, 30)])
def test_share_is_of_the_headroom_not_of_the_capacity(ratio: float, rate: int) -> None:
    assert headroom(80, 0, 200, ratio, 1) == rate


@given(rates, rates, capacities, st.integers(1, 10**9))
def test_rate_is_between_floor_and_capacity(used: int, throttle: int, capacity: int, floor: int) -> None:
    assert floor <= headroom(used, throttle, capacity, 0.9, floor) <= max(floor, capacity)


@given(rates, rates, rates, capacities)
def test_more_traffic_never_gives_more_headroom(used: int, more: int, throttle: int, capacity: int) -> None:
    calm = headroom(used, throttle, capacity, 0.9, 1)
    assert headroom(used + more, throttle, capacity, 0.9, 1) <= calm

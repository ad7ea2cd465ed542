"""The closed form of the bound, compared with a linear program over all flows and time slots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.scoring.score import LinkSideDemand, available_rate, bound_seconds, link_side_seconds
from autothrottle.core.units import MEGABYTE
from tests.benchmarks.control.scenarios import BEFORE, BLOCK, RATIO, scenario

SLOT = 120.0
"""Seconds."""


def shipped_share(
    flows: Sequence[tuple[int, int, float, float]], budgets: Mapping[int, Sequence[float]], seconds: float
) -> float:
    """The largest share of all bytes that can be copied within some seconds, by a linear program.

    Variables are fractions of each flow's bytes per slot: in bytes, HiGHS returns wrong optima without an error.
    """
    from scipy.optimize import linprog  # slow, and every worker imports this module

    slots = math.ceil(seconds / SLOT - 1e-9)
    lengths = [min(SLOT, seconds - SLOT * slot) for slot in range(slots)]
    wanted = [size + growth * seconds for _, _, size, growth in flows]
    count = len(flows) * slots
    rows, limits = [], []
    for side, rates in budgets.items():
        for slot in range(slots):
            row = np.zeros(count + 1)
            for f, (source, target, _, _) in enumerate(flows):
                if side in (source, target):
                    row[f * slots + slot] = wanted[f] / (rates[slot] * lengths[slot])
            rows.append(row)
            limits.append(1.0)
    for f in range(len(flows)):
        row = np.zeros(count + 1)
        row[f * slots : (f + 1) * slots] = -1.0
        row[-1] = 1.0
        rows.append(row)
        limits.append(0.0)
    cost = np.zeros(count + 1)
    cost[-1] = -1.0
    found = linprog(cost, A_ub=np.array(rows), b_ub=np.array(limits), bounds=[(0, None)] * (count + 1), method="highs")
    assert found.success and found.x is not None
    return float(found.x[-1])


def demands(
    flows: Sequence[tuple[int, int, float, float]], budgets: Mapping[int, Sequence[float]]
) -> list[LinkSideDemand]:
    return [
        LinkSideDemand(
            size=sum(flow[2] for flow in flows if side in flow[:2]),
            growth=sum(flow[3] for flow in flows if side in flow[:2]),
            available_rate=[(SLOT, rate) for rate in rates],
        )
        for side, rates in budgets.items()
    ]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_no_schedule_of_the_linear_program_beats_the_bound(seed: int) -> None:
    chance = np.random.default_rng(seed)
    brokers = 4
    pairs = [(i, brokers + j) for i in range(brokers) for j in range(brokers) if i != j and chance.random() < 0.6]
    flows = [(s, t, float(chance.uniform(1e9, 2e10)), float(chance.uniform(0, 2e5))) for s, t in pairs or [(0, 5)]]
    used = {flow[0] for flow in flows} | {flow[1] for flow in flows}
    budgets = {side: [float(rate) for rate in chance.uniform(2e7, 2e8, 200)] for side in sorted(used)}
    seconds = bound_seconds(demands(flows, budgets))
    assert seconds < 199 * SLOT
    assert shipped_share(flows, budgets, 0.98 * seconds) < 1.0


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.repeat) for name in ("critical", "scaleup", "hotleader")), "tiny"]
)
def test_best_schedule_of_a_benchmark_scenario_equals_the_bound(name: str) -> None:
    chosen = scenario(name, seed=1)
    flows = [
        (int(source), int(target), float(size), float(growth))
        for source, target, size, growth in zip(
            chosen.source, chosen.target, chosen.size * MEGABYTE, chosen.growth * MEGABYTE, strict=True
        )
    ]
    slots = int(chosen.bound // SLOT) + 2
    clients = (
        chosen.alone[BEFORE : BEFORE + int(slots * SLOT)].reshape(slots, int(SLOT) // BLOCK, BLOCK, -1).mean(axis=2)
    )
    means = np.maximum(RATIO * (chosen.capacity - clients), chosen.shape.min_rate).mean(axis=1) * MEGABYTE
    budgets = {
        side: [float(rate) for rate in means[:, side]] for side in sorted({f for flow in flows for f in flow[:2]})
    }
    seconds = bound_seconds(demands(flows, budgets))
    assert seconds == pytest.approx(chosen.bound, abs=SLOT)
    assert shipped_share(flows, budgets, seconds) >= 0.9998


def test_slowest_link_side_determines_the_bound() -> None:
    quick, slow = LinkSideDemand(100.0, [(1.0, 50.0)]), LinkSideDemand(100.0, [(1.0, 10.0)])
    assert bound_seconds([quick, slow, quick]) == link_side_seconds(slow) == 10.0


def test_data_produced_as_fast_as_copied_never_ends() -> None:
    assert bound_seconds([LinkSideDemand(100.0, [(60.0, 10.0)], growth=10.0)]) == math.inf


def test_bound_waits_through_a_gap_in_the_available_rate() -> None:
    pieces = [(10.0, 10.0), (100.0, 0.0), (10.0, 10.0)]
    assert link_side_seconds(LinkSideDemand(150.0, pieces)) == pytest.approx(115.0)


def test_nothing_to_copy_takes_no_time() -> None:
    assert bound_seconds([]) == 0.0
    assert bound_seconds([LinkSideDemand(0.0, [(1.0, 0.0)])]) == 0.0


@given(
    capacity=st.floats(1, 1e9),
    load=st.floats(0, 2e9),
    ratio=st.floats(0.01, 1),
    floor=st.floats(0, 1e6),
)
def test_available_rate_is_between_floor_and_headroom(capacity: float, load: float, ratio: float, floor: float) -> None:
    rate = available_rate(capacity, load, ratio, floor)
    assert rate >= floor
    assert rate <= max(floor, max(capacity - load, 0.0))


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.just(0.0) | st.floats(0.001, 100)), min_size=1, max_size=20),
    st.floats(0, 1e5),
)
def test_link_side_copies_everything_exactly_by_its_time(pieces: list[tuple[float, float]], amount: float) -> None:
    end = link_side_seconds(LinkSideDemand(amount, pieces))

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
def test_higher_available_rate_never_takes_longer(pieces: list[tuple[float, float]], amount: float) -> None:
    more = [(seconds, rate + 1) for seconds, rate in pieces]
    assert link_side_seconds(LinkSideDemand(amount, more)) <= link_side_seconds(LinkSideDemand(amount, pieces)) * (
        1 + 1e-9
    )

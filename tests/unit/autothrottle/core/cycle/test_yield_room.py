"""How much room clients leave to a recovery, from the plan's rates."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cycle.client_quotas import Direction, client_loads, direction, most_used, smallest_capacity
from autothrottle.core.records import Basis, Decision, Reason
from autothrottle.core.throttles.plan import Plan
from tests import builders
from tests.builders import NOON, mb

LIMITS = builders.limits(max_tx_ratio=0.5, max_rx_ratio=0.8)
LOADS = builders.loads(builders.load(1, mb(30), mb(60)), builders.load(2, mb(10), mb(20), capacity=mb(50)))
BEFORE = NOON - timedelta(seconds=30)


def decision(
    role: ReplicaRole = ReplicaRole.FOLLOWER, client: int | None = None, basis: Basis | None = None
) -> Decision:
    return Decision(1, role, mb(40), Reason.HEADROOM, None, mb(40), mb(60), mb(100), client, basis=basis)


@pytest.mark.parametrize(
    ("client", "expected"),
    [(100, Direction.DOWN), (51, Direction.DOWN), (50, Direction.KEEP), (25, Direction.KEEP), (24, Direction.UP)],
)
def test_the_fullest_link_side_decides(client: int, expected: Direction) -> None:
    other = replace(decision(ReplicaRole.LEADER, client=mb(1)), broker_id=2)
    plan = Plan((decision(client=mb(client)), other))
    assert direction(plan, LOADS, LIMITS, BEFORE) is expected


def test_without_a_measurement_after_the_last_step_nothing_moves() -> None:
    plan = Plan((decision(client=mb(90)),))
    assert direction(plan, LOADS, LIMITS, BEFORE + timedelta(seconds=1)) is Direction.KEEP
    assert direction(plan, builders.loads(), LIMITS, BEFORE) is Direction.KEEP
    assert direction(Plan(), LOADS, LIMITS, BEFORE) is Direction.KEEP
    assert direction(plan, LOADS, None, BEFORE) is Direction.KEEP


def test_the_formula_of_the_original_gives_the_client_load() -> None:
    plan = Plan((decision(), decision(ReplicaRole.LEADER)))
    assert client_loads(plan, LIMITS) == {(1, ReplicaRole.FOLLOWER): mb(50), (1, ReplicaRole.LEADER): mb(20)}


def test_overrides_and_static_rates_say_nothing_of_clients() -> None:
    plan = Plan(
        (
            decision(basis=Basis.STATIC),
            replace(decision(), headroom_bytes_per_second=None, capacity_bytes_per_second=None),
        )
    )
    assert client_loads(plan, LIMITS) == {}


def test_the_bounds_come_from_all_brokers() -> None:
    assert most_used(LOADS, ReplicaRole.LEADER) == mb(30) and most_used(LOADS, ReplicaRole.FOLLOWER) == mb(60)
    assert smallest_capacity(LOADS) == mb(50)
    assert most_used(builders.loads(), ReplicaRole.LEADER) is None and smallest_capacity(builders.loads()) is None

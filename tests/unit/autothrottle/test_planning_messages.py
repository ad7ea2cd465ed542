"""Options and results of planning survive their way over gRPC, or are refused before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle import planning_messages as messages
from autothrottle.core.capacity.results import PoolDifference, PoolsDifference
from autothrottle.core.capacity.sizing import (
    CopyTarget,
    InstanceType,
    Loss,
    RecoveryGoal,
    UsableShares,
    Workload,
    capacity_plan,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.placement import plan as placement
from autothrottle.core.placement.proposal import PlacementFigures, ProposedPlacement
from autothrottle.v1 import placement_pb2

IDS = st.lists(st.integers(-2, 2**31 - 1), max_size=3).map(tuple)
NAMES = st.lists(st.text("ab.*", min_size=1), max_size=2).map(tuple)
COMMON: Mapping[str, Any] = {
    "scope": st.builds(placement.PlanScope, NAMES, NAMES, IDS),
    "allow_fewer_racks": st.booleans(),
}
OPTIONS = st.one_of(
    st.builds(
        placement.RebuildOptions,
        strategy=st.sampled_from(placement.Strategy),
        optimization=st.sampled_from((placement.Optimization.DISTRIBUTION, placement.Optimization.MINIMAL)),
        force=st.booleans(),
        replication_factor=st.integers(0, 9),
        substitution_affinity=st.booleans(),
        partition_size_factor=st.floats(0.1, 1000),
        optimize_leadership=st.booleans(),
        leader_evacuation_brokers=IDS,
        leader_evacuation_topics=NAMES,
        phased=st.booleans(),
        brokers_per_step=st.integers(0, 9),
        **COMMON,
    ),
    st.builds(
        placement.RebalanceOptions,
        storage_threshold=st.none() | st.floats(0.1, 0.9),
        locality_scoped=st.booleans(),
        **COMMON,
    ),
    st.builds(placement.ScaleOptions, locality_scoped=st.booleans(), **COMMON),
    st.builds(placement.DecommissionOptions, leaving=IDS, **COMMON),
)


@given(OPTIONS)
def test_options_arrive_as_they_were_given(options: placement.PlanOptions) -> None:
    request = messages.plan_request(options)
    assert messages.plan_options_of(type(request).FromString(request.SerializeToString())) == options


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (placement.RebuildOptions(min_rack_ids=2), "option min_rack_ids"),
        (placement.RebuildOptions(optimization=placement.Optimization.STORAGE), "option optimization"),
        (placement.ScaleOptions(storage_threshold=0.2), "option storage_threshold"),
        (placement.ReliefOptions(broker=1), "ReliefOptions"),
    ],
)
def test_options_that_the_service_lacks_are_refused(options: placement.PlanOptions, name: str) -> None:
    """A field without a counterpart would be left out, and the plan would be another one than was asked for."""
    with pytest.raises(Invalid, match=f"the placement service has no {name}; .*topicmappr"):
        messages.plan_request(options)


def test_plans_arrive_as_they_were_computed() -> None:
    figures = PlacementFigures(1, 2, 0.5, 3.0)
    targets = {("t", 0): (1, 2), ("t", 1): (2, 1)}
    plan = ProposedPlacement(figures, replace(figures, storage_range_spread=None), targets, 3, 4, 5, ("w",), (targets,))
    assert messages.plan_from_message(messages.plan_to_message(plan)) == plan
    pool = PoolDifference("a", "team", 4, 2, 5, (7,), ("no",), ("yes",), 1)
    difference = PoolsDifference(True, (pool,), targets, ("u",), ("old",))
    assert messages.difference_from_message(messages.difference_to_message(difference)) == difference


def test_inputs_and_result_of_a_capacity_plan_arrive_as_they_were_given() -> None:
    workload = Workload(1e9, timedelta(hours=12), 5e8, 0.0, 2, 7, 0.05, 3.0)
    instances = (InstanceType("a", 15e12, 3e9, 3e9, 2e9, 9.0), InstanceType("b", 4e12, 1e9, 1e9, 1e9, 3.0))
    shares = UsableShares(0.7, 0.6, 0.6, 0.5, 100)
    goal = RecoveryGoal(Loss.RACK, 4, CopyTarget.SURVIVORS, timedelta(hours=5), 0.8)
    request = messages.capacity_request(workload, instances, shares, goal)
    assert messages.capacity_inputs(request) == (workload, instances, shares, goal)
    plan = capacity_plan(workload, instances, shares, goal)
    assert messages.capacity_from_message(messages.capacity_to_message(plan), workload, instances) == plan


def test_absent_inputs_of_a_capacity_plan_have_their_defaults() -> None:
    request = placement_pb2.GetCapacityRequest(instances=[placement_pb2.CapacityInstance(name="a")])
    request.workload.retention.FromTimedelta(timedelta(days=1))
    workload, _, *rest = messages.capacity_inputs(request)
    assert (workload, rest) == (Workload(0.0, timedelta(days=1)), [UsableShares(), RecoveryGoal()])

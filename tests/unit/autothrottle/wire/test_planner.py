"""Cycles, decisions and planner state survive the wire; unknown enum values are refused."""

from dataclasses import replace

import pytest
from hypothesis import given

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cycle.results import CycleRecord, PlannerState
from autothrottle.core.errors import Invalid
from autothrottle.core.policy.interface import Basis
from autothrottle.core.throttles.plan import Reason
from autothrottle.v1 import planner_pb2, types_pb2
from autothrottle.wire.planner import (
    cycle_from_message,
    cycle_to_message,
    decision_from_message,
    decision_to_message,
    state_from_message,
    state_to_message,
)
from tests import builders
from tests.unit.autothrottle.wire import strategies


@given(strategies.cycles)
def test_cycle_round_trips(cycle: CycleRecord) -> None:
    raw = cycle_to_message(cycle).SerializeToString()
    assert cycle_from_message(types_pb2.Cycle.FromString(raw)) == cycle


@given(strategies.states)
def test_planner_state_round_trips(state: PlannerState) -> None:
    raw = state_to_message(state).SerializeToString()
    assert state_from_message(planner_pb2.GetStateResponse.FromString(raw)) == state


def test_current_throttle_of_zero_differs_from_none() -> None:
    decision = builders.decision(current=0)
    assert decision_from_message(decision_to_message(decision)).current == 0


@pytest.mark.parametrize("role", ReplicaRole)
@pytest.mark.parametrize("reason", Reason)
def test_every_role_and_reason_maps_to_the_proto_name(role: ReplicaRole, reason: Reason) -> None:
    message = decision_to_message(builders.decision(role=role, reason=reason))
    assert types_pb2.ReplicaRole.Name(message.role) == f"REPLICA_ROLE_{role.name}"
    assert types_pb2.Decision.Reason.Name(message.reason) == f"REASON_{reason.name}"


@pytest.mark.parametrize("basis", Basis)
def test_every_basis_maps_to_the_proto_name(basis: Basis) -> None:
    message = decision_to_message(replace(builders.decision(), basis=basis))
    assert types_pb2.Decision.Basis.Name(message.basis) == f"BASIS_{basis.name}"


def test_decision_with_an_unknown_basis_is_refused() -> None:
    message = decision_to_message(builders.decision())
    message.basis = 99  # type: ignore[assignment]
    with pytest.raises(Invalid, match="basis 99 of broker 1001's decision is unknown"):
        decision_from_message(message)


def test_decision_without_a_role_is_refused() -> None:
    message = decision_to_message(builders.decision())
    message.ClearField("role")
    with pytest.raises(Invalid, match="role 0, reason 1 or basis 0 of broker 1001's decision is unknown"):
        decision_from_message(message)

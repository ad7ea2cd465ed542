from dataclasses import replace

import pytest
from hypothesis import given

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.cycle import CycleRecord, PlannerState
from autothrottle.core.errors import Invalid
from autothrottle.core.plan import Reason
from autothrottle.core.policy.interface import Basis
from autothrottle.v1 import planner_pb2, types_pb2
from autothrottle.wire.cycles import (
    cycle_from_message,
    cycle_to_message,
    decision_from_message,
    decision_to_message,
    state_from_message,
    state_to_message,
)
from tests import builders
from tests.wire import strategies


@given(strategies.cycles)
def test_a_cycle_arrives_as_it_was_sent(cycle: CycleRecord) -> None:
    raw = cycle_to_message(cycle).SerializeToString()
    assert cycle_from_message(types_pb2.Cycle.FromString(raw)) == cycle


@given(strategies.states)
def test_the_state_of_a_planner_arrives_as_it_was_sent(state: PlannerState) -> None:
    raw = state_to_message(state).SerializeToString()
    assert state_from_message(planner_pb2.GetStateResponse.FromString(raw)) == state


def test_a_throttle_of_zero_that_stands_is_not_none() -> None:
    decision = builders.decision(standing=0)
    assert decision_from_message(decision_to_message(decision)).standing == 0


@pytest.mark.parametrize("role", ReplicaRole)
@pytest.mark.parametrize("reason", Reason)
def test_every_role_and_reason_has_a_word_of_its_own(role: ReplicaRole, reason: Reason) -> None:
    message = decision_to_message(builders.decision(role=role, reason=reason))
    assert types_pb2.ReplicaRole.Name(message.role) == f"REPLICA_ROLE_{role.name}"
    assert types_pb2.Decision.Reason.Name(message.reason) == f"REASON_{reason.name}"


@pytest.mark.parametrize("basis", Basis)
def test_every_basis_has_a_word_of_its_own(basis: Basis) -> None:
    message = decision_to_message(replace(builders.decision(), basis=basis))
    assert types_pb2.Decision.Basis.Name(message.basis) == f"BASIS_{basis.name}"


def test_a_decision_of_a_basis_that_a_newer_version_knows_is_refused() -> None:
    message = decision_to_message(builders.decision())
    message.basis = 99  # type: ignore[assignment]
    with pytest.raises(Invalid, match="basis 99 of broker 1001's decision is unknown"):
        decision_from_message(message)


def test_a_decision_without_a_role_is_refused() -> None:
    message = decision_to_message(builders.decision())
    message.ClearField("role")
    with pytest.raises(Invalid, match="role 0, reason 1 or basis 0 of broker 1001's decision is unknown"):
        decision_from_message(message)

"""Conversion of cycles, decisions and planner state to and from messages of the planner."""

from __future__ import annotations

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.control.cycle import CycleRecord, PlannerState
from autothrottle.core.control.plan import Decision, Reason
from autothrottle.core.errors import Invalid
from autothrottle.core.policy.interface import Basis
from autothrottle.v1 import planner_pb2, types_pb2
from autothrottle.wire.applier import (
    foreign_from_message,
    foreign_to_message,
    outcome_from_message,
    outcome_to_message,
)
from autothrottle.wire.common import (
    enum_numbers,
    optional_time,
    pause_from_message,
    pause_to_message,
    time_from_message,
    time_to_message,
)

_ROLE = enum_numbers(ReplicaRole, types_pb2.ReplicaRole.Value, "REPLICA_ROLE")
_ROLE_FROM_NUMBER = {number: role for role, number in _ROLE.items()}
_REASON = enum_numbers(Reason, types_pb2.Decision.Reason.Value, "REASON")
_REASON_FROM_NUMBER = {number: reason for reason, number in _REASON.items()}
_BASIS: dict[Basis | None, types_pb2.Decision.Basis.ValueType] = {
    None: types_pb2.Decision.BASIS_UNSPECIFIED,
    **enum_numbers(Basis, types_pb2.Decision.Basis.Value, "BASIS"),
}
_BASIS_FROM_NUMBER = {number: basis for basis, number in _BASIS.items()}


def role_to_number(role: ReplicaRole) -> types_pb2.ReplicaRole.ValueType:
    return _ROLE[role]


def decision_to_message(decision: Decision) -> types_pb2.Decision:
    return types_pb2.Decision(
        broker_id=decision.broker_id,
        role=_ROLE[decision.role],
        rate_bytes_per_second=decision.rate,
        reason=_REASON[decision.reason],
        current_rate_bytes_per_second=decision.current,
        headroom_bytes_per_second=decision.headroom,
        utilization_bytes_per_second=decision.utilization,
        capacity_bytes_per_second=decision.capacity,
        client_bytes_per_second=decision.client,
        client_age_seconds=decision.client_age,
        basis=_BASIS[decision.basis],
    )


def decision_from_message(message: types_pb2.Decision) -> Decision:
    """Convert a message to a decision.

    Raises:
        Invalid: its role, reason or basis is unknown to this version.
    """
    role, reason = _ROLE_FROM_NUMBER.get(message.role), _REASON_FROM_NUMBER.get(message.reason)
    if role is None or reason is None or message.basis not in _BASIS_FROM_NUMBER:
        raise Invalid(
            f"role {message.role}, reason {message.reason} or basis {message.basis} of broker "
            f"{message.broker_id}'s decision is unknown; update this program"
        )
    return Decision(
        broker_id=message.broker_id,
        role=role,
        rate=message.rate_bytes_per_second,
        reason=reason,
        current=_optional_int(message, "current_rate_bytes_per_second"),
        headroom=_optional_int(message, "headroom_bytes_per_second"),
        utilization=_optional_int(message, "utilization_bytes_per_second"),
        capacity=_optional_int(message, "capacity_bytes_per_second"),
        client=_optional_int(message, "client_bytes_per_second"),
        client_age=_optional_int(message, "client_age_seconds"),
        basis=_BASIS_FROM_NUMBER[message.basis],
    )


def _optional_int(message: types_pb2.Decision, name: str) -> int | None:
    return int(getattr(message, name)) if message.HasField(name) else None  # type: ignore[arg-type]


def cycle_to_message(cycle: CycleRecord) -> types_pb2.Cycle:
    return types_pb2.Cycle(
        term=cycle.term,
        number=cycle.number,
        start_time=time_to_message(cycle.start),
        end_time=time_to_message(cycle.end),
        reason=cycle.reason,
        sentence=cycle.sentence,
        topics=cycle.topics,
        decisions=map(decision_to_message, cycle.decisions),
        outcomes=map(outcome_to_message, cycle.outcomes),
        findings=cycle.findings,
        error=cycle.error,
        bytes_left=cycle.bytes_left,
        eta=optional_time(cycle.eta),
        pause=None if cycle.pause is None else pause_to_message(cycle.pause),
        shadow=cycle.shadow,
        foreign_throttles=map(foreign_to_message, cycle.foreign),
        eta_low=optional_time(cycle.eta_low),
        eta_high=optional_time(cycle.eta_high),
        eta_is_static=cycle.eta_is_static,
    )


def cycle_from_message(message: types_pb2.Cycle) -> CycleRecord:
    """Convert a message to a cycle.

    Raises:
        Invalid: an enum value is unknown to this version.
    """
    return CycleRecord(
        term=message.term,
        number=message.number,
        start=time_from_message(message.start_time),
        end=time_from_message(message.end_time),
        reason=message.reason,
        sentence=message.sentence,
        topics=tuple(message.topics),
        decisions=tuple(map(decision_from_message, message.decisions)),
        outcomes=tuple(map(outcome_from_message, message.outcomes)),
        findings=tuple(message.findings),
        error=message.error,
        bytes_left=message.bytes_left if message.HasField("bytes_left") else None,
        eta=time_from_message(message.eta) if message.HasField("eta") else None,
        pause=pause_from_message(message.pause) if message.HasField("pause") else None,
        shadow=message.shadow,
        foreign=tuple(map(foreign_from_message, message.foreign_throttles)),
        eta_low=time_from_message(message.eta_low) if message.HasField("eta_low") else None,
        eta_high=time_from_message(message.eta_high) if message.HasField("eta_high") else None,
        eta_is_static=message.eta_is_static,
    )


def state_to_message(state: PlannerState) -> planner_pb2.GetStateResponse:
    return planner_pb2.GetStateResponse(
        leading=state.leading,
        term=state.term,
        leader_address=state.leader_address,
        last_cycle=None if state.last_cycle is None else cycle_to_message(state.last_cycle),
        failures=state.failures,
        leader_since=optional_time(state.leader_since),
    )


def state_from_message(message: planner_pb2.GetStateResponse) -> PlannerState:
    """Convert a message to the state of a planner.

    Raises:
        Invalid: an enum value is unknown to this version.
    """
    return PlannerState(
        leading=message.leading,
        term=message.term,
        leader_address=message.leader_address,
        last_cycle=cycle_from_message(message.last_cycle) if message.HasField("last_cycle") else None,
        failures=dict(message.failures),
        leader_since=time_from_message(message.leader_since) if message.HasField("leader_since") else None,
    )

"""Conversion of cycles, decisions and planner state to and from messages of the planner."""

from __future__ import annotations

from autothrottle.core.cycle.results import CycleRecord, PlannerState
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.pause import Pause
from autothrottle.core.throttles.changes import Outcome
from autothrottle.core.throttles.plan import Decision
from autothrottle.messages import Conversion, Converter
from autothrottle.v1 import planner_pb2, types_pb2
from autothrottle.wire.applier import (
    outcome_from_message,
    outcome_to_message,
)
from autothrottle.wire.common import SAME_NAMES, pause_from_message, pause_to_message

_DECISION = Conversion(
    names={
        Decision: {
            "rate": "rate_bytes_per_second",
            "current": "current_rate_bytes_per_second",
            "headroom": "headroom_bytes_per_second",
            "utilization": "utilization_bytes_per_second",
            "capacity": "capacity_bytes_per_second",
            "client": "client_bytes_per_second",
            "client_age": "client_age_seconds",
        }
    }
)


def decision_to_message(decision: Decision) -> types_pb2.Decision:
    return _DECISION.to_message(types_pb2.Decision, decision)


def decision_from_message(message: types_pb2.Decision) -> Decision:
    """Convert a message to a decision.

    Raises:
        Invalid: its role, reason or basis is unknown to this version.
    """
    try:
        return _DECISION.from_message(Decision, message)
    except KeyError:
        raise Invalid(
            f"role {message.role}, reason {message.reason} or basis {message.basis} of broker "
            f"{message.broker_id}'s decision is unknown; update this program"
        ) from None


STATE = Conversion(
    names={CycleRecord: {"start": "start_time", "end": "end_time", "foreign": "foreign_throttles"}},
    converters={
        **SAME_NAMES.converters,
        Decision: Converter(decision_to_message, decision_from_message),
        Outcome: Converter(outcome_to_message, outcome_from_message),
        Pause: Converter(pause_to_message, pause_from_message),
    },
)
"""Converts cycles and the state of planners."""


def cycle_to_message(cycle: CycleRecord) -> types_pb2.Cycle:
    return STATE.to_message(types_pb2.Cycle, cycle)


def cycle_from_message(message: types_pb2.Cycle) -> CycleRecord:
    """Convert a message to a cycle.

    Raises:
        Invalid: an enum value is unknown to this version.
    """
    return STATE.from_message(CycleRecord, message)


def state_to_message(state: PlannerState) -> planner_pb2.GetStateResponse:
    return STATE.to_message(planner_pb2.GetStateResponse, state)


def state_from_message(message: planner_pb2.GetStateResponse) -> PlannerState:
    """Convert a message to the state of a planner.

    Raises:
        Invalid: an enum value is unknown to this version.
    """
    return STATE.from_message(PlannerState, message)

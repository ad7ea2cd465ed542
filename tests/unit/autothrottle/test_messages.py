"""Messages become dataclasses by the names and types of the fields."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from google.protobuf.message import Message

from autothrottle.v1 import admin_pb2, planner_pb2, types_pb2
from autothrottle_client import model, reassignments
from autothrottle_client.model import from_message


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (model.AuditRecord, admin_pb2.AuditRecord),
        (model.CatchUp, admin_pb2.CatchUp),
        (model.ClusterState, admin_pb2.GetClusterStateResponse),
        (model.Cycle, types_pb2.Cycle),
        (model.Decision, types_pb2.Decision),
        (model.ForeignThrottle, types_pb2.ForeignThrottle),
        (model.Member, admin_pb2.Member),
        (model.Outcome, types_pb2.Outcome),
        (model.Override, admin_pb2.Override),
        (model.Pause, types_pb2.Pause),
        (model.PlannerState, planner_pb2.GetStateResponse),
        (reassignments.ReassigningTopic, admin_pb2.ReassigningTopic),
    ],
)
def test_a_result_has_the_fields_of_its_message(kind: Any, message: type[Message]) -> None:
    assert {field.name for field in fields(kind)} == set(message.DESCRIPTOR.fields_by_name)
    from_message(kind, message())


def test_an_absent_field_is_none_and_a_zero_is_zero() -> None:
    assert from_message(model.Override, admin_pb2.Override()).broker_id is None
    assert from_message(model.Override, admin_pb2.Override(broker_id=0)).broker_id == 0
    decision = from_message(model.Decision, types_pb2.Decision(headroom_bytes_per_second=0))
    assert (decision.headroom_bytes_per_second, decision.capacity_bytes_per_second) == (0, None)


def test_an_unset_enum_is_unknown_or_absent() -> None:
    decision = from_message(model.Decision, types_pb2.Decision())
    assert (decision.role, decision.reason, decision.basis) == (model.ReplicaRole.UNKNOWN, model.Reason.UNKNOWN, None)

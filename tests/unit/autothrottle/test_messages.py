"""Messages become dataclasses and back by the names and types of the fields."""

from __future__ import annotations

import pytest

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.records import (
    Decision,
    Pause,
    PauseMode,
    Reason,
)
from autothrottle.messages import Conversion
from autothrottle.v1 import admin_pb2, types_pb2
from autothrottle_client import model
from autothrottle_client.model import from_message
from tests.builders import NOON


def test_an_absent_field_is_none_and_a_zero_is_zero() -> None:
    assert from_message(model.Override, admin_pb2.Override()).broker_id is None
    assert from_message(model.Override, admin_pb2.Override(broker_id=0)).broker_id == 0
    decision = from_message(Decision, types_pb2.Decision(headroom_bytes_per_second=0))
    assert (decision.headroom_bytes_per_second, decision.capacity_bytes_per_second) == (0, None)


def test_an_unset_enum_is_unknown_or_absent() -> None:
    decision = from_message(Decision, types_pb2.Decision())
    assert (decision.role, decision.reason, decision.basis) == (ReplicaRole.UNKNOWN, Reason.UNKNOWN, None)


def test_given_values_replace_those_of_the_dataclass() -> None:
    sent = Conversion().to_message(types_pb2.Pause, Pause(PauseMode.KEEP, "anna", None), author="ben")
    assert (sent.mode, sent.author, sent.HasField("time")) == (types_pb2.Pause.MODE_KEEP, "ben", False)


def test_none_has_no_fields() -> None:
    assert Conversion().to_message(types_pb2.Pause, None, reason="why") == types_pb2.Pause(reason="why")


def test_a_renamed_field_goes_both_ways() -> None:
    conversion = Conversion(names={Pause: {"author": "reason", "reason": "author"}})
    pause = Pause(PauseMode.CLEAR, "anna", NOON, "why")
    sent = conversion.to_message(types_pb2.Pause, pause)
    assert (sent.author, sent.reason) == ("why", "anna")
    assert conversion.from_message(Pause, sent) == pause


def test_services_refuse_a_number_without_a_member() -> None:
    with pytest.raises(Invalid, match=r"Pause\.mode 9 is unknown"):
        Conversion().from_message(Pause, types_pb2.Pause(mode=9))  # type: ignore[arg-type]

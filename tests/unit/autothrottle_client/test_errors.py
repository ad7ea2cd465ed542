"""Failed gRPC calls become errors; an error of a service reaches its caller unchanged, in another service, too."""

from __future__ import annotations

import grpc
import pytest

from autothrottle.core import errors
from autothrottle.messages import CODES
from autothrottle.wire.common import to_status
from autothrottle_client import AutothrottleError, Conflict, Invalid, Unavailable
from autothrottle_client.errors import from_rpc_error
from tests.unit.autothrottle_client.failed_call import FailedCall


@pytest.mark.parametrize(
    ("seconds", "within"), [(1.4998, "within 1.5 s"), (10, "within 10 s"), (0.001, "within 0.1 s"), (None, "in time")]
)
def test_exceeded_deadline_is_unavailable_and_names_peer_and_timeout(seconds: float | None, within: str) -> None:
    failed = FailedCall(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    returned = from_rpc_error(failed, "discovery at 127.0.0.1:4001", seconds)
    assert type(returned) is Unavailable
    assert str(returned) == f"discovery at 127.0.0.1:4001 did not answer {within}"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.CANCELLED, Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Unavailable),
        (grpc.StatusCode.ALREADY_EXISTS, Conflict),
        (grpc.StatusCode.OUT_OF_RANGE, Invalid),
        (grpc.StatusCode.UNIMPLEMENTED, AutothrottleError),
        (grpc.StatusCode.UNKNOWN, AutothrottleError),
    ],
)
def test_codes_that_only_grpc_sends_map_to_the_error_tree(code: grpc.StatusCode, kind: type[AutothrottleError]) -> None:
    returned = from_rpc_error(FailedCall(code, "no such method"), "planner at h:1")
    assert type(returned) is kind
    assert str(returned) == f"planner at h:1 answered {code.name}: no such method"


def test_every_grpc_code_maps_to_the_error_tree() -> None:
    for code in grpc.StatusCode:
        assert isinstance(from_rpc_error(FailedCall(code, "x"), "h:1"), AutothrottleError)


def test_rpc_error_without_a_call_maps_to_the_error_tree() -> None:
    assert isinstance(from_rpc_error(grpc.RpcError("broken"), "h:1"), AutothrottleError)


def test_unreachable_peer_is_named_in_the_error() -> None:
    failed = FailedCall(grpc.StatusCode.UNAVAILABLE, "connection refused")
    assert str(from_rpc_error(failed, "applier at h:1")) == "applier at h:1: connection refused"


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_errors_round_trip_with_their_message(kind: type[AutothrottleError]) -> None:
    returned = from_rpc_error(FailedCall(*to_status(kind("rate is -1; give > 0"))), "h:1")
    assert type(returned) is kind
    assert str(returned).removeprefix("h:1: ") == "rate is -1; give > 0"


@pytest.mark.parametrize("address", ["10.0.0.7:4003", ""])
def test_not_leader_round_trips_with_the_leader_address(address: str) -> None:
    returned = from_rpc_error(FailedCall(*to_status(errors.NotLeader("another planner leads", address))), "h:1")
    assert isinstance(returned, errors.NotLeader)
    assert (str(returned), returned.leader_address) == ("another planner leads", address)

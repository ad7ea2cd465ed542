"""Errors of a service reach another service unchanged: core to gRPC status to the client package to core."""

from __future__ import annotations

import pytest

from autothrottle.adapters.client_errors import as_core_errors
from autothrottle.core import errors
from autothrottle.wire.common import CODES, to_status
from autothrottle_client.errors import from_rpc_error
from tests.unit.autothrottle_client.failed_call import FailedCall


def returned(sent: errors.AutothrottleError) -> errors.AutothrottleError:
    """The error that a caller in another service sees."""
    with pytest.raises(errors.AutothrottleError) as caught, as_core_errors():
        raise from_rpc_error(FailedCall(*to_status(sent)), "h:1")
    return caught.value


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_errors_round_trip_with_their_message(kind: type[errors.AutothrottleError]) -> None:
    found = returned(kind("rate is -1; give > 0"))
    assert type(found) is kind
    assert str(found).removeprefix("h:1: ") == "rate is -1; give > 0"


@pytest.mark.parametrize("address", ["10.0.0.7:4003", ""])
def test_not_leader_round_trips_with_the_leader_address(address: str) -> None:
    found = returned(errors.NotLeader("another planner leads", address))
    assert isinstance(found, errors.NotLeader)
    assert (str(found), found.leader_address) == ("another planner leads", address)


def test_errors_of_core_pass() -> None:
    with pytest.raises(errors.Incomplete, match="a part"), as_core_errors():
        raise errors.Incomplete("a part is absent")

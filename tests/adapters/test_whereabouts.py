"""Services that are looked for in the list of members: those on it are found, and the reason when there are none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import grpc
import pytest

from autothrottle.adapters.endpoints import Endpoints
from autothrottle.adapters.memory import MemoryMembers, MemoryMembership
from autothrottle.adapters.whereabouts import member_lookup, members_address
from autothrottle.core.errors import Unavailable
from autothrottle.core.members import Member
from tests.builders import NOON

PLANNERS = members_address("planner")
ONE = Member("planner", ("planner",), "1.2.3", "10.0.0.1:4003", "h1", 7, NOON)


def names(address: str) -> Sequence[str]:
    """A name server that knows one name."""
    host, _, port = address.rpartition(":")
    if host == "nowhere":
        raise OSError("no such name")
    return [f"10.9.9.9:{port}" if host == "h3" else address]


def list_of(*members: Member) -> MemoryMembers:
    everybody = MemoryMembers()
    for member in members:
        MemoryMembership(everybody).join(member)
    return everybody


def found(*members: Member) -> Sequence[str]:
    return member_lookup(MemoryMembership(list_of(*members)), "h2", names)(PLANNERS)


def test_every_member_of_the_role_is_found_and_names_of_hosts_are_looked_up() -> None:
    everywhere = replace(ONE, address="0.0.0.0:4013", host="h3", pid=8)
    assert found(ONE, everywhere, replace(ONE, service="admin")) == ["10.0.0.1:4003", "10.9.9.9:4013"]


def test_a_member_on_a_host_that_nobody_knows_hides_no_other() -> None:
    assert found(replace(ONE, address="nowhere:1", pid=1), ONE) == ["10.0.0.1:4003"]


@pytest.mark.parametrize("address", ["", "10.0.0.2", "10.0.0.2:", "10.0.0.2:http", "[::"])
def test_a_member_whose_address_is_none_hides_no_other(address: str) -> None:
    """It ended the thread that looks up names: no lookup was ever made again, and each call waited for that one."""
    look_up = member_lookup(MemoryMembership(list_of(replace(ONE, address=address, pid=1), ONE)), "h2")
    assert look_up(PLANNERS) == ["10.0.0.1:4003"]


def test_a_socket_on_the_same_host_is_found() -> None:
    assert found(replace(ONE, address="unix:/run/p.sock", host="h2")) == ["unix:/run/p.sock"]


def test_other_addresses_are_looked_up_as_before() -> None:
    assert member_lookup(MemoryMembership(list_of()), "h2", names)("h3:5") == ["10.9.9.9:5"]


def called(everybody: MemoryMembers) -> str:
    """What a client is told that calls a planner nobody can reach."""
    lookup = member_lookup(MemoryMembership(everybody), "h2", names)
    with closing(Endpoints("planner", [PLANNERS], resolve=lookup)) as endpoints, pytest.raises(Unavailable) as caught:
        endpoints.call(_never, timedelta(seconds=30))
    return str(caught.value)


def _never(channel: grpc.Channel, seconds: float) -> None:
    raise AssertionError("there is nobody to call")


def test_when_no_member_can_be_reached_the_caller_is_told_the_fix() -> None:
    local = replace(ONE, address="127.0.0.1:4003")
    assert "no planner that can be reached from h2 is listed; start one, or give --planner-addr" in called(
        list_of(local)
    )


def test_a_list_that_cannot_be_read_is_told_as_such() -> None:
    everybody = list_of(ONE)
    everybody.unavailable(True)
    assert "the members cannot be read" in called(everybody)

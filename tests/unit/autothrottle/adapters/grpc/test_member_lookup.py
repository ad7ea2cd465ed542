"""Lookup of services in the list of members, and the error when none is reachable."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.adapters.grpc import PlannerServiceClient
from autothrottle.adapters.grpc.member_lookup import member_lookup, members_address
from autothrottle.adapters.memory import MemoryMembers, MemoryMembership
from autothrottle.core.errors import Unavailable
from autothrottle.core.members import Member
from tests.builders import NOON

PLANNERS = members_address("planner")
ONE = Member("planner", ("planner",), "1.2.3", "10.0.0.1:4003", "h1", 7, NOON)


def names(address: str) -> Sequence[str]:
    """A name server that resolves one name."""
    host, _, port = address.rpartition(":")
    if host == "nowhere":
        raise OSError("no such name")
    return [f"10.9.9.9:{port}" if host == "h3" else address]


def registered(*members: Member) -> MemoryMembers:
    shared = MemoryMembers()
    for member in members:
        MemoryMembership(shared).join(member)
    return shared


def found(*members: Member) -> Sequence[str]:
    return member_lookup(MemoryMembership(registered(*members)), "h2", names)(PLANNERS)


def test_all_members_of_the_role_are_found_and_host_names_resolved() -> None:
    everywhere = replace(ONE, address="0.0.0.0:4013", host="h3", pid=8)
    assert found(ONE, everywhere, replace(ONE, service="admin")) == ["10.0.0.1:4003", "10.9.9.9:4013"]


def test_member_on_an_unresolvable_host_does_not_hide_others() -> None:
    assert found(replace(ONE, address="nowhere:1", pid=1), ONE) == ["10.0.0.1:4003"]


@pytest.mark.parametrize("address", ["", "10.0.0.2", "10.0.0.2:", "10.0.0.2:http", "[::"])
def test_member_with_an_invalid_address_does_not_hide_others(address: str) -> None:
    """An invalid address ended the lookup thread. No later lookup ran, and each call waited for the first one."""
    look_up = member_lookup(MemoryMembership(registered(replace(ONE, address=address, pid=1), ONE)), "h2")
    assert look_up(PLANNERS) == ["10.0.0.1:4003"]


def test_unix_socket_on_the_same_host_is_found() -> None:
    assert found(replace(ONE, address="unix:/run/p.sock", host="h2")) == ["unix:/run/p.sock"]


def test_other_addresses_use_the_given_resolver() -> None:
    assert member_lookup(MemoryMembership(registered()), "h2", names)("h3:5") == ["10.9.9.9:5"]


def call_error(members: MemoryMembers) -> str:
    """The error of a call when no planner is reachable."""
    lookup = member_lookup(MemoryMembership(members), "h2", names)
    with closing(PlannerServiceClient([PLANNERS], resolve=lookup)) as planner, pytest.raises(Unavailable) as caught:
        planner.run_cycle("a test", timedelta(seconds=30))
    return str(caught.value)


def test_error_without_a_reachable_member_names_the_fix() -> None:
    local = replace(ONE, address="127.0.0.1:4003")
    assert "no planner that is reachable from h2 is registered; start one, or give --planner-addr" in call_error(
        registered(local)
    )


def test_error_says_that_the_members_cannot_be_read() -> None:
    members = registered(ONE)
    members.unavailable(True)
    assert "the members cannot be read" in call_error(members)

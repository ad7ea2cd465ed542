"""The addresses at which processes on the same and on other hosts reach a member."""

from __future__ import annotations

import pytest

from autothrottle.core.members import Member, address_from
from tests.builders import NOON


def at(address: str, service: str = "planner", host: str = "h1") -> Member:
    return Member(service, (service,), "1.2.3", address, host, 7, NOON)


@pytest.mark.parametrize(
    ("address", "from_its_host", "from_another"),
    [
        ("10.0.0.1:4003", "10.0.0.1:4003", "10.0.0.1:4003"),
        ("planner.example:4003", "planner.example:4003", "planner.example:4003"),
        ("0.0.0.0:4003", "127.0.0.1:4003", "h1:4003"),
        ("[::]:4003", "[::1]:4003", "h1:4003"),
        ("[2001:db8::1]:4003", "[2001:db8::1]:4003", "[2001:db8::1]:4003"),
        ("127.0.0.1:4003", "127.0.0.1:4003", None),
        ("[::1]:4003", "[::1]:4003", None),
        ("localhost:4003", "localhost:4003", None),
        ("unix:/run/planner.sock", "unix:/run/planner.sock", None),
    ],
)
def test_address_depends_on_the_host_of_the_caller(address: str, from_its_host: str, from_another: str | None) -> None:
    assert address_from("h1", at(address), "planner") == from_its_host
    assert address_from("h2", at(address), "planner") == from_another


def test_member_is_reachable_only_in_its_own_role() -> None:
    assert address_from("h2", at("10.0.0.1:4003"), "admin") is None


@pytest.mark.parametrize(
    ("role", "answers"),
    [("admin", True), ("planner", True), ("discovery", False), ("metrics", False), ("applier", False)],
)
def test_run_serves_others_only_as_admin_and_planner(role: str, answers: bool) -> None:
    found = address_from("h2", at("10.0.0.1:8090", "run"), role)
    assert found == ("10.0.0.1:8090" if answers else None)

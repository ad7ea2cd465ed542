"""The addresses at which processes on the same and on other hosts reach a member."""

from __future__ import annotations

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.members import (
    Member,
    address_from,
    hosts_without_route,
    leader_address,
    published_address,
)
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


@pytest.mark.parametrize(
    ("listening", "advertise", "published"),
    [
        ("127.0.0.1:8090", "", "127.0.0.1:8090"),
        ("0.0.0.0:8090", "", "0.0.0.0:8090"),
        ("0.0.0.0:8090", "kafka-ops-1", "kafka-ops-1:8090"),
        ("[::]:8090", "[2001:db8::1]", "[2001:db8::1]:8090"),
        ("0.0.0.0:8090", "kafka-ops-1:9000", "kafka-ops-1:9000"),
        ("unix:/run/a.sock", "kafka-ops-1:9000", "kafka-ops-1:9000"),
    ],
)
def test_advertise_replaces_the_listening_address(listening: str, advertise: str, published: str) -> None:
    assert published_address(listening, advertise) == published


def test_advertise_of_a_unix_socket_needs_a_port() -> None:
    with pytest.raises(Invalid, match="Fix: --advertise=kafka-ops-1:PORT"):
        published_address("unix:/run/a.sock", "kafka-ops-1")


@pytest.mark.parametrize(
    ("address", "published"),
    [("0.0.0.0:8090", "h1:8090"), ("[::]:8090", "h1:8090"), ("10.0.0.1:8090", "10.0.0.1:8090"), ("unix:/a", "unix:/a")],
)
def test_leader_on_every_interface_is_called_by_its_host_name(address: str, published: str) -> None:
    """A planner on 0.0.0.0 published 0.0.0.0 as the leader's address. Callers on other hosts then called themselves."""
    assert leader_address(at(address)) == published


@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        ("127.0.0.1:8090", ("h2", "h3")),
        ("unix:/run/a.sock", ("h2", "h3")),
        ("0.0.0.0:8090", ()),
        ("10.0.0.1:8090", ()),
    ],
)
def test_other_hosts_cannot_reach_a_loopback_address(address: str, hosts: tuple[str, ...]) -> None:
    others = [at("10.0.0.2:1", "metrics", host) for host in ("h3", "h1", "h2", "h2")]
    assert hosts_without_route(at(address, "run"), others) == hosts

"""Members in memory and in their nodes; a process without ZooKeeper goes on unregistered."""

from __future__ import annotations

import json
import logging
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryMembers, MemoryMembership
from autothrottle.adapters.state_store.registration import format_member, parse_member
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import connect_in_background, disconnect
from autothrottle.adapters.zookeeper_state.membership import ZooKeeperMembership
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.ports.state_store import Membership
from autothrottle_lab.servers.processes import free_ports
from tests.builders import eventually
from tests.contract.membership_contract import MembershipContract, MembershipSubject, member

ONE = member("planner")


class MemorySubject:
    """Processes that share an in-memory list."""

    def __init__(self) -> None:
        self.members = MemoryMembers()

    def membership(self) -> Membership:
        return MemoryMembership(self.members)


class TestMemoryMembership(MembershipContract):
    @pytest.fixture
    def subject(self) -> MembershipSubject:
        return MemorySubject()


def test_unavailable_memory_list_raises_unavailable() -> None:
    subject = MemorySubject()
    subject.members.unavailable(True)
    with pytest.raises(Unavailable):
        subject.membership().members(timedelta(seconds=1))


def test_member_round_trip() -> None:
    assert parse_member(format_member(ONE)) == ONE
    assert json.loads(format_member(ONE))["start_time"] == "2026-11-02T12:00:00+00:00"


def test_unknown_fields_of_a_member_are_ignored() -> None:
    assert parse_member(json.dumps({**json.loads(format_member(ONE)), "zone": "a"}).encode()) == ONE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[" * 50_000,
        format_member(ONE).replace(b'"pid": 1', b'"pid": "x"'),
        format_member(ONE).replace(b'["planner"]', b"7"),
    ],
)
def test_malformed_member_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid, match="does not describe a member"):
        parse_member(data)


def test_missing_zookeeper_is_logged_once_and_the_process_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (port,) = free_ports(1)
    client = connect_in_background(f"127.0.0.1:{port}", timedelta(seconds=0.3))
    try:
        membership = ZooKeeperMembership(client, OwnPaths(), timedelta(seconds=0.3))
        with caplog.at_level(logging.WARNING):
            membership.join(ONE)
            eventually(lambda: caplog.messages)
            with pytest.raises(Unavailable, match="while reading the members"):
                membership.members(timedelta(seconds=1))
            membership.leave()
    finally:
        disconnect(client)
    assert caplog.messages == [
        f"ZooKeeper (127.0.0.1:{port}) does not answer: this process is not registered as a member"
    ]

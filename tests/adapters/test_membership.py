"""Members in memory and in their nodes; a process that cannot reach ZooKeeper goes on without being listed."""

from __future__ import annotations

import json
import logging
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryMembers, MemoryMembership
from autothrottle.adapters.zookeeper.membership import ZooKeeperMembership, format_member, parse_member
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import connect_in_background, disconnect_soon
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.lab.processes import free_ports
from autothrottle.ports.membership import Membership
from tests.adapters.contract_membership import MembershipContract, MembershipSubject, member
from tests.builders import eventually

ONE = member("planner")


class MemorySubject:
    """Processes that share a list in memory."""

    def __init__(self) -> None:
        self.everybody = MemoryMembers()

    def membership(self) -> Membership:
        return MemoryMembership(self.everybody)


class TestMemoryMembership(MembershipContract):
    @pytest.fixture
    def subject(self) -> MembershipSubject:
        return MemorySubject()


def test_a_list_in_memory_that_does_not_answer_is_unavailable() -> None:
    subject = MemorySubject()
    subject.everybody.unavailable(True)
    with pytest.raises(Unavailable):
        subject.membership().members(timedelta(seconds=1))


def test_a_node_says_what_its_member_said() -> None:
    assert parse_member(format_member(ONE)) == ONE
    assert json.loads(format_member(ONE))["start_time"] == "2026-11-02T12:00:00+00:00"


def test_what_a_later_version_adds_to_a_node_is_passed_over() -> None:
    assert parse_member(json.dumps({**json.loads(format_member(ONE)), "zone": "a"}).encode()) == ONE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b"{}",
        b"\xff",
        b"[" * 50_000,
        format_member(ONE).replace(b'"pid": 1', b'"pid": "x"'),
        format_member(ONE).replace(b'"pid": 1', b'"pid": 1e999'),
        format_member(ONE).replace(b"+00:00", b""),
        format_member(ONE).replace(b"2026", b"in 2026"),
        format_member(ONE).replace(b'["planner"]', b"7"),
    ],
)
def test_a_node_that_describes_no_member_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid, match="describes no member"):
        parse_member(data)


def test_without_zookeeper_a_process_says_once_that_it_is_not_listed_and_goes_on(
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
        disconnect_soon(client)
    assert caplog.messages == [
        f"ZooKeeper (127.0.0.1:{port}) does not answer: this process is not listed among the members"
    ]

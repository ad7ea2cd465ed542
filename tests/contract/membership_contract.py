"""Contract of every `Membership`. Inherit from it and define the fixture `subject`."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from autothrottle.core.members import Member
from autothrottle.ports.state_store import Membership
from tests.builders import NOON, eventually

TIMEOUT = timedelta(seconds=30)


class MembershipSubject(Protocol):
    """Creates processes that share one member list. They leave at the end of the test."""

    def membership(self) -> Membership:
        """Return the membership of a new process that has not joined."""
        ...


def member(service: str, number: int = 1) -> Member:
    return Member(service, (service,), "1.2.3", f"10.0.0.{number}:4001", f"host{number}", number, NOON)


def wait_for_members(membership: Membership, *wanted: Member) -> None:
    """Wait until the list has exactly these members, in this order."""
    eventually(lambda: membership.members(TIMEOUT) == wanted)


class MembershipContract:
    def test_list_is_empty_before_the_first_join(self, subject: MembershipSubject) -> None:
        assert subject.membership().members(TIMEOUT) == ()

    def test_joined_member_is_listed_with_all_its_fields(self, subject: MembershipSubject) -> None:
        joined = subject.membership()
        description = Member("run", ("discovery", "planner"), "1.2.3", "unix:/run/a.sock", "hôte-1", 2**22, NOON)
        joined.join(description)
        wait_for_members(joined, description)
        wait_for_members(subject.membership(), description)

    def test_problem_is_reported_until_the_member_is_registered(self, subject: MembershipSubject) -> None:
        membership = subject.membership()
        assert "not registered" in membership.problem()
        membership.join(member("admin"))
        eventually(lambda: not membership.problem())

    def test_members_are_sorted_by_service_and_start(self, subject: MembershipSubject) -> None:
        for service, number in (("planner", 2), ("admin", 1), ("planner", 1)):
            subject.membership().join(member(service, number))
        wait_for_members(subject.membership(), member("admin", 1), member("planner", 1), member("planner", 2))

    def test_member_that_left_is_no_longer_listed(self, subject: MembershipSubject) -> None:
        leaving, staying = subject.membership(), subject.membership()
        leaving.join(member("metrics"))
        staying.join(member("planner"))
        wait_for_members(staying, member("metrics"), member("planner"))
        leaving.leave()
        wait_for_members(staying, member("planner"))
        leaving.leave()
        assert staying.members(TIMEOUT) == (member("planner"),)

    def test_leaving_without_joining_has_no_effect(self, subject: MembershipSubject) -> None:
        subject.membership().leave()
        assert subject.membership().members(TIMEOUT) == ()

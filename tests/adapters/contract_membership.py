"""What every `Membership` keeps to; inherit and give the fixture `subject`."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from autothrottle.core.members import Member
from autothrottle.ports.membership import Membership
from tests.builders import NOON, eventually

TIMEOUT = timedelta(seconds=30)


class MembershipSubject(Protocol):
    """Makes processes that share one list, and makes them leave at the end of the test."""

    def membership(self) -> Membership:
        """The part of a new process that has not joined yet."""
        ...


def member(service: str, number: int = 1) -> Member:
    return Member(service, (service,), "1.2.3", f"10.0.0.{number}:4001", f"host{number}", number, NOON)


def listed(membership: Membership, *wanted: Member) -> None:
    """Return once these are on the list, in this order, and nobody else."""
    eventually(lambda: membership.members(TIMEOUT) == wanted)


class MembershipContract:
    def test_before_anybody_joined_the_list_is_empty(self, subject: MembershipSubject) -> None:
        assert subject.membership().members(TIMEOUT) == ()

    def test_who_joined_is_listed_with_all_that_it_said(self, subject: MembershipSubject) -> None:
        joined = subject.membership()
        said = Member("run", ("discovery", "planner"), "1.2.3", "unix:/run/a.sock", "hôte-1", 2**22, NOON)
        joined.join(said)
        listed(joined, said)
        listed(subject.membership(), said)

    def test_all_are_listed_by_service_and_start(self, subject: MembershipSubject) -> None:
        for service, number in (("planner", 2), ("admin", 1), ("planner", 1)):
            subject.membership().join(member(service, number))
        listed(subject.membership(), member("admin", 1), member("planner", 1), member("planner", 2))

    def test_who_left_is_listed_no_more_and_the_others_are(self, subject: MembershipSubject) -> None:
        leaving, staying = subject.membership(), subject.membership()
        leaving.join(member("metrics"))
        staying.join(member("planner"))
        listed(staying, member("metrics"), member("planner"))
        leaving.leave()
        listed(staying, member("planner"))
        leaving.leave()
        assert staying.members(TIMEOUT) == (member("planner"),)

    def test_whoever_never_joined_may_leave(self, subject: MembershipSubject) -> None:
        subject.membership().leave()
        assert subject.membership().members(TIMEOUT) == ()

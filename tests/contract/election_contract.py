"""Contract of every `Election`. Inherit from it and define the fixture `subject`."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Protocol

from autothrottle.ports.state_store import Election
from tests.builders import eventually


class ElectionSubject(Protocol):
    """Creates candidates of one election. They leave at the end of the test."""

    def candidate(self) -> Election:
        """Return a new candidate that has not joined."""
        ...

    def candidates(self) -> int:
        """Return the number of candidates that lead or wait."""
        ...

    def wipe(self) -> None:
        """Delete all of the election's state, as an operator who deletes autothrottle's nodes."""
        ...

    def depose(self, leader: Election) -> None:
        """End the session of the leader, as a network partition does."""
        ...


def nothing() -> None:
    """Callback that ignores changes of leadership."""


def leading(candidate: Election) -> bool:
    return candidate.term is not None


def fence_of(candidate: Election) -> int:
    term = candidate.term
    assert term is not None
    return term.fence


class ElectionContract:
    def test_no_leader_before_the_first_term(self, subject: ElectionSubject) -> None:
        candidate = subject.candidate()
        assert candidate.term is None
        assert candidate.leader() is None

    def test_a_single_candidate_leads_and_is_notified(self, subject: ElectionSubject) -> None:
        changed = threading.Event()
        candidate = subject.candidate()
        candidate.join("127.0.0.1:4004", changed.set, "host1")
        assert changed.wait(20)
        leader = candidate.leader()
        assert leader is not None
        assert (leader.fence, leader.address, leader.host) == (fence_of(candidate), "127.0.0.1:4004", "host1")
        assert leader.since is not None
        assert abs(datetime.now(UTC) - leader.since) < timedelta(minutes=10)
        assert leader.fence > 0

    def test_only_one_of_many_candidates_leads(self, subject: ElectionSubject) -> None:
        candidates = [subject.candidate() for _ in range(3)]
        for number, candidate in enumerate(candidates):
            candidate.join(f"host{number}:1", nothing)
        eventually(lambda: any(map(leading, candidates)))
        assert sum(map(leading, candidates)) == 1

    def test_other_candidates_know_the_address_of_the_leader(self, subject: ElectionSubject) -> None:
        first, second = subject.candidate(), subject.candidate()
        first.join("host1:1", nothing)
        eventually(lambda: leading(first))
        second.join("host2:1", nothing)
        leader = second.leader()
        assert leader is not None and leader.address == "host1:1"

    def test_next_leader_has_a_higher_fence_when_the_leader_leaves(self, subject: ElectionSubject) -> None:
        first, second = subject.candidate(), subject.candidate()
        first.join("host1:1", nothing)
        eventually(lambda: leading(first))
        second.join("host2:1", nothing)
        earlier = fence_of(first)
        first.leave()
        first.leave()
        assert first.term is None
        eventually(lambda: leading(second))
        assert fence_of(second) > earlier
        leader = first.leader()
        assert leader is not None and leader.address == "host2:1"

    def test_a_waiting_candidate_that_left_never_leads(self, subject: ElectionSubject) -> None:
        first, second, third = (subject.candidate() for _ in range(3))
        for candidate, address in ((first, "host1:1"), (second, "host2:1"), (third, "host3:1")):
            candidate.join(address, nothing)
            eventually(lambda: leading(first))
        second.leave()
        first.leave()
        eventually(lambda: leading(third))
        assert second.term is None

    def test_a_deposed_leader_is_notified_and_another_candidate_leads(self, subject: ElectionSubject) -> None:
        changes: list[bool] = []
        first, second = subject.candidate(), subject.candidate()
        first.join("host1:1", lambda: changes.append(leading(first)))
        eventually(lambda: leading(first))
        second.join("host2:1", nothing)
        eventually(lambda: subject.candidates() == 2)  # otherwise the first one may lead again
        earlier = fence_of(first)
        subject.depose(first)
        eventually(lambda: leading(second))
        assert fence_of(second) > earlier
        eventually(lambda: changes == [True, False])
        assert first.term is None

    def test_terms_of_a_wiped_store_have_other_and_later_numbers(self, subject: ElectionSubject) -> None:
        """After autothrottle's nodes were deleted, terms began at 1 again.

        An earlier leader passed the check of the term with the same number, and the decision log mixed both terms.
        """
        candidate = subject.candidate()
        candidate.join("host1:1", nothing)
        fences: list[int] = []
        for _ in range(3):
            eventually(lambda: leading(candidate) and fence_of(candidate) not in fences)
            fences.append(fence_of(candidate))
            subject.wipe()
        eventually(lambda: leading(candidate) and fence_of(candidate) not in fences)
        assert fences == sorted(set(fences))
        assert fences[-1] < fence_of(candidate) < 2**53
        leader = candidate.leader()
        assert leader is not None and leader.fence == fence_of(candidate)

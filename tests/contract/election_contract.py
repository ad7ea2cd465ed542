"""Contract of every `Election`. Inherit from it and define the fixture `subject`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from autothrottle.ports.state_store import Election
from tests.builders import AT_ONCE, SERVER_SECONDS, at_once, eventually


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

    def test_a_leader_resigns_in_favour_of_a_waiting_candidate_and_stands_again_later(
        self, subject: ElectionSubject
    ) -> None:
        changed = threading.Event()
        first, second = joined(subject, 2, changed.set)
        changed.clear()
        assert first.resign(PAUSE)
        assert first.term is None and changed.is_set()
        eventually(lambda: leading(second))
        assert subject.candidates() == 1
        eventually(lambda: subject.candidates() == 2)
        assert leading(second) and not leading(first)

    def test_the_only_candidate_keeps_its_term_when_it_resigns(self, subject: ElectionSubject) -> None:
        (candidate,) = joined(subject, 1)
        fence = fence_of(candidate)
        assert not candidate.resign(PAUSE)
        assert fence_of(candidate) == fence

    def test_a_candidate_that_does_not_lead_cannot_resign(self, subject: ElectionSubject) -> None:
        first, second = joined(subject, 2)
        assert not second.resign(PAUSE)
        assert leading(first) and subject.candidates() == 2

    def test_leaders_that_all_resign_change_at_most_once_per_pause(self, subject: ElectionSubject) -> None:
        first, second, third = joined(subject, 3)
        assert first.resign(PAUSE)
        resigned = time.monotonic()
        eventually(lambda: leading(second))
        assert not second.resign(PAUSE)
        eventually(lambda: second.resign(PAUSE))
        assert time.monotonic() - resigned >= PAUSE.total_seconds() * 0.9
        eventually(lambda: leading(third) or leading(first))
        assert not leading(second)

    def test_a_candidate_that_resigned_leads_at_once_if_no_other_is_left(self, subject: ElectionSubject) -> None:
        first, second = joined(subject, 2)
        assert first.resign(timedelta(minutes=10))
        eventually(lambda: leading(second))
        second.leave()
        at_once(lambda: leading(first), AT_ONCE + SERVER_SECONDS)

    def test_a_candidate_that_leaves_while_it_rests_never_leads(self, subject: ElectionSubject) -> None:
        first, second = joined(subject, 2)
        assert first.resign(timedelta(seconds=0.2))
        first.leave()
        eventually(lambda: leading(second))
        second.leave()
        time.sleep(0.5)
        assert first.term is None and subject.candidates() == 0

    def test_a_candidate_that_left_may_join_again(self, subject: ElectionSubject) -> None:
        first, second = joined(subject, 2)
        fence = fence_of(first)
        first.leave()
        eventually(lambda: leading(second))
        first.join("host0:1", nothing)
        eventually(lambda: subject.candidates() == 2)
        assert leading(second)
        second.leave()
        at_once(lambda: leading(first), AT_ONCE + SERVER_SECONDS)
        assert fence_of(first) > fence + 1


PAUSE = timedelta(seconds=1.5)


def has_candidates(subject: ElectionSubject, count: int) -> bool:
    return subject.candidates() == count


def joined(subject: ElectionSubject, count: int, on_change: Callable[[], None] = nothing) -> list[Election]:
    """Return candidates in the order in which they wait; the first one leads and calls `on_change`."""
    candidates = [subject.candidate() for _ in range(count)]
    candidates[0].join("host0:1", on_change)
    eventually(lambda: leading(candidates[0]))
    for number, candidate in enumerate(candidates[1:], start=1):
        candidate.join(f"host{number}:1", nothing)
        eventually(partial(has_candidates, subject, number + 1))
    return candidates

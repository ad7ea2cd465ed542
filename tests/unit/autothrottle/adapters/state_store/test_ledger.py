"""The time that a write may take: bounded by our own check of the term and by the leader's lease."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.adapters.state_store.ledger import Fence
from autothrottle.core.errors import NotLeader, Unavailable
from autothrottle.ports.kafka import Term

SESSION = timedelta(seconds=6)
LATE = "no time was left"


class TermChecks:
    """Checks of the term that take some seconds of a clock."""

    def __init__(self, seconds: float = 0.0, is_over: bool = False) -> None:
        self.now, self._seconds, self._is_over = 100.0, seconds, is_over
        self.checked: list[int] = []

    def clock(self) -> float:
        return self.now

    def check_term(self, fence: int, deadline: float) -> None:
        self.checked.append(fence)
        self.now += self._seconds
        if self._is_over:
            raise NotLeader("over")

    def admit(self, term: Term, deadline: float = 120.0) -> float:
        return Fence(self, SESSION, self.clock).admit(term, deadline, LATE)


@pytest.mark.parametrize(
    ("lease_end", "deadline", "until"),
    [(float("inf"), 120.0, 104.0), (103.5, 120.0, 103.5), (109.0, 120.0, 104.0), (103.5, 102.0, 102.0)],
    ids=["without a lease", "short lease", "long lease", "deadline"],
)
def test_a_write_ends_with_the_lease_the_own_check_or_the_deadline(
    lease_end: float, deadline: float, until: float
) -> None:
    assert TermChecks(seconds=1.0).admit(Term(7, lease_end), deadline) == until


@pytest.mark.parametrize("lease_end", [99.0, 100.0])
def test_a_lease_that_has_ended_admits_nothing_and_asks_nothing(lease_end: float) -> None:
    checks = TermChecks()
    with pytest.raises(Unavailable, match="the leader's lease ended"):
        checks.admit(Term(7, lease_end))
    assert checks.checked == []


def test_a_lease_that_ends_during_the_check_admits_nothing() -> None:
    with pytest.raises(Unavailable, match="the leader's lease ended"):
        TermChecks(seconds=1.0).admit(Term(7, 101.0))


def test_a_check_that_takes_all_the_time_admits_nothing() -> None:
    with pytest.raises(Unavailable, match=LATE):
        TermChecks(seconds=4.0).admit(Term(7))


def test_a_term_that_is_over_is_not_admitted() -> None:
    with pytest.raises(NotLeader):
        TermChecks(is_over=True).admit(Term(7, 103.0))

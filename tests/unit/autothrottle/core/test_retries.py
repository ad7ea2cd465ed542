from __future__ import annotations

from itertools import islice

import pytest

from autothrottle.core.retries import CALL, ELECTION, RETRIES, Retry


def test_each_wait_is_twice_the_one_before_up_to_the_longest() -> None:
    assert [*islice(CALL.waits(), 7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert [*islice(ELECTION.waits(), 3)] == [0.2, 0.2, 0.2]


def test_jitter_lengthens_a_wait() -> None:
    retry = Retry("work", "reason", 1.0, 8.0, jitter=0.5)
    assert retry.wait(3, 0.0) == 4.0
    assert retry.wait(3, 0.5) == 5.0


@pytest.mark.parametrize("retry", RETRIES, ids=lambda retry: str(retry.work))
def test_a_wait_never_shrinks_and_ends_at_the_longest(retry: Retry) -> None:
    waits = [retry.wait(failures) for failures in range(1, 200)]
    assert waits == sorted(waits) and waits[0] == retry.first and waits[-1] == retry.longest
    assert retry.wait(10**9) == retry.longest

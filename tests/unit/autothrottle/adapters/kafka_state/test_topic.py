"""Which replicas a topic gets that has lost a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.kafka_state.topic import MIN_IN_SYNC, REPLICAS, repaired_replicas


@pytest.mark.parametrize(
    ("replicas", "in_sync", "answering", "others", "repaired"),
    [
        pytest.param([1, 2, 3], {1, 2, 3}, {2, 3}, [], [2, 3], id="leader lost"),
        pytest.param([1, 2, 3], {1, 2, 3}, {1, 2}, [], [1, 2], id="follower lost"),
        pytest.param([1, 2, 3], {1, 2, 3}, {1, 2, 3}, [], [1, 2, 3], id="all answer"),
        pytest.param([1, 2, 3], {1, 2, 3}, {3}, [], [1, 2, 3], id="two lost: this process may be cut off"),
        pytest.param([1, 2, 3], {1, 2}, {2, 3}, [], [1, 2, 3], id="leader lost, a follower lags"),
        pytest.param([1, 2, 3], {2, 3}, {2, 3}, [4], [1, 2, 3], id="the lost one is out of sync already"),
        pytest.param([1], {1}, set(), [2], [1], id="one replica"),
        pytest.param([1, 2, 3, 4], {1, 2, 3, 4}, {2, 3, 4}, [], [1, 2, 3, 4], id="in reassignment"),
        pytest.param([2, 3], {2, 3}, {2, 3, 4, 5}, [5, 4], [2, 3, 5], id="a third one is added"),
        pytest.param([2, 3], {2, 3}, {2, 3}, [4], [2, 3], id="no other broker answers"),
        pytest.param([2, 3], {2}, {2, 4}, [4], [2, 4], id="a lost one is replaced"),
        pytest.param([2, 3], {2}, {2}, [], [2, 3], id="nothing replaces a lost one"),
        pytest.param([2, 3], {2}, {2, 3, 4}, [4], [2, 3, 4], id="one catches up"),
        pytest.param([2, 3], {2}, {3, 4}, [4], [2, 3], id="the only one in sync is lost"),
    ],
)
def test_repaired_replicas(
    replicas: list[int], in_sync: set[int], answering: set[int], others: list[int], repaired: list[int]
) -> None:
    assert repaired_replicas(replicas, in_sync, answering, others) == repaired


BROKERS = st.sets(st.integers(1, 6))


@given(st.permutations(range(1, 7)), st.integers(1, 5), BROKERS, BROKERS)
def test_changed_replicas_have_all_that_answer_in_sync_and_at_least_two(
    brokers: list[int], count: int, in_sync: set[int], answering: set[int]
) -> None:
    replicas, others = brokers[:count], brokers[count:]
    in_sync &= {*replicas}
    repaired = repaired_replicas(replicas, in_sync, answering, others)
    if repaired != replicas:
        assert {*replicas} & in_sync & answering <= {*repaired} and in_sync & answering
        assert MIN_IN_SYNC <= len({*repaired}) == len(repaired) <= REPLICAS

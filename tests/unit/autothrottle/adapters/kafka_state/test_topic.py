"""Which replicas a topic gets that has lost a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.kafka_state.topic import MIN_IN_SYNC, REPLICAS, repaired_replicas


@pytest.mark.parametrize(
    ("replicas", "isr", "silent_brokers", "candidates", "new_replicas"),
    [
        pytest.param([1, 2, 3], {1, 2, 3}, {1}, [], [2, 3], id="leader lost"),
        pytest.param([1, 2, 3], {1, 2, 3}, {3}, [], [1, 2], id="follower lost"),
        pytest.param([1, 2, 3], {1, 2, 3}, set(), [], [1, 2, 3], id="all answer"),
        pytest.param([1, 2, 3], {1, 2, 3}, {1, 2}, [], [1, 2, 3], id="two lost: this process may be cut off"),
        pytest.param([1, 2, 3], {1, 2}, {1}, [], [1, 2, 3], id="leader lost, a follower lags"),
        pytest.param([1, 2, 3], {2, 3}, {1, 4}, [4], [1, 2, 3], id="the lost one is out of sync already"),
        pytest.param([1], {1}, {1, 2}, [2], [1], id="one replica"),
        pytest.param([1, 2, 3, 4], {1, 2, 3, 4}, {1}, [], [1, 2, 3, 4], id="in reassignment"),
        pytest.param([2, 3], {2, 3}, set(), [5, 4], [2, 3, 5], id="a third one is added"),
        pytest.param([2, 3], {2, 3}, {4}, [4], [2, 3], id="no other broker answers"),
        pytest.param([2, 3], {2}, {3}, [4], [2, 4], id="a lost one is replaced"),
        pytest.param([2, 3], {2}, {3}, [], [2, 3], id="nothing replaces a lost one"),
        pytest.param([2, 3], {2}, set(), [4], [2, 3, 4], id="one catches up"),
        pytest.param([2, 3], {2}, {2}, [4], [2, 3], id="the only one in sync is lost"),
    ],
)
def test_repaired_replicas(
    replicas: list[int], isr: set[int], silent_brokers: set[int], candidates: list[int], new_replicas: list[int]
) -> None:
    assert repaired_replicas(replicas, isr, silent_brokers, candidates) == new_replicas


BROKERS = st.sets(st.integers(1, 6))


@given(st.permutations(range(1, 7)), st.integers(1, 5), BROKERS, BROKERS)
def test_changed_replicas_have_all_that_answer_in_sync_and_at_least_two(
    brokers: list[int], count: int, isr: set[int], silent_brokers: set[int]
) -> None:
    replicas, candidates = brokers[:count], brokers[count:]
    isr &= {*replicas}
    new_replicas = repaired_replicas(replicas, isr, silent_brokers, candidates)
    if new_replicas != replicas:
        assert isr - silent_brokers <= {*new_replicas} and isr - silent_brokers
        assert MIN_IN_SYNC <= len({*new_replicas}) == len(new_replicas) <= REPLICAS

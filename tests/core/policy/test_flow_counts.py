"""What is counted of flows by port: what somebody else counts is not subtracted, and what is unknown is not nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.policy.flow_counts import FlowCounts
from tests.builders import NOON

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
A, B = Flow(1, 3), Flow(2, 3)


def reading(second: int, counts: dict[Flow, tuple[int, int]], since: int = 0) -> Progress:
    """Flow -> (what landed, what was produced meanwhile), by who counts since a second."""
    at, begun = NOON + timedelta(seconds=second), NOON + timedelta(seconds=since)
    return Progress({f: FlowProgress(landed, grown, 900, at, begun) for f, (landed, grown) in counts.items()}, at=at)


def test_what_landed_and_grew_is_added_up_at_both_ends() -> None:
    found = FlowCounts().plus(reading(0, {A: (0, 0), B: (0, 0)})).plus(reading(10, {A: (50, 5), B: (70, 7)}))
    landed = {port: series.counts[-1] for port, series in found.landed.items()}
    grown = {port: series.counts[-1] for port, series in found.grown.items()}
    assert landed == {(1, LEADER): 50, (2, LEADER): 70, (3, FOLLOWER): 120}
    assert grown == {(1, LEADER): 5, (2, LEADER): 7, (3, FOLLOWER): 12}
    assert found.left == {(1, LEADER): 900, (2, LEADER): 900, (3, FOLLOWER): 1800}


@pytest.mark.parametrize("since", [-3600, 5])
def test_counts_of_another_replica_of_discovery_begin_anew(since: int) -> None:
    """What one has counted for an hour has not landed since the other one was asked."""
    found = FlowCounts().plus(reading(0, {A: (40, 4)})).plus(reading(10, {A: (10**12, 10**9)}, since))
    assert found.landed[3, FOLLOWER].counts[-1] == found.grown[3, FOLLOWER].counts[-1] == 0
    later = found.plus(reading(20, {A: (10**12 + 30, 10**9 + 3)}, since))
    assert (later.landed[3, FOLLOWER].counts[-1], later.grown[3, FOLLOWER].counts[-1]) == (30, 3)


def test_while_a_flow_is_not_told_nothing_is_taken_for_what_is_produced_to_it() -> None:
    known = FlowCounts().plus(reading(0, {A: (0, 0)})).plus(reading(10, {A: (100, 50)}))
    silent = known.plus(reading(20, {}), unknown={(1, LEADER), (3, FOLLOWER)})
    assert silent.grown == known.grown
    assert silent.landed == {}, "it begins anew: nobody can tell when the bytes of the meantime came"
    ended = known.plus(reading(20, {}))
    assert ended.grown[3, FOLLOWER].counts[-1] == ended.grown[3, FOLLOWER].at(ended.at) == 50


def test_a_reading_that_is_not_newer_changes_nothing() -> None:
    known = FlowCounts().plus(reading(10, {A: (100, 50)}))
    for again in (None, Progress(), reading(10, {A: (200, 60)}), reading(9, {})):
        assert known.plus(again) is known

"""Flow counts by link side: counts of other processes are not subtracted, and unknown is not zero."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress
from autothrottle.core.policy.flow_counts import FlowCounts
from tests.builders import NOON

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
A, B = Flow(1, 3), Flow(2, 3)


def sample(second: int, counts: dict[Flow, tuple[int, int]], since: int = 0) -> Progress:
    """Flow -> (bytes copied, bytes produced), counted by a process since this second."""
    at, begun = NOON + timedelta(seconds=second), NOON + timedelta(seconds=since)
    return Progress(
        {f: FlowProgress(copied, produced, 900, at, begun) for f, (copied, produced) in counts.items()}, at=at
    )


def test_copied_and_produced_bytes_are_summed_at_both_ends() -> None:
    found = FlowCounts().plus(sample(0, {A: (0, 0), B: (0, 0)})).plus(sample(10, {A: (50, 5), B: (70, 7)}))
    copied = {side: series.counts[-1] for side, series in found.copied.items()}
    produced = {side: series.counts[-1] for side, series in found.produced.items()}
    assert copied == {(1, LEADER): 50, (2, LEADER): 70, (3, FOLLOWER): 120}
    assert produced == {(1, LEADER): 5, (2, LEADER): 7, (3, FOLLOWER): 12}


@pytest.mark.parametrize("since", [-3600, 5])
def test_counts_of_another_discovery_process_start_anew(since: int) -> None:
    """Bytes that one process counted for an hour were not copied since the sample of the other process."""
    found = FlowCounts().plus(sample(0, {A: (40, 4)})).plus(sample(10, {A: (10**12, 10**9)}, since))
    assert found.copied[3, FOLLOWER].counts[-1] == found.produced[3, FOLLOWER].counts[-1] == 0
    later = found.plus(sample(20, {A: (10**12 + 30, 10**9 + 3)}, since))
    assert (later.copied[3, FOLLOWER].counts[-1], later.produced[3, FOLLOWER].counts[-1]) == (30, 3)


def test_unreported_flow_adds_nothing_to_the_produced_bytes() -> None:
    known = FlowCounts().plus(sample(0, {A: (0, 0)})).plus(sample(10, {A: (100, 50)}))
    silent = known.plus(sample(20, {}), unknown={(1, LEADER), (3, FOLLOWER)})
    assert silent.produced == known.produced
    assert silent.copied == {}, "it restarts: the time of the bytes in between is unknown"
    ended = known.plus(sample(20, {}))
    assert ended.produced[3, FOLLOWER].counts[-1] == ended.produced[3, FOLLOWER].at(ended.at) == 50


def test_sample_that_is_not_newer_changes_nothing() -> None:
    known = FlowCounts().plus(sample(10, {A: (100, 50)}))
    for again in (None, Progress(), sample(10, {A: (200, 60)}), sample(9, {})):
        assert known.plus(again) is known

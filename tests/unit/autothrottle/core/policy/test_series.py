"""Flow counts and log growth: counts of other processes are not subtracted, noise is ignored, and a step counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate

import pytest

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress
from autothrottle.core.policy.measurements import CumulativeSeries, FlowCounts, now_and_then
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


def produced(*rates: float, seconds: float = 10.0) -> CumulativeSeries:
    """A series sampled at these intervals, with these growth rates between the samples."""
    times = tuple(seconds * n for n in range(len(rates) + 1))
    return CumulativeSeries(times, tuple(accumulate((rate * seconds for rate in rates), initial=0.0)))


@pytest.mark.parametrize(
    ("lately", "now"),
    [((100, 100, 110), 310 / 3), ((100, 100, 90), 290 / 3), ((100, 100, 150), 150), ((100, 100, 50), 50)],
)
def test_newest_of_rare_samples_counts_alone_only_beyond_noise(lately: Sequence[float], now: float) -> None:
    found = now_and_then(produced(100, 100, 100, *lately), start=10.0, end=50.0, now=60.0)
    assert found is not None and found == pytest.approx((now, 100.0))


def test_step_includes_all_growth_since_the_metric() -> None:
    series = produced(100, 100, 100, 100, 100, 200, 300)
    assert now_and_then(series, start=10.0, end=50.0, now=70.0) == (250.0, 100.0)


@pytest.mark.parametrize(
    ("start", "end", "last", "found"),
    [
        (30.0, 40.0, 90.0, (90.0, 90.0)),
        (20.0, 30.0, 110.0, (100.0, 100.0)),
        (20.0, 30.0, 130.0, (130.0, 100.0)),
        (5.0, 30.0, 110.0, (310 / 3, 100.0)),
    ],
)
def test_growth_changes_a_metric_of_the_last_30_seconds_only_by_a_step(
    start: float, end: float, last: float, found: tuple[float, float]
) -> None:
    """The mean of 30 s counted instead, 97 and 103 in the first two cases: noise, added to every fresh metric."""
    assert now_and_then(produced(100, 100, 100, last), start, end, now=40.0) == pytest.approx(found)


def test_outdated_sample_gives_no_current_rate() -> None:
    series = produced(100, 100, 100, 100)
    assert now_and_then(series, start=0.0, end=30.0, now=100.0) == (100.0, 100.0)
    assert now_and_then(series, start=0.0, end=30.0, now=101.0) is None


def test_partially_covered_metric_interval_gives_no_rates() -> None:
    series = produced(100, 100, 100, 100)
    assert now_and_then(series, start=-1.0, end=30.0, now=40.0) is None
    assert now_and_then(series, start=0.0, end=55.0, now=55.0) == (100.0, 100.0)
    assert now_and_then(series, start=0.0, end=56.0, now=56.0) is None
    assert now_and_then(produced(), start=0.0, end=0.0, now=0.0) is None

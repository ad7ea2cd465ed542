"""The scorer's recommendation for a log is also better under client loads that the log does not contain."""

from __future__ import annotations

import pytest

from autothrottle.adapters.memory import MemoryDecisions
from autothrottle.core.policy.interface import Limits
from autothrottle.scorer.estimation import logged_recoveries
from autothrottle.scorer.tables import TIMELINE
from autothrottle_lab.simulate.recording import Recording
from autothrottle_lab.simulate.virtual_time import VirtualRecovery
from tests.builders import limits
from tests.system.scorer import golden
from tests.system.scorer.conftest import Scored


def play(seed: int, of_planner: Limits) -> tuple[float, float]:
    """Return the duration of a reassignment under another client load, and the delayed client bytes in percent."""
    traffic = {**golden.QUIET, golden.NEW: golden.mild(seed)}
    scenario = golden.scenario(1, traffic=traffic, limits=of_planner)
    recording, recovery = Recording(scenario), VirtualRecovery(scenario, MemoryDecisions())
    seconds = recovery.run(watch=recording.watch)
    return seconds, recording.outcome(recovery, seconds).deferred_percent


@pytest.mark.parametrize("seed", [101, *(pytest.param(seed, marks=pytest.mark.repeat) for seed in (102, 103))])
def test_advised_settings_are_better_for_an_unseen_client_load(scored: Scored, seed: int) -> None:
    (advice,) = [row for row in scored.results.advice if row["cluster"] == "mild"]
    assert advice["gain"] > 0.15 and advice["gain_low"] > 0
    proposed = {change["option"]: change["proposed"] for change in advice["changes"]}
    ratio = proposed.get("max-rate", 100 * golden.DULL.max_tx_ratio) / 100
    threshold = proposed.get("change-threshold", 100 * golden.DULL.change_threshold) / 100
    chosen = limits(max_tx_ratio=ratio, max_rx_ratio=ratio, change_threshold=threshold)
    # The bound of a seed is the same for all settings, so the score improves exactly as the duration does.
    present, present_deferred = play(seed, golden.DULL)
    duration, deferred = play(seed, chosen)
    assert duration < 0.9 * present
    assert deferred <= present_deferred + 0.01


def test_a_halved_max_rate_is_found_and_its_remedy_proposed(scored: Scored) -> None:
    (advice,) = [row for row in scored.results.advice if row["cluster"] == "halved"]
    (change,) = advice["changes"]
    assert (change["option"], change["present"]) == ("max-rate", 45.0)
    assert change["proposed"] >= 90
    # Nothing else limits the link, so the duration falls as the share rises.
    assert advice["gain_low"] <= 1 - 45 / change["proposed"] <= advice["gain_high"]


@pytest.mark.parametrize("cluster", ["overridden", "restless"])
def test_nothing_is_proposed_where_nothing_would_help(scored: Scored, cluster: str) -> None:
    """Under the restless load a higher max-rate is faster, but each change of a throttle then delays more bytes."""
    (advice,) = [row for row in scored.results.advice if row["cluster"] == cluster]
    assert advice["changes"] == ()


def test_estimates_know_how_old_the_metrics_of_a_decision_were(scored: Scored) -> None:
    (of_log,) = logged_recoveries(scored.files.table("timeline", TIMELINE, [scored.recovery("blind")["recovery_id"]]))
    begin, end = (time.total_seconds() for time in golden.OUTAGE)
    at = 0.0
    for stretch in of_log.stretches:
        if begin < at < end:
            assert stretch.metric_ages is None
        elif not begin <= at <= end:
            assert stretch.metric_ages == pytest.approx((60, 0), abs=2)
        at += stretch.seconds

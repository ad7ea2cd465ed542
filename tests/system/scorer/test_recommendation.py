"""The scorer's recommendation for a log is also better under client loads that the log does not contain."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from autothrottle.adapters.memory import MemoryDecisions
from autothrottle.core.policy.interface import Limits
from autothrottle.core.scoring.estimates import GRID
from autothrottle.core.scoring.score import TOLERATED_HARM
from autothrottle.scorer.counterfactuals import advices, logged_recovery, on_grid, sequences
from autothrottle_lab.simulate.virtual_time import VirtualRecovery
from tests.builders import limits
from tests.system.scorer import golden
from tests.system.scorer.conftest import Scored


def play(seed: int, of_planner: Limits) -> tuple[float, float]:
    """Return the duration of a reassignment under another client load, and the share of delayed client bytes."""
    traffic = {**golden.QUIET, golden.NEW: golden.restless(seed)}
    recovery = VirtualRecovery(golden.scenario(1, traffic=traffic, limits=of_planner), MemoryDecisions())
    seconds = recovery.run()
    side = recovery.cluster.brokers[golden.NEW].inbound
    return seconds, side.client_deferred / side.client_offered


@pytest.mark.parametrize("seed", [101, *(pytest.param(seed, marks=pytest.mark.repeat) for seed in (102, 103))])
def test_recommended_settings_are_better_for_an_unseen_client_load(scored: Scored, seed: int) -> None:
    (best,) = [row for row in scored.results.recommendations if row["cluster"] == "restless"]
    assert best["estimated_seconds"] < 0.85 * best["today_seconds"]
    assert best["harmed_share"] <= max(best["today_harmed_share"], TOLERATED_HARM)
    chosen = limits(max_tx_ratio=best["ratio"], max_rx_ratio=best["ratio"], change_threshold=best["threshold"])
    # The bound of a seed is the same for all settings, so the score improves exactly as the duration does.
    before, _ = play(seed, golden.DULL)
    after, deferred = play(seed, chosen)
    assert after < 0.9 * before
    # A log of ten loads does not contain every load; most of these bytes were delayed under logged settings, too.
    assert deferred < 0.01


def test_the_surface_contains_every_cell_and_the_logged_settings(scored: Scored) -> None:
    cells = [row for row in scored.results.surface if row["cluster"] == "restless"]
    assert len(cells) == len([setting for setting in GRID if setting.policy == "adaptive"]) + 1
    assert [row["estimated_seconds"] for row in cells if row["is_logged"]] == pytest.approx(
        [scored.took["restless"]], rel=0.1
    )
    by_ratio = {row["ratio"]: row["estimated_seconds"] for row in cells if row["threshold"] == 0.05}
    assert list(by_ratio.values()) == sorted(by_ratio.values(), reverse=True)


def test_a_halved_share_of_the_adaptive_policy_is_found_with_its_gain(spark: SparkSession, scored: Scored) -> None:
    """The planner ran `adaptive`, and the grid decided again by the headroom formula. It now runs the same policy."""
    timeline = scored.run.tables["timeline"].where("cluster = 'halved'")
    recoveries = timeline.transform(sequences).cache()
    rows = [row.asDict(recursive=True) for row in recoveries.collect()]
    estimates = [row.asDict() for row in recoveries.transform(on_grid).collect()]
    (advice,) = advices([logged_recovery(row) for row in rows], estimates)
    (change,) = advice.changes
    assert (change.option, change.present) == ("max-rate", 45.0)
    assert isinstance(change.proposed, float) and change.proposed >= 90
    # The cluster `perfect` copies as much beside the same clients, with a share of 0.9.
    gain = 1 - scored.took["perfect"] / scored.took["halved"]
    expected = 1 - (1 - gain) * 90 / change.proposed
    assert advice.gain_low - 0.01 <= expected <= advice.gain_high + 0.01

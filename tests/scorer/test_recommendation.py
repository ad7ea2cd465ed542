"""What the scorer recommends for a log is better on loads that the log has not seen."""

from __future__ import annotations

import pytest

from autothrottle.adapters.memory import MemoryDecisions
from autothrottle.core.counterfactual import TOLERATED_HARM
from autothrottle.core.limits import Limits
from autothrottle.lab.virtual import VirtualRecovery
from autothrottle.scorer.counterfactuals import GRID
from tests.builders import limits
from tests.scorer import golden
from tests.scorer.conftest import Scored

UNSEEN = (101, 102, 103)


def play(seed: int, of_planner: Limits) -> tuple[float, float]:
    """Seconds that a move takes among other clients, and the share of these clients' bytes that had to wait."""
    traffic = {**golden.QUIET, golden.NEW: golden.restless(seed)}
    recovery = VirtualRecovery(golden.scenario(1, traffic=traffic, limits=of_planner), MemoryDecisions())
    seconds = recovery.run()
    port = recovery.brokers.brokers[golden.NEW].rx
    return seconds, port.client_deferred / port.client_offered


def test_recommended_settings_score_better_on_seeds_that_they_were_not_made_for(scored: Scored) -> None:
    (best,) = [row for row in scored.results.recommendations if row["cluster"] == "restless"]
    assert best["estimated_seconds"] < 0.85 * best["today_seconds"]
    assert best["harmed_share"] <= max(best["today_harmed_share"], TOLERATED_HARM)
    chosen = limits(max_tx_ratio=best["ratio"], max_rx_ratio=best["ratio"], change_threshold=best["threshold"])
    for seed in UNSEEN:
        # The bound of a seed is the same under all settings: the score is as much better as the move is faster.
        before, _ = play(seed, golden.DULL)
        after, deferred = play(seed, chosen)
        assert after < 0.9 * before
        # A log of ten loads does not show all that come; most of it waited under the settings in force, too.
        assert deferred < 0.01


def test_the_surface_has_every_cell_and_the_settings_in_force(scored: Scored) -> None:
    cells = [row for row in scored.results.surface if row["cluster"] == "restless"]
    assert len(cells) == len(GRID) + 1
    assert [row["estimated_seconds"] for row in cells if row["is_logged"]] == pytest.approx(
        [scored.took["restless"]], rel=0.1
    )
    by_ratio = {row["ratio"]: row["estimated_seconds"] for row in cells if (row["threshold"], row["every"]) == (0.0, 1)}
    assert list(by_ratio.values()) == sorted(by_ratio.values(), reverse=True)

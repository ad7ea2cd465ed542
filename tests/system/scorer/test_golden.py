from datetime import timedelta

import pytest

from autothrottle.core.scoring.score import Cause
from tests.system.scorer import golden
from tests.system.scorer.conftest import Scored


def test_a_perfect_controller_scores_1(scored: Scored) -> None:
    recovery = scored.recovery("perfect")
    assert recovery["efficiency"] == pytest.approx(1.0, abs=0.02)
    assert (recovery["bottleneck_broker"], recovery["bottleneck_role"]) == (golden.NEW, "follower")
    assert recovery["bound_seconds"] == pytest.approx(golden.SECONDS, rel=0.01)
    assert recovery["seconds"] == pytest.approx(scored.took["perfect"])
    assert recovery["bytes"] == pytest.approx(golden.BUDGET * golden.SECONDS, rel=1e-6)
    assert not recovery["is_estimated"]


@pytest.mark.parametrize(("cluster", "cause"), [("halved", "headroom_unused"), ("overridden", "override")])
def test_a_halved_rate_scores_one_half_with_the_right_cause(scored: Scored, cluster: str, cause: str) -> None:
    recovery = scored.recovery(cluster)
    assert recovery["efficiency"] == pytest.approx(0.5, abs=0.02)
    assert recovery["regret_seconds"] == pytest.approx(golden.SECONDS, rel=0.05)
    assert recovery[f"regret_{cause}"] == pytest.approx(golden.SECONDS, rel=0.05)
    others = [recovery[f"regret_{other}"] for other in Cause if other != cause]
    assert max(map(abs, others)) < 0.04 * golden.SECONDS


def test_forty_minutes_without_metrics_are_found(scored: Scored) -> None:
    recovery = scored.recovery("blind")
    begin, end = golden.OUTAGE
    lost = (end - begin).total_seconds() * (1 - 10 / 81)
    assert recovery["regret_fail_safe"] == pytest.approx(lost, rel=0.05)
    assert recovery["regret_fail_safe"] > 0.9 * recovery["regret_seconds"]
    worst = [row for row in scored.results.worst if row["cluster"] == "blind"]
    assert len(worst) == 10
    for row in worst:
        assert row["cause"] == "fail_safe" and row["reason"] in ("minimum", "kept")
        assert begin <= row["time"] - recovery["start"] + timedelta(minutes=1) <= end + timedelta(minutes=1)
        assert len(row["trace_id"]) == 32


def test_a_high_change_threshold_is_the_main_cause(scored: Scored) -> None:
    causes = {cause: scored.recovery("dull")[f"regret_{cause}"] for cause in Cause}
    assert max(causes, key=lambda cause: causes[cause]) == Cause.CHANGE_THRESHOLD
    assert causes[Cause.CHANGE_THRESHOLD] > 2 * scored.recovery("sensitive")["regret_change_threshold"]


@pytest.mark.parametrize(("better", "worse"), [("perfect", "seventy"), ("seventy", "halved"), ("sensitive", "dull")])
def test_worse_settings_have_a_worse_score(scored: Scored, better: str, worse: str) -> None:
    assert scored.recovery(better)["efficiency"] > scored.recovery(worse)["efficiency"]


def test_regrets_by_cause_sum_up_to_the_lost_time(scored: Scored) -> None:
    for recovery in scored.results.recoveries:
        parts = sum(recovery[f"regret_{cause}"] for cause in (*Cause, "other"))
        assert parts == pytest.approx(recovery["seconds"] - recovery["bound_seconds"], abs=1e-6)


def test_a_recovery_continues_across_a_failover_to_a_slow_clock(scored: Scored) -> None:
    recovery = scored.recovery("handed-over")
    assert recovery["terms"] == 2
    # The second leader's clock is 90 s behind, and its first cycle is a minute after the first leader's last one.
    assert recovery["skew_seconds"] == pytest.approx(30, abs=2)
    assert recovery["seconds"] == pytest.approx(scored.took["handed-over"] + golden.BACK.total_seconds(), abs=1)
    assert recovery["bytes"] == pytest.approx(golden.BUDGET * golden.SECONDS, rel=0.01)
    assert 0.8 < recovery["efficiency"] < 1.2


def test_every_cluster_and_instance_type_has_a_distribution(scored: Scored) -> None:
    assert {row["cluster"] for row in scored.results.clusters} == golden.SCENARIOS.keys()
    types = {(row["cluster"], row["instance_type"]): row["count"] for row in scored.results.instance_types}
    assert types == {(cluster, "lab"): 4 for cluster in golden.SCENARIOS}
    assert {row["date"] for row in scored.results.trends} == {f"2026-11-0{n}" for n in range(1, 8)}


def test_the_log_of_a_healthy_planner_is_read_completely(scored: Scored) -> None:
    for row in scored.results.quality:
        assert (row["unreadable_files"], row["incomplete_rows"], row["newer_rows"]) == (0, 0, 0)
    assert scored.results.copies == 0

"""The recommended setting."""

from __future__ import annotations

from autothrottle.core.scoring.score import Cell, recommended


def cell(ratio: float, seconds: float, harmed: float = 0.0, writes: int = 10, cluster: str = "c") -> Cell:
    """The cell of a ratio."""
    return Cell(cluster, ratio, 0.1, 1, 30.0, False, 1, seconds, harmed, writes)


def today(seconds: float = 1000, harmed: float = 0.0, cluster: str = "c") -> Cell:
    """The cell of the logged setting."""
    return Cell(cluster, None, None, 1, 30.0, True, 1, seconds, harmed, 10)


def test_fastest_setting_that_does_not_harm_clients_more_is_recommended() -> None:
    ((best, logged),) = recommended([today(harmed=0.02), cell(0.9, 500, 0.03), cell(0.8, 600, 0.02), cell(0.7, 700)])
    assert (best.ratio, best.estimated_seconds, logged.estimated_seconds) == (0.8, 600, 1000)


def test_fewest_writes_decide_between_equally_fast_settings() -> None:
    ((best, _),) = recommended([cell(0.9, 500, writes=90), cell(0.8, 504, writes=3), cell(0.7, 600, writes=1), today()])
    assert best.ratio == 0.8


def test_every_cluster_has_its_own_recommendation_or_none() -> None:
    cells = [today(cluster="b"), cell(0.9, 500, cluster="b"), today(), cell(0.9, 500, harmed=0.5)]
    assert [best.cluster for best, _ in recommended(cells)] == ["b"]

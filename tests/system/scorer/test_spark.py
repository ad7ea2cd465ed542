"""Spark and this process give the same results."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from autothrottle.core.scoring.estimates import GRID
from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.scorer import parts
from autothrottle.scorer.estimation import logged_recoveries
from autothrottle.scorer.files import ArrowFiles
from autothrottle.scorer.local import LocalScorer
from autothrottle.scorer.scoring import TABLES, find_work
from autothrottle.scorer.spark import SparkFiles, SparkScorer
from tests.system.scorer.conftest import Scored, results_of, run


def test_spark_gives_the_same_tables_and_the_same_report(
    spark: SparkSession, scored: Scored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autothrottle.scorer.spark._CHUNK", 7)  # a timeline takes several rows
    files = ArrowFiles(str(scored.directory / "log"), str(tmp_path / "out"))
    run(files, SparkScorer(spark))
    for name, schema in TABLES.items():
        order = [(column, "ascending") for column in ("cluster", "date", "recovery_id") if column in schema.names]
        tables = [each.table(name, schema).sort_by(order) for each in (files, scored.files)]
        assert tables[0].equals(tables[1]), name
        assert len(tables[0]) > 0
    assert results_of(files) == scored.results


def test_only_the_timelines_of_slowest_parts_are_sorted_by_date(
    spark: SparkSession, scored: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All timelines of 50 million rows of a recovery were sorted. An executor of 1 GB ran out of memory."""
    monkeypatch.setattr(parts, "ROWS", 20)
    work = find_work(scored.files, anew=True)
    plan = parts.plan_parts(work.recoveries)
    assert max(plan.part_count) > 1
    of_log = SparkScorer(spark).score(scored.files, work, plan, REFERENCE_RATIO)
    rows = of_log.with_slowest_timelines().toArrow().to_pylist()
    of_log.scored.unpersist()
    bounds: dict[int, dict[int, float]] = {}
    for number, part, summary in of_log.rows:
        if "slowest" in summary:
            bounds.setdefault(number, {})[part] = summary["slowest"]["bound_seconds"]
    packed = {(row["recovery"], row["part"]) for row in rows if row["timeline"] is not None}
    assert packed == {(number, max(of_parts, key=of_parts.__getitem__)) for number, of_parts in bounds.items()}
    assert len(rows) == len(of_log.rows) > len(packed)


def test_hadoops_file_systems_give_the_same_scores(spark: SparkSession, scored: Scored, tmp_path: Path) -> None:
    files = SparkFiles(spark, (scored.directory / "log").as_uri(), (tmp_path / "out").as_uri())
    assert len(run(files, SparkScorer(spark)).dates) == 7
    assert run(files, SparkScorer(spark)).dates == ()
    assert results_of(files) == scored.results


def test_estimates_on_spark_equal_those_of_this_process(spark: SparkSession, scored: Scored) -> None:
    (recovery,) = logged_recoveries(scored.files.table("timeline", TABLES["timeline"], ["halved/1/1"]))
    tasks = [(recovery, setting) for setting in GRID]
    assert SparkScorer(spark).estimate(tasks) == LocalScorer().estimate(tasks)

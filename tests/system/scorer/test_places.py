"""Locations of logs and results: those of Arrow, and any other file system of Spark's Hadoop."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from autothrottle.core.errors import Invalid
from autothrottle.scorer.command import write_report
from autothrottle.scorer.files import ArrowFiles, Files
from autothrottle.scorer.report import Results
from autothrottle.scorer.scoring import TABLES
from autothrottle.scorer.spark import SparkFiles, SparkScorer
from tests.system.scorer.conftest import Scored, results_of, run
from tests.system.scorer.results import assert_same_tables

REPORT = {"report.html", "results.json", "recoveries.csv"}

Opener = Callable[[Path, Path], Files]


@pytest.fixture(params=["Arrow", "Hadoop"])
def open_files(request: pytest.FixtureRequest) -> Opener:
    """Open a local log and local results by Arrow, or by Hadoop."""
    if request.param == "Arrow":
        return lambda log, out: ArrowFiles(str(log), str(out))
    spark: SparkSession = request.getfixturevalue("spark")
    return lambda log, out: SparkFiles(spark, log.as_uri().replace("%20", " "), out.as_uri().replace("%20", " "))


def test_a_store_that_only_hadoop_knows_has_the_same_scores(
    spark: SparkSession, scored: Scored, tmp_path: Path
) -> None:
    """Arrow wrote the report of every store. It supports fewer stores than Hadoop and ignores Hadoop's settings.

    A run therefore ended with a traceback after an hour. Hadoop's viewfs represents these stores here.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    (tmp_path / "out").mkdir()
    hadoop.set("fs.viewfs.mounttable.elsewhere.link./log", (scored.directory / "log").as_uri())
    hadoop.set("fs.viewfs.mounttable.elsewhere.link./out", (tmp_path / "out").as_uri())
    with pytest.raises(Invalid, match="cannot be reached"):
        ArrowFiles("viewfs://elsewhere/log", "viewfs://elsewhere/out")
    files = SparkFiles(spark, "viewfs://elsewhere/log", "viewfs://elsewhere/out")
    assert run(files, SparkScorer(spark)).new
    for recovery in scored.results.recoveries[:2]:
        write_report(files, replace(scored.results, recoveries=[recovery]))
    assert {path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".crc"} == REPORT | TABLES.keys()
    _, line = (tmp_path / "out" / "recoveries.csv").read_text().splitlines()
    assert scored.results.recoveries[1]["recovery_id"] in line
    assert_same_tables(files, scored.files)
    assert run(files, SparkScorer(spark)).new == ()


def test_a_link_at_the_name_of_a_report_is_replaced_and_its_target_stays(open_files: Opener, tmp_path: Path) -> None:
    """The report was written through the link, into a file elsewhere that another user had chosen."""
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "report.html").symlink_to(target)
    write_report(open_files(tmp_path, tmp_path / "scores"), Results())
    assert target.read_text() == "precious"
    assert not (tmp_path / "scores" / "report.html").is_symlink()


@pytest.mark.parametrize("place", ["nowhere://bucket/decisions", "s3a://bucket/decisions"])
def test_an_unsupported_store_is_refused_with_the_fix(spark: SparkSession, place: str) -> None:
    """PySpark's jars do not include the S3 connector, for example. The error was a stack trace of sixty lines."""
    with pytest.raises(Invalid, match=rf"^'{place}' cannot be reached: .*\. Fix: name another location"):
        ArrowFiles(place, place)
    with pytest.raises(Invalid, match=rf"^'{place}' cannot be reached: .*\. Fix: add the store's Hadoop connector"):
        SparkFiles(spark, place, place)


def test_a_directory_name_may_contain_a_blank(open_files: Opener, scored: Scored, tmp_path: Path) -> None:
    """The blank was escaped as %20, which Hadoop takes literally. The scorer reported that there is no decision log."""
    part = Path("decisions", "cluster=perfect")
    shutil.copytree(scored.directory / "log" / part, tmp_path / "decision log" / part)
    files = open_files(tmp_path / "decision log", tmp_path / "the scores")
    assert len(files.paths("decisions")) == 1
    write_report(files, Results())
    assert {file.name for file in (tmp_path / "the scores").iterdir()} == REPORT


def test_a_folder_of_results_has_one_file_of_the_same_name(scored: Scored, tmp_path: Path) -> None:
    """A second file stood beside the old one until that was removed, and a reader saw rows twice."""
    files = ArrowFiles(scored.files.log, str(tmp_path))
    rows = scored.files.table("recoveries", TABLES["recoveries"])
    files.write("recoveries", rows)
    (path,) = tmp_path.glob("recoveries/cluster=perfect/*/*")
    assert path.name == "part-0.parquet"
    path.rename(path.with_name("part-00000-c000.snappy.parquet"))
    abandoned, young = (path.with_name(name) for name in (".part-0.parquet.1", ".part-0.parquet.2"))
    for hidden in (abandoned, young):
        hidden.write_text("what a task has written so far")
    two_days_ago = time.time() - 2 * 86_400
    os.utime(abandoned, (two_days_ago, two_days_ago))
    files.write("recoveries", rows)
    assert {each.name for each in path.parent.iterdir()} == {"part-0.parquet", ".part-0.parquet.2"}
    assert files.table("recoveries", TABLES["recoveries"]).num_rows == rows.num_rows


def test_results_of_an_older_version_stay_readable(open_files: Opener, scored: Scored, tmp_path: Path) -> None:
    """Spark wrote times as INT96 by default, under other names, and later versions add columns."""
    shutil.copytree(scored.directory / "log", tmp_path / "log")
    late = Path("cluster=blind")
    for kind in ("decisions", "reassignments"):
        (tmp_path / "log" / kind / late).rename(tmp_path / f"late-{kind}")
    files = open_files(tmp_path / "log", tmp_path / "out")
    run(ArrowFiles(str(tmp_path / "log"), str(tmp_path / "out")))
    newer = {"recoveries": "writes_per_gb", "ports": "skew_seconds", "timeline": "policy"}
    newer["quality"] = "unreadable_reassignment_files"
    for path in (tmp_path / "out").rglob("part-0.parquet"):
        table = pq.ParquetFile(path).read().drop_columns([newer[path.relative_to(tmp_path / "out").parts[0]]])
        old = path.with_name("part-00000-0a1b-c000.snappy.parquet")
        pq.write_table(table, old, use_deprecated_int96_timestamps=True, compression="snappy")
        path.unlink()
    scorer = SparkScorer(files._spark) if isinstance(files, SparkFiles) else None
    assert run(files, scorer).new == ()
    results = results_of(files)
    assert {row["cluster"] for row in results.recoveries} == {row["cluster"] for row in scored.results.recoveries} - {
        "blind"
    }
    assert results.recoveries[0]["start"] == scored.recovery(results.recoveries[0]["cluster"])["start"]
    for kind in ("decisions", "reassignments"):
        (tmp_path / f"late-{kind}").rename(tmp_path / "log" / kind / late)
    assert run(files, scorer).new == ("2026-11-05",)
    efficiency = {row["cluster"]: row["efficiency"] for row in results_of(files).recoveries}
    assert efficiency == pytest.approx(
        {row["cluster"]: row["efficiency"] for row in scored.results.recoveries}, rel=1e-9
    )

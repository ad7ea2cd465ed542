"""Locations of logs and results: everything that Hadoop supports, under Hadoop's names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from autothrottle.core.errors import Invalid
from autothrottle.scorer.command import write_report
from autothrottle.scorer.log import DecisionLogReader
from autothrottle.scorer.report import Results
from autothrottle.scorer.session import hadoop_location, location
from tests.system.scorer.conftest import Scored

REPORT = {"report.html", "results.json", "recoveries.csv"}


def test_the_report_is_written_to_any_file_system_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Arrow wrote the report. It supports fewer stores than Hadoop and ignores Hadoop's settings.

    A run therefore ended with a traceback after an hour: on HDFS without its native library, on S3 with a custom
    endpoint, and on stores unknown to Arrow. Hadoop's viewfs represents these stores here.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.elsewhere.link./scores", tmp_path.as_uri())
    for recoveries in ([{"cluster": "first"}], [{"cluster": "second"}]):
        write_report(spark, Results(recoveries=recoveries), "viewfs://elsewhere/scores")
    assert {file.name for file in tmp_path.iterdir() if file.suffix != ".crc"} == REPORT
    assert (tmp_path / "recoveries.csv").read_text() == "cluster\nsecond\n"


def test_a_link_at_the_name_of_a_report_is_replaced_and_its_target_stays(spark: SparkSession, tmp_path: Path) -> None:
    """The report was written through the link, into a file elsewhere that another user had chosen."""
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "report.html").symlink_to(target)
    write_report(spark, Results(), location(str(tmp_path / "scores"), spark))
    assert target.read_text() == "precious"
    assert not (tmp_path / "scores" / "report.html").is_symlink()


@pytest.mark.parametrize(
    ("uri", "place", "settings"),
    [
        ("s3://bucket/decisions", "s3a://bucket/decisions", {}),
        ("s3a://bucket/decisions", "s3a://bucket/decisions", {}),
        (
            "s3://logs/a b?endpoint_override=10.0.0.9:9000&scheme=http&region=eu-central-1",
            "s3a://logs/a b",
            {"endpoint": "http://10.0.0.9:9000", "path.style.access": "true", "endpoint.region": "eu-central-1"},
        ),
        ("gcs://bucket/decisions", "gs://bucket/decisions", {}),
        ("abfs://decisions@account.dfs.core.windows.net/log", "abfs://decisions@account.dfs.core.windows.net/log", {}),
        ("hdfs://name-node:8020/decisions", "hdfs://name-node:8020/decisions", {}),
    ],
)
def test_the_planners_name_of_a_store_is_hadoops_name_of_it(uri: str, place: str, settings: dict[str, str]) -> None:
    """The planner's Arrow knows `s3://`, and Hadoop knows `s3a://`. No value of --decisions suited both programs."""
    assert hadoop_location(uri) == (place, {f"fs.s3a.bucket.logs.{name}": value for name, value in settings.items()})


def test_a_store_that_hadoop_knows_by_the_planners_name_keeps_it(spark: SparkSession, tmp_path: Path) -> None:
    """Some distributions of Spark have their own file system for `s3://`."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.s3.impl", "org.apache.hadoop.fs.viewfs.ViewFileSystem")
    hadoop.set("fs.viewfs.mounttable.bucket.link./decisions", tmp_path.as_uri())
    try:
        assert location("s3://bucket/decisions/", spark) == "s3://bucket/decisions"
    finally:
        hadoop.unset("fs.s3.impl")


@pytest.mark.parametrize("place", ["nowhere://bucket/decisions", "s3a://bucket/decisions", "s3://bucket/decisions"])
def test_an_unsupported_store_is_refused_with_the_fix(spark: SparkSession, place: str) -> None:
    """PySpark's jars do not include the S3 connector, for example. The error was a stack trace of sixty lines."""
    with pytest.raises(Invalid, match=rf"^'{place}' cannot be reached: .*\. Fix: add the store's Hadoop connector"):
        location(place, spark)


def test_a_directory_name_may_contain_a_blank(spark: SparkSession, scored: Scored, tmp_path: Path) -> None:
    """The blank was escaped as %20, which Hadoop takes literally. The scorer reported that there is no decision log."""
    log = tmp_path / "decision log"
    shutil.copytree(scored.directory / "log" / "decisions" / "cluster=perfect", log / "decisions" / "cluster=perfect")
    assert DecisionLogReader(spark, location(str(log), spark)).files().keys() == {("perfect", "2026-11-01")}
    write_report(spark, Results(), location(str(tmp_path / "the scores"), spark))
    assert {file.name for file in (tmp_path / "the scores").iterdir()} == REPORT

"""Where logs are read and results are written: whatever Hadoop knows, by the name that it has there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from autothrottle.core.errors import Invalid
from autothrottle.scorer.command import write_report
from autothrottle.scorer.log import DecisionLogReader
from autothrottle.scorer.report import Results
from autothrottle.scorer.session import location
from tests.scorer.conftest import Scored

REPORT = {"report.html", "results.json", "recoveries.csv"}


def test_the_report_is_written_wherever_spark_writes_its_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Arrow wrote it, which knows fewer stores than Hadoop, and none by Hadoop's settings.

    So after an hour's scoring a run ended with a traceback: on HDFS without its native library, on an S3 with an
    endpoint of its own, on whatever Arrow has no name for. A view of Hadoop's stands for them here.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.elsewhere.link./scores", tmp_path.as_uri())
    for recoveries in ([{"cluster": "first"}], [{"cluster": "second"}]):
        write_report(spark, Results(recoveries=recoveries), "viewfs://elsewhere/scores")
    assert {file.name for file in tmp_path.iterdir() if file.suffix != ".crc"} == REPORT
    assert (tmp_path / "recoveries.csv").read_text() == "cluster\nsecond\n"


@pytest.mark.parametrize("place", ["nowhere://bucket/decisions", "s3a://bucket/decisions"])
def test_a_store_that_hadoop_does_not_know_is_named_with_the_fix(spark: SparkSession, place: str) -> None:
    """The connector of S3, for one, is not among PySpark's jars: sixty lines of Java's and Python's calls said so."""
    with pytest.raises(Invalid, match=rf"^'{place}' cannot be reached: .*\. Fix: put the store's Hadoop connector"):
        location(place, spark)


def test_a_directory_may_have_a_blank_in_its_name(spark: SparkSession, scored: Scored, tmp_path: Path) -> None:
    """The blank became %20, as in a URL, which Hadoop takes for a part of the name: there was "no decision log"."""
    log = tmp_path / "what was decided"
    shutil.copytree(scored.directory / "log" / "decisions" / "cluster=perfect", log / "decisions" / "cluster=perfect")
    assert DecisionLogReader(spark, location(str(log), spark)).files().keys() == {("perfect", "2026-11-01")}
    write_report(spark, Results(), location(str(tmp_path / "the scores"), spark))
    assert {file.name for file in (tmp_path / "the scores").iterdir()} == REPORT

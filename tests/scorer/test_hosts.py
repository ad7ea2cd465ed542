"""What the scorer says does not depend on the host that it runs on, nor on what is set there."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from autothrottle.lab.virtual import BEGIN
from autothrottle.scorer import report
from autothrottle.scorer.scoring import ScoreSettings, score
from autothrottle.scorer.session import configuration
from tests.scorer.conftest import Scored


@pytest.fixture
def far_west(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host whose clock shows the day before."""
    monkeypatch.setenv("TZ", "XYZ+13")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_west")
def test_a_recovery_is_scored_on_a_host_where_it_is_still_yesterday(
    spark: SparkSession, scored: Scored, tmp_path: Path
) -> None:
    """Folders are named by dates in UTC, and Spark hands times over in the zone of the driver's host.

    West of Greenwich a recovery of the early hours began "the day before", of which nothing was new: it was not scored,
    on that night or ever. And the report had the host's times, without a word about it.
    """
    for kind in ("decisions", "reassignments"):
        shutil.copytree(
            scored.directory / "log" / kind / "cluster=perfect", tmp_path / "log" / kind / "cluster=perfect"
        )
    run = score(spark, ScoreSettings((tmp_path / "log").as_uri(), (tmp_path / "out").as_uri()))
    assert run.dates_read == ("2026-11-01",)
    tables = {name: table.where(F.col("cluster") == "perfect") for name, table in run.tables.items()}
    (recovery,) = report.gather(tables).recoveries
    assert recovery["efficiency"] == pytest.approx(scored.recovery("perfect")["efficiency"], rel=1e-9)
    assert recovery["start"].tzinfo is UTC
    assert abs((recovery["start"] - BEGIN.replace(day=1)).total_seconds()) < 300


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("spark.sql.session.timeZone", "America/New_York", "UTC"),
        ("spark.sql.sources.partitionOverwriteMode", "static", "dynamic"),
        ("spark.sql.sources.partitionColumnTypeInference.enabled", "true", "false"),
    ],
)
def test_the_defaults_of_a_cluster_do_not_change_what_scores_depend_on(
    spark: SparkSession, name: str, theirs: str, ours: str
) -> None:
    """What spark-submit or spark-defaults.conf had set stayed, whatever it was.

    With a static overwrite mode, which many a cluster has, the second night's run removed all dates but its own.
    """
    system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    system.setProperty(name, theirs)
    system.setProperty("spark.ui.showConsoleProgress", "true")
    try:
        assert configuration("local[2]").get(name) == ours
        assert configuration("local[2]").get("spark.ui.showConsoleProgress") == "true"
    finally:
        system.clearProperty(name)
        system.clearProperty("spark.ui.showConsoleProgress")

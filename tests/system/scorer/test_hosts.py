"""Scores do not depend on the host of the scorer or on its Spark defaults."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from autothrottle.scorer.files import ArrowFiles
from autothrottle.scorer.session import configuration
from autothrottle.scorer.spark import SparkScorer
from autothrottle_lab.simulate.virtual_time import BEGIN
from tests.system.scorer.conftest import Scored, results_of, run


@pytest.fixture
def far_west(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host in a time zone where it is still the previous day."""
    monkeypatch.setenv("TZ", "XYZ+13")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_west")
@pytest.mark.parametrize("with_spark", [False, True])
def test_scores_are_the_same_in_a_time_zone_of_the_previous_day(
    with_spark: bool, request: pytest.FixtureRequest, scored: Scored, tmp_path: Path
) -> None:
    """Folder names are UTC dates, but Spark returned times in the time zone of the driver's host.

    West of Greenwich, a recovery of the early hours seemed to start on the previous day, which was not new. It was
    never scored. The report also showed local times without a time zone.
    """
    for kind in ("decisions", "reassignments"):
        part = Path(kind, "cluster=perfect")
        shutil.copytree(scored.directory / "log" / part, tmp_path / "log" / part)
    files = ArrowFiles(str(tmp_path / "log"), str(tmp_path / "out"))
    scorer = SparkScorer(request.getfixturevalue("spark")) if with_spark else None
    assert run(files, scorer).new == ("2026-11-01",)
    (recovery,) = results_of(files).recoveries
    assert recovery["efficiency"] == pytest.approx(scored.recovery("perfect")["efficiency"], rel=1e-9)
    assert recovery["start"].tzinfo is UTC
    assert abs((recovery["start"] - BEGIN.replace(day=1)).total_seconds()) < 300


@pytest.mark.parametrize(
    ("name", "other", "ours"),
    [
        ("spark.sql.session.timeZone", "America/New_York", "UTC"),
        ("spark.sql.sources.partitionOverwriteMode", "static", "dynamic"),
        ("spark.sql.sources.partitionColumnTypeInference.enabled", "true", "false"),
    ],
)
def test_cluster_defaults_do_not_override_settings_that_scores_depend_on(
    spark: SparkSession, name: str, other: str, ours: str
) -> None:
    """Settings from spark-submit or spark-defaults.conf won unconditionally.

    With the static overwrite mode of many clusters, the second night's run removed all dates except its own.
    """
    system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    system.setProperty(name, other)
    system.setProperty("spark.ui.showConsoleProgress", "true")
    try:
        assert configuration("local[2]").get(name) == ours
        assert configuration("local[2]").get("spark.ui.showConsoleProgress") == "true"
    finally:
        system.clearProperty(name)
        system.clearProperty("spark.ui.showConsoleProgress")

"""One Spark session and one scoring of the golden logs, shared by all tests of the scorer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from autothrottle.scorer import report
from autothrottle.scorer.scoring import Run, ScoreSettings, score
from autothrottle.scorer.session import open_session
from tests.system.scorer import golden

HERE = Path(__file__).parent
LONGEST_SECONDS = 1800
"""Timeout of a test. The first one includes the simulation and scoring of the golden logs, slow on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(LONGEST_SECONDS))


@dataclass(frozen=True)
class Scored:
    """The golden logs and their scores."""

    directory: Path
    took: Mapping[str, float]
    """Cluster -> duration of its reassignment in seconds."""
    run: Run
    results: report.Results

    @property
    def log(self) -> str:
        """Location of the decision log."""
        return (self.directory / "log").as_uri()

    @property
    def out(self) -> str:
        """Location of the results."""
        return (self.directory / "out").as_uri()

    def recovery(self, cluster: str) -> Mapping[str, Any]:
        """Return the only recovery of a cluster."""
        (found,) = [row for row in self.results.recoveries if row["cluster"] == cluster]
        return found


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two threads; its JVM ends with the tests."""
    # With so little data, compilation and new plans at run time would take most of the time.
    settings = {"spark_sql_codegen_wholeStage": "false", "spark_sql_codegen_factoryMode": "NO_CODEGEN"}
    settings |= {"spark_sql_adaptive_enabled": "false"}
    settings |= {"spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need pyarrow
    session = open_session("local[2]", spark_sql_shuffle_partitions="2", spark_driver_memory="1g", **settings)
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)


@pytest.fixture(scope="session")
def scored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """The golden logs, scored once."""
    directory = tmp_path_factory.mktemp("golden")
    took = golden.write(directory / "log")
    settings = ScoreSettings((directory / "log").as_uri(), (directory / "out").as_uri())
    run = score(spark, settings)
    return Scored(directory, took, run, report.gather(run.tables))

"""One Spark session and one scoring of the golden logs, shared by all tests of the scorer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.scorer import report
from autothrottle.scorer.files import ArrowFiles, Files
from autothrottle.scorer.local import LocalScorer
from autothrottle.scorer.log import QUALITY
from autothrottle.scorer.results import gather
from autothrottle.scorer.scoring import Scorer, ScoreWork, find_work, score
from autothrottle.scorer.session import open_session
from tests.system.scorer import golden

HERE = Path(__file__).parent
LONGEST_SECONDS = 1800
"""Timeout of a test. The first one includes the simulation and scoring of the golden logs, slow on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(LONGEST_SECONDS))


def run(
    files: Files,
    scorer: Scorer | None = None,
    ratio: float = REFERENCE_RATIO,
    notify: Callable[[str], None] = lambda line: None,
) -> ScoreWork:
    """Score what is new, like the command but without a report; by default in this process."""
    work = find_work(files, ratio)
    if work.new:
        files.write("quality", score(files, scorer or LocalScorer(), work, ratio, notify))
    return work


def results_of(files: Files) -> report.Results:
    """Return the content of the report."""
    return gather(files, QUALITY.empty_table(), LocalScorer().estimate)


@dataclass(frozen=True)
class Scored:
    """The golden logs and their scores."""

    directory: Path
    took: Mapping[str, float]
    """Cluster -> duration of its reassignment in seconds."""
    files: ArrowFiles
    results: report.Results

    def recovery(self, cluster: str) -> Mapping[str, Any]:
        """Return the only recovery of a cluster."""
        (recovery,) = [row for row in self.results.recoveries if row["cluster"] == cluster]
        return recovery


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two threads; its JVM ends with the tests."""
    # With so little data, new plans at run time would take most of the time.
    session = open_session("local[2]", spark_sql_shuffle_partitions="2", spark_sql_adaptive_enabled="false")
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)


@pytest.fixture(scope="session")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """The golden logs, scored once, in this process."""
    directory = tmp_path_factory.mktemp("golden")
    took = golden.write(directory / "log")
    files = ArrowFiles(str(directory / "log"), str(directory / "out"))
    run(files)
    return Scored(directory, took, files, results_of(files))

"""The command on a real Spark cluster: a standalone master with two workers, by spark-submit."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.scorer.command import main
from autothrottle.scorer.session import write_package
from tests.paths import ROOT
from tests.system.scorer.results import assert_same_tables
from tests.system.scorer.spark_cluster import StandaloneCluster, environment, submit_command, wait_until
from tests.unit.autothrottle.scorer.logs import write_log

SCRIPT = ROOT / "services" / "autothrottle" / "scorer" / "__main__.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def scored_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, and its scores by this process."""
    directory = tmp_path_factory.mktemp("log")
    write_log(directory / "log", cycles=20)
    assert main(["--decisions", str(directory / "log"), "--out", str(directory / "out")]) == 0
    return directory


def submit(cluster: StandaloneCluster, log: Path, out: Path, directory: Path) -> subprocess.Popen[str]:
    """Start the job; the executors get the package from spark-submit."""
    package = directory / "autothrottle.zip"
    write_package(package)
    command = submit_command(cluster.home)
    command += ["--master", cluster.master, "--py-files", str(package), str(SCRIPT)]
    command += ["--decisions", log.as_uri(), "--out", out.as_uri()]
    # The package comes from the zip only, as on a host where it is not installed.
    variables = {**environment(cluster.home), "PYTHONPATH": ""}
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_job_of_spark_submit_on_two_workers_gives_the_scores_of_one_process(
    cluster: StandaloneCluster, scored_here: Path, tmp_path: Path
) -> None:
    job = submit(cluster, scored_here / "log", tmp_path / "out", tmp_path)
    output, errors = job.communicate(timeout=120)
    assert job.returncode == 0, output + errors
    assert_same_tables(str(tmp_path / "out"), str(scored_here / "out"))
    assert len(cluster.executors) == 2, "an executor ran on each worker"
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


@pytest.mark.repeat
def test_the_command_sends_its_modules_to_the_workers(
    cluster: StandaloneCluster, scored_here: Path, tmp_path: Path
) -> None:
    """The zip of the modules was removed as soon as Spark knew it, before a worker had fetched it."""
    command = [sys.executable, "-m", "autothrottle", "score", "--master", cluster.master, "--no-advice"]
    command += ["--decisions", str(scored_here / "log"), "--out", str(tmp_path / "out")]
    ran = subprocess.run(command, env=environment(cluster.home), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert_same_tables(str(tmp_path / "out"), str(scored_here / "out"))


@pytest.mark.repeat
def test_a_worker_that_is_killed_changes_no_score(scored_here: Path, tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path) as cluster:
        job = submit(cluster, scored_here / "log", tmp_path / "out", tmp_path)
        try:
            wait_until(lambda: len(cluster.executors) == 2 and "Running task" in log_of(cluster), "the first task")
            cluster.workers[1].end(signal.SIGKILL)
            _, errors = job.communicate(timeout=150)
        finally:
            job.kill()
        assert job.returncode == 0, errors
    assert_same_tables(str(tmp_path / "out"), str(scored_here / "out"))


def log_of(cluster: StandaloneCluster) -> str:
    return "".join(path.read_text() for path in cluster.executors if "work-2" in str(path))

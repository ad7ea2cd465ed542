"""The same command on a Spark cluster with two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyspark
import pytest

from tests.system.scorer.conftest import Scored

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
ENVIRONMENT = {
    **os.environ,
    "SPARK_LOCAL_IP": "127.0.0.1",
    # With so little data, 200 tasks per stage and compilation would take most of the time.
    "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=4 --conf spark.sql.codegen.wholeStage=false "
    "--conf spark.sql.codegen.factoryMode=NO_CODEGEN --driver-java-options -XX:TieredStopAtLevel=1 "
    "--conf spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 pyspark-shell",
}
PATIENCE_SECONDS = 240


def start(stack: ExitStack, log: Path, arguments: list[str], pattern: str) -> re.Match[str]:
    """Start a Spark process that ends with the stack; return when its log matches a pattern."""
    with log.open("wb") as file:
        process = subprocess.Popen([str(SPARK_CLASS), *arguments], env=ENVIRONMENT, stdout=file, stderr=file)
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := re.search(pattern, log.read_text())):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with two workers of one core each."""
    with ExitStack() as stack:
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        begun = start(
            stack,
            tmp_path / "master.log",
            ["org.apache.spark.deploy.master.Master", *place],
            r"Starting Spark master at (spark://\S+)",
        )
        for number in (1, 2):
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"worker-{number}")]
            worker = ["org.apache.spark.deploy.worker.Worker", *place, *options, begun[1]]
            start(stack, tmp_path / f"worker-{number}.log", worker, "Successfully registered with master")
        yield begun[1]


def table(out: Path, name: str) -> list[Mapping[str, Any]]:
    """Return a results table, sorted by recovery and link side."""
    rows: list[Mapping[str, Any]] = ds.dataset(out / name, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["recovery_id"], row.get("broker_id", 0), row.get("role", "")))


def test_the_same_command_on_two_workers_gives_the_same_results(scored: Scored, master: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "autothrottle", "score", "--decisions", str(scored.directory / "log")]
    command += ["--out", str(out), "--master", master]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    for name in ("recoveries", "ports"):
        here, remote = table(scored.directory / "out", name), table(out, name)
        assert len(here) == len(remote) > 0
        for mine, other in zip(here, remote, strict=True):
            assert mine.keys() == other.keys()
            for column, value in mine.items():
                # The order of summation may differ, and with it the last digit of a sum.
                expected = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
                assert other[column] == expected, (mine["recovery_id"], column)
    works = [sorted((tmp_path / f"worker-{n}").glob("app-*/*/stderr")) for n in (1, 2)]
    assert all(works), "an executor ran on each worker"
    assert (out / "report.html").stat().st_size > 10_000

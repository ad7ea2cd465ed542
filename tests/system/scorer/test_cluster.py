"""The same command on a Spark cluster with two workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyspark
import pytest

from tests.system.scorer.conftest import Scored

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ENVIRONMENT = {
    **os.environ,
    "SPARK_LOCAL_IP": "127.0.0.1",
    # With so little data, 200 tasks per stage, compilation and new plans at run time would take most of the time.
    "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=2 --conf spark.sql.codegen.wholeStage=false "
    "--conf spark.sql.codegen.factoryMode=NO_CODEGEN --conf spark.sql.adaptive.enabled=false "
    f"--driver-java-options '{JAVA}' --conf spark.executor.extraJavaOptions='{JAVA}' pyspark-shell",
}
MASTER = "local-cluster[2,1,1024]"
"""Spark's own cluster of two workers, each with an executor in its own process with one core and 1 GiB."""


def table(out: Path, name: str) -> list[Mapping[str, Any]]:
    """Return a results table, sorted by recovery and link side."""
    rows: list[Mapping[str, Any]] = ds.dataset(out / name, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["recovery_id"], row.get("broker_id", 0), row.get("role", "")))


@pytest.mark.repeat
def test_the_same_command_on_two_workers_gives_the_same_results(scored: Scored, tmp_path: Path) -> None:
    out, home = tmp_path / "out", tmp_path / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)  # the workers write below Spark's home
    command = [sys.executable, "-m", "autothrottle", "score", "--decisions", str(scored.directory / "log")]
    command += ["--out", str(out), "--master", MASTER]
    ran = subprocess.run(
        command, env={**ENVIRONMENT, "SPARK_HOME": str(home)}, capture_output=True, text=True, timeout=600
    )
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
    assert len(list(home.glob("work/app-*/*/stderr"))) == 2, "an executor ran on each worker"
    assert (out / "report.html").stat().st_size > 10_000

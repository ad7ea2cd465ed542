"""The command as a client of Spark Connect, which has no JVM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from autothrottle.scorer.command import NOTHING_NEW, main
from tests.system.scorer.results import assert_same_tables
from tests.system.scorer.spark_cluster import (
    Server,
    accepts,
    environment,
    free_port,
    spark_home,
    submit_command,
    wait_until,
)
from tests.unit.autothrottle.scorer.logs import write_log

MISSING = [name for name in ("grpc_status", "pandas", "zstandard") if find_spec(name) is None]
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

pytestmark = [
    pytest.mark.repeat,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; `make test-all` installs them"),
]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Spark Connect server, which does not have the package."""
    directory, port = tmp_path_factory.mktemp("connect"), free_port()
    home = spark_home(directory)
    command = submit_command(home, **{"spark.connect.grpc.binding.port": str(port), "spark.master": "local[2]"})
    command += ["--class", SERVER, "spark-internal"]
    variables = {"PYTHONPATH": "", "SPARK_DAEMON_MEMORY": "1g"}
    with Server(command, home, directory / "server.log", **variables) as server:
        wait_until(lambda: server.says("") and accepts(port), "the start of the server")
        yield f"sc://127.0.0.1:{port}"


def test_a_client_of_spark_connect_gives_the_scores_of_one_process(remote: str, tmp_path: Path) -> None:
    write_log(tmp_path / "log", cycles=20)
    log = ["--decisions", str(tmp_path / "log")]
    assert main([*log, "--out", str(tmp_path / "here")]) == 0
    command = [sys.executable, "-m", "autothrottle", "score", *log, "--out", str(tmp_path / "out"), "--remote", remote]
    for status in (0, NOTHING_NEW):
        # A classic session would need Java.
        variables = {**environment(tmp_path), "SPARK_HOME": "", "JAVA_HOME": "/nowhere"}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr
    assert_same_tables(str(tmp_path / "out"), str(tmp_path / "here"))

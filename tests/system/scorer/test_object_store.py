"""A log and its scores in an object store with the S3 protocol: moto's server."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from autothrottle.scorer import compaction
from autothrottle.scorer.command import NOTHING_NEW, main
from autothrottle.scorer.files import ArrowFiles, opened
from tests.paths import ROOT
from tests.system.scorer.results import assert_same_tables
from tests.system.scorer.spark_cluster import Server, accepts, free_port, wait_until
from tests.unit.autothrottle.scorer.logs import write_log

MOTO = ROOT / "build" / "moto" / "bin" / "python"

pytestmark = [
    pytest.mark.repeat,
    pytest.mark.skipif(not MOTO.exists(), reason="no build/moto; `make test-all` makes it"),
]
IDENTITY = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The end of the URI of a location in the store: how to reach its server."""
    directory, port = tmp_path_factory.mktemp("store"), free_port()
    patch = pytest.MonkeyPatch()
    for name, value in IDENTITY.items():
        patch.setenv(name, value)
    command = [str(MOTO), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with Server(command, directory, directory / "server.log") as server:
        wait_until(lambda: server.says("") and accepts(port), "the start of the server")
        request = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    patch.undo()


def upload(directory: Path, uri: str) -> None:
    """Write the files of a local log as a planner with an object store does."""
    files, root = opened(uri)
    for path in directory.rglob("*.parquet"):
        with files.open_output_stream(f"{root}/{path.relative_to(directory)}") as stream:
            pq.write_table(pq.ParquetFile(path).read(), stream, compression="zstd")


def test_scores_in_an_object_store_are_those_of_a_local_directory(store: str, tmp_path: Path) -> None:
    write_log(tmp_path / "log", cycles=4)
    assert main(["--decisions", str(tmp_path / "log"), "--out", str(tmp_path / "out")]) == 0
    log = f"s3://bucket/log{store}"
    upload(tmp_path / "log", log)
    by_spark = ["--decisions", log, "--out", f"s3://bucket/spark{store}", "--master", "local[2]"]
    # In a process of its own, because the tasks of a session have the variables of its start.
    subprocess.run([sys.executable, "-m", "autothrottle", "score", *by_spark], check=True, timeout=120)
    assert_same_tables(ArrowFiles(log, f"s3://bucket/spark{store}"), str(tmp_path / "out"))
    command = ["--decisions", log, "--out", f"s3://bucket/here{store}"]
    assert main(command) == 0
    assert_same_tables(ArrowFiles(log, f"s3://bucket/here{store}"), str(tmp_path / "out"))
    assert main([*command, "--anew"]) == 0
    assert_same_tables(ArrowFiles(log, f"s3://bucket/here{store}"), str(tmp_path / "out"))
    files = ArrowFiles(log, log)
    old = len(files.paths("decisions"))
    assert compaction.main(["--decisions", log]) == 0
    assert len(files.paths("decisions")) == 4 < old
    assert main(command) == NOTHING_NEW
    assert main([*command, "--anew"]) == 0
    assert_same_tables(ArrowFiles(log, f"s3://bucket/here{store}"), str(tmp_path / "out"))


def test_a_hostile_object_is_a_finding(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = f"s3://bucket/hostile{store}"
    files, root = opened(log)
    with files.open_output_stream(f"{root}/decisions/cluster=east/date=2026-11-01/x.parquet") as stream:
        stream.write(b"PAR1 not really")
    files.create_dir(f"{root}/decisions/cluster=east/date=2026-11-01/y.parquet")
    assert main(["--decisions", log, "--out", f"s3://bucket/findings{store}"]) == 0
    assert capsys.readouterr().err.count("cannot be read") == 2

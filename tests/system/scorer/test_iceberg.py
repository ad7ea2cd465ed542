"""Results as Iceberg tables, in a catalog in SQLite."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from autothrottle.scorer.command import NOTHING_NEW, main
from autothrottle.scorer.files import ArrowFiles
from autothrottle.scorer.spark import SparkScorer
from autothrottle.scorer.tables import RECOVERIES
from tests.system.scorer.conftest import run
from tests.system.scorer.results import assert_same_tables
from tests.unit.autothrottle.scorer.logs import write_log

pytestmark = [
    pytest.mark.repeat,
    pytest.mark.skipif(find_spec("pyiceberg") is None, reason="not installed: pyiceberg; `make test-all` installs it"),
]


@pytest.fixture
def log(tmp_path: Path) -> str:
    write_log(tmp_path / "log", cycles=4)
    assert main(["--decisions", str(tmp_path / "log"), "--out", str(tmp_path / "plain")]) == 0
    return str(tmp_path / "log")


def iceberg(tmp_path: Path) -> list[str]:
    return ["--out", str(tmp_path / "out"), "--format", "iceberg", "--catalog", f"sqlite:///{tmp_path}/catalog.db"]


def files(log: str, tmp_path: Path) -> ArrowFiles:
    from autothrottle.scorer.iceberg import IcebergFiles

    return IcebergFiles(log, str(tmp_path / "out"), f"sqlite:///{tmp_path}/catalog.db")


def test_iceberg_tables_have_the_rows_of_the_files(log: str, tmp_path: Path) -> None:
    command = ["--decisions", log, *iceberg(tmp_path)]
    assert main(command) == 0
    assert_same_tables(files(log, tmp_path), str(tmp_path / "plain"))
    assert main(command) == NOTHING_NEW
    assert main([*command, "--anew"]) == 0
    assert_same_tables(files(log, tmp_path), str(tmp_path / "plain"))
    pages = [(place / "recoveries.csv").read_text() for place in (tmp_path / "out", tmp_path / "plain")]
    assert pages[0] == pages[1]


def test_spark_writes_the_same_iceberg_tables(log: str, spark: SparkSession, tmp_path: Path) -> None:
    assert run(files(log, tmp_path), SparkScorer(spark)).new
    assert_same_tables(files(log, tmp_path), str(tmp_path / "plain"))


def test_a_reader_sees_the_old_or_the_new_rows_of_a_date(log: str, tmp_path: Path) -> None:
    target, seen, ended = files(log, tmp_path), set[tuple[float, ...]](), threading.Event()
    rows = ArrowFiles(log, str(tmp_path / "plain")).table("recoveries", RECOVERIES)

    def with_seconds(seconds: float) -> pa.Table:
        values = pa.array([seconds] * len(rows))
        return rows.set_column(rows.column_names.index("seconds"), RECOVERIES.field("seconds"), values)

    def read() -> None:
        reader = files(log, tmp_path)
        while not ended.is_set():
            seen.add(tuple(reader.table("recoveries", RECOVERIES)["seconds"].to_pylist()))

    target.write("recoveries", with_seconds(0.0))
    thread = threading.Thread(target=read)
    thread.start()
    try:
        for seconds in range(1, 6):
            target.write("recoveries", with_seconds(float(seconds)))
    finally:
        ended.set()
        thread.join(60)
    assert len(seen) > 1
    assert seen <= {(float(seconds),) * len(rows) for seconds in range(6)}


def test_a_table_of_an_older_version_gets_the_new_columns(log: str, tmp_path: Path) -> None:
    target = files(log, tmp_path)
    rows = ArrowFiles(log, str(tmp_path / "plain")).table("recoveries", RECOVERIES)
    target.write("recoveries", rows.drop_columns(["writes_per_gb"]))
    assert target.table("recoveries", RECOVERIES)["writes_per_gb"].null_count == len(rows)
    target.write("recoveries", rows)
    order = [("recovery_id", "ascending")]
    assert target.table("recoveries", RECOVERIES).sort_by(order).equals(rows.sort_by(order))


@pytest.mark.parametrize("flags", [["--format", "iceberg"], ["--catalog", "default"]])
def test_format_and_catalog_belong_together(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--decisions", "nowhere", "--out", "nowhere", *flags])
    assert "give both or none" in capsys.readouterr().err


def test_a_catalog_that_does_not_exist_is_refused(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--decisions", log, "--out", log, "--format", "iceberg", "--catalog", "absent"]) == 1
    assert "the catalog 'absent' cannot be used" in capsys.readouterr().err


SECRETS = ("canary-token-0123456789", "canary-credential-0123456789", "canary-object-store-0123456789")
PROPERTIES = {"token": SECRETS[0], "credential": f"id:{SECRETS[1]}", "s3.secret-access-key": SECRETS[2]}


class EchoingCatalog(http.server.BaseHTTPRequestHandler):
    """A REST catalog that refuses every request, and shows it in its answer."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        message = f"refused: {dict(self.headers)} {body}"
        answer = {"error": {"message": message, "type": "BadRequestException", "code": 400}}
        content = (message if self.path.endswith("/tokens") else json.dumps(answer)).encode()
        self.send_response(400)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def echoing_catalog() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EchoingCatalog) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("omitted", "added", "words"),
    [
        ("credential", "", "refused: "),
        ("token", "", "refused: "),
        ("", "    other: [\n", "the configuration of pyiceberg cannot be used ("),
        ("", "    type: sql\n", ""),
    ],
    ids=["token", "credential", "faulty configuration", "written tables"],
)
def test_no_credential_of_a_catalog_is_in_messages_and_results(
    omitted: str, added: str, words: str, tmp_path: Path, echoing_catalog: str
) -> None:
    """A catalog's error had the token of the request, and a fault of the file was a traceback with its lines."""
    is_sql = "sql" in added
    uri = f"sqlite:///{tmp_path}/catalog.db" if is_sql else echoing_catalog
    properties = {"uri": uri, "warehouse": f"file://{tmp_path}/out", **PROPERTIES} | (
        {} if is_sql else {"type": "rest"}
    )
    lines = [f"    {name}: {text}\n" for name, text in properties.items() if name != omitted]
    home = tmp_path / "home"
    home.mkdir()
    (home / ".pyiceberg.yaml").write_text("".join(("catalog:\n", "  production:\n", *lines, added)))
    write_log(tmp_path / "log", cycles=4)
    score = [sys.executable, "-m", "autothrottle", "score", f"--decisions={tmp_path}/log", f"--out={tmp_path}/out"]
    done = subprocess.run(
        [*score, "--format=iceberg", "--catalog=production", "--no-advice"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYICEBERG_HOME": str(home)},
    )
    output = done.stdout + done.stderr
    assert (done.returncode == 0) is is_sql and words in output and "Traceback" not in output, output
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.parent != home)
    assert [secret for secret in SECRETS if secret in output or secret.encode() in written] == []

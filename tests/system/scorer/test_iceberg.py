"""Results as Iceberg tables, in a catalog in SQLite."""

from __future__ import annotations

import threading
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

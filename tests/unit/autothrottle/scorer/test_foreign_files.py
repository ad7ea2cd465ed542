"""Logs that other programs have written again, or are writing: their scores are those of the original log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autothrottle.adapters.decision_log.files import LoggedDecisions
from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.scorer.compaction import Compaction
from autothrottle.scorer.files import ArrowFiles, opened
from autothrottle.scorer.local import LocalScorer
from autothrottle.scorer.log import QUALITY
from autothrottle.scorer.scoring import find_work, score
from autothrottle.scorer.tables import RECOVERIES
from tests.unit.autothrottle.scorer.logs import write_log

KINDS = ("decisions", "reassignments")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of one cluster, two dates and six cycles for each."""
    write_log(tmp_path / "log", clusters=["east"])
    return tmp_path / "log"


def scores(log: Path) -> tuple[list[dict[str, Any]], int]:
    """Score a log; return its recoveries, and the number of files that could not be read."""
    out = log.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    files = ArrowFiles(str(log), str(out))
    work = find_work(files, REFERENCE_RATIO)
    files.write("quality", score(files, LocalScorer(), work, REFERENCE_RATIO, lambda line: None))
    quality = files.table("quality", QUALITY).to_pylist()
    unreadable = sum(row["unreadable_files"] + row["unreadable_reassignment_files"] for row in quality)
    return files.table("recoveries", RECOVERIES).to_pylist(), unreadable


def replaced(table: pa.Table, change: Callable[[pa.ChunkedArray], Any]) -> pa.Table:
    """Return a table with changed columns."""
    return pa.table({name: change(table[name]) for name in table.column_names})


def without_types(column: pa.ChunkedArray) -> Any:
    """A column without values gets the type null, a list without elements that of a list of nulls."""
    values = column.to_pylist()
    is_empty = all(value in (None, []) for value in values)
    return pa.array(values) if is_empty else column


def as_pandas(column: pa.ChunkedArray) -> Any:
    """Whole numbers beside missing ones are floats."""
    return column.cast(pa.float64()) if pa.types.is_integer(column.type) and column.null_count else column


def as_polars(column: pa.ChunkedArray) -> Any:
    """Texts and lists have types with offsets of 64 bits."""
    if pa.types.is_string(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_list(column.type.value_type)) if pa.types.is_list(column.type) else column


def as_views(column: pa.ChunkedArray) -> Any:
    return column.cast(pa.string_view()) if pa.types.is_string(column.type) else column


def in_nanoseconds(column: pa.ChunkedArray) -> Any:
    """Without a time zone, as Spark's type for local times."""
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("ns"))


@pytest.mark.parametrize("change", [without_types, as_pandas, as_polars, as_views, in_nanoseconds])
def test_a_log_that_another_library_wrote_again_has_the_same_scores(
    change: Callable[[pa.ChunkedArray], Any], log: Path
) -> None:
    """A column without values had the type null after a copy. Each file was refused, and no recovery was left."""
    original = scores(log)
    for path in log.rglob("*.parquet"):
        pq.write_table(replaced(pq.ParquetFile(path).read(), change), path)
    assert scores(log) == original
    assert len(original[0]) == 2 and original[1] == 0


def test_spark_may_store_times_in_12_bytes(log: Path) -> None:
    original = scores(log)
    for path in log.rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    assert scores(log) == original


@pytest.mark.parametrize("kind", KINDS)
def test_a_fraction_where_only_whole_numbers_are_possible_is_one_unreadable_file(kind: str, log: Path) -> None:
    path = min((log / kind).rglob("*.parquet"))
    table = pq.ParquetFile(path).read()
    odd = table.set_column(table.column_names.index("cycle"), "cycle", pa.array([1.5] * len(table)))
    pq.write_table(odd, path.with_name("odd-0000000001-1.parquet"))
    recoveries, unreadable = scores(log)
    assert (len(recoveries), unreadable) == (2, 1)


@pytest.mark.parametrize("folder", ["_temporary/0/task_1", ".spark-staging-6815c37c"])
def test_files_that_spark_has_not_committed_do_not_belong_to_the_log(folder: str, log: Path) -> None:
    """Spark writes below a hidden folder, and leaves it there if it is killed.

    The scorer counted these files as damaged or twice, and the compaction merged and removed them.
    """
    original = scores(log)
    staged = {}
    for kind in KINDS:
        for number, path in enumerate(sorted((log / kind).rglob("*.parquet"))):
            copy = log / kind / folder / path.relative_to(log / kind)
            copy.parent.mkdir(parents=True, exist_ok=True)
            staged[copy] = path.read_bytes()[: None if number % 2 else -9]
            copy.write_bytes(staged[copy])
    assert scores(log) == original
    assert len(LoggedDecisions(str(log)).reassignments()) == 4
    Compaction(*opened(str(log)), print).run("2026-11-30")
    assert {path: path.read_bytes() for path in staged} == staged
    assert scores(log) == original

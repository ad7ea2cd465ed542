"""Hostile Parquet files: each is one finding, quickly and in little memory, and the rest of the log is scored."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.scorer.files import ArrowFiles
from autothrottle.scorer.local import LocalScorer
from autothrottle.scorer.log import QUALITY
from autothrottle.scorer.scoring import find_work, score
from autothrottle.scorer.tables import RECOVERIES
from tests.unit.autothrottle.scorer.logs import write_log

LONGEST_SECONDS = 1.0
"""Time of the CPU."""
LARGEST_BYTES = 200_000_000
ROWS = 12_345

Builder = Callable[[pa.Table], bytes]
_TIME = pa.timestamp("us", "UTC")


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def varint(number: int) -> bytes:
    """Return a number as Thrift's compact protocol writes it."""
    number, result = number << 1, b""
    while number > 127:
        number, result = number >> 7, result + bytes([number & 127 | 128])
    return result + bytes([number])


def with_footer(content: bytes, footer: bytes) -> bytes:
    """Return a file with another footer."""
    old = int.from_bytes(content[-8:-4], "little")
    return content[: -8 - old] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def rows_declared(table: pa.Table) -> bytes:
    """2^40 rows in a file of a few hundred kilobytes."""
    content = parquet(table.take(pa.array([0] * ROWS)))
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    return with_footer(content, footer.replace(varint(ROWS), varint(2**40)))


def nested(table: pa.Table) -> bytes:
    """A column in 1,000 records around each other."""
    element = b"\x35\x02\x18\x01a\x15\x02\x00"  # repetition, name, one child
    leaf = b"\x15\x04\x25\x02\x18\x01x\x00"
    schema = b"\x19\xfc" + bytes([1002 & 127 | 128, 1002 >> 7]) + element * 1001 + leaf
    return with_footer(parquet(table), b"\x15\x02" + schema + b"\x16\x00\x19\x0c\x00")


def renamed(table: pa.Table) -> bytes:
    return parquet(table.rename_columns(["cluster" if name == "term" else name for name in table.column_names]))


def huge_value(table: pa.Table) -> bytes:
    """A name of 220 MB in a file of some kilobytes."""
    cluster = pa.array(["x" * 220_000_000])
    row = table.slice(0, 1).set_column(table.column_names.index("cluster"), "cluster", cluster)
    return parquet(row, compression="zstd", use_dictionary=False, write_statistics=False)


def replaced(**columns: Any) -> Builder:
    def build(table: pa.Table) -> bytes:
        for name, value in columns.items():
            table = table.set_column(table.column_names.index(name), name, pa.array([value] * len(table)))
        return parquet(table)

    return build


BOTH: dict[str, Builder] = {
    "another type": replaced(term="one"),
    "a record instead of a number": replaced(cycle={"a": [1]}),
    "a time that Python cannot name": lambda table: parquet(
        table.set_column(
            0, "start" if "start" in table.column_names else "time", pa.array([2**62], _TIME).take(_zeros(table))
        )
    ),
    "2^40 rows": rows_declared,
    "1,000 levels": nested,
    "a truncated footer": lambda table: parquet(table)[:-12],
    "a text that is not UTF-8": lambda table: parquet(table).replace(b"east", b"e\xffst"),
    "a footer before the file": lambda table: parquet(table)[:-8] + b"\xff\xff\xff\x7fPAR1",
    "nothing": lambda table: b"",
    "no rows": lambda table: parquet(table.slice(0, 0)),
    "two columns of one name": renamed,
    "a huge value": huge_value,
    "a huge dictionary": lambda table: parquet(
        pa.table({"cluster": pa.array([f"{n:02000d}" for n in range(20_000)])}), compression="zstd"
    ),
    "10,000 columns": lambda table: parquet(pa.table({f"c{n}": [1] for n in range(10_000)})),
}
ONLY_REASSIGNMENTS: dict[str, Builder] = {
    "paths of another type": replaced(paths=["a"]),
    "paths with texts": replaced(paths=[{"leader": "1", "follower": "2", "bytes_landed": 1, "bytes_grown": 1}]),
}


def _zeros(table: pa.Table) -> pa.Array:
    return pa.array([0] * len(table))


LARGE = ("a huge value", "a huge dictionary", "10,000 columns")
"""Files that take a second to make. `make test` tries them as decisions; the same reader reads both kinds."""
CASES = [("decisions", name) for name in BOTH]
CASES += [("reassignments", name) for name in ONLY_REASSIGNMENTS]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *CASES,
        *(pytest.param("reassignments", n, marks=pytest.mark.repeat if n in LARGE else ()) for n in BOTH),
    ],
)
def test_a_hostile_file_is_one_finding_and_the_rest_is_scored(kind: str, name: str, tmp_path: Path) -> None:
    write_log(tmp_path / "log")
    first = min((tmp_path / "log" / kind).rglob("*.parquet"))
    hostile = first.with_name("hostile-0000000001-1.parquet")
    hostile.write_bytes((BOTH | ONLY_REASSIGNMENTS)[name](pq.ParquetFile(first).read()))
    assert_one_finding(tmp_path, kind, hostile)


@pytest.mark.parametrize("kind", ["decisions", "reassignments"])
def test_a_directory_with_the_name_of_a_file_is_one_finding(kind: str, tmp_path: Path) -> None:
    write_log(tmp_path / "log")
    hostile = min((tmp_path / "log" / kind).rglob("*.parquet")).with_name("x.parquet")
    hostile.mkdir()
    assert_one_finding(tmp_path, kind, hostile)


def assert_one_finding(directory: Path, kind: str, hostile: Path) -> None:
    files = ArrowFiles(str(directory / "log"), str(directory / "out"))
    lines: list[str] = []
    default, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        begin = time.process_time()
        work = find_work(files)
        files.write("quality", score(files, LocalScorer(), work, REFERENCE_RATIO, lines.append))
        seconds = time.process_time() - begin
    finally:
        pa.set_memory_pool(default)
    assert [line for line in lines if str(hostile) in line] == [line for line in lines if "cannot be read" in line]
    assert sum(str(hostile) in line for line in lines) == 1
    assert seconds < LONGEST_SECONDS and pool.max_memory() < LARGEST_BYTES
    assert len(files.table("recoveries", RECOVERIES)) == 4
    column = "unreadable_files" if kind == "decisions" else "unreadable_reassignment_files"
    unreadable = {(row["cluster"], row["date"]): row[column] for row in files.table("quality", QUALITY).to_pylist()}
    assert sum(unreadable.values()) == unreadable["east", "2026-11-01"] == 1

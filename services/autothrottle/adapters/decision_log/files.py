"""The files of the decision log: their columns, their file system, and a reader without Spark.

The columns are derived from the fields of the records. `writer` describes the files.
"""

from __future__ import annotations

import logging
import os
import re
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.errors import Invalid
from autothrottle.core.scoring.cycle_records import CycleRecord
from autothrottle.core.scoring.decision_records import DecisionRecord, PathRecord, ReassignmentRecord

log = logging.getLogger(__name__)

_LARGEST_EXPANSION = 20
"""Largest ratio of a file's uncompressed bytes to its bytes. The planner's files have less than 2."""

_MOST_ROWS = 10
"""Largest number of rows per byte of the file. The planner's files have less than 1."""

_MOST_PARTS = 1_000
"""Largest number of columns, and of row groups."""

_SCALARS: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", "UTC"),
}


def schema_of(record: type) -> pa.Schema:
    """Return the columns of a record type, in the order of its fields; fields that may be None are nullable."""
    return pa.schema([_field(name, hint) for name, hint in _hints(record)])


def _hints(record: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(record)
    return [(field.name, hints[field.name]) for field in fields(record)]


def _field(name: str, hint: Any) -> pa.Field:
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = [argument for argument in get_args(hint) if argument is not type(None)]
        return pa.field(name, _type(inner), nullable=True)
    return pa.field(name, _type(hint), nullable=False)


def _type(hint: Any) -> pa.DataType:
    if get_origin(hint) is list:
        return pa.list_(_type(get_args(hint)[0]))
    if is_dataclass(hint) and isinstance(hint, type):
        return pa.struct([_field(name, inner) for name, inner in _hints(hint)])
    return _SCALARS[hint]


DECISIONS = schema_of(DecisionRecord)
REASSIGNMENTS = schema_of(ReassignmentRecord)
CYCLES = schema_of(CycleRecord)


FILE_NAME = re.compile(
    r"(?P<cluster>.+)-(?P<term>\d{10,})-(?P<sequence>\d{1,18})(?:\.(?P<sources>\d{1,6})-[0-9a-f]{8})?\.parquet"
)
"""The name of a file: cluster and term, and a number that ascends in the order of writing.

A compacted file has the number of the last file that it replaced, how many it replaced, and a random name.
"""


def source_count(path: str) -> int:
    """Return how many files of a planner a file has the rows of: 1 unless it was compacted.

    >>> source_count("/log/east-0000000001-1790000000000.parquet")
    1
    >>> source_count("/log/east-0000000001-1790000000000.96-0a1b2c3d.parquet")
    96
    """
    match = FILE_NAME.fullmatch(path.rpartition("/")[2])
    return int(match["sources"] or 1) if match else 1


def file_system(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a log and its path there, without a trailing slash.

    Args:
        uri: a local path, absolute or relative, or the URI of an object store in pyarrow's format.

    Raises:
        pyarrow.ArrowException, OSError, ValueError: the location does not exist, or its store does not answer.
    """
    files, root = fs.FileSystem.from_uri(uri if "://" in uri else str(Path(uri).absolute()))
    return files, root.rstrip("/")


def is_hidden(name: str) -> bool:
    """Return whether readers pass over a file or a folder of this name."""
    return name.startswith((".", "_"))


def is_staged(path: str, root: str) -> bool:
    """Return whether a file is in a hidden folder below a root, such as `_temporary` or `.spark-staging-1` of Spark.

    Such a file is not complete yet, or another program was killed while it wrote it.

    >>> is_staged("/log/decisions/_temporary/0/cluster=east/date=2026-11-05/a.parquet", "/log")
    True
    """
    folders = path.removeprefix(root).split("/")[:-1] if path.startswith(root) else []
    return any(map(is_hidden, folders))


def sync(path: str | Path) -> None:
    """Let a file or a directory survive a crash of the host."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_metadata(file: pa.NativeFile) -> pq.FileMetaData:
    """Return the footer of a Parquet file, if the file can hold what the footer declares.

    Raises:
        Invalid: it cannot, or it has no rows.
        pyarrow.ArrowException, OSError, ValueError, NotImplementedError: the file is damaged.
    """
    metadata = pq.read_metadata(file)
    if max(metadata.num_columns, metadata.num_row_groups) > _MOST_PARTS:
        raise Invalid(f"it declares {metadata.num_columns} columns and {metadata.num_row_groups} row groups")
    # Not their columns: with some damage, Arrow ends the process there (arrow 26, `RowGroupMetaData.column`).
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows, sizes = ([getattr(group, name) for group in groups] for name in ("num_rows", "total_byte_size"))
    size = sum(sizes)
    if (
        sum(rows) != metadata.num_rows
        or min((*rows, *sizes), default=0) < 0
        or metadata.num_rows > file.size() * _MOST_ROWS
        or size > file.size() * _LARGEST_EXPANSION
    ):
        raise Invalid(f"its {file.size()} bytes declare {metadata.num_rows} rows of {size} bytes")
    if not metadata.num_rows:
        raise Invalid("it has no rows")
    return metadata


class ReplayLog:
    """The cycles in the log at one location, term by term, for a replay."""

    def __init__(self, uri: str) -> None:
        """List the files of the log.

        Args:
            uri: a local path or a URI, as in the planner's `--decisions`.

        Raises:
            Invalid: the location has no decision log, or its planners did not log cycles.
        """
        try:
            self._files, root = file_system(uri)
            self._paths = {kind: self._by_term(f"{root}/{kind}") for kind in ("cycles", "decisions")}
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Invalid(f"the decision log {uri!r} cannot be read: {error}. Fix: give another location") from None
        if not any(self._paths.values()):
            raise Invalid(f"{uri!r} holds no decision log. Fix: give the planner's --decisions")
        if not self._paths["cycles"]:
            raise Invalid(
                f"{uri!r} cannot be replayed: it was written by an older version, which logged decisions without what "
                "they are based on. Fix: replay a log of this version"
            )

    def _by_term(self, folder: str) -> dict[tuple[str, int], list[str]]:
        """Return (cluster, term) -> its files, in the order in which they were written."""
        paths: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for info in self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True)):
            match = FILE_NAME.fullmatch(info.base_name)
            if info.type is fs.FileType.File and match and not is_staged(info.path, folder):
                term = match["cluster"], int(match["term"])
                paths.setdefault(term, []).append((int(match["sequence"]), info.path))
        return {term: [path for _, path in sorted(files)] for term, files in sorted(paths.items())}

    @property
    def terms(self) -> Sequence[tuple[str, int]]:
        """(cluster, term) of all terms with decisions or cycles."""
        return sorted(self._paths["cycles"].keys() | self._paths["decisions"].keys())

    def has_cycles(self, cluster: str, term: int) -> bool:
        """Return whether the cycles of a term are in the log, and not only its decisions."""
        return (cluster, term) in self._paths["cycles"]

    def cycles(self, cluster: str, term: int, note: Callable[[str], None]) -> Iterator[CycleRecord]:
        """Yield the records of a term, ascending by cycle and without copies.

        Args:
            cluster: name of the cluster.
            term: the term.
            note: called with a sentence for each file that cannot be read.
        """
        names, last = CycleRecord.__dataclass_fields__, 0
        for path in self._paths["cycles"].get((cluster, term), ()):
            rows = self._rows(path, CYCLES, note)
            complete = [row for row in rows if None not in row.values()]
            if len(complete) < len(rows):
                note(f"{path} has {len(rows) - len(complete)} rows without a value, which are left out")
            for row in sorted(complete, key=lambda row: int(row["cycle"])):
                if row["cycle"] > last:
                    last = row["cycle"]
                    yield CycleRecord(**{name: row[name] for name in names})

    def rates(self, cluster: str, term: int, note: Callable[[str], None]) -> dict[int, dict[LinkSide, tuple[int, str]]]:
        """Return cycle -> link side -> (rate in bytes/s, reason) of the decisions of a term."""
        rates: dict[int, dict[LinkSide, tuple[int, str]]] = {}
        for path in self._paths["decisions"].get((cluster, term), ()):
            for row in self._rows(path, _RATES, note):
                with suppress(ValueError):  # a role that this version does not know
                    side = row["broker_id"], ReplicaRole(row["role"])
                    rates.setdefault(row["cycle"], {})[side] = row["rate_decided"], row["reason"]
        return rates

    def _rows(self, path: str, schema: pa.Schema, note: Callable[[str], None]) -> list[dict[str, Any]]:
        """Return the rows of a file with these columns; those that are not of the right type make the file damaged."""
        try:
            table = pq.read_table(path, filesystem=self._files, columns=schema.names, partitioning=None)
            rows: list[dict[str, Any]] = table.select(schema.names).cast(schema).to_pylist()
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            note(f"{path} cannot be read and is left out: {reason}")
            return []
        return rows


_RATES = pa.schema([DECISIONS.field(name) for name in ("cycle", "broker_id", "role", "rate_decided", "reason")])


class LoggedDecisions:
    """The log at one location, for a simulation; every call reads it again."""

    def __init__(self, uri: str) -> None:
        """Check that there is a log.

        Args:
            uri: a local path or a URI, as in the planner's `--decisions`.

        Raises:
            Invalid: the location has no decision log.
        """
        try:
            self._files, self._root = file_system(uri)
            kind = self._files.get_file_info(f"{self._root}/reassignments").type
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Invalid(f"the decision log {uri!r} cannot be read: {error}. Fix: give another location") from None
        if kind is not fs.FileType.Directory:
            raise Invalid(f"{uri!r} holds no decision log. Fix: give the planner's --decisions")

    def reassignments(self) -> Sequence[ReassignmentRecord]:
        """Return the records of reassignments, including duplicates; columns that a file lacks are None."""
        records = []
        for row in self._rows("reassignments"):
            paths = [PathRecord(**_own_fields(path, PathRecord)) for path in row.get("paths") or ()]
            records.append(ReassignmentRecord(**_own_fields(row, ReassignmentRecord) | {"paths": paths}))
        return records

    def decisions(self, reassignment_id: str) -> Sequence[DecisionRecord]:
        """Return the decisions for one reassignment, including duplicates; columns that a file lacks are None."""
        rows = self._rows("decisions", [("reassignment_id", "=", reassignment_id)])
        return [DecisionRecord(**_own_fields(row, DecisionRecord)) for row in rows]

    def _rows(self, kind: str, filters: Any = None) -> Iterator[dict[str, Any]]:
        files = self._files.get_file_info(fs.FileSelector(f"{self._root}/{kind}", allow_not_found=True, recursive=True))
        for info in sorted(files, key=lambda info: str(info.path)):
            if not info.path.endswith(".parquet") or is_staged(info.path, self._root):
                continue
            try:
                table = pq.read_table(info.path, filesystem=self._files, filters=filters, partitioning=None)
            except (pa.ArrowException, OSError) as error:
                log.warning("%s cannot be read and is skipped: %s", info.path, error)
                continue
            yield from table.to_pylist()


def _own_fields(row: dict[str, Any], kind: type[PathRecord | ReassignmentRecord | DecisionRecord]) -> dict[str, Any]:
    """The values of a record's fields, without columns that a newer version added."""
    return {name: row.get(name) for name in kind.__dataclass_fields__}

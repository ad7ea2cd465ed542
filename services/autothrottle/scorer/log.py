"""The decision log as the scorer reads it: its files, their usable rows, and the recoveries that they describe.

Unreadable or unusable parts are left out and counted; everything else is used. A truncated or corrupt file, or one with
columns of another type, is skipped. A missing column is null. Additional columns, written by a newer version, are
ignored. Duplicate records count once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from autothrottle.adapters.decision_log.files import DECISIONS, REASSIGNMENTS, read_metadata, source_count
from autothrottle.core.errors import Invalid
from autothrottle.core.scoring.decision_records import SCHEMA_VERSION, ReassignmentStatus
from autothrottle.core.texts import first_line

KEY = ("cluster", "term", "cycle", "broker_id", "role", "time")
"""Columns that identify a decision; a row with a null in one of them is not usable."""

NEEDED = ("rate_decided", "reason", "min_rate", "schema_version", "interval_seconds")
"""Columns required for scoring a decision; a row with a null in one of them is not usable."""

_YEARS = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
"""Times outside are damage: Python has no name for many of them."""

# The files.

KINDS = ("decisions", "reassignments")
"""The folders of the log that the scorer reads."""

Folder = tuple[str, str]
"""(cluster, date)."""

_FILE = re.compile(r"/cluster=([^/]+)/date=([^/]+)/[^/]+\.parquet$")
"""The end of a file's path."""


class FileCounts(NamedTuple):
    """Numbers of files of one cluster and date, as planners wrote them."""

    decisions: int
    reassignments: int


def folder_of(path: str) -> Folder | None:
    """Return the cluster and date of a file; None if the path does not belong to a log.

    Args:
        path: path, URL-escaped or not.

    >>> folder_of("file:/log/decisions/cluster=my%20cluster/date=2026-11-05/a.parquet")
    ('my cluster', '2026-11-05')
    """
    match = _FILE.search(unquote(path))
    return (match[1], match[2]) if match else None


def file_counts(paths: Mapping[str, Iterable[str]]) -> Mapping[Folder, FileCounts]:
    """Return the file counts by cluster and date. A compacted file counts as the files that it replaced.

    So compaction makes no date new.

    Args:
        paths: kind -> paths of its files.
    """
    counted: dict[Folder, list[int]] = {}
    for index, kind in enumerate(KINDS):
        for path in paths[kind]:
            if (folder := folder_of(path)) is not None:
                counted.setdefault(folder, [0, 0])[index] += source_count(path)
    return {folder: FileCounts(*counts) for folder, counts in sorted(counted.items())}


# The rows of a file.


@dataclass(frozen=True, slots=True)
class FileReading:
    """What was read of one file."""

    path: str
    rows: int = 0
    incomplete_rows: int = 0
    """A required column is missing or null."""
    newer_rows: int = 0
    """Written by a newer version; used as far as this version knows the columns."""
    problem: str = ""
    """Why it cannot be read; "": it can."""
    is_gone: bool = False
    """Whether it was removed meanwhile, perhaps by compaction; the next run has to read its date again."""


_DECISION_COLUMNS = pa.schema([field for field in DECISIONS if field.name not in ("cycle_id", "shadow", "outcome")])


def read_decisions(path: str, file: pa.NativeFile) -> tuple[pa.Table | None, FileReading]:
    """Return the usable rows of a decision file, and what was read; None: the file cannot be read.

    Args:
        path: the path, for messages.
        file: the content.
    """
    try:
        table = _table(file, _DECISION_COLUMNS)
    except UNREADABLE as error:
        return None, unreadable(path, error)
    is_complete = _all_non_null(table, (*KEY, *NEEDED))
    is_newer = pc.sum(pc.greater(table["schema_version"], SCHEMA_VERSION)).as_py() or 0
    usable = table.filter(is_complete)
    return usable, FileReading(path, len(table), len(table) - len(usable), is_newer)


def read_reassignments(path: str, file: pa.NativeFile) -> tuple[list[dict[str, Any]], FileReading]:
    """Return the usable records of a file of reassignments, and what was read; none if the file cannot be read."""
    try:
        table = _table(file, REASSIGNMENTS)
    except UNREADABLE as error:
        return [], unreadable(path, error)
    needed = ("cluster", "term", "cycle", "reassignment_id", "status", "start")
    usable = table.filter(_all_non_null(table, needed))
    return usable.to_pylist(), FileReading(path, len(table), len(table) - len(usable))


UNREADABLE = (Invalid, pa.ArrowException, OSError, ValueError, NotImplementedError)
"""The errors of a file that cannot be read."""


def unreadable(path: str, error: Exception) -> FileReading:
    """Return the reading of a file that cannot be read."""
    return FileReading(path, problem=f"{path} cannot be read: {first_line(error)[:300]}")


def _table(file: pa.NativeFile, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema from a Parquet file; texts are dictionaries, missing columns are null.

    Raises:
        Invalid: a column has another type, or the file declares more than it can hold.
        pyarrow.ArrowException, OSError, ValueError, NotImplementedError: the file is damaged.
    """
    metadata = read_metadata(file)
    arrow = metadata.schema.to_arrow_schema()
    if len(set(arrow.names)) < len(arrow.names):
        raise Invalid("two of its columns have the same name")
    present = [field for field in schema if field.name in arrow.names]
    for field in present:
        if not _is_readable_as(arrow.field(field.name).type, field.type):
            stored = str(arrow.field(field.name).type)[:100]
            raise Invalid(f"its column {field.name} has the type {stored}, not {str(field.type)[:100]}")
    texts = [field.name for field in present if pa.types.is_string(field.type)]
    parquet = pq.ParquetFile(file, metadata=metadata, read_dictionary=texts)
    table = parquet.read([field.name for field in present])
    columns = {field.name: _column(table[field.name], field.type) for field in present}
    for name, column in columns.items():
        if pa.types.is_timestamp(column.type) and not _are_in_range(column):
            raise Invalid(f"its column {name} has a value outside the years {_YEARS[0].year} to {_YEARS[1].year}")
    result = pa.table(
        {field.name: columns.get(field.name, pa.nulls(len(table), _stored_type(field.type))) for field in schema}
    )
    result.validate(full=True)  # texts that are not UTF-8, or not in their dictionary
    return result


def _are_in_range(times: pa.ChunkedArray) -> bool:
    least, most = (pa.scalar(limit, times.type) for limit in _YEARS)
    inside = pc.and_(pc.greater_equal(times, least), pc.less(times, most))
    return bool(pc.all(inside.fill_null(True)).as_py())


def _is_readable_as(stored: pa.DataType, needed: pa.DataType) -> bool:
    """Return whether a stored type holds values of a type; records may have fewer or more fields.

    Other programs may have written the file again: pandas and Arrow give a column without values the type null, pandas
    stores whole numbers beside missing ones as floats, and Polars has large types.
    """
    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    if pa.types.is_null(stored):
        return True
    if pa.types.is_string(needed):
        return stored.id in _TEXTS
    if pa.types.is_floating(needed):
        return bool(pa.types.is_floating(stored))
    if pa.types.is_integer(needed):
        return bool(pa.types.is_integer(stored) or pa.types.is_floating(stored))
    if pa.types.is_list(needed):
        return stored.id in _LISTS and _is_readable_as(stored.value_type, needed.value_type)
    if stored.id != needed.id:
        return False
    if pa.types.is_struct(needed):
        names = [stored.field(index).name for index in range(stored.num_fields)]
        return len(set(names)) == len(names) and all(
            _is_readable_as(stored.field(field.name).type, field.type) for field in needed if field.name in names
        )
    return True


_TEXTS = (pa.string().id, pa.large_string().id, pa.string_view().id)
_LISTS = (pa.list_(pa.null()).id, pa.large_list(pa.null()).id)


def _stored_type(needed: pa.DataType) -> pa.DataType:
    return pa.dictionary(pa.int32(), pa.string()) if pa.types.is_string(needed) else needed


def _column(column: pa.ChunkedArray, needed: pa.DataType) -> pa.ChunkedArray:
    """Return a column in the type of this version; the columns of nested records may be fewer or more.

    Raises:
        pyarrow.ArrowInvalid: a float is not a whole number, and the type has only those.
    """
    if pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), _stored_type(needed))])
    if pa.types.is_floating(column.type) and pa.types.is_integer(needed):
        column = pc.if_else(pc.is_nan(column), None, column)
    if not pa.types.is_string(needed):
        return column if column.type == needed or pa.types.is_nested(needed) else column.cast(needed)
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    return column.cast(_stored_type(needed))


def with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema; those that another version lacks are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _all_non_null(table: pa.Table, names: Iterable[str]) -> pa.ChunkedArray:
    return reduce(pc.and_, (table[name].is_valid() for name in names))


# What was read, by folder.

QUALITY = pa.schema(
    [
        *((name, pa.int64()) for name in ("files", "unreadable_files", "reassignment_files")),
        *((name, pa.int64()) for name in ("unreadable_reassignment_files", "rows", "incomplete_rows", "newer_rows")),
        ("ratio", pa.float64()),
        *((name, pa.string()) for name in ("cluster", "date")),
    ]
)
"""Columns of `quality`. `files` and `unreadable_files` count decision files; `rows`, `incomplete_rows` and
`newer_rows` are the counts of `FileReading` for them; `ratio` is the reference share of the bound."""


def quality(
    files: Mapping[Folder, FileCounts],
    decisions: Iterable[FileReading],
    ratio: float,
    reassignments: Iterable[FileReading] = (),
) -> pa.Table:
    """Return one row per cluster and date: what was read and what was not; columns: `QUALITY`.

    Args:
        files: file counts.
        decisions: what was read of the decision files; files of other folders are ignored.
        ratio: reference share of the scores.
        reassignments: the same of the files of reassignments.
    """
    rows: dict[Folder, dict[str, Any]] = {
        folder: {
            "cluster": folder[0],
            "date": folder[1],
            "files": counts.decisions,
            "unreadable_files": counts.decisions,
            "reassignment_files": counts.reassignments,
            "unreadable_reassignment_files": counts.reassignments,
            **dict.fromkeys(("rows", "incomplete_rows", "newer_rows"), 0),
            "ratio": ratio,
        }
        for folder, counts in files.items()
    }
    for name, readings in (("unreadable_files", decisions), ("unreadable_reassignment_files", reassignments)):
        for reading in readings:
            row = rows.get(folder_of(reading.path) or ("", ""))
            if row is not None and reading.is_gone:
                row["files"] -= source_count(reading.path)
            if row is None or (reading.problem and not reading.is_gone):
                continue
            row[name] -= source_count(reading.path)
            if name == "unreadable_files":
                row["rows"] += reading.rows
                row["incomplete_rows"] += reading.incomplete_rows
                row["newer_rows"] += reading.newer_rows
    return pa.Table.from_pylist(list(rows.values()), schema=QUALITY)


# The recoveries.


@dataclass(frozen=True, slots=True)
class Recovery:
    """The time in which something was being reassigned, through all changes of the leader."""

    cluster: str
    recovery_id: str
    """The `reassignment_id` of its first record."""
    reassignment_ids: frozenset[str]
    start: datetime
    finish: datetime | None
    """None while ongoing."""
    status: str
    topics: tuple[str, ...]
    partitions: int | None
    bytes: int | None
    """Bytes copied; None, as for `paths`: unknown."""
    paths: tuple[Mapping[str, Any], ...]
    """`PathRecord` as mappings."""
    terms: int
    """Number of terms that recorded it."""
    cycles: int
    """Number of cycles, as far as the records tell."""

    @property
    def date(self) -> str:
        """Date of the start, `YYYY-MM-DD` in UTC like the folder names."""
        return f"{self.start.astimezone(UTC):%Y-%m-%d}"

    @property
    def link_side_bytes(self) -> Mapping[tuple[int, int], tuple[float, float]]:
        """(broker id, 0 for the leader and 1 for the follower) -> bytes copied and produced."""
        total: dict[tuple[int, int], tuple[float, float]] = {}
        for path in self.paths:
            for role, broker_id in enumerate((path.get("leader"), path.get("follower"))):
                if broker_id is not None:
                    landed, grown = total.get((broker_id, role), (0.0, 0.0))
                    total[broker_id, role] = (
                        landed + float(path.get("bytes_landed") or 0),
                        grown + float(path.get("bytes_grown") or 0),
                    )
        return total


def recoveries(records: Iterable[Mapping[str, Any]]) -> list[Recovery]:
    """Return the recoveries that records of reassignments describe.

    A recovery continues across changes of leader: a term that found an ongoing reassignment continues the recovery of
    the previous term. Terms are ordered by number, because the clocks of two planners may differ.

    Args:
        records: rows with the fields of `ReassignmentRecord`, in any order, duplicates included.
    """
    distinct = {(r["cluster"], r["term"], r["cycle"], r["status"]): r for r in records}
    in_order = [distinct[key] for key in sorted(distinct)]
    return [
        _recovery(group)
        for _, of_cluster in groupby(in_order, key=lambda record: record["cluster"])
        for group in _continued(of_cluster)
    ]


def _continued(records: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Group the records of one cluster by recovery. Records before the first opening belong to none."""
    group: list[Mapping[str, Any]] = []
    was_moving = False
    for record in records:
        is_moving = record["status"] == ReassignmentStatus.MOVING.value
        if is_moving and not (was_moving and record["resumed"]):
            if group:
                yield group
            group = [record]
        elif group:
            group.append(record)
        was_moving = is_moving
    if group:
        yield group


def _recovery(records: Sequence[Mapping[str, Any]]) -> Recovery:
    first, newest = records[0], max(records, key=lambda record: (record["term"], record["cycle"]))
    partitions = [record["partitions"] for record in records if record["partitions"] is not None]
    cycles: dict[int, list[int]] = {}
    for record in records:
        cycles.setdefault(record["term"], []).append(record["cycle"])
    return Recovery(
        first["cluster"],
        first["reassignment_id"],
        frozenset(record["reassignment_id"] for record in records),
        min(record["start"] for record in records),
        newest["finish"],
        newest["status"],
        tuple(newest["topics"] or ()),
        max(partitions, default=None),
        newest["bytes_landed"],
        tuple(newest["paths"] or ()),
        len(cycles),
        sum(max(of_term) - min(of_term) + 1 for of_term in cycles.values()),
    )

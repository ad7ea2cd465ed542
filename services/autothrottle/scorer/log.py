"""Reads the decision log. Unreadable or unusable parts are left out and counted; everything else is used.

A truncated or corrupt file, or one with columns of another type, is skipped. A missing column is null. Additional
columns, written by a newer version, are ignored. Duplicate records count once.
"""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from autothrottle.core.scoring.decision_records import (
    SCHEMA_VERSION,
    DecisionRecord,
    ReassignmentRecord,
    ReassignmentStatus,
)

KEY = ("cluster", "term", "cycle", "broker_id", "role", "time")
"""Columns that identify a decision; a row with a null in one of them is not usable."""

NEEDED = ("rate_decided", "reason", "min_rate", "schema_version", "interval_seconds")
"""Columns required for scoring a decision; a row with a null in one of them is not usable."""

# The schema, derived from the fields of the records.

_PLAIN: dict[type, T.DataType] = {
    str: T.StringType(),
    int: T.LongType(),
    float: T.DoubleType(),
    bool: T.BooleanType(),
    datetime: T.TimestampType(),
}

_DATE = T.StructField("date", T.StringType())
"""`YYYY-MM-DD`: the name of the file's folder."""


def schema_of(record: type) -> T.StructType:
    """Return the schema of a record type; all columns are nullable, because older files lack newer columns."""
    hints = get_type_hints(record)
    return T.StructType([T.StructField(field.name, _type(hints[field.name])) for field in fields(record)])


def _type(hint: Any) -> T.DataType:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = [argument for argument in get_args(hint) if argument is not type(None)]
    if get_origin(hint) is list:
        return T.ArrayType(_type(get_args(hint)[0]))
    return schema_of(hint) if is_dataclass(hint) and isinstance(hint, type) else _PLAIN[hint]


DECISIONS = T.StructType([*schema_of(DecisionRecord).fields, _DATE])
REASSIGNMENTS = T.StructType([*schema_of(ReassignmentRecord).fields, _DATE])


# The files.

Folder = tuple[str, str]
"""(cluster, date)."""

QUALITY = (
    "cluster string, date string, files long, unreadable_files long, reassignment_files long, "
    "rows long, incomplete_rows long, newer_rows long, ratio double"
)
"""Columns of `quality`. `files` and `unreadable_files` count decision files; `rows`, `incomplete_rows` and
`newer_rows` are the counts of `rows_by_file`; `ratio` is the reference share of the bound."""

_FILE = re.compile(r"/cluster=([^/]+)/date=([^/]+)/[^/]+$")
"""The end of a file's path."""


class FileCounts(NamedTuple):
    """Numbers of files of one cluster and date."""

    decisions: int
    reassignments: int


@dataclass(frozen=True, slots=True)
class DecisionLogReader:
    """Reader of the decision log at one location."""

    spark: SparkSession
    uri: str
    """Hadoop path without a trailing slash."""

    def files(self) -> Mapping[Folder, FileCounts]:
        """Return the file counts by cluster and date. Lists files without opening them."""
        counted: dict[Folder, list[int]] = {}
        for index, (kind, schema) in enumerate((("decisions", DECISIONS), ("reassignments", REASSIGNMENTS))):
            for path in self._table(kind, schema).inputFiles():
                if (folder := folder_of(path)) is not None:
                    counted.setdefault(folder, [0, 0])[index] += 1
        return {folder: FileCounts(*counts) for folder, counts in sorted(counted.items())}

    def decisions(self, dates: Collection[str] | None = None) -> DataFrame:
        """Return one row per decision record, including duplicates.

        Columns: the fields of `DecisionRecord`, `date`, and `file` (full path).

        Args:
            dates: folders to read, `YYYY-MM-DD`; None: all.
        """
        records = self._table("decisions", DECISIONS)
        if dates is not None:
            records = records.where(F.col("date").isin(*sorted(dates)))
        return records.withColumn("file", F.col("_metadata.file_path"))

    def reassignments(self) -> DataFrame:
        """Return one row per reassignment record without duplicates; columns: the fields of `ReassignmentRecord`."""
        # There are few rows: in one partition, later steps need no shuffle.
        records = self._table("reassignments", REASSIGNMENTS).coalesce(1)
        records = records.dropDuplicates(["cluster", "term", "cycle", "status"])
        return records.where(all_non_null(("cluster", "term", "cycle", "reassignment_id", "status", "start")))

    def _table(self, kind: str, schema: T.StructType) -> DataFrame:
        reader = self.spark.read.schema(schema).option("ignoreCorruptFiles", True).option("ignoreMissingFiles", True)
        try:
            return reader.option("pathGlobFilter", "*.parquet").parquet(f"{self.uri}/{kind}")
        except AnalysisException:  # no files yet
            return self.spark.createDataFrame([], schema)


def usable(decisions: DataFrame) -> DataFrame:
    """Return the rows that can be scored. Keeps grain and columns."""
    return decisions.where(all_non_null((*KEY, *NEEDED)))


def rows_by_file(decisions: DataFrame) -> DataFrame:
    """Return one row per readable file.

    Columns: `file`, `rows`, `incomplete_rows` (a required column is missing or null), `newer_rows` (written by a newer
    version; used as far as this version knows the columns).

    Args:
        decisions: result of `DecisionLogReader.decisions`.
    """
    return decisions.groupBy("file").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(~all_non_null((*KEY, *NEEDED))).alias("incomplete_rows"),
        F.count_if(F.col("schema_version") > SCHEMA_VERSION).alias("newer_rows"),
    )


def quality(files: Mapping[Folder, FileCounts], rows: Iterable[Row], ratio: float) -> list[tuple[str | float, ...]]:
    """Return one row per cluster and date: what was read and what was not; columns: `QUALITY`.

    Args:
        files: file counts.
        read: rows of `rows_by_file` for the same dates.
        ratio: reference share of the scores.
    """
    counts_of_folders: dict[Folder, list[int]] = {folder: [0, 0, 0, 0] for folder in files}
    for row in rows:
        if (folder := folder_of(row["file"])) in counts_of_folders:
            counts = (1, row["rows"], row["incomplete_rows"], row["newer_rows"])
            counts_of_folders[folder] = [sum(pair) for pair in zip(counts_of_folders[folder], counts, strict=True)]
    table: list[tuple[str | float, ...]] = []
    for folder, (readable, *row_counts) in counts_of_folders.items():
        decisions, reassignments = files[folder]
        table.append((*folder, decisions, decisions - readable, reassignments, *row_counts, ratio))
    return table


def folder_of(path: str) -> Folder | None:
    """Return the cluster and date of a file; None if the path does not belong to a log.

    Args:
        path: URL-escaped path, as reported by Spark.

    >>> folder_of("file:/log/decisions/cluster=my%20cluster/date=2026-11-05/a.parquet")
    ('my cluster', '2026-11-05')
    """
    match = _FILE.search(unquote(path))
    return (match[1], match[2]) if match else None


def recoveries(reassignments: DataFrame) -> DataFrame:
    """Return one row per reassignment record, with its recovery.

    A recovery continues across changes of leader: a term that found an ongoing reassignment continues the recovery of
    the previous term. Terms are ordered by number, because the clocks of two planners may differ.

    Columns: `cluster`, `reassignment_id`, `recovery_id` (the `reassignment_id` of its first record), `start`, `finish`
    (null while ongoing), `status`, `topics`, `partitions`, `bytes`, `bytes_left` and `paths` (null: unknown), `terms`
    (number of terms that recorded it).
    """
    in_order = Window.partitionBy("cluster").orderBy("term", "cycle", "status")
    of_recovery = Window.partitionBy("recovery_id")
    moving = F.col("status") == ReassignmentStatus.MOVING.value
    went_on = (F.lag("status").over(in_order) == ReassignmentStatus.MOVING.value) & F.col("resumed")
    opens = moving & ~F.coalesce(went_on, F.lit(False))
    newest = F.struct("term", "cycle")
    return (
        reassignments.withColumn("opening", F.when(opens, F.col("reassignment_id")))
        .withColumn("recovery_id", F.last("opening", ignorenulls=True).over(in_order))
        .where(F.col("recovery_id").isNotNull())
        .select(
            "cluster",
            "reassignment_id",
            "recovery_id",
            F.min("start").over(of_recovery).alias("start"),
            F.max_by("finish", newest).over(of_recovery).alias("finish"),
            F.max_by("status", newest).over(of_recovery).alias("status"),
            F.max_by("topics", newest).over(of_recovery).alias("topics"),
            F.max("partitions").over(of_recovery).alias("partitions"),
            F.max_by("bytes_landed", newest).over(of_recovery).alias("bytes"),
            F.max_by("bytes_left", newest).over(of_recovery).alias("bytes_left"),
            F.max_by("paths", newest).over(of_recovery).alias("paths"),
            F.size(F.collect_set("term").over(of_recovery)).alias("terms"),
        )
        .dropDuplicates(["reassignment_id"])
    )


def all_non_null(columns: tuple[str, ...]) -> Column:
    """Whether all of these columns are non-null."""
    is_non_null = F.lit(True)
    for column in columns:
        is_non_null &= F.col(column).isNotNull()
    return is_non_null

"""Reading the decision log: what cannot be read or used is left out and counted, and all else is kept.

A file that is cut off or garbage, or whose columns changed their types, is skipped; a column that it lacks is null; one
that it has too many (a newer version wrote it) is not looked at; what is there twice counts once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from autothrottle.core.decisions import SCHEMA_VERSION, ReassignmentStatus
from autothrottle.scorer.schema import DECISIONS, REASSIGNMENTS

KEY = ("cluster", "term", "cycle", "broker_id", "role", "time")
"""Without one of these a row says nothing."""

NEEDED = ("rate_decided", "reason", "min_rate", "schema_version", "interval_seconds")
"""Without one of these a row is no decision that could be scored."""

Folder = tuple[str, str]
"""Cluster and date."""

QUALITY = (
    "cluster string, date string, files long, unreadable_files long, reassignment_files long, "
    "rows long, incomplete_rows long, newer_rows long, ratio double"
)
"""The columns of `quality`: `files` and `unreadable_files` are those of decisions, `rows` and the others as
`rows_by_file` counts them; `ratio` is the share that the bound was worked out by."""

_FILE = re.compile(r"/cluster=([^/]+)/date=([^/]+)/[^/]+$")
"""What a path ends with."""


@dataclass(frozen=True, slots=True)
class FileCounts:
    """How many files there are of one cluster and date."""

    decisions: int
    reassignments: int


@dataclass(frozen=True, slots=True)
class DecisionLogReader:
    """The log at one place."""

    spark: SparkSession
    uri: str
    """As Hadoop knows it, without a trailing slash."""

    def files(self) -> Mapping[Folder, FileCounts]:
        """Return what is there by cluster and date; files are listed and not opened."""
        counted: dict[Folder, list[int]] = {}
        for index, (kind, schema) in enumerate((("decisions", DECISIONS), ("reassignments", REASSIGNMENTS))):
            for path in self._read(kind, schema).inputFiles():
                if (folder := folder_of(path)) is not None:
                    counted.setdefault(folder, [0, 0])[index] += 1
        return {folder: FileCounts(*counts) for folder, counts in sorted(counted.items())}

    def decisions(self, dates: Collection[str] | None = None) -> DataFrame:
        """Return one row per record of a decision, copies included.

        Columns: the fields of `DecisionRecord`, `date`, and `file` (its whole path).

        Args:
            dates: `YYYY-MM-DD` of the folders to read; None: all.
        """
        found = self._read("decisions", DECISIONS)
        if dates is not None:
            found = found.where(F.col("date").isin(*sorted(dates)))
        return found.withColumn("file", F.col("_metadata.file_path"))

    def reassignments(self) -> DataFrame:
        """Return one row per record of a reassignment, copies left out; columns: the fields of `ReassignmentRecord`."""
        # They are few: in one partition nothing of what follows has to be sent around.
        found = self._read("reassignments", REASSIGNMENTS).coalesce(1)
        found = found.dropDuplicates(["cluster", "term", "cycle", "status"])
        return found.where(_known(("cluster", "term", "cycle", "reassignment_id", "status", "start")))

    def _read(self, kind: str, schema: StructType) -> DataFrame:
        reader = self.spark.read.schema(schema).option("ignoreCorruptFiles", True).option("ignoreMissingFiles", True)
        try:
            return reader.option("pathGlobFilter", "*.parquet").parquet(f"{self.uri}/{kind}")
        except AnalysisException:  # there is none yet
            return self.spark.createDataFrame([], schema)


def usable(decisions: DataFrame) -> DataFrame:
    """Return the rows that can be scored; grain and columns stay."""
    return decisions.where(_known((*KEY, *NEEDED)))


def rows_by_file(decisions: DataFrame) -> DataFrame:
    """Return one row per file that could be read.

    Columns: `file`, `rows`, `incomplete_rows` (a needed column is missing or null), `newer_rows` (written by a newer
    version; they count as far as they are known).

    Args:
        decisions: as `DecisionLogReader.decisions` returns them.
    """
    return decisions.groupBy("file").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(~_known((*KEY, *NEEDED))).alias("incomplete_rows"),
        F.count_if(F.col("schema_version") > SCHEMA_VERSION).alias("newer_rows"),
    )


def quality(files: Mapping[Folder, FileCounts], read: Iterable[Row], ratio: float) -> list[tuple[str | float, ...]]:
    """Return one row per cluster and date: what was read of it, and what was not; `QUALITY` are its columns.

    Args:
        files: what is there.
        read: rows of `rows_by_file`, of the same dates.
        ratio: the reference share that they are scored by.
    """
    found: dict[Folder, list[int]] = {folder: [0, 0, 0, 0] for folder in files}
    for row in read:
        if (folder := folder_of(row["file"])) in found:
            counts = (1, row["rows"], row["incomplete_rows"], row["newer_rows"])
            found[folder] = [sum(pair) for pair in zip(found[folder], counts, strict=True)]
    return [
        (
            *folder,
            files[folder].decisions,
            files[folder].decisions - readable,
            files[folder].reassignments,
            *counts,
            ratio,
        )
        for folder, (readable, *counts) in found.items()
    ]


def folder_of(path: str) -> Folder | None:
    """Return the cluster and the date of a file; None where it is not one of a log.

    Args:
        path: as Spark tells it, with escapes.

    >>> folder_of("file:/log/decisions/cluster=my%20cluster/date=2026-11-05/a.parquet")
    ('my cluster', '2026-11-05')
    """
    found = _FILE.search(unquote(path))
    return (found[1], found[2]) if found else None


def recoveries(reassignments: DataFrame) -> DataFrame:
    """Return one row per record of a reassignment, with the recovery that it belongs to.

    A recovery goes on through changes of the leader: a term that found something moving has gone on with what the term
    before it saw. Terms are ordered by their number, since the clocks of two planners may differ.

    Columns: `cluster`, `reassignment_id`, `recovery_id` (the `reassignment_id` of its first record), `start`, `finish`
    (null while it moves), `status`, `topics`, `partitions`, `bytes`, `bytes_left` and `paths` (null: unknown), `terms`
    (how many saw it).
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


def _known(columns: tuple[str, ...]) -> Column:
    """Whether none of these is null."""
    known = F.lit(True)
    for column in columns:
        known &= F.col(column).isNotNull()
    return known

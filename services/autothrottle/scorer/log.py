"""Reading the decision log: what cannot be read or used is left out and counted, and all else is kept.

A file that is cut off or garbage, or whose columns changed their types, is skipped; a column that it lacks is null; one
that it has too many (a newer version wrote it) is not looked at; what is there twice counts once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from autothrottle.core.decisions import SCHEMA_VERSION, ReassignmentStatus
from autothrottle.scorer.schema import DECISIONS, REASSIGNMENTS

KEY = ("cluster", "term", "cycle", "broker_id", "role", "time")
"""Without one of these a row says nothing."""

NEEDED = ("rate_decided", "reason", "min_rate", "schema_version", "interval_seconds")
"""Without one of these a row is no decision that could be scored."""

_FILE = r"([^/]+)/cluster=([^/]+)/date=([^/]+)/[^/]+$"
"""What a path ends with: kind, cluster, date, name."""


@dataclass(frozen=True, slots=True)
class DecisionLogReader:
    """The log at one place."""

    spark: SparkSession
    uri: str
    """As Hadoop knows it, without a trailing slash."""

    def files(self) -> DataFrame:
        """Return one row per cluster and date, with the files that are there.

        Columns: `cluster`, `date`, `files` (of decisions), `reassignment_files`.
        """
        reader = self.spark.read.format("binaryFile").option("recursiveFileLookup", True)
        found = reader.option("pathGlobFilter", "*.parquet").load(self.uri)
        of_decisions = F.regexp_extract("path", _FILE, 1) == "decisions"
        return (
            found.where(F.regexp_extract("path", _FILE, 1) != "")
            .groupBy(*_folder("path"))
            .agg(F.count_if(of_decisions).alias("files"), F.count_if(~of_decisions).alias("reassignment_files"))
        )

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
        found = self._read("reassignments", REASSIGNMENTS).dropDuplicates(["cluster", "term", "cycle", "status"])
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


def quality(decisions: DataFrame, files: DataFrame) -> DataFrame:
    """Return one row per cluster and date: what was read of it, and what was not.

    Columns: `cluster`, `date`, `files` and `unreadable_files` (of decisions), `reassignment_files`, `rows`,
    `incomplete_rows` (a needed column is missing or null), `newer_rows` (written by a newer version; they count as far
    as they are known).

    Args:
        decisions: as `DecisionLogReader.decisions` returns them.
        files: as `DecisionLogReader.files` does, of the same dates.
    """
    counts = {
        "rows": F.lit(1),
        "incomplete_rows": (~_known((*KEY, *NEEDED))).cast("int"),
        "newer_rows": F.coalesce(F.col("schema_version") > SCHEMA_VERSION, F.lit(False)).cast("int"),
    }
    by_file = decisions.groupBy("file").agg(*(F.sum(value).alias(name) for name, value in counts.items()))
    by_date = by_file.groupBy(*_folder("file")).agg(
        F.count(F.lit(1)).alias("readable_files"), *(F.sum(name).alias(name) for name in counts)
    )
    unreadable = F.col("files") - F.coalesce("readable_files", F.lit(0))
    return files.join(F.broadcast(by_date), ["cluster", "date"], "left").select(
        *("cluster", "date", "files", unreadable.alias("unreadable_files"), "reassignment_files"),
        *(F.coalesce(name, F.lit(0)).alias(name) for name in counts),
    )


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


def _folder(path: str) -> tuple[Column, Column]:
    """The cluster and the date of a file."""
    return F.regexp_extract(path, _FILE, 2).alias("cluster"), F.regexp_extract(path, _FILE, 3).alias("date")


def _known(columns: tuple[str, ...]) -> Column:
    """Whether none of these is null."""
    known = F.lit(True)
    for column in columns:
        known &= F.col(column).isNotNull()
    return known

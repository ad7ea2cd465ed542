"""One run of the scorer: from the decision log to tables of scores, reading only what is new since the last run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.score import REFERENCE_RATIO
from autothrottle.scorer import scores
from autothrottle.scorer.log import (
    QUALITY,
    DecisionLogReader,
    FileCounts,
    Folder,
    quality,
    recoveries,
    rows_by_file,
    usable,
)
from autothrottle.scorer.session import remove
from autothrottle.scorer.stretches import in_recoveries, port_bytes, stretches, with_bound, with_causes

TABLES = ("recoveries", "ports", "timeline", "quality")
"""What a run writes, as Parquet partitioned by cluster and date."""


@dataclass(frozen=True, slots=True)
class ScoreSettings:
    """What a run is asked for."""

    decisions: str
    """Where the log is."""
    out: str
    """Where the results go."""
    ratio: float = REFERENCE_RATIO
    """The share of what clients leave that the bound gives to replication, in (0, 1]."""
    anew: bool = False
    """Whether everything is scored again."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run did."""

    dates_read: tuple[str, ...] = ()
    """Dates of decisions that were read: the new ones, and those that their recoveries began on."""
    copies: int = 0
    """Records that were there twice."""
    tables: dict[str, DataFrame] = field(default_factory=dict)
    """Name -> the whole table, of all runs."""


def score(spark: SparkSession, settings: ScoreSettings, tell: Callable[[str], None] = lambda line: None) -> Run:
    """Score what is new in a decision log, and return the tables of all runs.

    Args:
        spark: the session.
        settings: what is asked for, both places as Hadoop knows them.
        tell: is told what is being done, a sentence each.

    Raises:
        Missing: there is no decision log.
        Invalid: the ratio is out of its range.
    """
    if not 0 < settings.ratio <= 1:
        raise Invalid(f"reference ratio is {settings.ratio}; it must be > 0 and <= 1; give 0.9, for example")
    reader = DecisionLogReader(spark, settings.decisions)
    files = reader.files()
    if not files:
        raise Missing(
            f"there is no decision log in {reader.uri}; start a planner with --decisions, or name another place"
        )
    # An older version's tables lack a column.
    known = None if settings.anew else _table(spark, settings.out, "quality", QUALITY)
    new = _new_dates(files, known, settings.ratio)
    if not new:
        tell("nothing is new since the last run")
        return Run(tables=_tables(spark, settings.out))
    tell(f"{len(new)} dates are new: {new[0]} to {new[-1]}")
    log = recoveries(reader.reassignments()).cache()
    outdated = _outdated(_table(spark, settings.out, "recoveries"), log, files)
    dates, touched = _concerned(log, {*new, *(day for _, day in outdated)})
    tell(f"reading {len(dates)} dates of decisions")
    fresh = {folder: counts for folder, counts in files.items() if folder[1] in new}
    counted = quality(fresh, rows_by_file(reader.decisions(new)).collect(), settings.ratio)
    read = spark.createDataFrame(counted, QUALITY)
    decisions = reader.decisions(sorted(dates)).transform(usable).transform(in_recoveries, touched)
    tell("scoring ports and recoveries")
    ports = _stretches(decisions, touched, settings.ratio).transform(scores.ports, touched).transform(_by_date).cache()
    _write(ports, settings.out, "ports")
    scored = ports.coalesce(1).transform(scores.recovery_scores, touched).cache()
    _write(scored, settings.out, "recoveries")
    tell("looking for the worst decisions")
    slowest = decisions.transform(scores.of_bottlenecks, scored)
    timeline = _stretches(slowest, touched, settings.ratio).transform(_timeline)
    _write(timeline.transform(_by_date), settings.out, "timeline")
    dates_with_scores = {(row["cluster"], row["date"]) for row in scored.select("cluster", "date").collect()}
    for cluster, day in outdated - dates_with_scores:
        for table in ("ports", "recoveries", "timeline"):
            remove(spark, f"{settings.out}/{table}/cluster={cluster}/date={day}")
    # The last one: what stands there is what the next run takes for done.
    _write(read.coalesce(1), settings.out, "quality")
    copies = sum(row["copies"] for row in scored.select("copies").collect())
    for kept in (log, ports, scored):
        kept.unpersist()
    schemas = {"quality": read, "ports": ports, "recoveries": scored, "timeline": timeline}
    return Run(tuple(sorted(dates)), copies, _tables(spark, settings.out, {k: v.schema for k, v in schemas.items()}))


def _stretches(decisions: DataFrame, log: DataFrame, ratio: float) -> DataFrame:
    """Decisions of recoveries as stretches with causes and bound."""
    return decisions.transform(stretches, ratio).transform(with_causes, ratio).transform(with_bound, port_bytes(log))


def _timeline(found: DataFrame) -> DataFrame:
    """Return one row per decision for the slowest port of a recovery, with what reports and counterfactuals need."""
    return found.withColumn("date", F.date_format("start", "yyyy-MM-dd")).select(
        *("cluster", "date", "recovery_id", "cycle_id", "trace_id", "time", "term", "cycle", "broker_id", "role"),
        *("instance_type", "reason", "seconds", "capacity", "client", "forecast", "headroom", "standing", "decided"),
        *("applied", "achieved", "budget", "used", "min_rate", "max_ratio", "change_threshold", "growth", "free"),
        "interval_seconds",
        *("amount", "at", "reach", "before", "duration", "policy", *scores.LOST),
    )


def _new_dates(files: Mapping[Folder, FileCounts], known: DataFrame | None, ratio: float) -> list[str]:
    """The dates with other files than at the last run, or scored by another ratio then.

    A reassignment's end may be there later than its decisions.
    """
    columns = ("cluster", "date", "files", "reassignment_files")
    by_this = known.where(F.col("ratio") == ratio) if known is not None else None
    counted = {tuple(row) for row in by_this.select(*columns).collect()} if by_this is not None else set()
    now = ((*folder, counts.decisions, counts.reassignments) for folder, counts in files.items())
    return sorted({row[1] for row in now if row not in counted})


def _outdated(scored: DataFrame | None, log: DataFrame, files: Collection[Folder]) -> set[Folder]:
    """Where there are scores of a recovery that is none any more: what came late has made it a part of an earlier one.

    Args:
        scored: the recoveries of all runs so far; None: there was none.
        log: as `recoveries` returns it.
        files: clusters and dates of which there still is a log.
    """
    if scored is None:
        return set()
    known = {row["recovery_id"] for row in log.select("recovery_id").distinct().collect()}
    rows = scored.select("recovery_id", "cluster", "date").collect()
    return {(cluster, day) for name, cluster, day in rows if name not in known and (cluster, day) in files}


def _concerned(log: DataFrame, new: Collection[str]) -> tuple[set[str], DataFrame]:
    """The dates to read, and the recoveries to score: those of new dates, and whatever began on the same dates."""
    # As folders are named, in UTC: a time that is collected is in the zone of the driver's host.
    ends = (F.date_format(end, "yyyy-MM-dd") for end in (F.col("start"), F.coalesce("finish", "start")))
    spans = [
        (name, date.fromisoformat(start), date.fromisoformat(finish))
        for name, start, finish in log.select("recovery_id", *ends).collect()
    ]
    fresh = {date.fromisoformat(day) for day in new}
    begun = {start for _, start, finish in spans if any(start <= day <= finish for day in fresh)}
    chosen = [(name, start, finish) for name, start, finish in spans if start in begun]
    dates = set(new).union(*(_days(start, finish) for _, start, finish in chosen))
    names = [name for name, _, _ in chosen]
    return dates, log if len(names) == len(spans) else log.where(F.col("recovery_id").isin(*names))


def _days(start: date, finish: date) -> set[str]:
    return {(start + timedelta(days=n)).isoformat() for n in range((finish - start).days + 1)}


def _by_date(found: DataFrame) -> DataFrame:
    """The same rows, those of a cluster and date together: else every task writes a file for each date."""
    return found.repartition(found.sparkSession.sparkContext.defaultParallelism, "cluster", "date")


def _write(found: DataFrame, out: str, table: str) -> None:
    """Write a part of a table, in place of what was there of the same clusters and dates."""
    found.write.mode("overwrite").partitionBy("cluster", "date").parquet(f"{out}/{table}")


def _table(spark: SparkSession, out: str, table: str, schema: StructType | str | None = None) -> DataFrame | None:
    """A table of all runs; where its columns are not given they are looked for in the files."""
    try:
        return (spark.read.schema(schema) if schema else spark.read).parquet(f"{out}/{table}")
    except AnalysisException:
        return None


def _tables(spark: SparkSession, out: str, schemas: Mapping[str, StructType] | None = None) -> dict[str, DataFrame]:
    found = {name: _table(spark, out, name, (schemas or {}).get(name)) for name in TABLES}
    return {name: table for name, table in found.items() if table is not None}

"""One run of the scorer: from the decision log to tables of scores. Reads only data added since the last run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.scoring.score import REFERENCE_RATIO
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
from autothrottle.scorer.stretches import in_recoveries, link_side_bytes, stretches, with_bound, with_causes

TABLES = ("recoveries", "ports", "timeline", "quality")
"""Tables that a run writes, as Parquet partitioned by cluster and date."""


@dataclass(frozen=True, slots=True)
class ScoreSettings:
    """Input of a run."""

    decisions: str
    """Location of the decision log."""
    out: str
    """Location of the results."""
    ratio: float = REFERENCE_RATIO
    """Share of the capacity left by clients that the bound gives to replication, in (0, 1]."""
    anew: bool = False
    """True: score the whole log again."""


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a run."""

    dates_read: tuple[str, ...] = ()
    """Dates whose decisions were read: new dates, and all dates of the recoveries that they belong to."""
    tables: dict[str, DataFrame] = field(default_factory=dict)
    """Name -> complete table of all runs."""


def score(spark: SparkSession, settings: ScoreSettings, notify: Callable[[str], None] = lambda line: None) -> Run:
    """Score the new part of a decision log, and return the tables of all runs.

    Args:
        spark: the session.
        settings: input of the run, with Hadoop paths.
        notify: receives a message at each step.

    Raises:
        Missing: there is no decision log.
        Invalid: the ratio is out of range.
    """
    if not 0 < settings.ratio <= 1:
        raise Invalid(f"reference ratio is {settings.ratio}; it must be > 0 and <= 1; give 0.9, for example")
    reader = DecisionLogReader(spark, settings.decisions)
    files = reader.files()
    if not files:
        raise Missing(
            f"there is no decision log in {reader.uri}; start a planner with --decisions, or name another place"
        )
    # Tables of an older version lack a column, hence the explicit schema.
    scored_quality = None if settings.anew else _table(spark, settings.out, "quality", QUALITY)
    new = _new_dates(files, scored_quality, settings.ratio)
    if not new:
        notify("nothing is new since the last run")
        return Run(tables=_tables(spark, settings.out))
    notify(f"{len(new)} dates are new: {new[0]} to {new[-1]}")
    log = recoveries(reader.reassignments()).cache()
    outdated = _outdated(_table(spark, settings.out, "recoveries"), log, files)
    dates, touched = _affected(log, {*new, *(day for _, day in outdated)})
    notify(f"reading {len(dates)} dates of decisions")
    fresh = {folder: counts for folder, counts in files.items() if folder[1] in new}
    counted = quality(fresh, rows_by_file(reader.decisions(new)).collect(), settings.ratio)
    new_quality = spark.createDataFrame(counted, QUALITY)
    decisions = reader.decisions(sorted(dates)).transform(usable).transform(in_recoveries, touched)
    notify("scoring link sides and recoveries")
    sides = _stretches(decisions, touched, settings.ratio).transform(scores.sides, touched).transform(_by_date).cache()
    _write(sides, settings.out, "ports")
    scored = sides.coalesce(1).transform(scores.recovery_scores, touched).cache()
    _write(scored, settings.out, "recoveries")
    notify("finding the worst decisions")
    slowest = decisions.transform(scores.of_bottlenecks, scored)
    timeline = _stretches(slowest, touched, settings.ratio).transform(_timeline)
    _write(timeline.transform(_by_date), settings.out, "timeline")
    dates_with_scores = {(row["cluster"], row["date"]) for row in scored.select("cluster", "date").collect()}
    for cluster, day in outdated - dates_with_scores:
        for table in ("ports", "recoveries", "timeline"):
            remove(spark, f"{settings.out}/{table}/cluster={cluster}/date={day}")
    # Write this table last: the next run treats its dates as done.
    _write(new_quality.coalesce(1), settings.out, "quality")
    for cached in (log, sides, scored):
        cached.unpersist()
    schemas = {"quality": new_quality, "ports": sides, "recoveries": scored, "timeline": timeline}
    return Run(tuple(sorted(dates)), _tables(spark, settings.out, {k: v.schema for k, v in schemas.items()}))


def _stretches(decisions: DataFrame, log: DataFrame, ratio: float) -> DataFrame:
    """Return decisions of recoveries as stretches with causes and bound."""
    return (
        decisions.transform(stretches, ratio).transform(with_causes, ratio).transform(with_bound, link_side_bytes(log))
    )


def _timeline(stretches: DataFrame) -> DataFrame:
    """Return one row per decision for the slowest link side of a recovery, with columns for reports and estimates."""
    return stretches.withColumn("date", F.date_format("start", "yyyy-MM-dd")).select(
        *("cluster", "date", "recovery_id", "cycle_id", "trace_id", "time", "term", "cycle", "broker_id", "role"),
        *("instance_type", "reason", "seconds", "capacity", "client", "forecast", "headroom", "standing", "decided"),
        *("applied", "achieved", "budget", "used", "min_rate", "max_ratio", "change_threshold", "growth", "free"),
        "interval_seconds",
        *("amount", "at", "reach", "before", "duration", "policy", *scores.LOST),
    )


def _new_dates(files: Mapping[Folder, FileCounts], scored_quality: DataFrame | None, ratio: float) -> list[str]:
    """Return the dates whose files have changed since the last run, or that were scored with another ratio.

    The end of a reassignment may be logged later than its decisions.
    """
    columns = ("cluster", "date", "files", "reassignment_files")
    by_this = scored_quality.where(F.col("ratio") == ratio) if scored_quality is not None else None
    counted = {tuple(row) for row in by_this.select(*columns).collect()} if by_this is not None else set()
    current = ((*folder, counts.decisions, counts.reassignments) for folder, counts in files.items())
    return sorted({row[1] for row in current if row not in counted})


def _outdated(scored: DataFrame | None, log: DataFrame, files: Collection[Folder]) -> set[Folder]:
    """Return where scored recoveries no longer exist, because late records made them part of an earlier recovery.

    Args:
        scored: recoveries of all previous runs; None: no previous run.
        log: result of `recoveries`.
        files: clusters and dates that still have a log.
    """
    if scored is None:
        return set()
    recovery_ids = {row["recovery_id"] for row in log.select("recovery_id").distinct().collect()}
    rows = scored.select("recovery_id", "cluster", "date").collect()
    return {(cluster, day) for name, cluster, day in rows if name not in recovery_ids and (cluster, day) in files}


def _affected(log: DataFrame, new: Collection[str]) -> tuple[set[str], DataFrame]:
    """Return the dates to read and the recoveries to score: those on new dates, and all that began on the same dates.

    A partition is rewritten as a whole, so it needs every recovery of its date.
    """
    # Format dates in Spark, in UTC like the folder names: collected times are in the time zone of the driver's host.
    ends = (F.date_format(end, "yyyy-MM-dd") for end in (F.col("start"), F.coalesce("finish", "start")))
    spans = [
        (name, date.fromisoformat(start), date.fromisoformat(finish))
        for name, start, finish in log.select("recovery_id", *ends).collect()
    ]
    fresh = {date.fromisoformat(day) for day in new}
    begun = {start for _, start, finish in spans if any(start <= day <= finish for day in fresh)}
    chosen = [(name, start, finish) for name, start, finish in spans if start in begun]
    days = (start + timedelta(days=n) for _, start, finish in chosen for n in range((finish - start).days + 1))
    dates = {*new, *(day.isoformat() for day in days)}
    names = [name for name, _, _ in chosen]
    return dates, log if len(names) == len(spans) else log.where(F.col("recovery_id").isin(*names))


def _by_date(table: DataFrame) -> DataFrame:
    """Return the same rows, repartitioned by cluster and date; otherwise every task writes a file for each date."""
    return table.repartition(table.sparkSession.sparkContext.defaultParallelism, "cluster", "date")


def _write(rows: DataFrame, out: str, table: str) -> None:
    """Write part of a table. Replaces only the partitions (cluster and date) that it contains."""
    rows.write.mode("overwrite").partitionBy("cluster", "date").parquet(f"{out}/{table}")


def _table(spark: SparkSession, out: str, table: str, schema: StructType | str | None = None) -> DataFrame | None:
    """Return a table of all runs; without a schema, Spark infers it from the files."""
    try:
        return (spark.read.schema(schema) if schema else spark.read).parquet(f"{out}/{table}")
    except AnalysisException:
        return None


def _tables(spark: SparkSession, out: str, schemas: Mapping[str, StructType] | None = None) -> dict[str, DataFrame]:
    tables = {name: _table(spark, out, name, (schemas or {}).get(name)) for name in TABLES}
    return {name: table for name, table in tables.items() if table is not None}

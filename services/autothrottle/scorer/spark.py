"""Scores logs of any size on Spark, by the same functions. The types to know are `SparkScorer` and `SparkFiles`.

Each task reads whole files with Arrow, so that a damaged file is one file's problem. It hands over their rows by part,
as compressed Arrow tables; so a shuffle moves few, large rows. The second stage scores the parts.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, lit, when
from pyspark.sql.pandas.types import from_arrow_schema

from autothrottle.core.errors import Invalid
from autothrottle.core.scoring.estimates import SettingEstimate, estimate
from autothrottle.scorer.estimation import Task
from autothrottle.scorer.files import ArrowFiles, Files, Reduce, folder_name
from autothrottle.scorer.log import FileReading, Folder, folder_of, read_decisions, read_reassignments
from autothrottle.scorer.parts import BYTES_PER_TASK, ROWS, PartPlan, ScorePlan, from_bytes, score_part, split, to_bytes
from autothrottle.scorer.scores import slowest_part
from autothrottle.scorer.scoring import ScoreWork
from autothrottle.scorer.session import OF_SPARK, reason
from autothrottle.scorer.tables import PORTS, TIMELINE

_PACKED = "part int, kind string, content binary"
"""`kind` is `rows` (an Arrow table), `plan` (a pickled `PartPlan`) or, with part -1, `file` (a `FileReading`)."""

_SCORED = (
    "recovery int, part int, chunk int, cluster string, date string, summary string, ports binary, timeline binary"
)
"""Scores of one recovery in one part; with recovery -1, `summary` is a `FileReading`.

A long timeline continues in rows of its own, which have only a timeline: Spark's JVM copies each row several times.
"""

_CHUNK = 25_000
"""Most stretches of a timeline in one row, a few MB."""

_ORDER = ("recovery", "part", "chunk")

Batches = Iterator[pa.RecordBatch]


@dataclass(slots=True)
class SparkParts:
    """`ScoredParts` in Spark's storage."""

    spark: SparkSession
    scored: DataFrame
    readings: Sequence[FileReading]
    rows: Sequence[tuple[int, int, Mapping[str, Any]]]
    """(recovery, part, summary)."""

    @property
    def summaries(self) -> Mapping[int, Sequence[Mapping[str, Any]]]:
        by_recovery: dict[int, list[Mapping[str, Any]]] = {}
        for number, _, summary in self.rows:
            by_recovery.setdefault(number, []).append(summary)
        return by_recovery

    def write(self, files: Files, plan: ScorePlan) -> None:
        scored = self.with_slowest_timelines()
        if isinstance(files, ArrowFiles) and not files.tasks_write:
            # One commit for each date, of rows that the driver holds.
            for date in sorted({plan.recoveries[number].date for number, _, _ in self.rows}):
                rows_of_date = _in_order(scored.where(scored["date"] == date).toArrow())
                for name, schema in _TABLES.items():
                    batches = _unpacking(name)(iter(rows_of_date.to_batches()))
                    files.write(name, pa.Table.from_batches(batches, schema))
        elif isinstance(files, ArrowFiles):
            written = scored.groupBy("cluster", "date").applyInArrow(_writing(files), "files int")
            written.toArrow()
        else:
            scored = scored.repartition("cluster", "date").sortWithinPartitions(*_ORDER)
            for name, schema in _TABLES.items():
                rows = scored.mapInArrow(_unpacking(name), from_arrow_schema(schema))
                rows.write.mode("overwrite").partitionBy("cluster", "date").parquet(f"{files.out}/{name}")
        self.scored.unpersist()

    def with_slowest_timelines(self) -> DataFrame:
        """Return the scored parts with the timeline of each recovery's slowest part only.

        The timelines of a large recovery are gigabytes. In the sort by date, an executor of 1 GB ran out of memory.
        """
        parts_of: dict[int, list[int]] = {}
        for number, part, _ in self.rows:
            parts_of.setdefault(number, []).append(part)
        slowest = {number: slowest_part(summaries) for number, summaries in self.summaries.items()}
        places = [(number, parts_of[number][index]) for number, index in slowest.items() if index is not None]
        numbers, parts = zip(*places, strict=True) if places else ((), ())
        columns = {"recovery": pa.array(numbers, pa.int32()), "part": pa.array(parts, pa.int32())}
        of_slowest = self.spark.createDataFrame(pa.table(columns)).withColumn("is_slowest", lit(True))
        scored = self.scored.where("recovery >= 0").join(broadcast(of_slowest), ["recovery", "part"], "left")
        return scored.withColumn("timeline", when(scored["is_slowest"], scored["timeline"])).drop("is_slowest")


_TABLES: Mapping[str, pa.Schema] = {"ports": PORTS, "timeline": TIMELINE}
"""The tables that tasks pack."""


def _writing(files: ArrowFiles) -> Callable[[pa.Table], pa.Table]:
    """Return the function of a task that writes one folder of the tables `ports` and `timeline`."""
    log, out = files.log, files.out

    def write(scored: pa.Table) -> pa.Table:
        own, folder = ArrowFiles(log, out), (scored["cluster"][0].as_py(), scored["date"][0].as_py())
        batches = _in_order(scored).to_batches()
        for name, schema in _TABLES.items():
            own.write_folder(name, folder, pa.Table.from_batches(_unpacking(name)(iter(batches)), schema))
        return pa.table({"files": pa.array([2], pa.int32())})

    return write


def _in_order(scored: pa.Table) -> pa.Table:
    return scored.sort_by([(name, "ascending") for name in _ORDER])


def _unpacking(column: str) -> Callable[[Batches], Batches]:
    """Return the function that unpacks a table of scored parts."""

    def unpack(batches: Batches) -> Batches:
        for batch in batches:
            for content in batch[column].drop_null():
                yield from from_bytes(content.as_buffer()).to_batches()

    return unpack


class SparkScorer:
    """A `Scorer` whose tasks run on Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def score(self, files: Files, work: ScoreWork, plan: ScorePlan, ratio: float) -> SparkParts:
        spark = self._spark
        if isinstance(files, ArrowFiles):
            paths = spark.createDataFrame(pa.table({"path": list(work.decisions)}))
            sources = paths.repartition(max(2, work.size // BYTES_PER_TASK))
        else:
            sources = binary_files(spark, sorted({path.rpartition("/")[0] for path in work.decisions}))
        rows = sources.mapInArrow(_reading(plan, files if isinstance(files, ArrowFiles) else None), _PACKED)
        plans = [_packed(part.part, "plan", pickle.dumps(part)) for part in plan.parts()]
        packed = rows.unionByName(spark.createDataFrame(pa.Table.from_batches(plans))) if plans else rows
        # In memory, the large rows would compete with the sort of the shuffle, and the executor would fail.
        scored = packed.groupBy("part").applyInArrow(_scoring(ratio, _CHUNK), _SCORED).persist(StorageLevel.DISK_ONLY)
        summaries = scored.where("chunk = 0").select("recovery", "part", "summary").toArrow().to_pylist()
        readings = [FileReading(**json.loads(row["summary"])) for row in summaries if row["recovery"] < 0]
        own = [(row["recovery"], row["part"], json.loads(row["summary"])) for row in summaries if row["recovery"] >= 0]
        return SparkParts(spark, scored, readings, own)

    def estimate(self, tasks: Sequence[Task]) -> Sequence[SettingEstimate]:
        if not tasks:
            return []
        rows = pa.table(
            {
                "number": pa.array(range(len(tasks)), pa.int32()),
                "content": pa.array(map(pickle.dumps, tasks), pa.binary()),
            }
        )
        estimates = self._spark.createDataFrame(rows).repartition(len(tasks)).mapInArrow(_estimated, _ESTIMATED)
        by_number = {row["number"]: pickle.loads(row["content"]) for row in estimates.toArrow().to_pylist()}
        return [by_number[number] for number in range(len(tasks))]


_ESTIMATED = "number int, content binary"
"""`content` is a pickled `Task`, then its `SettingEstimate`."""


def _estimated(batches: Batches) -> Batches:
    for batch in batches:
        results = [pickle.dumps(estimate(*pickle.loads(content))) for content in batch["content"].to_pylist()]
        yield pa.RecordBatch.from_arrays([batch["number"], pa.array(results, pa.binary())], ["number", "content"])


def binary_files(spark: SparkSession, folders: Sequence[str]) -> DataFrame:
    """Return the Parquet files below some folders, with their content."""
    reader = spark.read.format("binaryFile").option("pathGlobFilter", "*.parquet")
    return reader.option("recursiveFileLookup", True).load(list(folders))


def _reading(plan: ScorePlan, files: ArrowFiles | None) -> Callable[[Batches], Batches]:
    """Return the function of a task that reads files and packs their rows by part.

    Args:
        plan: the parts.
        files: opens the files; None: the batches have their content.
    """
    numbers, slim = plan.numbers, ScorePlan((), plan.first_part, plan.part_count)
    locations = (files.log, files.out) if files else None

    def read(batches: Batches) -> Batches:
        own = ArrowFiles(*locations) if locations else None
        tables: list[pa.Table] = []
        for batch in batches:
            for index, path in enumerate(batch["path"].to_pylist()):
                if own:
                    rows, reading = own.decisions(path)
                else:
                    rows, reading = read_decisions(path, pa.BufferReader(batch["content"][index].as_buffer()))
                yield _packed(-1, "file", json.dumps(asdict(reading)).encode())
                tables += [rows] if rows is not None else []
                if sum(map(len, tables)) >= ROWS:
                    yield from _split(tables, slim, numbers)
                    tables = []
        yield from _split(tables, slim, numbers)

    return read


def _split(tables: Sequence[pa.Table], plan: ScorePlan, numbers: Mapping[str, int]) -> Batches:
    if tables:
        for part, rows in split(pa.concat_tables(tables), plan, numbers):
            yield _packed(part, "rows", to_bytes(rows))


def _packed(part: int, kind: str, content: bytes) -> pa.RecordBatch:
    arrays = [pa.array([part], pa.int32()), pa.array([kind]), pa.array([content], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, ["part", "kind", "content"])


def _scoring(ratio: float, chunk_size: int) -> Callable[[pa.Table], pa.Table]:
    """Return the function of a task that scores one part, with so many stretches of a timeline in a row."""

    def score(packed: pa.Table) -> pa.Table:
        kinds = packed["kind"].to_pylist()
        contents = dict[str, list[pa.Buffer]]()
        for kind, content in zip(kinds, packed["content"], strict=True):
            contents.setdefault(kind, []).append(content.as_buffer())
        rows: list[tuple[Any, ...]] = [
            (-1, -1, 0, None, None, reading.to_pybytes().decode(), None, None) for reading in contents.get("file", ())
        ]
        if "plan" in contents and "rows" in contents:
            plan: PartPlan = pickle.loads(contents["plan"][0])
            table = pa.concat_tables(map(from_bytes, contents["rows"]))
            for scored in score_part(plan, table, ratio):
                recovery = plan.recoveries[scored.number - plan.first]
                place, folder = (scored.number, plan.part), (recovery.cluster, recovery.date)
                text, ports = json.dumps(scored.summary), to_bytes(scored.ports)
                for chunk, first in enumerate(range(0, max(len(scored.timeline), 1), chunk_size)):
                    timeline = to_bytes(scored.timeline.slice(first, chunk_size))
                    rows.append((*place, chunk, *folder, None if chunk else text, None if chunk else ports, timeline))
        types = [pa.int32(), pa.int32(), pa.int32(), pa.string(), pa.string(), pa.string(), pa.binary(), pa.binary()]
        names = [column.split()[0] for column in _SCORED.split(", ")]
        columns = zip(*rows, strict=True) if rows else [[]] * len(names)
        return pa.table(
            [pa.array(list(column), kind) for column, kind in zip(columns, types, strict=True)], names=names
        )

    return score


class SparkFiles:
    """`Files` of a file system that only Spark's Hadoop knows."""

    def __init__(self, spark: SparkSession, log: str, out: str) -> None:
        """Check that Hadoop has a file system for both locations.

        Raises:
            Invalid: it has none.
        """
        self._spark, self.log, self.out = spark, log.rstrip("/"), out.rstrip("/")
        for place in (self.log, self.out):
            try:
                self._file_system(place)
            except (*OF_SPARK, AttributeError) as error:
                raise Invalid(
                    f"{place!r} cannot be reached: {reason(error)}. Fix: add the store's Hadoop connector to Spark's "
                    "jars, or name another location"
                ) from None

    def paths(self, kind: str) -> Mapping[str, int]:
        rows = self._files(f"{self.log}/{kind}", "path", "length")
        return {path: size for path, size in rows if folder_of(path) is not None}

    def reassignments(self) -> tuple[list[dict[str, Any]], list[FileReading]]:
        contents = self._files(f"{self.log}/reassignments", "path", "content")
        parts = [read_reassignments(path, pa.BufferReader(content)) for path, content in contents]
        return [row for rows, _ in parts for row in rows], [reading for _, reading in parts]

    def _files(self, folder: str, *columns: str) -> list[tuple[Any, ...]]:
        try:
            return [tuple(row) for row in binary_files(self._spark, [folder]).select(*columns).collect()]
        except AnalysisException:  # no files yet
            return []

    def table(self, name: str, schema: pa.Schema, recovery_ids: Collection[str] | None = None) -> pa.Table:
        rows = self._rows(name, schema)
        if rows is None:
            return schema.empty_table()
        if recovery_ids is not None:
            rows = rows.where(rows["recovery_id"].isin(*recovery_ids))
        return rows.toArrow().cast(schema)

    def reduced(self, name: str, schema: pa.Schema, reduce: Reduce) -> pa.Table:
        rows = self._rows(name, schema)
        if rows is None:
            return reduce(schema.empty_table())
        result = from_arrow_schema(reduce(schema.empty_table()).schema)

        def reduced(batches: Batches) -> Batches:
            for batch in batches:
                yield from reduce(pa.Table.from_batches([batch]).cast(schema)).to_batches()

        return reduce(rows.mapInArrow(reduced, result).toArrow())

    def _rows(self, name: str, schema: pa.Schema) -> DataFrame | None:
        try:
            rows = self._spark.read.schema(from_arrow_schema(schema)).parquet(f"{self.out}/{name}")
            return rows.select(*schema.names)  # Spark adds the names of the folders
        except AnalysisException:
            return None

    def write(self, name: str, rows: pa.Table) -> None:
        if len(rows):
            table = self._spark.createDataFrame(rows).coalesce(1)
            table.write.mode("overwrite").partitionBy("cluster", "date").parquet(f"{self.out}/{name}")

    def remove(self, name: str, folder: Folder) -> None:
        files, path = self._file_system(f"{self.out}/{name}/{folder_name(folder)}")
        files.delete(path, True)

    def write_text(self, name: str, text: str) -> None:
        files, path = self._file_system(f"{self.out}/{name}")
        files.setWriteChecksum(False)  # avoids the additional .crc file of local file systems
        files.delete(path, False)
        stream = files.create(path, False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def _file_system(self, place: str) -> tuple[Any, Any]:
        """Return Hadoop's file system of a location, and the location as Hadoop's Path."""
        context: Any = self._spark.sparkContext
        path = context._jvm.org.apache.hadoop.fs.Path(place)
        return path.getFileSystem(context._jsc.hadoopConfiguration()), path

"""The decision log as Parquet files, and the spool that they are made of.

A cycle hands its records over through a bounded queue. A thread of its own appends them to a spool, one Arrow record
batch for each cycle, which is on the disk before the next one comes; when a spool is old or long enough, its date is
over, or another term begins, it becomes a Parquet file: written whole, synced, then renamed. What a process that was
killed leaves behind is made a file by the next one that starts, or runs: of a spool that was cut off all whole batches
count. A file has the name of its spool, so that one that was made twice is there once.

    <URI>/decisions/cluster=<name>/date=<YYYY-MM-DD>/<name>-<term>-<sequence>.parquet
    <URI>/reassignments/cluster=<name>/date=<YYYY-MM-DD>/<name>-<term>-<sequence>.parquet

The type to know is `DecisionLog`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from autothrottle.adapters.decision_schema import DECISIONS, REASSIGNMENTS, file_system
from autothrottle.core.decisions import DecisionRecord, ReassignmentRecord
from autothrottle.core.errors import Invalid

log = logging.getLogger(__name__)

_SCHEMAS = {"decisions": DECISIONS, "reassignments": REASSIGNMENTS}

_MOST_WAITING = 256
"""Cycles; at one a second that is more than four minutes in which the disk may hang."""

_RETRY = timedelta(seconds=30)
"""After a file could not be written: the spool is kept meanwhile."""

_SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "abfs", "abfss")
"""Those that pyarrow knows."""

_SPOOL_NAME = re.compile(r"(\w+)~(.+)~(\d{4}-\d\d-\d\d)~(\d+)~(\d+)\.arrows")


@dataclass(frozen=True, slots=True)
class LogLimits:
    """When spools become files, and when files go."""

    rows: int = 200_000
    """Of a spool, at least so many make it a file."""
    age: timedelta = timedelta(minutes=15)
    """So old a spool becomes a file."""
    retention: timedelta | None = None
    """Files of dates that are so long over are removed; None: they stay."""
    patience: timedelta = timedelta(seconds=15)
    """For the last files, at the end; what is not done by then the next start does."""


class DecisionLog:
    """Appends records of cycles to the log (a `DecisionSink`), in a thread of its own until `close`."""

    def __init__(
        self, uri: str, spool: Path | None = None, limits: LogLimits | None = None, waiting: int = _MOST_WAITING
    ) -> None:
        """Begin to write; what another process left in the spool becomes files first.

        Args:
            uri: a local path, or the address of an object store as pyarrow takes it (`s3://bucket/path`).
            spool: a local directory; by default one below `uri`, which must be local then.
            limits: when spools become files, and when these go.
            waiting: how many cycles may wait, > 0.

        Raises:
            Invalid: the address is none, or the directory cannot be written.
        """
        self._uri = _demand_known(uri)
        local = Path(self._uri.removeprefix("file://")).absolute() if self._is_local else None
        self._directory = _spool_directory(spool, local)
        self._limits = limits or LogLimits()
        self._waiting: queue.Queue[tuple[Sequence[DecisionRecord], Sequence[ReassignmentRecord]] | None]
        self._waiting = queue.Queue(waiting)
        self._files: fs.FileSystem | None = None
        self._root = ""
        self._spools: dict[str, _Spool] = {}
        self._stale: list[Path] = []
        self._retry_at = self._look_at = 0.0
        self._swept = ""
        self._sequence = 0
        self.dropped = 0
        """Cycles that were not written, since too many waited or the disk refused them."""
        self.written = 0
        """Cycles that are on the disk, in a spool or a file."""
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._thread.start()

    def __enter__(self) -> DecisionLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, decisions: Sequence[DecisionRecord], reassignments: Sequence[ReassignmentRecord]) -> None:
        if not decisions and not reassignments:
            return
        try:
            self._waiting.put_nowait((decisions, reassignments))
        except queue.Full:
            self._drop("too many cycles wait for the disk")

    def close(self) -> None:
        """Make files of all spools, then end; what is not done in time is done at the next start."""
        patience = self._limits.patience.total_seconds()
        try:
            self._waiting.put(None, timeout=patience)
        except queue.Full:
            return
        self._thread.join(patience)

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if self.dropped == 1 or self.dropped % 1000 == 0:
            log.warning("The decision log lacks %d cycles: %s", self.dropped, why)

    def _run(self) -> None:
        while True:
            self._roll_what_is_due()
            try:
                item = self._waiting.get(timeout=min(self._limits.age.total_seconds(), 5.0))
            except queue.Empty:
                continue
            if item is None:
                break
            try:
                self._take("decisions", item[0])
                self._take("reassignments", item[1])
                self.written += 1
            except (OSError, pa.ArrowException) as error:
                self._drop(f"the spool in {self._directory} cannot be written: {error}")
                self._begin_anew()
        for kind in list(self._spools):
            self._end(kind)
        self._retry_at = self._look_at = 0.0
        self._roll_what_is_due()

    def _take(self, kind: str, records: Sequence[DecisionRecord] | Sequence[ReassignmentRecord]) -> None:
        if not records:
            return
        first = records[0]
        at = first.time if isinstance(first, DecisionRecord) else first.finish or first.start
        key = (first.cluster, f"{at.astimezone(UTC):%Y-%m-%d}", first.term)
        if kind in self._spools and self._spools[kind].key != key:
            self._end(kind)
        if kind not in self._spools:
            # Unique also where the terms of a cluster began anew: no file is ever written over by another one.
            self._sequence = max(self._sequence + 1, time.time_ns() // 1_000_000)
            name = f"{kind}~{key[0]}~{key[1]}~{key[2]:010d}~{self._sequence}.arrows"
            self._spools[kind] = _Spool(self._directory / name, _SCHEMAS[kind], key)
        self._spools[kind].append(records)

    def _roll_what_is_due(self) -> None:
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        for kind, spool in list(self._spools.items()):
            is_old = time.monotonic() - spool.opened >= self._limits.age.total_seconds()
            if is_old or spool.rows >= self._limits.rows:
                self._end(kind)
        # Those of other planners that were killed, too.
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + self._limits.age.total_seconds()
            self._stale += [path for path in _abandoned(self._directory) if path not in self._stale]
        self._roll_stale()
        if self._limits.retention is not None and self._swept != today:
            self._swept = today
            self._sweep(self._limits.retention)

    def _begin_anew(self) -> None:
        """Leave the spools as they are: what stands behind half a batch could not be read."""
        for kind in list(self._spools):
            self._end(kind)

    def _end(self, kind: str) -> None:
        spool = self._spools.pop(kind)
        self._stale.append(spool.path)
        with suppress(OSError, pa.ArrowException):  # what is whole counts without an end, too
            spool.close()

    def _roll_stale(self) -> None:
        if not self._stale or time.monotonic() < self._retry_at:
            return
        waiting, self._stale = self._stale, []
        for index, path in enumerate(waiting):
            try:
                self._roll(path)
            except (OSError, pa.ArrowException) as error:
                log.warning("The decision log cannot be written to %s: %s; trying again", self._uri, error)
                self._stale = waiting[index:]
                self._retry_at = time.monotonic() + _RETRY.total_seconds()
                return

    def _roll(self, path: Path) -> None:
        """Make a file of a spool, and remove the spool."""
        found = _SPOOL_NAME.fullmatch(path.name)
        if found is None or found[1] not in _SCHEMAS:
            return
        kind, cluster, date, term, sequence = found.groups()
        self._open()
        if not path.exists():
            return
        table = read_spool(path, _SCHEMAS[kind])
        if table.num_rows:
            folder = f"{self._root}/{kind}/cluster={cluster}/date={date}"
            self._write(table, folder, f"{cluster}-{term}-{sequence}.parquet")
        path.unlink(missing_ok=True)

    @property
    def _is_local(self) -> bool:
        return "://" not in self._uri or self._uri.startswith("file://")

    def _open(self) -> fs.FileSystem:
        """The file system; an object store is asked over the network, by the thread that writes."""
        if self._files is None:
            self._files, self._root = file_system(self._uri)
        return self._files

    def _write(self, table: pa.Table, folder: str, name: str) -> None:
        if not self._is_local:
            # An object comes to be when it is closed.
            with self._open().open_output_stream(f"{folder}/{name}") as stream:
                pq.write_table(table, stream, compression="zstd")
            return
        directory = Path(folder)
        directory.mkdir(parents=True, exist_ok=True)
        hidden = directory / f".{name}.{os.getpid()}.tmp"
        with hidden.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(directory / name)
        _sync(directory)

    def _sweep(self, retention: timedelta) -> None:
        """Remove the dates that are long over."""
        oldest = f"{datetime.now(UTC) - retention:%Y-%m-%d}"
        for kind in _SCHEMAS:
            try:
                files = self._open()
                selector = fs.FileSelector(f"{self._root}/{kind}", allow_not_found=True, recursive=True)
                folders = [f.path for f in files.get_file_info(selector) if f.type is fs.FileType.Directory]
                for folder in folders:
                    date = re.search(r"/date=(\d{4}-\d\d-\d\d)$", folder)
                    if date and date[1] < oldest:
                        files.delete_dir(folder)
            except (OSError, pa.ArrowException) as error:
                log.warning("Old dates of the decision log cannot be removed: %s", error)


class _Spool:
    """One open spool; it is locked for as long as its process lives."""

    def __init__(self, path: Path, schema: pa.Schema, key: tuple[str, str, int]) -> None:
        self.path, self.key, self.rows, self.opened = path, key, 0, time.monotonic()
        self._schema = schema
        # It gets its name once it is locked: what has the name and no lock is abandoned.
        unnamed = path.with_suffix(".new")
        self._file: BinaryIO = unnamed.open("wb")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        unnamed.rename(path)
        self._writer = pa.ipc.new_stream(self._file, schema)

    def append(self, records: Sequence[DecisionRecord] | Sequence[ReassignmentRecord]) -> None:
        self._writer.write_batch(batch_of(records, self._schema))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += len(records)

    def close(self) -> None:
        with self._file:
            self._writer.close()


def batch_of(records: Sequence[DecisionRecord] | Sequence[ReassignmentRecord], schema: pa.Schema) -> pa.RecordBatch:
    """Return records of one kind as Arrow columns."""
    return pa.RecordBatch.from_arrays(
        [pa.array([_plain(getattr(record, field.name)) for record in records], field.type) for field in schema],
        schema=schema,
    )


def _plain(value: Any) -> Any:
    return [asdict(path) for path in value] if isinstance(value, list) and value and is_dataclass(value[0]) else value


def read_spool(path: Path, schema: pa.Schema) -> pa.Table:
    """Return all whole batches of a spool, which may end anywhere; without any it has the columns of `schema`.

    Raises:
        OSError: when it cannot be read now; what is in it is not known.
    """
    batches: list[pa.RecordBatch] = []
    with path.open("rb") as file:
        try:
            with pa.ipc.open_stream(file) as reader:
                schema = reader.schema  # that of the version that wrote it
                for batch in reader:
                    batches.append(batch)
        except (pa.ArrowException, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # the system's; Arrow's own about the end has no number
                raise
            log.info("A spool was cut off after %d cycles: %s", len(batches), error)
    return pa.Table.from_batches(batches, schema=schema)


def _abandoned(directory: Path) -> list[Path]:
    """The spools whose process has ended."""
    found = []
    for path in sorted(directory.glob("*.arrows")):
        # One that is locked has a process that lives; one that is gone was made a file by another one; and one that may
        # not be read is somebody else's.
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            found.append(path)
    return found


def _demand_known(uri: str) -> str:
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if scheme not in _SCHEMES:
        raise Invalid(
            f"decisions: {uri!r} is neither a path nor the address of an object store; it must begin with one of "
            f"{', '.join(f'{known}://' for known in _SCHEMES)}; give /var/lib/autothrottle/decisions, for example"
        )
    return uri.rstrip("/")


def _spool_directory(spool: Path | None, root: Path | None) -> Path:
    directory = spool or (root / "_spool" if root else None)
    if directory is None:
        raise Invalid("decisions-spool is not given; an object store needs a local directory to spool to: name one")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Invalid(f"decisions: {directory} cannot be written ({error}); name another directory") from None
    return directory


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

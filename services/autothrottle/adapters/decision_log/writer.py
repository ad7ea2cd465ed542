"""Writes the decision log: Arrow spools that are rolled into Parquet files.

A cycle hands over its records through a bounded queue. A background thread appends them to a spool, one Arrow record
batch for each cycle, and syncs it before it takes the next cycle. A spool is rolled into a Parquet file when it is old
or long enough, when its date ends, or when another term begins. The file is written completely, synced and renamed.

Spools of a killed process are rolled by any other process that starts or runs; a truncated spool keeps all its whole
batches. A file is named after its spool, so that rolling a spool twice does not duplicate it.

No error ends the thread. A record that has no place in a spool is kept as text in `set-aside.txt` beside the spools. A
spool that cannot be rolled keeps its content under the suffix `.failed`. While the disk has too little free space, no
cycle is written.

    <URI>/decisions/cluster=<name>/date=<YYYY-MM-DD>/<name>-<term>-<sequence>.parquet
    <URI>/reassignments/cluster=<name>/date=<YYYY-MM-DD>/<name>-<term>-<sequence>.parquet
    <URI>/cycles/cluster=<name>/date=<YYYY-MM-DD>/<name>-<term>-<sequence>.parquet

The type to know is `DecisionLog`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import queue
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.decision_log.files import CYCLES, DECISIONS, REASSIGNMENTS, file_system, sync
from autothrottle.core.errors import Invalid
from autothrottle.core.exported_metrics import DECISION_LOG_DROPS, QUEUE_LENGTH, MetricSample
from autothrottle.core.retries import DECISION_FILES
from autothrottle.core.scoring.cycle_records import CycleRecord, RecordPacker, UnpackedCycle
from autothrottle.core.scoring.decision_records import DecisionRecord, ReassignmentRecord
from autothrottle.core.units import MEGABYTE

log = logging.getLogger(__name__)

Record = DecisionRecord | ReassignmentRecord | CycleRecord

Records = Sequence[Record]

SpoolKey = tuple[str, str, str]
"""(cluster, date, term) of all records in a spool."""

_SCHEMAS = {"decisions": DECISIONS, "reassignments": REASSIGNMENTS, "cycles": CYCLES}

_QUEUED_CYCLES = 256
"""At one cycle a second, the disk may hang for more than four minutes."""


_SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "abfs", "abfss")
"""URI schemes that pyarrow supports."""

_COMPRESSION_LEVEL = 6

_SET_ASIDE = "set-aside.txt"

_LOG_EVERY = 1000
"""Of equal problems, the first and every 1000th are logged."""

_MOST_UNKEPT = 100
"""Number of records in a row that only the log keeps, so that an hour with a full disk does not fill the log, too."""

_SHOWN_CHARACTERS = 2_000
"""How much of the records a log line shows."""

_RESUME_RATIO = 1.1
"""Writing resumes at this multiple of the free space at which it stopped, so that it does not change every cycle."""

_SPOOL_NAME = re.compile(r"(\w+)~(.+)~(\d{4}-\d\d-\d\d)~(\d+)~(\d+)\.arrows")


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Limits at which a spool is rolled into a file, and a file is removed."""

    rows: int = 200_000
    """Number of rows at which a spool is rolled."""
    age: timedelta = timedelta(minutes=15)
    """Age at which a spool is rolled."""
    retention: timedelta | None = None
    """Age of a date at which its files are removed; None: never."""
    patience: timedelta = timedelta(seconds=15)
    """How long `close` waits by default for the last files; the next start writes the others."""
    min_free_bytes: int = 256 * MEGABYTE
    """Free space on the spool's disk below which no cycle is written, bytes; other programs may need the disk."""
    max_set_aside_bytes: int = 10 * MEGABYTE
    """Largest size of `set-aside.txt`, bytes."""


def _free_space(directory: Path) -> int:
    return shutil.disk_usage(directory).free


class DecisionLog:
    """Appends records of cycles to the log in a background thread, until `close` (a `DecisionSink`)."""

    def __init__(
        self,
        uri: str,
        spool: Path | None = None,
        limits: LogLimits | None = None,
        waiting: int = _QUEUED_CYCLES,
        free_space: Callable[[Path], int] = _free_space,
    ) -> None:
        """Start the background thread, which first rolls the spools that other processes left.

        Args:
            uri: a local path, or the URI of an object store in pyarrow's format (`s3://bucket/path`).
            spool: a local directory; by default a subdirectory of `uri`, which must then be local.
            limits: when spools are rolled and files are removed.
            waiting: maximum number of queued cycles, > 0.
            free_space: returns the free bytes on the disk of a directory.

        Raises:
            Invalid: the URI is not supported, or the directory is not writable.
        """
        self._uri = _validate_uri(uri)
        local = Path(self._uri.removeprefix("file://")).absolute() if self._is_local else None
        self._directory = _spool_directory(spool, local)
        self._limits, self._free_space = limits or LogLimits(), free_space
        self._disk_is_full = self._disk_fails = self._files_fail = False
        self._packer = RecordPacker()
        self._waiting: queue.Queue[
            tuple[Sequence[DecisionRecord], Sequence[ReassignmentRecord], UnpackedCycle | None] | None
        ]
        self._waiting = queue.Queue(waiting)
        self._spools: dict[str, _Spool] = {}
        self._stale: list[Path] = []
        self._retry_at = self._next_scan = 0.0
        self._swept_on = ""
        self._sequence = 0
        self.dropped = 0
        """Number of cycles not written, because the queue or the disk was full, or the disk failed."""
        self.written = 0
        """Number of cycles on disk, in a spool or a file, without the records that were set aside."""
        self.set_aside = 0
        """Number of records that have no place in a spool."""
        self._unkept = 0
        """How many of the last ones have no place beside the spools, either."""
        self.errors = 0
        """Number of unexpected errors in the background thread, without those of single records."""
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._thread.start()

    def append(
        self,
        decisions: Sequence[DecisionRecord],
        reassignments: Sequence[ReassignmentRecord],
        cycle: UnpackedCycle | None = None,
    ) -> None:
        if not decisions and not reassignments and cycle is None:
            return
        try:
            self._waiting.put_nowait((decisions, reassignments, cycle))
        except queue.Full:
            self._drop("the disk is too slow and the queue is full")

    def samples(self) -> Iterator[MetricSample]:
        """Return the exported metrics of the log, without waiting."""
        yield DECISION_LOG_DROPS.sample(self.dropped)
        yield QUEUE_LENGTH.sample(self._waiting.qsize(), "decision_log")

    def close(self, patience: timedelta | None = None) -> None:
        """Roll all spools, then stop; the next start rolls those that are left. `patience` replaces the limit's."""
        deadline = time.monotonic() + (self._limits.patience if patience is None else patience).total_seconds()
        try:
            self._waiting.put(None, timeout=seconds_left(deadline))
        except queue.Full:
            return
        self._thread.join(seconds_left(deadline))

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if _is_logged(self.dropped):
            log.warning("The decision log dropped %d cycles so far: %s", self.dropped, why)

    def _run(self) -> None:
        while True:
            with self._continuing("rolling spools"):
                self._roll_due_spools()
            try:
                item = self._waiting.get(timeout=min(self._limits.age.total_seconds(), 5.0))
            except queue.Empty:
                continue
            if item is None:
                break
            with self._continuing("writing a cycle"):
                self._write_cycle(*item)
        with self._continuing("rolling spools"):
            self._end_all_spools()
            self._retry_at = self._next_scan = 0.0
            self._roll_due_spools()

    @contextmanager
    def _continuing(self, action: str) -> Iterator[None]:
        """Log and count any error: the end of this thread would lose all later cycles."""
        try:
            yield
        except Exception:
            self.errors += 1
            if _is_logged(self.errors):
                log.exception("The decision log continues after error %d, while %s", self.errors, action)

    def _write_cycle(
        self,
        decisions: Sequence[DecisionRecord],
        reassignments: Sequence[ReassignmentRecord],
        cycle: UnpackedCycle | None,
    ) -> None:
        if not self._has_space():
            self.dropped += 1
            return
        cycles = () if cycle is None else self._packed(cycle)
        kinds: tuple[tuple[str, Records], ...] = (
            ("decisions", decisions),
            ("reassignments", reassignments),
            ("cycles", cycles),
        )
        for kind, records in kinds:
            try:
                self._append(kind, records)
            except (OSError, pa.ArrowException) as error:
                self.dropped += 1
                if not self._disk_fails:
                    self._disk_fails = True
                    log.warning(
                        "The decision log stops: the spool in %s cannot be written: %s. Cycles are dropped until it "
                        "can; free some space, or repair the disk",
                        self._directory,
                        error,
                    )
                return self._end_all_spools()
            except Exception as error:
                self._put_aside(kind, records, error)
                self._end_all_spools()
        self.written += 1
        if self._disk_fails:
            self._disk_fails = False
            log.warning("The decision log resumes: %d cycles were dropped so far", self.dropped)

    def _packed(self, cycle: UnpackedCycle) -> Sequence[CycleRecord]:
        """Pack a cycle; if that fails, its decisions are logged nevertheless, and the next record is whole."""
        try:
            return (self._packer.pack(cycle),)
        except Exception:
            self._packer.forget()
            self.errors += 1
            if _is_logged(self.errors):
                log.exception(
                    "Cycle %d of term %d cannot be replayed later: packing it failed", cycle.cycle, cycle.term
                )
            return ()

    def _has_space(self) -> bool:
        """Return whether a cycle may be written; log when this changes."""
        least = self._limits.min_free_bytes
        try:
            free = self._free_space(self._directory)
        except Exception:  # unknown: if the disk is full, writing fails
            return True
        was_full, self._disk_is_full = self._disk_is_full, free < least * (_RESUME_RATIO if self._disk_is_full else 1)
        if self._disk_is_full and not was_full:
            log.warning(
                "The decision log stops: %s has %d MB free, less than %d MB. Cycles are dropped until there is more; "
                "free some space, or lower --decisions-min-free",
                self._directory,
                free // MEGABYTE,
                least // MEGABYTE,
            )
        elif was_full and not self._disk_is_full:
            log.warning(
                "The decision log resumes: %s has %d MB free; %d cycles were dropped so far",
                self._directory,
                free // MEGABYTE,
                self.dropped,
            )
        return not self._disk_is_full

    def _append(self, kind: str, records: Records) -> None:
        if not records:
            return
        try:
            key, batch = _key_of(records[0]), batch_of(records, _SCHEMAS[kind])
        except Exception:  # at least one record has no place in a spool
            records = [record for record in records if self._is_valid(kind, record)]
            if not records:
                return
            key, batch = _key_of(records[0]), batch_of(records, _SCHEMAS[kind])
        if kind in self._spools and self._spools[kind].key != key:
            self._end(kind)
        if kind not in self._spools:
            # Unique also for a cluster name and term that two planners share: no file ever overwrites another.
            self._sequence = max(self._sequence + 1, time.time_ns() // 1_000_000)
            name = "~".join((kind, *key, f"{self._sequence}.arrows"))
            self._spools[kind] = _Spool(self._directory / name, _SCHEMAS[kind], key)
        self._spools[kind].append(batch)

    def _is_valid(self, kind: str, record: Record) -> bool:
        """Return whether a record has a place in a spool; otherwise put it aside."""
        try:
            _key_of(record)
            batch_of([record], _SCHEMAS[kind])
        except Exception as error:  # such as an integer above 2^63-1
            self._put_aside(kind, [record], error)
            return False
        return True

    def _put_aside(self, kind: str, records: Sequence[object], error: Exception) -> None:
        """Keep records as text, one line each, or log them if that is not possible."""
        path = self._directory / _SET_ASIDE
        text = "".join(f"{datetime.now(UTC).isoformat()} {kind} {error!r} {record!r}\n" for record in records)
        try:
            with open(path, "a", encoding="utf-8", opener=_private) as file:
                has_room = file.tell() + len(text) <= self._limits.max_set_aside_bytes
                file.write(text if has_room else "")
            fate = f"they are kept in {path}" if has_room else f"{path} is full, so they are only here; move it away"
        except OSError as failure:
            has_room, fate = False, f"{path} cannot be written ({failure}), so they are only here"
        old_count, self.set_aside = self.set_aside, self.set_aside + len(records)
        self._unkept = 0 if has_room else self._unkept + 1
        is_shown = 0 < self._unkept <= _MOST_UNKEPT
        if is_shown or old_count // _LOG_EVERY != self.set_aside // _LOG_EVERY or not old_count:
            log.warning(
                "The decision log cannot store %d records of kind %s (%d so far): %r; %s: %s",
                len(records),
                kind,
                self.set_aside,
                error,
                fate,
                text[:_SHOWN_CHARACTERS],
            )

    def _roll_due_spools(self) -> None:
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        for kind, spool in list(self._spools.items()):
            is_old = time.monotonic() - spool.opened >= self._limits.age.total_seconds()
            if is_old or spool.rows >= self._limits.rows:
                self._end(kind)
        # Also the spools of other planners that were killed.
        if time.monotonic() >= self._next_scan:
            self._next_scan = time.monotonic() + self._limits.age.total_seconds()
            self._stale += [path for path in _abandoned(self._directory) if path not in self._stale]
        self._roll_stale()
        if self._limits.retention is not None and self._swept_on != today:
            self._swept_on = today
            self._sweep(self._limits.retention)

    def _end_all_spools(self) -> None:
        """Start new spools: batches after a partial batch would be unreadable."""
        for kind in list(self._spools):
            self._end(kind)
        self._packer.forget()

    def _end(self, kind: str) -> None:
        spool = self._spools.pop(kind)
        with suppress(Exception):  # whole batches are readable without an end marker
            spool.close()
        if spool.rows:
            self._stale.append(spool.path)
            return
        with suppress(OSError):  # nothing was written: while the disk is full, each cycle would leave a file
            spool.path.unlink()

    def _roll_stale(self) -> None:
        if not self._stale or time.monotonic() < self._retry_at:
            return
        stale, self._stale = self._stale, []
        for index, path in enumerate(stale):
            try:
                self._roll(path)
            except (OSError, pa.ArrowException) as error:
                if not path.is_file() or path.is_symlink():
                    log.warning("%s is not a spool and is skipped: %s", path, error)
                    continue
                wait = DECISION_FILES.first
                if not self._files_fail:
                    self._files_fail = True
                    text = (
                        "The decision log cannot be written to %s: %s. Retrying every %g s; the spool keeps the cycles"
                    )
                    log.warning(text, self._uri, error, wait)
                self._stale = stale[index:]
                self._retry_at = time.monotonic() + wait
                return
            except Exception:
                self.errors += 1
                failed = path.with_name(f"{path.name}.failed")
                log.exception("The spool %s cannot be rolled; it is kept as %s. Rename it to try again", path, failed)
                with suppress(OSError):
                    path.rename(failed)
        if self._files_fail:
            self._files_fail = False
            log.warning("The decision log is written to %s again", self._uri)

    def _roll(self, path: Path) -> None:
        """Write a spool as a Parquet file, and remove the spool."""
        match = _SPOOL_NAME.fullmatch(path.name)
        if match is None or match[1] not in _SCHEMAS:
            return
        kind, cluster, date, term, sequence = match.groups()
        _, root = self._location
        if not path.exists():
            return
        table = read_spool(path, _SCHEMAS[kind])
        if table.num_rows:
            folder = f"{root}/{kind}/cluster={cluster}/date={date}"
            self._write(table, folder, f"{cluster}-{term}-{sequence}.parquet")
        path.unlink(missing_ok=True)

    @property
    def _is_local(self) -> bool:
        return "://" not in self._uri or self._uri.startswith("file://")

    @cached_property
    def _location(self) -> tuple[fs.FileSystem, str]:
        """The file system and its path. The background thread opens it, since an object store is on the network."""
        return file_system(self._uri)

    def _write(self, table: pa.Table, folder: str, name: str) -> None:
        if not self._is_local:
            # An object is created when its stream is closed.
            with self._location[0].open_output_stream(f"{folder}/{name}") as stream:
                _write_parquet(table, stream)
            return
        directory = Path(folder)
        directory.mkdir(parents=True, exist_ok=True)
        hidden = directory / f".{name}.{os.getpid()}.tmp"
        hidden.unlink(missing_ok=True)
        try:
            with hidden.open("xb") as file:  # exclusive: not through a link of another user
                _write_parquet(table, file)
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(directory / name)
        except BaseException:
            with suppress(OSError):
                hidden.unlink(missing_ok=True)
            raise
        sync(directory)

    def _sweep(self, retention: timedelta) -> None:
        """Remove the dates older than the retention."""
        oldest = f"{datetime.now(UTC) - retention:%Y-%m-%d}"
        for kind in _SCHEMAS:
            try:
                files, root = self._location
                selector = fs.FileSelector(f"{root}/{kind}", allow_not_found=True, recursive=True)
                folders = [f.path for f in files.get_file_info(selector) if f.type is fs.FileType.Directory]
                for folder in folders:
                    date = re.search(r"/date=(\d{4}-\d\d-\d\d)$", folder)
                    if date and date[1] < oldest:
                        files.delete_dir(folder)
            except (OSError, pa.ArrowException) as error:
                log.warning("Old dates of the decision log cannot be removed: %s. Retrying tomorrow", error)


def _write_parquet(table: pa.Table, stream: Any) -> None:
    """Write a file; a higher level makes packed cycles 6 % smaller, and other levels save hardly more."""
    pq.write_table(table, stream, compression="zstd", compression_level=_COMPRESSION_LEVEL)


class _Spool:
    """One open spool; its process holds a lock on it."""

    def __init__(self, path: Path, schema: pa.Schema, key: SpoolKey) -> None:
        self.path, self.key, self.rows, self.opened = path, key, 0, time.monotonic()
        # Renamed after it is locked: a spool with its final name and without a lock is abandoned.
        unnamed = path.with_suffix(".new")
        self._file: BinaryIO = os.fdopen(_private(str(unnamed), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            unnamed.rename(path)
            self._writer = pa.ipc.new_stream(self._file, schema)
        except BaseException:
            with suppress(OSError):
                self._file.close()
            for left_over in (unnamed, path):
                left_over.unlink(missing_ok=True)
            raise

    def append(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += batch.num_rows

    def close(self) -> None:
        with self._file:
            self._writer.close()


def _key_of(record: Record) -> SpoolKey:
    at = record.finish or record.start if isinstance(record, ReassignmentRecord) else record.time
    return record.cluster, f"{at.astimezone(UTC):%Y-%m-%d}", f"{record.term:010d}"


def batch_of(records: Records, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([_arrow_value(getattr(record, field.name)) for record in records], field.type) for field in schema],
        schema=schema,
    )


def _arrow_value(value: Any) -> Any:
    return [asdict(path) for path in value] if isinstance(value, list) and value and is_dataclass(value[0]) else value


def read_spool(path: Path, schema: pa.Schema) -> pa.Table:
    """Return all whole batches of a spool, which may be truncated; `schema` applies if there are none.

    Raises:
        OSError: the spool cannot be read now, so its content is unknown.
    """
    batches: list[pa.RecordBatch] = []
    with open(path, "rb", opener=_private) as file:
        try:
            with pa.ipc.open_stream(file) as reader:
                schema = reader.schema  # of the version that wrote the spool
                for batch in reader:
                    batches.append(batch)
        except (pa.ArrowException, EOFError, OSError) as error:
            if (
                isinstance(error, OSError) and error.errno
            ):  # an OS error; Arrow's own error about a truncated file has no number
                raise
            log.info("A truncated spool has %d whole cycles: %s", len(batches), error)
    return pa.Table.from_batches(batches, schema=schema)


def _is_logged(count: int) -> bool:
    return count == 1 or count % _LOG_EVERY == 0


def _abandoned(directory: Path) -> list[Path]:
    """The spools without a running process."""
    spools = []
    for path in sorted(directory.glob("*.arrows")):
        # Skip errors: a locked spool has a running process, a missing one was rolled by another process, and an
        # unreadable one belongs to another user.
        with suppress(OSError), open(path, "rb", opener=_private) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            spools.append(path)
    return spools


def _validate_uri(uri: str) -> str:
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if scheme not in _SCHEMES:
        raise Invalid(
            f"decisions: {uri!r} is neither a path nor the URI of an object store; a URI must begin with one of "
            f"{', '.join(f'{scheme}://' for scheme in _SCHEMES)}; give /var/lib/autothrottle/decisions, for example"
        )
    return uri.rstrip("/")


def _spool_directory(spool: Path | None, root: Path | None) -> Path:
    directory = spool or (root / "_spool" if root else None)
    if directory is None:
        raise Invalid("decisions-spool is not set; an object store needs a local directory for spools: set one")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.is_symlink():
            raise Invalid(f"decisions: the spool {directory} is a symbolic link; name the directory to which it leads")
        _close_to_others(directory)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise Invalid(f"decisions: {directory} cannot be written ({error}); give another directory") from None
    return directory


def _close_to_others(directory: Path) -> None:
    """Give a spool of this user mode 0700. A spool of another user, such as a mounted volume, stays as it is."""
    if stat.S_IMODE(directory.stat().st_mode) == 0o700:
        return
    try:
        directory.chmod(0o700)
    except PermissionError:
        log.warning(
            "The spool %s belongs to another user and keeps its mode, so others may enter it. Its files have mode "
            "0600. Give the decision log a directory of its own",
            directory,
        )


def _private(path: str, flags: int) -> int:
    """Open a file of the spool: not through a symbolic link, without waiting at a pipe, and closed to other users."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)

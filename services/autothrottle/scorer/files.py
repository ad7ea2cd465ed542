"""The files of the decision log and of the results, through Arrow's file systems. The type to know is `ArrowFiles`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from autothrottle.adapters.decision_log.files import file_system, is_hidden, is_staged
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.texts import first_line
from autothrottle.scorer.log import (
    UNREADABLE,
    FileReading,
    Folder,
    folder_of,
    read_decisions,
    read_reassignments,
    unreadable,
)

_FILE = "part-0.parquet"
"""The file of a folder of a table."""

_ATTEMPTS = 3
"""How often the records of reassignments are read while compaction removes files."""

_LONGEST_WRITE = timedelta(days=1)
"""Age at which a hidden file is what a killed run left."""

Reduce = Callable[[pa.Table], pa.Table]
"""Returns the rows of a table that matter; applied to parts of a table, then to all that they returned."""


class Files(Protocol):
    """Access to the decision log and to the results, wherever they are."""

    log: str
    """Location of the decision log."""
    out: str
    """Location of the results."""

    def paths(self, kind: str) -> Mapping[str, int]:
        """Return path -> size in bytes of the log's files of a kind."""
        ...

    def reassignments(self) -> tuple[list[dict[str, Any]], list[FileReading]]:
        """Return all usable records of reassignments, including duplicates, and what was read of each file."""
        ...

    def table(self, name: str, schema: pa.Schema, recovery_ids: Collection[str] | None = None) -> pa.Table:
        """Return a table of results in the columns of a schema, or its rows of some recoveries; absent: no rows."""
        ...

    def reduced(self, name: str, schema: pa.Schema, reduce: Reduce) -> pa.Table:
        """Return what `reduce` leaves of a table, which need not fit into memory."""
        ...

    def write(self, name: str, rows: pa.Table) -> None:
        """Write part of a table. Replaces only the folders (cluster and date) that it contains."""
        ...

    def remove(self, name: str, folder: Folder) -> None:
        """Remove one folder of a table."""
        ...

    def write_text(self, name: str, text: str) -> None:
        """Write a file beside the tables; replaces an existing one, also a symbolic link."""
        ...


class ArrowFiles:
    """`Files` of a local path, or of an object store that Arrow knows."""

    tasks_write = True
    """Whether tasks may write folders of tables, each on its own."""

    def __init__(self, log: str, out: str) -> None:
        """Open both locations.

        Args:
            log: a local path or a URI, as in the planner's `--decisions`.
            out: a local path or a URI.

        Raises:
            Invalid: Arrow has no file system for a location.
        """
        self.log, self.out = log.rstrip("/"), out.rstrip("/")
        self._log_files, self._log_root = opened(self.log)
        self._out_files, self._out_root = opened(self.out)

    def paths(self, kind: str) -> Mapping[str, int]:
        root = f"{self._log_root}/{kind}"
        infos = self._log_files.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        return {
            info.path: info.size or 0
            for info in infos
            if folder_of(info.path) is not None and not is_hidden(info.base_name) and not is_staged(info.path, root)
            if info.type in (fs.FileType.File, fs.FileType.Directory)  # a directory fails when it is opened
        }

    def reassignments(self) -> tuple[list[dict[str, Any]], list[FileReading]]:
        for _ in range(_ATTEMPTS):
            rows, readings = [], []
            for path in sorted(self.paths("reassignments")):
                try:
                    with self._log_files.open_input_file(path) as file:
                        own, reading = read_reassignments(path, file)
                except UNREADABLE as error:
                    own, reading = [], self._unreadable(path, error)
                rows += own
                readings.append(reading)
            # Without the records of a file, recoveries would seem to be gone.
            if not any(reading.is_gone for reading in readings):
                return rows, readings
        raise Unavailable(f"files in {self.log} disappear while they are read. Fix: run it again")

    def decisions(self, path: str) -> tuple[pa.Table | None, FileReading]:
        """Return the usable rows of a decision file, and what was read; None: the file cannot be read."""
        try:
            with self._log_files.open_input_file(path) as file:
                return read_decisions(path, file)
        except UNREADABLE as error:
            return None, self._unreadable(path, error)

    def _unreadable(self, path: str, error: Exception) -> FileReading:
        is_gone = self._log_files.get_file_info(path).type is fs.FileType.NotFound
        return replace(unreadable(path, error), is_gone=is_gone)

    def table(self, name: str, schema: pa.Schema, recovery_ids: Collection[str] | None = None) -> pa.Table:
        where = None if recovery_ids is None else pc.field("recovery_id").isin(sorted(recovery_ids))
        return pa.concat_tables([schema.empty_table(), *self._folders(name, schema, where)])

    def reduced(self, name: str, schema: pa.Schema, reduce: Reduce) -> pa.Table:
        parts = [reduce(part) for part in self._folders(name, schema, None)]
        return reduce(pa.concat_tables([schema.empty_table(), *parts]) if not parts else pa.concat_tables(parts))

    def _folders(self, name: str, schema: pa.Schema, where: Any) -> Iterator[pa.Table]:
        """Return the rows of each file of a table; columns that an older version lacked are null."""
        root = f"{self._out_root}/{name}"
        infos = self._out_files.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        for info in sorted(infos, key=lambda info: str(info.path)):
            folder = folder_of(info.path)
            if folder is None or is_hidden(info.base_name) or is_staged(info.path, root):
                continue
            dataset = ds.dataset(info.path, filesystem=self._out_files, schema=_stored(schema))
            rows = dataset.to_table(filter=where)
            for column, value in zip(("cluster", "date"), folder, strict=True):
                rows = rows.append_column(column, pa.array([value] * len(rows), pa.string()))
            yield rows.select(schema.names).cast(schema)

    def write(self, name: str, rows: pa.Table) -> None:
        for folder, part in by_folder(rows):
            self.write_folder(name, folder, part)

    def write_folder(self, name: str, folder: Folder, rows: pa.Table) -> None:
        """Replace one folder of a table by one file.

        The file always has the same name, so a reader sees the rows of the last run or those of this run, and a task
        that is repeated replaces its own file. Files of a version that chose other names are removed first.

        Args:
            name: the table.
            folder: its cluster and date.
            rows: its rows.
        """
        place = f"{self._out_root}/{name}/{folder_name(folder)}"
        self._out_files.create_dir(place, recursive=True)
        hidden = f"{place}/.{_FILE}.{uuid.uuid4().hex}"
        with self._out_files.open_output_stream(hidden) as stream:
            pq.write_table(rows.select(_stored(rows.schema).names), stream, compression="zstd")
        for info in self._out_files.get_file_info(fs.FileSelector(place)):
            if info.base_name != _FILE and (not is_hidden(info.base_name) or is_abandoned(info)):
                with suppress(FileNotFoundError):  # an attempt of the same task has removed it
                    self._out_files.delete_file(info.path)
        self._out_files.move(hidden, f"{place}/{_FILE}")

    def remove(self, name: str, folder: Folder) -> None:
        place = f"{self._out_root}/{name}/{folder_name(folder)}"
        if self._out_files.get_file_info(place).type is fs.FileType.Directory:
            self._out_files.delete_dir(place)

    def write_text(self, name: str, text: str) -> None:
        self._out_files.create_dir(self._out_root, recursive=True)
        place, hidden = f"{self._out_root}/{name}", f"{self._out_root}/.{name}.{uuid.uuid4().hex}"
        try:
            with self._out_files.open_output_stream(hidden) as stream:
                stream.write(text.encode())
        except BaseException:  # such as a full disk, on which each night would leave a file
            with suppress(OSError):
                self._out_files.delete_file(hidden)
            raise
        # A local rename replaces a symbolic link and not its target.
        self._out_files.move(hidden, place)


def opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Return Arrow's file system of a location, and the path there.

    Raises:
        Invalid: Arrow has none.
    """
    try:
        return file_system(uri)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise Invalid(f"{uri!r} cannot be reached: {first_line(error)}. Fix: name another location") from None


def is_abandoned(info: fs.FileInfo) -> bool:
    """Return whether a hidden file is so old that its writer was killed."""
    return info.mtime is not None and bool(datetime.now(UTC) - info.mtime > _LONGEST_WRITE)


def _stored(schema: pa.Schema) -> pa.Schema:
    """Return the columns in a file; the names of its folders have the others."""
    return pa.schema([field for field in schema if field.name not in ("cluster", "date")])


def by_folder(rows: pa.Table) -> Iterator[tuple[Folder, pa.Table]]:
    """Return the rows of each cluster and date."""
    rows = rows.sort_by([("cluster", "ascending"), ("date", "ascending")])
    folders: Sequence[Folder] = list(zip(rows["cluster"].to_pylist(), rows["date"].to_pylist(), strict=True))
    begin = 0
    for end in range(1, len(folders) + 1):
        if end == len(folders) or folders[end] != folders[begin]:
            yield folders[begin], rows.slice(begin, end - begin)
            begin = end


_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^\x7f" + "".join(map(chr, range(1, 32))))
"""Characters that Spark escapes in the names of folders."""


def folder_name(folder: Folder) -> str:
    """Return the path of a folder, as Spark would name it.

    >>> folder_name(("north/south 1", "2026-11-05"))
    'cluster=north%2Fsouth 1/date=2026-11-05'
    """
    cluster, date = ("".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in part) for part in folder)
    return f"cluster={cluster}/date={date}"

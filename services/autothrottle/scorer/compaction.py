"""`autothrottle compact`: merges the small files of the decision log. The type to know is `Compaction`.

A planner writes a file every 15 minutes. Compaction merges the files of one kind, cluster, date and term, in their
order, into a file of about 64 MB. The new file names the files that it replaces, and is complete before they are
removed. So a crash at any point leaves every record in at least one file. Records that are then in two files are
copies, which every reader drops, and the next run removes the files that another one replaces. The same holds for two
runs at once.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from autothrottle.adapters.decision_log.files import FILE_NAME, is_hidden, is_staged, read_metadata, source_count, sync
from autothrottle.core.errors import AutothrottleError, Invalid, Missing, Unavailable
from autothrottle.core.texts import escape_unprintable
from autothrottle.scorer.files import is_abandoned, opened
from autothrottle.scorer.log import (
    UNREADABLE,
    FileReading,
    read_decisions,
    read_reassignments,
    unreadable,
    with_columns,
)
from autothrottle.scorer.parser import ScorerParser

_READERS: Mapping[str, Callable[[str, pa.NativeFile], tuple[Any, FileReading]]] = {
    "decisions": read_decisions,
    "reassignments": read_reassignments,
}
"""Kind -> how the scorer reads a file."""

_LARGEST = 64_000_000
"""Size of the files that are merged into one, bytes."""

_ROWS = 250_000
"""Number of rows of a row group."""

_SOURCES = b"autothrottle.sources"
"""Key of a file's metadata -> names of the files that it replaces."""

_DATE = re.compile(r"/cluster=[^/]+/date=(\d{4}-\d\d-\d\d)/[^/]+$")


@dataclass(frozen=True, slots=True)
class _LogFile:
    """A readable file of the log."""

    path: str
    size: int
    schema: pa.Schema
    """Without metadata."""
    sources: frozenset[str]
    """Names of the files of which it has the rows; a file that was not compacted has its own name."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Compaction:
    """Merges the files of a decision log."""

    def __init__(
        self,
        files: fs.FileSystem,
        root: str,
        notify: Callable[[str], None] = lambda line: None,
        largest: int = _LARGEST,
    ) -> None:
        """Take a log.

        Args:
            files: the file system of the log.
            root: its path there.
            notify: receives a message about each file that cannot be read.
            largest: size of the files that are merged into one, bytes.
        """
        self._files, self._root, self._notify, self._largest = files, root, notify, largest

    def run(self, until: str) -> tuple[int, int]:
        """Merge the files of all dates up to one; return how many files were replaced, and by how many.

        Args:
            until: the last date, `YYYY-MM-DD`.

        Raises:
            Missing: there is no decision log.
            Unavailable: the location fails while it is read or written; the log is complete.
        """
        removed = written = 0
        try:
            groups = self._groups(until)
            for group in groups.values():
                if len(group) > 1:
                    replaced, merged = self._compact(group)
                    removed, written = removed + replaced, written + merged
        except (pa.ArrowException, OSError) as error:
            raise Unavailable(f"{self._root}: {error}. The log is complete. Fix: run it again") from None
        return removed, written

    def _groups(self, until: str) -> Mapping[tuple[str, str], Sequence[fs.FileInfo]]:
        """Return (folder, cluster and term) -> files in the order of writing, for each kind of record."""
        infos = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True, recursive=True))
        groups: dict[tuple[str, str], list[tuple[int, str, fs.FileInfo]]] = {}
        is_log = False
        for info in infos:
            if is_staged(info.path, self._root):
                continue
            if _is_killed_merge(info):
                self._files.delete_file(info.path)
                continue
            name, date = FILE_NAME.fullmatch(info.base_name), _DATE.search(info.path)
            if info.type is fs.FileType.File and name and date and not is_hidden(info.base_name):
                is_log = True
                if date[1] <= until:
                    key = (info.path.rpartition("/")[0], name["term"])
                    groups.setdefault(key, []).append((int(name["sequence"]), info.base_name, info))
        if not is_log:
            raise Missing(f"there is no decision log in {self._root}; name the planner's --decisions")
        return {key: [info for _, _, info in sorted(group, key=lambda item: item[:2])] for key, group in groups.items()}

    def _compact(self, infos: Sequence[fs.FileInfo]) -> tuple[int, int]:
        files = list(self._readable(infos))
        copies = [file for file in files if any(_replaces(other, file) for other in files)]
        for file in copies:
            self._files.delete_file(file.path)
        removed, written = len(copies), 0
        for batch in self._batches([file for file in files if file not in copies]):
            while len(batch) > 1:
                try:
                    self._merge(batch)
                except _UnreadableFile as damage:
                    if damage.problem:
                        self._notify(f"{damage.problem}. It stays as it is")
                    batch = [file for file in batch if file is not damage.file]
                else:
                    removed, written = removed + len(batch), written + 1
                    break
        return removed, written

    def _readable(self, infos: Sequence[fs.FileInfo]) -> Iterator[_LogFile]:
        for info in infos:
            try:
                with self._files.open_input_file(info.path) as file:
                    metadata = read_metadata(file)
                    schema = metadata.schema.to_arrow_schema().remove_metadata()
                own = json.dumps([info.base_name]).encode()
                sources = json.loads((metadata.metadata or {}).get(_SOURCES, own))
                if len(set(schema.names)) < len(schema.names) or not isinstance(sources, list):
                    raise Invalid("two of its columns have the same name, or its metadata is damaged")
                yield _LogFile(info.path, info.size, schema, frozenset(map(str, sources)))
            except FileNotFoundError:  # another run has merged it
                continue
            except (*UNREADABLE, RecursionError) as error:
                self._notify(f"{unreadable(info.path, error).problem}. It stays as it is")

    def _batches(self, files: Sequence[_LogFile]) -> Iterator[list[_LogFile]]:
        """Return neighbours that become one file: small enough together, and with columns that go together."""
        batch: list[_LogFile] = []
        schema = pa.schema([])
        for file in files:
            try:
                merged = pa.unify_schemas([schema, _nullable(file.schema)])
            except pa.ArrowException:
                merged = None
            if merged is None or sum(each.size for each in batch) + file.size > self._largest:
                yield from [batch] if len(batch) > 1 else []
                batch, merged = [], _nullable(file.schema)
            batch.append(file)
            schema = merged
        yield from [batch] if len(batch) > 1 else []

    def _merge(self, batch: Sequence[_LogFile]) -> None:
        """Write the rows of files into one, then remove them.

        Raises:
            _UnreadableFile: the rows of a file cannot be read; all files stay.
        """
        sources = sorted(frozenset().union(*(file.sources for file in batch)))
        schema = pa.unify_schemas([_nullable(file.schema) for file in batch])
        schema = schema.with_metadata({_SOURCES: json.dumps(sources).encode()})
        folder, _, last = batch[-1].path.rpartition("/")
        name = FILE_NAME.fullmatch(last)
        assert name
        count = sum(source_count(file.path) for file in batch)
        merged = f"{name['cluster']}-{name['term']}-{name['sequence']}.{count}-{uuid.uuid4().hex[:8]}.parquet"
        hidden = f"{folder}/.{merged}.tmp"
        try:
            with (
                self._files.open_output_stream(hidden) as stream,
                pq.ParquetWriter(stream, schema, compression="zstd") as writer,
            ):
                tables: list[pa.Table] = []
                for file in batch:
                    for table in self._row_groups(file, schema):
                        tables.append(table)
                        if sum(map(len, tables)) >= _ROWS:
                            writer.write_table(pa.concat_tables(tables))
                            tables = []
                if tables:
                    writer.write_table(pa.concat_tables(tables))
            self._sync(hidden)
            self._files.move(hidden, f"{folder}/{merged}")
            self._sync(folder)
        except BaseException:
            with suppress(OSError):
                self._files.delete_file(hidden)
            raise
        for file in batch:
            with suppress(FileNotFoundError):  # another run has merged it, too
                self._files.delete_file(file.path)

    def _row_groups(self, file: _LogFile, schema: pa.Schema) -> Iterator[pa.Table]:
        try:
            # A merged file is worth nothing if a reader refuses a part of it.
            read = _READERS.get(file.path.removeprefix(self._root).split("/")[1])
            with self._files.open_input_file(file.path) as source:
                if read is not None and (problem := read(file.path, source)[1].problem):
                    raise _UnreadableFile(file, problem)
            with self._files.open_input_file(file.path) as source:
                parquet = pq.ParquetFile(source)
                for index in range(parquet.num_row_groups):
                    yield with_columns(parquet.read_row_group(index), schema)
        except FileNotFoundError:  # another run has merged it
            raise _UnreadableFile(file, "") from None
        except UNREADABLE as error:
            raise _UnreadableFile(file, unreadable(file.path, error).problem) from None

    def _sync(self, path: str) -> None:
        """Let a local file or directory survive a crash of the host; object stores do that by themselves."""
        if isinstance(self._files, fs.LocalFileSystem):
            sync(path)


class _UnreadableFile(Exception):
    """The rows of a file cannot be read; without a problem, another run has removed the file."""

    def __init__(self, file: _LogFile, problem: str) -> None:
        super().__init__(problem)
        self.file, self.problem = file, problem


def _is_killed_merge(info: fs.FileInfo) -> bool:
    """Return whether a file is what a killed run left."""
    name = FILE_NAME.fullmatch(info.base_name.removeprefix(".").removesuffix(".tmp"))
    is_hidden_merge = info.base_name.startswith(".") and info.base_name.endswith(".tmp")
    is_merged = info.type is fs.FileType.File and is_hidden_merge and name is not None and name["sources"] is not None
    return is_merged and is_abandoned(info)


def _replaces(file: _LogFile, other: _LogFile) -> bool:
    """Return whether a file has all rows of another one; of two equal ones, the first one does."""
    return other.sources < file.sources or (other.sources == file.sources and file.name < other.name)


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Return the columns as nullable ones: a file of another version may lack some of them."""
    return pa.schema([field.with_nullable(True) for field in schema])


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = ScorerParser(
        prog="autothrottle compact",
        description="Merge the small files of a decision log into files of about 64 MB. Planners may write to the log "
        "meanwhile. A run that ends early loses no record; the next one continues.",
        epilog="Exit status: 0 done, 1 failure, 2 wrong usage.",
    )
    parser.add_argument(
        "--decisions",
        required=True,
        metavar="URI",
        help="decision log: a path, or the URI of an object store such as s3://bucket/path",
    )
    parser.add_argument(
        "--older-than",
        type=_days,
        default=1,
        metavar="DAYS",
        help="age of the youngest date in days, >= 0; 0: also today, in UTC (default %(default)s)",
    )
    return parser


def _days(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,5}", text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of days: it must be >= 0; give 1, for example")


def main(argv: Sequence[str] | None = None) -> int:
    """Compact a decision log. Return the exit status, see `make_parser`."""
    arguments = make_parser().parse_args(argv)
    until = datetime.now(UTC) - timedelta(days=arguments.older_than)
    try:
        files, root = opened(arguments.decisions)
        removed, written = Compaction(files, root, _print_progress).run(f"{until:%Y-%m-%d}")
    except AutothrottleError as error:
        print(escape_unprintable(str(error)), file=sys.stderr)
        return 1
    _print_progress(f"{removed} files are replaced by {written}")
    return 0


def _print_progress(line: str) -> None:
    print(f"compact: {escape_unprintable(line)}", file=sys.stderr, flush=True)

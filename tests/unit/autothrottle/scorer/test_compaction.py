"""Compaction of the decision log: nothing is lost, nothing is scored twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from autothrottle.core.errors import Missing
from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.scorer.compaction import Compaction, main
from autothrottle.scorer.files import ArrowFiles
from autothrottle.scorer.local import LocalScorer
from autothrottle.scorer.scoring import find_work, score
from autothrottle.scorer.tables import RECOVERIES
from tests.unit.autothrottle.scorer.logs import CLUSTERS, DATES, write_log

UNTIL = "2026-11-30"


class Killed(BaseException):
    """The process ends."""


class DyingFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """A local file system whose process is killed before one of its changes."""

    def __init__(self, changes: int) -> None:
        """Die after this number of changes."""
        self._local, self._left = fs.LocalFileSystem(), changes

    def _change(self) -> None:
        if self._left < 0:  # dead: nothing happens any more, also not in an exception handler
            raise Killed
        self._left -= 1
        if self._left < 0:
            raise Killed

    def get_file_info(self, paths: list[str]) -> Any:
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        return self._local.get_file_info(selector)

    def open_input_file(self, path: str) -> Any:
        return self._local.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._change()
        return self._local.open_output_stream(path)

    def move(self, source: str, destination: str) -> None:
        self._change()
        self._local.move(source, destination)

    def delete_file(self, path: str) -> None:
        self._change()
        self._local.delete_file(path)

    def _absent(self, *arguments: Any) -> Any:
        raise NotImplementedError

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _absent
    open_append_stream = open_input_stream = normalize_path = _absent

    def get_type_name(self) -> str:
        return "dying"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two clusters on two dates, in files of one cycle."""
    write_log(tmp_path / "log")
    return tmp_path / "log"


def files(log: Path) -> list[Path]:
    return sorted(log.rglob("*.parquet"))


def rows(log: Path, kind: str) -> list[str]:
    """Return all records of a kind, sorted, with copies."""
    return sorted(repr(row) for path in files(log / kind) for row in pq.ParquetFile(path).read().to_pylist())


def compact(log: Path, until: str = UNTIL, **settings: Any) -> tuple[tuple[int, int], list[str]]:
    lines: list[str] = []
    done = Compaction(fs.LocalFileSystem(), str(log), lines.append, **settings).run(until)
    return done, lines


def test_the_files_of_a_term_and_date_become_one_file_with_the_same_rows(log: Path) -> None:
    records = {kind: rows(log, kind) for kind in ("decisions", "reassignments")}
    old = len(files(log))
    (removed, written), lines = compact(log)
    assert (lines, len(files(log))) == ([], old - removed + written)
    assert {path.parent: 0 for path in files(log)}.keys() == {path.parent for path in files(log)}
    assert len({path.parent for path in files(log)}) == len(files(log)) == written
    assert {kind: rows(log, kind) for kind in records} == records
    assert compact(log) == ((0, 0), [])


def test_rows_stay_in_the_order_of_writing(log: Path) -> None:
    compact(log)
    for path in files(log / "decisions"):
        cycles = pq.ParquetFile(path).read()["cycle"].to_pylist()
        assert cycles == sorted(cycles)


def test_a_file_has_at_most_the_largest_size(log: Path) -> None:
    sizes = [path.stat().st_size for path in files(log)]
    compact(log, largest=3 * max(sizes))
    assert len(files(log)) < len(sizes)
    assert max(path.stat().st_size for path in files(log)) <= 3 * max(sizes)


def test_younger_dates_and_other_files_stay(log: Path) -> None:
    other = next(iter(files(log))).with_name("notes.parquet")
    other.write_text("not a file of the planner")
    young = [path for path in files(log) if "date=2026-11-03" in str(path)]
    assert young
    compact(log, until="2026-11-02")
    assert other.exists() and all(path.exists() for path in young)


def crashes(log: Path, directory: Path) -> Iterator[Path]:
    """Yield copies of the log after a run that was killed before its first change, its second one, and so on."""
    for changes in count():
        copy = directory / str(changes)
        shutil.copytree(log, copy)
        try:
            Compaction(fs.PyFileSystem(DyingFiles(changes)), str(copy)).run(UNTIL)
        except Killed:
            yield copy
        else:
            return


def test_a_crash_at_any_point_loses_no_record_and_leaves_no_copy_after_the_next_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_log(log, CLUSTERS[:1], DATES[:1], cycles=4, brokers=1)
    records = {kind: rows(log, kind) for kind in ("decisions", "reassignments")}
    crashed = 0
    for crashed, copy in enumerate(crashes(log, tmp_path), 1):  # noqa: B007
        for kind, expected in records.items():
            assert set(rows(copy, kind)) == set(expected)
        compact(copy)
        assert {kind: rows(copy, kind) for kind in records} == records
    assert crashed == 10  # of each kind: begin a file, name it, remove those that it replaces


def test_two_runs_at_once_lose_no_record(log: Path) -> None:
    """The other run merges the same files after this one has listed them."""
    records = rows(log, "decisions")

    class Overtaken(DyingFiles):
        def open_output_stream(self, path: str, metadata: Any) -> Any:
            self.open_output_stream = super().open_output_stream  # type: ignore[method-assign]
            compact(log)
            return super().open_output_stream(path, metadata)

    Compaction(fs.PyFileSystem(Overtaken(10**6)), str(log)).run(UNTIL)
    assert set(rows(log, "decisions")) == set(records)
    compact(log)
    assert rows(log, "decisions") == records


def test_a_damaged_file_stays_and_is_named_and_the_others_are_merged(log: Path) -> None:
    damaged, odd = files(log / "decisions")[1:3]
    truncated = damaged.read_bytes()[:-100]
    damaged.write_bytes(truncated)
    table = pq.ParquetFile(odd).read()
    index = table.schema.get_field_index("rate_decided")
    pq.write_table(table.set_column(index, "rate_decided", pa.array(["?"] * len(table))), odd)
    _, lines = compact(log)
    (line,) = lines
    assert str(damaged) in line and "stays as it is" in line
    assert damaged.read_bytes() == truncated and odd.exists()
    assert len(files(damaged.parent)) <= 4


def test_a_file_that_the_scorer_refuses_is_not_merged(log: Path) -> None:
    """Its neighbours would be refused, too, because they are in the same file."""
    refused = files(log / "decisions")[1]
    refused.write_bytes(refused.read_bytes().replace(b"east", b"e\xffst"))
    (line,) = compact(log)[1]
    assert str(refused) in line and refused.exists()
    assert len(files(refused.parent)) == 2


def test_a_file_of_an_older_version_is_merged_with_one_of_this_version(log: Path) -> None:
    old = files(log / "decisions")[0]
    pq.write_table(pq.ParquetFile(old).read().drop_columns(["trace_id"]), old)
    expected = len(rows(log, "decisions"))
    assert compact(log)[1] == []
    assert len(rows(log, "decisions")) == expected


def test_a_compacted_date_is_not_scored_again(log: Path, tmp_path: Path) -> None:
    """Dates are new if the number of their files has changed, and compaction changes it."""
    arrow = ArrowFiles(str(log), str(tmp_path / "out"))
    work = find_work(arrow)
    arrow.write("quality", score(arrow, LocalScorer(), work, REFERENCE_RATIO))
    assert work.new == DATES
    compact(log)
    assert find_work(arrow).new == ()


def test_a_date_that_is_compacted_while_it_is_scored_is_scored_again(log: Path, tmp_path: Path) -> None:
    """The files that were listed are gone, and their rows are in a file that was not."""
    arrow = ArrowFiles(str(log), str(tmp_path / "out"))
    work = find_work(arrow)
    compact(log)
    arrow.write("quality", score(arrow, LocalScorer(), work, REFERENCE_RATIO))
    work = find_work(arrow)
    assert work.new == DATES
    arrow.write("quality", score(arrow, LocalScorer(), work, REFERENCE_RATIO))
    assert find_work(arrow).new == ()
    assert arrow.table("recoveries", RECOVERIES).num_rows == 4


def test_an_absent_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Missing, match="there is no decision log in"):
        compact(tmp_path)
    assert main(["--decisions", str(tmp_path)]) == 1
    assert "there is no decision log in" in capsys.readouterr().err


@pytest.mark.parametrize("days", ["-1", "x", "", "1.5"])
def test_an_age_out_of_range_is_refused(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--decisions", "nowhere", f"--older-than={days}"])
    assert f"{days!r} is not a number of days" in capsys.readouterr().err

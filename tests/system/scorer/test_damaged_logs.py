"""Damaged decision logs: the scorer uses undamaged data and counts the rest."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autothrottle.core.errors import Invalid, Missing
from autothrottle.scorer import report, results
from autothrottle.scorer.files import ArrowFiles
from autothrottle.scorer.scoring import TABLES, ScoreWork, find_work
from autothrottle_lab.simulate.virtual_time import BEGIN
from tests.system.scorer import golden
from tests.system.scorer.conftest import Scored, results_of, run


def files(log: Path, cluster: str) -> list[Path]:
    """Return the decision files of a cluster."""
    return sorted((log / "decisions" / f"cluster={cluster}").rglob("*.parquet"))


def rewrite(path: Path, table: pa.Table) -> None:
    """Replace the table in a file."""
    pq.write_table(table, path)


def read(path: Path) -> pa.Table:
    """Return the table in a file, without columns from folder names."""
    return pq.ParquetFile(path).read()


def result_rows(files_of_log: ArrowFiles, name: str) -> list[dict[str, Any]]:
    """Return a table of results."""
    rows: list[dict[str, Any]] = files_of_log.table(name, TABLES[name]).to_pylist()
    return rows


@dataclass(frozen=True)
class Damaged:
    """A damaged copy of the golden logs, and its scores."""

    log: Path
    files: ArrowFiles
    notes: list[str]
    """What the run reported."""
    quality: dict[str, dict[str, Any]]
    """Cluster -> its row of the quality table."""
    efficiency: dict[str, float]

    def again(self) -> ScoreWork:
        """Score the new part of the log."""
        return run(self.files)


@pytest.fixture(scope="module")
def damaged(scored: Scored, tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    """Damage every cluster's log in a different way."""
    log, out = (tmp_path_factory.mktemp("damaged") / name for name in ("log", "out"))
    shutil.copytree(scored.directory / "log", log)
    for cluster in ("blind", "dull", "sensitive", "restless", "mild"):  # not used by these tests
        shutil.rmtree(log / "decisions" / f"cluster={cluster}")
        shutil.rmtree(log / "reassignments" / f"cluster={cluster}")
    (perfect,), (seventy,), (halved,), (overridden,) = (
        files(log, cluster) for cluster in ("perfect", "seventy", "halved", "overridden")
    )
    # Beside an undamaged file: a truncated file, a corrupt file, and a date without files.
    perfect.with_name("perfect-0000000001-1.parquet").write_bytes(perfect.read_bytes()[:-100])
    perfect.with_name("perfect-0000000001-2.parquet").write_bytes(b"PAR1 not really")
    (perfect.parent.parent / "date=2026-11-30").mkdir()
    # An older version without optional columns, and a file without a required column.
    rewrite(seventy, read(seventy).drop_columns(["instance_type", "trace_id", "replication"]))
    rewrite(seventy.with_name("seventy-0000000001-1.parquet"), read(seventy).drop_columns(["rate_decided"]))
    # A newer version with an additional column, and another file whose column has another type.
    table = read(halved)
    newer = table.set_column(0, "schema_version", pa.array([99] * len(table), pa.int64()))
    rewrite(halved, newer.append_column("future_column", pa.array(["?"] * len(table))))
    rates = [str(rate) for rate in table["rate_decided"].to_pylist()]
    odd = table.set_column(table.schema.get_field_index("rate_decided"), "rate_decided", pa.array(rates))
    rewrite(halved.with_name("halved-0000000001-1.parquet"), odd)
    # Duplicate records in a second file, as after a spool was recovered twice.
    shutil.copy(overridden, overridden.with_name("overridden-0000000001-1.parquet"))
    files_of_log, notes = ArrowFiles(str(log), str(out)), list[str]()
    run(files_of_log, notify=notes.append)
    quality = {row["cluster"]: row for row in result_rows(files_of_log, "quality")}
    efficiency = {row["cluster"]: row["efficiency"] for row in result_rows(files_of_log, "recoveries")}
    return Damaged(log, files_of_log, notes, quality, efficiency)


def test_undamaged_rows_are_scored_despite_damage(damaged: Damaged, scored: Scored) -> None:
    assert damaged.efficiency.keys() == {"perfect", "seventy", "halved", "overridden", "handed-over"}
    for cluster in ("perfect", "halved", "overridden", "handed-over"):
        assert damaged.efficiency[cluster] == pytest.approx(scored.recovery(cluster)["efficiency"], rel=1e-9)


def test_truncated_and_corrupt_files_are_counted_and_named(damaged: Damaged) -> None:
    assert (damaged.quality["perfect"]["files"], damaged.quality["perfect"]["unreadable_files"]) == (3, 2)
    problems = [note for note in damaged.notes if "cannot be read" in note]
    assert [re.sub(r".*/|-0000000001| cannot.*", "", note) for note in problems] == [
        "halved-1.parquet",
        "perfect-1.parquet",
        "perfect-2.parquet",
    ]
    assert problems[0].endswith("its column rate_decided has the type string, not int64")


def test_a_log_without_optional_columns_is_scored(damaged: Damaged, scored: Scored) -> None:
    # Without measured replication the scorer uses the throttle instead.
    assert damaged.efficiency["seventy"] == pytest.approx(scored.recovery("seventy")["efficiency"], rel=0.03)


def test_rows_without_a_required_column_are_counted(damaged: Damaged) -> None:
    quality = damaged.quality["seventy"]
    assert quality["unreadable_files"] == 0
    assert 0 < quality["incomplete_rows"] == quality["rows"] / 2


def test_rows_of_a_newer_version_are_used_and_counted(damaged: Damaged) -> None:
    quality = damaged.quality["halved"]
    # A file with a column of another type is skipped entirely; a query of its key alone still sees its rows.
    assert quality["newer_rows"] == len(read(files(damaged.log, "halved")[1]))


def test_duplicate_records_count_once_and_are_counted(damaged: Damaged) -> None:
    assert results_of(damaged.files).copies == len(read(files(damaged.log, "overridden")[0]))


def test_the_report_of_a_run_without_new_data_equals_the_previous_report(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report counted the duplicates of its own run only, so the second night's page showed none.

    It also computed statistics from displayed rows only: for 5,000 recoveries, those of the worst 1,000.
    """
    monkeypatch.setattr(results, "MOST_RECOVERIES", 2)
    assert damaged.again().dates == ()
    found = results_of(damaged.files)
    assert len(found.recoveries) == 2
    assert found.copies == len(read(files(damaged.log, "overridden")[0])) > 0
    worst = min(damaged.efficiency.values())
    assert found.count == 5
    assert found.worst_efficiency == pytest.approx(worst)
    assert found.mean_efficiency == pytest.approx(sum(damaged.efficiency.values()) / 5)
    assert "5 recoveries reached " in report.as_html(found)


def test_a_second_run_reads_only_the_new_date(damaged: Damaged, scored: Scored) -> None:
    assert damaged.again().dates == ()
    for kind in ("decisions", "reassignments"):
        part = Path(kind, "cluster=blind")
        shutil.copytree(scored.directory / "log" / part, damaged.log / part)
    assert damaged.again().dates == ("2026-11-05",)
    efficiency = {row["cluster"]: row["efficiency"] for row in result_rows(damaged.files, "recoveries")}
    assert efficiency == pytest.approx(
        {**damaged.efficiency, "blind": scored.recovery("blind")["efficiency"]}, rel=1e-9
    )


@pytest.mark.parametrize("died", ["reading ", "writing the scores"])
def test_the_next_run_scores_what_an_aborted_run_has_not_scored(scored: Scored, tmp_path: Path, died: str) -> None:
    """A run recorded first which dates it had read. After an abort, the next run never scored those dates."""

    class Killed(Exception):
        pass

    def abort(line: str) -> None:
        if line.startswith(died):
            raise Killed

    for kind in ("decisions", "reassignments"):
        part = Path(kind, "cluster=perfect")
        shutil.copytree(scored.directory / "log" / part, tmp_path / "log" / part)
    files_of_log = ArrowFiles(str(tmp_path / "log"), str(tmp_path / "out"))
    with pytest.raises(Killed):
        run(files_of_log, notify=abort)
    run(files_of_log)
    (recovery,) = result_rows(files_of_log, "recoveries")
    assert recovery["efficiency"] == pytest.approx(scored.recovery("perfect")["efficiency"], rel=1e-9)
    assert all(result_rows(files_of_log, name) for name in TABLES)
    assert run(files_of_log).dates == ()


def test_a_run_with_another_ratio_scores_previous_recoveries_again(scored: Scored, tmp_path: Path) -> None:
    """The run found nothing new, and its report showed the efficiencies of the previous ratio."""
    assert scored.recovery("perfect")["efficiency"] == pytest.approx(1.0, abs=0.02)
    for part in scored.directory.glob("*/*/cluster=perfect"):
        shutil.copytree(part, tmp_path / part.relative_to(scored.directory))
    files_of_log = ArrowFiles(str(tmp_path / "log"), str(tmp_path / "out"))
    run(files_of_log, ratio=0.45)
    (recovery,) = result_rows(files_of_log, "recoveries")
    assert recovery["efficiency"] == pytest.approx(2.0, abs=0.04)


def test_late_records_of_a_previous_leader_extend_its_recovery(tmp_path: Path) -> None:
    """The spool of a killed planner becomes files when its host is back, perhaps days later.

    Until then the next leader's part counts as a separate recovery. If that part had begun on another date, it remained
    beside the complete recovery forever, because no later run wrote to that date.
    """
    at = BEGIN.replace(day=8, hour=23, minute=54)
    two_days = golden.scenario(8, begin=at, failover=(timedelta(minutes=7), timedelta(0)))
    golden.play(tmp_path / "log", "late", two_days)
    first = [path for path in (tmp_path / "log").rglob("late-0000000001-*.parquet")]
    spools = {path: path.with_suffix(".spool") for path in first}
    assert first
    files_of_log = ArrowFiles(str(tmp_path / "log"), str(tmp_path / "out"))

    def recoveries() -> list[tuple[str, int]]:
        run(files_of_log)
        rows = result_rows(files_of_log, "recoveries")
        assert {row["recovery_id"] for row in result_rows(files_of_log, "timeline")} == {
            row["recovery_id"] for row in rows
        }
        return [(row["date"], row["terms"]) for row in rows]

    for path, spool in spools.items():
        path.rename(spool)
    assert recoveries() == [("2026-11-09", 1)]
    for path, spool in spools.items():
        spool.rename(path)
    assert recoveries() == [("2026-11-08", 2)]


def test_a_missing_log_and_a_ratio_out_of_range_are_refused(tmp_path: Path) -> None:
    files_of_log = ArrowFiles(str(tmp_path / "nowhere"), str(tmp_path / "out"))
    with pytest.raises(Missing, match="there is no decision log"):
        find_work(files_of_log)
    with pytest.raises(Invalid, match="> 0 and <= 1"):
        find_work(files_of_log, ratio=1.5)

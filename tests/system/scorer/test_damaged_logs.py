"""Damaged decision logs: the scorer uses undamaged data and counts the rest."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from autothrottle.core.errors import Invalid, Missing
from autothrottle.scorer import gathering, report
from autothrottle.scorer.scoring import Run, ScoreSettings, score
from autothrottle_lab.simulate.virtual_time import BEGIN
from tests.system.scorer import golden
from tests.system.scorer.conftest import Scored


def files(log: Path, cluster: str) -> list[Path]:
    """Return the decision files of a cluster."""
    return sorted((log / "decisions" / f"cluster={cluster}").rglob("*.parquet"))


def rewrite(path: Path, table: pa.Table) -> None:
    """Replace the table in a file."""
    pq.write_table(table, path)


def read(path: Path) -> pa.Table:
    """Return the table in a file, without columns from folder names."""
    return pq.ParquetFile(path).read()


@dataclass(frozen=True)
class Damaged:
    """A damaged copy of the golden logs, and its scores."""

    spark: SparkSession
    log: Path
    out: Path
    run: Run
    quality: dict[str, dict[str, Any]]
    """Cluster -> its row of the quality table."""
    efficiency: dict[str, float]

    def again(self) -> Run:
        """Score the new part of the log."""
        return score(self.spark, ScoreSettings(self.log.as_uri(), self.out.as_uri()))


@pytest.fixture(scope="module")
def damaged(spark: SparkSession, scored: Scored, tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    """Damage every cluster's log in a different way."""
    log, out = (tmp_path_factory.mktemp("damaged") / name for name in ("log", "out"))
    shutil.copytree(scored.directory / "log", log)
    for cluster in ("blind", "dull", "sensitive", "restless"):  # not used by these tests
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
    run = score(spark, ScoreSettings(log.as_uri(), out.as_uri()))
    quality = {row["cluster"]: row.asDict() for row in run.tables["quality"].collect()}
    efficiency = {row["cluster"]: row["efficiency"] for row in run.tables["recoveries"].collect()}
    return Damaged(spark, log, out, run, quality, efficiency)


def test_undamaged_rows_are_scored_despite_damage(damaged: Damaged, scored: Scored) -> None:
    assert damaged.efficiency.keys() == {"perfect", "seventy", "halved", "overridden", "handed-over"}
    for cluster in ("perfect", "halved", "overridden", "handed-over"):
        assert damaged.efficiency[cluster] == pytest.approx(scored.recovery(cluster)["efficiency"], rel=1e-9)


def test_truncated_and_corrupt_files_are_counted(damaged: Damaged) -> None:
    assert (damaged.quality["perfect"]["files"], damaged.quality["perfect"]["unreadable_files"]) == (3, 2)


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
    assert gathering.gather(damaged.run.tables).copies == len(read(files(damaged.log, "overridden")[0]))


def test_the_report_of_a_run_without_new_data_equals_the_previous_report(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report counted the duplicates of its own run only, so the second night's page showed none.

    It also computed statistics from displayed rows only: for 5,000 recoveries, those of the worst 1,000.
    """
    monkeypatch.setattr(gathering, "MOST_RECOVERIES", 2)
    again = damaged.again()
    assert again.dates_read == ()
    found = gathering.gather(again.tables)
    assert len(found.recoveries) == 2
    assert found.copies == len(read(files(damaged.log, "overridden")[0])) > 0
    worst = min(damaged.efficiency.values())
    assert found.count == 5
    assert found.worst_efficiency == pytest.approx(worst)
    assert found.mean_efficiency == pytest.approx(sum(damaged.efficiency.values()) / 5)
    assert "5 recoveries reached " in report.as_html(found)


def test_a_second_run_reads_only_the_new_date(damaged: Damaged, scored: Scored) -> None:
    assert damaged.again().dates_read == ()
    for kind in ("decisions", "reassignments"):
        part = Path(kind, "cluster=blind")
        shutil.copytree(scored.directory / "log" / part, damaged.log / part)
    run = damaged.again()
    assert run.dates_read == ("2026-11-05",)
    efficiency = {row["cluster"]: row["efficiency"] for row in run.tables["recoveries"].collect()}
    assert efficiency == pytest.approx(
        {**damaged.efficiency, "blind": scored.recovery("blind")["efficiency"]}, rel=1e-9
    )


@pytest.mark.parametrize(
    "died",
    [pytest.param("scoring link sides and recoveries", marks=pytest.mark.repeat), "finding the worst decisions"],
)
def test_the_next_run_scores_what_an_aborted_run_has_not_scored(
    spark: SparkSession, scored: Scored, tmp_path: Path, died: str
) -> None:
    """A run recorded first which dates it had read. After an abort, the next run never scored those dates."""

    class Killed(Exception):
        pass

    def abort(line: str) -> None:
        if line == died:
            raise Killed

    for kind in ("decisions", "reassignments"):
        part = Path(kind, "cluster=perfect")
        shutil.copytree(scored.directory / "log" / part, tmp_path / "log" / part)
    settings = ScoreSettings((tmp_path / "log").as_uri(), (tmp_path / "out").as_uri())
    with pytest.raises(Killed):
        score(spark, settings, abort)
    run = score(spark, settings)
    (recovery,) = run.tables["recoveries"].collect()
    assert recovery["efficiency"] == pytest.approx(scored.recovery("perfect")["efficiency"], rel=1e-9)
    assert run.tables.keys() == {"recoveries", "ports", "timeline", "quality"}
    assert score(spark, settings).dates_read == ()


def test_a_run_with_another_ratio_scores_previous_recoveries_again(
    spark: SparkSession, scored: Scored, tmp_path: Path
) -> None:
    """The run found nothing new, and its report showed the efficiencies of the previous ratio."""
    assert scored.recovery("perfect")["efficiency"] == pytest.approx(1.0, abs=0.02)
    for part in scored.directory.glob("*/*/cluster=perfect"):
        shutil.copytree(part, tmp_path / part.relative_to(scored.directory))
    run = score(spark, ScoreSettings((tmp_path / "log").as_uri(), (tmp_path / "out").as_uri(), 0.45))
    (recovery,) = run.tables["recoveries"].collect()
    assert recovery["efficiency"] == pytest.approx(2.0, abs=0.04)


def test_late_records_of_a_previous_leader_extend_its_recovery(spark: SparkSession, tmp_path: Path) -> None:
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
    settings = ScoreSettings((tmp_path / "log").as_uri(), (tmp_path / "out").as_uri())

    def recoveries() -> list[tuple[str, int]]:
        run = score(spark, settings)
        assert {row["recovery_id"] for row in run.tables["timeline"].collect()} == {
            row["recovery_id"] for row in run.tables["recoveries"].collect()
        }
        return [(row["date"], row["terms"]) for row in run.tables["recoveries"].collect()]

    for path, spool in spools.items():
        path.rename(spool)
    assert recoveries() == [("2026-11-09", 1)]
    for path, spool in spools.items():
        spool.rename(path)
    assert recoveries() == [("2026-11-08", 2)]


def test_a_missing_log_and_a_ratio_out_of_range_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path.as_uri()
    with pytest.raises(Missing, match="there is no decision log"):
        score(spark, ScoreSettings(f"{place}/nowhere", f"{place}/out"))
    with pytest.raises(Invalid, match="> 0 and <= 1"):
        score(spark, ScoreSettings(place, place, ratio=1.5))

"""Counts by file name, and arguments refused before the log is read."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from autothrottle.core.errors import Unavailable
from autothrottle.scorer import command, session
from autothrottle.scorer.command import main
from autothrottle.scorer.log import FileCounts, FileReading, folder_of, quality

PLACE = "file:///data/decision%20log/decisions/cluster=north%20%26%20south/date=2026-11-05"
"""An escaped path, as reported by Spark."""


@pytest.mark.parametrize("ratio", ["0", "1.01", "-0.5", "nan", "inf", "90%", ""])
def test_a_ratio_out_of_range_is_refused_before_spark_starts(capsys: pytest.CaptureFixture[str], ratio: str) -> None:
    """The ratio was refused after Spark had started, with the exit status of a failed run."""
    with pytest.raises(SystemExit, match="2"):
        main(["--decisions", "nowhere", "--out", "nowhere", f"--ratio={ratio}"])
    assert f"{ratio!r} is not a share: it must be > 0 and <= 1; give 0.9" in capsys.readouterr().err


def test_an_escaped_path_belongs_to_the_cluster_in_its_folder_name() -> None:
    assert folder_of(f"{PLACE}/a.parquet") == ("north & south", "2026-11-05")
    assert folder_of("file:///data/decisions/_spool/a.parquet") is None


def test_files_without_rows_are_unreadable_for_any_cluster_name() -> None:
    folder = ("north & south", "2026-11-05")
    readings = [
        FileReading(f"{PLACE}/a.parquet", rows=100, incomplete_rows=3),
        FileReading(f"{PLACE}/b.parquet", rows=50, newer_rows=50),
        FileReading(f"{PLACE}/c.parquet", problem="it cannot be read"),
    ]
    empty = ("east", "2026-11-05")
    rows = quality({folder: FileCounts(3, 1), empty: FileCounts(1, 0)}, readings, 0.9).to_pylist()
    counts = ("files", "unreadable_files", "reassignment_files", "rows", "incomplete_rows", "newer_rows", "ratio")
    assert {(row["cluster"], row["date"]): tuple(row[name] for name in counts) for row in rows} == {
        folder: (3, 1, 1, 150, 3, 50, 0.9),
        empty: (1, 1, 0, 0, 0, 0, 0.9),
    }


class LosesExecutors:
    """A session whose job fails."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


def test_a_failed_job_of_spark_is_one_sentence_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor of 1 GB ran out of memory at 50 million rows. The operator read 200 lines of Java's traceback."""
    failing = LosesExecutors()
    monkeypatch.setattr(session, "open_session", lambda *_: failing)
    message = r"^Spark failed while it scored: Job aborted\. The .* raise spark\.executor\.memory$"
    with pytest.raises(Unavailable, match=message), command._session("local-cluster[1,1,1024]", ""):
        raise PySparkException("Job aborted\n\tat org.apache.spark")
    assert failing.is_stopped

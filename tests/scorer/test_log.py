"""What is counted of a log by the names of its files, and what is refused before it is read."""

from __future__ import annotations

import pytest
from pyspark.sql import Row

from autothrottle.scorer.command import main
from autothrottle.scorer.log import FileCounts, folder_of, quality

PLACE = "file:///data/decision%20log/decisions/cluster=north%20%26%20south/date=2026-11-05"
"""As Spark tells a path: with escapes."""


@pytest.mark.parametrize("ratio", ["0", "1.01", "-0.5", "nan", "inf", "90%", ""])
def test_a_ratio_out_of_range_is_refused_before_spark_starts(capsys: pytest.CaptureFixture[str], ratio: str) -> None:
    """It was refused after it, with the status of a run that failed."""
    with pytest.raises(SystemExit, match="2"):
        main(["--decisions", "nowhere", "--out", "nowhere", f"--ratio={ratio}"])
    assert f"{ratio!r} is no share: it must be > 0 and <= 1; give 0.9" in capsys.readouterr().err


def test_a_path_with_escapes_belongs_to_the_cluster_that_its_folder_names() -> None:
    assert folder_of(f"{PLACE}/a.parquet") == ("north & south", "2026-11-05")
    assert folder_of("file:///data/decisions/_spool/a.parquet") is None


def test_files_that_gave_no_row_are_unreadable_whatever_characters_their_cluster_has() -> None:
    folder = ("north & south", "2026-11-05")
    read = [
        Row(file=f"{PLACE}/a.parquet", rows=100, incomplete_rows=3, newer_rows=0),
        Row(file=f"{PLACE}/b.parquet", rows=50, incomplete_rows=0, newer_rows=50),
    ]
    empty = ("east", "2026-11-05")
    found = quality({folder: FileCounts(3, 1), empty: FileCounts(1, 0)}, read, 0.9)
    # Files, unreadable ones, those of reassignments; rows, incomplete and newer ones; by which ratio.
    assert found == [(*folder, 3, 1, 1, 150, 3, 50, 0.9), (*empty, 1, 1, 0, 0, 0, 0, 0.9)]

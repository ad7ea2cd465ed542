"""What is counted of a log by the names of its files."""

from __future__ import annotations

from pyspark.sql import Row

from autothrottle.scorer.log import FileCounts, folder_of, quality

PLACE = "file:///data/decision%20log/decisions/cluster=north%20%26%20south/date=2026-11-05"
"""As Spark tells a path: with escapes."""


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
    found = quality({folder: FileCounts(3, 1), empty: FileCounts(1, 0)}, read)
    # Files, unreadable ones, those of reassignments; rows, incomplete and newer ones.
    assert found == [(*folder, 3, 1, 1, 150, 3, 50), (*empty, 1, 1, 0, 0, 0, 0)]

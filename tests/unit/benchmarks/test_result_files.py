"""Results of benchmarks survive their CSV files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.result_files import DIRECTORY, read_rows, write_rows

ROWS: list[dict[str, object]] = [
    {"figure": 'cycle, "large"', "median": 1.5, "runs": 3, "met": True, "original": None, "samples": [1.0, 2.0]},
    {"figure": "1", "empty": "", "cpu": {"planner": 0.25, "all": {"p99": 7}}},
]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "new" / "rows.csv") == []
    write_rows(tmp_path / "new" / "rows.csv", ROWS)
    assert read_rows(tmp_path / "new" / "rows.csv") == ROWS


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.csv")), ids=lambda path: path.name)
def test_recorded_results_do_not_change_when_they_are_written_again(path: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / path.name, read_rows(path))
    assert (tmp_path / path.name).read_text("utf-8") == path.read_text("utf-8")

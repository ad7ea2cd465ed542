"""Results of benchmarks as CSV files: one row per measurement.

A nested value has a column like `quiet.all.p99`. A cell is text, or else JSON: a number, a list, `true` or `null`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent / "results"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, each without the columns that are empty in it; none if the file does not exist."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [_nested(row) for row in csv.DictReader(file)]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a file by these rows."""
    flat = [dict(_flat(row)) for row in rows]
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, dict.fromkeys(column for row in flat for column in row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, _cell(value)


def _nested(row: Mapping[str, str]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for column, cell in row.items():
        if cell:
            *groups, name = column.split(".")
            group = nested
            for part in groups:
                group = group.setdefault(part, {})
            group[name] = _value(cell)
    return nested


def _cell(value: object) -> str:
    is_text = isinstance(value, str) and value != "" and _value(value) == value
    return str(value) if is_text else json.dumps(round(value, 6) if isinstance(value, float) else value)


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell

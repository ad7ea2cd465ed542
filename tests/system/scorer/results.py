"""Compares the tables of two runs."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from autothrottle.scorer.files import ArrowFiles, Files
from autothrottle.scorer.scoring import TABLES


def assert_same_tables(out: str | Files, expected: str | Files) -> None:
    """Compare all tables in two locations; numbers may differ by 1e-9, as sums in another order do."""
    places = [ArrowFiles(place, place) if isinstance(place, str) else place for place in (out, expected)]
    for name, schema in TABLES.items():
        names = ("cluster", "date", "recovery_id", "broker_id", "role", "cycle")
        order = [(column, "ascending") for column in names if column in schema.names]
        first, second = (files.table(name, schema).sort_by(order) for files in places)
        assert len(first) == len(second) > 0
        for field in schema:
            values = [table[field.name].to_pylist() for table in (first, second)]
            if pa.types.is_floating(field.type):
                numbers = [[math.nan if value is None else value for value in column] for column in values]
                assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, nan_ok=True), (name, field.name)
            else:
                assert values[0] == values[1], (name, field.name)

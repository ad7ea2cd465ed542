"""Spark's expressions agree with the rules in Python."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from autothrottle.core.scoring.score import Cause, LinkSideDemand, Setting, bound_seconds, link_side_seconds
from autothrottle.scorer.counterfactuals import on_grid, sequences
from autothrottle.scorer.log import schema_of
from autothrottle.scorer.stretches import beyond, reached, with_causes
from tests.unit.autothrottle.core.scoring.rules import Stretch, estimate, unused
from tests.unit.autothrottle.core.scoring.test_rules import stretches

EXAMPLES = 3
"""Each example is a batch of many cases, because a Spark job takes a second whatever its size."""

GRID = (Setting(0.5, 0.0), Setting(0.9, 0.1), Setting(1.0, 0.3), Setting(0.9, 0.1, 2), Setting(0.7, 0.0, 3))


@settings(max_examples=EXAMPLES)
@given(st.lists(stretches(), min_size=50, max_size=100), st.floats(0.01, 1))
def test_causes_in_spark_equal_the_rules(spark: SparkSession, cases: list[Stretch], ratio: float) -> None:
    rows = [{"id": i, **asdict(case)} for i, case in enumerate(cases)]
    schema = schema_of(Stretch).add("id", "long")
    found = spark.createDataFrame(rows, schema).transform(with_causes, ratio).collect()
    for row in found:
        expected = unused(cases[row["id"]], ratio)
        assert {cause: row[f"lost_{cause}"] for cause in Cause} == pytest.approx(expected, rel=1e-9, abs=1e-6)


PIECES = st.lists(st.tuples(st.floats(0.1, 100), st.floats(-10, 100)), min_size=1, max_size=8)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(PIECES, st.floats(0, 5000)), min_size=20, max_size=40))
def test_link_side_times_in_spark_equal_the_rules(
    spark: SparkSession, cases: list[tuple[list[tuple[float, float]], float]]
) -> None:
    rows = []
    for index, (pieces, amount) in enumerate(cases):
        at = before = 0.0
        for number, (seconds, rate) in enumerate(pieces):
            rows.append((index, number, amount, before, at, seconds, rate))
            at, before = at + seconds, before + rate * seconds
    names = ["id", "number", "amount", "before", "at", "seconds", "rate"]
    here = reached(*(F.col(name) for name in names[2:]))
    by_link_side = (
        spark.createDataFrame(rows, names)
        .groupBy("id")
        .agg(
            F.min(here).alias("here"),
            F.first("amount").alias("amount"),
            F.sum(F.col("rate") * F.col("seconds")).alias("carried"),
            F.sum("seconds").alias("at"),
            F.max_by("rate", "number").alias("rate"),
        )
        .withColumn("after", beyond(F.col("amount"), F.col("carried"), F.col("at"), F.col("rate")))
    )
    found = {row["id"]: row["after"] if row["here"] is None else row["here"] for row in by_link_side.collect()}
    sides = [LinkSideDemand(amount, pieces) for pieces, amount in cases]
    expected = dict(enumerate(map(link_side_seconds, sides)))
    assert found == pytest.approx(expected, rel=1e-6)
    finite = [seconds for seconds in expected.values() if math.isfinite(seconds)]
    assert bound_seconds(sides) >= max(finite, default=0.0)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(
        st.tuples(st.lists(stretches(0.1), min_size=1, max_size=8), st.floats(1, 1e9), st.floats(0, 10)),
        min_size=10,
        max_size=20,
    )
)
def test_estimates_in_spark_equal_the_rules(
    spark: SparkSession, cases: list[tuple[list[Stretch], float, float]]
) -> None:
    rows = [
        {
            **asdict(stretch),
            **{"cluster": "c", "recovery_id": str(index), "term": 1, "cycle": number, "budget": 1.0, "duration": 1.0},
            **{"reach": stretch.seconds, "amount": amount, "growth": growth},
            **{"max_ratio": 0.7, "change_threshold": 0.2, "interval_seconds": 30.0},
        }
        for index, (logged, amount, growth) in enumerate(cases)
        for number, stretch in enumerate(logged)
    ]
    schema = schema_of(Stretch)
    for name, kind in {"cluster": "string", "recovery_id": "string", "term": "long", "cycle": "long"}.items():
        schema = schema.add(name, kind)
    for name in (
        "budget",
        "duration",
        "reach",
        "amount",
        "growth",
        "max_ratio",
        "change_threshold",
        "interval_seconds",
    ):
        schema = schema.add(name, "double")
    found = spark.createDataFrame(rows, schema).transform(sequences).transform(on_grid, GRID).collect()
    assert len(found) == len(cases) * (len(GRID) + 1)
    for row in found:
        logged, amount, growth = cases[int(row["recovery_id"])]
        setting = Setting(0.7, 0.2) if row["is_logged"] else Setting(row["ratio"], row["threshold"], row["every"])
        expected = estimate(logged, amount, growth, setting)
        assert row["estimated_seconds"] == pytest.approx(expected.seconds, rel=1e-6)
        assert row["harmed_bytes"] == pytest.approx(expected.harmed_bytes, rel=1e-9, abs=1e-3)
        assert (row["client_bytes"], row["writes"]) == (pytest.approx(expected.client_bytes), expected.writes)

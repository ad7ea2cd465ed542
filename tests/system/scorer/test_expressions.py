"""Spark's expressions agree with the rules in Python."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from autothrottle.core.scoring.estimates import estimate
from autothrottle.core.scoring.score import Cause, LinkSideDemand, Setting, bound_seconds, link_side_seconds
from autothrottle.scorer.counterfactuals import logged_recovery, on_grid, sequences
from autothrottle.scorer.log import schema_of
from autothrottle.scorer.stretches import beyond, reached, with_causes
from tests.unit.autothrottle.core.scoring.rules import Stretch, unused
from tests.unit.autothrottle.core.scoring.test_rules import stretches

EXAMPLES = 3
"""Each example is a batch of many cases, because a Spark job takes a second whatever its size."""


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


def test_estimates_in_executors_equal_those_of_core(spark: SparkSession) -> None:
    rows = [
        {
            **{"cluster": "c", "recovery_id": str(index), "term": 1, "cycle": number, "budget": 1.0, "duration": 600.0},
            **{
                "role": "follower",
                "reach": 60.0,
                "capacity": 100e6,
                "client": 10e6 + number * 1e6,
                "reason": "headroom",
            },
            **{"forecast": None if number == 3 else 10e6, "decided": 40e6, "applied": 40e6, "achieved": 39e6},
            **{"min_rate": 10e6, "amount": 30e9, "growth": 1e5 * index, "policy": "adaptive"},
            **{"max_ratio": 0.45, "change_threshold": 0.1, "interval_seconds": 60.0},
        }
        for index in range(2)
        for number in range(10)
    ]
    recoveries = spark.createDataFrame(rows).transform(sequences).cache()
    grid = (Setting(0.9, 0.1, 1, "headroom"), Setting(0.8, 0.3, 1, "adaptive"))
    estimates = recoveries.transform(on_grid, grid).collect()
    assert len(estimates) == 2 * (len(grid) + 1)
    logged = {row["recovery_id"]: logged_recovery(row.asDict(recursive=True)) for row in recoveries.collect()}
    for row in estimates:
        setting = Setting(row["ratio"], row["threshold"], row["every"], row["policy"])
        assert row["is_logged"] == (setting == Setting(0.45, 0.1, 1, "adaptive"))
        expected = estimate(logged[row["recovery_id"]], setting)
        values = row["estimated_seconds"], row["harmed_bytes"], row["client_bytes"], row["writes"]
        assert values == pytest.approx(
            (expected.seconds, expected.deferred_bytes, expected.client_bytes, expected.writes)
        )

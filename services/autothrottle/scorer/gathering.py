"""Gathers the content of a report from the tables of scores. The page itself needs only the rows, not Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from autothrottle.core.scoring.score import Cell, Recommendation, recommended
from autothrottle.scorer import counterfactuals, scores
from autothrottle.scorer.report import MOST_RECOVERIES, MOST_TIMELINES, Results, Row

_MOST_POINTS = 2000
"""Mean number of points of a timeline."""

_LEAST_GAIN = 0.01
"""A change of settings that saves a smaller share of the time is not worth it."""


def gather(tables: Mapping[str, DataFrame]) -> Results:
    """Return the content of a report from the tables of all runs. All of them are small except the timeline."""
    timeline = tables["timeline"]
    # In one partition, later steps need no shuffle.
    recoveries, sides, quality = (tables[name].coalesce(1) for name in ("recoveries", "ports", "quality"))
    shown = _rows(recoveries.orderBy(F.desc_nulls_last("regret_seconds")).limit(MOST_RECOVERIES))
    groups = sorted(_rows(recoveries.transform(scores.by_group, "cluster", "date")), key=_sort_key)
    of_types = sorted(_rows(sides.transform(scores.by_group, "instance_type")), key=_sort_key)
    grid = counterfactuals.surface(
        timeline.transform(counterfactuals.sequences).transform(counterfactuals.on_grid)
    ).collect()
    cells = [Cell(**row.asDict()) for row in grid]
    worst = _rows(timeline.transform(scores.worst_decisions))
    (whole,) = _rows(recoveries.transform(_whole))
    recommendations, timelines = recommended(cells), _timelines(timeline, shown)
    return Results(
        recoveries=shown,
        clusters=[{k: v for k, v in row.items() if k != "date"} for row in groups if row["date"] is None],
        instance_types=of_types,
        trends=[row for row in groups if row["date"] is not None],
        worst=sorted(worst, key=lambda row: (row["cluster"], row["rank"])),
        quality=sorted(_rows(quality), key=_sort_key),
        surface=[asdict(cell) for cell in sorted(cells, key=Cell.order)],
        recommendations=[_recommendation_row(each) for each in recommendations],
        advice=[_advice(each, timelines.values()) for each in recommendations],
        timelines=timelines,
        **whole,
    )


def _whole(recoveries: DataFrame) -> DataFrame:
    """Return one row: statistics of all recoveries, with the field names of `Results`."""
    return recoveries.agg(
        F.count("efficiency").alias("count"),
        F.avg("efficiency").alias("mean_efficiency"),
        F.min("efficiency").alias("worst_efficiency"),
        F.coalesce(F.sum("copies"), F.lit(0)).alias("copies"),
        F.coalesce(F.sum("saturated_seconds"), F.lit(0.0)).alias("saturated_seconds"),
        F.coalesce(F.sum("port_seconds"), F.lit(0.0)).alias("measured_seconds"),
    )


def _recommendation_row(recommendation: Recommendation) -> Row:
    best, logged = recommendation
    row = {name: value for name, value in asdict(best).items() if name != "is_logged"}
    today = {"seconds": logged.estimated_seconds, "harmed_share": logged.harmed_share, "writes": logged.writes}
    return row | {f"today_{name}": value for name, value in today.items()}


def _advice(recommendation: Recommendation, timelines: Iterable[Sequence[Row]]) -> Row:
    """Return the recommended settings that differ from the newest logged ones, and their gain."""
    best, logged = recommendation
    rows = [row for timeline in timelines for row in timeline if row["cluster"] == best.cluster]
    saved = logged.estimated_seconds - best.estimated_seconds
    if not rows or not logged.estimated_seconds or not saved >= _LEAST_GAIN * logged.estimated_seconds:
        return {"cluster": best.cluster, "changes": []}
    newest = max(rows, key=lambda row: (row["term"], row["cycle"]))
    interval = newest.get("interval_seconds")
    values = [
        ("max-rate", 100 * newest["max_ratio"], 100 * (best.ratio or 0.0)),
        ("change-threshold", 100 * newest["change_threshold"], 100 * (best.threshold or 0.0)),
        ("interval", interval, interval and interval * best.every),
    ]
    changes = [
        {"option": option, "present": present, "proposed": proposed}
        for option, present, proposed in values
        if present is not None and abs(present - proposed) > 1e-9
    ]
    gain = {"gain": saved / logged.estimated_seconds, "gain_low": None, "gain_high": None, "seconds_saved": saved}
    return {"cluster": best.cluster, "changes": changes, **gain, "recoveries": best.recoveries}


def _sort_key(row: Row) -> tuple[str, str]:
    return row["cluster"], row.get("date") or row.get("instance_type") or ""


def _timelines(timeline: DataFrame, recoveries: Sequence[Row]) -> dict[str, list[Row]]:
    """Return recovery id -> decisions for its slowest link side, in order, for the worst recoveries."""
    worst = [row["recovery_id"] for row in recoveries[:MOST_TIMELINES]]
    chosen = timeline.where(F.col("recovery_id").isin(*worst))
    timelines: dict[str, list[Row]] = {}
    for row in _rows(chosen.orderBy("cluster", "term", "cycle").limit(_MOST_POINTS * max(len(worst), 1))):
        timelines.setdefault(row["recovery_id"], []).append(row)
    return timelines


def _rows(table: DataFrame) -> list[Row]:
    rows = (row.asDict(recursive=True) for row in table.collect())
    # Spark returns naive times in the time zone of the driver's host.
    return [{k: v.astimezone(UTC) if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]

"""The content of a report, from the tables of all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from autothrottle.scorer import scores
from autothrottle.scorer.estimation import Estimate, advise, slowest
from autothrottle.scorer.files import Files
from autothrottle.scorer.link_sides import CAUSES, LOST
from autothrottle.scorer.log import QUALITY
from autothrottle.scorer.report import MOST_RECOVERIES, MOST_TIMELINES, Results
from autothrottle.scorer.tables import PORTS, RECOVERIES, TIMELINE

Row = Mapping[str, Any]

_MOST_POINTS = 2000
"""Longest timeline, in points."""

_PORT_COLUMNS = (
    *("cluster", "instance_type", "bound_seconds", "seconds", "over_seconds", "saturated_seconds"),
    *("port_seconds", "writes", "churn"),
)


def gather(files: Files, new_quality: pa.Table, estimate: Estimate | None) -> Results:
    """Return the content of a report.

    Args:
        files: the results of all runs.
        new_quality: rows of the table `quality` that this run has not written yet.
        estimate: estimates other settings; None: the report gives no advice.
    """
    recoveries = files.table("recoveries", RECOVERIES)
    ports = files.table("ports", pa.schema([PORTS.field(name) for name in _PORT_COLUMNS]))
    lost = pa.table({"lost": recoveries["regret_seconds"].fill_null(float("-inf")), "id": recoveries["recovery_id"]})
    order = pc.sort_indices(lost, [("lost", "descending"), ("id", "ascending")])
    shown = _rows(recoveries.take(order[:MOST_RECOVERIES]))
    estimated = slowest(recoveries) if estimate else []
    worst = [row["recovery_id"] for row in shown[:MOST_TIMELINES]]
    timeline = files.table("timeline", TIMELINE, {*estimated, *worst})
    return Results(
        recoveries=shown,
        clusters=scores.by_group(recoveries, "cluster"),
        instance_types=scores.by_group(ports, "instance_type"),
        trends=scores.by_group(recoveries, "date"),
        worst=[_with_cause(row) for row in _rows(files.reduced("timeline", TIMELINE, scores.worst_decisions))],
        quality=_rows(_with_new(files.table("quality", QUALITY), new_quality)),
        advice=advise(_of(timeline, estimated), estimate) if estimate else (),
        timelines=_timelines(_of(timeline, worst)),
        **scores.overall(recoveries),
    )


def _with_new(quality: pa.Table, new: pa.Table) -> pa.Table:
    """Return the rows of all folders, the new ones instead of older ones, by cluster and date."""
    rows = {(row["cluster"], row["date"]): row for table in (quality, new) for row in table.to_pylist()}
    return pa.Table.from_pylist([rows[folder] for folder in sorted(rows)], schema=QUALITY)


def _with_cause(decision: Row) -> dict[str, Any]:
    """Return a decision with its largest cause, instead of all of them."""
    cause = max(CAUSES, key=lambda cause: decision[f"lost_{cause}"] or 0.0)
    return {name: value for name, value in decision.items() if name not in LOST} | {"cause": cause}


def _of(timeline: pa.Table, recovery_ids: Sequence[str]) -> pa.Table:
    return timeline.filter(pc.is_in(timeline["recovery_id"], pa.array(recovery_ids, pa.string())))


def _timelines(timeline: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return recovery id -> decisions for its slowest link side, in order; of a long timeline, an even choice."""
    in_order = timeline.sort_by([("cluster", "ascending"), ("term", "ascending"), ("cycle", "ascending")])
    timelines = {}
    for recovery_id in in_order["recovery_id"].unique().to_pylist():
        own = _of(in_order, [recovery_id])
        points = min(len(own), _MOST_POINTS)
        timelines[recovery_id] = _rows(own.take([number * len(own) // points for number in range(points)]))
    return timelines


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows with times in UTC."""
    return [
        {k: v.astimezone(UTC) if isinstance(v, datetime) else v for k, v in row.items()} for row in table.to_pylist()
    ]

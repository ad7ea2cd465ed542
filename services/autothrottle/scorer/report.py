"""The report: one self-contained HTML page, and the same data as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from typing import Any

from autothrottle.core.units import MEGABYTE
from autothrottle.scorer import svg
from autothrottle.scorer.link_sides import CAUSES

Row = Mapping[str, Any]

_MOST_RECOVERIES = 1000
"""Number of recoveries on the page, the worst first; the tables contain all."""

_MOST_POINTS = 2000
"""Longest timeline, in points."""

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#1b2430;max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid #d8dde3}
table{border-collapse:collapse;font-size:13px;margin:.6rem 0;display:block;overflow-x:auto}
td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #e6e9ed;white-space:nowrap}
th{background:#f3f5f7}td:first-child,th:first-child{text-align:left}
figure{margin:1rem 0}figcaption{font-weight:600}svg text{font:11px system-ui,sans-serif}
"""


@dataclass(frozen=True, slots=True)
class Results:
    """Content of a report, as rows of plain values."""

    recoveries: Sequence[Row] = ()
    clusters: Sequence[Row] = ()
    instance_types: Sequence[Row] = ()
    trends: Sequence[Row] = ()
    worst: Sequence[Row] = ()
    quality: Sequence[Row] = ()
    surface: Sequence[Row] = ()
    recommendations: Sequence[Row] = ()
    timelines: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """Cluster -> decisions for the slowest link side of its worst recovery, in order."""
    count: int = 0
    """Number of all recoveries with known efficiency; the next three fields also refer to all recoveries."""
    mean_efficiency: float | None = None
    """None: no such recovery."""
    worst_efficiency: float | None = None
    copies: int = 0
    """Number of duplicate records."""


def as_json(results: Results) -> str:
    """Return the results without timelines as one JSON object; infinite times are null."""
    names = ("clusters", "instance_types", "trends", "recoveries", "worst", "recommendations", "surface", "quality")
    tables = {name: [_finite(row) for row in getattr(results, name)] for name in names} | {"copies": results.copies}
    return json.dumps(tables, default=_plain, indent=1, allow_nan=False)


def _finite(row: Row) -> Row:
    """Return the row with null for infinite numbers, which JSON does not have."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV with a header; list items are separated by blanks."""
    file = io.StringIO()
    if rows:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()} for row in rows
        )
    return file.getvalue()


def as_html(results: Results) -> str:
    """Return the HTML page."""
    parts = [
        "<h1>Scoring past decisions</h1>",
        _summary(results),
        *(_cluster(results, str(row["cluster"])) for row in results.clusters),
        "<h2>By instance type of the brokers</h2>",
        _table(results.instance_types),
        "<h2>Log files</h2>",
        f"<p>{results.copies:,} duplicate records count once.</p>",
        _table(results.quality),
    ]
    head = f'<meta charset="utf-8"><title>autothrottle: scores</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _summary(results: Results) -> str:
    if results.mean_efficiency is None or results.worst_efficiency is None:
        return "<p>No recovery has ended yet.</p>"
    return (
        f"<p>{results.count:,} recoveries. Efficiency (shortest time that leaves clients their share, divided by the "
        f"actual time): mean {results.mean_efficiency:.2f}, worst {results.worst_efficiency:.2f}. Above 1, replication "
        "took more than its share. Times are UTC.</p>"
    )


def _cluster(results: Results, cluster: str) -> str:
    def of(rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if row["cluster"] == cluster]

    mine = of(results.recoveries)
    parts = [f"<h2>{escape(cluster)}</h2>", _table(of(results.clusters)), _recommendation(of(results.recommendations))]
    if timeline := results.timelines.get(cluster):
        parts += _plots_of(timeline)
    regrets = [(cause, sum(row[f"regret_{cause}"] or 0.0 for row in mine)) for cause in (*CAUSES, "other")]
    parts.append(svg.waterfall("Regret: seconds beyond the bound, by cause", regrets, "total", "s"))
    parts.append(_surface(of(results.surface), of(results.recommendations)))
    parts += ["<h3>Trend by date</h3>", _table(of(results.trends))]
    parts += ["<h3>Worst decisions</h3>", _table(of(results.worst))]
    parts += ["<h3>Recoveries, worst first</h3>", _table(mine[:50])]
    return "".join(parts)


def _plots_of(timeline: Sequence[Row]) -> list[str]:
    begin = timeline[0]["time"]
    minutes = [(row["time"] - begin).total_seconds() / 60 for row in timeline]

    def line(name: str) -> list[tuple[float, float | None]]:
        rates = zip(minutes, (row[name] for row in timeline), strict=True)
        return [(at, None if rate is None else rate / MEGABYTE) for at, rate in rates]

    bytes_left, done = [], 0.0
    for at, row in zip(minutes, timeline, strict=True):
        bytes_left.append((at, max(row["amount"] - done, 0.0) / 1e9))
        done += (row["achieved"] - row["growth"]) * row["seconds"]
    side = f"broker {timeline[0]['broker_id']} [{timeline[0]['role']}]"
    rates = {"throttle": line("applied"), "headroom": line("headroom"), "budget": line("budget")}
    return [
        svg.lines(f"Recovery timeline: bytes left on {side}", {"left": bytes_left}, "minutes", "GB"),
        svg.lines(
            f"Throttle and headroom of {side}",
            rates | {"achieved": line("achieved"), "clients": line("client")},
            "minutes",
            "MB/s",
        ),
    ]


def _surface(cells: Sequence[Row], chosen: Sequence[Row]) -> str:
    logged_interval = [row for row in cells if not row["is_logged"] and row["every"] == 1]
    grid = {(row["ratio"], row["threshold"]): row["estimated_seconds"] for row in logged_interval}
    finite = {cell: seconds for cell, seconds in grid.items() if seconds is not None and seconds < float("inf")}
    best = chosen[0] if chosen else None
    marked = (best["ratio"], best["threshold"]) if best and best["every"] == 1 else None
    title = "Estimated seconds of all recoveries, by max-rate and change-threshold"
    return svg.surface(title, finite, "max-rate (share)", "change-threshold (share)", marked)


def _recommendation(recommendations: Sequence[Row]) -> str:
    if not recommendations:
        return "<p>No better settings found.</p>"
    best = recommendations[0]
    settings = f"--max-rate {best['ratio'] * 100:g} --change-threshold {best['threshold'] * 100:g}"
    if best["every"] > 1 and best["interval_seconds"] is not None:
        settings += f" --interval {best['interval_seconds']:g}"
    return (
        f"<p>Recommended: <code>{settings}</code>. Estimate for the {best['recoveries']} logged recoveries: "
        f"{best['estimated_seconds']:,.0f} s instead of {best['today_seconds']:,.0f} s, {best['writes']} throttle "
        f"writes on the slowest link sides instead of {best['today_writes']}. If clients used more by the usual error "
        f"of their forecast, {best['harmed_share']:.3%} of their bytes would exceed the capacity, instead of "
        f"{best['today_harmed_share']:.3%}.</p>"
    )


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(_shown(v))}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, list):
        return " ".join(map(str, value[:5])) + (" ..." if len(value) > 5 else "")
    return "" if value is None else str(value)

"""The report: one self-contained HTML page, and the same data as CSV and JSON.

Its only input is `Results`, rows of plain values, so that a page can be made without Spark.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from html import escape
from typing import Any
from urllib.parse import quote

from autothrottle.core.records import Reason
from autothrottle.core.scoring.decision_records import ReassignmentStatus
from autothrottle.core.scoring.score import CAUSE_NAMES, OVERRIDES, Cause
from autothrottle.core.texts import excerpt
from autothrottle.scorer import charts, page
from autothrottle.scorer.charts import TimelineEvent, TimelinePeriod, TimelinePoint, TrafficTimeline
from autothrottle.scorer.page import Html, duration, megabytes, percent

Row = Mapping[str, Any]

MOST_RECOVERIES = 1000
"""Number of recoveries on the page, the worst first; the tables contain all."""

MOST_TIMELINES = 20
"""Number of recoveries with a timeline, the worst first."""

_MOST_LINES = 6
"""Number of clusters in the trend, those with the most recoveries first."""

_MOST_DECISIONS = 20
"""Number of decisions on the page, the most expensive first."""

_OPEN_ROWS = 30
"""Longest list of recoveries that a reader sees at once."""

_REMEDIES: Mapping[str, str] = {
    Cause.METRICS_LATE: "a source with fresher metrics, a shorter metrics-window",
    Cause.HEADROOM_UNUSED: "a higher max-rate, or another policy",
    Cause.CHANGE_THRESHOLD: "a lower change-threshold",
    Cause.FAIL_SAFE: "a metrics source that answers; a higher min-rate",
    Cause.OVERRIDE: "removing overrides that are no longer needed",
    Cause.NOT_APPLIED: "nothing if it was raised in steps; the planner's log explains a refused write",
    Cause.ELSEWHERE: "the other end of the link, disks, fetchers, or the last bytes",
    "other": "nothing: the available rate changed during the recovery",
}

CAUSES: Mapping[str, tuple[str, str]] = {cause: (name, _REMEDIES[cause]) for cause, name in CAUSE_NAMES.items()}
"""Cause of lost time -> its name for readers, and what helps."""

_REASONS = {
    Reason.HEADROOM: "headroom",
    Reason.UNCHANGED: "change too small",
    Reason.KEPT: "no metrics, rate kept",
    Reason.MINIMUM: "no metrics, min-rate",
    Reason.CLUSTER_OVERRIDE: "override of the cluster",
    Reason.BROKER_OVERRIDE: "override of the broker",
    Reason.OVER_CAPACITY: "link over capacity",
    Reason.STARVATION: "would never end with less",
    Reason.FINISH_BY: "enough for the deadline",
}

_SIDES = {"leader": "outbound", "follower": "inbound"}
_UNITS = {"max-rate": " %", "change-threshold": " %", "interval": " s", "metrics-window": " s", "min-rate": " MB/s"}
"""Option -> the unit of its values; an option without a unit is absent."""


@dataclass(frozen=True, slots=True)
class Results:
    """Content of a report, as rows of plain values."""

    recoveries: Sequence[Row] = ()
    clusters: Sequence[Row] = ()
    instance_types: Sequence[Row] = ()
    trends: Sequence[Row] = ()
    worst: Sequence[Row] = ()
    quality: Sequence[Row] = ()
    advice: Sequence[Row] = ()
    """One row per cluster; no rows: other settings were not estimated.

    Keys: `cluster`, `changes` (of `option`, `present` and `proposed`; empty: no change is worth it), and of all changes
    together `gain` (share of the time saved), `gain_low` and `gain_high` (its interval; None: unknown),
    `seconds_saved`, and `recoveries` (number of estimated ones).
    """
    timelines: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """Recovery id -> decisions for its slowest link side, in order, for the worst recoveries."""
    count: int = 0
    """Number of all recoveries with known efficiency; the next five fields also refer to all recoveries."""
    mean_efficiency: float | None = None
    """None: no such recovery."""
    worst_efficiency: float | None = None
    copies: int = 0
    """Number of duplicate records."""
    saturated_seconds: float = 0.0
    """Seconds on a full link, over all link sides."""
    measured_seconds: float = 0.0
    """All measured seconds, over all link sides."""


# The files for programs.


def as_json(results: Results) -> str:
    """Return the results without timelines as one JSON object; infinite times are null."""
    names = ("clusters", "instance_types", "trends", "recoveries", "worst", "quality", "advice")
    tables = {name: [_finite(row) for row in getattr(results, name)] for name in names}
    return json.dumps(tables | {"copies": results.copies}, default=_plain, indent=1, allow_nan=False)


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


# The page for people.


def as_html(results: Results, trace_url: str = "") -> str:
    """Return the HTML page.

    Args:
        results: its content.
        trace_url: address of a trace with `{trace_id}` in it; "": the page shows the ids.
    """
    body = [
        f'<h1>Recoveries of {escape(_names(results))}</h1><p class="faint">{_span(results)} Times are UTC.</p>',
        *_answer(results),
    ]
    if results.recoveries:
        body += [
            "<h2>What to change</h2>",
            _changes(results),
            "<h2>Where time was lost</h2>",
            _causes(results),
            *_recoveries(results),
            "<h2>The most expensive decisions</h2>",
            _worst(results, trace_url),
            "<h2>Trend</h2>",
            _trend(results),
            "<h2>Clusters</h2>",
            _groups(results.clusters, "cluster", "Cluster"),
            "<h2>Instance types of the brokers</h2>",
            _groups(results.instance_types, "instance_type", "Instance type"),
        ]
    body += ["<h2>The decision log</h2>", _quality(results)]
    return page.document("autothrottle: recoveries", body)


def _names(results: Results) -> str:
    names = [str(row["cluster"]) for row in results.clusters]
    return ", ".join(names) if 0 < len(names) <= 3 else f"{len(names)} clusters"


def _span(results: Results) -> str:
    days = sorted({str(row["date"]) for row in results.trends})
    return f"{days[0]} to {days[-1]}." if len(days) > 1 else f"{days[0]}." if days else ""


def _answer(results: Results) -> list[str]:
    if results.mean_efficiency is None or results.worst_efficiency is None:
        return ['<p class="answer">No recovery has ended yet.</p>']
    close, paid = percent(results.mean_efficiency), _full_share(results)
    recoveries = page.count(results.count, "recovery")
    change, what, more = _best_change(results)
    advice = f"{change} {what} {more}" if _worthwhile(results) else f"{change} {what}"
    if not results.advice:
        advice = more
    tiles = [
        (
            close,
            "of the best possible speed",
            f"mean of {recoveries}; the worst reached {percent(results.worst_efficiency)}",
        ),
        (
            percent(paid),
            "of the time, links were full",
            f"{duration(results.saturated_seconds)}; on a full link, clients wait",
        ),
        (change, what, more),
    ]
    sentence = (
        f"{recoveries} reached {close} of the best possible speed, links were full for {percent(paid)} of the time, "
        f"and {advice}."
    )
    return [
        f'<p class="answer">{escape(sentence)}</p>',
        page.numbers(tiles),
        "<p><small>The best possible recovery gives replication a fixed share (--ratio) of what clients leave of each "
        "link, and so takes as long as its slowest link side. Above 100 %, replication took more than this "
        "share.</small></p>",
    ]


def _full_share(results: Results) -> float:
    return results.saturated_seconds / results.measured_seconds if results.measured_seconds else 0.0


def _best_change(results: Results) -> tuple[str, str, str]:
    """Return the advice with the largest gain as (setting, instead of what, gain)."""
    worthwhile = _worthwhile(results)
    if not results.advice:
        return "unknown", "what to change", "other settings were not estimated"
    if not worthwhile:
        return "no change", "of the settings is worth it", "no other setting that was tried is better"
    best = worthwhile[0]
    first, *others = best["changes"]
    instead = f"instead of {_setting(first, 'present')}"
    if others:
        values = (f"{c['option']} {_setting(c, 'proposed')} instead of {_setting(c, 'present')}" for c in others)
        instead += f", with {', '.join(values)}"
    where = f" on {best['cluster']}" if len(results.clusters) > 1 else ""
    more = f"; also see {page.count(len(worthwhile) - 1, 'other cluster')}" if len(worthwhile) > 1 else ""
    saved = f"saves {duration(best['seconds_saved'])} ({_gain(best)}){more}"
    return f"{first['option']} {_setting(first, 'proposed')}", instead + where, saved


def _worthwhile(results: Results) -> list[Row]:
    """Return the advice that changes something, the largest gain first."""
    return sorted((row for row in results.advice if row["changes"]), key=lambda row: -row["seconds_saved"])


def _setting(change: Row, name: str) -> str:
    value = change[name]
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text}{_UNITS.get(change['option'], '')}"


def _gain(advice: Row) -> str:
    low, high = advice["gain_low"], advice["gain_high"]
    interval = f", likely {percent(low)} to {percent(high)}" if low is not None and high is not None else ""
    return percent(advice["gain"]) + interval


def _changes(results: Results) -> str:
    worthwhile = _worthwhile(results)
    if not results.advice:
        return "<p>Other settings were not estimated.</p>"
    if not worthwhile:
        return "<p>No change is worth it: no other setting that was tried saves time without more cost for clients.</p>"
    rows = [
        (
            str(row["cluster"]),
            _lines(f"--{change['option']}" for change in row["changes"]),
            _lines(_setting(change, "present") for change in row["changes"]),
            _lines(_setting(change, "proposed") for change in row["changes"]),
            duration(row["seconds_saved"]),
            _gain(row),
            f"{row['recoveries']:,}",
        )
        for row in worthwhile
    ]
    others = [str(row["cluster"]) for row in results.advice if not row["changes"]]
    unchanged = f" No change is worth it on {escape(excerpt(others, 10))}." if others else ""
    note = f"<p><small>An estimate: it assumes that clients would have asked for the same.{unchanged}</small></p>"
    columns = ("Cluster", "Option", "Present", "Proposed", "Time saved", "Share of the time", "Recoveries")
    return page.table(columns, rows, "  nnnnn") + note


def _lines(texts: Iterable[str]) -> Html:
    return Html("<br>".join(map(escape, texts)))


def _lost(recoveries: Sequence[Row]) -> dict[str, float]:
    """Return cause -> lost seconds, the largest first."""
    sums = {cause: sum(_number(row.get(f"regret_{cause}")) for row in recoveries) for cause in CAUSES}
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _number(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def _causes(results: Results) -> str:
    lost = _lost(results.recoveries)
    total = sum(seconds for seconds in lost.values() if seconds > 0)
    rows = [
        (CAUSES[cause][0], duration(seconds), percent(seconds / total), page.bar(seconds / total), CAUSES[cause][1])
        for cause, seconds in lost.items()
        if total and abs(seconds) >= 0.5
    ]
    if not rows:
        return "<p>No time was lost.</p>"
    whole = results.count > len(results.recoveries)
    scope = f"the {len(results.recoveries):,} worst recoveries" if whole else "all recoveries"
    sign = "<p><small>Below zero: time gained, by a rate above the fair share.</small></p>"
    gained = sign if any(seconds <= -0.5 for seconds in lost.values()) else ""
    columns = ("Cause", "Time lost", "Share", "", "What helps")
    return f"<p>Beyond the best possible time, in {scope}:</p>" + page.table(columns, rows, " nnb") + gained


# Recoveries


def _recoveries(results: Results) -> list[str]:
    timed = [row for row in results.recoveries if row["recovery_id"] in results.timelines][:MOST_TIMELINES]
    parts = ["<h2>Recoveries, the worst first</h2>"]
    if timed and charts.is_available():
        parts.append(page.legend(charts.LEGEND | {"no metrics, or an override": charts.PERIOD, "event": charts.EVENT}))
        parts += [_recovery(row, results.timelines[row["recovery_id"]], f"r{n}") for n, row in enumerate(timed)]
    elif timed:
        parts.append("<p>There are no charts, because the package vl-convert-python is not installed here.</p>")
    table = partial(page.table, ("Start (UTC)", "Cluster", "Took", "Best possible", "Speed", "Lost", "Most lost to"))
    rows = [_recovery_row(row) for row in results.recoveries]
    whole = len(rows) >= results.count
    parts.append(
        f"<h3>{'Every recovery' if whole else f'The worst {len(rows):,} of {results.count:,} recoveries'}</h3>"
    )
    parts.append(table(rows[:_OPEN_ROWS], "t nnnn"))
    if len(rows) > _OPEN_ROWS:
        more = table(rows[_OPEN_ROWS:], "t nnnn")
        parts.append(f"<details><summary>{len(rows) - _OPEN_ROWS:,} more</summary>{more}</details>")
    return parts


def _recovery_row(row: Row) -> tuple[str, ...]:
    cause, seconds = next(iter(_lost([row]).items()))
    return (
        _time(row["start"]),
        str(row["cluster"]),
        duration(row["seconds"]),
        duration(row["bound_seconds"]),
        percent(row["efficiency"]),
        duration(row["regret_seconds"]),
        CAUSES[cause][0] if seconds >= 0.5 else "",
    )


def _recovery(row: Row, rows: Sequence[Row], key: str) -> str:
    line = timeline(row, rows)
    marks = "".join(f"<li><b>{label}</b> {escape(', '.join(texts))}</li>" for _, label, texts in line.marks())
    lost = _lost([row])
    total = sum(seconds for seconds in lost.values() if seconds > 0)
    losses = [
        f"{CAUSES[cause][0].lower()} {duration(seconds)} ({percent(seconds / total)})"
        for cause, seconds in lost.items()
        if seconds >= max(0.5, 0.01 * total)
    ]
    estimated = " Log sizes are unknown: copies are assumed to use the throttle." if row.get("is_estimated") else ""
    caption = (
        f"<p>{escape(line.title)}.{estimated}</p>"
        f"<p>{'Lost: ' + escape(', '.join(losses[:3])) if losses else 'No time was lost'}.</p><ol>{marks}</ol>"
    )
    head = (
        f"{row['cluster']}, {_time(row['start'])}: {duration(row['seconds'])}, best possible "
        f"{duration(row['bound_seconds'])}"
    )
    return f"<h3>{escape(head)}</h3>" + page.figure(partial(charts.timeline_chart, line), key, caption)


_ENDS = {
    ReassignmentStatus.CANCELLED.value: "cancelled",
    ReassignmentStatus.CHANGED.value: "ended with other replicas than the target",
    ReassignmentStatus.DELETED.value: "topics deleted",
    ReassignmentStatus.MIXED.value: "ended, not all partitions with their target replicas,",
}
"""Status of a recovery -> how it ended, if not as planned."""


def timeline(recovery: Row, rows: Sequence[Row]) -> TrafficTimeline:
    """Return the timeline of a recovery's slowest link side.

    Args:
        recovery: its row in `Results.recoveries`.
        rows: its decisions, in order; `outcome` is the only key that may be absent.
    """
    start, seconds = recovery["start"], float(recovery["seconds"])

    def second(row: Row) -> float:
        return float(min(max((row["time"] - start).total_seconds(), 0.0), seconds))

    points = [
        TimelinePoint(second(row), row["client"], row["achieved"], row["applied"], row["capacity"]) for row in rows
    ]
    role = _SIDES.get(recovery["bottleneck_role"])
    side = f"Broker {recovery['bottleneck_broker']}, {role} link" if role else "Unknown link side"
    events = [TimelineEvent(0.0, _start_text(recovery)), *_events(rows, second)]
    end = _ENDS.get(recovery["status"], "finish")
    events.append(TimelineEvent(seconds, f"{end} after {duration(seconds)}"))
    text = "; ".join(f"{duration(event.second)}: {event.text}" for event in events)
    description = (
        f"Client load and copies of {side.lower()} over {duration(seconds)}, under its capacity. Events: {text}."
    )
    blind = _periods(rows, _is_blind, seconds, second, "no metrics")
    overridden = _periods(rows, _is_override, seconds, second, "override")
    return TrafficTimeline(side, description, points, seconds, events, [*blind, *overridden])


def _start_text(recovery: Row) -> str:
    size = recovery.get("bytes")
    amount = "" if size is None else f", {megabytes(size / 1000)} GB"
    return f"start of {page.count(recovery['partitions'] or 0, 'partition')}{amount}"


def _is_override(row: Row) -> bool:
    return row["reason"] in OVERRIDES


def _is_blind(row: Row) -> bool:
    return row["forecast"] is None and not _is_override(row)


def _is_refused(row: Row) -> bool:
    """Whether the throttle stayed although another rate was decided; a rate on its way up changes in steps."""
    return row.get("outcome") == "refused" or row["applied"] == row["standing"] != row["decided"]


def _events(rows: Sequence[Row], second: Any) -> list[TimelineEvent]:
    """Return what changed from one decision to the next."""
    events: list[TimelineEvent] = []
    previous: Row = {"forecast": 0.0, "reason": "", "applied": 0.0, "standing": 0.0, "decided": 0.0, "term": None}
    for row in rows:
        texts = []
        if previous["term"] is not None and row["term"] != previous["term"]:
            texts.append("leader change")
        if _is_override(row) != _is_override(previous):
            texts.append(f"override, {megabytes(row['decided'])} MB/s" if _is_override(row) else "override ends")
        if _is_blind(row) != _is_blind(previous) and not _is_override(row):
            texts.append(f"no metrics, {megabytes(row['decided'])} MB/s" if _is_blind(row) else "metrics are back")
        if _is_refused(row) and not _is_refused(previous):
            in_force = "no throttle" if row["applied"] is None else f"{megabytes(row['applied'])} MB/s"
            refused = "write refused" if row.get("outcome") == "refused" else "rate not written"
            texts.append(f"{refused}: {megabytes(row['decided'])} MB/s decided, {in_force} in force")
        events += [TimelineEvent(second(row), text) for text in texts]
        previous = row
    return events


def _periods(rows: Sequence[Row], applies: Any, end: float, second: Any, text: str) -> list[TimelinePeriod]:
    periods: list[TimelinePeriod] = []
    start: float | None = None
    for row in rows:
        if applies(row) and start is None:
            start = second(row)
        elif not applies(row) and start is not None:
            periods.append(TimelinePeriod(start, second(row), text))
            start = None
    return periods if start is None else [*periods, TimelinePeriod(start, end, text)]


# The other tables


def _worst(results: Results, trace_url: str) -> str:
    costly = [row for row in results.worst if row["lost_seconds"] >= 0.5]
    rows = sorted(costly, key=lambda row: -row["lost_seconds"])[:_MOST_DECISIONS]
    if not rows:
        return "<p>No decision cost a second.</p>"
    cells = [
        (
            _when(row, len(results.clusters) > 1),
            f"{row['broker_id']}, {_SIDES.get(row['role'], row['role'])}",
            _known(row),
            megabytes(row["decided"]),
            megabytes(row["budget"]),
            f"{duration(row['lost_seconds'])}: {CAUSES[row['cause']][0].lower()}" if row["cause"] else "",
            _trace(row, trace_url),
        )
        for row in rows
    ]
    columns = ("Time (UTC)", "Broker, link", "What was known", "Decided, MB/s", "Best, MB/s", "Cost", "Trace")
    return page.table(columns, cells, " t nn")


def _when(row: Row, with_cluster: bool) -> Html:
    cluster = f"<br>{escape(str(row['cluster']))}" if with_cluster else ""
    return Html(f'<span class="t">{_time(row["time"], seconds=True)}</span>{cluster}')


def _known(row: Row) -> str:
    """Return what the planner knew when it decided."""
    reason = _REASONS.get(row["reason"], str(row["reason"]))
    if row.get("forecast") is None:
        return reason
    link = f" on a link of {megabytes(row['capacity'])}" if row.get("capacity") is not None else ""
    return f"{reason}: clients at {megabytes(row['forecast'])}{link} MB/s"


def _trace(row: Row, trace_url: str) -> Html:
    trace, cycle = str(row["trace_id"] or ""), f"cycle {str(row['cycle_id']).rpartition('/')[2]}"
    if trace and trace_url:
        address = trace_url.replace("{trace_id}", quote(trace, safe=""))
        return Html(f'<a href="{escape(address)}">{escape(cycle)}</a>')
    return Html(f"<code>{escape(trace)}</code>" if trace else f"{escape(cycle)}, not traced")


def _trend(results: Results) -> str:
    by_cluster: dict[str, list[Row]] = {}
    for row in results.trends:
        if row["efficiency_p50"] is not None and math.isfinite(row["efficiency_p50"]):
            by_cluster.setdefault(str(row["cluster"]), []).append(row)
    days = {row["date"] for rows in by_cluster.values() for row in rows}
    if len(days) < 2:
        return "<p>A trend needs recoveries of two days.</p>"
    if not charts.is_available():
        return "<p>results.json has the medians of each day.</p>"
    sizes = Counter({name: sum(row["count"] for row in rows) for name, rows in by_cluster.items()})
    series = {
        name: [(str(row["date"]), 100 * row["efficiency_p50"]) for row in by_cluster[name]]
        for name, _ in sizes.most_common(_MOST_LINES)
    }
    title = "Median speed of the recoveries of each day"
    draw = partial(charts.trend_chart, series, title)
    others = len(sizes) - len(series)
    more = f" {page.count(others, 'cluster')} with fewer recoveries: see results.json." if others else ""
    names = page.legend(charts.trend_colours(series)) if len(series) > 1 else ""
    return names + page.figure(draw, "trend", f"<p>{title}, in % of the best possible one.{more}</p>")


def _groups(rows: Sequence[Row], key: str, heading: str) -> str:
    if not rows:
        return "<p>None.</p>"
    of_clusters = key != "cluster"
    cells = [
        (
            (f"{row[key] or 'unknown'}, {row['cluster']}" if of_clusters else str(row["cluster"])),
            f"{row['count']:,}",
            percent(row["efficiency_p50"]),
            percent(row["efficiency_worst"]),
            percent(row["saturated_share"]),
            percent(row["over_share"]),
            f"{row['writes']:,}",
        )
        for row in rows
    ]
    counted = "Link sides" if of_clusters else "Recoveries"
    columns = (
        f"{heading}, cluster" if of_clusters else heading,
        *(counted, "Median speed", "Worst speed", "Time on a full link", "Time over the share", "Throttle writes"),
    )
    return page.table(columns, cells, " nnnnnn")


def _quality(results: Results) -> str:
    names = ("files", "unreadable_files", "rows", "incomplete_rows", "newer_rows")
    by_cluster: dict[str, list[Row]] = {}
    for row in results.quality:
        by_cluster.setdefault(str(row["cluster"]), []).append(row)
    cells = [
        (cluster, f"{len(rows):,}", *(f"{sum(row[name] or 0 for row in rows):,}" for name in names))
        for cluster, rows in sorted(by_cluster.items())
    ]
    columns = ("Cluster", "Days", "Files", "Unreadable files", "Records", "Incomplete records", "Newer records")
    table = page.table(columns, cells, " nnnnnn") if cells else "<p>None.</p>"
    return f"{table}<p><small>{page.count(results.copies, 'duplicate record')} counted once.</small></p>"


def _time(time: datetime, seconds: bool = False) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}" if seconds else f"{time:%Y-%m-%d %H:%M}"

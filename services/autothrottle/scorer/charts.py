"""Charts as SVG: timelines of link sides, and trends. vl-convert draws them from Vega-Lite specifications.

vl-convert is imported with the first chart, so that a command starts fast and a page without charts does not need it.
The type to know is `TrafficTimeline`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from typing import Any

from autothrottle.core.errors import Missing
from autothrottle.core.units import MEGABYTE

INK, FAINT, GRID, PAPER = "#1b2430", "#4b5563", "#d8dde3", "#ffffff"
CLIENTS, COPIES, THROTTLE, PERIOD, EVENT = "#7aa6d8", "#2f8f4e", "#c2410c", "#b45309", "#6d28d9"
_SERIES = ("#1f5fa8", "#c25e0e", "#2f8f50", "#7a3ea8", "#b02a37", "#0e7c86")
"""Colours of the lines of a trend."""

DARK = {
    INK: "#e6e9ee",
    FAINT: "#a8b3c0",
    GRID: "#38424f",
    PAPER: "#14191f",
    CLIENTS: "#3f6d9f",
    COPIES: "#4fb873",
    THROTTLE: "#fb923c",
    PERIOD: "#f0b429",
    EVENT: "#b79bf5",
    **dict(zip(_SERIES, ("#6aa9f0", "#f0a060", "#5ac47c", "#c08af0", "#f07c86", "#4cc3ce"), strict=True)),
}
"""Colour on a light page -> colour on a dark page."""

DARK_STYLE = "".join(
    f'svg [{attribute}="{light}"]{{{attribute}:{dark}}}'
    for light, dark in DARK.items()
    for attribute in ("fill", "stroke")
)
"""CSS rules that recolour a chart for a dark page."""

WIDE, NARROW = 720, 340
"""Widths of charts in pixels: for desks and paper, and for phones."""

LINK, ALLOWED = "link capacity", "clients + throttle"
LEGEND = {"clients": CLIENTS, "copies": COPIES, ALLOWED: THROTTLE, LINK: INK}
"""Name of an area or line of a timeline -> its colour."""

_POINT = 4
"""Shortest mean width of a point of a timeline, pixels."""

_UNITS = ((300, 1, "seconds"), (5 * 3600, 60, "minutes"), (5 * 86_400, 3600, "hours"))
"""(longest duration in seconds, seconds of the unit, unit) of time axes."""


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The traffic of a link side from a time on; rates are bytes/s, None: unknown."""

    second: float
    """Since the start of the timeline."""
    clients: float | None
    copies: float | None
    throttle: float | None
    """None: not throttled."""
    capacity: float | None


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A moment to mark."""

    second: float
    text: str


@dataclass(frozen=True, slots=True)
class TimelinePeriod:
    """A span to shade."""

    start: float
    finish: float
    text: str


@dataclass(frozen=True, slots=True)
class TrafficTimeline:
    """The traffic of one link side during one recovery."""

    title: str
    description: str
    """What the chart shows, for screen readers."""
    points: Sequence[TimelinePoint]
    """Ascending by time; each holds until the next one."""
    seconds: float
    """End of the last point."""
    events: Sequence[TimelineEvent] = ()
    periods: Sequence[TimelinePeriod] = ()
    longest: float = 0.0
    """Length of the time axis in seconds, if longer than `seconds`: compared timelines share their axes."""

    def marks(self) -> list[tuple[float, str, list[str]]]:
        """Return (second, label, texts) of the events; events too close for two labels share one, such as `2-4`."""
        nearest, groups = max(self.seconds, self.longest) / 22, list[list[TimelineEvent]]()
        for event in sorted(self.events, key=lambda event: event.second):
            if groups and event.second - groups[-1][0].second < nearest:
                groups[-1].append(event)
            else:
                groups.append([event])
        marks, number = [], 0
        for group in groups:
            first, number = number + 1, number + len(group)
            label = str(first) if first == number else f"{first}-{number}"
            marks.append((group[0].second, label, [event.text for event in group]))
        return marks


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit of a time axis as (its seconds, its name).

    >>> time_unit(1500), time_unit(90_000)
    ((60, 'minutes'), (3600, 'hours'))
    """
    return next(((size, name) for longest, size, name in _UNITS if seconds <= longest), (86_400, "days"))


def is_available() -> bool:
    """Return whether charts can be drawn."""
    try:
        require()
    except Missing:
        return False
    return True


def require() -> Any:
    """Return the module that draws charts.

    Raises:
        Missing: it is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise Missing(f"charts need vl-convert-python ({error}); install autothrottle with the extra `score`") from None
    return vl_convert


def timeline_chart(timeline: TrafficTimeline, width: int, key: str) -> str:
    """Return a timeline as an SVG element: clients and copies stacked under the link's capacity, and the events.

    Args:
        timeline: what to draw.
        width: width in pixels.
        key: unique in the document; prefixes the ids in the element.

    Raises:
        Missing: vl-convert is not installed.
    """
    size, unit = time_unit(max(timeline.seconds, timeline.longest))
    points = _thinned(timeline, width // _POINT)
    rows = [_stacked(point, size) for point in points]
    rows += [{**row, "x": timeline.seconds / size} for row in rows[-1:]]
    top = max((rate for row in rows for name in ("link", "copies") if (rate := row[name]) is not None), default=1.0)
    x_scale = {"domain": [0, max(timeline.seconds, timeline.longest) / size or 1], "nice": False}
    x = {"field": "x", "type": "quantitative", "title": f"{unit} since the start", "scale": x_scale}
    y_scale = {"domain": [0, top * 1.05 or 1.0], "nice": True}
    y = {"type": "quantitative", "title": "MB/s", "scale": y_scale, "axis": {"tickCount": 5}}
    x["axis"] = {"tickCount": 4 if width < 500 else 10}
    areas = [
        _area("clients", None, x, y),
        _area("copies", "clients", x, y),
        _line("allowed", ALLOWED, x, y, {"strokeWidth": 1.8}),
        _line("link", LINK, x, y, {"strokeWidth": 1.6, "strokeDash": [6, 3]}),
    ]
    layers = [*_periods(timeline, size), *areas, *_events(timeline, size, x_scale)]
    spec = {"data": {"values": rows}, "height": 200 if width < 500 else 240, "layer": layers}
    return _element(spec, width, timeline.title, timeline.description, key)


def _thinned(timeline: TrafficTimeline, most: int) -> list[TimelinePoint]:
    """Return at most so many points: of each group the time-weighted means, and the last throttle and capacity."""
    points = timeline.points
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    ends = [point.second for point in points[1:]] + [timeline.seconds]
    durations = [max(end - point.second, 0.0) for point, end in zip(points, ends, strict=True)]
    thinned = []
    for start in range(0, len(points), size):
        group, weights = points[start : start + size], durations[start : start + size]
        clients, copies = _mean([p.clients for p in group], weights), _mean([p.copies for p in group], weights)
        thinned.append(TimelinePoint(group[0].second, clients, copies, group[-1].throttle, group[-1].capacity))
    return thinned


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else (pairs[0][0] if pairs else None)


def _stacked(point: TimelinePoint, size: float) -> dict[str, float | None]:
    clients = point.clients or 0.0
    copies = None if point.copies is None else clients + max(point.copies, 0.0)
    allowed = None if point.throttle is None else clients + point.throttle
    rates = {"clients": point.clients, "copies": copies, "allowed": allowed, "link": point.capacity}
    in_megabytes = {name: None if rate is None else round(rate / MEGABYTE, 2) for name, rate in rates.items()}
    return {"x": round(point.second / size, 3), **in_megabytes}


def _area(field: str, below: str | None, x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
    base = {"field": below} if below else {"datum": 0}
    mark = {"type": "area", "interpolate": "step-after", "clip": True, "opacity": 0.9, "color": LEGEND[field]}
    return {"mark": mark, "encoding": {"x": x, "y": {"field": field, **y}, "y2": base}}


def _line(field: str, name: str, x: Mapping[str, Any], y: Mapping[str, Any], look: Mapping[str, Any]) -> dict[str, Any]:
    mark = {"type": "line", "interpolate": "step-after", "clip": True, "color": LEGEND[name], **look}
    return {"mark": mark, "encoding": {"x": x, "y": {"field": field, **y}}}


def _periods(timeline: TrafficTimeline, size: float) -> list[dict[str, Any]]:
    if not timeline.periods:
        return []
    values = [{"from": period.start / size, "to": period.finish / size} for period in timeline.periods]
    encoding = {"x": {"field": "from", "type": "quantitative"}, "x2": {"field": "to"}}
    mark = {"type": "rect", "color": PERIOD, "opacity": 0.18, "clip": True}
    return [{"data": {"values": values}, "mark": mark, "encoding": encoding}]


def _events(timeline: TrafficTimeline, size: float, scale: Mapping[str, Any]) -> list[dict[str, Any]]:
    values = [{"x": second / size, "label": label} for second, label, _ in timeline.marks()]
    if not values:
        return []
    x = {"field": "x", "type": "quantitative", "scale": scale}
    rule = {"type": "rule", "color": EVENT, "strokeDash": [2, 2], "strokeWidth": 1.5}
    text = {"type": "text", "color": EVENT, "fontWeight": "bold", "fontSize": 12, "dy": -7}
    return [
        {"data": {"values": values}, "mark": rule, "encoding": {"x": x}},
        {"data": {"values": values}, "mark": text, "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "label"}}},
    ]


_DAY = 86_400_000
"""Milliseconds."""


def _milliseconds(day: str) -> int:
    """Return the start of a UTC day, as JavaScript counts time."""
    return (date.fromisoformat(day) - date(1970, 1, 1)).days * _DAY


def trend_colours(names: Iterable[str]) -> dict[str, str]:
    """Return name of a line -> its colour in a trend."""
    return {name: _SERIES[n % len(_SERIES)] for n, name in enumerate(names)}


def trend_chart(series: Mapping[str, Sequence[tuple[str, float]]], title: str, width: int, key: str) -> str:
    """Return a trend as an SVG element.

    Args:
        series: name of a line -> (date as YYYY-MM-DD, percent), ascending; at least one line with a point.
        title: title, also the description for screen readers.
        width: width in pixels.
        key: unique in the document.

    Raises:
        Missing: vl-convert is not installed.
    """
    names = list(series)
    rows = [(name, _milliseconds(day), percent) for name, line in series.items() for day, percent in line]
    values = [{"day": day, "percent": percent, "line": name} for name, day, percent in rows]
    first, last = min(day for _, day, _ in rows), max(day for _, day, _ in rows)
    step = -(-(last - first + _DAY) // ((3 if width < 500 else 8) * _DAY)) * _DAY
    axis = {"values": list(range(first, last + 1, step)), "labelAngle": 0, "format": "%Y-%m-%d"}
    padding = {"type": "utc", "nice": False, "padding": 34}
    top = max((percent for line in series.values() for _, percent in line), default=100.0)
    colours = {"domain": names, "range": list(trend_colours(names).values())}
    x = {"field": "day", "type": "temporal", "title": None, "axis": axis, "scale": padding}
    y_scale = {"domain": [0, max(top, 100.0)], "nice": True}
    y = {"field": "percent", "type": "quantitative", "title": "% of the best possible", "scale": y_scale}
    colour = {"field": "line", "type": "nominal", "scale": colours, "legend": None}
    spec = {
        "data": {"values": values},
        "height": 200,
        "mark": {"type": "line", "point": {"size": 30}, "strokeWidth": 1.8},
        "encoding": {"x": x, "y": {**y, "axis": {"tickCount": 5}}, "color": colour},
    }
    return _element(spec, width, title, title, key)


def sheet(title: str, verdict: str, legend: Mapping[str, str], panels: Sequence[tuple[str, str]]) -> str:
    """Return an SVG file, for light and dark pages: a title, a verdict, a legend, and wide charts below one another.

    Args:
        title: what the charts show.
        verdict: one or two sentences, wrapped into lines.
        legend: name -> colour.
        panels: (heading, SVG element `WIDE` pixels wide) of each chart.
    """
    parts, y = [_heading(24, title, 16)], 24
    for line in textwrap.wrap(verdict, 100):
        y += 20
        parts.append(f'<text x="8" y="{y}" font-size="13" fill="{INK}">{escape(line)}</text>')
    y += 24
    for number, (name, colour) in enumerate(legend.items()):
        x = 8 + number * (WIDE // len(legend))
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="{y}" font-size="11" fill="{FAINT}">{escape(name)}</text>')
    y += 8
    for heading, chart in panels:
        parts.append(_heading(y + 22, heading, 13))
        box = _VIEW_BOX.search(chart)
        assert box
        parts.append(chart.replace("<svg ", f'<svg y="{y + 26}" ', 1))
        y += 26 + round(float(box[2]))
    style = f"<style>@media (prefers-color-scheme:dark){{{DARK_STYLE}}}</style>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {y + 8}" width="{WIDE}" '
        f'height="{y + 8}" role="img" aria-label="{escape(f"{title}. {verdict}", quote=True)}" '
        f'font-family="system-ui, sans-serif">{style}'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>{"".join(parts)}</svg>\n'
    )


def _heading(y: float, text: str, size: int) -> str:
    return f'<text x="8" y="{y:g}" font-size="{size}" font-weight="bold" fill="{INK}">{escape(text)}</text>'


_CONFIG = {
    "font": "system-ui, sans-serif",
    "background": None,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        **{
            "labelColor": FAINT,
            "titleColor": FAINT,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
        },
        **{"gridColor": GRID, "domainColor": GRID, "tickColor": GRID, "labelOverlap": True},
        "labelFlush": False,
    },
}


def _element(spec: Mapping[str, Any], width: int, title: str, description: str, key: str) -> str:
    whole = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": width,
        "autosize": {"type": "fit", "contains": "padding"},
        "padding": {"left": 2, "right": 12, "top": 16, "bottom": 2},
        "config": _CONFIG,
        **spec,
    }
    return _compact(require().vegalite_to_svg(whole), title, description, key)


_VIEW_BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_NEEDLESS = re.compile(
    r' (?:class|role|aria-[a-z]+|pointer-events|stroke-miterlimit|font-family)="[^"]*"| (?:opacity|stroke-width)="1"'
    r'|<path d="(?:M0,0h0v0h0Z|)"(?: display="none")?/>|(?<=font-size="11)px'
)
_STEPS = re.compile(r"([MLZ])(?:(-?[\d.]+),(-?[\d.]+))?")


def _compact(svg: str, title: str, description: str, key: str) -> str:
    """Return a chart with short numbers, ids that are unique in a page, and texts for screen readers."""
    box = _VIEW_BOX.search(svg)
    assert box
    width, height = box.groups()
    body = svg[svg.index(">", box.end()) + 1 : svg.rindex("</svg>")]
    body = re.sub(r' d="([^"]*)"', lambda match: f' d="{_short_path(match[1])}"', body)
    body = re.sub(r'transform="[^"]*"', lambda match: re.sub(r"(\.\d)\d+", r"\1", match[0]), body)
    body = _NEEDLESS.sub("", re.sub(r"\bclip(\d+)\b", rf"{key}c\1", body))
    body = body.replace("<g></g>", "")
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-labelledby="{key}t {key}d" font-family="system-ui, sans-serif">'
        f'<title id="{key}t">{escape(title)}</title><desc id="{key}d">{escape(description)}</desc>{body}</svg>'
    )


def _short_path(path: str) -> str:
    """Return a path of straight lines with one decimal, and without the repeated coordinate of each step.

    >>> _short_path("M0,10.04L5.123,10.01L5.123,20.5L9,20.5Z")
    'M0,10H5.1V20.5H9Z'
    """
    if _STEPS.sub("", path):
        return path
    parts: list[str] = []
    last = ("", "")
    for command, x, y in _STEPS.findall(path):
        if command == "Z":
            parts.append("Z")
            continue
        point = (f"{round(float(x), 1):g}", f"{round(float(y), 1):g}")
        if command == "M":
            parts.append(f"M{point[0]},{point[1]}")
        elif point[0] == last[0] and point[1] != last[1]:
            parts.append(f"V{point[1]}")
        elif point[1] == last[1] and point[0] != last[0]:
            if parts[-1].startswith("H"):
                parts.pop()
            parts.append(f"H{point[0]}")
        elif point != last:
            parts.append(f"L{point[0]},{point[1]}")
        last = point
    return "".join(parts)

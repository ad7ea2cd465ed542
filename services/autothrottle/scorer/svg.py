"""Plots as SVG text: line plots, waterfall charts, and surfaces as grids of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

WIDTH, HEIGHT = 720, 260
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 20, 150, 34
_COLOURS = ("#1f5fa8", "#d1701b", "#2f8f4e", "#8a3ea8", "#b02a37", "#6b7280", "#0e7c86", "#a16207")

_TITLE = 24
Series = Mapping[str, Sequence[tuple[float, float | None]]]
"""Name of a line -> its (x, y) points in ascending x; a None interrupts the line."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values to pixels along one axis."""

    low: float
    high: float
    begin: float
    end: float

    def of(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return round(self.begin + (value - self.low) / span * (self.end - self.begin), 1)


def lines(title: str, series: Series, x_unit: str, y_unit: str) -> str:
    """Return a line plot."""
    return _picture(title, _lines(series, x_unit, y_unit))


def sheet(panels: Mapping[str, Series], x_unit: str, y_unit: str) -> str:
    """Return a complete SVG file of line plots, two per row: title -> lines, as for `lines`."""
    parts = []
    for index, (title, series) in enumerate(panels.items()):
        x, top = index % 2 * WIDTH, index // 2 * (HEIGHT + _TITLE)
        body = "".join(_lines(series, x_unit, y_unit))
        heading = f'<text x="{_LEFT}" y="16" font-weight="bold" fill="#1b2430">{escape(title)}</text>'
        parts.append(
            f'<g transform="translate({x},{top})">{heading}<g transform="translate(0,{_TITLE})">{body}</g></g>'
        )
    width, height = min(len(panels), 2) * WIDTH, (len(panels) + 1) // 2 * (HEIGHT + _TITLE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _lines(series: Series, x_unit: str, y_unit: str) -> list[str]:
    points = [(x, y) for line in series.values() for x, y in line if y is not None] or [(0.0, 0.0)]
    x = _Scale(min(p[0] for p in points), max(p[0] for p in points), _LEFT, WIDTH - _RIGHT)
    y = _Scale(0.0, max(p[1] for p in points) * 1.05 or 1.0, HEIGHT - _BOTTOM, _TOP)
    body = [_axes(x, y, x_unit, y_unit)]
    for index, (name, line) in enumerate(series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        for is_measured, piece in groupby(line, lambda point: point[1] is not None):
            if is_measured:
                path = " ".join(f"{x.of(a)},{y.of(b or 0.0)}" for a, b in piece)
                body.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="{path}"/>')
        body.append(_legend(index, name, colour))
    return body


def waterfall(title: str, bars: Sequence[tuple[str, float]], total: str, unit: str) -> str:
    """Return a waterfall chart of (name, value) bars with their total."""
    ends, at = [0.0], 0.0
    for _, value in bars:
        at += value
        ends.append(at)
    y = _Scale(min(ends), max(*ends, 1e-9), HEIGHT - _BOTTOM - 30, _TOP)
    width = (WIDTH - _LEFT - 20) / (len(bars) + 1)
    body = [_axes(_Scale(0, 1, _LEFT, WIDTH - 20), y, "", unit)]
    steps = [(name, ends[i], ends[i + 1]) for i, (name, _) in enumerate(bars)] + [(total, 0.0, at)]
    for index, (name, start, end) in enumerate(steps):
        top, bottom = sorted((y.of(start), y.of(end)))
        x = _LEFT + index * width + 6
        colour = "#374151" if index == len(bars) else (_COLOURS[4] if end >= start else _COLOURS[2])
        height = max(bottom - top, 1.0)
        body.append(f'<rect x="{x:.1f}" y="{top}" width="{width - 12:.1f}" height="{height:.1f}" fill="{colour}"/>')
        middle = x + (width - 12) / 2
        body.append(_text(middle, top - 4, f"{end - start:,.0f}", "middle"))
        body.append(_text(middle, HEIGHT - 24 + 11 * (index % 2), name.replace("_", " "), "middle"))
    return _picture(title, body)


def surface(
    title: str, cells: Mapping[tuple[float, float], float], x_name: str, y_name: str, marked: tuple[float, float] | None
) -> str:
    """Return a grid of cells, (x, y) -> value, darker for smaller values; `marked` highlights one cell."""
    columns, rows = sorted({x for x, _ in cells}), sorted({y for _, y in cells}, reverse=True)
    low, high = min(cells.values(), default=0.0), max(cells.values(), default=1.0)
    width, height = (WIDTH - _LEFT - 20) / max(len(columns), 1), (HEIGHT - _TOP - _BOTTOM) / max(len(rows), 1)
    body = []
    for (x, y), value in cells.items():
        x_pixels, y_pixels = _LEFT + columns.index(x) * width, _TOP + rows.index(y) * height
        share = (value - low) / (high - low or 1.0)
        frame = ' stroke="#b02a37" stroke-width="3"' if (x, y) == marked else ""
        body.append(
            f'<rect x="{x_pixels:.1f}" y="{y_pixels:.1f}" width="{width - 2:.1f}" height="{height - 2:.1f}" '
            f'fill="hsl(212,60%,{35 + 55 * share:.0f}%)"{frame}/>'
        )
        shade = "#1b2430" if share > 0.5 else "#ffffff"
        body.append(_text(x_pixels + width / 2, y_pixels + height / 2 + 4, f"{value:,.0f}", "middle", shade))
    body += [_text(_LEFT + (i + 0.5) * width, HEIGHT - 18, f"{x:g}", "middle") for i, x in enumerate(columns)]
    body += [_text(_LEFT - 8, _TOP + (i + 0.5) * height + 4, f"{y:g}", "end") for i, y in enumerate(rows)]
    body += [_text((WIDTH + _LEFT) / 2, HEIGHT - 4, x_name, "middle"), _text(4, 12, y_name, "start")]
    return _picture(title, body)


def _axes(x: _Scale, y: _Scale, x_unit: str, y_unit: str) -> str:
    parts = []
    for n in range(5):
        value = y.low + (y.high - y.low) * n / 4
        at = y.of(value)
        parts.append(f'<line x1="{x.begin}" x2="{x.end}" y1="{at}" y2="{at}" stroke="#d8dde3"/>')
        parts.append(_text(x.begin - 6, at + 4, f"{value:,.4g}", "end"))
        if x_unit:
            value = x.low + (x.high - x.low) * n / 4
            parts.append(_text(x.of(value), HEIGHT - 18, f"{value:,.4g}", "middle"))
    parts.append(_text(x.end, HEIGHT - 4, x_unit, "end"))
    parts.append(_text(4, 12, y_unit, "start"))
    return "".join(parts)


def _legend(index: int, name: str, colour: str) -> str:
    top = _TOP + 10 + 18 * index
    line = f'<rect x="{WIDTH - _RIGHT + 12}" y="{top - 8}" width="12" height="4" fill="{colour}"/>'
    return line + _text(WIDTH - _RIGHT + 30, top - 3, name, "start")


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#3b4654") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _picture(title: str, body: Sequence[str]) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">{"".join(body)}</svg>'
        "</figure>"
    )

"""Parts of an HTML page that works without a network and without scripts: style, tables, figures, texts of values.

On a phone, each row of a table becomes a block with a line per cell, so that no page scrolls sideways.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from autothrottle.core.units import MEGABYTE
from autothrottle.scorer.charts import DARK_STYLE, NARROW, WIDE

STYLE = (
    """
:root{color-scheme:light dark;--ink:#1b2430;--faint:#4b5563;--line:#d8dde3;--paper:#ffffff;--soft:#f3f5f7;--bar:#c2410c;
--event:#6d28d9;--link:#1f5fa8}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1080px;margin:1.5rem auto;
padding:0 1rem;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:0}h2{font-size:1.2rem;margin:2.4rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.6rem 0 .2rem}p{margin:.4rem 0}a{color:var(--link)}code{font-size:.92em}
.faint,small,th{color:var(--faint)}
.answer{font-size:1.15rem;margin:.8rem 0}
.numbers{display:grid;grid-template-columns:repeat(3,1fr);gap:.8rem;margin:1rem 0}
.numbers div{border:1px solid var(--line);border-radius:8px;padding:.7rem 1rem;background:var(--soft)}
.numbers b{display:block;font-size:1.7rem;line-height:1.2}.numbers span{display:block}
table{border-collapse:collapse;font-size:13.5px;margin:.6rem 0;width:100%}
td,th{padding:.3rem .6rem .3rem 0;text-align:left;vertical-align:top;font-weight:400;
border-bottom:1px solid var(--line)}
.n{text-align:right}td.n,.t{white-space:nowrap}.b{width:20%}.n+:not(.n){padding-left:.6rem}td{font-variant-numeric:tabular-nums}
.bar{display:inline-block;height:.7rem;background:var(--bar);border-radius:2px;print-color-adjust:exact;
-webkit-print-color-adjust:exact}
figure{margin:.4rem 0;display:flex;flex-wrap:wrap;gap:0 1.5rem;break-inside:avoid}
figure>div{flex:1 1 300px;min-width:0;max-width:100%}figure>.chart{flex:0 1 720px}.chart svg{width:100%;height:auto}
figcaption{font-size:13.5px;flex:1 1 280px;min-width:0}
figcaption ol,figcaption ul{margin:.2rem 0;padding-left:0;list-style:none}
figcaption b{color:var(--event)}
.legend{font-size:13px;color:var(--faint);margin:.2rem 0}
.legend span{display:inline-block;margin-right:1rem}
.legend svg{margin-right:.35rem;vertical-align:-1px}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:0 1.5rem}
.narrow{display:none}
@media (max-width:640px){
.numbers,.pair{grid-template-columns:1fr}.wide{display:none}.narrow{display:block}
table,tbody,tr,td{display:block}thead{display:none}tr{border-bottom:1px solid var(--line);padding:.4rem 0}
td,td.n,td.b,td.t,.n+td:not(.n){border:0;width:auto;white-space:normal;
padding:.1rem 0;text-align:left;display:grid;grid-template-columns:9rem minmax(0,1fr);gap:.5rem}
td::before{content:attr(data-name);color:var(--faint)}}
@media print{body{max-width:none;margin:0;font-size:11px}.wide{display:block}.narrow{display:none}
h2,h3{break-after:avoid}tr{break-inside:avoid}thead{display:table-header-group}}
@media screen and (prefers-color-scheme:dark){
:root{--ink:#e6e9ee;--faint:#a8b3c0;--line:#38424f;--paper:#14191f;--soft:#1c232b;--bar:#fb923c;--event:#b79bf5;
--link:#6aa9f0}
"""
    + DARK_STYLE
    + "}"
)


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def html(text: str) -> Html:
    """Return a text as HTML."""
    return text if isinstance(text, Html) else Html(escape(text))


def document(title: str, body: Iterable[str]) -> str:
    """Return a page."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body><main>{"".join(body)}</main></body></html>\n'


def numbers(tiles: Iterable[tuple[str, str, str]]) -> str:
    """Return the main numbers of a page: (number, what it is, details)."""
    parts = (
        f"<div><b>{html(n)}</b><span>{html(what)}</span><small>{html(more)}</small></div>" for n, what, more in tiles
    )
    return f'<div class="numbers">{"".join(parts)}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], kinds: str = "") -> str:
    """Return a table.

    Args:
        columns: headings with units, at most seven.
        rows: texts of the cells.
        kinds: one letter per column; `n`: numbers, aligned to the right; `b`: bars; `t`: short texts, not
            wrapped; a blank: texts.
    """
    marks = [f' class="{mark}"' if mark in "nbt" else "" for mark in kinds.ljust(len(columns))]
    names = [f' data-name="{escape(name)}"' for name in columns]
    head = "".join(f'<th scope="col"{mark}>{escape(name)}</th>' for name, mark in zip(columns, marks, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{mark}{name}>{html(cell)}</td>" for cell, mark, name in zip(row, marks, names, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bar(share: float) -> Html:
    """Return a bar whose length is a share of the cell, in [0, 1]."""
    return Html(f'<span class="bar" style="width:{100 * min(max(share, 0.0), 1.0):.0f}%"></span>')


def figure(draw: Callable[[int, str], str], key: str, caption: str, widths: tuple[int, int] = (WIDE, NARROW)) -> str:
    """Return a chart in two widths, of which the page shows the one that fits, and its caption.

    Args:
        draw: returns the chart of a width, with ids that start with a key.
        key: unique in the page.
        caption: HTML.
        widths: pixels, for desks and for phones.
    """
    wide, narrow = draw(widths[0], f"{key}w"), draw(widths[1], f"{key}n")
    words = f"<figcaption>{caption}</figcaption>" if caption else ""
    charts = f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
    return f'<figure><div class="chart">{charts}</div>{words}</figure>'


def legend(colours: Mapping[str, str]) -> str:
    """Return a legend: name -> colour of a chart on a light page."""
    box = '<svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="2" fill="{}"/></svg>'
    parts = (f"<span>{box.format(colour)}{escape(name)}</span>" for name, colour in colours.items())
    return f'<p class="legend">{"".join(parts)}</p>'


# Texts of values. None is unknown; no text is `-0`.


def duration(seconds: float | None) -> str:
    """Return a duration.

    >>> duration(12.4), duration(200), duration(8000), duration(200_000), duration(-0.2), duration(float("inf"))
    ('12 s', '3 min 20 s', '2 h 13 min', '2 d 8 h', '0 s', 'never')
    """
    if seconds is None or math.isnan(seconds):
        return "unknown"
    if math.isinf(seconds):
        return "never"
    sign, whole = "-" if seconds <= -0.5 else "", round(abs(seconds))
    if whole < 60:
        return f"{sign}{whole} s"
    if whole < 3600:
        return f"{sign}{whole // 60} min" + (f" {whole % 60} s" if whole % 60 and whole < 1800 else "")
    minutes = round(whole / 60)
    if minutes < 48 * 60:
        return f"{sign}{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    hours = round(whole / 3600)
    return f"{sign}{hours // 24} d" + (f" {hours % 24} h" if hours % 24 else "")


def percent(share: float | None) -> str:
    """Return a share in percent.

    >>> percent(0.834), percent(0.0412), percent(0.00471), percent(0.00001), percent(0), percent(1.5), percent(-0.001)
    ('83 %', '4.1 %', '0.47 %', '< 0.01 %', '0 %', '150 %', '-0.1 %')
    """
    if share is None or not math.isfinite(share):
        return "unknown"
    size = abs(100 * share)
    if size < 0.005:
        return "< 0.01 %" if share > 0 else "0 %"
    digits = 2 if size < 0.995 else 1 if size < 9.95 else 0
    text = f"{size:,.{digits}f}"
    return f"{'-' if share < 0 else ''}{text.rstrip('0').rstrip('.') if digits else text} %"


def megabytes(amount: float | None) -> str:
    """Return a rate or size as a number of MB.

    >>> megabytes(81_234_000), megabytes(5_440_000), megabytes(2_500_000_000), megabytes(-1)
    ('81', '5.4', '2,500', '0')
    """
    if amount is None or not math.isfinite(amount):
        return "unknown"
    size = abs(amount) / MEGABYTE
    text = f"{size:,.0f}" if size >= 9.95 else f"{size:.1f}".removesuffix(".0")
    return f"-{text}" if amount < 0 and text != "0" else text


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "recovery"), count(2, "recovery"), count(1200, "write")
    ('1 recovery', '2 recoveries', '1,200 writes')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"

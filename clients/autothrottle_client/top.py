"""`throttlectl top`: the overview of a cluster as text, and as a view that a terminal refreshes.

`rich` is imported only for the view. The values may have been chosen by others, so they are texts and never markup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from autothrottle.core.texts import no_end_words
from autothrottle.core.units import format_size
from autothrottle_client.errors import AutothrottleError, Invalid
from autothrottle_client.overview import LinkSideOverview, Overview
from autothrottle_client.tables import (
    aligned,
    eta_interval,
    override_scope,
    printable,
    rows_table,
    time_words,
)
from autothrottle_client.texts import about_rate, duration, format_rate

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_SECONDS = 1.0
"""Time between two refreshes."""

_BAR_CELLS = 20
_OTHER_LINES = 12
"""Lines of a terminal that are not rows of the tables."""


def overview_text(current: Overview) -> str:
    """Return an overview: what moves and what limits it, then one table each of link sides, flows and topics."""
    tables = [aligned(_summary(current)), sides_table(current.sides), flows_table(current), topics_table(current)]
    return "\n\n".join(filter(None, tables))


def _summary(current: Overview) -> list[tuple[str, str]]:
    leader, cycle, pause = current.leader, current.cycle, current.pause
    rows = [("cluster", current.cluster)] if current.cluster else []
    rows.append(("leader", "no planner leads" if leader is None else _leader(current)))
    if cycle is None:
        rows.append(("last cycle", "none yet"))
    else:
        what = f"failed: {cycle.error}" if cycle.error else cycle.sentence
        rows.append(("last cycle", f"{cycle.number}, {age_words(current.at, cycle.end)}, {cycle.reason}: {what}"))
    rows.append(("left", _left(current)))
    rows += [("limited by", current.limited_by)] if current.limited_by else []
    if pause is not None:
        parts = [pause.mode, *([f"by {pause.author}"] if pause.author else [])]
        rows.append(("paused", ", ".join(parts) + (f": {pause.reason}" if pause.reason else "")))
    for override in current.overrides:
        ends = [] if override.expires is None else [f"until {time_words(override.expires)}"]
        flags = [*["autoremove"] * override.autoremove, *["beyond capacity"] * override.beyond]
        words = [format_rate(override.rate), *ends, *flags, *([override.effect] if override.effect else [])]
        rows.append(("override", f"{override_scope(override.broker)}: {', '.join(words)}"))
    rows += [("catches up", catch_up) for catch_up in current.catch_ups]
    rows += [("finding", finding) for finding in (cycle.findings if cycle else ())]
    return rows + [("warning", warning) for warning in current.warnings]


def _leader(current: Overview) -> str:
    leader = current.leader
    assert leader is not None
    host = f" on {leader.host}" if leader.host else ""
    since = f", since {time_words(leader.since)}" if leader.since else ""
    return f"{leader.address}{host}, term {leader.term}{since}"


def age_words(now: datetime, time: datetime) -> str:
    """Return how long ago something was; a time in the future, by another clock, is now.

    >>> from datetime import UTC
    >>> age_words(datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC))
    '5 s ago'
    """
    words = duration(now - time)
    return words if words == "now" else f"{words} ago"


def _left(current: Overview) -> str:
    if current.bytes_left is None:
        return "unknown" if current.topics or current.catch_ups else "nothing is in reassignment"
    if current.down_brokers:
        return f"{format_size(current.bytes_left)}, {no_end_words(current.down_brokers)}"
    if current.eta is None:
        return format_size(current.bytes_left)
    end = (
        f"{time_words(current.eta)} at these throttles"
        if current.eta_is_static
        else eta_interval(current.eta, current.eta_low, current.eta_high)
    )
    return f"{format_size(current.bytes_left)}, done in {duration(current.eta - current.at)}, about {end}"


def sides_table(sides: Iterable[LinkSideOverview]) -> str:
    """Return link sides as a table, one row each."""
    return rows_table(_side_row(side) for side in sides)


def _side_row(side: LinkSideOverview) -> dict[str, str]:
    return {
        "BROKER": str(side.broker),
        "ROLE": side.role.value,
        "CAPACITY": _rate(side.capacity),
        "CLIENTS": _rate(side.clients),
        "REPLICATION": _rate(side.replication),
        "THROTTLE": "none" if side.throttle is None else about_rate(side.throttle),
        "HEADROOM": _rate(side.headroom),
        "REASON": f"{side.rise}: {side.reason}" if side.rise else side.reason,
    }


def flows_table(current: Overview) -> str:
    """Return flows as a table, one row each."""
    return rows_table(
        {
            "FROM": str(flow.leader),
            "TO": str(flow.follower),
            "PARTITIONS": str(flow.partitions),
            "LEFT": _size(flow.bytes_left),
            "RATE": _rate(flow.rate),
        }
        for flow in current.flows
    )


def topics_table(current: Overview) -> str:
    """Return the topics in reassignment as a table, one row each."""
    return rows_table(
        {
            "TOPIC": topic.topic,
            "PARTITIONS": str(topic.partitions),
            "COPIED": _size(topic.bytes_copied),
            "LEFT": _size(topic.bytes_left),
            "ETA": "unknown" if topic.eta is None else time_words(topic.eta),
        }
        for topic in current.topics
    )


def _rate(rate: int | None) -> str:
    return "-" if rate is None else about_rate(rate)


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_size(size)


def run_top(fetch: Callable[[], Overview]) -> None:
    """Show the overview in the terminal and refresh it every second, until interrupted. It survives outages.

    Raises:
        Invalid: `rich` is not installed.
        AutothrottleError: the first state cannot be fetched.
    """
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError as error:
        raise Invalid(
            f"the live view needs rich, which is not installed ({error}); install autothrottle with the extra `top`, "
            "or give --once"
        ) from None
    current, problem, console = fetch(), "", Console()
    with Live(view(current, "", console), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(_SECONDS)
            try:
                current, problem = fetch(), ""
            except AutothrottleError as error:
                problem = f"{error}. The values are from {time_words(current.at)}"
            live.update(view(current, problem, console), refresh=True)


def view(current: Overview, problem: str, console: Console) -> RenderableType:
    """Return an overview that fits into a terminal: the busiest link sides and flows come first.

    Args:
        current: the last overview.
        problem: why it is not current; empty: it is.
        console: the terminal.
    """
    from rich.console import Group
    from rich.rule import Rule

    rows = max(console.height - _OTHER_LINES - len(_summary(current)), 4)
    parts: list[RenderableType] = [_text(problem, "bold red")] if problem else []
    parts += [_aligned_rows(_summary(current))]
    if current.sides:
        parts += [Rule(), _sides(current, max(rows * 2 // 3, 2))]
    if current.flows:
        busiest = sorted(current.flows, key=lambda flow: -(flow.rate or 0))[: max(rows // 3, 2)]
        parts += [Rule(), _text(flows_table(replace(current, flows=tuple(busiest))))]
        parts += _more(len(current.flows) - len(busiest), "flows")
    return Group(*parts)


def _aligned_rows(rows: Sequence[tuple[str, str]]) -> RenderableType:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(_text(name, "bold"), _text(value, "yellow" if name in ("finding", "warning", "paused") else ""))
    return table


def _sides(current: Overview, most: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    busiest = sorted(current.sides, key=lambda side: -(side.replication or 0))[:most]
    table = Table(box=None, pad_edge=False, show_edge=False, expand=True)
    for name in ("BROKER", "ROLE", "CAPACITY", "LINK", "CLIENTS", "REPLICATION", "THROTTLE"):
        table.add_column(name, no_wrap=True)
    table.add_column("REASON", no_wrap=True, ratio=1)  # it gets the rest of the width
    for side in busiest:
        row = _side_row(side)
        cells: list[Any] = [_text(row[name]) for name in ("BROKER", "ROLE", "CAPACITY")]
        cells += [_bar(side), *(_text(row[name]) for name in ("CLIENTS", "REPLICATION", "THROTTLE", "REASON"))]
        table.add_row(*cells)
    return Group(table, *_more(len(current.sides) - len(busiest), "link sides"))


def _more(count: int, what: str) -> list[RenderableType]:
    return [_text(f"and {count} more {what}", "dim")] if count > 0 else []


def _bar(side: LinkSideOverview) -> Text:
    """Return the link as a bar: clients `#`, replication `=`, free `.`; `|` is the throttle above the clients."""
    from rich.text import Text

    if not side.capacity or side.clients is None:
        return Text("-")
    clients = _cells(side.clients, side.capacity)
    replication = min(_cells(side.replication or 0, side.capacity), _BAR_CELLS - clients)
    bar = Text("#" * clients, "blue")
    bar.append("=" * replication, "green")
    bar.append("." * (_BAR_CELLS - clients - replication), "dim")
    end = _cells(side.clients + (side.throttle or 0), side.capacity)
    if side.throttle is not None and end < _BAR_CELLS:
        bar = Text.assemble(bar[:end], ("|", "bold red"), bar[end + 1 :])
    return bar


def _cells(rate: int, capacity: int) -> int:
    return min(round(_BAR_CELLS * rate / capacity), _BAR_CELLS)


def _text(text: str, style: str = "") -> Text:
    """Return a text without markup and without characters that control the terminal."""
    from rich.text import Text

    return Text("\n".join(map(printable, text.split("\n"))), style)

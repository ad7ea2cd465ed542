"""`throttlectl top` and `explain`: the overview as text and in a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console, RenderableType

from autothrottle_client import Override, Pause, PauseMode, ReassigningTopic, Reassignments, Unavailable, top
from autothrottle_client.errors import Invalid
from autothrottle_client.overview import Overview, overview
from autothrottle_client.top import overview_text, run_top, view
from tests.builders import NOON, mb
from tests.unit.autothrottle_client.test_overview import CYCLE, FOLLOWER, GB, MOVING, STATE

OVERVIEW = overview(STATE, MOVING, NOON + timedelta(seconds=5))


def shown(current: Overview, problem: str = "", width: int = 160, height: int = 40) -> str:
    """Return what a terminal of this size shows, without its control sequences."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(view(current, problem, console))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_text_says_what_moves_and_why() -> None:
    assert overview_text(OVERVIEW).splitlines() == [
        "cluster     prod",
        "leader      h1:8090 on h1, term 3, since 2026-11-02T12:00:00Z",
        "last cycle  9, 5 s ago, interval: 1 topics in reassignment",
        "left        3.00 GB, done in 1 min 55 s, about 2026-11-02T12:02:00Z",
        "limited by  Broker 1006 [follower] has 3.00 GB to receive at a throttle of 34MB/s: at least 1 min 28 s",
        "",
        "BROKER  ROLE      CAPACITY  CLIENTS  REPLICATION  THROTTLE  HEADROOM  REASON",
        "1001    leader    100MB/s   20MB/s   20MB/s       60MB/s    60MB/s    the policy's rate (75 % of the 80MB/s "
        "that clients leave free)",
        "1002    leader    -         -        -            none      -         the last cycle decided no rate for it",
        "1006    follower  100MB/s   11MB/s   20MB/s       34MB/s    69MB/s    the policy's rate (38 % of the 89MB/s "
        "that clients leave free)",
        "",
        "FROM  TO    PARTITIONS  LEFT     RATE",
        "1001  1006  2           3.00 GB  20MB/s",
        "1002  1006  1           unknown  -",
        "",
        "TOPIC   PARTITIONS  COPIED   LEFT     ETA",
        "orders  3           1.00 GB  3.00 GB  2026-11-02T12:02:00Z",
    ]


def test_an_idle_cluster_has_no_tables() -> None:
    idle = overview(replace(STATE, last_cycle=None, leader_address=""), Reassignments(), NOON)
    assert overview_text(idle).splitlines() == [
        "cluster     prod",
        "leader      no planner leads",
        "last cycle  none yet",
        "left        nothing is in reassignment",
    ]


def test_a_pause_overrides_and_findings_are_shown() -> None:
    state = replace(
        STATE,
        last_cycle=replace(CYCLE, findings=("a finding",)),
        overrides=(Override(mb(5), None, True), Override(mb(20), 1006, expire_time=NOON)),
        pause=Pause(PauseMode.KEEP, "anna", NOON, "why"),
    )
    for text in (overview_text(overview(state, MOVING, NOON)), shown(overview(state, MOVING, NOON))):
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert "paused keep, by anna: why" in lines
        waits = "waits: autothrottle is paused; acts after throttlectl resume"
        assert f"override cluster: 5MB/s, autoremove, {waits}" in lines
        assert f"override broker 1006: 20MB/s, until 2026-11-02T12:00:00Z, {waits}" in lines
        assert "finding a finding" in lines


def test_the_bar_shows_clients_replication_and_the_throttle() -> None:
    (row,) = (line for line in shown(OVERVIEW).splitlines() if line.startswith("1006"))
    assert "##====...|.........." in row


def test_the_busiest_link_sides_fit_into_the_terminal() -> None:
    decisions = tuple(replace(FOLLOWER, broker_id=broker_id) for broker_id in range(2000, 3000))
    state = replace(STATE, last_cycle=replace(CYCLE, decisions=(*decisions, FOLLOWER)))
    text = shown(overview(state, MOVING, NOON), "admin is gone", height=30)
    lines = text.splitlines()
    assert len(lines) <= 30 and lines[0].strip() == "admin is gone"
    rows = sum(" follower " in line for line in lines)
    assert any(line.startswith("1006 ") for line in lines) and f"and {1003 - rows - 2} more link sides" in lines[-5]


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_no_width_of_a_terminal_fails(width: int) -> None:
    assert all(len(line) <= width for line in shown(OVERVIEW, "p" * 400, width).splitlines())


@pytest.mark.parametrize("text", ["\x1b[2J", "[bold red]x[/]", "[/]", "a\nb", "\r", "\x9b31m", "[link=http://x]y"])
def test_values_of_others_neither_control_the_terminal_nor_are_markup(text: str) -> None:
    cycle = replace(CYCLE, sentence=text, reason=text, findings=(text,))
    state = replace(STATE, last_cycle=cycle, cluster_name=text, warnings=(text,), leader_host=text)
    listing = Reassignments((ReassigningTopic(text, (0,), (1,), (2,), 1, GB, GB),), paths=MOVING.paths)
    current = overview(state, listing, NOON)
    for printed in (shown(current), overview_text(current)):
        assert all(character.isprintable() or character == "\n" for character in printed)
        if "[" in text and text.isprintable():
            assert text in printed


def test_the_live_view_survives_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the last values, says since when, and continues after the outage."""
    readings: Iterator[Overview | Exception] = iter((OVERVIEW, Unavailable("admin is gone"), OVERVIEW))
    problems: list[str] = []

    def fetch() -> Overview:
        reading = next(readings, KeyboardInterrupt())
        if isinstance(reading, BaseException):
            raise reading
        return reading

    def recorded(current: Overview, problem: str, console: Console) -> RenderableType:
        problems.append(problem)
        return view(current, problem, console)

    monkeypatch.setattr(top, "_SECONDS", 0.0)
    monkeypatch.setattr(top, "view", recorded)
    with pytest.raises(KeyboardInterrupt):
        run_top(fetch)
    assert problems == ["", "admin is gone. The values are from 2026-11-02T12:00:05Z", ""]


def test_without_rich_the_error_names_the_extra_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.live", None)
    with pytest.raises(Invalid, match="install autothrottle with the extra `top`, or give --once"):
        run_top(lambda: OVERVIEW)

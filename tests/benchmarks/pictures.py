"""Draws the pictures of README and docs: `python -m tests.benchmarks.pictures`, or `make pictures`.

- `architecture.svg`: the services and what flows between them.
- `throttle.svg`: the same reassignment under the original's formula and under `adaptive`, in virtual time.
- `policies.svg`: makespan against deferred client bytes, from `results/control.csv`.
- `simulate.svg`: what `autothrottle simulate deploy/scenario.toml --plot` draws.
- `report*.png`, `simulate-compare*.png` and `page*.png`: screenshots of pages, in a headless Chromium. Without one,
  they are skipped. The gateway's page shows the data of `tests/page_stub.py`.

A second run writes the same bytes; those of screenshots depend on the browser and its fonts. Each picture has a
background of its own, so it is readable on a light page and on a dark one.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from autothrottle.adapters.decision_log.writer import DecisionLog, LogLimits
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.simulate.recording import Recording, Second, SimulationOutcome
from autothrottle_lab.simulate.virtual_time import (
    SETTINGS,
    VirtualBroker,
    VirtualReassignment,
    VirtualRecovery,
    VirtualScenario,
)
from autothrottle_lab.simulation.link import ClientTraffic, TrafficStep
from tests import browser, page_stub
from tests.benchmarks.control.contest import RESULTS
from tests.benchmarks.control.contestants import OriginalPolicy
from tests.benchmarks.result_files import read_rows
from tests.paths import ROOT
from tests.system.scorer import golden

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

IMAGES = ROOT / "docs" / "images"
WIDTH = 880
"""Pixels, about the width of a README page."""

INK, FAINT, GRID = "#1b2430", "#4b5563", "#d8dde3"
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#1f5fa8", "#c25e0e", "#2f8f4e", "#b02a37", "#7a3ea8", "#6b7280"


# --- SVG elements ---------------------------------------------------------------------------------------------------


def document(height: int, title: str, body: Sequence[str]) -> str:
    """An SVG file with a white background and a text for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title, quote=True)}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="14">\n<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="#ffffff" '
        f'stroke="{GRID}"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = INK, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{more}>{escape(words)}</text>'


def vertical_text(x: float, y: float, words: str) -> str:
    """Text that reads upwards, centred at y."""
    return text(x, y, words, colour=FAINT, more=f' transform="rotate(-90 {x:g} {y:g})"')


def line(points: Sequence[tuple[float, float]], colour: str, width: float = 2, more: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="{width:g}" points="{path}"{more}/>'


class Axis(NamedTuple):
    """A linear scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def pixel(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def grid(x: Axis, y: Axis, x_marks: Sequence[float], y_marks: Sequence[float]) -> list[str]:
    """Grid lines and the numbers at both axes."""
    parts = []
    for value in y_marks:
        at = y.pixel(value)
        parts.append(line([(x.start, at), (x.end, at)], GRID, 1))
        parts.append(text(x.start - 8, round(at + 5, 1), f"{value:g}", "end", FAINT))
    for value in x_marks:
        at = x.pixel(value)
        parts.append(line([(at, y.start), (at, y.end)], GRID, 1))
        parts.append(text(round(at, 1), y.start + 20, f"{value:g}", "middle", FAINT))
    return parts


# --- The architecture -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A labelled rectangle; the first label is its name."""

    x: float
    y: float
    width: float
    height: float
    labels: Sequence[str]
    colour: str

    def draw(self) -> str:
        rectangle = (
            f'<rect x="{self.x:g}" y="{self.y:g}" width="{self.width:g}" height="{self.height:g}" rx="6" '
            f'fill="#ffffff" stroke="{self.colour}" stroke-width="2"/>'
        )
        middle, top = self.x + self.width / 2, self.y + self.height / 2 - 9 * (len(self.labels) - 1) + 5
        name, *others = self.labels
        parts = [rectangle, text(middle, top, name, more=' font-weight="bold"')]
        parts += [text(middle, top + 18 * n, words, colour=FAINT) for n, words in enumerate(others, 1)]
        return "\n".join(parts)


def arrow(*points: tuple[float, float]) -> str:
    return line(points, INK, 1.6, ' marker-end="url(#head)"')


def architecture() -> str:
    """The services as boxes, and the data that flows between them as arrows."""
    small = ' font-size="13"'
    outside, service, state = GREY, BLUE, GREEN
    store_labels = ["state store", "Kafka or ZooKeeper", "election, term", "overrides, pause", "ledger, members"]
    boxes = [
        Box(20, 40, 120, 60, ["Operator", "throttlectl, curl"], outside),
        Box(20, 150, 120, 60, ["Datadog", "metrics"], outside),
        Box(20, 260, 120, 60, ["Kafka", "brokers"], outside),
        Box(240, 40, 120, 60, ["gateway", "HTTP, JSON"], service),
        Box(240, 150, 120, 60, ["metrics"], service),
        Box(240, 260, 120, 60, ["discovery"], service),
        Box(450, 40, 140, 60, ["admin", "gRPC API"], service),
        Box(450, 150, 140, 170, ["planner", "decides rates", "one leads,", "others stand by"], service),
        Box(690, 260, 150, 60, ["applier", "writes, reads back"], service),
        Box(690, 40, 150, 170, store_labels, state),
        Box(450, 370, 140, 60, ["decision log", "Parquet"], state),
        Box(690, 370, 150, 60, ["scorer", "Spark, batch"], service),
    ]
    arrows = [
        arrow((140, 70), (236, 70)),
        arrow((360, 70), (446, 70)),
        arrow((80, 40), (80, 20), (520, 20), (520, 36)),
        arrow((590, 70), (686, 70)),
        arrow((520, 100), (520, 146)),
        arrow((140, 180), (236, 180)),
        arrow((360, 180), (446, 180)),
        arrow((140, 290), (236, 290)),
        arrow((360, 290), (446, 290)),
        arrow((590, 180), (686, 180)),
        arrow((590, 290), (686, 290)),
        arrow((765, 260), (765, 214)),
        arrow((520, 320), (520, 366)),
        arrow((590, 400), (686, 400)),
        arrow((840, 290), (862, 290), (862, 470), (80, 470), (80, 324)),
    ]
    labels = [
        text(188, 62, "HTTP", colour=FAINT, more=small),
        text(300, 15, "gRPC", colour=FAINT, more=small),
        text(188, 172, "link traffic", colour=FAINT, more=small),
        text(403, 172, "load", colour=FAINT, more=small),
        text(403, 196, "capacity", colour=FAINT, more=small),
        text(188, 282, "reassignments", colour=FAINT, more=' font-size="12"'),
        text(188, 308, "log sizes", colour=FAINT, more=small),
        text(403, 282, "snapshot", colour=FAINT, more=small),
        text(528, 128, "requests", "start", FAINT, small),
        text(638, 62, "overrides", colour=FAINT, more=small),
        text(638, 172, "election", colour=FAINT, more=small),
        text(638, 282, "changes", colour=FAINT, more=small),
        text(773, 240, "checks term", "start", FAINT, small),
        text(528, 350, "decisions", "start", FAINT, small),
        text(300, 463, "throttle configs, fenced by the term", colour=FAINT, more=small),
    ]
    head = (
        '<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>'
    )
    title = "Kafka and Datadog feed discovery and metrics; the planner decides; the applier writes throttles to Kafka"
    return document(490, title, [head, *arrows, *(box.draw() for box in boxes), *labels])


# --- One reassignment under two policies ----------------------------------------------------------------------------

LINK = 100 * MEGABYTE
NEW_BROKER, FAILED_BROKER = 1006, 1000
METRICS_LATE = timedelta(seconds=120)


def client_load(second: float) -> int:
    """Inbound client traffic of the new broker, MB/s: a wave of 45 minutes, and a spike of 8 minutes."""
    spike = 28 * max(0.0, min((second - 2400) / 60, (2880 - second) / 60, 1.0))
    return round(42 - 16 * math.cos(2 * math.pi * second / 2700) + spike)


def scenario(policy: Policy) -> VirtualScenario:
    """Broker 1006 replaces broker 1000: 18 partitions of 9 GB; a cycle every 30 s, metrics 2 minutes late."""
    link = Capacity(LINK, LINK)
    steps = [TrafficStep(at, 20 * MEGABYTE, client_load(at) * MEGABYTE) for at in range(0, 4 * 3600, 30)]
    leaders = (1001, 1002, 1003)
    brokers = {
        broker_id: VirtualBroker(link, ClientTraffic.constant(30 * MEGABYTE, 30 * MEGABYTE)) for broker_id in leaders
    }
    brokers[NEW_BROKER] = VirtualBroker(link, ClientTraffic(tuple(steps)))
    moves = [
        VirtualReassignment(
            topic="orders",
            partition=number,
            size=9_000 * MEGABYTE,
            replicas=(leaders[number % 3], FAILED_BROKER),
            target=(leaders[number % 3], NEW_BROKER),
            produce_rate=300_000,
        )
        for number in range(18)
    ]
    return VirtualScenario(
        brokers,
        moves,
        replace(SETTINGS, policy=policy, interval=timedelta(seconds=30), metrics_window=timedelta(seconds=120)),
        metrics_delay=METRICS_LATE,
        traffic_waits=True,
        step=timedelta(seconds=0.25),
    )


def simulate(policy: Policy) -> SimulationOutcome:
    played = scenario(policy)
    recording, recovery = Recording(played), VirtualRecovery(played)
    return recording.outcome(recovery, recovery.run(timedelta(hours=4), recording.watch))


PANEL = 250
"""Height of one panel, pixels."""


def throttle_panel(name: str, outcome: SimulationOutcome, longest: float, top: float) -> list[str]:
    """Throttle, client load and link capacity of the new broker's inbound link over time."""
    side = outcome.sides[NEW_BROKER, ReplicaRole.FOLLOWER]
    x, y = Axis(0, longest, 70, 640), Axis(0, 110, top + PANEL - 50, top + 40)
    parts = [text(70, top + 24, name, "start", more=' font-weight="bold" font-size="15"')]
    parts += [_overload(one, x, y) for one in _overloads(side.seconds)]
    parts += grid(x, y, range(0, int(longest) + 1, 10), range(0, 101, 25))
    parts.append(text(355, top + PANEL - 10, "minutes since the reassignment started", colour=FAINT))
    parts.append(vertical_text(22, top + PANEL / 2, "MB/s"))
    parts.append(line([(x.start, y.pixel(100)), (x.end, y.pixel(100))], INK, 2, ' stroke-dasharray="6 4"'))
    clients = [(x.pixel(one.at / 60), y.pixel(one.offered / MEGABYTE)) for one in side.seconds[::10]]
    throttle = [(x.pixel(one.at / 60), y.pixel((one.throttle or 0) / MEGABYTE)) for one in side.seconds[::5]]
    parts += [line(clients, BLUE, 2), line(throttle, ORANGE, 2.5)]
    end = x.pixel(outcome.seconds / 60)
    parts.append(line([(end, y.start), (end, y.end)], FAINT, 1.5, ' stroke-dasharray="2 3"'))
    notes = (
        f"{outcome.seconds / 60:.0f} min to the last byte",
        f"{outcome.deferred_percent:.1f} % of client bytes",
        "had to wait",
    )
    return parts + [text(658, top + 150 + 20 * n, words, "start") for n, words in enumerate(notes)]


def _overloads(seconds: Sequence[Second]) -> list[tuple[float, float]]:
    """The stretches, in seconds, in which clients and throttle together exceed the link."""
    found = []
    for over, stretch in groupby(seconds, lambda one: one.offered + (one.throttle or 0) > LINK):
        if over:
            all_of_it = list(stretch)
            found.append((all_of_it[0].at - 1, all_of_it[-1].at))
    return found


def _overload(stretch: tuple[float, float], x: Axis, y: Axis) -> str:
    start, end = (x.pixel(at / 60) for at in stretch)
    return (
        f'<rect x="{start:.1f}" y="{y.end:.1f}" width="{end - start:.1f}" height="{y.start - y.end:.1f}" '
        f'fill="{RED}" fill-opacity="0.14"/>'
    )


def throttle() -> str:
    """Two panels, one above the other, with the same time axis."""
    panels = {
        "The original's formula: utilization minus the newest throttle": simulate(OriginalPolicy()),
        "--policy adaptive: measured replication, log growth, the need of the reassignment": simulate(AdaptivePolicy()),
    }
    longest = 5 * math.ceil(max(outcome.seconds for outcome in panels.values()) / 300)
    body: list[str] = []
    for index, (name, outcome) in enumerate(panels.items()):
        body += throttle_panel(name, outcome, longest, 8 + index * PANEL)
    body += _legend(658, 62, {"link capacity": (INK, "6 4"), "client load": (BLUE, ""), "throttle": (ORANGE, "")})
    body.append(f'<rect x="658" y="108" width="26" height="12" fill="{RED}" fill-opacity="0.14"/>')
    body.append(text(692, 119, "clients + throttle > link", "start", FAINT, ' font-size="13"'))
    return document(2 * PANEL + 16, "Throttle, client load and link capacity over time under two policies", body)


def _legend(x: float, y: float, entries: Mapping[str, tuple[str, str]]) -> list[str]:
    parts = []
    for index, (name, (colour, dashes)) in enumerate(entries.items()):
        at = y + 18 * index
        more = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(line([(x, at - 4), (x + 26, at - 4)], colour, 2.5, more))
        parts.append(text(x + 34, at, name, "start", FAINT, ' font-size="13"'))
    return parts


# --- All policies ---------------------------------------------------------------------------------------------------

POLICIES = {
    "none": ("no throttle", RED),
    "original": ("the original's formula", ORANGE),
    "headroom": ("--policy headroom", PURPLE),
    "static, best in hindsight": ("best static rate in hindsight", GREY),
    "adaptive": ("--policy adaptive", BLUE),
    "oracle": ("oracle: knows the next load", GREEN),
}
TIMINGS = {
    "mix30": "cycle every 30 s, metrics 120 s late",
    "std": "cycle every 180 s, metrics 120 s late",
    "fast": "cycle every 10 s, metrics 10 s late",
}


def marker(shape: str, x: float, y: float, colour: str) -> str:
    """A circle, square or triangle, one for each timing."""
    if shape == "mix30":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{colour}" stroke="#ffffff"/>'
    if shape == "std":
        return f'<rect x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12" fill="{colour}" stroke="#ffffff"/>'
    return f'<path d="M{x:.1f} {y - 8:.1f}l7.5 13h-15z" fill="{colour}" stroke="#ffffff"/>'


def policies(rows: Sequence[Mapping[str, Any]]) -> str:
    """One mark for each policy and timing: makespan (median) against deferred client bytes (mean)."""
    x, y = Axis(0, 0.6, 80, 570), Axis(0.88, 1.36, 400, 52)
    body = [
        text(
            80,
            30,
            "45 simulated reassignments: better is further left and further down",
            "start",
            INK,
            ' font-weight="bold" font-size="15"',
        ),
        *grid(x, y, [n / 10 for n in range(7)], [0.9, 1.0, 1.1, 1.2, 1.3]),
        text(325, 444, "client bytes deferred by the reassignment, % (mean)", colour=FAINT),
        vertical_text(24, 226, "makespan / bound (median)"),
    ]
    for row in rows:
        if row["policy"] in POLICIES:
            at = x.pixel(row["deferred_mean"]), y.pixel(row["makespan_median"])
            body.append(marker(row["timing"], *at, POLICIES[row["policy"]][1]))
    for index, (name, colour) in enumerate(POLICIES.values()):
        body.append(f'<rect x="594" y="{70 + 24 * index}" width="14" height="14" rx="2" fill="{colour}"/>')
        body.append(text(616, 82 + 24 * index, name, "start", FAINT, ' font-size="13"'))
    for index, (timing, meaning) in enumerate(TIMINGS.items()):
        body.append(marker(timing, 601, 250 + 24 * index, FAINT))
        body.append(text(616, 255 + 24 * index, meaning, "start", FAINT, ' font-size="13"'))
    body.append(text(594, 345, "Bound: the slowest link side at", "start", FAINT, ' font-size="13"'))
    body.append(text(594, 363, "90 % of what clients leave.", "start", FAINT, ' font-size="13"'))
    return document(464, "Makespan against deferred client bytes for all policies", body)


# --- Pages ----------------------------------------------------------------------------------------------------------


class Screenshot(NamedTuple):
    """The upper part of a page."""

    page: str
    """Name of the page's file."""
    width: int
    height: int
    dark: bool = False


SCREENSHOTS = {
    "report.png": Screenshot("report.html", 1280, 1560),
    "report-dark.png": Screenshot("report.html", 1280, 1560, dark=True),
    "report-phone.png": Screenshot("report.html", 390, 2900),
    "report-phone-dark.png": Screenshot("report.html", 390, 2900, dark=True),
    "simulate-compare.png": Screenshot("simulate.html", 1280, 1180),
    "simulate-compare-phone.png": Screenshot("simulate.html", 390, 1700),
}


class PageScreenshot(NamedTuple):
    """The gateway's page."""

    width: int
    height: int | None = None
    """None: the whole page."""
    dark: bool = False
    broker: int | None = None
    """Broker whose panel is open."""
    rate: str = ""
    """Rate whose effect a dialog shows."""


PAGE_SCREENSHOTS = {
    "page.png": PageScreenshot(1280),
    "page-dark.png": PageScreenshot(1280, 1300, dark=True),
    "page-explain.png": PageScreenshot(1280, 900, dark=True, broker=1006),
    "page-effect.png": PageScreenshot(1280, 900, broker=1006, rate="20"),
    "page-phone.png": PageScreenshot(390, 1500),
    "page-phone-dark.png": PageScreenshot(390, 1500, dark=True),
}

_PAGE_TIME = datetime(2026, 11, 27, 3, 12, 45, tzinfo=UTC)


def run_autothrottle(*arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTHROTTLE_")}
    command = [sys.executable, "-m", "autothrottle", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def write_log(directory: Path) -> None:
    """Simulate and log recoveries with what operators meet: a low max-rate, a failover, an outage, an override."""
    minute = timedelta(minutes=1)
    restless = {**golden.QUIET, golden.NEW: golden.restless(1)}
    outage = replace(golden.SCENARIOS["blind"], metrics_outage=(10 * minute, 22 * minute))
    scenarios = {
        "orders": golden.scenario(3, traffic=restless, limits=golden.DULL, failover=(7 * minute, golden.BACK)),
        "clicks": outage,
        "audit": golden.scenario(7, traffic={**golden.QUIET, golden.NEW: golden.restless(2)}),
    }
    for cluster, played in scenarios.items():
        with closing(DecisionLog(str(directory), limits=LogLimits(patience=3 * minute))) as log:
            recovery = VirtualRecovery(played, log, cluster)

            def set_override(at: VirtualRecovery) -> None:
                if round(at.cluster.now - at.start) == 240:
                    at.overrides.set_override(None, StoredOverride(golden.BUDGET // 3))

            recovery.run(watch=set_override if cluster == "audit" else lambda _: None)


def write_pages(directory: Path) -> None:
    """Write the pages of the screenshots with the product's own commands."""
    write_log(directory / "decisions")
    trace_url = "https://jaeger.example.com/trace/{trace_id}"
    run_autothrottle(
        *("score", "--decisions", str(directory / "decisions"), "--out", str(directory), "--trace-url", trace_url)
    )
    policies = "none,static,headroom,adaptive"
    run_autothrottle(
        *("simulate", "deploy/scenario.toml", "--compare", policies, "--plot", str(directory / "simulate.html"))
    )


def take_screenshots(directory: Path) -> None:
    if browser.find() is None:
        print(f"skipped {', '.join([*SCREENSHOTS, *PAGE_SCREENSHOTS])}: {browser.ABSENT}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        write_pages(Path(scratch))
        for name, shot in SCREENSHOTS.items():
            image = Path(scratch, name)
            browser.screenshot(Path(scratch, shot.page), image, shot.width, shot.height, shot.dark)
            (directory / name).write_bytes(image.read_bytes())
            print(f"wrote {directory / name}")
    take_page_screenshots(directory)


def take_page_screenshots(directory: Path) -> None:
    stub = page_stub.Stub(page_stub.recovery(_PAGE_TIME), now=_PAGE_TIME)
    with page_stub.serving(stub), browser.driven() as chromium:
        for name, shot in PAGE_SCREENSHOTS.items():
            scheme: Literal["dark", "light"] = "dark" if shot.dark else "light"
            size: ViewportSize = {"width": shot.width, "height": shot.height or 900}
            page = chromium.new_page(viewport=size, color_scheme=scheme, timezone_id="UTC", reduced_motion="reduce")
            page.clock.set_fixed_time(_PAGE_TIME)
            page.goto(stub.address)
            page.wait_for_selector("#past-events .row time")
            if shot.broker is not None:
                page.locator("h1 button").click()
                page.wait_for_selector(".chart")
            if shot.rate:
                page.locator(".inline input").fill(shot.rate)
                page.locator(".inline button").click()
            page.wait_for_timeout(500)
            page.screenshot(path=directory / name, full_page=shot.height is None)
            page.close()
            print(f"wrote {directory / name}")


def pictures() -> dict[str, str]:
    """File name -> SVG text."""
    return {
        "architecture.svg": architecture(),
        "throttle.svg": throttle(),
        "policies.svg": policies(read_rows(RESULTS)),
    }


def main(directory: Path = IMAGES) -> int:
    """Write all pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures().items():
        path = directory / name
        path.write_text(picture, "utf-8")
        print(f"wrote {path}")
    run_autothrottle("simulate", "deploy/scenario.toml", "--plot", str(directory / "simulate.svg"))
    print(f"wrote {directory / 'simulate.svg'}")
    take_screenshots(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())

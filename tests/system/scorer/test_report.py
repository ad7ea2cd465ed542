from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autothrottle.scorer.command import write_report
from autothrottle.scorer.report import Results, as_json
from tests.system.scorer import golden
from tests.system.scorer.conftest import Scored

PLOTS = ("Recovery timeline", "Throttle and headroom", "Regret", "Estimated seconds")
"""Plots of each cluster."""

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


class Page(HTMLParser):
    """Counts the elements of a page and collects the URLs that it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.fetched += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]


@pytest.fixture(scope="module")
def out(scored: Scored) -> Path:
    """Write the report of the golden logs; return its directory."""
    write_report(scored.files, scored.results)
    return scored.directory / "out"


def test_the_page_has_all_plots_and_fetches_no_urls(out: Path) -> None:
    text = (out / "report.html").read_text()
    page = Page(text)
    assert page.fetched == []
    assert not re.search(r"@import|url\(|<script|https?://", text)
    assert page.counts["svg"] == len(PLOTS) * len(golden.SCENARIOS)
    for plot in PLOTS:
        assert text.count(f"<figcaption>{plot}") == len(golden.SCENARIOS)
    assert "--max-rate" in text and "blind/1/" in text


def test_json_and_csv_contain_every_recovery(out: Path) -> None:
    found = json.loads((out / "results.json").read_text())
    assert {row["cluster"] for row in found["recoveries"]} == golden.SCENARIOS.keys()
    assert {row["cluster"] for row in found["recommendations"]} == golden.SCENARIOS.keys()
    assert len(found["worst"]) >= 10 and found["quality"] and found["trends"]
    with (out / "recoveries.csv").open() as file:
        rows = {row["cluster"]: float(row["efficiency"]) for row in csv.DictReader(file)}
    assert rows["halved"] == pytest.approx(0.5, abs=0.02)


def test_json_has_null_for_an_infinite_duration() -> None:
    """A setting under which a link side would never finish has an infinite duration.

    Python writes it as `Infinity`, which is not JSON. jq, browsers and other readers refused the whole results.json.
    """

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    results = Results(surface=[{"cluster": "kafka", "ratio": 0.3, "estimated_seconds": float("inf")}])
    found = json.loads(as_json(results), parse_constant=refuse)
    assert found["surface"] == [{"cluster": "kafka", "ratio": 0.3, "estimated_seconds": None}]


def test_chromium_shows_the_plots_without_a_network(out: Path, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(CHROMIUM)} is installed; .ci/run installs Debian's chromium")
    page = tmp_path / "measured.html"
    # Put the browser's layout into the title, as text that --dump-dom prints.
    script = (
        "document.title = JSON.stringify([...document.querySelectorAll('svg')].map(s => { "
        "const b = s.getBoundingClientRect(); "
        "return [Math.round(b.width), Math.round(b.height), s.querySelectorAll('polyline,rect').length, "
        "Math.max(...[...s.querySelectorAll('polyline,rect')].map(e => e.getBoundingClientRect().width))] }))"
    )
    page.write_text((out / "report.html").read_text().replace("</body>", f"<script>{script}</script></body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom"]
    command += ["--disable-dev-shm-usage", "--proxy-server=127.0.0.1:9", f"--user-data-dir={tmp_path}/profile"]
    ran = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=240, check=True)
    title = re.search(r"<title>(.*?)</title>", ran.stdout)
    assert title, ran.stdout[:500]
    shown = json.loads(title[1])
    assert len(shown) == len(PLOTS) * len(golden.SCENARIOS)
    for width, height, shapes, widest in shown:
        assert width > 300 and height > 100 and shapes > 1 and widest > 20

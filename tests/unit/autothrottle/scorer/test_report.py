"""The page of a report: its answer, its charts, its tables, and its size."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from datetime import timedelta
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autothrottle.scorer.report import CAUSES, Results, as_csv, as_html, as_json, timeline
from tests import browser
from tests.score_results import ADVICE, BEGIN, decision, group, recovery, results


class Page(HTMLParser):
    """Counts the elements of a page; collects its tables, its tick texts and the addresses that it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.fetched: list[str] = []
        self.headings: list[list[str]] = []
        self.chart_texts: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.fetched += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag == "table":
            self.headings.append([])
        if tag == "svg":
            self.chart_texts.append([])
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["th"]:
            self.headings[-1].append(data)
        if self._open[-1:] == ["text"]:
            self.chart_texts[-1].append(data)

    @property
    def charts(self) -> list[list[str]]:
        """The texts of each chart; the boxes of legends are drawings, too, but have no text."""
        return [texts for texts in self.chart_texts if texts]


@cache
def usual_page() -> str:
    """The page of the usual results, whose charts take half a second to draw."""
    return as_html(results())


def is_round(text: str) -> bool:
    """Whether a tick has at most two significant digits, and is not `-0`."""
    digits = text.replace(",", "").replace(".", "").strip("0")
    return text != "-0" and not text.startswith("\N{MINUS SIGN}0") and len(digits) <= 2


def steps(ticks: list[str]) -> set[float]:
    values = [float(tick.replace(",", "")) for tick in ticks]
    return {round(after - before, 9) for before, after in pairwise(values)}


def test_page_starts_with_the_answer_and_three_numbers() -> None:
    text = usual_page()
    answer = re.search(r'<p class="answer">(.*?)</p>', text)
    assert answer and answer[1] == (
        "3 recoveries reached 83 % of the best possible speed, links were full for 0.31 % of the time, and max-rate "
        "90 % instead of 45 % saves 21 min (21 %, likely 13 % to 29 %)."
    )
    assert re.findall(r"<b>([^<]*)</b><span>", text) == ["83 %", "0.31 %", "max-rate 90 %"]


def test_page_says_that_no_change_is_worth_it() -> None:
    text = as_html(results(advice=[{"cluster": "kafka", "changes": []}]))
    assert "and no change of the settings is worth it.</p>" in text
    assert "<p>No change is worth it" in text


def test_page_without_estimates_does_not_say_that_no_change_is_worth_it() -> None:
    text = as_html(results(advice=[]))
    assert "of the time, and other settings were not estimated.</p>" in text
    assert "worth it" not in text


def test_gain_belongs_to_all_changes_of_a_cluster_together() -> None:
    changes = [*ADVICE["changes"], {"option": "policy", "present": "headroom", "proposed": "adaptive"}]
    advice = [{**ADVICE, "changes": changes}, {"cluster": "quiet", "changes": []}]
    text = as_html(results(clusters=[group(), group(cluster="quiet")], advice=advice))
    sentence = "max-rate 90 % instead of 45 %, with policy adaptive instead of headroom on kafka saves 21 min (21 %"
    assert sentence in text
    assert "--max-rate<br>--policy</td>" in text and ">45 %<br>headroom</td>" in text
    assert "No change is worth it on quiet." in text


def test_page_without_recoveries_says_so() -> None:
    text = as_html(Results())
    assert "No recovery has ended yet." in text
    assert Page(text).charts == []


@pytest.mark.parametrize("seconds", [41.0, 1234.5, 9_876.0, 86_399.0, 777_777.0])
def test_ticks_are_round_numbers(seconds: float) -> None:
    """Axes read `0.2039` and `4.163`, because they were divided into four equal parts."""
    rows = [recovery(0, seconds)]
    page = Page(as_html(results(1, recoveries=rows)))
    assert len(page.charts) == 2
    for texts in page.charts:
        end_of_times = next(index for index, text in enumerate(texts) if text.endswith("since the start"))
        for ticks in (texts[:end_of_times], texts[end_of_times + 1 : texts.index("MB/s")]):
            assert len(ticks) > 2
            assert all(map(is_round, ticks)), ticks
            (step,) = steps(ticks)
            assert f"{step:e}"[:8] in ("1.000000", "2.000000", "5.000000"), ticks


def test_tables_have_at_most_seven_columns_with_names_for_people() -> None:
    page = Page(as_html(results(60)))
    assert len(page.headings) == 8
    names = "regret|port.seconds|budget|churn|fail.safe|_|p50"
    for headings in page.headings:
        assert 2 <= len(headings) <= 7
        assert not any(re.search(names, heading) for heading in headings)


def test_lost_time_has_a_name_and_a_share_for_each_cause() -> None:
    text = as_html(results(1))
    for cause, name in CAUSES.items():
        assert "_" not in name[0] and ("_" not in cause or cause not in text)
    assert '<td data-name="Cause">Metrics arrived late</td><td class="n" data-name="Time lost">5 min</td>' in text
    assert ">71 %</td>" in text
    assert "-20 s" in text and "Below zero: time gained" in text
    assert not re.search(r">-0\b", text)


def test_page_needs_no_network_and_no_script() -> None:
    text = as_html(results(8))
    page = Page(text)
    assert page.fetched == [] and "script" not in page.counts
    assert not re.search(r"@import|url\((?!#)|@font-face|https?://", text)
    assert page.counts["title"] == page.counts["desc"] + 1 == len(page.charts) + 1
    assert len(set(re.findall(r'\bid="([^"]*)"', text))) == len(re.findall(r'\bid="', text))
    for reference in re.findall(r"url\(#([^)]*)\)", text):
        assert f'id="{reference}"' in text


def test_page_adapts_to_dark_screens_phones_and_paper() -> None:
    text = usual_page()
    for query in ("prefers-color-scheme:dark", "@media print", "max-width:640px"):
        assert query in text
    assert text.count('class="wide"') == text.count('class="narrow"') == 3


def test_worst_decisions_link_to_their_traces() -> None:
    assert f"<code>{7:032x}</code>" in usual_page()
    text = as_html(results(), trace_url="https://jaeger.example.com/trace/{trace_id}?a=1&b=2")
    assert f'<a href="https://jaeger.example.com/trace/{7:032x}?a=1&amp;b=2">cycle 8</a>' in text
    assert "clients at " in text and " on a link of 100 MB/s" in text


def test_names_from_the_log_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    content = results(1)
    content = results(
        1,
        recoveries=[recovery(0, cluster=hostile)],
        clusters=[group(cluster=hostile)],
        quality=[{**content.quality[0], "cluster": hostile}],
        worst=[{**content.worst[0], "cluster": hostile, "reason": hostile, "trace_id": hostile, "cycle_id": hostile}],
        advice=[{**ADVICE, "cluster": hostile, "changes": [dict.fromkeys(("option", "present", "proposed"), hostile)]}],
    )
    assert hostile not in as_html(content, trace_url="https://a.example/{trace_id}")


def test_timeline_marks_what_happened() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"term": 2},
        {"term": 2, "reason": "broker-override", "forecast": None, "decided": 20e6, "applied": 20e6},
        {"term": 2, "reason": "minimum", "forecast": None, "decided": 10e6, "applied": 10e6},
        {"term": 2, "standing": 10e6, "applied": 10e6, "decided": 50e6},
        {"term": 2, "standing": 10e6, "applied": 10e6, "decided": 50e6, "outcome": "refused"},
        {"term": 2, "standing": 10e6, "applied": 30e6, "decided": 50e6},
    ]
    rows = [decision(index, "kafka/0/1", BEGIN, **change) for index, change in enumerate(changes)]
    line = timeline(recovery(0, 200.0), rows)
    assert [(event.second, event.text) for event in line.events] == [
        (0.0, "start of 12 partitions, 49 GB"),
        (30.0, "leader change"),
        (60.0, "override, 20 MB/s"),
        (90.0, "override ends"),
        (90.0, "no metrics, 10 MB/s"),
        (120.0, "metrics are back"),
        (120.0, "rate not written: 50 MB/s decided, 10 MB/s in force"),
        (200.0, "finish after 3 min 20 s"),
    ]
    assert [(period.start, period.finish, period.text) for period in line.periods] == [
        (90.0, 120.0, "no metrics"),
        (60.0, 90.0, "override"),
    ]
    labels = [label for _, label, _ in line.marks()]
    assert labels == ["1", "2", "3", "4-5", "6-7", "8"]


def test_events_too_close_for_two_labels_share_one() -> None:
    rows = [decision(index, "kafka/0/1", BEGIN, term=index) for index in range(3)]
    late = timeline(recovery(0, 7200.0), rows)
    assert [(label, len(texts)) for _, label, texts in late.marks()] == [("1-3", 3), ("4", 1)]


def test_decisions_outside_their_recovery_are_drawn_at_its_ends() -> None:
    """The clock of a second leader can be ahead, so that its decisions are later than the end."""
    rows = [decision(0, "kafka/0/1", BEGIN + timedelta(seconds=shift)) for shift in (-90, 5000)]
    assert [point.second for point in timeline(recovery(0), rows).points] == [0.0, 1234.5]


def test_unknown_rates_leave_gaps() -> None:
    unknown = {"client": None, "applied": None, "capacity": None, "budget": None}
    rows = [decision(index, "kafka/0/1", BEGIN, **unknown) for index in range(3)]
    page = Page(as_html(results(1, timelines={"kafka/0/1": rows})))
    assert len(page.charts) == 2 and all("MB/s" in texts for texts in page.charts)


def test_recovery_that_was_never_measured_has_a_row() -> None:
    names = ("bound_seconds", "efficiency", "regret_seconds", "regret_other", "bytes", "partitions")
    unknown = recovery(0) | dict.fromkeys((*names, "bottleneck_broker", "bottleneck_role"))
    endless = recovery(1, bound_seconds=math.inf, regret_seconds=-math.inf, regret_other=-math.inf, efficiency=math.inf)
    text = as_html(results(2, recoveries=[endless, unknown], mean_efficiency=math.inf))
    assert ">unknown</td>" in text and ">never</td>" in text
    assert "nan" not in re.sub("<[^>]*>", "", text)


def test_page_with_1000_recoveries_is_small_and_fast() -> None:
    content = results(1000, decisions=800)
    start = time.process_time()
    text = as_html(content)
    assert time.process_time() - start < 5
    assert len(text.encode()) < 2_000_000
    assert len(Page(text).charts) == 2 * 21


def test_page_and_its_libraries_need_no_spark_and_load_no_charts_early() -> None:
    code = (
        "import sys, autothrottle.scorer.report; "
        "print(sorted({'pyspark', 'vl_convert', 'numpy', 'pyarrow'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "[]\n"


def test_page_without_the_chart_library_has_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nightly job of hours must not fail at its end, because its host lacks the library that draws."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    page = Page(text := as_html(results()))
    assert page.charts == [] and len(page.headings) == 7
    assert "vl-convert-python is not installed" in text


def test_json_and_csv_keep_their_keys() -> None:
    document = json.loads(as_json(results()))
    assert list(document) == [
        *("clusters", "instance_types", "trends", "recoveries", "worst", "quality", "advice", "copies"),
    ]
    assert document["advice"][0]["changes"][0]["option"] == "max-rate"
    assert as_csv(results().recoveries).splitlines()[0].startswith("cluster,recovery_id,date,start,finish,status,")


def test_browser_shows_the_page_without_sideways_scrolling(tmp_path: Path) -> None:
    if browser.find() is None:
        pytest.skip(browser.ABSENT)
    page = tmp_path / "report.html"
    name = "k" * 100
    content = results(40)
    rows = [{**row, "cluster": name} for row in content.recoveries]
    worst = [{**row, "cluster": name} for row in content.worst]
    trends = [{**row, "cluster": cluster} for row in content.trends for cluster in ("kafka", name)]
    advice = [{**ADVICE, "cluster": name}]
    clusters = [group(), group(cluster=name)]
    wide = results(40, recoveries=rows, worst=worst, trends=trends, advice=advice, clusters=clusters)
    page.write_text(as_html(wide), "utf-8")
    # Texts of a chart must not overlap; a text's box is a little higher than its letters.
    expression = """[d.documentElement.scrollWidth, [...d.querySelectorAll('.chart svg')].filter(
        s => s.getBoundingClientRect().width > 0).map(s => { const boxes = [...s.querySelectorAll('text')].filter(
        t => t.textContent).map(t => t.getBoundingClientRect()); return [s.getBoundingClientRect().width,
        boxes.filter((a, i) => boxes.some((b, j) => j > i && a.left < b.right && b.left < a.right &&
        a.top + 3 < b.bottom && b.top + 3 < a.bottom)).length]})]"""
    widths = (390, 1280)
    for width, (scroll_width, charts) in zip(widths, browser.evaluate(page, expression, widths, tmp_path), strict=True):
        assert scroll_width <= width
        assert len(charts) == 21
        for chart_width, overlapping in charts:
            assert 300 < chart_width <= width and overlapping == 0

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from autothrottle.scorer import results
from autothrottle.scorer.command import write_report
from autothrottle.scorer.log import QUALITY
from autothrottle.scorer.report import Results, as_json
from tests.system.scorer import golden
from tests.system.scorer.conftest import Scored


@pytest.fixture(scope="module")
def out(scored: Scored) -> Path:
    """Write the report of the golden logs; return its directory."""
    write_report(scored.files, scored.results)
    return scored.directory / "out"


def test_page_has_a_timeline_with_its_events_for_each_recovery(out: Path) -> None:
    text = (out / "report.html").read_text()
    headings = re.findall(r"<h3>([^,<]*), 2026-", text)
    assert sorted(headings) == sorted(golden.SCENARIOS)
    assert headings[0] == "blind"
    events = dict(zip(headings, re.findall(r"<ol>(.*?)</ol>", text), strict=True))
    assert "override, 40 MB/s" in events["overridden"]
    assert "no metrics, " in events["blind"] and "metrics are back" in events["blind"]
    assert "leader change" in events["handed-over"]
    for name, marks in events.items():
        assert "start of 3 partitions, " in marks and "finish after " in marks
        assert ("leader change" in marks) is (name == "handed-over")


def test_a_long_timeline_is_shown_to_its_end(scored: Scored, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page showed the first 2,000 decisions of a recovery, and the rate of the last one until the finish.

    All rows became Python objects for it: 3.6 GB for 500,000 decisions.
    """
    monkeypatch.setattr(results, "_MOST_POINTS", 10)
    shown = results.gather(scored.files, QUALITY.empty_table(), None).timelines
    assert shown.keys() == scored.results.timelines.keys()
    for recovery_id, rows in scored.results.timelines.items():
        times = [row["time"] for row in rows]
        assert len(times) > 10
        assert [row["time"] for row in shown[recovery_id]] == [times[n * len(times) // 10] for n in range(10)]


def test_json_and_csv_contain_every_recovery(out: Path) -> None:
    found = json.loads((out / "results.json").read_text())
    assert {row["cluster"] for row in found["recoveries"]} == golden.SCENARIOS.keys()
    assert {row["cluster"] for row in found["advice"]} == golden.SCENARIOS.keys()
    assert len(found["worst"]) >= 10 and found["quality"] and found["trends"]
    with (out / "recoveries.csv").open() as file:
        rows = {row["cluster"]: float(row["efficiency"]) for row in csv.DictReader(file)}
    assert rows["halved"] == pytest.approx(0.5, abs=0.02)


def test_json_has_null_for_an_infinite_duration() -> None:
    """A link side that would never finish has an infinite duration.

    Python writes it as `Infinity`, which is not JSON. jq, browsers and other readers refused the whole results.json.
    """

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    results = Results(recoveries=[{"cluster": "kafka", "bound_seconds": float("inf")}])
    found = json.loads(as_json(results), parse_constant=refuse)
    assert found["recoveries"] == [{"cluster": "kafka", "bound_seconds": None}]

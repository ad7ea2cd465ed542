"""The dashboard, the alert rules, the runbook and the exported metrics match."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from docs.generate import metrics_page

from autothrottle.core.exported_metrics import CLUSTER, METRICS
from tests.monitoring import DASHBOARD, RULES, RULES_TEST, alert_queries, dashboard_queries, names, panels
from tests.paths import ROOT

EXPORTED = {metric.name: {CLUSTER, "instance", *metric.labels} for metric in METRICS}
"""Name -> its labels."""

NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus"
)


def test_dashboard_and_rules_use_exported_metrics_only_and_the_dashboard_uses_all_of_them() -> None:
    shown = {name for query in dashboard_queries() for name in names(query)}
    assert shown == EXPORTED.keys()
    assert {name for query in alert_queries().values() for name in names(query)} <= EXPORTED.keys()


@pytest.mark.parametrize("query", [*dashboard_queries(), *alert_queries().values()])
def test_queries_select_labels_that_their_metrics_have(query: str) -> None:
    for name, matchers in re.findall(r"(autothrottle_\w+)\{(.*?)\}", query):
        assert set(re.findall(r"(\w+)=~?\"", matchers)) <= EXPORTED[name]
    (name, *_) = sorted(names(query))
    for labels in re.findall(r"by \((.*?)\)", query):
        assert set(labels.split(", ")) <= EXPORTED[name]


def test_every_panel_reads_the_data_source_that_grafana_asks_for_at_the_import() -> None:
    """Strimzi's convention. The first variable answers for the import where Grafana reads the file from a directory.

    Grafana then ignores __inputs, and each panel of deploy/compose.yaml said that the data source does not exist.
    """
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    assert [(given["name"], given["type"]) for given in dashboard["__inputs"]] == [("DS_PROMETHEUS", "datasource")]
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    assert all(panel["datasource"] == source for panel in panels())
    assert all(target["datasource"] == source for panel in panels() for target in panel["targets"])
    choice, *variables = dashboard["templating"]["list"]
    assert (choice["name"], choice["type"], choice["query"]) == ("DS_PROMETHEUS", "datasource", "prometheus")
    assert all(variable["datasource"] == source for variable in variables)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len({*ids}) == len(ids)
    assert {panel["type"] for panel in panels() if panel["gridPos"]["y"] == 0} == {"stat"}


def test_every_alert_has_a_row_in_the_runbook_and_links_it() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text("utf-8")
    rows = re.findall(r'^\| <a id="(\w+)"></a>(\w+) \| [^|]+ \| [^|]+ \|$', runbook, re.MULTILINE)
    assert [alert for _, alert in rows] == [*alert_queries()]
    links = re.findall(r"runbook_url: docs/runbook.md#(\w+)", RULES.read_text("utf-8"))
    assert links == [anchor for anchor, _ in rows] == [alert.lower() for alert in alert_queries()]


def test_every_alert_has_a_test_that_it_fires() -> None:
    tested = re.findall(r"alertname: (\w+)\n +exp_alerts:\n", RULES_TEST.read_text("utf-8"))
    assert tested == [*alert_queries()]


def test_the_page_of_metrics_has_a_row_for_each_metric() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert metrics_page(page) == page
    assert re.findall(r"^\| `(autothrottle_\w+)` \|", page, re.MULTILINE) == [metric.name for metric in METRICS]


@NEEDS_PROMTOOL
@pytest.mark.parametrize("arguments", [("check", "rules", RULES), ("test", "rules", RULES_TEST)])
def test_promtool_accepts_the_rules_and_their_tests_pass(arguments: tuple[object, ...]) -> None:
    ended = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr

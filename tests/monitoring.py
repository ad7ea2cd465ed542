"""The queries of the dashboard and of the alert rules in `deploy`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.paths import ROOT

RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
RULES_TEST = RULES.with_name("alerts_test.yaml")
DASHBOARD = ROOT / "deploy" / "grafana" / "autothrottle.json"


def alert_queries() -> dict[str, str]:
    """Alert -> its expression."""
    return dict(re.findall(r"- alert: (\w+)\n +expr: (.+)\n", RULES.read_text("utf-8")))


def panels() -> list[Any]:
    return [panel for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"] if panel["type"] != "row"]


def dashboard_queries() -> Iterator[str]:
    """The expression of every target of every panel."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]


def names(query: str) -> set[str]:
    """The names of metrics in a query."""
    return set(re.findall(r"autothrottle_\w+", query))


def selectors(query: str) -> set[str]:
    """The selectors of series in a query."""
    return set(re.findall(r"autothrottle_\w+(?:\{.*?\})?", query))

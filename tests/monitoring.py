"""The queries of the dashboard and of the alert rules in `deploy`, and the metrics of a large cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cycle.decision import CycleDecision
from autothrottle.core.cycle.input import ControllerState, TermState, ThrottleState
from autothrottle.core.records import Throttle
from autothrottle.core.throttles.guards import GuardState
from autothrottle.planner.cycle_report import CycleReport
from autothrottle.planner.report import PlannerMetrics
from tests import builders
from tests.builders import NOON, mb
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


def metrics_of_brokers(brokers: int) -> PlannerMetrics:
    """A leader in term 1 after a cycle in which this many brokers took part in both roles, with all their values."""
    sides = [(broker_id, role) for broker_id in range(brokers) for role in ReplicaRole]
    decisions = [
        replace(
            builders.decision(broker_id, role),
            headroom_bytes_per_second=mb(60),
            client_bytes_per_second=mb(30),
            client_age_seconds=60,
        )
        for broker_id, role in sides
    ]
    record = builders.cycle_record(decisions=decisions, bytes_left=1, eta=NOON + timedelta(hours=1))
    record = replace(record, throttles=tuple(Throttle(b, role, mb(20), mb(60)) for b, role in sides))
    loads = builders.loads(*(builders.load(broker_id, mb(30), mb(20)) for broker_id in range(brokers)))
    loads = replace(loads, quota_rates={(b, role): loads.brokers[b].of(role) for b, role in sides})
    growth = dict.fromkeys(sides, 1e6)
    metrics = PlannerMetrics(timedelta(seconds=180), lambda: NOON + timedelta(minutes=1), lambda: 0.0)
    decision = CycleDecision(ControllerState(), NOON, scheduled=True, loads=loads)
    metrics.note_cycle(
        CycleReport(record, decision, TermState(1, throttles=ThrottleState(guards=GuardState(growth=growth))))
    )
    return metrics

"""The table of exported metrics."""

from __future__ import annotations

import re

import pytest

from autothrottle.core.exported_metrics import METRICS, ExportedMetric

LABELS = {
    "service",
    "version",
    "check",
    "result",
    "resource",
    "outcome",
    "scope",
    "bound",
    "kind",
    "option",
    "queue",
    "broker_id",
    "role",
    "pool",
    "user",
    "client_id",
}
"""Labels whose number of values is bounded. Topics, messages and authors are not."""


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_have_the_prefix_the_base_unit_and_bounded_labels(metric: ExportedMetric) -> None:
    assert re.fullmatch(r"autothrottle_[a-z_]+", metric.name)
    assert LABELS.issuperset(metric.labels)
    assert metric.help[0].isupper() and not metric.help.endswith(".")


@pytest.mark.parametrize(
    ("name", "unit", "kind"),
    [
        ("autothrottle_cycle_age_seconds", "s", "gauge"),
        ("autothrottle_reassignment_left_bytes", "By", "gauge"),
        ("autothrottle_throttle_bytes_per_second", "By/s", "gauge"),
        ("autothrottle_request_rate", "1", "gauge"),
        ("autothrottle_cycles_total", "1", "counter"),
    ],
)
def test_the_name_tells_the_unit_and_the_kind(name: str, unit: str, kind: str) -> None:
    (metric,) = (metric for metric in METRICS if metric.name == name)
    assert (metric.unit, metric.kind) == (unit, kind)


def test_no_two_metrics_share_a_name() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS) > 20


def test_a_sample_has_its_labels_as_texts() -> None:
    metric = ExportedMetric("autothrottle_x", "X", ("broker_id", "role"))
    assert metric.sample(True, 1001, "leader") == (metric, 1, ("1001", "leader"))

"""The table of exported metrics."""

from __future__ import annotations

import re

import pytest

from autothrottle.core.exported_metrics import METRICS, ExportedMetric, MetricKind

UNITS = {"s": "_seconds", "By": "_bytes", "By/s": "_bytes_per_second"}

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
    assert metric.unit == "1" or metric.name.endswith(UNITS[metric.unit])
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert LABELS.issuperset(metric.labels)
    assert metric.help[0].isupper() and not metric.help.endswith(".")


def test_no_two_metrics_share_a_name() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS) > 20


def test_a_sample_has_its_labels_as_texts() -> None:
    metric = ExportedMetric("autothrottle_x", "X", ("broker_id", "role"))
    assert metric.sample(True, 1001, "leader") == (metric, 1, ("1001", "leader"))

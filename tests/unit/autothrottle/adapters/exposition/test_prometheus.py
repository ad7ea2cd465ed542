"""The text of /metrics."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autothrottle.adapters.exposition.prometheus import PrometheusText
from autothrottle.core.exported_metrics import CONFIG_WRITES, METRICS, THROTTLE, MetricSample
from tests.monitoring import metrics_of_brokers


def rendered(*samples: MetricSample) -> str:
    return PrometheusText(lambda: samples, "main").render()


def one_of_each() -> list[MetricSample]:
    return [metric.sample(1, *("x" for _ in metric.labels)) for metric in METRICS]


def test_the_text_has_every_sample_with_its_labels_and_the_cluster() -> None:
    text = rendered(THROTTLE.sample(80_100_000, 1001, "leader", ""), CONFIG_WRITES.sample(3, "brokers", "applied"))
    throttle, writes = text_string_to_metric_families(text)
    assert (throttle.name, throttle.type, throttle.samples[0].value) == (THROTTLE.name, "gauge", 80_100_000)
    assert throttle.samples[0].labels == {"cluster": "main", "broker_id": "1001", "role": "leader", "pool": ""}
    assert (writes.type, writes.samples[0].name) == ("counter", "autothrottle_config_writes_total")


def test_a_broker_that_leaves_the_reassignments_has_no_series_any_more() -> None:
    samples = [THROTTLE.sample(1, 1001, "leader", ""), THROTTLE.sample(1, 1002, "leader", "")]
    text = PrometheusText(lambda: samples, "main")
    assert text.render().count("broker_id") == 2
    del samples[0]
    assert 'broker_id="1001"' not in text.render() and 'broker_id="1002"' in text.render()


def test_1000_brokers_have_all_their_series_once() -> None:
    text = PrometheusText(lambda: metrics_of_brokers(1000).samples(1), "main").render()
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    of_sides = [metric.name for metric in METRICS if metric.labels == ("broker_id", "role", "pool")]
    counts = Counter(name.partition("{")[0] for name in series)
    assert [counts[name] for name in of_sides] == [2000] * 8
    assert len({*series}) == len(series)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_promtool_accepts_every_metric() -> None:
    ended = subprocess.run(
        ["promtool", "check", "metrics"], input=rendered(*one_of_each()), capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")

"""The cost of a scrape of /metrics with 1,000 brokers in both roles: 14,000 series over HTTP."""

from __future__ import annotations

import time
from urllib.request import urlopen

import pytest

from autothrottle.adapters.exposition.prometheus import PrometheusText
from autothrottle.gateway.server import GatewayServer
from tests.benchmarks.figures import Figures
from tests.monitoring import metrics_of_brokers

RUNS = 20
SIZE = "1000 brokers"
PERIOD_SECONDS = 60.0
"""Time between two scrapes."""


@pytest.mark.usefixtures("collected_rarely")
def test_a_scrape_of_1000_brokers(figures: Figures) -> None:
    metrics = metrics_of_brokers(1000)
    text = PrometheusText(lambda: metrics.samples(1), "kafka")
    with GatewayServer(None, "127.0.0.1:0", metrics=text.render, option="metrics-listen") as server:
        seconds, cpu_seconds = [], []
        for _ in range(RUNS):
            began, began_cpu = time.perf_counter(), time.process_time()
            with urlopen(f"http://{server.address}/metrics", timeout=60) as answer:
                lines = answer.read().count(b"\n")
            seconds.append(time.perf_counter() - began)
            cpu_seconds.append(time.process_time() - began_cpu)
    assert lines > 14_000
    figures.add("scrape of /metrics", SIZE, "s", seconds)
    share = [used / PERIOD_SECONDS * 100 for used in cpu_seconds]
    figures.add("CPU of one scrape per minute, client included", SIZE, "% of a core", share)

"""Time for the metrics service to map 1,000 hosts to brokers when each Datadog request takes 45 ms."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.grpc import MetricsClient
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.servers.services import Deployment
from tests.benchmarks.big_cluster import LARGE
from tests.benchmarks.figures import Figures

RUNS = 3
REQUEST_SECONDS = 0.045


@pytest.mark.parametrize("tagged", [True, False], ids=["tags in the series", "one request per host"])
def test_first_and_next_read_of_loads_of_1000_hosts(figures: Figures, tmp_path: Path, tagged: bool) -> None:
    with DatadogEmulator() as datadog:
        now = time.time()
        for broker_id in LARGE.broker_ids:
            datadog.add_host(f"host-{broker_id}", broker_id, "bench", has_tagged_series=tagged)
            datadog.record(broker_id, now - 600, 0, 0)
            datadog.record(broker_id, now + 600, 1e11, 1e11)
        datadog.tag_delay_seconds = REQUEST_SECONDS
        options = {"default-capacity": "1000", "metrics-window": "10", "listen": "127.0.0.1:0"}
        deployment = Deployment("127.0.0.1:1", datadog.url, tmp_path, options)
        samples = [measure(deployment, number) for number in range(RUNS)]
    method = "tags in the series" if tagged else "one request per host"
    size = f"{LARGE.brokers} hosts, 45 ms per request"
    figures.add(f"first read of loads, {method}", size, "s", [first for first, _ in samples], original="45 s")
    figures.add(f"next read of loads, {method}", size, "s", [following for _, following in samples])


def measure(deployment: Deployment, number: int) -> tuple[float, float]:
    """Return the seconds of the first two reads from a newly started metrics service."""
    with deployment.process("metrics", f"metrics-{number}", {}) as process:
        process.wait_until(lambda: "listens on" in process.log.read_text(), 30)
        client = MetricsClient((process.log.read_text().rsplit("listens on ", 1)[1].split()[0],))
        try:
            return read_seconds(client), read_seconds(client)
        finally:
            client.close()


def read_seconds(client: MetricsClient) -> float:
    start = time.monotonic()
    loads = client.fetch_loads(timedelta(seconds=60))
    seconds = time.monotonic() - start
    assert len(loads.brokers) == LARGE.brokers, [*loads.warnings, *loads.problems.values()][:3]
    return seconds

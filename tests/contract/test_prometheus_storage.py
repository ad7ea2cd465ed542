"""metricsfetcher with a real Prometheus that scrapes exporters with three spellings of the same metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from autothrottle.adapters.prometheus import PrometheusSettings
from autothrottle.adapters.prometheus.storage_metrics import PrometheusStorageMetrics
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.core.traffic.broker_matching import parse_broker_label
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.topicmappr.metricsfetcher import main
from autothrottle_lab.emulators.exporter import ExporterEmulator
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.prometheus import PrometheusServer, job_of_brokers
from tests.builders import eventually
from tests.server_fixtures import skip_without_prometheus

SIZES = {
    1: 'kafka_log_log_size{topic="t",partition="0"} 1.5e9\n',
    2: 'kafka_log_Log_Size{topic="t",partition="0"} 2e9\n',
    3: 'kafka_log_Log_Value{name="Size",topic="t",partition="1"} 7\n'
    'kafka_log_Log_Value{name="LogEndOffset",topic="t",partition="1"} 99\n',
}
"""Broker id -> text of its exporter: the JMX exporter in lower case, its own spelling, and MSK's."""


def text(broker_id: int) -> str:
    disks = "".join(
        f'node_filesystem_avail_bytes{{device="d{n}",mountpoint="{path}"}} {broker_id * 1000 + n}\n'
        for n, path in enumerate(("/data", "/"))
    )
    return SIZES[broker_id] + disks


@pytest.fixture
def prometheus() -> Iterator[PrometheusServer]:
    """A real Prometheus that scrapes one exporter for each broker."""
    skip_without_prometheus()
    with ExporterEmulator() as exporters, scratch_directory() as directory:
        exporters.answers = {id: text(id).encode() for id in SIZES}
        with PrometheusServer(directory, [job_of_brokers(exporters.address, [*SIZES])]) as server:
            yield server


def test_sizes_and_free_storage_of_a_real_prometheus(
    prometheus: PrometheusServer, capsys: pytest.CaptureFixture[str]
) -> None:
    label, url = "pod=kafka-([0-9]+)", prometheus.url
    settings = PrometheusSettings(url, EXPORTERS["jmx"], broker_label=parse_broker_label(label, "label"))
    with closing(PrometheusStorageMetrics(settings)) as source:

        def fetch() -> StorageMetrics:
            return source.fetch_storage_metrics(timedelta(seconds=20))

        eventually(lambda: fetch().storage_free.keys() == SIZES.keys())
        found = fetch()
    assert found.storage_free == {1: 1000, 2: 2000, 3: 3000}
    assert found.sizes == {("t", 0): 2_000_000_000, ("t", 1): 7}
    assert (found.problems, found.unanswered) == ((), ())
    arguments = ["--source", "prometheus", "--prometheus-url", url, "--broker-label", label, "--dry-run"]
    assert main(arguments) == 0
    assert "Fetched 2 partitions and 3 brokers" in capsys.readouterr().out
    assert main([*arguments, "--prometheus-size-query", "absent"]) == 1
    assert "no partition sizes; the stored sample stays" in capsys.readouterr().err

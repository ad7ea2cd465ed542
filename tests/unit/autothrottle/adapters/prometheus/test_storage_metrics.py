"""Partition sizes and free storage from a server that answers like Prometheus; tests/contract has a real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.prometheus import PrometheusSettings
from autothrottle.adapters.prometheus.storage_metrics import PrometheusStorageMetrics
from autothrottle.core.errors import Unavailable
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.core.traffic.broker_matching import parse_broker_label
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle_lab.emulators.exporter import ExporterEmulator

TIMEOUT = timedelta(seconds=20)
NOW = 1_780_000_000


@pytest.fixture
def server() -> Iterator[ExporterEmulator]:
    with ExporterEmulator() as emulator:
        yield emulator


def vector(*series: tuple[dict[str, str], str], **more: Any) -> Callable[[], str]:
    """Return the answer to every query: the labels say which query a series belongs to."""
    result = [{"metric": labels, "value": [NOW, value]} for labels, value in series]
    return lambda: json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **more})


def fetch(
    server: ExporterEmulator, label: str = "pod=kafka-([0-9]+)", hosts: BrokerHosts | None = None
) -> StorageMetrics:
    settings = PrometheusSettings(
        f"http://{server.address}/1", EXPORTERS["jmx"], broker_label=parse_broker_label(label, "broker-label")
    )
    with closing(PrometheusStorageMetrics(settings, hosts=hosts, clock=lambda: NOW)) as source:
        return source.fetch_storage_metrics(TIMEOUT)


def test_the_largest_replica_counts_and_devices_are_added_up(server: ExporterEmulator) -> None:
    """Two targets of a broker report the same device: its free storage counts once."""
    server.answers[1] = vector(
        ({"topic": "t", "partition": "0"}, "1.5e9"),
        ({"topic": "t", "partition": "0", "pod": "other"}, "2e9"),
        ({"pod": "kafka-1", "device": "sda"}, "100"),
        ({"pod": "kafka-1", "device": "sda", "job": "twin"}, "100"),
        ({"pod": "kafka-1", "device": "sdb"}, "50"),
    )
    metrics = fetch(server)
    assert (metrics.sizes, metrics.storage_free) == ({("t", 0): 2_000_000_000}, {1: 150})
    assert metrics.sampled == datetime.fromtimestamp(NOW, UTC)


def test_a_series_that_is_skipped_is_a_problem(server: ExporterEmulator) -> None:
    server.answers[1] = vector(({"topic": "t", "partition": "x"}, "1"), ({"pod": "kafka-2"}, "NaN"))
    metrics = fetch(server)
    assert (metrics.sizes, metrics.storage_free) == ({}, {})
    problems = "\n".join(metrics.problems)
    assert "prometheus-size-query has no usable topic, partition or value" in problems
    assert "prometheus-storage-query has no usable value" in problems


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "9e18", "1e400", "9" * 5000, "x"])
def test_an_odd_device_makes_the_storage_of_its_broker_unknown(value: str, server: ExporterEmulator) -> None:
    """A device without a usable value was left out of the sum, and the sum of several of 9e18 exceeded 64 bits.

    The free storage of the broker is now unknown, and the other broker keeps its own.
    """
    odd = ({"pod": "kafka-2", "device": name} for name in ("sdb", "sdc"))
    server.answers[1] = vector(
        ({"pod": "kafka-1"}, "100"), ({"pod": "kafka-2", "device": "sda"}, "7"), *((labels, value) for labels in odd)
    )
    metrics = fetch(server)
    assert metrics.storage_free == {1: 100}
    assert any("kafka-2" in problem or "broker 2" in problem for problem in metrics.problems)


def test_a_warning_of_the_server_makes_the_sample_partial(server: ExporterEmulator) -> None:
    """Thanos answers with the stores that it reaches, and a warning about the others."""
    server.answers[1] = vector(({"pod": "kafka-1"}, "100"), warnings=["store b is unreachable"])
    assert "Prometheus (prometheus-storage-query) warns: store b is unreachable" in fetch(server).unanswered


def test_the_brokers_hosts_find_the_broker_of_a_series(server: ExporterEmulator) -> None:
    cluster = MemoryCluster(brokers=(1, 2))
    cluster.hosts = {1: ("b1.example",), 2: ("b2.example",)}
    server.answers[1] = vector(({"instance": "b2.example:9100"}, "70"))
    assert fetch(server, label="", hosts=BrokerHosts(cluster)).storage_free == {2: 70}


def test_a_server_that_fails_is_unavailable(server: ExporterEmulator) -> None:
    server.answers[1] = 503
    with pytest.raises(Unavailable, match=r"\(prometheus-.*-query\) answers 503|\(kafka_broker_info\) answers 503"):
        fetch(server)


GIGABYTE = 10**9
PVC = {"namespace": "kafka", "node": "n1"}


@pytest.mark.parametrize("label", ["persistentvolumeclaim", "mountpoint", "log_dir"])
def test_volumes_of_a_broker_that_a_label_tells_apart_are_added_up(label: str, server: ExporterEmulator) -> None:
    """Metrics of persistent volumes have no device. The last volume counted alone: 100 of 500 GB."""
    server.answers[1] = vector(
        ({**PVC, "pod": "kafka-1", label: "data-0-kafka-1"}, f"{400 * GIGABYTE}"),
        ({**PVC, "pod": "kafka-1", label: "data-1-kafka-1"}, f"{100 * GIGABYTE}"),
    )
    assert fetch(server).storage_free == {1: 500 * GIGABYTE}


def test_volumes_that_no_label_tells_apart_are_reported(server: ExporterEmulator) -> None:
    """An aggregation has removed the label with the volume. The last volume counted alone, without a word."""
    server.answers[1] = vector(
        ({"pod": "kafka-1", "job": "a"}, "400"), ({"pod": "kafka-1", "job": "b"}, "100"), ({"pod": "kafka-2"}, "7")
    )
    metrics = fetch(server)
    assert metrics.storage_free == {2: 7}
    problem = next(problem for problem in metrics.problems if "broker 1" in problem)
    assert "with 100 and 400 free bytes, and no label tells their volumes apart" in problem


def test_volume_that_two_targets_report_counts_once(server: ExporterEmulator) -> None:
    labels = {"pod": "kafka-1", "persistentvolumeclaim": "data-0-kafka-1"}
    server.answers[1] = vector(({**labels, "job": "a"}, "1000"), ({**labels, "job": "b"}, "999"))
    assert fetch(server).storage_free == {1: 999}


def test_mount_points_of_one_device_count_once_unless_their_free_bytes_differ(server: ExporterEmulator) -> None:
    """A bind mount shows the device of a volume again. A device such as tmpfs has several volumes."""
    bound, several = {"pod": "kafka-1", "device": "/dev/sdb"}, {"pod": "kafka-2", "device": "tmpfs"}
    server.answers[1] = vector(
        ({**bound, "mountpoint": "/data"}, "400"),
        ({**bound, "mountpoint": "/etc/hosts"}, "400"),
        ({**several, "mountpoint": "/data1"}, "400"),
        ({**several, "mountpoint": "/data2"}, "100"),
    )
    assert fetch(server).storage_free == {1: 400, 2: 500}

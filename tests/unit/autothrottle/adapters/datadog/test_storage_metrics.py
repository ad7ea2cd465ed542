"""Partition sizes and free storage from a server that answers like Datadog."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from autothrottle.adapters.datadog.client import DatadogSettings
from autothrottle.adapters.datadog.storage_metrics import DatadogStorageMetrics, StorageQueries
from autothrottle.core.errors import Unavailable

TIMEOUT = timedelta(seconds=10)
NOW = 1_780_000_000
QUERIES = StorageQueries("avg:system.disk.free{*}", "broker_id", "max:size{*} by {topic,partition}", 3600)


class StorageServer(ThreadingHTTPServer):
    """Answers the two queries with fixed series."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        self.partitions: list[object] = []
        self.brokers: list[object] = []


class _Handler(BaseHTTPRequestHandler):
    server: StorageServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        self.server.requests.append((url.path, query))
        series = self.server.partitions if "partition" in query.get("query", [""])[0] else self.server.brokers
        body = {"valid": True} if url.path.endswith("validate") else {"status": "ok", "series": series}
        data = json.dumps(body if self.server.status == 200 else {"errors": ["refused app-secret"]}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@pytest.fixture
def server() -> Iterator[StorageServer]:
    with StorageServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def source(server: StorageServer) -> Iterator[DatadogStorageMetrics]:
    settings = DatadogSettings("api-secret", "app-secret", f"http://127.0.0.1:{server.server_address[1]}")
    with closing(DatadogStorageMetrics(settings, QUERIES, clock=lambda: NOW)) as source:
        yield source


def series(*tags: str, points: Sequence[object]) -> object:
    return {"scope": ",".join(tags), "tag_set": list(tags), "pointlist": [[n, value] for n, value in enumerate(points)]}


def test_the_newest_value_of_each_series_counts(server: StorageServer, source: DatadogStorageMetrics) -> None:
    server.partitions = [
        series("topic:t", "partition:3", points=[1.0, 2.6, None]),
        series("topic:_consumer_offsets", "partition:0", points=[7.0]),
        series("topic:t", "partition:4", points=[None]),
    ]
    server.brokers = [series("broker_id:1001", points=[5e9])]
    metrics = source.fetch_storage_metrics(TIMEOUT)
    assert metrics.sizes == {("t", 3): 3, ("__consumer_offsets", 0): 7}
    assert metrics.storage_free == {1001: 5_000_000_000}
    assert metrics.sampled == datetime.fromtimestamp(NOW, UTC)


def test_the_keys_are_validated_before_the_queries(server: StorageServer, source: DatadogStorageMetrics) -> None:
    source.fetch_storage_metrics(TIMEOUT)
    assert [path.rpartition("/")[2] for path, _ in server.requests] == ["validate", "query", "query"]
    window = {"from": [str(NOW - 7200)], "to": [str(NOW)]}
    assert [query for _, query in server.requests[1:]] == [
        {"query": ["max:size{*} by {topic,partition}.rollup(avg, 3600)"], **window},
        {"query": ["avg:system.disk.free{*} by {broker_id,host,device}.fill(last)"], **window},
    ]


def test_series_with_bad_tags_are_skipped_with_a_problem(server: StorageServer, source: DatadogStorageMetrics) -> None:
    server.partitions = [
        series("topic:t", "partition:n/a", points=[1.0]),
        series("topic:", "partition:1", points=[1.0]),
        series("topic:t", "partition:0", points=[1.0]),
    ]
    server.brokers = [series("broker_id:i-0abc", points=[1.0]), series("broker_id:7", points=[2.0])]
    metrics = source.fetch_storage_metrics(TIMEOUT)
    assert (metrics.sizes, metrics.storage_free) == ({("t", 0): 1}, {7: 2})
    assert len(metrics.problems) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 9.3e18, 10**400, "7", [], True])
def test_series_with_an_odd_value_is_skipped_with_a_problem(
    value: object, server: StorageServer, source: DatadogStorageMetrics
) -> None:
    """An infinite value of one series ended the reading of all series. Now its broker and partition are unknown."""
    server.partitions = [
        series("topic:t", "partition:1", points=[value]),
        series("topic:t", "partition:0", points=[1.0]),
    ]
    server.brokers = [series("broker_id:8", points=[value]), series("broker_id:7", points=[2.0]), 7]
    metrics = source.fetch_storage_metrics(TIMEOUT)
    assert (metrics.sizes, metrics.storage_free) == ({("t", 0): 1}, {7: 2})
    assert len(metrics.problems) == 3


def test_refused_keys_are_an_error_that_does_not_show_them(
    server: StorageServer, source: DatadogStorageMetrics
) -> None:
    server.status = 403
    with pytest.raises(Unavailable, match="check api-key and app-key") as raised:
        source.fetch_storage_metrics(TIMEOUT)
    assert "app-secret" not in str(raised.value)
    assert len(server.requests) == 1


def test_free_storage_of_the_devices_of_a_broker_is_added_up(
    server: StorageServer, source: DatadogStorageMetrics
) -> None:
    """Datadog returned the mean of two volumes: 250 GB for 500."""
    server.brokers = [
        series("broker_id:7", "host:a", "device:/data1", points=[400]),
        series("broker_id:7", "host:a", "device:/data2", points=[100]),
        series("broker_id:8", "host:b", "device:N/A", points=[30]),
    ]
    assert source.fetch_storage_metrics(TIMEOUT).storage_free == {7: 500, 8: 30}


def test_broker_id_on_two_hosts_has_no_free_storage(server: StorageServer, source: DatadogStorageMetrics) -> None:
    """Two clusters of one account may have the same broker ids. Their mean was the free storage of the broker."""
    server.brokers = [
        series("broker_id:7", "host:a", "device:/data", points=[400]),
        series("broker_id:7", "host:b", "device:/data", points=[100]),
        series("broker_id:8", "host:a", "device:/data", points=[1]),
    ]
    metrics = source.fetch_storage_metrics(TIMEOUT)
    assert metrics.storage_free == {8: 1}
    (problem,) = metrics.problems
    assert problem.startswith("broker 7 has series of broker-storage-query from the hosts a, b")


def test_earlier_host_of_a_broker_does_not_count(server: StorageServer, source: DatadogStorageMetrics) -> None:
    server.brokers = [
        {"tag_set": ["broker_id:7", "host:old"], "pointlist": [[NOW * 1000 - 3_000_000, 400]]},
        {"tag_set": ["broker_id:7", "host:new"], "pointlist": [[NOW * 1000, 100]]},
    ]
    assert source.fetch_storage_metrics(TIMEOUT).storage_free == {7: 100}


def test_the_largest_of_several_series_of_a_partition_counts(
    server: StorageServer, source: DatadogStorageMetrics
) -> None:
    """A query by {topic,partition,host} has a series for each replica, and the last one counted."""
    server.partitions = [
        series("topic:t", "partition:0", "host:a", points=[9]),
        series("topic:t", "partition:0", "host:b", points=[7]),
        series("topic:N/A", "partition:0", points=[7]),
    ]
    metrics = source.fetch_storage_metrics(TIMEOUT)
    assert (metrics.sizes, metrics.has_exact_names, len(metrics.problems)) == ({("t", 0): 9}, False, 1)

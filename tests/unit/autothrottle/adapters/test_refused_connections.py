"""The clients of metrics sources while their server refuses connections: nothing piles up, and they work after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.adapters.datadog import DatadogMetrics, DatadogSettings
from autothrottle.adapters.datadog.host_tags import DatadogHostTags
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.prometheus import PrometheusMetrics, PrometheusSettings
from autothrottle.adapters.prometheus.storage_metrics import PrometheusStorageMetrics
from autothrottle.adapters.scrape import ScrapedMetrics, ScrapeSettings
from autothrottle.core.errors import Unavailable
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.core.traffic.loads import Capacity
from autothrottle.ports.telemetry import Event
from autothrottle_lab.emulators.datadog import API_KEY, APP_KEY, DatadogEmulator
from autothrottle_lab.emulators.exporter import ExporterEmulator, steady
from tests.builders import eventually
from tests.chaos.proxy import Link
from tests.resources import resident_bytes, usage

TIMEOUT = timedelta(seconds=10)
LIMITS = CapacityLimits(default=Capacity(100_000_000, 100_000_000))
MEGABYTE = 2**20
BROKERS = 64
"""Exporters that one round of `scrape` reads."""
WARM_UP = 64
"""Connections after which caches are complete."""
EXTRA = 64
"""Threads and descriptors that the pool of a client may still have to start."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What this process uses."""

    descriptors: int
    threads: int
    memory: int
    """Bytes in RAM."""

    @staticmethod
    def now() -> Resources:
        return Resources(*usage(), resident_bytes())


class Client:
    """One client behind a link that can refuse connections."""

    def __init__(self, link: Link, call: Callable[[], object], works: Callable[[], bool], connections: int = 1) -> None:
        self.link, self.call, self.works, self._connections = link, call, works, connections

    def fail(self, connections: int) -> None:
        """Let so many connections be refused, at least."""
        for _ in range(-(-connections // self._connections)):
            with suppress(Unavailable):
                self.call()


def _of_datadog(name: str, stack: ExitStack) -> Client:
    server = stack.enter_context(closing(DatadogEmulator()))
    server.add_host("b1", 1, "d2.xlarge")
    for seconds in range(-300, 1, 10):
        server.record(1, time.time() + seconds, 1e6 * (300 + seconds), 1e6 * (300 + seconds))
    link = stack.enter_context(Link([server.server_port], None))
    settings = DatadogSettings(API_KEY, APP_KEY, f"http://{link.connect}")
    if name == "datadog host tags":
        tags = stack.enter_context(closing(DatadogHostTags(settings)))
        return Client(link, lambda: tags.fetch_tags(TIMEOUT), lambda: bool(tags.fetch_tags(TIMEOUT)))
    source = stack.enter_context(closing(DatadogMetrics(settings, LIMITS)))
    if name == "datadog events":
        event = Event("title", "text")

        def posts() -> bool:
            source.post_event(event, TIMEOUT)
            return True

        return Client(link, posts, posts)
    return Client(link, lambda: source.fetch_loads(TIMEOUT), lambda: [*source.fetch_loads(TIMEOUT).brokers] == [1])


def _of_prometheus(name: str, stack: ExitStack) -> Client:
    server = stack.enter_context(ExporterEmulator())
    server.answers[1] = lambda: '{"status":"success","data":{"resultType":"vector","result":[]}}'
    link = stack.enter_context(Link([server.server_port], None))
    settings = PrometheusSettings(f"http://{link.connect}/1", EXPORTERS["jmx"])
    fetch: Callable[[], Any]
    if name == "prometheus storage":
        storage = stack.enter_context(closing(PrometheusStorageMetrics(settings)))
        fetch = lambda: storage.fetch_storage_metrics(TIMEOUT)  # noqa: E731
    else:
        metrics = PrometheusMetrics(settings, LIMITS, BrokerHosts(MemoryCluster(brokers=(1,))))
        source = stack.enter_context(closing(metrics))
        fetch = lambda: source.fetch_loads(TIMEOUT)  # noqa: E731
    return Client(link, fetch, lambda: fetch() is not None)


def _of_exporters(stack: ExitStack) -> Client:
    server = stack.enter_context(ExporterEmulator())
    server.answers = {broker_id: steady(5e6, 4e6) for broker_id in range(BROKERS)}
    link = stack.enter_context(Link([server.server_port], None))
    cluster = MemoryCluster(brokers=tuple(range(BROKERS)))
    cluster.hosts = {broker_id: ("127.0.0.1",) for broker_id in range(BROKERS)}
    url, interval = f"http://{link.connect}/{{broker}}/metrics", timedelta(seconds=0.25)
    settings = ScrapeSettings(url, EXPORTERS["node_exporter"], interval, 2 * interval)
    source = stack.enter_context(closing(ScrapedMetrics(settings, LIMITS, BrokerHosts(cluster))))

    def next_round() -> None:
        rounds = source._rounds
        eventually(lambda: source._rounds > rounds)

    def works() -> bool:
        cluster.brokers = {0}  # 64 exporters in one process do not answer within a round
        return bool(source.fetch_loads(TIMEOUT).brokers)

    return Client(link, next_round, works, BROKERS)


CLIENTS = ("datadog loads", "datadog events", "datadog host tags", "prometheus loads", "prometheus storage", "scrape")
SHORT = ("datadog loads", "prometheus loads", "scrape")
"""Those that the leader uses all the time."""


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with ExitStack() as stack:
        name: str = request.param
        if name == "scrape":
            yield _of_exporters(stack)
        else:
            yield (_of_datadog if name.startswith("datadog") else _of_prometheus)(name, stack)


@pytest.mark.parametrize(
    ("client", "connections"),
    [
        *((name, 128) for name in SHORT),
        *(pytest.param(name, 10_000, marks=pytest.mark.repeat) for name in CLIENTS),
    ],
    indirect=["client"],
)
def test_refused_connections_leave_nothing_behind(
    client: Client, connections: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A server may be away for hours, in which each attempt must close what it opened and log nothing of its own.

    The client works within 10 s of the server's return.
    """
    client.link.refuse(0)
    client.fail(WARM_UP)
    before, lines = Resources.now(), len(caplog.records)
    client.fail(connections)
    after = Resources.now()
    assert after.descriptors <= before.descriptors + EXTRA
    assert after.threads <= before.threads + EXTRA
    assert after.memory - before.memory < 8 * MEGABYTE
    assert caplog.records[lines:] == []
    client.link.accept(0)
    start = time.monotonic()
    eventually(client.works)
    assert time.monotonic() - start < 10

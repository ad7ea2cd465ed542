"""The contract of `LoadSource` on the in-memory twin, on scraped exporters, and on a real Prometheus."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.memory import MemoryCluster, MemoryMetrics
from autothrottle.adapters.prometheus import PrometheusMetrics, PrometheusSettings
from autothrottle.adapters.scrape import ScrapedMetrics, ScrapeSettings
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Unavailable
from autothrottle.core.traffic.broker_matching import parse_broker_label
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.counters import MIN_STALE_SECONDS
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.core.traffic.loads import BrokerLoad, Utilization
from autothrottle_lab.emulators.exporter import Answer, ExporterEmulator, steady
from autothrottle_lab.servers.processes import free_address, scratch_directory
from autothrottle_lab.servers.prometheus import PrometheusServer, job_of_brokers, node_exporter
from tests.builders import eventually
from tests.contract.load_source_contract import LINK, RATES, TIMEOUT, LoadSourceContract, LoadSubject
from tests.server_fixtures import skip_without_prometheus

LIMITS = CapacityLimits(default=LINK)
LABEL = parse_broker_label("pod=kafka-([0-9]+)", "broker-label")
WINDOW = timedelta(seconds=4)
FAST = 1_000_000
"""Bytes/s that loopback has only while `traffic` runs, even on a busy machine."""


@pytest.fixture
def hosts() -> BrokerHosts:
    cluster = MemoryCluster(brokers=tuple(RATES))
    cluster.hosts = {broker_id: ("127.0.0.1",) for broker_id in RATES}
    return BrokerHosts(cluster)


@pytest.fixture(scope="module")
def all_exporters() -> Iterator[ExporterEmulator]:
    with ExporterEmulator() as emulator:
        yield emulator


@pytest.fixture(scope="module")
def answers() -> Mapping[int, Answer]:
    return {broker_id: steady(*rates) for broker_id, rates in RATES.items()}


@pytest.fixture
def exporters(all_exporters: ExporterEmulator, answers: Mapping[int, Answer]) -> ExporterEmulator:
    """The exporters without faults."""
    all_exporters.answers = {**answers}
    return all_exporters


class TestMemoryMetrics(LoadSourceContract):
    @pytest.fixture
    def subject(self) -> LoadSubject:
        end = datetime.now(UTC)
        interval = end - timedelta(seconds=60), end
        loads = [
            BrokerLoad(broker_id, LINK, Utilization(tx, *interval), Utilization(rx, *interval))
            for broker_id, (tx, rx) in RATES.items()
        ]
        source = MemoryMetrics(*loads)
        return LoadSubject(source, lambda broker_id: source.lose(broker_id, f"broker {broker_id} has none"), 0.0)


class TestScrapedMetrics(LoadSourceContract):
    @pytest.fixture
    def subject(self, exporters: ExporterEmulator, hosts: BrokerHosts) -> Iterator[LoadSubject]:
        settings = ScrapeSettings(exporters.url, EXPORTERS["node_exporter"], timedelta(seconds=0.5), WINDOW)
        clock_lead = 0.0

        def lose(broker_id: int) -> None:
            nonlocal clock_lead
            exporters.answers[broker_id] = 500
            clock_lead += MIN_STALE_SECONDS  # all samples become stale, and those of the others are replaced
            eventually(lambda: RATES.keys() - source.fetch_loads(TIMEOUT).brokers.keys() <= {broker_id})

        with closing(ScrapedMetrics(settings, LIMITS, hosts, lambda: time.time() + clock_lead)) as source:
            yield LoadSubject(source, lose, 0.1)


@pytest.fixture(scope="module")
def prometheus(all_exporters: ExporterEmulator) -> Iterator[PrometheusServer]:
    """A real Prometheus that scrapes the exporters, and a real node_exporter, every second."""
    skip_without_prometheus()
    node = free_address()
    jobs = [
        job_of_brokers(all_exporters.address, [*RATES]),
        {"job_name": "node", "static_configs": [{"targets": [node], "labels": {"pod": "kafka-1"}}]},
    ]
    with scratch_directory() as directory, node_exporter(directory, node), PrometheusServer(directory, jobs) as server:
        yield server


def source_of(
    server: PrometheusServer, hosts: BrokerHosts, selector: str = 'job="kafka"', tx: str = "", rx: str = ""
) -> PrometheusMetrics:
    exporter = EXPORTERS["node_exporter"]
    settings = PrometheusSettings(server.url, exporter, tx, rx, selector, window=WINDOW, broker_label=LABEL)
    return PrometheusMetrics(settings, LIMITS, hosts)


class TestPrometheusMetrics(LoadSourceContract):
    @pytest.fixture
    def subject(
        self, prometheus: PrometheusServer, exporters: ExporterEmulator, hosts: BrokerHosts
    ) -> Iterator[LoadSubject]:
        with closing(source_of(prometheus, hosts)) as source:
            yield LoadSubject(source, lambda broker_id: exporters.answers.update({broker_id: "hang"}), 0.1)


def test_quota_rates_and_addresses_come_through_a_real_server(
    prometheus: PrometheusServer, exporters: ExporterEmulator
) -> None:
    """The address is on eth1, beside eth0, which has the counters of the other tests."""
    start = time.time()

    def text() -> str:
        total = (time.time() - start) * 3e6
        counters = "".join(
            f'node_network_{way}_bytes_total{{device="eth1"}} {total}\n' for way in ("transmit", "receive")
        )
        address = 'node_network_address_info{address="10.0.0.1",device="eth1",netmask="24",scope="global"} 1\n'
        return steady(5e6, 4e6)() + counters + address + "kafka_server_LeaderReplication_byte_rate 2.5e6\n"

    exporters.answers[1] = text
    cluster = MemoryCluster(brokers=(1,))
    cluster.hosts = {1: ("10.0.0.1",)}
    with closing(source_of(prometheus, BrokerHosts(cluster))) as source:
        eventually(lambda: source.fetch_loads(TIMEOUT).devices.get(1) == ("eth1",))
        loads = source.fetch_loads(TIMEOUT)
    assert loads.quota_rates[1, ReplicaRole.LEADER].rate == 2_500_000


def test_bytes_of_a_real_device_and_the_errors_of_a_real_server(
    prometheus: PrometheusServer, hosts: BrokerHosts
) -> None:
    """The device is loopback, over which the test sends 20 MB/s; presets leave loopback out."""
    tx, rx = (f'node_network_{way}_bytes_total{{device="lo",job="node"}}' for way in ("transmit", "receive"))
    with ExitStack() as stack:
        stack.enter_context(traffic(20_000_000))
        ranges = stack.enter_context(closing(source_of(prometheus, hosts, tx=f"{tx}[4s]", rx=f"{rx}[4s]")))
        eventually(lambda: (load := ranges.fetch_loads(TIMEOUT).brokers.get(1)) and load.outbound.rate > FAST)
        load = ranges.fetch_loads(TIMEOUT).brokers[1]
        seconds = (load.outbound.end - load.outbound.start).total_seconds()
        assert seconds == pytest.approx(round(seconds), abs=0.2)  # a whole number of scrapes
        assert 1 <= seconds <= 4
        queries = {"tx": f"sum by (pod) (rate({tx}[4s]))", "rx": f"sum by (pod) (rate({rx}[4s]))"}
        rates = stack.enter_context(closing(source_of(prometheus, hosts, **queries)))
        assert rates.fetch_loads(TIMEOUT).brokers[1].inbound.rate > FAST
        wrong = stack.enter_context(closing(source_of(prometheus, hosts, tx="sum(")))
        with pytest.raises(Unavailable, match=r"\(prometheus-tx-query\) answers 400: invalid parameter .query"):
            wrong.fetch_loads(TIMEOUT)
        scalar = stack.enter_context(closing(source_of(prometheus, hosts, rx="1")))
        with pytest.raises(Unavailable, match=r"\(prometheus-rx-query\) answers a scalar; the query must"):
            scalar.fetch_loads(TIMEOUT)
        prometheus.freeze()
        with pytest.raises(Unavailable, match="does not answer in time"):
            rates.fetch_loads(timedelta(seconds=0.5))
        prometheus.thaw()


@contextmanager
def traffic(bytes_per_second: int) -> Iterator[None]:
    """Send bytes over loopback until the end."""
    ending = threading.Event()

    def send(near: socket.socket) -> None:
        while not ending.wait(0.01):
            near.sendall(bytes(bytes_per_second // 100))

    def receive(far: socket.socket) -> None:
        while far.recv(1 << 20):
            pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        threads = [threading.Thread(target=send, args=(near,)), threading.Thread(target=receive, args=(far,))]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ending.set()
            threads[0].join()
            near.close()
            threads[1].join()
            far.close()

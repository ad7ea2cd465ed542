"""A recovery on real Kafka 4 that is throttled by a source other than Datadog, without Datadog's keys.

The brokers' traffic is computed from the growth of their logs. An exporter of each broker shows it in the names of
Strimzi's JMX exporter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from autothrottle.adapters.grpc import MetricsClient
from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_lab.emulators.exporter import ExporterEmulator, jmx_text
from autothrottle_lab.observation.traffic import BrokerCounters, ProducerLoad, fill
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.prometheus import PrometheusServer, job_of_brokers
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.server_fixtures import BROKERS, skip_without_prometheus
from tests.system.recovery_watch import FOLLOWER_RATE, RecoveryWatch, admin_backend_options, admin_channel, submit

MB = 1_000_000
DESTINATION = 1005
CAPACITY_MB, CLIENTS_MB = 12, 2
WINDOW_SECONDS = 12
"""On a busy machine, several scrapes in a row may be late; a rate needs two samples in the window."""


@pytest.fixture
def exporters(kraft_cluster: KraftCluster) -> Iterator[ExporterEmulator]:
    """The counters are read in the background: reading them for each request is slow, so that a scrape times out."""
    with BrokerCounters(kraft_cluster) as counters, ExporterEmulator() as emulator:
        newest = counters.sample()
        counters.call_every(0.25, newest.update)
        emulator.answers = {b: partial(lambda b: jmx_text(newest[b]), b) for b in BROKERS}
        yield emulator


def wait_for_loads(metrics: str) -> None:
    """Wait until the loads of all brokers cover most of a window."""
    with closing(MetricsClient([metrics])) as client:

        def are_complete() -> bool:
            loads = client.fetch_loads(timedelta(seconds=10)).brokers
            shortest = timedelta(seconds=WINDOW_SECONDS - 2)
            return {*loads} == {*BROKERS} and all(
                load.inbound.end - load.inbound.start >= shortest for load in loads.values()
            )

        eventually(are_complete)


@contextmanager
def source(name: str, exporters: ExporterEmulator) -> Iterator[Mapping[str, str]]:
    """Start what a source needs; return its options."""
    if name == "scrape":
        yield {"scrape-url": exporters.url, "scrape-interval": "1"}
        return
    skip_without_prometheus()
    jobs = [job_of_brokers(exporters.address, BROKERS)]
    with scratch_directory() as directory, PrometheusServer(directory, jobs) as server:
        yield {"prometheus-url": server.url}


@pytest.mark.parametrize("name", ["prometheus", pytest.param("scrape", marks=pytest.mark.repeat)])
def test_recovery_is_throttled_at_what_clients_leave_free(
    name: str, kraft_cluster: KraftCluster, zookeeper: ZooKeeperServer, exporters: ExporterEmulator, tmp_path: Path
) -> None:
    cluster, topic, clients = kraft_cluster, f"moving-by-{name}", f"clients-by-{name}"
    cluster.create_topic(topic, {p: [1001 + p, 1002 + p] for p in range(3)})
    fill(cluster, topic, 25 * MB, record_bytes=20_000)
    cluster.create_topic(clients, {n: [broker_id] for n, broker_id in enumerate(BROKERS)})
    load = ProducerLoad(cluster, {(clients, n): CLIENTS_MB * MB for n in range(len(BROKERS))}, acks=1)
    before = cluster.stored_configs()
    with load, source(name, exporters) as options:
        deployment = Deployment(
            zookeeper.connect,
            "",
            tmp_path,
            {
                **options,
                **admin_backend_options(cluster),
                "metrics-source": name,
                "broker-exporter": "strimzi",
                "zk-config-prefix": f"by-{name}",
                "interval": "4",
                "metrics-window": str(WINDOW_SECONDS),
                "default-capacity": str(CAPACITY_MB),
                "min-rate": "1",
            },
        )
        with ServiceProcesses(deployment, planners=1) as running, RecoveryWatch(cluster, topic, None) as watch:
            wait_for_loads(running.addresses["metrics"])
            with admin_channel(running.addresses["admin"]) as channel:
                stub = admin_pb2_grpc.AdminServiceStub(channel)
                submit(stub, {(topic, p): [1001 + p, DESTINATION] for p in range(3)})
                first = watch.wait_until(lambda s: (DESTINATION, FOLLOWER_RATE) in s.rates, 20, "throttled")
                override = admin_pb2.Override(rate_bytes_per_second=500 * MB, autoremove=True, beyond_capacity=True)
                stub.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=30)
            watch.wait_until(lambda s: not s.moving and s.at > first.at + 1, 120, "the reassignment ends")
            watch.wait_until(lambda s: not s.rates and not any(s.lists), 30, "clean")
            assert running.stop() == [0] * 5
            log = running.log()
    assert cluster.stored_configs() == before
    cluster.delete_topic(topic)
    cluster.delete_topic(clients)
    # The throttle comes before the first byte, so the metrics show the clients alone. A busy machine delays producers.
    ideal = (CAPACITY_MB - CLIENTS_MB) * 0.9 * MB
    assert first.rates[DESTINATION, FOLLOWER_RATE] == pytest.approx(ideal, rel=0.15), log

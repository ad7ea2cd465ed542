"""Five real brokers behind shaped links, and the services of the product."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from autothrottle.core.cluster.configs import THROTTLE_KEYS
from autothrottle.core.units import MEGABYTE
from autothrottle.messages import targets_to_messages
from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.servers.kafka import wait_until
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process, scratch_directory
from autothrottle_lab.servers.prometheus import PrometheusServer, node_exporter
from autothrottle_lab.servers.services import Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.benchmarks.links.layout import (
    BESIDE,
    CROWD,
    LINKS,
    MIN_RATE,
    RING,
    RunPlan,
    beside,
    crowd,
    ring,
    static_rate,
)
from tests.benchmarks.links.shaped_links import ShapedLinks

PROPERTIES: Mapping[str, object] = {
    # Retention keeps the logs of the clients' topics small, since they are in memory.
    "log.segment.bytes": 16 * 1024 * 1024,
    "log.retention.check.interval.ms": 5000,
    "file.delete.delay.ms": 1000,
}
_KEPT = {"retention.bytes": str(32 * 1024 * 1024)}
_FEED_SECONDS = 0.5
_EXPORTER_PORT = 9100
_GRPC = re.compile(r"gRPC API: (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Testbed:
    """The servers that all runs share."""

    links: ShapedLinks
    cluster: KraftCluster
    zookeeper: ZooKeeperServer
    directory: Path


@contextmanager
def start_testbed(directory: Path, fetch_kilobytes: int, response_kilobytes: int) -> Iterator[Testbed]:
    """Create the links, and start the brokers behind them and autothrottle's own ZooKeeper.

    Args:
        directory: data directory of all servers.
        fetch_kilobytes: `replica.fetch.max.bytes`, per partition, in units of 1024 bytes.
        response_kilobytes: `replica.fetch.response.max.bytes`, in units of 1024 bytes. 500 take 0.1 s of the part of
            the follower's link that clients leave free.
    """
    fetches = {
        "replica.fetch.max.bytes": 1024 * fetch_kilobytes,
        "replica.fetch.response.max.bytes": 1024 * response_kilobytes,
    }
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperServer(directory / "zookeeper"))
        links = stack.enter_context(ShapedLinks(LINKS))
        cluster = KraftCluster(
            directory / "kafka",
            tuple(LINKS),
            broker_properties={**PROPERTIES, **fetches},
            heap_megabytes=320,
            places=links.places,
        )
        stack.enter_context(cluster)
        cluster.create_topic(RING, ring(), _KEPT)
        cluster.create_topic(BESIDE, beside(), _KEPT)
        cluster.create_topic(CROWD, crowd(), _KEPT)
        yield Testbed(links, cluster, zookeeper, directory)


@contextmanager
def start_product(testbed: Testbed, plan: RunPlan) -> Iterator[str]:
    """Run all services with metrics from the counters of the network cards; yield the address of the admin API."""
    with _metrics(testbed, plan) as (datadog_url, of_source):
        every = {**options(testbed, plan), **of_source}
        deployment = Deployment(testbed.zookeeper.connect, datadog_url, testbed.directory, every)
        name = f"autothrottle-{plan.topic}"
        own = {"api-listen": "127.0.0.1:0", "grpc-listen": "127.0.0.1:0", "zk-config-prefix": name}
        with deployment.process("run", name, own) as process:

            def ready() -> bool:
                log = process.log.read_text()
                return "Leading in term" in log and bool(_GRPC.search(log))

            process.wait_until(ready, 120.0)
            yield _GRPC.findall(process.log.read_text())[-1]
            _wait_until_clean(testbed, process)


def options(testbed: Testbed, plan: RunPlan) -> dict[str, str]:
    """Return the command-line options of the services."""
    return {
        "policy": plan.policy,
        "static-rate": f"{static_rate(plan) / MEGABYTE:g}",
        "max-rate": f"{100 * plan.ratio:g}",
        "min-rate": f"{MIN_RATE / MEGABYTE:g}",
        "interval": str(plan.interval),
        "metrics-window": str(plan.window),
        "broker-cap-map": json.dumps({str(b): rate / MEGABYTE for b, rate in LINKS.items()}),
        "kafka-backend": "admin",
        "bootstrap-servers": testbed.cluster.bootstrap_servers,
        "kafka-bootstrap-controllers": testbed.cluster.bootstrap_controllers,
    }


@contextmanager
def _metrics(testbed: Testbed, plan: RunPlan) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Start the metrics source; yield the URL of Datadog, "" for another source, and the options of the source."""
    source = plan.source
    if source == "datadog":
        with DatadogEmulator() as datadog, _report_metrics(testbed.links, datadog):
            yield datadog.url, {}
        return
    chosen = {"metrics-source": source}
    if source == "kafka":
        chosen["consumer-fanout"] = f"{plan.consumer_fanout:g}"
    with ExitStack() as stack:
        if source in ("prometheus", "scrape"):
            places = [testbed.links.places[broker_id] for broker_id in LINKS]
            directory = stack.enter_context(scratch_directory(parent=testbed.directory))
            for place in places:
                stack.enter_context(node_exporter(directory, f"{place.host}:{_EXPORTER_PORT}", place.command_prefix))
        if source == "prometheus":
            targets = [f"{place.host}:{_EXPORTER_PORT}" for place in places]
            job = {"job_name": "node", "static_configs": [{"targets": targets}]}
            server = PrometheusServer(directory, [job], scrape_interval_seconds=2)
            chosen["prometheus-url"] = stack.enter_context(server).url
        yield "", chosen


@contextmanager
def _report_metrics(links: ShapedLinks, datadog: DatadogEmulator) -> Iterator[None]:
    for broker_id in LINKS:
        datadog.add_host(f"host-{broker_id}", broker_id, "lab")
    ending = threading.Event()

    def feed() -> None:
        while not ending.wait(_FEED_SECONDS):
            for broker_id, counts in links.counters().items():
                datadog.record(broker_id, time.time(), counts.tx.total, counts.rx.total)

    thread = threading.Thread(target=feed, name="network cards", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _wait_until_clean(testbed: Testbed, process: Process) -> None:
    def clean() -> bool:
        assert process.running, process.log_end()
        return not any(config.keys() & THROTTLE_KEYS for config in testbed.cluster.stored_configs().values())

    wait_until(clean, 120.0, "all throttles are removed")


def submit(testbed: Testbed, plan: RunPlan, admin: str | None) -> None:
    """Submit the reassignment to the product at `admin`, or to Kafka if `admin` is None."""
    targets = {(plan.topic, p): replicas for p, replicas in plan.replicas_after().items()}
    if admin is None:
        testbed.cluster.reassign_through_bootstrap(targets)
        return
    with grpc.insecure_channel(admin) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.SubmitReassignmentRequest(partitions=targets_to_messages(targets))
        stub.SubmitReassignment(request, timeout=60)

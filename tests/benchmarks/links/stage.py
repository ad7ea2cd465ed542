"""Five real brokers behind shaped links, and the product beside them."""

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

from autothrottle.core.configs import THROTTLE_KEYS
from autothrottle.core.loads import MEGABYTE
from autothrottle.lab.datadog import DatadogEmulator
from autothrottle.lab.kafka import wait_until
from autothrottle.lab.kraft import KraftCluster
from autothrottle.lab.links import ShapedLinks
from autothrottle.lab.processes import Process
from autothrottle.lab.services import Deployment
from autothrottle.lab.zookeeper import ZooKeeperServer
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from tests.benchmarks.links.layout import (
    BESIDE,
    CROWD,
    LINKS,
    MIN_RATE,
    RING,
    Plan,
    beside,
    crowd,
    ring,
    static_rate,
)

PROPERTIES: Mapping[str, object] = {
    # The clients' topics shall not fill the memory in which the logs are.
    "log.segment.bytes": 16 * 1024 * 1024,
    "log.retention.check.interval.ms": 5000,
    "file.delete.delay.ms": 1000,
}
_KEPT = {"retention.bytes": str(32 * 1024 * 1024)}
_FEED_SECONDS = 0.5
_GRPC = re.compile(r"gRPC API: (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Stage:
    """What stands for all moves."""

    links: ShapedLinks
    cluster: KraftCluster
    zookeeper: ZooKeeperServer
    directory: Path


@contextmanager
def stage(directory: Path, fetch_kilobytes: int, response_kilobytes: int) -> Iterator[Stage]:
    """Build the links, and start the brokers behind them and our own ZooKeeper.

    Args:
        directory: for everything that they write.
        fetch_kilobytes: what a fetch brings of a partition at most, 1024 bytes.
        response_kilobytes: what it brings in all; 500 are 0.1 s of what the destination's clients leave of its link.
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
        yield Stage(links, cluster, zookeeper, directory)


@contextmanager
def product(stage: Stage, plan: Plan) -> Iterator[str]:
    """Run all services, fed with what the network cards count; gives the address of the admin API."""
    with DatadogEmulator() as datadog, _fed(stage.links, datadog):
        deployment = Deployment(stage.zookeeper.connect, datadog.url, stage.directory, options(stage, plan))
        name = f"autothrottle-{plan.topic}"
        own = {"api-listen": "127.0.0.1:0", "grpc-listen": "127.0.0.1:0", "zk-config-prefix": name}
        with deployment.process("run", name, own) as process:

            def ready() -> bool:
                said = process.log.read_text()
                return "Leading in term" in said and bool(_GRPC.search(said))

            process.wait_until(ready, 120.0)
            yield _GRPC.findall(process.log.read_text())[-1]
            _wait_until_clean(stage, process)


def options(stage: Stage, plan: Plan) -> dict[str, str]:
    """The options of the services."""
    return {
        "policy": plan.policy,
        "static-rate": f"{static_rate(plan) / MEGABYTE:g}",
        "max-rate": f"{100 * plan.ratio:g}",
        "min-rate": f"{MIN_RATE / MEGABYTE:g}",
        "interval": str(plan.interval),
        "metrics-window": str(plan.window),
        "broker-cap-map": json.dumps({str(b): rate / MEGABYTE for b, rate in LINKS.items()}),
        "kafka-backend": "admin",
        "bootstrap-servers": stage.cluster.bootstrap_servers,
        "kafka-bootstrap-controllers": stage.cluster.bootstrap_controllers,
    }


@contextmanager
def _fed(links: ShapedLinks, datadog: DatadogEmulator) -> Iterator[None]:
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


def _wait_until_clean(stage: Stage, process: Process) -> None:
    def clean() -> bool:
        assert process.running, process.log_end()
        return not any(config.keys() & THROTTLE_KEYS for config in stage.cluster.stored_configs().values())

    wait_until(clean, 120.0, "no throttle stands any more")


def submit(stage: Stage, plan: Plan, admin: str | None) -> None:
    """Ask for the move: of the product, or of Kafka itself."""
    moved = plan.after_the_move()
    if admin is None:
        stage.cluster.reassign_through_bootstrap({(plan.topic, p): replicas for p, replicas in moved.items()})
        return
    targets = [types_pb2.PartitionTarget(topic=plan.topic, partition=p, replicas=r) for p, r in moved.items()]
    with grpc.insecure_channel(admin) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        stub.SubmitReassignment(admin_pb2.SubmitReassignmentRequest(partitions=targets), timeout=60)

"""topicmappr and metricsfetcher on real Kafka, in both modes. Kafka's own tool executes the maps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from autothrottle.topicmappr import command_line, metricsfetcher
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster, java_command
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import run_command
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.server_fixtures import repeat_on_kraft

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
SECONDS = 120.0
PARTITIONS, PARTITION_BYTES = 6, 200_000


@pytest.fixture
def topic(each_cluster: KafkaCluster) -> Iterator[str]:
    """A topic with all replicas on the first three brokers."""
    name = f"mapped-{uuid4().hex[:8]}"
    cluster = each_cluster
    cluster.create_topic(name, {p: [1001 + p % 3, 1001 + (p + 1) % 3] for p in range(PARTITIONS)})
    try:
        fill(cluster, name, PARTITION_BYTES)
        yield name
    finally:
        cluster.delete_topic(name)


@pytest.fixture
def flags(each_cluster: KafkaCluster, zookeeper: ZooKeeperServer) -> list[str]:
    """How to access the cluster: its topics through ZooKeeper where it has one."""
    cluster = each_cluster
    backend = "zookeeper" if isinstance(cluster, ZooKeeperModeCluster) else "admin"
    servers = [f"--kafka-addr={cluster.bootstrap_servers}", f"--zk-addr={zookeeper.connect}"]
    return [*servers, f"--kafka-backend={backend}", "--ignore-warns"]


def reassign(cluster: KafkaCluster, path: Path, action: str) -> str:
    """Run Kafka's own tool on a map file; return its output."""
    arguments = ["--bootstrap-server", cluster.bootstrap_servers, "--reassignment-json-file", str(path), action]
    version = cluster.version
    status, output = run_command([*java_command(version, 128), TOOL, *arguments], SECONDS)
    assert status == 0, output
    return output


def test_kafkas_tool_executes_a_map(each_cluster: KafkaCluster, topic: str, flags: list[str], tmp_path: Path) -> None:
    arguments = ["rebuild", "--topics", topic, "--brokers", "1001,1002,1004,1005", f"--out-path={tmp_path}"]
    assert command_line.main([*arguments, *flags]) == 0
    path = tmp_path / f"{topic}.json"
    planned = {(row["topic"], row["partition"]): row["replicas"] for row in json.loads(path.read_text())["partitions"]}
    assert len(planned) == PARTITIONS
    assert all(1003 not in replicas for replicas in planned.values())
    reassign(each_cluster, path, "--execute")
    each_cluster.wait_until_reassigned()
    verified = reassign(each_cluster, path, "--verify")
    assert verified.count("is completed") == PARTITIONS, verified
    current = each_cluster.partitions([topic])
    assert {row: list(state.replicas) for row, state in current.items()} == planned


@repeat_on_kraft
def test_metrics_are_fetched_stored_and_used(
    each_cluster: KafkaCluster, topic: str, flags: list[str], zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    prefix = f"/metrics-{uuid4().hex[:8]}"
    fetcher = [
        f"--kafka-addr={each_cluster.bootstrap_servers}",
        f"--zk-addr={zookeeper.connect}",
        f"--zk-prefix={prefix}",
    ]
    assert metricsfetcher.main(["--source", "kafka", *fetcher]) == 0
    stored, live = tmp_path / "stored.json", tmp_path / "live.json"
    assert command_line.main(["export", str(stored), *flags, f"--zk-metrics-prefix={prefix}"]) == 0
    assert command_line.main(["export", str(live), *flags, "--metrics-source=kafka"]) == 0
    for path in (stored, live):
        found = json.loads(path.read_text())
        assert [broker["id"] for broker in found["brokers"]] == [1001, 1002, 1003, 1004, 1005]
        assert all(broker["storage_free"] > 0 for broker in found["brokers"])
        sizes = [one["size"] for one in found["partitions"] if one["topic"] == topic]
        assert len(sizes) == PARTITIONS
        assert min(sizes) >= PARTITION_BYTES
    assert all(broker["storage_total"] > broker["storage_free"] for broker in json.loads(live.read_text())["brokers"])

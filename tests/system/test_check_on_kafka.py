"""`autothrottle check` as a new user runs it, on real Kafka: it names the faults and writes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType

from autothrottle_lab.emulators.exporter import ExporterEmulator
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.server_fixtures import BROKERS
from tests.system.recovery_watch import state_options

MB = 1_000_000
SECONDS = 60.0


def exporter(devices: Mapping[str, float], speeds: Mapping[str, float], **totals: float) -> Callable[[], str]:
    """Return the text of a node_exporter with devices of these rates, MB/s, and of further counters."""
    start = time.time()

    def text() -> str:
        seconds = time.time() - start
        ways = [(way, device, rate) for way in ("transmit", "receive") for device, rate in devices.items()]
        lines = [f'node_network_{way}_bytes_total{{device="{d}"}} {seconds * rate * MB}' for way, d, rate in ways]
        lines += [f'node_network_speed_bytes{{device="{device}"}} {speed * MB}' for device, speed in speeds.items()]
        return "\n".join([*lines, *(f"{name} {seconds * rate * MB}" for name, rate in totals.items())]) + "\n"

    return text


@pytest.fixture
def exporters() -> Iterator[ExporterEmulator]:
    """A veth of 10 Gbit/s, twins that move together, JMX rules without replication, too low a speed, and a 404."""
    clients = {f"kafka_server_brokertopicmetrics_bytes{way}_total": 5.0 for way in ("in", "out")}
    with ExporterEmulator() as emulator:
        emulator.answers = {
            1001: exporter({"eth0": 40, "veth1a2b": 3}, {"eth0": 125, "veth1a2b": 1250}),
            1002: exporter({"ens5": 40, "ens6": 40}, {"ens5": 125}),
            1003: exporter({"ens5": 40}, {"ens5": 125}, **clients),
            1004: exporter({"eth0": 40}, {"eth0": 25}),
        }
        yield emulator


def started(cluster: KafkaCluster, zookeeper: str = "", **options: str) -> subprocess.Popen[str]:
    given = {"bootstrap-servers": cluster.bootstrap_servers, "scrape-interval": "1"}
    given |= {"zk-addr": zookeeper} if zookeeper else {"state-store": "kafka", "kafka-backend": "admin"}
    given |= {name.replace("_", "-"): value for name, value in options.items()}
    words = [f"--{name}={value}" for name, value in given.items()]
    command = [sys.executable, "-m", "autothrottle", "check", *words, "-o", "json"]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def result(process: subprocess.Popen[str]) -> tuple[int, list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the exit status, the findings and the facts, as (subject, value)."""
    out, err = process.communicate(timeout=SECONDS)
    assert out, err
    lines: list[dict[str, str]] = json.loads(out)
    findings, facts = ([(i["subject"], i["value"]) for i in lines if i["level"] == level] for level in ("warn", "info"))
    assert all(bool(line["fix"]) == (line["level"] == "warn") for line in lines)
    return process.returncode, findings, facts


def about(lines: list[tuple[str, str]], subject: str, *words: str) -> bool:
    return any(name == subject and all(word in value for word in words) for name, value in lines)


def size(cluster: KafkaCluster, topic: str) -> int:
    """Return the bytes of a topic on all brokers."""
    return sum(cluster.log_bytes(broker_id).get((topic, 0), 0) for broker_id in cluster.brokers)


def test_check_names_each_fault_and_writes_nothing(kraft_cluster: KraftCluster, exporters: ExporterEmulator) -> None:
    """With the state in Kafka, the check created the topic of the state, and appended records to it."""
    cluster, common = kraft_cluster, {"metrics_source": "scrape", "scrape_url": exporters.url}
    with state_options(cluster) as of_cluster:
        existing = of_cluster["state-topic"]
        initial = cluster.stored_configs(), cluster.partitions(), size(cluster, existing)
        by_host = started(cluster, **common, net_devices="eth.*|veth.*|ens.*", state_topic="state-of-the-future")
        by_jmx = started(cluster, **common, broker_exporter="jmx", default_capacity="100", state_topic=existing)
        status, findings, facts = result(by_host)
        jmx_status, jmx_findings, jmx_facts = result(by_jmx)
        assert (cluster.stored_configs(), cluster.partitions(), size(cluster, existing)) == initial
    assert (status, jmx_status) == (1, 1)
    assert about(facts, "state store", "topic state-of-the-future does not exist; the first start creates it")
    assert about(jmx_facts, "state store", f"topic {existing} exists, with safe settings")
    assert about(findings, "broker 1001", "--net-devices matches virtual devices: veth1a2b")
    assert about(facts, "broker 1001", "capacity 1250.00 MB/s, from the speed of veth1a2b")
    assert about(findings, "broker 1002", "ens5 and ens6 both count", "the same within 2%")
    assert about(facts, "broker 1002", "network devices that count: ens5, ens6")
    assert about(findings, "broker 1004", "more than its capacity of 25.00 MB/s, from the speed of eth0")
    assert about(findings, "broker 1005", "answers 404")
    assert not about(findings, "broker 1003", "ens5")
    assert about(jmx_findings, "broker 1003", "has no series kafka_server_brokertopicmetrics_replicationbytesout_total")
    assert about(facts, "Kafka's permissions")
    assert about(facts, "metrics", "4 of 5 brokers")


@pytest.mark.repeat
def test_check_in_zookeeper_mode_survives_a_silent_source(
    kafka_cluster: ZooKeeperModeCluster, zookeeper: ZooKeeperServer, exporters: ExporterEmulator
) -> None:
    """All exporters hang, and the other checks still answer; a static rate needs no metrics at all."""
    exporters.answers = dict.fromkeys(BROKERS, "hang")
    hanging = started(kafka_cluster, zookeeper.connect, metrics_source="scrape", scrape_url=exporters.url)
    static = started(kafka_cluster, zookeeper.connect, metrics_source="none", policy="static", static_rate="900")
    status, findings, facts = result(hanging)
    assert status == 1
    assert all(about(findings, f"broker {broker_id}") for broker_id in BROKERS)
    assert about(facts, "Kafka's znodes") and about(facts, "Kafka", "5 brokers")
    assert result(static)[:2] == (0, [])


GUARD = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def allow(cluster: KafkaCluster, kind: str, name: str, *operations: str) -> None:
    """Allow every client only these operations on a resource."""
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
        resource = ResourcePattern(ResourceType[kind], name)
        anyone = ("User:*", "*")
        admin.create_acls([ACL(*anyone, ACLOperation[o], ACLPermissionType.ALLOW, resource) for o in operations])


@pytest.mark.repeat
def test_check_names_what_an_authorizer_refuses(fresh_zookeeper: ZooKeeperServer) -> None:
    """Without Alter, the first reassignment would start and every throttle would be refused."""
    servers = fresh_zookeeper.connect
    common = {"kafka_backend": "admin", "metrics_source": "none", "policy": "static"}
    with (
        scratch_directory() as directory,
        ZooKeeperModeCluster(servers, directory, (1001,), broker_properties=GUARD) as cluster,
    ):
        cluster.create_topic("open", {0: [1001]})
        cluster.create_topic("closed", {0: [1001]})
        assert result(started(cluster, servers, **common))[:2] == (0, [])
        allow(cluster, "TOPIC", "closed", "DESCRIBE")
        allow(cluster, "CLUSTER", "kafka-cluster", "CLUSTER_ACTION", "DESCRIBE", "DESCRIBE_CONFIGS")
        status, findings, _ = result(started(cluster, servers, **common))
    assert status == 1
    assert findings[:2] == [
        ("Kafka, cluster", "this client may not Alter, AlterConfigs"),
        ("topic closed", "this client may not DescribeConfigs, AlterConfigs"),
    ]

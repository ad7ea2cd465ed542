"""One hostile znode or config beside a reassignment on real Kafka: the move keeps its throttle and exact lists."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from autothrottle_client import AdminClient
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.system.recovery_watch import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    RecoveryWatch,
    Sample,
    admin_backend_options,
)
from tests.system.test_throttlectl import address_of, throttlectl

MB = 1_000_000
RATE_MB = 3
SECONDS = 15
DESTINATION = 1005
OWN = "/autothrottle-hostile"
DIGITS = "9" * 5000 + ":1"
BEYOND = 2**40

Place = Callable[[KafkaCluster, KazooClient], None]
Item = tuple[Place, str, str]
"""(what writes it, part of its path in the finding, kind in the metric)."""


def znode(path: str, value: object) -> Place:
    """Write a node as JSON; JSON escapes half a surrogate pair."""

    def place(_: KafkaCluster, client: KazooClient) -> None:
        client.ensure_path(path)
        client.set(path, json.dumps(value).encode())

    return place


def entry(value: object, version: int = 1, **key: Any) -> dict[str, object]:
    """A ledger entry of one rate."""
    record = {"before": None, "written": value, **key}
    keys = {"leader.replication.throttled.rate": record}
    return {"version": version, "keys": keys, "term": 1, "cycle": 1}


def list_of_digits(cluster: KafkaCluster, _: KazooClient) -> None:
    cluster.create_topic("hostile", {0: [1003, 1004]})
    fill(cluster, "hostile", 90 * MB)
    # It moves for longer than the other topic, because its follower is throttled from the start, as by Kafka's tool.
    cluster.set_configs_as_a_user({FOLLOWER_RATE: str(RATE_MB * MB)}, broker_id=1002)
    cluster.set_configs_as_a_user({LEADER_REPLICAS: DIGITS, FOLLOWER_REPLICAS: "0:1002"}, topic="hostile")
    cluster.reassign_through_bootstrap({("hostile", 0): [1003, 1002]})


def hostile_topic(node: Mapping[str, object], state: Mapping[str, object] | None = None) -> Place:
    """A topic node that Kafka did not write; its brokers do not exist, so that no log is created."""

    def place(cluster: KafkaCluster, client: KazooClient) -> None:
        if state is not None:
            znode("/brokers/topics/hostile-node/partitions/0/state", state)(cluster, client)
        znode("/brokers/topics/hostile-node", node)(cluster, client)

    return place


MOVING = {"partitions": {"0": [4711, 4712]}, "adding_replicas": {"0": [4712]}, "removing_replicas": {}}
ANY_BACKEND: Mapping[str, Item] = {
    name: (znode(f"{OWN}/{path}", value), path, kind)
    for name, path, value, kind in (
        ("ledger entry with half a surrogate pair", "ledger/brokers/1003", entry("\ud800"), "config"),
        ("ledger entry of a later format", "ledger/topics/x", entry("5", version=2), "config"),
        ("ledger entry without a replaced value", "ledger/brokers/1003", entry(None, before="5", intent="7"), "config"),
        ("catch-up of broker 2^70", "catch_ups", {"brokers": {str(2**70): {"author": "", "time": None}}}, "catch_up"),
        ("catch-up of broker -1", "catch_ups", {"brokers": {"-1": {"author": "", "time": None}}}, "catch_up"),
    )
}
KAFKA_4: Mapping[str, Item] = {
    "list of 5,000 digits": (list_of_digits, f"topics/hostile, {LEADER_REPLICAS}", "config"),
    **ANY_BACKEND,
}
ZOOKEEPER_MODE: Mapping[str, Item] = {
    **{
        f"{name} with half a surrogate pair": (znode(path, {"config": {key: "\ud800"}}), path, "config")
        for name, path, key in (
            ("rate", "/config/brokers/4711", LEADER_RATE),
            ("default rate", "/config/brokers/<default>", LEADER_RATE),
            ("list", "/config/topics/x", LEADER_REPLICAS),
        )
    },
    **{
        name: (hostile_topic(node, state), "/brokers/topics/hostile-node", "topology")
        for name, node, state in (
            ("partition 2^40", {"partitions": {str(BEYOND): [4711]}}, None),
            ("broker 2^40", {"partitions": {"0": [BEYOND]}}, None),
            ("adding replica -7", {**MOVING, "adding_replicas": {"0": [-7]}}, None),
            ("leader 2^40", MOVING, {"leader": BEYOND, "isr": [4711]}),
            ("leader -9", MOVING, {"leader": -9, "isr": [4711]}),
        )
    },
    **ANY_BACKEND,
}


def items(places: Mapping[str, Item]) -> list[Any]:
    """One item in `make test`, the others in `make test-all`."""
    first, *others = places
    repeated = [pytest.param(name, places[name], marks=pytest.mark.repeat, id=name) for name in others]
    return [pytest.param(first, places[first], id=first), *repeated]


@contextmanager
def running(zookeeper: ZooKeeperServer, directory: Path, options: Mapping[str, str]) -> Iterator[Process]:
    flags = {
        "zk-addr": zookeeper.connect,
        "zk-config-prefix": OWN.strip("/"),
        "metrics-source": "none",
        "policy": "static",
        "static-rate": str(RATE_MB),
        "interval": "1",
        "api-listen": "127.0.0.1:0",
        "grpc-listen": "127.0.0.1:0",
        **options,
    }
    command = [sys.executable, "-m", "autothrottle", "run", *(f"--{name}={value}" for name, value in flags.items())]
    with Process("run", command, directory / "run.log") as process:
        process.wait_until(lambda: "Leading in term" in process.log.read_text(), 60)
        yield process
        process.stop()


def bytes_at(watch: RecoveryWatch, moment: float) -> int:
    """The bytes that the destination has copied at a moment, from the last sample before it."""
    samples = [sample for sample in watch.samples if sample.at <= moment]
    return samples[-1].received.get(DESTINATION, 0) if samples else 0


def check_move_beside(cluster: KafkaCluster, process: Process, topic: str, path: str, kind: str) -> None:
    """Move a topic: its mean rate is that of its throttle, its lists are exact, and the item is named."""
    partitions = range(4)
    with RecoveryWatch(cluster, topic, every_seconds=0.1) as watch, AdminClient([address_of(process)]) as admin:
        admin.submit_reassignment({(topic, p): (1001, DESTINATION) for p in partitions})
        start = watch.wait_until(lambda s: bool(s.moving), 60, "the move starts").at
        time.sleep(max(0.0, start + 1 + SECONDS - time.monotonic()))
        mean = (bytes_at(watch, start + 1 + SECONDS) - bytes_at(watch, start + 1)) / SECONDS
        print(f"\n{topic}: mean of {mean / MB:.2f} MB/s under a throttle of {RATE_MB} MB/s")
        assert mean <= 1.15 * RATE_MB * MB
        assert watch.samples[-1].lists == watch.samples[-1].expected != (frozenset(), frozenset())
        check_finding(process, path, kind)
        admin.set_override(500 * MB)
        watch.wait_until(lambda s: not s.moving, 60, "the move ends")
        watch.wait_until(lambda s: is_clean(s), 60, "the throttles of the move are removed")
        admin.remove_override()


def is_clean(sample: Sample) -> bool:
    return not any(sample.lists) and not {(1001, LEADER_RATE), (DESTINATION, FOLLOWER_RATE)} & sample.rates.keys()


def check_finding(process: Process, path: str, kind: str) -> None:
    """`throttlectl state` and the log name the item's path, and a metric counts it."""
    address = address_of(process)
    eventually(lambda: path in throttlectl(address, "state", "-o", "json"), 30)
    log = process.log.read_text()
    assert path in log
    assert "Traceback" not in log
    (listening,) = re.findall(r"Admin API: (\S+)$", log, re.MULTILINE)
    with urllib.request.urlopen(f"http://{listening}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    assert re.search(rf'autothrottle_invalid_resources{{.*kind="{kind}".*}} [1-9]', metrics)


def check_item(
    cluster: KafkaCluster,
    zookeeper: ZooKeeperServer,
    directory: Path,
    options: Mapping[str, str],
    name: str,
    item: Item,
) -> None:
    place, path, kind = item
    topic = re.sub(r"[^a-z0-9]+", "-", f"beside {name}")
    cluster.create_topic(topic, {p: [1001, 1002] for p in range(4)})
    fill(cluster, topic, 17 * MB)
    client = KazooClient(zookeeper.connect)
    client.start()
    try:
        with running(zookeeper, directory, options) as process:
            place(cluster, client)
            time.sleep(2)
            check_move_beside(cluster, process, topic, path, kind)
    finally:
        remove_items(cluster, client)
        client.stop()
        client.close()
    cluster.delete_topic(topic)


def remove_items(cluster: KafkaCluster, client: KazooClient) -> None:
    for path in (OWN, "/config/topics/x", "/config/brokers/4711", "/brokers/topics/hostile-node"):
        client.delete(path, recursive=True) if client.exists(path) else None
    if client.exists("/config/brokers/<default>"):
        client.set("/config/brokers/<default>", b'{"version":1,"config":{}}')
    if any(topic == "hostile" for topic, _ in cluster.partitions()):
        cluster.wait_until_reassigned()
        cluster.set_configs_as_a_user({LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None}, topic="hostile")
        # The services stop before this move ends, so its rates stay.
        for broker_id in (1002, 1003):
            cluster.set_configs_as_a_user({LEADER_RATE: None, FOLLOWER_RATE: None}, broker_id=broker_id)
        cluster.delete_topic("hostile")


@pytest.mark.measures
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "item"), items(KAFKA_4))
def test_a_hostile_item_leaves_other_moves_throttled_on_kafka_4(
    kraft_cluster: KafkaCluster, zookeeper: ZooKeeperServer, tmp_path: Path, name: str, item: Item
) -> None:
    """A replica list of 5,000 digits on one topic failed every cycle. The moves of all other topics ran unthrottled."""
    check_item(kraft_cluster, zookeeper, tmp_path, admin_backend_options(kraft_cluster), name, item)


@pytest.mark.measures
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "item"), items(ZOOKEEPER_MODE))
def test_a_hostile_item_leaves_other_moves_throttled_in_zookeeper_mode(
    kafka_cluster: KafkaCluster, zookeeper: ZooKeeperServer, tmp_path: Path, name: str, item: Item
) -> None:
    """One znode with an odd value failed every cycle. The moves of all other topics ran unthrottled."""
    check_item(kafka_cluster, zookeeper, tmp_path, {}, name, item)

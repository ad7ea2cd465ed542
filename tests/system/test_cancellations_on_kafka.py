"""`throttlectl cancel` on real Kafka takes no partition offline, whichever tool started the move (KAFKA-14424)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from autothrottle_client.throttlectl import EXIT_UNAVAILABLE
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster, PartitionState
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.system.recovery_watch import FOLLOWER_RATE, FOLLOWER_REPLICAS, admin_backend_options, running_services

SECONDS = 120.0
ATTEMPTS = 5
DEAD = (1001, 1002)
HELD = 1004
"""A throttle of one byte per second keeps this broker from completing a move: it lets one fetch through in 11 s."""
BYTES = 8_000_000
"""Bytes of each topic, of which one fetch brings 0.5 MB at most."""

TWO, THREE, ONE = "cancelled-two", "cancelled-three", "cancelled-one"
"""Topics with one partition each, by the number of original replicas."""

ORIGINALS: Mapping[str, tuple[int, ...]] = {TWO: (1001, 1002), THREE: (1001, 1002, 1005), ONE: (1005,)}
TARGETS: Mapping[str, tuple[int, ...]] = {TWO: (1003, HELD), THREE: (1003, HELD, 1005), ONE: (HELD,)}


@pytest.fixture(
    params=[
        pytest.param("kafka_cluster", id="zookeeper", marks=pytest.mark.xdist_group("kafka_cluster")),
        pytest.param("kraft_cluster", id="kraft", marks=pytest.mark.xdist_group("kraft_cluster")),
    ]
)
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture
def moves(cluster: KafkaCluster, address: str) -> Iterator[None]:
    """The moves of `TARGETS`, which another tool has started and which `HELD` does not complete."""
    # KRaft, too, cancels at the price of lost records where unclean elections are enabled.
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "2"}
    try:
        for topic, replicas in ORIGINALS.items():
            cluster.create_topic(topic, {0: replicas}, configs)
            fill(cluster, topic, BYTES)
            cluster.set_configs_as_a_user({FOLLOWER_REPLICAS: f"0:{HELD}"}, topic=topic)
        cluster.set_configs_as_a_user({FOLLOWER_RATE: "1"}, broker_id=HELD)
        targets = {(topic, 0): to for topic, to in TARGETS.items()}
        if isinstance(cluster, ZooKeeperModeCluster):  # as old tools do
            cluster.reassign_through_znode({(ONE, 0): targets.pop((ONE, 0))})
        cluster.reassign_through_bootstrap(targets)
        eventually(lambda: all(1003 in state(cluster, topic).isr for topic in (TWO, THREE)), SECONDS)
        yield
    finally:
        for broker_id in DEAD:
            cluster.start_broker(broker_id)
        cluster.set_configs_as_a_user({FOLLOWER_RATE: None}, broker_id=HELD)
        for topic in {topic for topic, _ in cluster.partitions()} & ORIGINALS.keys():
            cluster.delete_topic(topic)


def state(cluster: KafkaCluster, topic: str) -> PartitionState:
    return cluster.partitions([topic])[topic, 0]


@pytest.fixture
def address(cluster: KafkaCluster, zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[str]:
    """The services, paused, so that the throttle of another tool stays."""
    options = admin_backend_options(cluster)
    if isinstance(cluster, ZooKeeperModeCluster):
        del options["kafka-backend"]
    options |= {"zk-addr": zookeeper.connect, "zk-config-prefix": f"cancels-{type(cluster).__name__}"}
    with running_services(options, tmp_path, SECONDS) as running:
        throttlectl(running, "pause")
        yield running


def throttlectl(address: str, *arguments: str, status: int = 0) -> tuple[str, str]:
    command = [
        sys.executable,
        "-m",
        "autothrottle_client.throttlectl",
        *arguments,
        "--addr",
        address,
        "--timeout",
        "60",
    ]
    for _ in range(ATTEMPTS):  # a controller that was just killed answers nothing until another one is elected
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode != EXIT_UNAVAILABLE:
            break
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout, done.stderr


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("moves")
def test_no_partition_is_cancelled_onto_dead_or_lagging_replicas(address: str, cluster: KafkaCluster) -> None:
    """Both original replicas were dead, and `cancel` reported success; the partition was offline afterwards.

    3.9 does that in ZooKeeper mode, and 4.3 does it where unclean leader elections are enabled.
    """
    for broker_id in DEAD:
        cluster.kill_broker(broker_id)
    # Kafka considers them alive until their sessions expire. If the controller is among them, nothing is known before.
    output, problems = throttlectl(address, "cancel", TWO, status=1)
    is_controller_alive = "0 of 1 partitions cancelled" in output
    assert is_controller_alive or "nothing was cancelled, because its safety cannot be checked now" in problems
    if is_controller_alive:
        assert f"{TWO}-0 was not cancelled" in problems
        assert re.search("broker 1001 (does not answer|is down)", problems), problems

    eventually(lambda: all(not {*DEAD} & {*state(cluster, topic).isr} for topic in ORIGINALS), SECONDS)
    output, problems = throttlectl(address, "cancel", *ORIGINALS, status=1)
    assert "1 of 3 partitions cancelled" in output
    assert f"{TWO}-0 was not cancelled: it needs 1 of its original replicas [1001, 1002]" in problems
    assert "broker 1001 is down, broker 1002 is down (min.insync.replicas is 2, 1 in sync now)" in problems
    # One of three is in sync, and two are needed.
    assert f"{THREE}-0 was not cancelled: it needs 2 of its original replicas" in problems
    moving = {topic: bool(state(cluster, topic).adding_replicas) for topic in ORIGINALS}
    assert moving == {TWO: True, THREE: True, ONE: False}
    assert state(cluster, TWO).leader == 1003 and state(cluster, THREE).leader in (1003, 1005)
    assert state(cluster, ONE).in_sync

    for broker_id in DEAD:
        cluster.start_broker(broker_id)
    eventually(lambda: all({*DEAD} <= {*state(cluster, topic).isr} for topic in (TWO, THREE)), SECONDS)
    output, _ = throttlectl(address, "cancel", "--all", "--yes")
    assert "2 of 2 partitions cancelled" in output
    cluster.wait_until_in_sync(ORIGINALS)
    assert {topic: {*state(cluster, topic).replicas} for topic in ORIGINALS} == {
        topic: {*replicas} for topic, replicas in ORIGINALS.items()
    }

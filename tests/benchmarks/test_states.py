"""CPU time of discovery for the first read of 100,000 partitions in reassignment, without other services."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.kafka_zookeeper.snapshots import ZooKeeperSnapshots
from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.benchmarks.big_cluster import LARGE, BigCluster, RoomyZooKeeper
from tests.benchmarks.figures import Figures

RUNS = 5
TIMEOUT = timedelta(seconds=120)


@pytest.mark.usefixtures("collected_rarely")
def test_first_snapshot_during_a_reassignment(figures: Figures, tmp_path: Path) -> None:
    with RoomyZooKeeper(tmp_path / "zookeeper") as server:
        controller = connect(server.connect, TIMEOUT, TIMEOUT)
        cluster = BigCluster(controller, LARGE)
        cluster.build()
        cluster.start_reassignment()
        runs = [first_read_seconds(server, cluster) for _ in range(RUNS)]
        disconnect(controller)
    figures.add("discovery start during a reassignment: first full read", str(LARGE), "CPU s", runs)


def first_read_seconds(server: ZooKeeperServer, cluster: BigCluster) -> float:
    """Return the CPU seconds from the connection to the first snapshot; other load on the machine does not count."""
    start = time.process_time()
    client = connect(server.connect, TIMEOUT, TIMEOUT)
    source = ZooKeeperSnapshots(client, cluster.kafka, cluster.own)
    try:
        snapshot = source.fetch_snapshot(timeout=TIMEOUT)
        taken = time.process_time() - start
    finally:
        source.close()
        disconnect(client)
    assert snapshot.reassignments == cluster.reassignments
    return taken

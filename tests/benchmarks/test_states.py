"""What discovery has to do to see 100,000 partitions that move, without any other service."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.adapters.zookeeper.snapshots import ZooKeeperSnapshots
from autothrottle.lab.zookeeper import ZooKeeperServer
from tests.benchmarks.big_cluster import LARGE, BigCluster, RoomyZooKeeper
from tests.benchmarks.figures import Figures

RUNS = 5
TIMEOUT = timedelta(seconds=120)


@pytest.mark.usefixtures("collected_rarely")
def test_the_first_reading_amid_a_move(figures: Figures, tmp_path: Path) -> None:
    with RoomyZooKeeper(tmp_path / "zookeeper") as server:
        controller = connect(server.connect, TIMEOUT, TIMEOUT)
        cluster = BigCluster(controller, LARGE)
        cluster.build()
        cluster.start_move()
        runs = [timed_reading(server, cluster) for _ in range(RUNS)]
        disconnect(controller)
    figures.add("discovery starts amid a move: reads everything", str(LARGE), "CPU s", runs)


def timed_reading(server: ZooKeeperServer, cluster: BigCluster) -> float:
    """Return the CPU seconds, since others may keep the machine busy, from the connection to the first snapshot."""
    start = time.process_time()
    client = connect(server.connect, TIMEOUT, TIMEOUT)
    source = ZooKeeperSnapshots(client, cluster.kafka, cluster.own)
    try:
        snapshot = source.fetch_snapshot(timeout=TIMEOUT)
        taken = time.process_time() - start
    finally:
        source.close()
        disconnect(client)
    assert snapshot.reassignments == cluster.moves
    return taken

"""Recoveries on real Kafka while one of three `autothrottle run` is killed every 20 s, for ten minutes."""

from __future__ import annotations

from pathlib import Path

from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import scratch_directory
from tests.system.test_state_in_kafka import recover_while_processes_die
from tests.system.version_matrix import SMALL_FETCHES


def test_recoveries_stay_throttled_for_ten_minutes(tmp_path: Path) -> None:
    with (
        scratch_directory() as directory,
        KraftCluster(directory, (1001, 1002, 1003, 1004), broker_properties=SMALL_FETCHES) as cluster,
    ):
        recover_while_processes_die(cluster, tmp_path, kills=30)

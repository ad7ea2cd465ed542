"""`topicmappr apply` on 500 brokers, 200,000 partitions and 40 pools. Limits: 10 s CPU and 1 GB; 20 s for a repair."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import pytest

from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.topicmappr.cluster_file import format_cluster
from autothrottle.topicmappr.command_line import main

POOLS, BROKERS, TOPICS, PARTITIONS = 40, 12, 50, 100
LOST_POOLS, LOST_BROKERS = 10, 3


def members(pool: int) -> list[int]:
    return [1000 + pool * BROKERS + number for number in range(BROKERS)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pools")
    brokers = {1000 + number: PlacementBroker(1000 + number, "abc"[number % 3]) for number in range(500)}
    partitions = tuple(
        PartitionReplicas(
            f"p{pool}-{topic:02}", number, tuple(ids[(number + step) % BROKERS] for step in range(3)), 10**9
        )
        for pool, ids in sorted(((pool, members(pool)) for pool in range(POOLS)), key=lambda each: f"p{each[0]}-")
        for topic in range(TOPICS)
        for number in range(PARTITIONS)
    )
    lost = {id for pool in range(LOST_POOLS) for id in members(pool)[:LOST_BROKERS]}
    (path / "all.json").write_text(format_cluster(PlacementCluster(brokers, partitions)))
    rest = {id: broker for id, broker in brokers.items() if id not in lost}
    (path / "rest.json").write_text(format_cluster(PlacementCluster(rest, partitions)))
    tables = [f'[pools.p{n}]\ntopics = ["p{n}-.*"]\nbrokers = {members(n)}\nreplication = 3\n' for n in range(POOLS)]
    (path / "pools.toml").write_text("\n".join(tables))
    return path


def apply(directory: Path, cluster: str, *flags: str) -> tuple[int, float]:
    """Run `topicmappr apply`; return its exit status and its CPU seconds."""
    start = time.process_time()
    arguments = ["apply", str(directory / "pools.toml"), "--cluster-file", str(directory / cluster), *flags]
    status = main([*arguments, "--out-path", str(directory / "maps"), "--json"])
    return status, time.process_time() - start


def test_a_check_of_a_large_cluster(directory: Path) -> None:
    status, seconds = apply(directory, "all.json", "--check")
    print(f"check: {seconds:.1f} s CPU, peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    assert status == 0
    assert seconds <= 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 10**6


def test_thirty_lost_brokers_are_repaired_in_one_run(directory: Path) -> None:
    """Three of every twelve replicas were on lost brokers, and only those move."""
    status, seconds = apply(directory, "rest.json", "--repair-lost")
    print(f"repair: {seconds:.1f} s CPU")
    assert status == 0
    assert seconds <= 20
    maps = [json.loads(file.read_text())["partitions"] for file in (directory / "maps").glob("*.json")]
    assert len(maps) == LOST_POOLS
    moved = sum(len(entry["replicas"]) == 3 for entries in maps for entry in entries)
    assert 0 < moved <= LOST_POOLS * TOPICS * PARTITIONS

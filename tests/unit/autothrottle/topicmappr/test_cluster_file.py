"""Cluster files, read and written."""

from __future__ import annotations

import json

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.topicmappr.cluster_file import format_cluster, parse_cluster

CLUSTER = PlacementCluster(
    {
        1: PlacementBroker(1, "a", 50),
        2: PlacementBroker(2, "", None, cordoned=True),
        3: PlacementBroker(3, "b", 0),
    },
    (PartitionReplicas("t", 0, (1, 2), 7), PartitionReplicas("t", 1, (2, -1), None)),
    {1: 100},
)


def test_a_written_cluster_is_read() -> None:
    assert parse_cluster(format_cluster(CLUSTER)) == CLUSTER


def test_brokers_without_replicas_are_spares() -> None:
    assert json.loads(format_cluster(CLUSTER))["spares"] == [3]


def test_other_keys_are_ignored() -> None:
    value = json.loads(format_cluster(CLUSTER)) | {"case": "small", "seed": 1}
    assert parse_cluster(json.dumps(value)) == CLUSTER


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "no list 'brokers'"),
        ('{"brokers":[]}', "no list 'partitions'"),
        ('{"brokers":[{"id":-1}],"partitions":[]}', "brokers.0..id"),
        ('{"brokers":[{"id":1},{"id":1}],"partitions":[]}', "twice"),
        ('{"brokers":[{"id":1,"rack":5}],"partitions":[]}', "rack"),
        ('{"brokers":[{"id":1,"storage_free":1.5}],"partitions":[]}', "storage_free"),
        ('{"brokers":[],"partitions":[{"topic":"t","partition":0,"replicas":["1"]}]}', "replicas"),
        ('{"brokers":[],"partitions":[{"topic":"","partition":0,"replicas":[1]}]}', "topic"),
        ('{"brokers":[],"partitions":[{"topic":"t","replicas":[1]}]}', "partition"),
    ],
)
def test_a_malformed_file_is_refused_with_the_entry(text: str, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        parse_cluster(text)

"""Names of topics are checked at every door: they become paths of znodes and of files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autothrottle.adapters.state_store.state_copy import parse_copy
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.topicmappr.cluster_file import parse_cluster
from autothrottle.topicmappr.command_line import main
from autothrottle.topicmappr.map_files import map_files
from autothrottle.v1 import discovery_pb2, types_pb2
from autothrottle.wire.common import partitions_from_messages, partitions_from_topics, targets_from_messages
from autothrottle.wire.discovery import log_sizes_request_from_message, validate_topics
from autothrottle_client.reassignments import parse_reassignment

NO_NAMES = ["../../escaped/x", "/x/y", "..", ".", "a b", "a\n", "a\x00", "ä", "x" * 250, "a/b", "-phase0/../x"]


def reassignment(topic: str) -> str:
    return json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]})


def cluster(topic: str) -> str:
    return json.dumps({"brokers": [{"id": 1}, {"id": 2}], **json.loads(reassignment(topic))})


DOORS: dict[str, Callable[[str], object]] = {
    "reassignment file": lambda topic: parse_reassignment(reassignment(topic)),
    "cluster file": lambda topic: parse_cluster(cluster(topic)),
    "targets": lambda topic: targets_from_messages([types_pb2.PartitionTarget(topic=topic, replicas=[1])]),
    "partitions": lambda topic: partitions_from_messages([types_pb2.TopicPartition(topic=topic)]),
    "snapshot": lambda topic: partitions_from_topics([discovery_pb2.TopicPartitions(topic=topic, partitions=[0])]),
    "settings": lambda topic: validate_topics([topic]),
    "log sizes": lambda topic: log_sizes_request_from_message(
        discovery_pb2.GetLogSizesRequest(
            brokers=[
                discovery_pb2.BrokerPartitions(
                    broker_id=1, partitions=[discovery_pb2.TopicPartitions(topic=topic, partitions=[0])]
                )
            ]
        )
    ),
    "map files": lambda topic: map_files([(PartitionReplicas(topic, 0, (1,)),)], ""),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_name_that_kafka_refuses_enters_nowhere(door: str) -> None:
    """`../../escaped/x` came through map strings, cluster files, REST and gRPC, although Kafka refuses such a name."""
    for name in NO_NAMES:
        with pytest.raises(Invalid, match="is not the name of a topic; give 1 to 249 letters"):
            DOORS[door](name)
    for name in ("orders", "a.b_c-D0", "...", "x" * 249):
        DOORS[door](name)


@pytest.mark.parametrize("name", ["../../escaped/x", "/x/y"])
@pytest.mark.parametrize("source", ["--map-string", "--cluster-file"])
def test_no_map_is_written_outside_of_its_directory(
    name: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a topic became the path of its map, so that a cluster file of someone else wrote anywhere."""
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    Path("cluster.json").write_text(cluster(name))
    inputs = {
        "--map-string": ["--map-string", reassignment(name), "--use-meta=false"],
        "--cluster-file": ["--cluster-file", "cluster.json", "--topics", ".*"],
    }
    assert main(["rebuild", *inputs[source], "--brokers", "2", "--out-path", "maps"]) == 1
    assert repr(name) in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [home / "cluster.json"]


def test_two_maps_never_share_a_file() -> None:
    """With `--out-file orders` the map of the topic orders replaced the combined map."""
    partitions = (PartitionReplicas("orders", 0, (1,)), PartitionReplicas("other", 0, (1,)))
    with pytest.raises(Invalid, match=r"orders.json is the combined map and the map of a topic"):
        map_files([partitions], "orders")
    assert len(map_files([partitions], "all")) == 3
    assert [file.combined for file in map_files([partitions[:1]], "orders")] == [True], "both maps are equal"


@pytest.mark.parametrize("path", ["../brokers/ids/1", "/ledger", "a//b", "pause/.", "a\x00"])
def test_a_copy_of_the_state_writes_only_below_our_root(path: str) -> None:
    content = {"version": 1, "fence": 1, "nodes": {path: "{}"}, "audit": []}
    with pytest.raises(Invalid, match="is not the path of a node"):
        parse_copy(json.dumps(content))
    assert parse_copy(json.dumps(content | {"nodes": {"ledger/brokers/1": "{}"}})).nodes

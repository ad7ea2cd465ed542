"""`topicmappr apply` and `topicmappr pools`: output, exit status, and a message for each fault of the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.capacity.pools import pool_plans
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.runtime.pools_file import format_pools, members_of, read_pools, schema
from autothrottle.topicmappr.cluster_file import format_cluster
from autothrottle.topicmappr.command_line import main
from autothrottle.topicmappr.pools import derived_pools
from tests.paths import ROOT

EXAMPLE = ROOT / "deploy/pools.toml"
GB = 10**9


def placed(topic: str, brokers: Sequence[int], replicas: int, size: int = GB) -> list[PartitionReplicas]:
    return [
        PartitionReplicas(topic, n, tuple(brokers[(n + step) % len(brokers)] for step in range(replicas)), size)
        for n in range(10)
    ]


@pytest.fixture
def cluster() -> PlacementCluster:
    """The cluster that the example file describes, and a topic that no pool names."""
    brokers = {id: PlacementBroker(id, "abc"[id % 3], 10**12) for id in range(1001, 1011)}
    partitions = [
        *placed("latency_testing", range(1006, 1011), 2),
        *placed("load_testing", range(1006, 1011), 2),
        *placed("other", range(1001, 1004), 1),
        *(PartitionReplicas("test_topic1", n, (1001 + n % 3, 1004, 1005), GB) for n in range(3) if n),
    ]
    return PlacementCluster(brokers, tuple(sorted(partitions)))


class Directory:
    """A directory with a cluster file and a pools file."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self._capsys = path, capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run topicmappr on the cluster file; return the exit status, the output and the errors."""
        where = ("--out-path", str(self.path / "maps")) if arguments[0] == "apply" else ()
        status = main((*arguments, "--cluster-file", str(self.path / "cluster.json"), *where))
        output = self._capsys.readouterr()
        return status, output.out, output.err

    def apply(self, text: str, *flags: str) -> tuple[int, str, str]:
        path = self.path / "pools.toml"
        path.write_text(text)
        return self.run("apply", str(path), *flags)

    def maps(self) -> set[str]:
        return {file.name for file in (self.path / "maps").glob("*")}


@pytest.fixture
def directory(tmp_path: Path, cluster: PlacementCluster, capsys: pytest.CaptureFixture[str]) -> Directory:
    (tmp_path / "cluster.json").write_text(format_cluster(cluster))
    return Directory(tmp_path, capsys)


def test_a_cluster_as_its_file_says_has_no_drift(directory: Directory) -> None:
    status, output, _ = directory.apply(EXAMPLE.read_text(), "--check")
    assert status == 0
    assert output.splitlines() == [
        "pool1: 2 partitions: as its file says",
        "pool2: 20 partitions: as its file says",
        "In no pool: other",
    ]


def replaced_id(text: str) -> str:
    return text.replace("1009, 1010]\nreplication = 2", "1009, 1001]\nshared = true\nreplication = 2").replace(
        "[pools.pool1]\n", "[pools.pool1]\nshared = true\n"
    )


def test_a_check_writes_nothing_and_exits_with_3_on_drift(directory: Directory) -> None:
    status, output, _ = directory.apply(replaced_id(EXAMPLE.read_text()), "--check", "--json")
    assert (status, directory.maps()) == (3, set())
    value = json.loads(output)
    assert value["drift"] and [len(pool["changes"]) for pool in value["pools"]] == [0, 8]
    assert value["pools"][1]["copied_bytes"] == 8 * GB
    assert value["topics_in_no_pool"] == ["other"]


def test_apply_writes_a_map_of_each_pool_that_changes(directory: Directory) -> None:
    status, output, _ = directory.apply(replaced_id(EXAMPLE.read_text()))
    assert (status, directory.maps()) == (0, {"pool2.json"})
    assert "  New broker 1001\n  Broker 1010 marked for removal\n" in output
    entries = json.loads((directory.path / "maps/pool2.json").read_text())["partitions"]
    assert len(entries) == 8 and all(1001 in entry["replicas"] for entry in entries)


def test_apply_names_the_partitions_that_lose_replicas(directory: Directory) -> None:
    """`replication = 1` wrote a map that cuts all partitions of a pool, and said only how many change."""
    text = EXAMPLE.read_text().replace("replication = 2", "replication = 1")
    _, out, _ = directory.apply(text)
    assert (
        "  WARN: latency_testing-0, latency_testing-1, latency_testing-2 and 17 more would have 1 replica instead of 2"
        "; to submit it nevertheless: --allow-fewer-replicas\n"
    ) in out
    assert "WARN" not in directory.apply(EXAMPLE.read_text())[1]


def test_a_pool_that_is_refused_has_a_line_that_can_be_read(directory: Directory, cluster: PlacementCluster) -> None:
    """A pool of 10,000 partitions without a third broker printed one line with 10,000 refusals."""
    brokers = {id: cluster.brokers[id] for id in (1001, 1002, 1004)}
    (directory.path / "cluster.json").write_text(format_cluster(replace(cluster, brokers=brokers)))
    pool = '[pools.a]\ntopics = ["latency_testing"]\nbrokers = [1001, 1006]\nreplication = 2\n'
    status, output, _ = directory.apply(pool, "--repair-lost")
    assert status == 1
    first, *reasons = output.splitlines()[:5]
    assert first == "a: 10 partitions: refused"
    assert reasons[-1] == "  and 7 more reasons" and len(set(reasons)) == 4


def test_partitions_without_a_size_have_no_bytes_to_copy(directory: Directory, cluster: PlacementCluster) -> None:
    """Without metrics, sizes are unknown. The report said that 0 bytes were to copy."""
    partitions = tuple(entry._replace(size=None) for entry in cluster.partitions)
    (directory.path / "cluster.json").write_text(format_cluster(replace(cluster, partitions=partitions)))
    pool = '[pools.a]\ntopics = ["latency_testing"]\nbrokers = [1006, 1007, 1008, 1009]\n'
    _, output, _ = directory.apply(pool, "--check")
    assert "4 change, an unknown size to copy" in output
    assert "The sizes of 4 partitions to copy are unknown" in output


def test_a_pool_that_is_refused_leaves_the_others_alone(
    tmp_path: Path, cluster: PlacementCluster, directory: Directory
) -> None:
    """Rack b is lost. Pool 1 has too few racks then, and pool 2 is repaired."""
    brokers = {id: broker for id, broker in cluster.brokers.items() if broker.rack != "b" or id in (1006, 1009)}
    (tmp_path / "cluster.json").write_text(format_cluster(replace(cluster, brokers=brokers)))
    text = EXAMPLE.read_text().replace("replication = 3", "replication = 2")
    waiting, output, _ = directory.apply(text, "--check")
    assert waiting == 3 and "Brokers 1003 are not in the cluster, and their replicas stay" in output
    status, output, _ = directory.apply(text, "--repair-lost")
    assert (status, directory.maps()) == (0, {"pool1.json"})


FAULTS = {
    "no TOML": ("[pools.a\n", ["is not TOML"]),
    "empty": ("", ["has no pool"]),
    "an empty pool": ("[pools.a]\n", ["line 1, pools.a: topics is absent", "line 1, pools.a: brokers is absent"]),
    "no topics": ("\n[pools.a]\nbrokers = [1001]\ntopics = []\n", ["line 4, pools.a.topics: [] is not a list"]),
    "an unknown key": (
        '[pools.a]\ntopics = ["other"]\nbrokers = [1001]\nbroker = 1\n',
        ["line 4, pools.a.broker: unknown"],
    ),
    "an unknown table": ('[pool.a]\ntopics = ["other"]\n', ["line 1, pool: unknown"]),
    "values": (
        '[pools.a]\ntopics = ["other", "other"]\nbrokers = [1001, -1]\nplacement = "even"\nlimits = { storage = 0 }\n'
        'shared = "yes"\nreplication = 1000\nfan_out = -1\nowner = 7\n',
        [f"line {line}, pools.a." for line in range(2, 10)],
    ),
    "a topic in two pools": (
        '[pools.a]\ntopics = ["other"]\nbrokers = [1001]\n\n[pools.b]\ntopics = ["oth.*"]\nbrokers = [1002]\n',
        ["line 6, pools.b.topics: also in pool a: other"],
    ),
    "a broker in two pools": (
        '[pools.a]\ntopics = ["other"]\nbrokers = [1001]\n[pools.b]\ntopics = ["test_topic1"]\nbrokers = [1001]\n',
        ["line 3, pools.a.brokers: also in pool b: 1001", "line 6, pools.b.brokers: also in pool a: 1001"],
    ),
    "too few racks": (
        '[pools.a]\ntopics = ["other"]\nbrokers = [1001, 1004]\nreplication = 2\n',
        ["line 3, pools.a.brokers: 1 racks are fewer than 2 replicas"],
    ),
    "no match": ('[pools.a]\ntopics = ["x.*"]\nbrokers = [1001]\n', ["line 2, pools.a.topics: 'x.*' matches no topic"]),
    "no expression": ('[pools.a]\ntopics = ["("]\nbrokers = [1001]\n', ["line 2, pools.a.topics: topic pattern '('"]),
    "a rule without a broker": (
        '[pools.a]\ntopics = ["other"]\nbrokers = { racks = ["z"] }\n',
        ["line 3, pools.a.brokers: the rule matches no"],
    ),
    "instances": (
        '[pools.a]\ntopics = ["other"]\nbrokers = [1001]\n[instances.x]\nbrokers = [1]\nstorage = "1"\n'
        'network_in = "1Gbit/s"\n[instances.y]\nbrokers = [1]\nstorage = "1TB"\nnetwork_in = "1Gbit/s"\n'
        'network_out = "1Gbit/s"\n',
        [
            "line 6, instances.x.storage: '1' is not a size",
            "line 4, instances.x: network_out is absent",
            "line 9, instances.y.brokers: broker 1 is of the type x, too",
        ],
    ),
    # A header of an array had line 1, and the message about fan_out excluded 0, which is a valid value.
    "an array, and a negative fan-out": (
        '[pools.a]\ntopics = ["other"]\nbrokers = [1001]\nfan_out = -1\n\n[[pools.b]]\n',
        ["line 4, pools.a.fan_out: -1 is out of range. Fix: a number from 0", "line 6, pools.b: not a table"],
    ),
}


@pytest.mark.parametrize(("text", "messages"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_has_one_message_with_its_line_and_nothing_is_written(
    text: str, messages: list[str], directory: Directory
) -> None:
    status, output, error = directory.apply(text)
    assert (status, output, directory.maps()) == (2, "", set())
    assert [message for message in messages if message not in error] == []
    assert error.count("\n  - ") == error.count("Fix: ") == len(messages)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("apply",), "apply has no file"),
        (("apply", str(EXAMPLE), "--check", "--execute"), "leave one out"),
        (("apply", "absent.toml"), "cannot be read"),
        (("pools",), "pools needs one of"),
        (("pools", "fit"), "pools needs one of"),
    ],
)
def test_wrong_usage_is_named(flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 2
    assert message in capsys.readouterr().err


def test_status_shows_the_dimension_that_limits_each_pool(directory: Directory) -> None:
    status, output, _ = directory.run("pools", "status", "--pools", str(EXAMPLE))
    assert status == 0
    rows = [line.split() for line in output.splitlines()]
    assert rows[1] == ["pool1", "5", "1", "0.1%", "unknown", "unknown", "storage"]
    assert rows[2] == ["pool2", "5", "2", "0.6%", "unknown", "unknown", "storage"]


def test_fit_names_the_pool_and_the_reason(directory: Directory) -> None:
    flags = ("--bytes-in", "100MB/s", "--retention", "1", "--replication", "2", "--pools", str(EXAMPLE))
    status, output, _ = directory.run("pools", "fit", "new", *flags)
    assert status == 0
    assert output == "new: pool1 16.0% (network in); with it, the others would be fuller: pool2 16.0% (network in)\n"
    flags = ("--bytes-in", "700MB/s", *flags[2:])
    _, output, _ = directory.run("pools", "fit", "new", *flags)
    assert output.startswith(
        "new: pool1 112.2% (network in), which is over its limit: 6 brokers like its 5 would do; with it, "
    )
    missing, _, error = directory.run("pools", "fit", "new", "--pools", str(EXAMPLE))
    assert missing == 1 and "topic new does not exist. Fix: " in error


def test_a_new_topic_needs_a_retention_and_a_name_of_its_own(directory: Directory) -> None:
    """Without --retention, a new topic needed no storage, and one that exists was counted twice.

    Both answers looked like those of a topic that fits.
    """
    fit = ("pools", "fit", "new", "--bytes-in", "1MB/s", "--pools", str(EXAMPLE))
    status, _, error = directory.run(*fit)
    assert status == 2 and "retention is not given, and --bytes-in is" in error
    status, _, error = directory.run(*fit[:2], "other", *fit[3:], "--retention", "1")
    assert status == 1 and "topic other exists" in error


def test_pack_prints_what_moves_and_its_bytes(directory: Directory) -> None:
    status, output, _ = directory.run("pools", "pack", "--pools", str(EXAMPLE), "--json")
    value = json.loads(output)
    assert status == 0
    assert {move["topic"]: move["from"] for move in value["moves"]}["other"] is None
    assert value["highest_use"] <= 1.05 * value["lowest_possible_use"]
    assert value["moved_bytes"] == sum(move["bytes"] for move in value["moves"])


def test_the_schema_beside_the_example_is_current() -> None:
    assert json.loads((ROOT / "deploy/pools.schema.json").read_text()) == schema()


def test_exported_pools_are_the_cluster(directory: Directory) -> None:
    status, output, _ = directory.run("pools", "export")
    assert status == 0
    assert '[pools.pool1]\ntopics = ["other"]\n' in output
    checked, report, _ = directory.apply(output, "--check")
    assert checked == 0, report


@given(
    st.dictionaries(
        st.sampled_from(["a", "b.c", "d-e", "f", "g"]),
        st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True), min_size=1, max_size=3),
        min_size=1,
    )
)
def test_any_cluster_equals_its_exported_pools(
    tmp_path_factory: pytest.TempPathFactory, sets: dict[str, list[list[int]]]
) -> None:
    partitions = sorted(
        PartitionReplicas(topic, number, tuple(replicas))
        for topic, rows in sets.items()
        for number, replicas in enumerate(rows)
    )
    cluster = PlacementCluster({id: PlacementBroker(id, "aab"[id % 3]) for id in range(1, 7)}, tuple(partitions))
    path = tmp_path_factory.mktemp("pools") / "pools.toml"
    path.write_text(format_pools(derived_pools(cluster)))
    pools, source = read_pools(str(path))
    members = members_of(pools, source, cluster)
    assert members.unpooled == ()
    assert not pool_plans(pools, members, cluster.partitions, cluster.brokers).has_drift

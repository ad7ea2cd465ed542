"""topicmappr's commands on cluster files: output, files, exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autothrottle import __version__
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.topicmappr.cluster_file import format_cluster
from autothrottle.topicmappr.command_line import main

GB = 2**30
SEED_MAP = (
    '{"version":1,"partitions":[{"topic":"test_topic","partition":0,"replicas":[1001,1002]},'
    '{"topic":"test_topic","partition":1,"replicas":[1002,1001]}]}'
)


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cluster_file(cluster: PlacementCluster, path: str = "cluster.json") -> str:
    Path(path).write_text(format_cluster(cluster))
    return path


def cluster(*partitions: PartitionReplicas, brokers: int = 4, free: int | None = None) -> PlacementCluster:
    ids = range(1001, 1001 + brokers)
    return PlacementCluster({id: PlacementBroker(id, f"r{id}", free) for id in ids}, partitions)


def row(topic: str, partition: int, *replicas: int, size: int | None = None) -> PartitionReplicas:
    return PartitionReplicas(topic, partition, replicas, size)


@pytest.fixture
def seed() -> str:
    """The example of the article about Kafka-Kit."""
    sets = [(1001, 1002), (1002, 1001)] * 2
    return cluster_file(cluster(*(row("test_topic", number, *replicas) for number, replicas in enumerate(sets))))


@pytest.fixture
def uneven() -> str:
    """Broker 1001 holds everything, and four racks."""
    rows = [row("a", number, 1001, size=GB) for number in range(4)] + [row("b", 0, 1001, size=4 * GB)]
    base = cluster(*rows, free=10 * GB)
    brokers = {**base.brokers, 1001: PlacementBroker(1001, "r1001", 2 * GB)}
    return cluster_file(PlacementCluster(brokers, base.partitions))


def test_rebuild_of_the_example(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["rebuild", "--topics", "test_topic", "--brokers=1001,1003,1004", "--force-rebuild"]
    assert main([*arguments, "--cluster-file", seed]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Topics:\n  test_topic\n"
        "Broker change summary:\n"
        "  Broker 1002 marked for removal\n  New broker 1003\n  New broker 1004\n  -\n"
        "  Replacing 1, added 2, missing 0, total count changed by 1\n"
        "Action:\n  Rebuild topic with 1 broker(s) marked for replacement\n  Force rebuilding map\n"
        "Partition map changes:\n  test_topic p0: [1001 1002] -> ["
    )
    assert "Broker distribution:\n  degree [min/max/avg]: 1/1/1.00 -> 2/2/2.00\n  -\n  Broker 1001 - leader: " in out
    assert out.endswith("WARN:\n  [none]\nNew partition maps:\n  test_topic.json\n")
    leaders = [int(line.split("leader: ")[1].split(",")[0]) for line in out.splitlines() if "leader: " in line]
    totals = [int(line.split("total: ")[1]) for line in out.splitlines() if "total: " in line]
    assert (sorted(leaders), sorted(totals)) == ([1, 1, 2], [2, 3, 3])


def test_the_old_spelling_does_the_same_and_prints_the_new_form(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    rest = ["--brokers=1001,1003,1004", "--force-rebuild", "--cluster-file", seed]
    assert main(["rebuild", "--topics", "test_topic", *rest]) == 0
    new = capsys.readouterr()
    assert main(["--rebuild-topics", "test_topic", *rest]) == 0
    old = capsys.readouterr()
    assert old.out == new.out
    assert old.err == (
        "--rebuild-topics is an old spelling. The new form: topicmappr rebuild --topics test_topic "
        "--brokers=1001,1003,1004 --force-rebuild --cluster-file cluster.json\n"
    )


def test_the_old_spelling_after_other_options_keeps_its_value(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After the command and an option, the next word was not taken as the value: the topics were `--brokers`."""
    rest = ["--brokers=1001,1003,1004", "--cluster-file", seed]
    assert main(["rebuild", *rest, "--rebuild-topics", "test_topic"]) == 0
    assert "topicmappr rebuild --topics test_topic --brokers=" in capsys.readouterr().err


def test_map_files_are_those_of_kafkas_tool(seed: str, in_own_directory: Path) -> None:
    arguments = ["rebuild", "--topics", ".*", "--brokers", "1001,1003", "--cluster-file", seed, "--out-path", "maps"]
    assert main([*arguments, "--out-file", "combined"]) == 0
    text = (in_own_directory / "maps" / "test_topic.json").read_text()
    rows = [
        {"topic": "test_topic", "partition": n, "replicas": r} for n, r in enumerate([[1001, 1003], [1003, 1001]] * 2)
    ]
    assert text == json.dumps({"version": 1, "partitions": rows}, separators=(",", ":")) + "\n"
    assert (in_own_directory / "maps" / "combined.json").read_text() == text
    assert (in_own_directory / "maps" / "combined.json").stat().st_mode & 0o777 == 0o644


def test_a_file_that_cannot_be_written_fails(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The original printed a write error and exited with status 0, so that scripts went on without a map.

    A write error is a failure (T10)."""
    arguments = ["rebuild", "--topics", ".*", "--brokers", "-1", "--cluster-file", seed, "--out-path", seed]
    assert main(arguments) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_map_string_without_metadata_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    """The original always connected to ZooKeeper, even if all its input was on the command line.

    With a map and without metadata, nothing is connected (T12)."""
    offline = ["--zk-addr", "127.0.0.1:1", "--kafka-addr", "127.0.0.1:1"]
    assert main(["rebuild", "--map-string", SEED_MAP, "--use-meta=false", "--brokers", "1001,1003", *offline]) == 0
    assert "test_topic p1: [1002 1001] -> [1003 1001] replaced broker\n" in capsys.readouterr().out


def test_a_map_string_may_name_log_directories(capsys: pytest.CaptureFixture[str], in_own_directory: Path) -> None:
    """Since Kafka 4.2, `kafka-reassign-partitions --generate` prints them (KAFKA-19582). The map was refused."""
    rollback = SEED_MAP.replace("}]", ',"log_dirs":["/data/1","/data/2"]}]')
    offline = ["--zk-addr", "127.0.0.1:1", "--kafka-addr", "127.0.0.1:1"]
    assert main(["rebuild", "--map-string", rollback, "--use-meta=false", "--brokers", "1001,1003", *offline]) == 0
    assert "test_topic p1: [1002 1001] -> [1003 1001] replaced broker\n" in capsys.readouterr().out
    assert "log_dirs" not in (in_own_directory / "test_topic.json").read_text()


def test_rebalance_prints_relocations_and_writes_only_changes(
    uneven: str, in_own_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rebalance", "--topics", ".*", "--brokers", "-2", "--cluster-file", uneven]) == 0
    out = capsys.readouterr().out
    assert "Brokers targeted for partition offloading (storage free below the mean):\n  1001\n" in out
    assert "Broker 1001 relocations planned:\n  [1.00GiB] a p0 -> " in out
    assert "Total relocation volume: 4.00GiB\n" in out
    assert "range spread: " in out
    written = json.loads((in_own_directory / "a.json").read_text())["partitions"]
    assert all(one["replicas"] != [1001] for one in written)


def test_scale_needs_new_brokers(uneven: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--topics", ".*", "--brokers", "-1", "--cluster-file", uneven]) == 1
    assert "additional brokers" in capsys.readouterr().err
    assert main(["scale", "--topics", ".*", "--brokers", "-1,1002", "--cluster-file", uneven]) == 0
    assert "New broker 1002\n  -\n  1 additional brokers added\n  OK\n" in capsys.readouterr().out


def test_warnings_prevent_a_map_unless_ignored(
    seed: str, in_own_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rebuild", "--topics", ".*", "--brokers", "1001,1002,9999", "--cluster-file", seed]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert "WARN:\n  1 listed broker is not in the cluster" in captured.out
    assert "Override with --ignore-warns." in captured.err
    assert not (in_own_directory / "test_topic.json").exists()
    assert main([*arguments, "--ignore-warns"]) == 0
    assert (in_own_directory / "test_topic.json").exists()


def test_json_holds_changes_statistics_and_files(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rebuild", "--topics", ".*", "--brokers", "1001,1003", "--cluster-file", seed, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["changes"][0] == {
        "topic": "test_topic",
        "partition": 0,
        "before": [1001, 1002],
        "after": [1001, 1003],
        "notes": ["replaced broker"],
        "bytes": None,
    }
    assert value["files"] == ["test_topic.json"]
    assert value["after"]["leader_spread"] == 0


def test_explain_gives_a_reason_for_each_replica_of_a_changed_partition(
    seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rebuild", "--topics", ".*", "--brokers", "1001,1003", "--cluster-file", seed, "--explain"]) == 0
    reasons = capsys.readouterr().out.split("Reasons:\n")[1].split("WARN:")[0].splitlines()
    assert len(reasons) == 8
    assert all(line.startswith("  test_topic p") for line in reasons)
    assert (
        main(["rebuild", "--topics", ".*", "--brokers", "1001,1003", "--cluster-file", seed, "--explain", "--json"])
        == 0
    )
    assert len(json.loads(capsys.readouterr().out)["reasons"]) == 8


@pytest.mark.parametrize("brokers", ["--brokers=-1,1004", "--brokers -1,1004", "-brokers -1,1004"])
def test_a_new_broker_without_a_replica_has_a_reason_and_unchanged_partitions_are_counted(
    uneven: str, brokers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small partitions stayed where they are. The report had a line for each, and no word about the new broker."""
    command = ["scale", "--topics", ".*", *brokers.split(), "--cluster-file", uneven, "--partition-size-threshold=9999"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "Partition map changes:\n  5 partitions unchanged\nMoveRatio: " in out
    assert (
        "Notes:\n  new broker 1004 without a replica: all partitions of broker 1001, which would offload, are smaller "
        "than the smallest one to move, 10.48 GB (partition-size-threshold)\n"
    ) in out
    assert main([*command, "--verbose"]) == 0
    assert capsys.readouterr().out.count(" no-op\n") == 5


def test_no_changes_write_no_map(seed: str, in_own_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["rebuild", "--topics", ".*", "--brokers", "-1", "--cluster-file", seed, "--skip-no-ops"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.endswith("No partition reassignments, skipping map generation\n")
    assert not (in_own_directory / "test_topic.json").exists()


def test_phases_have_numbered_files(seed: str, in_own_directory: Path) -> None:
    arguments = ["rebuild", "--topics", ".*", "--brokers", "1003,1004", "--cluster-file", seed]
    assert main([*arguments, "--phased-reassignment"]) == 0
    first, last = (json.loads((in_own_directory / f"test_topic-phase{n}.json").read_text()) for n in range(2))
    assert [one["replicas"][0] for one in first["partitions"]] == [1001, 1002, 1001, 1002]
    assert all(set(one["replicas"]) == {1003, 1004} for one in last["partitions"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["rebuild", "--topics", "t", "--brokers", "1", "--placement", "storage", "--use-meta=false"],
            "--use-meta=true",
        ),
        (["rebuild", "--topics", "absent", "--brokers", "-1"], "no topic matches absent; the cluster has 1 topics"),
        (["rebuild", "--topics", "(", "--brokers", "-1"], "not a regular expression"),
        (["rebuild", "--map-string", "{", "--brokers", "-1"], "not JSON"),
    ],
)
def test_wrong_options_fail_with_the_fix(
    seed: str, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--cluster-file", seed]) == 1
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["balance"], "unknown command 'balance'"),
        (["rebuild", "--toppics", "t"], "did you mean --topics?"),
        (["rebuild", "--placement", "size"], "must be one of count, storage"),
        (["rebuild", "--brokers", "1001,b"], "not a broker id"),
        (["export"], "topicmappr export cluster.json"),
    ],
)
def test_wrong_usage_has_status_2(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert problem in capsys.readouterr().err


def test_only_options_of_the_cluster_come_from_the_environment(
    seed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOPICMAPPR_CLUSTER_FILE", seed)
    monkeypatch.setenv("TOPICMAPPR_TOPICS", "test_topic")
    assert main(["rebuild", "--brokers", "-1"]) == 1
    captured = capsys.readouterr()
    assert "no topic is given; give --topics" in captured.err
    assert "TOPICMAPPR_TOPICS is unknown and ignored" in captured.err
    assert main(["rebuild", "--topics", ".*", "--brokers", "-1"]) == 0


def test_export_of_a_file_writes_the_same_cluster(seed: str, in_own_directory: Path) -> None:
    assert main(["export", "copy.json", "--cluster-file", seed]) == 0
    assert (in_own_directory / "copy.json").read_text() == Path(seed).read_text()


def test_a_cordoned_broker_receives_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    base = cluster(row("t", 0, 1001), row("t", 1, 1001))
    brokers = {**base.brokers, 1002: PlacementBroker(1002, "r1002", cordoned=True)}
    path = cluster_file(PlacementCluster(brokers, base.partitions))
    assert main(["rebuild", "--topics", "t", "--brokers", "1002,1003", "--cluster-file", path, "--json"]) == 0
    assert [one["after"] for one in json.loads(capsys.readouterr().out)["changes"]] == [[1003], [1003]]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["rebuild", "--help"], ["export", "-h"], ["version"]])
def test_help_and_version_succeed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert ("Usage: topicmappr" if "version" not in arguments else __version__) in capsys.readouterr().out


def test_decommission_empties_brokers_and_moves_nothing_else(
    seed: str, in_own_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decommission", "1002", "--cluster-file", seed]) == 0
    assert "Action:\n  Moving all replicas away from 1 broker(s)\n" in capsys.readouterr().out
    rows = json.loads((in_own_directory / "test_topic.json").read_text())["partitions"]
    assert len(rows) == 4
    assert all(1002 not in row["replicas"] and 1001 in row["replicas"] for row in rows)


def test_brokers_of_a_file_cannot_be_cordoned(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["decommission", "1002", "--execute"], ["uncordon", "1002"]):
        assert main([*arguments, "--cluster-file", seed]) == 1
        assert "cordoned; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["decommission"], ["uncordon", "b"], ["decommission", "--brokers", "1"]])
def test_a_missing_broker_has_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert f"topicmappr {arguments[0]} 1002" in capsys.readouterr().err


def racks_cluster(free: int | None = None, size: int | None = None) -> PlacementCluster:
    """Six brokers in three racks, and 40 partitions with one replica in each rack."""
    racks = dict(zip(range(1001, 1007), "abcabc", strict=True))
    rows = [row("t", n, 1001 + n % 3, 1001 + (n + 1) % 3, 1004 + (n + 2) % 3, size=size) for n in range(40)]
    return PlacementCluster({id: PlacementBroker(id, rack, free) for id, rack in racks.items()}, tuple(rows))


@pytest.mark.parametrize(
    "arguments",
    [
        ["rebuild", "--topics", "t", "--brokers", "1001,1002,1004,1005"],
        ["rebuild", "--topics", "t", "--brokers", "1001,1002,1004,1005", "--min-rack-ids", "3"],
        ["decommission", "1003,1006"],
    ],
)
def test_a_lost_rack_is_refused_and_then_allowed(
    arguments: list[str], in_own_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """40 of 40 partitions got two replicas in one rack. The report had no warning, and the exit status was 0."""
    arguments += ["--cluster-file", cluster_file(racks_cluster()), "--ignore-warns"]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    problem = "40 of 40 partitions would have two replicas in one rack, for example t p0, t p1, t p2: no broker that"
    assert f"WARN:\n  {problem} may receive replicas is in rack c; " in captured.out
    assert captured.out.count(problem) == 1 and problem not in captured.err, "each reason is printed once"
    assert captured.err.startswith("The plan is refused, for the reasons in WARN. ")
    assert "--ignore-warns does not change that" in captured.err
    assert not (in_own_directory / "t.json").exists()
    assert main([*arguments[:-1], "--allow-fewer-racks"]) == 0
    assert f"WARN:\n  {problem}" in capsys.readouterr().out
    assert len(json.loads((in_own_directory / "t.json").read_text())["partitions"]) == 40
    if "--min-rack-ids" not in arguments:
        assert main([*arguments[:-1], "--min-rack-ids", "2"]) == 0
        assert "WARN:\n  [none]" in capsys.readouterr().out


def test_lost_replicas_are_refused_despite_ignored_warnings(
    in_own_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--ignore-warns wrote maps with fewer replicas. It accepted every kind of warning at once."""
    path = cluster_file(racks_cluster(free=2 * GB, size=4 * GB))
    arguments = ["rebuild", "--topics", "t", "--brokers=-1,1009", "--replication", "4", "--placement", "storage"]
    assert main([*arguments, "--cluster-file", path, "--ignore-warns", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("The plan is refused, for the reasons in `refusals`. ")
    value = json.loads(captured.out)
    assert "storage is exhausted for a replica of 4.29 GB: broker 100" in value["refusals"][0]
    assert "lacks 2.15 GB (2.15 GB free)" in value["refusals"][0]
    assert (len(value["refusals"]), len(value["warnings"])) == (40, 41)
    assert not (in_own_directory / "t.json").exists()


def test_a_rise_of_the_storage_range_does_not_stop_a_decommission(capsys: pytest.CaptureFixture[str]) -> None:
    """The range grows where a rack takes the replicas of its own broker. The command ended with a warning, no map."""
    path = cluster_file(racks_cluster(free=500 * GB, size=GB))
    assert main(["decommission", "1006", "--cluster-file", path]) == 0
    out = capsys.readouterr().out
    assert "Notes:\n  the range of free storage grows from 0 bytes to " in out
    assert "WARN:\n  [none]\n" in out


def test_a_pattern_with_a_comma_excludes_its_topics_and_one_without_a_match_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The pattern was split at its comma. It excluded nothing, and the plan moved the topics with exit status 0."""
    rows = [row("tmp-1", 0, 1001), row("orders", 0, 1001)]
    arguments = ["rebuild", "--topics", ".*", "--brokers", "1002", "--cluster-file", cluster_file(cluster(*rows))]
    assert main([*arguments, "--topics-exclude", "tmp-[0-9]{1,3},audit.*"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Topics:\n  orders\nTopics excluded:\n  tmp-1\n")
    assert "Notes:\n  --topics-exclude 'audit.*' matches no topic\n" in out
    assert "MoveRatio: 0.500 (1 of 2 partitions have replicas to copy)\n" in out
    assert main([*arguments, "--topics-exclude", "tmp.*", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["move_ratio"], value["notes"]) == (0.5, [])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["rebuild"], "no topic is given; give --topics"),
        (["scale", "--topics=t"], "no broker is given; give --brokers, -1 for all"),
    ],
)
def test_a_missing_option_is_named_before_a_cluster_is_read(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`topicmappr rebuild` without options said that Kafka is unreachable."""
    assert main([*words, "--bootstrap-servers=127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith(problem)

"""`topicmappr tag --datadog` against the emulator of Datadog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.topicmappr.cluster_file import format_cluster
from autothrottle.topicmappr.command_line import main
from autothrottle_lab.emulators.datadog import API_KEY, APP_KEY, DatadogEmulator

POOLS = '[pools.Main]\ntopics = ["Orders", "logs"]\nbrokers = [1, 2]\n'
CLUSTER = PlacementCluster(
    {id: PlacementBroker(id) for id in (1, 2)},
    (PartitionReplicas("Orders", 0, (1, 2), 9), PartitionReplicas("logs", 0, (2, 1), 5)),
)
Tag = Callable[..., int]


@pytest.fixture
def emulator() -> Iterator[DatadogEmulator]:
    with DatadogEmulator() as opened:
        opened.add_host("a", 1, extra_tags=("cluster:main", "topic:by-hand"))
        opened.add_host("b/2", 2, extra_tags=("cluster:main",))
        yield opened


@pytest.fixture
def tag(emulator: DatadogEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tag:
    (tmp_path / "cluster.json").write_text(format_cluster(CLUSTER))
    (tmp_path / "pools.toml").write_text(POOLS)
    monkeypatch.setenv("TOPICMAPPR_API_KEY", API_KEY)
    monkeypatch.setenv("TOPICMAPPR_APP_KEY", APP_KEY)
    where = ("--datadog-url", emulator.url, "--cluster-file", str(tmp_path / "cluster.json"))
    return lambda *flags: main(["tag", "--datadog", *where, *flags])


def own(emulator: DatadogEmulator, host: str) -> tuple[str, ...] | None:
    return emulator.tags_by_host(host, "autothrottle")


def test_hosts_have_the_topics_and_pools_of_their_brokers(
    emulator: DatadogEmulator, tag: Tag, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only our own tags are replaced, and a second run writes nothing."""
    assert tag("--pools", str(tmp_path / "pools.toml")) == 0
    assert own(emulator, "a") == own(emulator, "b/2") == ("pool:main", "topic:logs", "topic:orders")
    assert "topic:by-hand" in (emulator.tags_by_host("a") or ())
    assert "Hosts: 2 change, 0 stay, 0 failed" in capsys.readouterr().out
    assert tag("--pools", str(tmp_path / "pools.toml")) == 0
    assert capsys.readouterr().out == "Hosts: 0 change, 2 stay, 0 failed\n"
    assert [request.method for request in emulator.requests].count("PUT") == 2
    assert tag("--most-topics", "1") == 0
    output = capsys.readouterr().out
    assert "a (broker 1): -pool:main -topic:logs\na (broker 1): 1 topics have no tag, see --most-topics\n" in output
    assert own(emulator, "a") == ("topic:orders",)


def test_a_dry_run_prints_the_tags_and_writes_nothing(
    emulator: DatadogEmulator, tag: Tag, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tag("--dry-run") == 0
    assert "a (broker 1): +topic:logs +topic:orders\n" in capsys.readouterr().out
    assert (own(emulator, "a"), {request.method for request in emulator.requests}) == ((), {"GET"})
    assert tag("--dry-run", "--json") == 0
    hosts = json.loads(capsys.readouterr().out)["hosts"]
    assert [(host["host"], host["broker"], host["added"]) for host in hosts] == [
        ("a", 1, ["topic:logs", "topic:orders"]),
        ("b/2", 2, ["topic:logs", "topic:orders"]),
    ]


def test_a_broker_on_two_hosts_is_left_out_until_its_cluster_is_named(
    emulator: DatadogEmulator, tag: Tag, capsys: pytest.CaptureFixture[str]
) -> None:
    emulator.add_host("other", 1, extra_tags=("cluster:other",))
    assert tag() == 0
    assert "WARN: broker 1 is on 2 hosts: a, other. Fix: choose the cluster" in capsys.readouterr().out
    assert (own(emulator, "a"), own(emulator, "other")) == ((), ())
    assert own(emulator, "b/2") == ("topic:logs", "topic:orders")
    assert tag("--host-tags", "cluster:main") == 0
    assert (own(emulator, "a"), own(emulator, "other")) == (("topic:logs", "topic:orders"), ())


def test_a_refused_host_leaves_the_others_alone(
    emulator: DatadogEmulator, tag: Tag, capsys: pytest.CaptureFixture[str]
) -> None:
    emulator.fail(500, path="/api/v1/tags/hosts/a")
    assert tag() == 1
    output = capsys.readouterr().out
    assert "Failed: a: answers 500" in output and "1 failed" in output
    assert own(emulator, "b/2") == ("topic:logs", "topic:orders")


def test_an_unreadable_answer_or_a_wrong_option_writes_nothing(
    emulator: DatadogEmulator, tag: Tag, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    emulator.fail(b'{"tags": [1]}', times=1)
    assert tag() == 1
    assert "Datadog answers in an unexpected format" in capsys.readouterr().err
    assert tag("--broker-id-tag", "id") == 1
    assert "broker 1 has no host. Fix: " in capsys.readouterr().err
    assert main(["tag"]) == 2
    assert "tag has no destination" in capsys.readouterr().err
    assert main(["pools", "schema"]) == 0
    assert capsys.readouterr().err == "", "the keys are unknown to no command"
    monkeypatch.delenv("TOPICMAPPR_APP_KEY")
    assert tag() == 1
    assert "Datadog needs both keys" in capsys.readouterr().err
    assert own(emulator, "a") == ()

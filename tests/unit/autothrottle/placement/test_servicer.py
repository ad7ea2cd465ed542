"""The placement service over gRPC and HTTP: it computes plans and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle_client.reassignments import parse_reassignment
from autothrottle_client.throttlectl import main
from tests.contract.storage_metrics_contract import SAMPLE
from tests.unit.autothrottle.gateway.front import Front, Reply

GB = 2**30
CLUSTER = PlacementCluster(
    {id: PlacementBroker(id, f"r{id}") for id in (1001, 1002, 1003, 1004)},
    tuple(PartitionReplicas("t", number, (1001 + number % 2, 1002 - number % 2)) for number in range(4)),
)
STORAGE = StorageMetrics(
    {("t", number): GB for number in range(4)},
    {1001: 4 * GB, 1002: 4 * GB, 1003: 8 * GB, 1004: 8 * GB},
    SAMPLE.sampled,
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with Front() as front:
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.services.placement.cluster = CLUSTER
    shared.services.placement.unavailable(False)
    shared.services.storage.metrics = STORAGE
    return shared


def ask(front: Front, method: str, **request: Any) -> Reply:
    return front.ask("POST", f"/v1/placement/{method}", json.dumps(request))


def targets(reply: Reply) -> dict[int, list[int]]:
    assert reply.status == 200, reply.text
    return {one["partition"]: one["replicas"] for one in reply.json["plan"]["partitions"]}


def test_rebuild_replaces_a_broker(front: Front) -> None:
    found = ask(front, "rebuild", scope={"topics": ["t"], "brokers": [1001, 1003]})
    assert targets(found) == {0: [1001, 1003], 1: [1003, 1001], 2: [1001, 1003], 3: [1003, 1001]}
    assert found.json["plan"]["after"]["leaderSpread"] == 0


def test_rebuild_by_count_needs_no_metrics(front: Front) -> None:
    front.services.storage.metrics = None
    assert len(targets(ask(front, "rebuild", scope={"topics": ["t"], "brokers": [1001, 1003]}))) == 4
    assert ask(front, "rebalance", scope={"topics": ["t"], "brokers": [-1]}).status == 404


def test_plan_by_storage_refuses_topics_with_one_name_in_datadog(front: Front) -> None:
    topics = ("a_b", "a__b", "t")
    partitions = tuple(PartitionReplicas(topic, 0, (1001, 1002)) for topic in topics)
    front.services.placement.cluster = PlacementCluster(CLUSTER.brokers, partitions)
    sizes = {("a_b", 0): GB, ("t", 0): GB}
    front.services.storage.metrics = replace(STORAGE, sizes=sizes, has_exact_names=False)
    for method in ("rebalance", "scale"):
        refused = ask(front, method, scope={"topics": ["a__b"], "brokers": [-1, 1003]})
        assert refused.status == 400
        assert "size of a__b is unknown: Datadog has one name, a_b, for the topics a__b, a_b" in refused.text
    assert ask(front, "rebalance", scope={"topics": ["t"], "brokers": [-1]}).status == 200


def test_scale_moves_to_new_brokers_until_storage_is_even(front: Front) -> None:
    found = ask(front, "scale", scope={"topics": ["t"], "brokers": [-1, 1003, 1004]})
    assert found.json["plan"]["after"]["storageRangeSpread"] == 0
    assert found.json["plan"]["copiedBytes"] == found.json["plan"]["boundBytes"] == str(4 * GB)


def test_rebalance_of_even_brokers_changes_nothing(front: Front) -> None:
    found = ask(front, "rebalance", scope={"topics": ["t"], "brokers": [-1]})
    assert (targets(found), found.json["plan"]["unchangedPartitions"]) == ({}, 4)


def test_decommission_empties_a_broker(front: Front) -> None:
    found = targets(ask(front, "decommission", scope={"topics": [".*"]}, leaving=[1002]))
    assert len(found) == 4
    assert all(1002 not in replicas and 1001 in replicas for replicas in found.values())


@pytest.mark.parametrize(
    ("method", "request_", "status", "problem"),
    [
        ("rebuild", {"scope": {"topics": ["t"]}}, 400, "no broker is given; give brokers, -1 for all"),
        ("rebuild", {"scope": {"topics": ["u"], "brokers": [1001]}}, 404, "no topic matches u; the cluster has 1"),
        ("rebuild", {"scope": {"topics": ["("], "brokers": [1001]}}, 400, "not a regular expression"),
        ("rebuild", {"scope": {"topics": ["t"], "brokers": [1]}, "partitionSizeFactor": "NaN"}, 400, "in (0, 1000]"),
        ("rebuild", {"scope": {"topics": ["t"], "brokers": [1]}, "strategy": 7}, 400, "strategy 7 is unknown"),
        ("rebuild", {"scope": {"topics": ["t"], "brokers": [1001]}, "phased": True, "brokersPerStep": 1}, 400, "leave"),
        ("scale", {"scope": {"topics": ["t"], "brokers": [-1]}}, 400, "additional brokers"),
        ("decommission", {"scope": {"topics": ["t"]}}, 400, "leaving names no broker"),
    ],
)
def test_a_wrong_request_is_refused_with_the_fix(
    front: Front, method: str, request_: dict[str, Any], status: int, problem: str
) -> None:
    found = ask(front, method, **request_)
    assert found.status == status, found.text
    assert problem in found.json["message"]


def test_a_plan_in_steps_ends_at_the_plan(front: Front) -> None:
    request = {"scope": {"topics": ["t"], "brokers": [1003, 1004]}}
    phased = ask(front, "rebuild", **request, phased=True).json["plan"]
    first, last = (step["partitions"] for step in phased["steps"])
    assert [row["replicas"][0] for row in first] == [1001, 1002, 1001, 1002]
    assert last == phased["partitions"]
    assert not ask(front, "rebuild", **request).json["plan"].get("steps")
    pairs = [PartitionReplicas("t", number, (1001 + 2 * number, 1002 + 2 * number)) for number in range(2)]
    front.services.placement.cluster = PlacementCluster(CLUSTER.brokers, tuple(pairs))
    scope = {"topics": ["t"], "brokers": [1002, 1004]}
    plan = ask(front, "rebuild", scope=scope, brokersPerStep=1).json["plan"]
    assert [step["partitions"] for step in plan["steps"]] == [[row] for row in reversed(plan["partitions"])]


def test_an_unreachable_cluster_is_unavailable(front: Front) -> None:
    front.services.placement.unavailable(True)
    assert ask(front, "rebuild", scope={"topics": ["t"], "brokers": [1001]}).status == 503


def throttlectl(front: Front, *arguments: str) -> int:
    return main([*arguments, "--addr", front.services.address("admin")])


def test_throttlectl_writes_a_plan_for_reassign(
    front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    arguments = ["plan", "rebuild", "--topics", "t", "--brokers=-1,1003", "--force", "--by-storage"]
    assert throttlectl(front, *arguments, "--out", str(path)) == 0
    out = capsys.readouterr().out
    written = parse_reassignment(path.read_text())
    assert f"{len(written)} partitions change, {4 - len(written)} stay; " in out
    assert "free storage range 0.00% -> " in out
    assert {broker for replicas in written.values() for broker in replicas} <= {1001, 1002, 1003}


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["rebalance", "--topics", ".*", "--brokers=-1"], 0),
        (["scale", "--topics", ".*", "--brokers=-2"], 3),
        (["decommission", "--topics", ".*", "--leaving", "1002"], 4),
    ],
)
def test_throttlectl_plans_each_operation(
    front: Front, arguments: list[str], changes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert throttlectl(front, "plan", *arguments, "-o", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["targets"]) == changes


def test_throttlectl_writes_a_file_for_each_step(front: Front, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    arguments = ["plan", "rebuild", "--topics", "t", "--brokers", "1003,1004", "--phased-reassignment"]
    assert throttlectl(front, *arguments, "--out", str(path), "-o", "json") == 0
    first, last = (parse_reassignment((tmp_path / f"plan-phase{n}.json").read_text()) for n in range(2))
    assert [replicas[0] for replicas in first.values()] == [1001, 1002, 1001, 1002]
    assert {id for replicas in last.values() for id in replicas} == {1003, 1004}
    assert not path.exists()


@pytest.mark.parametrize("method", ["rebuild", "decommission"])
def test_a_lost_rack_is_refused_and_then_allowed(front: Front, method: str) -> None:
    """The service placed two replicas into one rack without a warning. Now only the field allow_fewer_racks does so."""
    brokers = {1001 + n: PlacementBroker(1001 + n, "abab"[n]) for n in range(4)}
    front.services.placement.cluster = PlacementCluster(brokers, CLUSTER.partitions)
    front.services.storage.metrics = None
    lost = {"leaving": [1002, 1004], "brokers": [1001, 1003]} if method == "decommission" else {"brokers": [1001, 1003]}
    request: dict[str, Any] = {"scope": {"topics": ["t", "u.*"], "brokers": lost.pop("brokers")}, **lost}
    refused = ask(front, method, **request)
    assert refused.status == 400
    assert "4 of 4 partitions would have two replicas in one rack" in refused.json["message"]
    allowed = ask(front, method, **request, allowFewerRacks=True)
    assert len(targets(allowed)) == 4
    assert "4 of 4 partitions would have two replicas in one rack" in allowed.json["plan"]["warnings"][0]
    note, sizes = allowed.json["plan"]["notes"]
    assert (note, allowed.json["plan"]["moveRatio"]) == ("topics 'u.*' matches no topic", 1)
    assert sizes.startswith("The sizes of 4 partitions to copy are unknown: ")


@pytest.mark.parametrize("sizes", [{}, {("t", 0): GB}])
def test_unknown_sizes_are_not_0_bytes_to_copy(
    front: Front, capsys: pytest.CaptureFixture[str], sizes: dict[tuple[str, int], int]
) -> None:
    """Partitions of unknown size counted as 0: "0.00 MB to copy" for a plan that copies everything."""
    front.services.storage.metrics = replace(STORAGE, sizes=sizes)
    plan = ask(front, "decommission", scope={"topics": ["t"]}, leaving=[1002]).json["plan"]
    assert plan["unsizedPartitions"] == 4 - len(sizes)
    assert throttlectl(front, "plan", "decommission", "--leaving", "1002", "--topics", "t") == 0
    out = capsys.readouterr().out
    assert f"{'at least 1.07 GB' if sizes else 'an unknown size'} to copy (MoveRatio" in out
    assert f"note: The sizes of {4 - len(sizes)} partitions to copy are unknown: the storage metrics lack them\n" in out
    front.services.storage.metrics = None
    (note,) = ask(front, "decommission", scope={"topics": ["t"]}, leaving=[1002]).json["plan"]["notes"]
    assert note.startswith("The sizes of 4 partitions to copy are unknown: no sample is stored; run metricsfetcher")

"""The placement service and throttlectl about pools, capacity and forecasts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autothrottle.core.capacity.forecasts import HistorySample
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.placement.forecaster import LimitForecaster
from autothrottle.runtime.pools_file import FollowedPools
from autothrottle.topicmappr.command_line import main as topicmappr
from autothrottle_client.reassignments import parse_reassignment
from autothrottle_client.throttlectl import main
from tests.paths import ROOT
from tests.unit.autothrottle.gateway.front import Front, Reply

GB = 10**9
POOLS = """
[pools.orders]
owner = "team"
topics = ["orders"]
brokers = [1001, 1003]
limits = { storage = 50 }
"""
CLUSTER = PlacementCluster(
    {id: PlacementBroker(id, f"r{id}") for id in (1001, 1002, 1003)},
    (
        PartitionReplicas("logs", 0, (1002,)),
        *(PartitionReplicas("orders", n, (1001 + n % 2, 1002 - n % 2)) for n in range(4)),
    ),
)
STORAGE = StorageMetrics(
    {**{("orders", n): GB for n in range(4)}, ("logs", 0): GB},
    {1001: 96 * GB, 1002: 95 * GB, 1003: 100 * GB},
    datetime(2026, 9, 29, tzinfo=UTC),
    storage_total={1001: 100 * GB, 1002: 100 * GB, 1003: 100 * GB},
)


def history() -> Iterator[HistorySample]:
    for day in range(28):
        used = (10 + day) * GB
        time = datetime(2026, 9, 1, tzinfo=UTC) + timedelta(days=day)
        free = dict.fromkeys((1001, 1003), 100 * GB - used)
        yield HistorySample(time, {"orders": used}, {}, free, dict.fromkeys((1001, 1003), 100 * GB))


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with Front() as made:
        yield made


@pytest.fixture
def front(shared: Front, tmp_path: Path) -> Front:
    services = shared.services
    services.placement.cluster, services.storage.metrics = CLUSTER, STORAGE
    path = tmp_path / "pools.toml"
    path.write_text(POOLS)
    servicer = services.placement_servicer
    servicer.pools, servicer.forecaster = FollowedPools(str(path)), None
    return shared


def throttlectl(front: Front, *arguments: str) -> int:
    return main(["plan", *arguments, "--addr", front.services.address("admin")])


def plan(front: Front, **request: Any) -> Reply:
    return front.ask("POST", "/v1/placement/pools", json.dumps(request))


def test_pools_are_compared_with_the_cluster_and_a_map_applies_them(
    front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = plan(front)
    assert (reply.status, reply.json["drift"], reply.json["topicsInNoPool"]) == (200, True, ["logs"])
    (pool,) = reply.json["pools"]
    assert (pool["name"], pool["owner"], pool["changedPartitions"], pool["copiedBytes"]) == (
        *("orders", "team", 4),
        str(4 * GB),
    )
    assert throttlectl(front, "apply", "--out", str(tmp_path / "plan.json")) == 0
    written = parse_reassignment((tmp_path / "plan.json").read_text())
    assert written == {("orders", n): (1001, 1003) if n % 2 == 0 else (1003, 1001) for n in range(4)}
    assert "orders: 4 partitions: 4 change, 4.00 GB to copy\n" in capsys.readouterr().out
    applied = tuple(entry._replace(replicas=written.get(entry.key, entry.replicas)) for entry in CLUSTER.partitions)
    front.services.placement.cluster = PlacementCluster(CLUSTER.brokers, applied)
    assert (plan(front).json["drift"], plan(front).json["partitions"]) == (False, [])


def test_a_lost_broker_waits_until_its_repair_is_asked_for(front: Front) -> None:
    brokers = {id: broker for id, broker in CLUSTER.brokers.items() if id != 1001}
    front.services.placement.cluster = PlacementCluster({**brokers, 1004: PlacementBroker(1004)}, CLUSTER.partitions)
    assert plan(front).json["pools"][0]["lostBrokers"] == [1001]
    refused = plan(front, repairLost=True).json["pools"][0]
    assert refused["refusals"]


def test_a_faulty_new_file_is_a_warning(front: Front, tmp_path: Path) -> None:
    (tmp_path / "pools.toml").write_text(POOLS + "faulty")
    (warning,) = plan(front).json["warnings"]
    assert "its last version is in use: Pools file: " in warning


def test_pools_need_the_whole_cluster(front: Front) -> None:
    front.services.placement.cluster = replace(CLUSTER, problems=("topic 'odd' cannot be read",))
    replies = plan(front), front.ask("GET", "/v1/placement/pools/status")
    assert {(reply.status, reply.json["message"]) for reply in replies} == {(500, "topic 'odd' cannot be read")}


def test_faults_against_the_cluster_are_named_with_their_lines(front: Front, tmp_path: Path) -> None:
    (tmp_path / "pools.toml").write_text(POOLS.replace('"orders"]', '"orders", "x.*", "y.*"]'))
    reply = plan(front)
    assert reply.status == 400
    assert "line 4, pools.orders.topics: 'x.*' matches no topic" in reply.json["message"]
    assert "'y.*' matches no topic" in reply.json["message"]


def test_status_has_the_use_now_and_the_recorded_peak(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    """8 of 100 GB are used now; on the last day 2 replicas of 37 GB were."""
    servicer, services = front.services.placement_servicer, front.services
    (pool,) = front.ask("GET", "/v1/placement/pools/status").json["pools"]
    assert pool == {"pool": "orders", "brokers": 2, "topics": 1, "storage": 0.08, "limit": "storage"}
    servicer.forecaster = LimitForecaster(history, services.placement, servicer.pools)
    early = front.ask("GET", "/v1/placement/pools/status").json["warnings"]
    assert early == ["no recorded peak: the first forecast is being computed; try again in a minute"]
    servicer.forecaster.compute()
    assert throttlectl(front, "status") == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == ["orders", "2", "1", "8.0%,", "peak", "74.0%", "unknown", "unknown", "storage"]


def test_forecast_has_the_day_of_each_limit(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    """The pool may use 100 GB, and grows by 2 GB a day: 13 days after the last one."""
    servicer = front.services.placement_servicer
    servicer.forecaster = LimitForecaster(history, front.services.placement, servicer.pools)
    servicer.forecaster.compute()
    forecasts = front.ask("GET", "/v1/placement/forecast").json["forecasts"]
    days = {(row.get("brokerId"), row["pool"]): row["limitReached"] for row in forecasts}
    assert days == {(1001, ""): "2026-11-11", (1003, ""): "2026-11-11", (None, "orders"): "2026-10-11"}
    assert throttlectl(front, "forecast") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:5] == ["pool", "orders", "storage", "74.0%", "2026-10-11"]


def test_without_pools_or_history_the_fix_is_named(front: Front) -> None:
    front.services.placement_servicer.pools = None
    for reply in (plan(front), front.ask("GET", "/v1/placement/pools/status")):
        assert (reply.status, "start admin with --pools" in reply.json["message"]) == (404, True)
    reply = front.ask("GET", "/v1/placement/forecast")
    assert (reply.status, "start admin with --history" in reply.json["message"]) == (404, True)


WORKLOAD = {"bytesInPerSecond": 1e9, "fanOut": 3, "retention": "43200s"}
LARGE: dict[str, Any] = {
    "name": "large",
    "storageBytes": 15e12,
    "networkInBytesPerSecond": 3e9,
    "networkOutBytesPerSecond": 3e9,
    "diskBytesPerSecond": 2e9,
    "pricePerMonth": 1980,
}


def capacity(front: Front, **request: Any) -> Reply:
    body = {"workload": WORKLOAD, "instances": [LARGE], **request}
    return front.ask("POST", "/v1/placement/capacity", json.dumps(body))


def test_capacity_equals_what_topicmappr_prints(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("capacity", "--bytes-in=1GB/s", "--fan-out=3", f"--instances={ROOT / 'deploy/instances.csv'}")
    assert throttlectl(front, *flags, "--retention=12h", "--recover-within=2h") == 0
    of_service = capsys.readouterr().out
    assert topicmappr((*flags, "--retention=12", "--recover-within=2")) == 0
    assert capsys.readouterr().out == of_service
    assert "Cheapest: 41 x small, " in of_service
    assert throttlectl(front, *flags, "--retention=12h", "--recover-within=2h", "-o", "json") == 0
    value = json.loads(capsys.readouterr().out)
    assert topicmappr((*flags, "--retention=12", "--recover-within=2", "--json")) == 0
    assert json.loads(capsys.readouterr().out) == value
    assert capacity(front).json["instances"][0]["counts"]["storage"] == 11


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"workload": {"bytesInPerSecond": 1e6}}, "retention of 0 s"),
        ({"workload": {**WORKLOAD, "fanOut": "NaN"}}, "fan_out nan must be in [0, 10000]"),
        ({"instances": []}, "instances has 0 entries"),
        ({"instances": [LARGE, LARGE]}, "instance name 'large' must be unique"),
        ({"shares": {"storage": 1.5}}, "storage 1.5 must be in [0.001, 1]"),
        ({"failure": {"loss": 7}}, "loss 7 is unknown"),
        ({"failure": {"recoverWithin": "1s"}}, "more than 10000 brokers"),
    ],
)
def test_a_wrong_workload_is_refused_with_the_range(front: Front, request_: dict[str, Any], problem: str) -> None:
    reply = capacity(front, **request_)
    assert (reply.status, problem in reply.json["message"]) == (400, True), reply.text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("apply", "--topics", "t"), "--topics has no effect on apply"),
        (("status", "--out", "plan.json"), "--out has no effect on status"),
        (("rebuild", "--topics", "t", "--repair-lost"), "--repair-lost has no effect on rebuild"),
        (("rebuild", "--topics", "t", "--leaving", "1002"), "--leaving has no effect on rebuild"),
        (("scale", "--topics", "t", "--sub-affinity"), "--sub-affinity has no effect on scale"),
        (("scale", "--brokers=-2"), "no topic is given; give --topics"),
        (("capacity", "--bytes-in=1GB/s"), "instances is not given. Fix: --instances"),
        (("capacity", "--bytes-in=1GB/s", "--retention=1d", "--instances=absent.csv"), "'absent.csv' cannot be read"),
    ],
)
def test_throttlectl_names_options_without_effect(
    front: Front, arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert throttlectl(front, *arguments) == 2
    assert problem in capsys.readouterr().err

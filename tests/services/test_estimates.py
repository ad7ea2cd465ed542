"""An estimate of a reassignment, from the brokers' logs and the metrics through every service to the operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.adapters.rpc import DiscoveryClient
from autothrottle.core.errors import Invalid as InvalidHere
from autothrottle.core.estimate import Goal
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.static import StaticPolicy
from autothrottle.discovery.servicer import DiscoveryServicer
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1.discovery_pb2_grpc import add_DiscoveryServiceServicer_to_server
from autothrottle_client import AdminClient, Conflict, Invalid, Missing, ReplicaRole, Unavailable
from autothrottle_client.throttlectl import main
from tests import builders
from tests.builders import mb
from tests.services.house import House

GB = 1_000_000_000
FILE = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1001, 1003]}]}


@pytest.fixture
def house() -> Iterator[House]:
    """Eight partitions, of which one has 3.6 GB; clients make every broker send 20 and receive 10 of 100 MB/s."""
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in (1001, 1002, 1003, 1004)))
    with House(metrics, metrics) as built:
        built.cluster.add_topic("t", {p: (1001, 1002) for p in range(8)})
        for broker_id in (1001, 1002):
            built.cluster.grow(broker_id, "t", 0, 3_600_000_000)
        built.cluster.log_bytes[1003] = {}
        yield built


@pytest.fixture
def admin(house: House) -> Iterator[AdminClient]:
    with AdminClient([house.address("admin")]) as client:
        yield client


def test_at_the_present_headrooms_it_tells_bytes_ratio_and_time(house: House, admin: AdminClient) -> None:
    found = admin.estimate_reassignment({("t", 0): (1001, 1003)})
    assert (found.partitions, found.total_partitions, found.move_ratio) == (1, 8, 0.125)
    assert found.bytes_to_move == 3_600_000_000
    leader, follower = found.ports
    assert (leader.broker_id, leader.role, leader.rate_bytes_per_second) == (1001, ReplicaRole.LEADER, mb(72))
    assert (follower.broker_id, follower.rate_bytes_per_second, follower.capacity_bytes_per_second) == (
        1003,
        mb(81),
        mb(100),
    )
    assert found.seconds == pytest.approx(50)
    assert house.cluster.writes == [] and house.cluster.submissions == []


def test_what_is_produced_meanwhile_is_read_from_the_logs_and_counted(house: House, admin: AdminClient) -> None:
    now = [builders.NOON]
    house.cluster.tell_progress(lambda: now[0])

    def produce(seconds: float) -> None:
        now[0] += timedelta(seconds=seconds)
        house.cluster.grow(1001, "t", 0, round(mb(6) * seconds))

    house.produce = produce
    found = admin.estimate_reassignment({("t", 0): (1001, 1003)})
    assert [port.growth_bytes_per_second for port in found.ports] == [mb(12), mb(6)], "1002 is in sync and fetches too"
    assert found.seconds == pytest.approx(60)


def test_a_share_of_the_links_and_a_time_give_the_throttles(admin: AdminClient) -> None:
    share = admin.estimate_reassignment({("t", 0): (1001, 1003)}, max_ratio=0.3)
    assert [port.rate_bytes_per_second for port in share.ports] == [mb(30), mb(30)]
    assert share.seconds == pytest.approx(120)
    soon = admin.estimate_reassignment({("t", 0): (1001, 1003)}, within=timedelta(seconds=40))
    assert [port.rate_bytes_per_second for port in soon.ports] == [mb(90), mb(90)]
    assert len(soon.warnings) == 2 and "more than the 72.00 MB/s" in soon.warnings[0]


def test_under_an_override_shares_of_links_and_what_clients_leave_are_known_all_the_same(admin: AdminClient) -> None:
    admin.set_override(mb(5))
    present = admin.estimate_reassignment({("t", 0): (1001, 1003)})
    assert [port.rate_bytes_per_second for port in present.ports] == [mb(5), mb(5)]
    assert present.warnings == (
        "an override rules brokers [1001, 1003]: their throttles are its own, whatever clients leave",
    )
    share = admin.estimate_reassignment({("t", 0): (1001, 1003)}, max_ratio=0.3)
    assert [port.rate_bytes_per_second for port in share.ports] == [mb(30), mb(30)]
    assert share.warnings == ()
    soon = admin.estimate_reassignment({("t", 0): (1001, 1003)}, within=timedelta(seconds=40))
    assert "more than the 72.00 MB/s" in soon.warnings[0]


def test_what_moves_already_counts_with_what_is_left_of_it(house: House, admin: AdminClient) -> None:
    house.cluster.start_reassignment("t", {0: (1001, 1003)})
    house.cluster.grow(1003, "t", 0, 3 * GB)
    assert admin.estimate_reassignment({("t", 0): (1001, 1003)}).bytes_to_move == 600_000_000
    with pytest.raises(Conflict, match="being reassigned to"):
        admin.estimate_reassignment({("t", 0): (1001, 1004)})


def test_what_else_moves_through_the_same_links_is_said(house: House, admin: AdminClient) -> None:
    """Both share the throttles, and the time was told as if this move had them alone."""
    own = {("t", 0): (1001, 1003)}
    house.cluster.start_reassignment("t", {1: (1002, 1004)})
    assert admin.estimate_reassignment(own).warnings == (
        "brokers [1001] send or receive in other moves, too: these share the throttles, and it takes longer",
    )
    house.cluster.start_reassignment("t", {0: (1001, 1003)})
    house.cluster.finish("t", 1)
    assert admin.estimate_reassignment(own).warnings == ()


def test_the_rates_are_those_that_the_configured_policy_would_give(house: House) -> None:
    now = datetime.now(UTC)
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10), end=now) for b in (1001, 1002, 1003, 1004)))

    def rates(policy: Policy) -> list[int | None]:
        estimator = replace(house.estimator, policy=policy, loads=metrics)
        found = estimator.estimate({("t", 0): (1001, 1003)}, Goal(), timedelta(seconds=30))
        return [port.rate for port in found.ports]

    house.cluster.tell_progress()
    house.cluster.start_reassignment("t", {0: (1001, 1003)})
    assert rates(StaticPolicy(mb(40))) == [mb(40), mb(40)]
    # It is asked for the first time, and what it needs is what its narrowest place has.
    assert rates(AdaptivePolicy()) == [mb(72), mb(81)]
    assert rates(HeadroomPolicy()) == [mb(72), mb(81)]


def test_what_is_there_already_is_nothing_to_copy(admin: AdminClient) -> None:
    found = admin.estimate_reassignment({("t", 0): (1001, 1002)})
    assert (found.partitions, found.bytes_to_move, found.seconds, found.ports) == (0, 0, 0.0, ())


def test_without_metrics_it_counts_on_the_minimum_and_says_so(house: House) -> None:
    metrics = MemoryMetrics()
    metrics.unavailable(True)
    with House(metrics, metrics) as blind, AdminClient([blind.address("admin")]) as admin:
        blind.cluster.add_topic("t", {0: (1001, 1002)})
        blind.cluster.grow(1001, "t", 0, GB)
        found = admin.estimate_reassignment({("t", 0): (1001, 1003)})
        assert found.ports[0].rate_bytes_per_second == mb(10)
        assert "metrics cannot be read" in found.warnings[0]
        assert any("broker 1003 does not tell its log sizes" in warning for warning in found.warnings)


def test_what_is_wrong_is_refused(house: House, admin: AdminClient) -> None:
    with pytest.raises(Missing, match="x-0 does not exist"):
        admin.estimate_reassignment({("x", 0): (1001, 1003)})
    with pytest.raises(Invalid, match="broker 1009"):
        admin.estimate_reassignment({("t", 0): (1001, 1009)})
    with pytest.raises(Invalid, match="both given"):
        admin.estimate_reassignment({("t", 0): (1001, 1003)}, 0.5, timedelta(hours=1))
    with pytest.raises(Invalid, match="outside of"):
        admin.estimate_reassignment({("t", 0): (1001, 1003)}, max_ratio=2.0)
    house.cluster.unavailable(True)
    with pytest.raises(Unavailable):
        admin.estimate_reassignment({("t", 0): (1001, 1003)}, timeout=timedelta(seconds=1))


def test_throttlectl_estimates_a_file(house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(FILE))
    at = ["--addr", house.address("admin")]
    assert main(["estimate", str(file), *at]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3.60 GB to copy for 1 of 8 partitions (MoveRatio 0.125), in about 50 s"
    assert lines[3].split() == ["1001", "leader", "3.60", "GB", "0MB/s", "72MB/s", "72MB/s", "100MB/s", "50", "s"]
    assert main(["estimate", str(file), "--within", "1h", "--output", "json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["ports"][0]["rate_bytes_per_second"] == 1_000_000
    assert main(["estimate", str(file), "--max-ratio", "0", *at]) == 2
    assert "above 0 and at most 100" in capsys.readouterr().err
    assert main(["estimate", str(file), "--max-ratio", "10", "--within", "1h", *at]) == 2
    assert "not allowed with" in capsys.readouterr().err


# Without bootstrap servers `throttlectl estimate` tried for half a minute, and then said that admin was unavailable.
def test_a_discovery_that_was_given_no_broker_to_ask_says_so_at_once(house: House) -> None:
    service = (add_DiscoveryServiceServicer_to_server, DiscoveryServicer(house.cluster), "DiscoveryService")
    with (
        ServiceServer("discovery", [service], "127.0.0.1:0") as server,
        closing(DiscoveryClient([server.address])) as one,
    ):
        estimator = replace(house.estimator, sizes=one)
        with pytest.raises(InvalidHere, match=r"^the sizes of logs are unknown: .* give it --bootstrap-servers$"):
            estimator.estimate({("t", 0): (1001, 1003)}, Goal(), timedelta(seconds=30))
        with pytest.raises(InvalidHere, match=r"^the settings of brokers are unknown: .* give it --bootstrap-servers$"):
            one.fetch_settings([1001], ["t"], timedelta(seconds=30))

"""Estimates of reassignments, from log sizes and metrics through all services to the operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.grpc import DiscoveryClient
from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.admin.estimator import Estimator
from autothrottle.core.cluster.configs import ClusterSettings, FetchSettings
from autothrottle.core.cluster.snapshot import SnapshotRequest
from autothrottle.core.errors import Invalid as InvalidHere
from autothrottle.core.forecast.eta import Goal
from autothrottle.core.operators.submission import Targets
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy, StaticPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.records import Estimate
from autothrottle.discovery import DiscoveryServicer
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1.discovery_pb2_grpc import add_DiscoveryServiceServicer_to_server
from autothrottle_client import AdminClient, Conflict, Invalid, Missing, ReplicaRole, Unavailable
from autothrottle_client.throttlectl import main
from tests import builders
from tests.builders import AT_ONCE, Stopwatch, mb
from tests.in_process_services import InProcessServices

GB = 1_000_000_000
FILE = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1001, 1003]}]}


@pytest.fixture
def services() -> Iterator[InProcessServices]:
    """Eight partitions, one of them with 3.6 GB. Clients make each broker send 20 and receive 10 of 100 MB/s."""
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in (1001, 1002, 1003, 1004)))
    with InProcessServices(metrics, metrics) as built:
        built.cluster.add_topic("t", {p: (1001, 1002) for p in range(8)})
        for broker_id in (1001, 1002):
            built.cluster.grow(broker_id, "t", 0, 3_600_000_000)
        built.cluster.log_bytes[1003] = {}
        yield built


@pytest.fixture
def admin(services: InProcessServices) -> Iterator[AdminClient]:
    with AdminClient([services.address("admin")]) as client:
        yield client


def test_an_estimate_at_the_current_headroom_has_bytes_ratio_and_time(
    services: InProcessServices, admin: AdminClient
) -> None:
    found = admin.estimate_reassignment({("t", 0): (1001, 1003)})
    assert (found.partitions, found.total_partitions, found.move_ratio) == (1, 8, 0.125)
    assert found.bytes_to_copy == 3_600_000_000
    leader, follower = found.sides
    assert (leader.broker_id, leader.role, leader.rate_bytes_per_second) == (1001, ReplicaRole.LEADER, mb(72))
    assert (follower.broker_id, follower.rate_bytes_per_second, follower.capacity_bytes_per_second) == (
        1003,
        mb(81),
        mb(100),
    )
    assert found.seconds == pytest.approx(50)
    assert services.cluster.writes == [] and services.cluster.submissions == []


def test_the_produce_rate_is_measured_and_included(services: InProcessServices, admin: AdminClient) -> None:
    now = [builders.NOON]
    services.cluster.tell_progress(lambda: now[0])

    def produce(seconds: float) -> None:
        now[0] += timedelta(seconds=seconds)
        services.cluster.grow(1001, "t", 0, round(mb(6) * seconds))

    services.produce = produce
    found = admin.estimate_reassignment({("t", 0): (1001, 1003)})
    assert [side.produced_bytes_per_second for side in found.sides] == [mb(12), mb(6)], (
        "1002 is in sync and fetches, too"
    )
    assert found.seconds == pytest.approx(60)


def test_fetch_sizes_too_large_for_the_throttles_give_a_warning(
    services: InProcessServices, admin: AdminClient
) -> None:
    services.cluster.settings = ClusterSettings({1003: FetchSettings()})
    (warning,) = admin.estimate_reassignment({("t", 0): (1001, 1003)}).warnings
    assert "1 x 10485760 bytes, are 0.15 s of its throttle, 72 MB/s" in warning
    assert "replica.fetch.response.max.bytes=2097152" in warning
    services.cluster.settings = ClusterSettings({1003: FetchSettings(2_097_152)})
    assert admin.estimate_reassignment({("t", 0): (1001, 1003)}).warnings == ()


def test_max_ratio_and_within_determine_the_throttles(admin: AdminClient) -> None:
    share = admin.estimate_reassignment({("t", 0): (1001, 1003)}, max_ratio=0.3)
    assert [side.rate_bytes_per_second for side in share.sides] == [mb(30), mb(30)]
    assert share.seconds == pytest.approx(120)
    soon = admin.estimate_reassignment({("t", 0): (1001, 1003)}, within=timedelta(seconds=40))
    assert [side.rate_bytes_per_second for side in soon.sides] == [mb(90), mb(90)]
    assert len(soon.warnings) == 2 and "more than the 72.00 MB/s" in soon.warnings[0]


def test_goals_ignore_overrides_and_the_current_rates_follow_them(admin: AdminClient) -> None:
    admin.set_override(mb(5))
    present = admin.estimate_reassignment({("t", 0): (1001, 1003)})
    assert [side.rate_bytes_per_second for side in present.sides] == [mb(5), mb(5)]
    assert present.warnings == ("an override sets the throttles of brokers [1001, 1003], whatever their headroom is",)
    share = admin.estimate_reassignment({("t", 0): (1001, 1003)}, max_ratio=0.3)
    assert [side.rate_bytes_per_second for side in share.sides] == [mb(30), mb(30)]
    assert share.warnings == ()
    soon = admin.estimate_reassignment({("t", 0): (1001, 1003)}, within=timedelta(seconds=40))
    assert "more than the 72.00 MB/s" in soon.warnings[0]


def test_a_reassignment_in_progress_counts_with_its_bytes_left(services: InProcessServices, admin: AdminClient) -> None:
    services.cluster.submit_reassignment("t", {0: (1001, 1003)})
    services.cluster.grow(1003, "t", 0, 3 * GB)
    assert admin.estimate_reassignment({("t", 0): (1001, 1003)}).bytes_to_copy == 600_000_000
    with pytest.raises(Conflict, match="being reassigned to"):
        admin.estimate_reassignment({("t", 0): (1001, 1004)})


def test_other_reassignments_on_the_same_links_give_a_warning(services: InProcessServices, admin: AdminClient) -> None:
    """Both reassignments share the throttles, but the time was estimated as if there was only one."""
    own = {("t", 0): (1001, 1003)}
    services.cluster.submit_reassignment("t", {1: (1002, 1004)})
    assert admin.estimate_reassignment(own).warnings == (
        "brokers [1001] take part in other reassignments that share their throttles: this one takes longer",
    )
    services.cluster.submit_reassignment("t", {0: (1001, 1003)})
    services.cluster.finish("t", 1)
    assert admin.estimate_reassignment(own).warnings == ()


def estimate(estimator: Estimator, targets: Targets) -> Estimate:
    snapshot = estimator.snapshots.fetch_snapshot(
        SnapshotRequest(partitions=targets.keys()), timeout=timedelta(seconds=30)
    )
    return estimator.estimate(snapshot, targets, Goal(), timedelta(seconds=30))


def test_an_estimate_uses_the_configured_policy(services: InProcessServices) -> None:
    now = datetime.now(UTC)
    metrics = MemoryMetrics(
        *(builders.load(b, outbound=mb(20), inbound=mb(10), end=now) for b in (1001, 1002, 1003, 1004))
    )

    def rates(policy: Policy) -> list[int | None]:
        estimator = replace(services.estimator, policy=policy, loads=metrics)
        found = estimate(estimator, {("t", 0): (1001, 1003)})
        return [side.rate_bytes_per_second for side in found.sides]

    services.cluster.tell_progress()
    services.cluster.submit_reassignment("t", {0: (1001, 1003)})
    assert rates(StaticPolicy(mb(40))) == [mb(40), mb(40)]
    # Without history, the adaptive policy gives each side its headroom.
    assert rates(AdaptivePolicy()) == [mb(72), mb(81)]
    assert rates(HeadroomPolicy()) == [mb(72), mb(81)]


def test_partitions_already_in_place_need_no_copy(admin: AdminClient) -> None:
    found = admin.estimate_reassignment({("t", 0): (1001, 1002)})
    assert (found.partitions, found.bytes_to_copy, found.seconds, found.sides) == (0, 0, 0.0, ())


def test_without_metrics_an_estimate_assumes_the_minimum_rate_and_warns(services: InProcessServices) -> None:
    metrics = MemoryMetrics()
    metrics.unavailable(True)
    with InProcessServices(metrics, metrics) as unmeasured, AdminClient([unmeasured.address("admin")]) as admin:
        unmeasured.cluster.add_topic("t", {0: (1001, 1002)})
        unmeasured.cluster.grow(1001, "t", 0, GB)
        found = admin.estimate_reassignment({("t", 0): (1001, 1003)})
        assert found.sides[0].rate_bytes_per_second == mb(10)
        assert "metrics cannot be read" in found.warnings[0]
        assert any("the log sizes of broker 1003 are unknown" in warning for warning in found.warnings)


def test_invalid_requests_are_refused(services: InProcessServices, admin: AdminClient) -> None:
    with pytest.raises(Missing, match="x-0 does not exist"):
        admin.estimate_reassignment({("x", 0): (1001, 1003)})
    with pytest.raises(Invalid, match="broker 1009"):
        admin.estimate_reassignment({("t", 0): (1001, 1009)})
    with pytest.raises(Invalid, match="both given"):
        admin.estimate_reassignment({("t", 0): (1001, 1003)}, 0.5, timedelta(hours=1))
    with pytest.raises(Invalid, match=r"is outside \(0, 1\]"):
        admin.estimate_reassignment({("t", 0): (1001, 1003)}, max_ratio=2.0)
    services.cluster.unavailable(True)
    with pytest.raises(Unavailable):
        admin.estimate_reassignment({("t", 0): (1001, 1003)}, timeout=timedelta(seconds=1))


def test_throttlectl_estimates_a_file(
    services: InProcessServices, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(FILE))
    at = ["--addr", services.address("admin")]
    assert main(["estimate", str(file), *at]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3.60 GB to copy for 1 of 8 partitions (MoveRatio 0.125), in about 50 s"
    assert lines[3].split() == ["1001", "leader", "3.60", "GB", "0MB/s", "72MB/s", "72MB/s", "100MB/s", "50", "s"]
    assert main(["estimate", str(file), "--within", "1h", "--output", "json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["sides"][0]["rate_bytes_per_second"] == 1_000_000
    assert main(["estimate", str(file), "--max-ratio", "0", *at]) == 2
    assert "above 0 and at most 100" in capsys.readouterr().err
    assert main(["estimate", str(file), "--max-ratio", "10", "--within", "1h", *at]) == 2
    assert "not allowed with" in capsys.readouterr().err


# Without bootstrap servers `throttlectl estimate` retried for half a minute and then reported that admin was
# unavailable.
def test_discovery_without_bootstrap_servers_refuses_at_once(services: InProcessServices) -> None:
    service = (
        add_DiscoveryServiceServicer_to_server,
        DiscoveryServicer(services.cluster, services.cluster),
        "DiscoveryService",
    )
    with (
        ServiceServer("discovery", [service], "127.0.0.1:0") as server,
        closing(DiscoveryClient([server.address])) as one,
    ):
        estimator = replace(services.estimator, sizes=one)
        stopwatch = Stopwatch()
        with pytest.raises(InvalidHere, match=r"^log sizes are unknown: .* set --bootstrap-servers$"):
            estimate(estimator, {("t", 0): (1001, 1003)})
        with pytest.raises(InvalidHere, match=r"^broker settings are unknown: .* set --bootstrap-servers$"):
            one.fetch_settings([1001], ["t"], timedelta(seconds=30))
        assert stopwatch.seconds < AT_ONCE

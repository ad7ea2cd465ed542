"""A scenario from the current reassignments of running services, written and played."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autothrottle.__main__ import main
from autothrottle.adapters.credentials import ServiceCertificates, TlsFiles
from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Missing
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.traffic.loads import Capacity
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2, types_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server
from autothrottle.wire.common import SAME_NAMES
from autothrottle_lab.simulate.scenario_file import read_scenario
from autothrottle_lab.simulate.scenario_text import fitting, live_scenario
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import BROKERS, InProcessServices
from tests.paths import CERTIFICATES

GB = 1_000_000_000
PEM, SERVER, AUTHORITIES = (str(CERTIFICATES / f"{name}.pem") for name in ("client", "server", "ca"))


@pytest.fixture
def services() -> Iterator[InProcessServices]:
    """Services with a leading planner. Clients read 20 and write 10 of 100 MB/s; t has 2 partitions of 3.6 GB."""
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics) as built:
        built.cluster.add_topic("t", {0: (1001, 1002), 1: (1001, 1002)})
        for broker_id, held in ((1001, 3_600_000_000), (1002, 3_600_000_000), (1003, 0)):
            for partition in (0, 1):
                built.cluster.grow(broker_id, "t", partition, held)
        built.start_planners()
        eventually(lambda: built.planners[0].state().leading)
        yield built


def test_bytes_left_become_a_scenario_that_can_be_played(
    services: InProcessServices, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    services.cluster.tell_progress()
    services.cluster.submit_reassignment("t", {0: (1001, 1003), 1: (1001, 1003)})
    services.cluster.grow(1003, "t", 0, GB)
    eventually(lambda: (last := services.planners[0].state().last_cycle) is not None and len(last.decisions) == 2)
    file = tmp_path / "live.toml"

    def is_written() -> bool:
        assert main(["simulate", "--from-cluster", services.address("admin")]) == 0
        file.write_text(capsys.readouterr().out)
        return sum(one.size for one in read_scenario(file).scenario.reassignments) == pytest.approx(6.2 * GB)

    eventually(is_written)
    scenario = read_scenario(file).scenario
    assert {b: one.capacity for b, one in scenario.brokers.items()} == {
        1001: Capacity(mb(100), mb(100)),
        1003: Capacity(mb(100), mb(100)),
    }
    sender, receiver = (scenario.brokers[b].traffic.steps[0] for b in (1001, 1003))
    assert (sender.outbound, receiver.inbound) == (mb(20), mb(10))
    assert [(one.topic, one.replicas, one.target) for one in scenario.reassignments] == [
        ("t", (1001,), (1001, 1003))
    ] * 2
    # 72 is 0.9 of 80 MB/s.
    assert main(["simulate", str(file), "--policy=static", "--static-rate=72"]) == 0
    duration = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("duration  "))
    assert float(duration.split()[1]) == pytest.approx(6200 / 72, rel=0.15)


def test_reassignment_larger_than_the_limit_becomes_a_readable_scenario(tmp_path: Path) -> None:
    """The command wrote a scenario with more partitions than `simulate` accepts. It now writes fewer, larger ones."""
    loads = [(1001, ReplicaRole.LEADER), (1002, ReplicaRole.LEADER), (1003, ReplicaRole.FOLLOWER)]
    decisions = [
        replace(builders.decision(*side), utilization_bytes_per_second=mb(10), capacity_bytes_per_second=mb(100))
        for side in loads
    ]
    cycle = SAME_NAMES.to_message(types_pb2.Cycle, builders.cycle_record(decisions=decisions))
    state = admin_pb2.GetClusterStateResponse(last_cycle=cycle)
    paths = [
        admin_pb2.ReassignmentPath(leader=1001, follower=1003, partitions=40_000, bytes_left=80 * GB),
        admin_pb2.ReassignmentPath(leader=1002, follower=1003, partitions=20_000, bytes_left=20 * GB),
    ]
    file = tmp_path / "large.toml"
    file.write_text(live_scenario(state, admin_pb2.ListReassignmentsResponse(paths=paths), builders.NOON))
    found = read_scenario(file).scenario.reassignments
    carried = {leader: sum(one.size for one in found if one.replicas == (leader,)) for leader in (1001, 1002)}
    assert carried == {1001: pytest.approx(80 * GB, rel=0.001), 1002: pytest.approx(20 * GB, rel=0.001)}
    assert 4_990 < len(found) <= 5_000
    with pytest.raises(Missing, match=r"5001 paths .* at most 5000\. Fix: "):
        fitting([1] * 5_001)


def test_error_explains_why_there_is_no_scenario(
    services: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        assert main(["simulate", "--from-cluster", *arguments]) == 1
        return capsys.readouterr().err

    assert "no reassignment has bytes left to copy" in refused(services.address("admin"))
    services.cluster.submit_reassignment("t", {0: (1001, 1003)})
    assert "the bytes left from broker 1001 to broker 1003 are unknown" in refused(services.address("admin"))
    assert "admin" in refused("127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nohost"], "from-cluster: 'nohost' (flag --from-cluster) has no host:port in 'nohost'"),
        (["h:99999"], "has no port from 1 to 65535"),
        ([""], "--from-cluster is empty"),
        (
            ["h:1", "--policy=static"],
            "--policy does not apply to --from-cluster. Fix: remove it; valid options are --tls-cert",
        ),
        (["h:1", "--tls-cert", PEM], "tls-cert without tls-key and tls-ca; TLS is mutual"),
        (["h:1", "--tls-crt", PEM], "did you mean --tls-cert?"),
    ],
)
def test_invalid_address_and_foreign_flags_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["simulate", "--from-cluster", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_cluster_with_tls_is_called_with_a_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    class Idle(AdminServiceServicer):
        def GetClusterState(self, request: Any, context: Any) -> admin_pb2.GetClusterStateResponse:
            return admin_pb2.GetClusterStateResponse()

        def ListReassignments(self, request: Any, context: Any) -> admin_pb2.ListReassignmentsResponse:
            return admin_pb2.ListReassignmentsResponse()

    service = (add_AdminServiceServicer_to_server, Idle(), "autothrottle.v1.AdminService")  # type: ignore[abstract]
    credentials = ServiceCertificates(TlsFiles(SERVER, SERVER, AUTHORITIES)).server_credentials()
    with ServiceServer("admin", [service], "127.0.0.1:0", credentials=credentials) as server:
        flags = ["--tls-cert", PEM, "--tls-key", PEM, "--tls-ca", AUTHORITIES]
        assert main(["simulate", "--from-cluster", server.address, *flags]) == 1
    assert "no reassignment has bytes left to copy" in capsys.readouterr().err


def test_a_broker_under_an_override_has_its_measured_load(
    services: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command refused such a cluster, because an override hid the load of its brokers."""
    services.overrides.set_override(None, StoredOverride(mb(5)))
    services.cluster.tell_progress()
    services.cluster.submit_reassignment("t", {0: (1001, 1003)})

    def shows_override() -> bool:
        cycle = services.planners[0].state().last_cycle
        return cycle is not None and any(decision.reason.is_override for decision in cycle.decisions)

    eventually(shows_override)
    assert main(["simulate", "--from-cluster", services.address("admin")]) == 0
    assert "capacity = { tx = 100, rx = 100 }" in capsys.readouterr().out

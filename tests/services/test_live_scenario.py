"""A scenario of what moves now, told by services that run, and played."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autothrottle.__main__ import main
from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.adapters.tls import Tls, TlsFiles
from autothrottle.core.configs import ReplicaRole
from autothrottle.core.errors import Missing
from autothrottle.core.loads import Capacity
from autothrottle.lab.live_scenario import scenario_text
from autothrottle.lab.scenario_file import read_scenario
from autothrottle.lab.scenario_text import fitting
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server
from autothrottle.wire.cycles import cycle_to_message
from tests import builders
from tests.builders import eventually, mb
from tests.services.house import BROKERS, House

GB = 1_000_000_000
PEM, SERVER, AUTHORITIES = (
    str(Path(__file__).parents[1] / "adapters" / "tls" / f"{name}.pem") for name in ("client", "server", "ca")
)


@pytest.fixture
def house() -> Iterator[House]:
    """A planner leads; clients make every broker send 20 and receive 10 of 100 MB/s; t has 2 partitions of 3.6 GB."""
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
    with House(metrics, metrics) as built:
        built.cluster.add_topic("t", {0: (1001, 1002), 1: (1001, 1002)})
        for broker_id, held in ((1001, 3_600_000_000), (1002, 3_600_000_000), (1003, 0)):
            for partition in (0, 1):
                built.cluster.grow(broker_id, "t", partition, held)
        built.start_planners()
        eventually(lambda: built.planners[0].state().leading)
        yield built


def test_what_is_left_becomes_a_scenario_that_can_be_played(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house.cluster.tell_progress()
    house.cluster.start_reassignment("t", {0: (1001, 1003), 1: (1001, 1003)})
    house.cluster.grow(1003, "t", 0, GB)
    eventually(lambda: (last := house.planners[0].state().last_cycle) is not None and len(last.decisions) == 2)
    file = tmp_path / "live.toml"

    def is_written() -> bool:
        assert main(["simulate", "--from-cluster", house.address("admin")]) == 0
        file.write_text(capsys.readouterr().out)
        return sum(move.size for move in read_scenario(file).moves) == pytest.approx(6.2 * GB)

    eventually(is_written)
    scenario = read_scenario(file)
    assert {b: one.capacity for b, one in scenario.brokers.items()} == {
        1001: Capacity(mb(100), mb(100)),
        1003: Capacity(mb(100), mb(100)),
    }
    sender, receiver = (scenario.brokers[b].traffic.steps[0] for b in (1001, 1003))
    assert (sender.tx, receiver.rx) == (mb(20), mb(10))
    assert [(move.topic, move.replicas, move.target) for move in scenario.moves] == [("t", (1001,), (1001, 1003))] * 2
    # 0.9 of 80 MB/s are 72.
    assert main(["simulate", str(file), "--policy=static", "--static-rate=72"]) == 0
    makespan = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("makespan  "))
    assert float(makespan.split()[1]) == pytest.approx(6200 / 72, rel=0.15)


def test_a_move_of_more_partitions_than_a_scenario_holds_becomes_one_that_can_be_read(tmp_path: Path) -> None:
    """Such a file was written, and refused by whoever was to play it: make some of the partitions larger."""
    loads = [(1001, ReplicaRole.LEADER), (1002, ReplicaRole.LEADER), (1003, ReplicaRole.FOLLOWER)]
    decisions = [replace(builders.decision(*port), utilization=mb(10), capacity=mb(100)) for port in loads]
    state = admin_pb2.GetClusterStateResponse(last_cycle=cycle_to_message(builders.cycle_record(decisions=decisions)))
    paths = [
        admin_pb2.ReassignmentPath(leader=1001, follower=1003, partitions=40_000, bytes_left=80 * GB),
        admin_pb2.ReassignmentPath(leader=1002, follower=1003, partitions=20_000, bytes_left=20 * GB),
    ]
    file = tmp_path / "large.toml"
    file.write_text(scenario_text(state, admin_pb2.ListReassignmentsResponse(paths=paths), builders.NOON))
    moves = read_scenario(file).moves
    carried = {leader: sum(move.size for move in moves if move.replicas == (leader,)) for leader in (1001, 1002)}
    assert carried == {1001: pytest.approx(80 * GB, rel=0.001), 1002: pytest.approx(20 * GB, rel=0.001)}
    assert 4_990 < len(moves) <= 5_000
    with pytest.raises(Missing, match=r"5001 paths .* at most 5000\. Fix: "):
        fitting([1] * 5_001)


def test_what_makes_no_scenario_is_said(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: str) -> str:
        assert main(["simulate", "--from-cluster", *arguments]) == 1
        return capsys.readouterr().err

    assert "nothing moves that is still to be copied" in refused(house.address("admin"))
    house.cluster.start_reassignment("t", {0: (1001, 1003)})
    assert "what broker 1001 has still to send to broker 1003 is unknown" in refused(house.address("admin"))
    assert "admin" in refused("127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nohost"], "from-cluster: 'nohost' (flag --from-cluster) has no host:port in 'nohost'"),
        (["h:99999"], "has no port from 1 to 65535"),
        ([""], "--from-cluster is empty"),
        (
            ["h:1", "--policy=static"],
            "--policy means nothing with --from-cluster. Fix: remove it; there are --tls-cert",
        ),
        (["h:1", "--tls-cert", PEM], "tls-cert without tls-key and tls-ca; TLS is mutual"),
        (["h:1", "--tls-crt", PEM], "did you mean --tls-cert?"),
    ],
)
def test_an_address_that_is_none_is_refused_and_so_are_flags_that_mean_nothing(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["simulate", "--from-cluster", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_cluster_whose_services_speak_tls_is_asked_with_a_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    class Idle(AdminServiceServicer):
        def GetClusterState(self, request: Any, context: Any) -> admin_pb2.GetClusterStateResponse:
            return admin_pb2.GetClusterStateResponse()

        def ListReassignments(self, request: Any, context: Any) -> admin_pb2.ListReassignmentsResponse:
            return admin_pb2.ListReassignmentsResponse()

    service = (add_AdminServiceServicer_to_server, Idle(), "autothrottle.v1.AdminService")  # type: ignore[abstract]
    credentials = Tls(TlsFiles(SERVER, SERVER, AUTHORITIES)).server_credentials()
    with ServiceServer("admin", [service], "127.0.0.1:0", credentials=credentials) as server:
        flags = ["--tls-cert", PEM, "--tls-key", PEM, "--tls-ca", AUTHORITIES]
        assert main(["simulate", "--from-cluster", server.address, *flags]) == 1
    assert "nothing moves that is still to be copied" in capsys.readouterr().err


def test_a_broker_under_an_override_is_named_with_the_reason(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.overrides.set_override(None, mb(5), False)
    house.cluster.tell_progress()
    house.cluster.start_reassignment("t", {0: (1001, 1003)})

    def is_said() -> bool:
        assert main(["simulate", "--from-cluster", house.address("admin")]) == 1
        said = capsys.readouterr().err
        return "the load of broker 1001, which an override rules. Fix: remove the override" in said

    eventually(is_said)

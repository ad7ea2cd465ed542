"""Plans on six brokers of Kafka 4.3 in three racks, executed under throttle: a lost rack, and a decommission."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.topicmappr.command_line import main
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import scratch_directory
from tests.server_fixtures import SCALED_FETCHES
from tests.system.recovery_watch import running_services, state_options

pytestmark = pytest.mark.repeat

RACKS = dict(zip(range(1001, 1007), "abcabc", strict=True))
TOPIC, PARTITIONS, SECONDS = "racked", 12, 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[KraftCluster]:
    with (
        scratch_directory() as directory,
        KraftCluster(directory, tuple(RACKS), broker_properties=SCALED_FETCHES, racks=RACKS) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: KraftCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """All services in one process; the address of the admin service."""
    options = {"min-rate": "1", "kafka-bootstrap-controllers": cluster.bootstrap_controllers}
    with (
        state_options(cluster) as of_cluster,
        running_services(options | of_cluster, tmp_path_factory.mktemp("racks"), SECONDS) as address,
    ):
        yield address


@pytest.fixture
def topic(cluster: KraftCluster) -> Iterator[str]:
    """A topic with one replica of each partition in each rack, and with bytes of uneven size."""
    sets = {p: [1001 + p % 3, 1001 + (p + 1) % 3, 1004 + (p + 2) % 3] for p in range(PARTITIONS)}
    cluster.create_topic(TOPIC, sets)
    try:
        fill(cluster, TOPIC, 300_000)
        yield TOPIC
    finally:
        cluster.delete_topic(TOPIC)


def racks_in_use(cluster: KraftCluster) -> list[int]:
    """Return the number of racks of each partition."""
    return [len({RACKS[id] for id in state.replicas}) for state in cluster.partitions([TOPIC]).values()]


def test_a_lost_rack_is_refused_and_then_allowed(
    cluster: KraftCluster, topic: str, admin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan put two replicas of every partition into one rack, and Kafka executed it. No warning said so."""
    initial_states = cluster.partitions([topic])
    arguments = ["rebuild", "--topics", topic, "--brokers", "1001,1002,1004,1005", f"--out-path={tmp_path}"]
    arguments += [f"--bootstrap-servers={cluster.bootstrap_servers}", "--execute", f"--admin-addr={admin}"]
    assert main([*arguments, "--ignore-warns"]) == 1
    problem = f"{PARTITIONS} of {PARTITIONS} partitions would have two replicas in one rack"
    assert problem in capsys.readouterr().out
    assert cluster.partitions([topic]) == initial_states
    assert main([*arguments, "--allow-fewer-racks"]) == 0
    assert problem in capsys.readouterr().out
    cluster.wait_until_reassigned()
    assert racks_in_use(cluster) == [2] * PARTITIONS


def test_a_decommission_with_sizes_needs_no_consent(
    cluster: KraftCluster, topic: str, admin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rise of the storage range, which the racks force, stopped the command. Nothing was submitted."""
    flags = [f"--bootstrap-servers={cluster.bootstrap_servers}", f"--out-path={tmp_path}"]
    try:
        assert main(["decommission", "1006", "--topics", topic, *flags, "--execute", f"--admin-addr={admin}"]) == 0
        out = capsys.readouterr().out
        assert "Cordoned: 1006\n" in out and "WARN:\n  [none]\n" in out
        cluster.wait_until_reassigned()
        states = cluster.partitions([topic])
        assert all(1006 not in state.replicas for state in states.values())
        assert racks_in_use(cluster) == [3] * PARTITIONS
    finally:
        assert main(["uncordon", "1006", flags[0]]) == 0

"""topicmappr's plans executed under throttle on Kafka 4.3: a broker is decommissioned, and a killed one replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.core.cluster.configs import THROTTLE_KEYS
from autothrottle.core.placement.plan import DecommissionOptions, PlanScope
from autothrottle.topicmappr.command_line import main
from autothrottle_client.admin import AdminClient
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import Partition
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.system.recovery_watch import FOLLOWER_RATE, admin_backend_options, running_services

SECONDS = 120.0
LEAVING = 1005
TOPIC = "drained"


@pytest.fixture
def topic(kraft_cluster: KraftCluster) -> Iterator[str]:
    kraft_cluster.create_topic(TOPIC, {p: [LEAVING, 1001 + p % 3] for p in range(3)})
    try:
        fill(kraft_cluster, TOPIC, 1_000_000)
        yield TOPIC
    finally:
        kraft_cluster.delete_topic(TOPIC)


@pytest.fixture(scope="module")
def admin(
    kraft_cluster: KraftCluster, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """All services in one process; the address of the admin service."""
    options = {
        "zk-addr": zookeeper.connect,
        "zk-config-prefix": "decommission",
        "min-rate": "1",
        "kafka-bootstrap-controllers": kraft_cluster.bootstrap_controllers,
        **admin_backend_options(kraft_cluster),
    }
    with running_services(options, tmp_path_factory.mktemp("decommission"), SECONDS) as address:
        yield address


def cordon(cluster: KraftCluster) -> str | None:
    return cluster.stored_configs().get(f"brokers/{LEAVING}", {}).get("cordoned.log.dirs")


def throttled(cluster: KraftCluster) -> bool:
    return any(config.keys() & {*THROTTLE_KEYS} for config in cluster.stored_configs().values())


def logs(cluster: KraftCluster) -> dict[tuple[int, Partition], int]:
    """Return (broker id, partition) -> bytes of each log of the topic."""
    return {(id, row): size for id in cluster.brokers for row, size in cluster.log_bytes(id).items() if row[0] == TOPIC}


def test_the_service_plans_in_a_process_of_its_own(topic: str, admin: str) -> None:
    """It reads the brokers itself, sizes and free storage included."""
    options = DecommissionOptions(scope=PlanScope((topic,)), leaving=(LEAVING,))
    with AdminClient(admin) as client:
        plan = client.plan_placement(options)
    assert sorted(plan.targets) == [(topic, partition) for partition in range(3)]
    assert all(LEAVING not in replicas for replicas in plan.targets.values())
    assert plan.copied_bytes > 1_000_000


def test_a_killed_broker_is_replaced_under_throttle(
    kraft_cluster: KraftCluster, topic: str, admin: str, tmp_path: Path
) -> None:
    kraft_cluster.kill_broker(LEAVING)
    try:
        eventually(lambda: LEAVING not in {state.leader for state in kraft_cluster.partitions([topic]).values()})
        arguments = ["rebuild", "--topics", topic, "--brokers", "1001,1002,1003,1004", f"--out-path={tmp_path}"]
        cluster = [f"--bootstrap-servers={kraft_cluster.bootstrap_servers}", "--ignore-warns"]
        assert main([*arguments, *cluster, "--execute", f"--admin-addr={admin}"]) == 0
        assert throttled(kraft_cluster)
        kraft_cluster.wait_until_reassigned()
        assert all(LEAVING not in state.replicas for state in kraft_cluster.partitions([topic]).values())
        eventually(lambda: not throttled(kraft_cluster))
    finally:
        kraft_cluster.start_broker(LEAVING)


def test_a_failed_id_is_replaced_in_a_pool_under_throttle(
    kraft_cluster: KraftCluster, topic: str, admin: str, tmp_path: Path
) -> None:
    """The file lists 1004 instead of the failed broker. Only its replicas move, and a check finds no drift then."""
    kraft_cluster.create_topic("test_topic1", {p: [1001 + p % 2, 1002 - p % 2] for p in range(4)})
    kraft_cluster.kill_broker(LEAVING)
    file = tmp_path / "pools.toml"
    file.write_text(
        '[pools.pool1]\ntopics = ["test_topic.*"]\nbrokers = [1001, 1002]\nreplication = 2\nshared = true\n'
        f'[pools.pool2]\ntopics = ["{topic}"]\nbrokers = [1001, 1002, 1003, 1004]\nshared = true\n'
    )
    arguments = ["apply", str(file), f"--bootstrap-servers={kraft_cluster.bootstrap_servers}", f"--out-path={tmp_path}"]
    try:
        eventually(lambda: LEAVING not in {state.leader for state in kraft_cluster.partitions([topic]).values()})
        before = kraft_cluster.partitions([topic, "test_topic1"])
        assert main([*arguments, "--check"]) == 3
        assert main([*arguments, "--execute", f"--admin-addr={admin}"]) == 0
        assert throttled(kraft_cluster)
        # Reassignments in progress count as done. A broker may not know at once that one has ended.
        eventually(lambda: main([*arguments, "--check"]) == 0)
        kraft_cluster.wait_until_reassigned()
        for row, state in kraft_cluster.partitions([topic, "test_topic1"]).items():
            assert state.replicas == tuple(1004 if id == LEAVING else id for id in before[row].replicas)
        eventually(lambda: not throttled(kraft_cluster))
        assert main([*arguments, "--check"]) == 0
    finally:
        kraft_cluster.start_broker(LEAVING)
        kraft_cluster.delete_topic("test_topic1")


def test_a_broker_is_cordoned_and_drained_under_throttle(
    kraft_cluster: KraftCluster, topic: str, admin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No more than the logs of the broker is copied: that is the least that its decommission needs."""
    before = logs(kraft_cluster)
    bound = sum(size for (id, _), size in before.items() if id == LEAVING)
    flags = [f"--bootstrap-servers={kraft_cluster.bootstrap_servers}"]
    target = ["decommission", str(LEAVING), *flags, "--topics", topic, f"--out-path={tmp_path}"]
    execution = ["--execute", f"--admin-addr={admin}"]
    assert main([*target, *execution]) == 1, "brokers without racks are a warning"
    assert "Cordoned: 1005\n" in (out := capsys.readouterr().out) and out.endswith("Uncordoned: 1005\n")
    assert cordon(kraft_cluster) is None
    assert main([*target, *execution, "--ignore-warns"]) == 0
    try:
        assert cordon(kraft_cluster) == "*"
        assert kraft_cluster.stored_configs()[f"topics/{topic}"]
        assert any(FOLLOWER_RATE in config for config in kraft_cluster.stored_configs().values())
        kraft_cluster.create_topic_anywhere("meanwhile", partitions=10, replication_factor=2)
        kraft_cluster.wait_until_reassigned()
        current = kraft_cluster.partitions([topic, "meanwhile"])
        assert len(current) == 13
        assert all(LEAVING not in state.replicas for state in current.values())
        copied = sum(size for log, size in logs(kraft_cluster).items() if log not in before)
        assert 0 < copied <= 1.05 * bound
        eventually(lambda: not throttled(kraft_cluster))
    finally:
        assert main(["uncordon", str(LEAVING), flags[0]]) == 0
        kraft_cluster.delete_topic("meanwhile")
    assert cordon(kraft_cluster) is None

"""The simulated cluster behaves like Kafka 3.9 towards a real ZooKeeper."""

import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import parse_reassignments
from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole
from autothrottle.core.cluster.flows import Flow
from autothrottle.core.errors import Missing, Unavailable
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.emulators.kafka import SimulatedKafka, format_reassignment
from autothrottle_lab.servers.processes import free_address
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from autothrottle_lab.simulation.cluster import Cluster, SimulatedBroker, SimulatedPartition
from tests.builders import eventually

LINK = 100 * MEGABYTE
FOLLOWER_RATE = ReplicaRole.FOLLOWER.rate_key
FOLLOWER_LIST = ReplicaRole.FOLLOWER.replicas_key
LEADER_LIST = ReplicaRole.LEADER.replicas_key


class Operator:
    """A ZooKeeper client that reads and writes like Kafka's tools, under one prefix."""

    def __init__(self, connect: str, prefix: str) -> None:
        self.prefix = prefix
        # One test stops ZooKeeper for ten seconds, which is kazoo's default session timeout.
        self.client = KazooClient(hosts=connect, timeout=60.0)
        self.client.start()

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def exists(self, path: str) -> bool:
        return self.client.exists(self.prefix + path) is not None

    def children(self, path: str) -> list[str]:
        return sorted(self.client.get_children(self.prefix + path))

    def read(self, path: str) -> Any:
        return json.loads(self.client.get(self.prefix + path)[0])

    def write(self, path: str, content: bytes) -> None:
        self.client.ensure_path(self.prefix + path)
        self.client.set(self.prefix + path, content)

    def set_config(self, entity_path: str, config: Mapping[str, Any], notify: bool = True) -> None:
        self.write(f"/config/{entity_path}", json.dumps({"version": 1, "config": config}).encode())
        if notify:
            self.notify(json.dumps({"version": 2, "entity_path": entity_path}).encode())

    def notify(self, content: bytes) -> None:
        self.client.create(f"{self.prefix}/config/changes/config_change_", content, sequence=True, makepath=True)

    def reassign(self, targets: Mapping[tuple[str, int], tuple[int, ...]]) -> None:
        content = format_reassignment(targets)
        self.client.create(f"{self.prefix}/admin/reassign_partitions", content)

    def state(self, topic: str, partition: int) -> Any:
        return self.read(f"/brokers/topics/{topic}/partitions/{partition}/state")


@pytest.fixture
def operator(zookeeper: ZooKeeperServer) -> Iterator[Operator]:
    operator = Operator(zookeeper.connect, f"/simulated-{uuid.uuid4().hex}")
    yield operator
    operator.close()


def small_cluster(size: int = 1_000 * MEGABYTE) -> Cluster:
    """Brokers 1, 2 and 3 are alive and 9 is dead. `t-0` is on 9 and 1; `t-1`, four times as large, is on 9 and 2."""
    brokers = [SimulatedBroker(broker_id, Capacity(LINK, LINK)) for broker_id in (1, 2, 3)]
    partitions = [
        SimulatedPartition(topic="t", partition=p, size=size * (1 + 3 * p), replicas=(9, leader), isr=(leader,))
        for p, leader in enumerate((1, 2))
    ]
    return Cluster(brokers, partitions)


TARGETS = {("t", 0): (3, 1), ("t", 1): (3, 2)}


def live(zookeeper: ZooKeeperServer, operator: Operator, cluster: Cluster) -> SimulatedKafka:
    return SimulatedKafka(zookeeper.connect, cluster, operator.prefix)


def bytes_copied_in(kafka: SimulatedKafka, seconds: float) -> int:
    bytes_left = kafka.inspect(Cluster.bytes_left)
    time.sleep(seconds)
    return bytes_left - kafka.inspect(Cluster.bytes_left)


def test_cluster_writes_kafkas_znodes_and_deletes_its_broker_ids_at_the_end(
    zookeeper: ZooKeeperServer, operator: Operator
) -> None:
    with live(zookeeper, operator, small_cluster()):
        assert operator.children("/brokers/ids") == ["1", "2", "3"]
        assert operator.read("/brokers/ids/1")["endpoints"]
        topic = operator.read("/brokers/topics/t")
        assert topic.pop("topic_id")
        assert topic == {
            "partitions": {"0": [9, 1], "1": [9, 2]},
            "adding_replicas": {},
            "removing_replicas": {},
            "version": 3,
        }
        assert operator.state("t", 1) == {
            "controller_epoch": 1,
            "leader": 2,
            "version": 1,
            "leader_epoch": 0,
            "isr": [2],
        }
        assert operator.read("/config/topics/t") == {"version": 1, "config": {}}
        assert operator.children("/config/changes") == []
        assert not operator.exists("/admin/reassign_partitions")
    assert operator.children("/brokers/ids") == []
    assert operator.exists("/brokers/topics/t")


def test_reassignment_through_the_znode_starts_and_deletes_the_znode_at_its_end(
    zookeeper: ZooKeeperServer, operator: Operator
) -> None:
    seen: list[dict[tuple[str, int], tuple[int, ...]]] = []
    with live(zookeeper, operator, small_cluster(100 * MEGABYTE)):
        operator.reassign(TARGETS)

        @operator.client.DataWatch(f"{operator.prefix}/admin/reassign_partitions")  # type: ignore[untyped-decorator]
        def remember(content: bytes | None, _: object) -> None:
            seen.append(parse_reassignments(content) if content else {})

        eventually(lambda: bool(operator.read("/brokers/topics/t")["adding_replicas"]), 2)
        topic = operator.read("/brokers/topics/t")
        assert topic["partitions"] == {"0": [3, 1, 9], "1": [3, 2, 9]}
        assert topic["adding_replicas"] == {"0": [3], "1": [3]}
        assert topic["removing_replicas"] == {"0": [9], "1": [9]}
        eventually(lambda: 3 in operator.state("t", 0)["isr"])
        assert operator.state("t", 1)["isr"] == [2]
        eventually(lambda: operator.read("/brokers/topics/t")["adding_replicas"] == {"1": [3]})
        eventually(lambda: not operator.exists("/admin/reassign_partitions"))
        topic = operator.read("/brokers/topics/t")
        assert topic["partitions"] == {"0": [3, 1], "1": [3, 2]}
        assert topic["adding_replicas"] == topic["removing_replicas"] == {}
        assert sorted(operator.state("t", 1)["isr"]) == [2, 3]
        eventually(lambda: seen[-1] == {})
    assert seen == [TARGETS, {("t", 1): (3, 2)}, {}]


def test_reassignment_through_the_admin_api_shows_in_the_topic_znode_only(
    zookeeper: ZooKeeperServer, operator: Operator
) -> None:
    with live(zookeeper, operator, small_cluster(50 * MEGABYTE)) as kafka:
        kafka.reassign(TARGETS)
        eventually(lambda: operator.read("/brokers/topics/t")["adding_replicas"] == {"0": [3], "1": [3]}, 2)
        assert not operator.exists("/admin/reassign_partitions")
        eventually(lambda: not kafka.inspect(Cluster.moving))
        eventually(lambda: operator.read("/brokers/topics/t")["partitions"] == {"0": [3, 1], "1": [3, 2]})


def test_config_takes_effect_with_its_notification_and_not_before(
    zookeeper: ZooKeeperServer, operator: Operator
) -> None:
    with live(zookeeper, operator, small_cluster(10_000 * MEGABYTE)) as kafka:
        operator.set_config("brokers/3", {FOLLOWER_RATE: "1000000"}, notify=False)
        operator.set_config("topics/t", {FOLLOWER_LIST: "0:3,1:3"}, notify=False)
        kafka.reassign(TARGETS)
        assert bytes_copied_in(kafka, 1.5) > 50 * MEGABYTE
        operator.set_config("brokers/3", {FOLLOWER_RATE: "1000000"})
        operator.set_config("topics/t", {FOLLOWER_LIST: "0:3,1:3"})
        time.sleep(0.5)
        assert bytes_copied_in(kafka, 3) <= 1.25 * 3 * MEGABYTE + 2 * MEGABYTE
        operator.set_config("brokers/3", {}, notify=False)
        assert bytes_copied_in(kafka, 2) <= 1.25 * 2 * MEGABYTE + 2 * MEGABYTE
        operator.set_config("brokers/3", {})
        time.sleep(0.5)
        assert bytes_copied_in(kafka, 1.5) > 50 * MEGABYTE


def rate_of(cluster: Cluster, broker_id: int) -> int | None:
    return cluster.brokers[broker_id].inbound.rate


def test_configs_present_at_the_start_apply(zookeeper: ZooKeeperServer, operator: Operator) -> None:
    operator.set_config("brokers/3", {FOLLOWER_RATE: "7000000", "log.cleaner.threads": "2"})
    operator.set_config("topics/t", {FOLLOWER_LIST: "*"})
    cluster = small_cluster()
    with live(zookeeper, operator, cluster) as kafka:
        eventually(lambda: rate_of(cluster, 3) == 7_000_000)
        kafka.reassign(TARGETS)
        time.sleep(1)
        assert kafka.inspect(lambda cluster: cluster.unthrottled_bytes) == 0
        assert operator.read("/config/topics/t") == {"version": 1, "config": {FOLLOWER_LIST: "*"}}


def test_default_rate_applies_to_brokers_without_their_own_rate(zookeeper: ZooKeeperServer, operator: Operator) -> None:
    cluster = small_cluster()
    with live(zookeeper, operator, cluster):
        operator.set_config("brokers/<default>", {FOLLOWER_RATE: "5000000"})
        operator.set_config("brokers/3", {FOLLOWER_RATE: "9000000"})
        eventually(lambda: (rate_of(cluster, 1), rate_of(cluster, 3)) == (5_000_000, 9_000_000))
        operator.set_config("brokers/3", {})
        eventually(lambda: rate_of(cluster, 3) == 5_000_000)
        operator.set_config("brokers/<default>", {})
        eventually(lambda: rate_of(cluster, 1) is None)


@pytest.mark.parametrize(
    ("config", "warning"),
    [
        ({FOLLOWER_RATE: "fast"}, "fast"),
        ({FOLLOWER_RATE: 5}, "not a string"),
    ],
)
def test_invalid_config_is_refused_and_the_old_one_stays(
    zookeeper: ZooKeeperServer,
    operator: Operator,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, object],
    warning: str,
) -> None:
    cluster = small_cluster()
    with live(zookeeper, operator, cluster):
        operator.set_config("brokers/3", {FOLLOWER_RATE: "9000000"})
        eventually(lambda: rate_of(cluster, 3) == 9_000_000)
        operator.set_config("brokers/3", config)
        operator.set_config("brokers/2", {FOLLOWER_RATE: "8000000"})
        eventually(lambda: rate_of(cluster, 2) == 8_000_000)
        assert rate_of(cluster, 3) == 9_000_000
    assert any(r.levelno == logging.WARNING and warning in r.getMessage() for r in caplog.records)


def lists_of(cluster: Cluster) -> dict[str, str]:
    return cluster.controller.configs[ConfigResource.topic("t")]


def test_malformed_list_is_refused_and_the_old_one_stays(
    zookeeper: ZooKeeperServer, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = small_cluster()
    with live(zookeeper, operator, cluster):
        operator.set_config("topics/t", {FOLLOWER_LIST: "0:3,1:3"})
        eventually(lambda: lists_of(cluster) == {FOLLOWER_LIST: "0:3,1:3"})
        operator.set_config("topics/t", {FOLLOWER_LIST: "everything", LEADER_LIST: "*"})
        eventually(lambda: "everything" in caplog.text)
        assert lists_of(cluster) == {FOLLOWER_LIST: "0:3,1:3"}
        operator.set_config("topics/t", {})
        eventually(lambda: lists_of(cluster) == {})


def test_negative_rate_means_unthrottled(
    zookeeper: ZooKeeperServer, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = small_cluster()
    with live(zookeeper, operator, cluster):
        operator.set_config("brokers/3", {FOLLOWER_RATE: "9000000"})
        eventually(lambda: rate_of(cluster, 3) == 9_000_000)
        operator.set_config("brokers/3", {FOLLOWER_RATE: "-1"})
        eventually(lambda: rate_of(cluster, 3) is None)
    assert "negative" in caplog.text


def test_unreadable_config_znode_counts_as_empty(
    zookeeper: ZooKeeperServer, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = small_cluster()
    with live(zookeeper, operator, cluster):
        operator.set_config("brokers/3", {FOLLOWER_RATE: "9000000"})
        eventually(lambda: rate_of(cluster, 3) == 9_000_000)
        operator.write("/config/brokers/3", b'{"version":1,"config":null}')
        operator.notify(b'{"version":2,"entity_path":"brokers/3"}')
        eventually(lambda: rate_of(cluster, 3) is None)
    assert "/config/brokers/3" in caplog.text


@pytest.mark.parametrize("content", [b"", b"nonsense", b'{"version":2}', b'{"version":3,"entity_path":"brokers/3"}'])
def test_malformed_notification_is_refused_and_the_next_one_applies(
    zookeeper: ZooKeeperServer, operator: Operator, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    cluster = small_cluster()
    with live(zookeeper, operator, cluster):
        operator.notify(content)
        operator.set_config("brokers/3", {FOLLOWER_RATE: "9000000"})
        eventually(lambda: rate_of(cluster, 3) == 9_000_000)
    assert "notification config_change_" in caplog.text


def test_invalid_partitions_of_a_reassignment_are_skipped_and_the_others_are_copied(
    zookeeper: ZooKeeperServer, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    with live(zookeeper, operator, small_cluster(20 * MEGABYTE)):
        operator.reassign({("t", 0): (3, 1), ("t", 1): (77,), ("u", 0): (1,)})
        eventually(lambda: not operator.exists("/admin/reassign_partitions"))
        assert operator.read("/brokers/topics/t")["partitions"] == {"0": [3, 1], "1": [9, 2]}
    assert "77" in caplog.text
    assert "u-0" in caplog.text


def test_unreadable_reassignment_is_ignored(
    zookeeper: ZooKeeperServer, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    with live(zookeeper, operator, small_cluster(20 * MEGABYTE)):
        operator.write("/admin/reassign_partitions", b'{"version":1,')
        eventually(lambda: "Ignoring the reassignment" in caplog.text)
        assert operator.read("/brokers/topics/t")["adding_replicas"] == {}
        operator.write("/admin/reassign_partitions", format_reassignment(TARGETS))
        eventually(lambda: not operator.exists("/admin/reassign_partitions"))
        assert operator.read("/brokers/topics/t")["partitions"] == {"0": [3, 1], "1": [3, 2]}


def test_samples_are_cumulative_and_carry_their_time(zookeeper: ZooKeeperServer, operator: Operator) -> None:
    samples: list[tuple[int, float, int, int]] = []
    cluster = small_cluster(10_000 * MEGABYTE)
    began = time.time()
    with SimulatedKafka(zookeeper.connect, cluster, operator.prefix, lambda *sample: samples.append(sample)) as kafka:
        kafka.reassign(TARGETS)
        eventually(lambda: len(samples) >= 30)
    of_broker_3 = [(at, inbound) for broker_id, at, _, inbound in samples if broker_id == 3]
    assert {broker_id for broker_id, *_ in samples} == {1, 2, 3}
    assert began - 0.5 <= of_broker_3[0][0] <= of_broker_3[-1][0] <= time.time() + 0.5
    assert of_broker_3 == sorted(of_broker_3)
    (first, before), (last, after) = of_broker_3[0], of_broker_3[-1]
    assert (last - first) / (len(of_broker_3) - 1) == pytest.approx(0.2, rel=0.1)
    assert (after - before) / (last - first) == pytest.approx(LINK, rel=0.1)


def test_simulated_cluster_survives_a_restart_of_zookeeper(fresh_zookeeper: ZooKeeperServer) -> None:
    operator = Operator(fresh_zookeeper.connect, "")
    cluster = small_cluster(200 * MEGABYTE)
    with SimulatedKafka(fresh_zookeeper.connect, cluster, session_timeout_seconds=2) as kafka:
        operator.reassign(TARGETS)
        eventually(lambda: len(kafka.inspect(Cluster.moving)) == 2)
        operator.close()  # its session could expire
        fresh_zookeeper.kill()
        eventually(lambda: not kafka.inspect(Cluster.moving), 20)
        fresh_zookeeper.start()
        operator = Operator(fresh_zookeeper.connect, "")
        eventually(lambda: not operator.exists("/admin/reassign_partitions"), 30)
        assert operator.read("/brokers/topics/t")["partitions"] == {"0": [3, 1], "1": [3, 2]}
        eventually(lambda: operator.children("/brokers/ids") == ["1", "2", "3"], 30)
        time.sleep(3)  # longer than the old session, whose ephemeral znodes are gone now
        eventually(lambda: operator.children("/brokers/ids") == ["1", "2", "3"], 30)
    operator.close()


def test_simulated_cluster_stops_while_zookeeper_is_down(fresh_zookeeper: ZooKeeperServer) -> None:
    kafka = SimulatedKafka(fresh_zookeeper.connect, small_cluster(), session_timeout_seconds=2)
    kafka.start()
    fresh_zookeeper.kill()
    start = time.monotonic()
    kafka.close()
    assert time.monotonic() - start < 20


def test_error_names_the_unreachable_zookeeper() -> None:
    nowhere = free_address()
    with (
        pytest.raises(Unavailable, match=nowhere),
        SimulatedKafka(nowhere, small_cluster(), connect_timeout_seconds=1),
    ):
        pass


def test_model_counts_the_copied_bytes_of_each_flow(zookeeper: ZooKeeperServer, operator: Operator) -> None:
    with live(zookeeper, operator, small_cluster(50 * MEGABYTE)) as kafka:
        kafka.reassign(TARGETS)
        eventually(lambda: not kafka.inspect(Cluster.moving))
        cluster = kafka.inspect(lambda cluster: cluster)
        assert round(cluster.unthrottled_bytes) == 250 * MEGABYTE
        inbound = cluster.brokers[3].inbound
        assert inbound.total == round(inbound.replication) == 250 * MEGABYTE
        copied = {flow: round(amount) for flow, amount in cluster.flow_bytes.items()}
        assert copied == {Flow(1, 3): 50 * MEGABYTE, Flow(2, 3): 200 * MEGABYTE}


def test_reassignment_of_an_unknown_partition_is_missing(zookeeper: ZooKeeperServer, operator: Operator) -> None:
    with live(zookeeper, operator, small_cluster()) as kafka, pytest.raises(Missing, match="u-0"):
        kafka.reassign({("u", 0): (1,)})

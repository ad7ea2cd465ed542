"""The lab's Kafka clusters: reassignments, throttles, configs, the metadata log, and traffic counted from log sizes."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle_lab.observation.metadata_log import (
    BrokerFenced,
    ConfigWritten,
    MetadataLog,
    PartitionWritten,
    TopicDeleted,
)
from autothrottle_lab.observation.traffic import BrokerCounters, ProducerLoad, TrafficCounters, fill
from autothrottle_lab.servers.kafka import KafkaCluster, Partition
from autothrottle_lab.servers.kafka_kraft import CONTROLLER_ID, KraftCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.server_fixtures import repeat_on_kraft

MB = 1_000_000
LEADER_RATE = "leader.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
OLDEST = "2.4.0"
"""The first Kafka with KIP-455, and the first one built for Scala 2.13; it runs on Java 17."""


@contextmanager
def topic(cluster: KafkaCluster, name: str, assignment: dict[int, list[int]]) -> Iterator[str]:
    cluster.create_topic(name, assignment)
    try:
        yield name
    finally:
        cluster.delete_topic(name)


@contextmanager
def throttled(cluster: KafkaCluster, topic: str, rate: int, leader: int, followers: Sequence[int]) -> Iterator[None]:
    sides = {leader: "leader.replication.throttled"} | dict.fromkeys(followers, "follower.replication.throttled")
    lists: dict[str, str | None] = {f"{side}.replicas": "*" for side in sides.values()}
    cluster.set_configs_as_a_user(lists, topic=topic)
    for broker_id, side in sides.items():
        cluster.set_configs_as_a_user({f"{side}.rate": str(rate)}, broker_id=broker_id)
    for broker_id, side in sides.items():  # a broker applies configs in order, so the rate is the last one
        eventually(lambda b=broker_id, s=side: cluster.described_configs(b).get(f"{s}.rate") == str(rate))  # type: ignore[misc]
    try:
        yield
    finally:
        cluster.set_configs_as_a_user(dict.fromkeys(lists), topic=topic)
        for broker_id, side in sides.items():
            cluster.set_configs_as_a_user({f"{side}.rate": None}, broker_id=broker_id)


# Brokers


def test_five_brokers_run(each_cluster: KafkaCluster) -> None:
    assert all(broker.running and broker.listening for broker in each_cluster.brokers.values())


def test_brokers_map_the_archive_of_loaded_classes(each_cluster: KafkaCluster) -> None:
    archive = f"kafka-{each_cluster.version}.jsa"
    assert archive in Path(f"/proc/{each_cluster.brokers[1001].pid}/maps").read_text()


def test_controller_has_its_own_process_and_knows_every_broker(kraft_cluster: KraftCluster) -> None:
    processes = [kraft_cluster.controller, *kraft_cluster.brokers.values()]
    assert len({process.pid for process in processes if process.running}) == 6
    assert kraft_cluster.metadata.brokers() == set(kraft_cluster.brokers)


def test_stopped_broker_keeps_its_log_and_catches_up(each_cluster: KafkaCluster) -> None:
    with topic(each_cluster, "restarted", {0: [1001, 1005]}) as name:
        fill(each_cluster, name, 2 * MB)
        each_cluster.stop_broker(1005)
        assert each_cluster.brokers[1005].returncode == 143  # Java's exit status after SIGTERM
        assert each_cluster.log_bytes(1005)[name, 0] >= 2 * MB
        eventually(lambda: each_cluster.partitions([name])[name, 0].isr == (1001,))
        with pytest.raises(Unavailable):
            each_cluster.described_configs(1005)
        each_cluster.start_broker(1005)
        each_cluster.wait_until_in_sync([name])


@repeat_on_kraft
def test_killed_broker_restarts_after_its_session_has_expired(each_cluster: KafkaCluster) -> None:
    with topic(each_cluster, "killed", {0: [1005, 1001]}) as name:
        each_cluster.kill_broker(1005)
        eventually(lambda: each_cluster.partitions([name])[name, 0].leader == 1001)
        each_cluster.start_broker(1005)
        each_cluster.wait_until_in_sync([name])


def test_cluster_under_a_chroot_leaves_no_process_and_no_file(fresh_zookeeper: ZooKeeperServer) -> None:
    with scratch_directory() as directory:
        with ZooKeeperModeCluster(fresh_zookeeper.connect, directory, (7,), chroot="/kafka/eu") as cluster:
            cluster.create_topic("alone", {0: [7]}, {"retention.ms": "1000"})
            assert cluster.described_topic_configs("alone") == {"retention.ms": "1000"}
            assert cluster.stored_configs() == {"topics/alone": {"retention.ms": "1000"}}
            process = cluster.brokers[7]
        assert not process.running
        assert list(directory.iterdir()) == []
    written = {o.path for t in fresh_zookeeper.transactions() for o in t.operations if o.kind == "create"}
    assert "/kafka/eu/brokers/ids/7" in written
    assert "/brokers" not in written


@pytest.mark.repeat
def test_last_kafka_with_zookeeper_runs_in_kraft_mode_too() -> None:
    with scratch_directory() as directory:
        with KraftCluster(directory, (7,), version="3.9.2") as cluster:
            cluster.create_topic("alone", {0: [7]}, {"retention.ms": "1000"})
            assert cluster.described_topic_configs("alone") == {"retention.ms": "1000"}
            assert cluster.stored_configs() == {"topics/alone": {"retention.ms": "1000"}}
            processes = [cluster.controller, cluster.brokers[7]]
        assert not any(process.running for process in processes)
        assert list(directory.iterdir()) == []


def test_broker_with_the_controllers_id_is_refused() -> None:
    with scratch_directory() as directory, pytest.raises(Invalid, match="9000 is the controller's"):
        KraftCluster(directory, (1, CONTROLLER_ID))


@pytest.mark.repeat
def test_oldest_kafka_starts_and_reassigns_a_partition(fresh_zookeeper: ZooKeeperServer) -> None:
    with (
        scratch_directory() as directory,
        ZooKeeperModeCluster(fresh_zookeeper.connect, directory, (1, 2), version=OLDEST) as cluster,
    ):
        cluster.create_topic("old", {0: [1]}, {"retention.ms": "-1"})
        cluster.set_configs_as_a_user({LEADER_RATE: "5000000"}, broker_id=1)
        assert cluster.stored_configs() == {
            "brokers/1": {LEADER_RATE: "5000000"},
            "topics/old": {"retention.ms": "-1"},
        }
        # A broker of this version shows that the throttle exists, but hides its value as that of an unknown config.
        eventually(lambda: cluster.described_sources(1).get(LEADER_RATE) == (None, "DYNAMIC_BROKER_CONFIG"))
        cluster.reassign_through_bootstrap({("old", 0): [2]})
        cluster.wait_until_reassigned()
        assert cluster.partitions()["old", 0].replicas == (2,)


# Reassignments


def test_reassignment_copies_the_data_and_deletes_the_old_replicas(each_cluster: KafkaCluster) -> None:
    with topic(each_cluster, "moved", {0: [1001, 1002], 1: [1002, 1003]}) as name:
        fill(each_cluster, name, 20 * MB)
        before = each_cluster.log_bytes(1001)[name, 0]
        assert before >= 20 * MB
        with throttled(each_cluster, name, MB // 2, 1001, (1004, 1005)):  # slow enough to observe the reassignment
            each_cluster.reassign_through_bootstrap({(name, 0): [1004, 1005]})
            assert each_cluster.reassigning() == {(name, 0)}
            state = each_cluster.partitions([name])[name, 0]
            assert (state.adding_replicas, state.removing_replicas) == ((1004, 1005), (1001, 1002))
        each_cluster.wait_until_reassigned()
        assert each_cluster.partitions([name])[name, 0].replicas == (1004, 1005)
        assert each_cluster.log_bytes(1004)[name, 0] == before
        assert each_cluster.log_bytes(1005)[name, 0] == before
        eventually(lambda: (name, 0) not in each_cluster.log_bytes(1001))
        assert (name, 1) in each_cluster.log_bytes(1002)


def test_cancelled_reassignment_keeps_the_original_replicas(each_cluster: KafkaCluster) -> None:
    with topic(each_cluster, "cancelled", {0: [1001, 1002]}) as name:
        fill(each_cluster, name, 20 * MB)
        with throttled(each_cluster, name, MB // 2, 1001, (1004,)):
            each_cluster.reassign_through_bootstrap({(name, 0): [1001, 1004]})
            assert each_cluster.reassigning() == {(name, 0)}
            each_cluster.reassign_through_bootstrap({(name, 0): None})
            each_cluster.wait_until_reassigned()
        assert each_cluster.partitions([name])[name, 0].replicas == (1001, 1002)
        eventually(lambda: (name, 0) not in each_cluster.log_bytes(1004))


def test_reassignment_to_an_unknown_broker_is_refused(each_cluster: KafkaCluster) -> None:
    with (
        topic(each_cluster, "refused", {0: [1001]}) as name,
        pytest.raises(Invalid, match=r"refuses to reassign.*refused-0"),
    ):
        each_cluster.reassign_through_bootstrap({(name, 0): [4711]})


def test_second_reassignment_through_the_znode_is_refused_during_the_first(kafka_cluster: ZooKeeperModeCluster) -> None:
    with topic(kafka_cluster, "znode", {0: [1001]}) as name:
        fill(kafka_cluster, name, 20 * MB)
        with throttled(kafka_cluster, name, MB // 2, 1001, (1004,)):
            kafka_cluster.reassign_through_znode({(name, 0): [1004]})
            assert kafka_cluster.reassigning() == {(name, 0)}
            with pytest.raises(Conflict, match="/admin/reassign_partitions is there already"):
                kafka_cluster.reassign_through_znode({(name, 0): [1003]})
        kafka_cluster.wait_until_reassigned()
        assert kafka_cluster.partitions([name])[name, 0].replicas == (1004,)


def test_throttle_set_by_a_user_limits_the_byte_rate(each_cluster: KafkaCluster) -> None:
    rate, size = 2 * MB, 40 * MB
    with topic(each_cluster, "throttled", {0: [1001]}) as name, BrokerCounters(each_cluster) as counters:
        fill(each_cluster, name, size)
        before = counters.sample()
        with throttled(each_cluster, name, rate, 1001, (1004,)):
            began = time.monotonic()
            each_cluster.reassign_through_bootstrap({(name, 0): [1004]})
            each_cluster.wait_until_reassigned(within_seconds=300)
            seconds = time.monotonic() - began
        after = counters.sample()
    received = after[1004].rx_bytes - before[1004].rx_bytes
    assert received == pytest.approx(size, rel=0.02)
    assert after[1001].tx_bytes - before[1001].tx_bytes == pytest.approx(received, rel=0.02)
    # An idle quota meter lets a whole window through at once (11 to 12 s of the rate), and then the rate.
    # Without a throttle, copying takes a second or two.
    assert received <= rate * (seconds + 12.0)


# Configs


def test_brokers_report_the_configs_of_a_user(each_cluster: KafkaCluster) -> None:
    with topic(each_cluster, "configured", {0: [1001]}) as name:
        each_cluster.set_configs_as_a_user({LEADER_RATE: "5000000", "log.cleaner.threads": "2"}, broker_id=1001)
        each_cluster.set_configs_as_a_user({LEADER_REPLICAS: "0:1001"}, topic=name)
        reported = {LEADER_RATE: "5000000", "log.cleaner.threads": "2"}
        eventually(lambda: each_cluster.described_configs(1001) == reported)
        assert each_cluster.described_configs(1002) == {}
        eventually(lambda: each_cluster.described_topic_configs(name) == {LEADER_REPLICAS: "0:1001"})
        stored = each_cluster.stored_configs()
        assert (stored["brokers/1001"], stored[f"topics/{name}"]) == (reported, {LEADER_REPLICAS: "0:1001"})
        each_cluster.set_configs_as_a_user({LEADER_RATE: None, "log.cleaner.threads": None}, broker_id=1001)
        eventually(lambda: each_cluster.described_configs(1001) == {})
        assert "brokers/1001" not in each_cluster.stored_configs()
        with pytest.raises(Invalid, match="Not a number"):
            each_cluster.set_configs_as_a_user({LEADER_RATE: "fast"}, broker_id=1001)
    assert f"topics/{name}" not in each_cluster.stored_configs()


def test_default_applies_to_brokers_without_their_own_value(each_cluster: KafkaCluster) -> None:
    def effective(broker_id: int) -> tuple[str | None, str] | None:
        return each_cluster.described_sources(broker_id).get(LEADER_RATE)

    default, own = ("7000000", "DYNAMIC_DEFAULT_BROKER_CONFIG"), ("5000000", "DYNAMIC_BROKER_CONFIG")
    each_cluster.set_configs_as_a_user({LEADER_RATE: "7000000"}, default=True)
    try:
        eventually(lambda: effective(1001) == effective(1002) == default)
        assert each_cluster.stored_configs()["brokers/<default>"][LEADER_RATE] == "7000000"
        each_cluster.set_configs_as_a_user({LEADER_RATE: "5000000"}, broker_id=1001)
        eventually(lambda: effective(1001) == own)
        assert effective(1002) == default
        each_cluster.set_configs_as_a_user({LEADER_RATE: None}, broker_id=1001)
        eventually(lambda: effective(1001) == default)
    finally:
        each_cluster.set_configs_as_a_user({LEADER_RATE: None}, default=True)
    eventually(lambda: effective(1001) is effective(1002) is None)
    assert LEADER_RATE not in each_cluster.stored_configs().get("brokers/<default>", {})


def test_sensitive_config_is_hidden_by_the_broker_and_stored_by_the_controller(each_cluster: KafkaCluster) -> None:
    password = "listener.name.plaintext.ssl.truststore.password"
    each_cluster.set_configs_as_a_user({password: "secret"}, broker_id=1002)
    try:
        eventually(lambda: each_cluster.described_sources(1002).get(password) == (None, "DYNAMIC_BROKER_CONFIG"))
        stored = each_cluster.stored_configs()["brokers/1002"][password]
        assert stored == "secret" or "encryptedPassword:" in stored  # encrypted in ZooKeeper
        each_cluster.set_configs_as_a_user({LEADER_RATE: "5000000"}, broker_id=1002)
        after = each_cluster.stored_configs()["brokers/1002"]
        assert after.keys() == {password, LEADER_RATE}
        # In ZooKeeper mode, Kafka encrypts the password again at every change through the Admin API.
        assert (after[password] == stored) == isinstance(each_cluster, KraftCluster)
    finally:
        each_cluster.set_configs_as_a_user({password: None, LEADER_RATE: None}, broker_id=1002)
    assert "brokers/1002" not in each_cluster.stored_configs()


@pytest.mark.parametrize("of", [{}, {"broker_id": 1, "topic": "t"}, {"topic": "t", "default": True}])
def test_configs_of_none_or_several_entities_are_refused(kraft_cluster: KraftCluster, of: dict[str, object]) -> None:
    with pytest.raises(Invalid, match="exactly one of them"):
        kraft_cluster.set_configs_as_a_user({LEADER_RATE: "1"}, **of)  # type: ignore[arg-type]


# The controller's metadata log


def test_metadata_log_contains_every_change_in_order(kraft_cluster: KraftCluster) -> None:
    log = kraft_cluster.metadata
    before = log.last_offset()
    kraft_cluster.create_topic("logged", {0: [1001]}, {LEADER_REPLICAS: "0:1001"})
    for _ in range(2):  # the second request changes nothing, but Kafka writes a record for it
        kraft_cluster.set_configs_as_a_user({LEADER_RATE: "5000000"}, broker_id=1001)
    kraft_cluster.reassign_through_bootstrap({("logged", 0): [1002]})
    kraft_cluster.wait_until_reassigned()
    kraft_cluster.set_configs_as_a_user({LEADER_RATE: None}, broker_id=1001)
    kraft_cluster.delete_topic("logged")
    records = kraft_cluster.metadata.records(before)
    changes = [r.change for r in records if not isinstance(r.change, PartitionWritten | BrokerFenced)]
    assert changes == [
        ConfigWritten("topics/logged", LEADER_REPLICAS, "0:1001"),
        ConfigWritten("brokers/1001", LEADER_RATE, "5000000"),
        ConfigWritten("brokers/1001", LEADER_RATE, "5000000"),
        ConfigWritten("brokers/1001", LEADER_RATE, None),
        TopicDeleted("logged"),
    ]
    states = [r.change.state for r in records if isinstance(r.change, PartitionWritten)]
    assert [(s.replicas, s.adding_replicas) for s in states][:2] == [((1001,), ()), ((1002, 1001), (1002,))]
    assert (states[-1].replicas, states[-1].adding_replicas, states[-1].isr) == ((1002,), (), (1002,))
    assert all(a.offset < b.offset and a.time <= b.time for a, b in pairwise(records))


def test_growing_metadata_log_is_read_up_to_the_last_complete_record(
    kraft_cluster: KraftCluster, tmp_path: Path
) -> None:
    (segment,) = (kraft_cluster.controller.logs / "__cluster_metadata-0").glob("*.log")
    content = segment.read_bytes()
    MetadataLog(tmp_path).records()  # the log does not exist yet
    (tmp_path / segment.name).write_bytes(content)
    whole = MetadataLog(tmp_path).records()
    assert len(whole) > 10
    growing = MetadataLog(tmp_path)
    for length in [*range(0, len(content), 997), len(content)]:
        (tmp_path / segment.name).write_bytes(content[:length])
        found = growing.records()
        assert found == whole[: len(found)]
    assert growing.records() == whole


# Traffic


def test_traffic_counters_of_every_broker_match_the_client_load(each_cluster: KafkaCluster) -> None:
    samples: list[Mapping[int, TrafficCounters]] = []
    assignment = {0: [1001, 1002], 1: [1003, 1002]}
    with topic(each_cluster, "loaded", assignment) as name, BrokerCounters(each_cluster) as counters:
        before = counters.sample()
        with ProducerLoad(each_cluster, {(name, 0): 1.5 * MB, (name, 1): 0.5 * MB}, record_bytes=10_000) as load:
            counters.call_every(0.2, samples.append)
            eventually(lambda: sum(load.sent_bytes.values()) > 2 * MB)
            load.set_total(6 * MB)
            eventually(lambda: sum(load.sent_bytes.values()) > 12 * MB)
            eventually(lambda: len(samples) > 3)
        logs: dict[int, dict[Partition, int]] = {}

        def replicated() -> bool:
            logs.update({broker_id: each_cluster.log_bytes(broker_id) for broker_id in each_cluster.brokers})
            return all(logs[b][name, p] == logs[1002][name, p] for p, b in ((0, 1001), (1, 1003)))

        eventually(replicated)
        after = counters.sample()
        sent = load.sent_bytes
        assert load.failures == []
        assert len(load.latencies) * 10_000 == sum(sent.values())
    assert sent.keys() == {1001, 1003}
    assert sent[1001] == pytest.approx(3 * sent[1003], rel=0.1)
    first, second = logs[1001][name, 0], logs[1003][name, 1]
    assert first == pytest.approx(sent[1001], rel=0.05)
    assert second == pytest.approx(sent[1003], rel=0.05)
    produced = {b: (after[b].rx_bytes - before[b].rx_bytes, after[b].tx_bytes - before[b].tx_bytes) for b in after}
    idle = (0, 0)
    assert produced == {
        **{1001: (first, first), 1002: (first + second, 0), 1003: (second, second)},
        **{1004: idle, 1005: idle},
    }
    assert all(a[1002].rx_bytes <= b[1002].rx_bytes for a, b in pairwise(samples))

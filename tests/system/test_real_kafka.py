"""The lab's Kafka is real: it moves data, obeys throttles, and its logs tell the traffic of every broker."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle.lab.kafka import KafkaCluster, Partition
from autothrottle.lab.processes import scratch_directory
from autothrottle.lab.traffic import BrokerCounters, ClientLoad, Counters, fill
from autothrottle.lab.zookeeper import ZooKeeperServer

MB = 1_000_000


@contextmanager
def topic(cluster: KafkaCluster, name: str, assignment: dict[int, list[int]]) -> Iterator[str]:
    cluster.create_topic(name, assignment)
    try:
        yield name
    finally:
        cluster.delete_topic(name)


@contextmanager
def throttled(cluster: KafkaCluster, topic: str, rate: int, leader: int, follower: int) -> Iterator[None]:
    sides = {leader: "leader.replication.throttled", follower: "follower.replication.throttled"}
    lists: dict[str, str | None] = {f"{side}.replicas": f"0:{broker_id}" for broker_id, side in sides.items()}
    cluster.set_configs_as_a_user(lists, topic=topic)
    for broker_id, side in sides.items():
        cluster.set_configs_as_a_user({f"{side}.rate": str(rate)}, broker_id=broker_id)
    try:
        yield
    finally:
        cluster.set_configs_as_a_user(dict.fromkeys(lists), topic=topic)
        for broker_id, side in sides.items():
            cluster.set_configs_as_a_user({f"{side}.rate": None}, broker_id=broker_id)


def wait_until(true: Callable[[], bool], within_seconds: float = 20.0) -> None:
    deadline = time.monotonic() + within_seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_five_brokers_are_up_within_forty_seconds(kafka_cluster: KafkaCluster) -> None:
    assert 0 < kafka_cluster.start_seconds < 40
    assert all(broker.process.running for broker in kafka_cluster.brokers.values())


@pytest.mark.parametrize("form", ["reassign_through_znode", "reassign_through_bootstrap"])
def test_a_reassignment_moves_the_data_in_both_forms(kafka_cluster: KafkaCluster, form: str) -> None:
    reassign: Callable[[dict[Partition, list[int]]], Any] = getattr(kafka_cluster, form)
    with topic(kafka_cluster, form, {0: [1001, 1002], 1: [1002, 1003]}) as name:
        fill(kafka_cluster, name, 20 * MB)
        before = kafka_cluster.log_bytes(1001)[name, 0]
        assert before >= 20 * MB
        reassign({(name, 0): [1004, 1005]})
        assert kafka_cluster.reassigning() == {(name, 0)}
        kafka_cluster.wait_until_reassigned()
        assert kafka_cluster.partitions([name])[name, 0].replicas == (1004, 1005)
        assert kafka_cluster.log_bytes(1004)[name, 0] == before
        assert kafka_cluster.log_bytes(1005)[name, 0] == before
        wait_until(lambda: (name, 0) not in kafka_cluster.log_bytes(1001))
        assert (name, 1) in kafka_cluster.log_bytes(1002)


def test_a_reassignment_to_an_unknown_broker_is_refused(kafka_cluster: KafkaCluster) -> None:
    with (
        topic(kafka_cluster, "refused", {0: [1001]}) as name,
        pytest.raises(Invalid, match=r"refuses to reassign.*refused-0"),
    ):
        kafka_cluster.reassign_through_bootstrap({(name, 0): [4711]})


def test_a_throttle_set_by_a_user_holds_the_byte_rate(kafka_cluster: KafkaCluster) -> None:
    rate = 4 * MB
    with topic(kafka_cluster, "throttled", {0: [1001]}) as name, BrokerCounters(kafka_cluster) as counters:
        fill(kafka_cluster, name, 80 * MB)
        before = counters.sample()
        with throttled(kafka_cluster, name, rate, leader=1001, follower=1004):
            began = time.monotonic()
            kafka_cluster.reassign_through_znode({(name, 0): [1004]})
            with pytest.raises(Conflict, match="/admin/reassign_partitions is there already"):
                kafka_cluster.reassign_through_znode({(name, 0): [1003]})
            kafka_cluster.wait_until_reassigned()
            seconds = time.monotonic() - began
        after = counters.sample()
    received = after[1004].rx_bytes - before[1004].rx_bytes
    assert received == pytest.approx(80 * MB, rel=0.02)
    assert after[1001].tx_bytes - before[1001].tx_bytes == pytest.approx(received, rel=0.02)
    # A meter that has been idle lets a whole window through at once (11 to 12 s of the rate), and then the rate.
    # Without a throttle all of it takes a second or two.
    assert received <= rate * (seconds + 12.0)
    assert received / seconds > rate * 0.3


def test_the_brokers_themselves_report_what_a_user_set(kafka_cluster: KafkaCluster) -> None:
    rate = "leader.replication.throttled.rate"
    with topic(kafka_cluster, "configured", {0: [1001]}) as name:
        kafka_cluster.set_configs_as_a_user({rate: "5000000", "log.cleaner.threads": "2"}, broker_id=1001)
        kafka_cluster.set_configs_as_a_user({"leader.replication.throttled.replicas": "0:1001"}, topic=name)
        reported = {rate: "5000000", "log.cleaner.threads": "2"}
        wait_until(lambda: kafka_cluster.described_configs(1001) == reported)
        assert kafka_cluster.described_configs(1002) == {}
        listed = {"leader.replication.throttled.replicas": "0:1001"}
        assert kafka_cluster.described_topic_configs(name) == listed
        kafka_cluster.set_configs_as_a_user({rate: None, "log.cleaner.threads": None}, broker_id=1001)
        wait_until(lambda: kafka_cluster.described_configs(1001) == {})
        with pytest.raises(Invalid, match="Not a number"):
            kafka_cluster.set_configs_as_a_user({rate: "fast"}, broker_id=1001)


def test_client_load_is_followed_by_the_counters_of_every_broker(kafka_cluster: KafkaCluster) -> None:
    samples: list[Mapping[int, Counters]] = []
    assignment = {0: [1001, 1002], 1: [1003, 1002]}
    with topic(kafka_cluster, "loaded", assignment) as name, BrokerCounters(kafka_cluster) as counters:
        with ClientLoad(kafka_cluster, {(name, 0): 1.5 * MB, (name, 1): 0.5 * MB}) as load:
            counters.call_every(0.2, samples.append)
            slow = rates_of(counters, 3.0)
            load.set_total(6 * MB)
            fast = rates_of(counters, 3.0)
        sent, received = load.sent_bytes, kafka_cluster.log_bytes(1001)[name, 0]
        assert load.failures == []
        assert len(load.latencies) * 10_000 == sum(sent.values())
    assert sent.keys() == {1001, 1003}
    assert sent[1001] == pytest.approx(received, rel=0.05)
    assert slow[1001] == pytest.approx((1.5 * MB, 1.5 * MB), rel=0.3)
    assert fast[1001] == pytest.approx((4.5 * MB, 4.5 * MB), rel=0.3)
    assert fast[1002] == pytest.approx((6 * MB, 0), rel=0.3)
    assert fast[1003] == pytest.approx((1.5 * MB, 1.5 * MB), rel=0.3)
    assert fast[1005] == (0, 0)
    assert len(samples) > 15
    assert all(a[1002].rx_bytes <= b[1002].rx_bytes for a, b in pairwise(samples))


def rates_of(counters: BrokerCounters, seconds: float) -> dict[int, tuple[float, float]]:
    """Return each broker's mean bytes per second (received, sent) of the next seconds."""
    began, before = time.monotonic(), counters.sample()
    time.sleep(seconds)
    after, took = counters.sample(), time.monotonic() - began
    return {b: ((rx - before[b][0]) / took, (tx - before[b][1]) / took) for b, (rx, tx) in after.items()}


def test_a_stopped_broker_keeps_its_log_and_catches_up(kafka_cluster: KafkaCluster) -> None:
    with topic(kafka_cluster, "restarted", {0: [1001, 1005]}) as name:
        fill(kafka_cluster, name, 2 * MB)
        kafka_cluster.stop_broker(1005)
        assert kafka_cluster.brokers[1005].process.returncode == 143  # Java ended by SIGTERM
        assert kafka_cluster.log_bytes(1005)[name, 0] >= 2 * MB
        assert kafka_cluster.partitions([name])[name, 0].isr == (1001,)
        with pytest.raises(Unavailable):
            kafka_cluster.described_configs(1005)
        kafka_cluster.start_broker(1005)
        kafka_cluster.wait_until_in_sync([name])


def test_a_killed_broker_starts_again_once_its_session_is_over(kafka_cluster: KafkaCluster) -> None:
    with topic(kafka_cluster, "killed", {0: [1005, 1001]}) as name:
        kafka_cluster.kill_broker(1005)
        wait_until(lambda: kafka_cluster.partitions([name])[name, 0].leader == 1001)
        kafka_cluster.start_broker(1005)
        kafka_cluster.wait_until_in_sync([name])


def test_a_cluster_below_a_chroot_leaves_nothing_behind(fresh_zookeeper: ZooKeeperServer) -> None:
    with scratch_directory() as directory:
        with KafkaCluster(fresh_zookeeper.connect, directory, (7,), chroot="/kafka/eu") as cluster:
            cluster.create_topic("alone", {0: [7]}, {"retention.ms": "1000"})
            assert cluster.described_topic_configs("alone") == {"retention.ms": "1000"}
            process = cluster.brokers[7].process
        assert not process.running
        assert list(directory.iterdir()) == []
    written = {o.path for t in fresh_zookeeper.transactions() for o in t.operations if o.kind == "create"}
    assert "/kafka/eu/brokers/ids/7" in written
    assert "/brokers" not in written

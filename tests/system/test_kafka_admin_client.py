"""The Admin API client against real brokers: 3.9 in ZooKeeper mode and 4.x in KRaft mode."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import TypeVar

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin import client as client_module
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation, KafkaSettings, PartitionReassignment
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    MAX_VALUE_BYTES,
)
from autothrottle.core.errors import Invalid, Missing, Unavailable
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import free_ports, scratch_directory
from tests.paths import CERTIFICATES
from tests.system.secured_cluster import LONG, PLAIN, SCRAM, SecuredCluster, connected, secured_cluster, token_login

T = TypeVar("T")
TLS = CERTIFICATES
PATIENCE_SECONDS = 60.0
SHORT = timedelta(seconds=3)
"""Timeout of requests to a broker that does not answer."""


def until(poll: Callable[[], T], accept: Callable[[T], bool]) -> T:
    """Call `poll` until `accept` accepts its value, and return it; brokers apply changes later than the controller."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not accept(found := poll()):
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.05)
    return found


def servers(addresses: str) -> tuple[str, ...]:
    return tuple(addresses.split(","))


def set_to(key: str, value: str) -> ConfigEdit:
    return ConfigEdit(key, ConfigOperation.SET, value)


def deletion(key: str) -> ConfigEdit:
    return ConfigEdit(key, ConfigOperation.DELETE)


@pytest.fixture
def admin(each_cluster: KafkaCluster) -> Iterator[KafkaAdmin]:
    settings = KafkaSettings(servers(each_cluster.bootstrap_servers), request_timeout=LONG)
    with closing(KafkaAdmin(settings)) as opened:
        yield opened


def rates(admin: KafkaAdmin, broker_id: int) -> Mapping[str, str | None]:
    """Return the rates set on the broker itself, not inherited from the default."""
    described = admin.broker_configs([broker_id]).values[broker_id]
    return {key: value.current for key, value in described.items() if value.current is not None}


def lists(admin: KafkaAdmin, topic: str) -> Mapping[str, str | None]:
    described = admin.topic_configs([topic]).values[topic]
    return {key: value.current for key, value in described.items() if value.current is not None}


def produce(cluster: KafkaCluster, topic: str, partitions: Sequence[int], bytes_each: int) -> None:
    """Write one message to each partition, and return when all in-sync replicas have it."""
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, acks="all", **CLIENT)
    with closing(producer):
        for partition in partitions:
            producer.send(topic, bytes(bytes_each), partition=partition).get(timeout=PATIENCE_SECONDS)


# Metadata and reassignments


def test_running_brokers_are_listed(each_cluster: KafkaCluster, admin: KafkaAdmin) -> None:
    assert admin.brokers() == each_cluster.brokers.keys()
    assert admin.fetch_hosts(LONG) == dict.fromkeys(each_cluster.brokers, ("127.0.0.1",))


def test_partitions_match_the_controller_metadata(
    each_cluster: KafkaCluster, admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client splits the request into requests of two topics each."""
    monkeypatch.setattr(client_module, "_TOPICS_AT_ONCE", 2)
    topics = [f"admin-where-{n}" for n in range(3)]
    for topic in topics:
        each_cluster.create_topic(topic, {0: [1001, 1002], 1: [1003, 1001]})
    try:
        answers = until(lambda: admin.partitions([*topics, "admin-nowhere"]), lambda a: len(a.values) == 3)
        for (topic, partition), state in each_cluster.partitions(topics).items():
            found = answers.values[topic][partition]
            assert (found.leader, found.replicas) == (state.leader, state.replicas)
            assert set(found.isr) == set(state.isr)
        failure = answers.failures["admin-nowhere"]
        assert isinstance(failure, Missing) and "Fix: " in str(failure)
        assert admin.partitions(None).values.items() >= answers.values.items()
        configured = admin.topic_configs([*topics, "admin-nowhere"])
        assert configured.values.keys() == set(topics)
        assert configured.failures.keys() == {"admin-nowhere"}
        assert isinstance(configured.failures["admin-nowhere"], Missing)
        assert admin.topic_configs(None).values.keys() >= set(topics)
    finally:
        for topic in topics:
            each_cluster.delete_topic(topic)


def test_reassignment_starts_and_invalid_partitions_are_refused_one_by_one(
    each_cluster: KafkaCluster, admin: KafkaAdmin
) -> None:
    topic = "admin-move"
    each_cluster.create_topic(topic, {0: [1001], 1: [1002], 2: [1003]})
    try:
        refused = admin.alter_reassignments(
            {(topic, 0): [1004], (topic, 1): None, (topic, 7): [1001], (topic, 2): [4711], ("nowhere", 0): [1001]}
        )
        kinds = {partition: type(problem) for partition, problem in refused.items()}
        missing = {(topic, 1): Missing, (topic, 7): Missing, ("nowhere", 0): Missing}
        assert kinds == {(topic, 2): Invalid, **missing}
        assert "admin-move-2" in str(refused[topic, 2])
        each_cluster.wait_until_reassigned()
        assert each_cluster.partitions([topic])[topic, 0].replicas == (1004,)
        assert admin.alter_reassignments({}) == {}
    finally:
        each_cluster.delete_topic(topic)


def test_running_reassignment_lists_adding_and_removing_replicas(each_cluster: KafkaCluster, admin: KafkaAdmin) -> None:
    """A throttle of 1 byte/s keeps the reassignment running: it lets one fetch through per quota window."""
    topic = "admin-open-move"
    each_cluster.create_topic(topic, {0: [1001], 1: [1002]})
    try:
        produce(each_cluster, topic, [0] * 10, bytes_each=900_000)
        # A broker applies config changes in order, so once the rate is set, the list is set as well.
        assert admin.alter_topic_configs({topic: [set_to(FOLLOWER_REPLICAS, "0:1005")]}) == {}
        admin.alter_broker_configs(1005, [set_to(FOLLOWER_RATE, "1")])
        until(lambda: rates(admin, 1005), lambda found: found == {FOLLOWER_RATE: "1"})
        assert admin.alter_reassignments({(topic, 0): [1005]}) == {}
        expected = PartitionReassignment((1005, 1001), (1005,), (1001,))
        until(lambda: admin.reassignments().values.get(topic), lambda moving: moving == {0: expected})
        assert admin.alter_reassignments({(topic, 0): None}) == {}
        until(lambda: admin.reassignments().values, lambda moving: topic not in moving)
    finally:
        admin.alter_broker_configs(1005, [deletion(FOLLOWER_RATE)])
        each_cluster.delete_topic(topic)


def test_log_sizes_match_the_files(each_cluster: KafkaCluster, admin: KafkaAdmin) -> None:
    topic = "admin-sizes"
    each_cluster.create_topic(topic, {0: [1001, 1002], 1: [1002, 1003]})
    try:
        produce(each_cluster, topic, [0, 0, 1], bytes_each=50_000)
        with pytest.raises(Unavailable, match="broker 4711"):
            admin.log_sizes(4711, {topic: [0, 1]})
        sizes = {broker_id: admin.log_sizes(broker_id, {topic: [0, 1]}) for broker_id in (1001, 1002, 1003)}
        for broker_id, found in sizes.items():
            on_disk = {p: size for p, size in each_cluster.log_bytes(broker_id).items() if p[0] == topic}
            assert found == on_disk
            assert admin.log_sizes(broker_id, None).items() >= on_disk.items()
        assert sizes[1002][topic, 0] > 100_000 > sizes[1002][topic, 1] > 50_000
        assert sizes[1001].keys() == {(topic, 0)}
    finally:
        each_cluster.delete_topic(topic)


# Configs


def test_rate_is_set_and_deleted_on_one_broker_only(each_cluster: KafkaCluster, admin: KafkaAdmin) -> None:
    admin.alter_broker_configs(1002, [set_to(LEADER_RATE, "5000000"), set_to(FOLLOWER_RATE, "6000000")])
    until(lambda: rates(admin, 1002), lambda r: r == {LEADER_RATE: "5000000", FOLLOWER_RATE: "6000000"})
    assert each_cluster.described_configs(1002).items() >= {(LEADER_RATE, "5000000"), (FOLLOWER_RATE, "6000000")}
    assert all(rates(admin, b) == {} for b in (1001, 1003))
    admin.alter_broker_configs(1002, [deletion(LEADER_RATE), set_to(FOLLOWER_RATE, "7000000")])
    until(lambda: rates(admin, 1002), lambda r: r == {FOLLOWER_RATE: "7000000"})
    admin.alter_broker_configs(1002, [deletion(FOLLOWER_RATE)])
    until(lambda: rates(admin, 1002), lambda r: r == {})
    assert not {LEADER_RATE, FOLLOWER_RATE} & each_cluster.stored_configs().get("brokers/1002", {}).keys()


def test_broker_value_is_distinguished_from_the_cluster_default(each_cluster: KafkaCluster, admin: KafkaAdmin) -> None:
    """Kafka's `<default>` applies to brokers without their own value, and again after that value is deleted."""
    assert admin.default_broker_configs() == {}
    each_cluster.set_configs_as_a_user({LEADER_RATE: "777"}, default=True)
    try:
        admin.alter_broker_configs(1001, [set_to(LEADER_RATE, "888")])
        until(admin.default_broker_configs, lambda found: found == {LEADER_RATE: "777"})
        until(lambda: rates(admin, 1001), lambda r: r == {LEADER_RATE: "888"})
        described = until(
            lambda: admin.broker_configs([1001, 1002]).values,
            lambda found: all(LEADER_RATE in found[b] and found[b][LEADER_RATE].default for b in (1001, 1002)),
        )
        own, inherited = described[1001][LEADER_RATE], described[1002][LEADER_RATE]
        assert (own.value, own.current, own.default) == ("888", "888", "777")
        assert (inherited.value, inherited.current, inherited.default) == ("777", None, "777")
        admin.alter_broker_configs(1001, [deletion(LEADER_RATE)])
        # For a moment a broker reports the old value, although its own value is gone.
        again = until(
            lambda: admin.broker_configs([1001]).values[1001][LEADER_RATE],
            lambda found: (found.value, found.current) == ("777", None),
        )
        assert (again.current, again.default) == (None, "777")
    finally:
        each_cluster.set_configs_as_a_user({LEADER_RATE: None}, default=True)
        until(admin.default_broker_configs, lambda found: found == {})


def test_static_and_default_values_are_distinguished_from_dynamic_ones(admin: KafkaAdmin) -> None:
    described = admin.broker_configs([1001], ["log.segment.bytes", "log.flush.interval.ms", "node.id"]).values[1001]
    assert all(value.current is None and value.default is None for value in described.values())
    assert admin.broker_configs([1001], None).values[1001].keys() > described.keys()


@pytest.mark.parametrize("value", ["-1", "fast", ""])
def test_rate_refused_by_kafka_is_invalid_and_its_request_changes_nothing(admin: KafkaAdmin, value: str) -> None:
    with pytest.raises(Invalid, match=r"broker 1001: .+ Fix: ") as caught:
        admin.alter_broker_configs(1001, [set_to(FOLLOWER_RATE, "5"), set_to(LEADER_RATE, value)])
    assert LEADER_RATE in str(caught.value)
    assert rates(admin, 1001) == {}


def test_unknown_broker_does_not_affect_the_others(admin: KafkaAdmin) -> None:
    answers = admin.broker_configs([1001, 4711, 1002])
    assert answers.values.keys() == {1001, 1002}
    assert isinstance(answers.failures[4711], Unavailable)
    assert "broker 4711 is unreachable: it is not registered. Fix: " in str(answers.failures[4711])
    with pytest.raises(Unavailable, match="broker 4711 is unreachable"):
        admin.alter_broker_configs(4711, [set_to(LEADER_RATE, "1")])


def test_list_entries_are_appended_and_removed_and_a_refused_topic_does_not_affect_others(
    each_cluster: KafkaCluster, admin: KafkaAdmin
) -> None:
    topic, other = "admin-lists", "admin-other-lists"
    for name in (topic, other):
        each_cluster.create_topic(name, {0: [1001]})
    each_cluster.set_configs_as_a_user({"retention.ms": "86400000"}, topic=topic)
    append, subtract = ConfigOperation.APPEND, ConfigOperation.SUBTRACT
    try:
        entries = ConfigEdit(LEADER_REPLICAS, append, "0:1001,1:1002,0:1003")
        assert admin.alter_topic_configs({topic: [entries]}) == {}
        assert admin.alter_topic_configs({topic: [entries]}) == {}, "existing entries are not added twice"
        until(lambda: lists(admin, topic), lambda found: found == {LEADER_REPLICAS: "0:1001,1:1002,0:1003"})
        refused = admin.alter_topic_configs(
            {
                "admin-nowhere": [set_to(LEADER_REPLICAS, "*")],
                topic: [ConfigEdit(LEADER_REPLICAS, subtract, "0:1001,9:9"), set_to(FOLLOWER_REPLICAS, "*")],
                other: [set_to(LEADER_REPLICAS, "0-1001")],
            }
        )
        assert refused.keys() == {"admin-nowhere", other}
        assert isinstance(refused["admin-nowhere"], Missing) and isinstance(refused[other], Invalid)
        until(
            lambda: lists(admin, topic),
            lambda found: found == {LEADER_REPLICAS: "1:1002,0:1003", FOLLOWER_REPLICAS: "*"},
        )
        assert lists(admin, other) == {}
        last = [ConfigEdit(LEADER_REPLICAS, subtract, "0:1003,1:1002"), deletion(FOLLOWER_REPLICAS)]
        assert admin.alter_topic_configs({topic: last}) == {}
        until(lambda: lists(admin, topic), lambda found: found == {LEADER_REPLICAS: ""})
        assert admin.alter_topic_configs({topic: [deletion(LEADER_REPLICAS)]}) == {}
        until(lambda: lists(admin, topic), lambda found: found == {})
        # This request may reach another broker than the previous one.
        until(lambda: each_cluster.described_topic_configs(topic), lambda found: found == {"retention.ms": "86400000"})
    finally:
        for name in (topic, other):
            each_cluster.delete_topic(name)


def test_list_beyond_kafkas_limit_is_refused_before_the_request(each_cluster: KafkaCluster, admin: KafkaAdmin) -> None:
    """Kafka closes the connection on a list that is too long, so all other topics of the request fail as well."""
    topic, other = "admin-long-list", "admin-short-list"
    for name in (topic, other):
        each_cluster.create_topic(name, {0: [1001]})
    try:
        fits = ",".join(f"{n:04}:1001" for n in range(MAX_VALUE_BYTES // 10))
        too_long = f"{fits},9999:1001,9999:1002"
        assert len(fits) <= MAX_VALUE_BYTES < len(too_long)
        refused = admin.alter_topic_configs(
            {topic: [set_to(LEADER_REPLICAS, too_long)], other: [set_to(LEADER_REPLICAS, fits)]}
        )
        assert refused.keys() == {topic}
        assert f"Kafka accepts {MAX_VALUE_BYTES}" in str(refused[topic])
        until(lambda: lists(admin, other), lambda found: found == {LEADER_REPLICAS: fits})
        assert lists(admin, topic) == {}
    finally:
        for name in (topic, other):
            each_cluster.delete_topic(name)


def test_topic_that_kafka_cannot_describe_does_not_hide_others(kafka_cluster: ZooKeeperModeCluster) -> None:
    """A list written directly to ZooKeeper may be longer than the Admin API's response can encode."""
    names = [f"admin-described-{n}" for n in range(5)]
    for name in names:
        kafka_cluster.create_topic(name, {0: [1001]})
    entries = ",".join(f"{n:05}:1001" for n in range(MAX_VALUE_BYTES // 10))
    zookeeper = KazooClient(kafka_cluster.zookeeper_connect, timeout=10.0)
    zookeeper.start(timeout=PATIENCE_SECONDS)
    try:
        written = json.dumps({"version": 1, "config": {LEADER_REPLICAS: entries}}).encode()
        zookeeper.set(f"/config/topics/{names[2]}", written)
        settings = KafkaSettings(servers(kafka_cluster.bootstrap_servers), request_timeout=LONG)
        with closing(KafkaAdmin(settings)) as admin:
            answers = until(lambda: admin.topic_configs(names), lambda found: len(found.values) == 4)
            assert answers.failures.keys() == {names[2]}
            assert "Fix: " in str(answers.failures[names[2]])
    finally:
        zookeeper.set(f"/config/topics/{names[2]}", b'{"version":1,"config":{}}')
        zookeeper.stop()
        zookeeper.close()
        for name in names:
            kafka_cluster.delete_topic(name)


def test_many_threads_share_one_client(admin: KafkaAdmin) -> None:
    def ask(number: int) -> tuple[int, str | None]:
        broker_id = 1001 + number % 5
        described = admin.broker_configs([broker_id], ["log.segment.bytes"]).values[broker_id]
        return len(admin.brokers()), described["log.segment.bytes"].value

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(ask, range(200))) == {(5, str(16 * 1024 * 1024))}


# Broker failures and authentication, on a separate cluster


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredCluster]:
    with scratch_directory() as directory, secured_cluster(directory, (1, 2)) as cluster:
        yield cluster


def test_configs_of_other_parties_stay_byte_identical(secured: SecuredCluster) -> None:
    """The original destroyed secrets. It read all configs of a broker, with secrets masked, and wrote them all back."""
    secret = "listener.name.internal.plain.sasl.jaas.config"
    others = {secret: f'{PLAIN} required user_alice="s3cret" user_carol="hush";', "max.connections": "999"}
    secured.cluster.set_configs_as_a_user(others, broker_id=1)
    try:
        before = secured.cluster.stored_configs()["brokers/1"]
        with closing(secured.admin()) as admin:
            admin.alter_broker_configs(1, [set_to(LEADER_RATE, "1"), set_to(FOLLOWER_RATE, "2")])
            until(lambda: rates(admin, 1), lambda found: len(found) == 2)
            assert secured.cluster.stored_configs()["brokers/1"] == {**before, LEADER_RATE: "1", FOLLOWER_RATE: "2"}
            hidden = admin.broker_configs([1], [secret]).values[1][secret]
            assert (hidden.value, hidden.current) == (None, None)
            admin.alter_broker_configs(1, [deletion(LEADER_RATE), deletion(FOLLOWER_RATE)])
            until(lambda: rates(admin, 1), lambda found: found == {})
        assert secured.cluster.stored_configs()["brokers/1"] == before == others
    finally:
        secured.cluster.set_configs_as_a_user(dict.fromkeys(others), broker_id=1)


def test_frozen_broker_exhausts_only_its_own_deadline(secured: SecuredCluster) -> None:
    frozen = secured.cluster.brokers[2]
    with closing(secured.admin()) as admin:
        assert admin.brokers() == {1, 2}
        frozen.freeze()
        try:
            answers = admin.broker_configs([1, 2], timeout=SHORT)
            assert answers.values.keys() == {1}
            assert isinstance(answers.failures[2], Unavailable)
            address = f"broker 2 (127.0.0.1:{secured.cluster.brokers[2].port}) is unreachable: no answer in time"
            assert address in str(answers.failures[2])
            soon = time.monotonic() + SHORT.total_seconds()
            with pytest.raises(Unavailable, match="no answer in time"):
                admin.alter_broker_configs(2, [set_to(LEADER_RATE, "1")], until=soon)
            for _ in range(3):
                assert 1 in admin.brokers()
                assert admin.reassignments().values == {}
                assert admin.topic_configs([]).values == {}
        finally:
            frozen.thaw()
        until(lambda: admin.broker_configs([1, 2]).values.keys(), lambda found: found == {1, 2})
        # The thawed broker may have executed the request that timed out, so the outcome is unknown.
        until(admin.brokers, lambda found: found == {1, 2})
        admin.alter_broker_configs(2, [deletion(LEADER_RATE)])


def test_killed_broker_is_unreachable_until_it_restarts(secured: SecuredCluster) -> None:
    with closing(secured.admin()) as admin:
        assert admin.broker_configs([1, 2]).failures == {}
        secured.cluster.kill_broker(2)
        try:
            answers = admin.broker_configs([1, 2])
            assert answers.values.keys() == {1} and isinstance(answers.failures[2], Unavailable)
            # Without its address if the controller has noticed its end already.
            with pytest.raises(Unavailable, match=r"broker 2 (\(127.0.0.1:\d+\) )?is unreachable.+Fix: "):
                admin.alter_broker_configs(2, [set_to(LEADER_RATE, "1")])
            until(admin.brokers, lambda found: found == {1})
        finally:
            secured.cluster.start_broker(2)
        until(lambda: admin.broker_configs([1, 2]).failures, lambda failures: failures == {})


def test_throttle_of_a_stopped_broker_is_removed_through_the_controller(secured: SecuredCluster) -> None:
    """Without KIP-919, the broker would still be throttled after its restart."""
    with closing(secured.admin()) as admin:
        admin.alter_broker_configs(2, [set_to(LEADER_RATE, "1000"), set_to(FOLLOWER_RATE, "2000")])
        until(lambda: rates(admin, 2), lambda found: len(found) == 2)
        secured.cluster.kill_broker(2)
        try:
            admin.alter_broker_configs_through_controller(2, [deletion(LEADER_RATE), set_to(FOLLOWER_RATE, "3000")])
            with pytest.raises(Invalid, match="No node with id 4711"):
                admin.alter_broker_configs_through_controller(4711, [set_to(LEADER_RATE, "1")])
            for value in ("fast", "-1"):  # the controller would accept both
                with pytest.raises(Invalid, match=value):
                    admin.alter_broker_configs_through_controller(2, [set_to(LEADER_RATE, value)])
            assert secured.cluster.stored_configs()["brokers/2"] == {FOLLOWER_RATE: "3000"}
            admin.alter_broker_configs_through_controller(2, [deletion(FOLLOWER_RATE)])
        finally:
            secured.cluster.start_broker(2)
        until(lambda: admin.broker_configs([2]).values.get(2, {}).keys(), lambda found: LEADER_RATE not in found)
        until(lambda: rates(admin, 2), lambda found: found == {})


def test_without_reachable_controllers_no_write_is_reported_as_done(secured: SecuredCluster) -> None:
    brokers = servers(secured.cluster.bootstrap_servers)
    with closing(KafkaAdmin(KafkaSettings(brokers))) as admin, pytest.raises(Unavailable, match="give kafka-boots"):
        admin.alter_broker_configs_through_controller(1, [deletion(LEADER_RATE)])
    (port,) = free_ports(1)
    message = f"no controller of 127.0.0.1:{port} is available: .+ECONNREFUSED"
    with (
        closing(KafkaAdmin(KafkaSettings(brokers, (f"127.0.0.1:{port}",)))) as admin,
        pytest.raises(Unavailable, match=message),
    ):
        admin.alter_broker_configs_through_controller(1, [deletion(LEADER_RATE)])
    # An operator gave the address of a broker as that of a controller.
    with closing(KafkaAdmin(KafkaSettings(brokers, brokers))) as admin, pytest.raises((Unavailable, Invalid)):
        admin.alter_broker_configs_through_controller(1, [deletion(LEADER_RATE)])


def test_one_reachable_bootstrap_server_is_enough(secured: SecuredCluster) -> None:
    dead = tuple(f"127.0.0.1:{port}" for port in free_ports(3))
    (alive, *_) = servers(secured.cluster.bootstrap_servers)
    for given in ((*dead, alive), (alive, *dead)):
        with closing(KafkaAdmin(KafkaSettings(given))) as admin:
            assert admin.brokers() == {1, 2}
            assert admin.broker_configs([1, 2]).values.keys() == {1, 2}
    with closing(KafkaAdmin(KafkaSettings(dead))) as admin:
        for _ in range(2):
            with pytest.raises(Unavailable, match=f"no broker of {', '.join(dead)} answers: .+ECONNREFUSED") as caught:
                admin.brokers()
            assert "Fix: " in str(caught.value)


def sasl(mechanism: str, username: str, password: str, protocol: str = "SASL_PLAINTEXT") -> dict[str, str]:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    jaas = f'{module} required username="{username}" password="{password}";'
    return {"security.protocol": protocol, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


TRUST = {"ssl.truststore.location": str(TLS / "ca.pem"), "ssl.truststore.type": "PEM"}
CLIENT_KEY = {"ssl.keystore.location": str(TLS / "client.pem")}


@pytest.mark.parametrize(
    ("listener", "properties"),
    [
        ("sasl", sasl("PLAIN", "alice", "s3cret")),
        ("sasl", sasl("SCRAM-SHA-256", "bob", "t0psecret")),
        ("sasl", sasl("SCRAM-SHA-512", "bob", "t0psecret")),
        ("tls", {"security.protocol": "SSL", **TRUST, **CLIENT_KEY}),
        ("sasl_over_tls", sasl("PLAIN", "alice", "s3cret", "SASL_SSL") | TRUST),
        ("sasl_over_tls", sasl("SCRAM-SHA-512", "bob", "t0psecret", "SASL_SSL") | TRUST),
    ],
)
def test_sasl_and_tls_pass_through_to_every_broker(
    secured: SecuredCluster, listener: str, properties: dict[str, str]
) -> None:
    with closing(connected(getattr(secured, listener), properties)) as admin:
        assert admin.brokers() == {1, 2}
        assert admin.broker_configs([1, 2]).values.keys() == {1, 2}
        admin.alter_broker_configs(2, [set_to(LEADER_RATE, "4000")])
        until(lambda: rates(admin, 2), lambda found: found == {LEADER_RATE: "4000"})
        admin.alter_broker_configs(2, [deletion(LEADER_RATE)])
        until(lambda: rates(admin, 2), lambda found: found == {})


@pytest.mark.parametrize(
    ("mechanism", "username"), [("PLAIN", "alice"), ("SCRAM-SHA-256", "bob"), ("SCRAM-SHA-512", "nobody")]
)
def test_wrong_password_is_reported_without_showing_it(secured: SecuredCluster, mechanism: str, username: str) -> None:
    with closing(connected(secured.sasl, sasl(mechanism, username, "hush-hush"))) as admin:
        for _ in range(2):
            with pytest.raises(
                Invalid, match=r"refuses our credentials: .*[Aa]uthentication failed.+Fix: sasl"
            ) as caught:
                admin.brokers()
            assert "hush-hush" not in str(caught.value)
        with pytest.raises(Invalid, match="refuses our credentials"):
            admin.alter_broker_configs(1, [set_to(LEADER_RATE, "1")])


def test_open_connections_outlive_the_token_that_opened_them(secured: SecuredCluster) -> None:
    """The broker ends a session with its token, and kafka-python answers with the renewed one (KIP-368)."""
    endpoint = secured.endpoint
    endpoint.lifetime = 8.0
    endpoint.requests.clear()
    with closing(connected(secured.tokens, token_login(endpoint))) as admin:
        assert admin.broker_configs([1, 2]).values.keys() == {1, 2}
        connections = admin._routing._current
        assert connections is not None
        opened = dict(connections._open)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            assert admin.broker_configs([1, 2]).failures == {}
            time.sleep(0.1)
        assert admin._routing._current is connections
        assert [node for node, connection in opened.items() if connection.closed] == []
    endpoint.lifetime = 300.0
    begins = [request.at for request in endpoint.requests]
    assert len(begins) == 2 and 5.5 < begins[1] - begins[0] < 8


def test_refused_tokens_are_reported_with_the_reason(secured: SecuredCluster) -> None:
    endpoint = secured.endpoint
    with closing(connected(secured.tokens, token_login(endpoint, "wr0ng"))) as admin:
        with pytest.raises(
            Invalid, match=rf"token endpoint {endpoint.token_url} refuses .*401 invalid_client"
        ) as caught:
            admin.brokers()
        assert "wr0ng" not in str(caught.value)
    endpoint.lifetime, endpoint.stated_lifetime = -60.0, 300.0
    try:
        with closing(connected(secured.tokens, token_login(endpoint))) as admin:
            with pytest.raises(Invalid, match=r"refuses our credentials: .+ subject throttle, valid until ") as caught:
                admin.brokers()
            with pytest.raises(Invalid, match="refuses our credentials: "):
                admin.alter_broker_configs(1, [set_to(LEADER_RATE, "1")])
    finally:
        endpoint.lifetime, endpoint.stated_lifetime = 300.0, None


@pytest.mark.parametrize(
    ("listener", "properties", "message"),
    [
        ("sasl", {}, "it closed the connection. Fix: .+security.protocol"),
        ("tls", {"security.protocol": "SSL", **CLIENT_KEY}, "is not trusted: .+CERTIFICATE_VERIFY_FAILED"),
        ("tls", {"security.protocol": "SSL", **TRUST}, "is unreachable"),
        ("sasl", {"security.protocol": "SSL", **TRUST}, "is unreachable"),
    ],
)
def test_wrong_protocol_for_a_listener_is_reported(
    secured: SecuredCluster, listener: str, properties: dict[str, str], message: str
) -> None:
    kind = Invalid if "not trusted" in message else Unavailable
    with closing(connected(getattr(secured, listener), properties)) as admin, pytest.raises(kind, match=message):
        admin.brokers(timeout=SHORT)


def test_closed_client_leaves_no_thread_and_refuses_calls(secured: SecuredCluster) -> None:
    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith(("kafka-io-autothrottle", "kafka-close"))]

    until(threads, lambda names: names == [])
    admin = secured.admin()
    assert admin.brokers() == {1, 2}
    assert threads() != []
    admin.close()
    admin.close()
    until(threads, lambda names: names == [])
    with pytest.raises(Unavailable, match="closed"):
        admin.brokers()

"""Client quotas through the Admin API of real Kafka in ZooKeeper and KRaft mode, and the clients in its groups."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas, fetch_group_clients
from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_zookeeper.client_quotas import ZooKeeperClientQuotas
from autothrottle.adapters.state_store.ledger import LedgeredQuotas
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.core.errors import Unavailable
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, ClientReading, keys_of
from autothrottle.ports.kafka import ClientQuotaChange
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import Process
from tests.builders import eventually
from tests.contract.client_quotas_contract import ALICE, PRODUCER, TIMEOUT, ClientQuotasContract


class Subject:
    """A store under test."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self.store = AdminClientQuotas(kafka)

    def clear(self) -> None:
        for entity in self.store.fetch_quotas(TIMEOUT).quotas:
            self.store.alter_quota(ClientQuotaChange(entity, dict.fromkeys(keys_of(entity))), TIMEOUT)


class TestAdminClientQuotas(ClientQuotasContract):
    @pytest.fixture
    def subject(self, each_cluster: KafkaCluster) -> Iterator[Subject]:
        kafka = KafkaAdmin(KafkaSettings(tuple(each_cluster.bootstrap_servers.split(","))))
        subject = Subject(kafka)
        try:
            yield subject
            subject.clear()
        finally:
            kafka.close()


def test_without_brokers_quotas_are_unavailable() -> None:
    kafka = KafkaAdmin(KafkaSettings(("127.0.0.1:1",)))
    with pytest.raises(Unavailable, match="is unreachable"):
        AdminClientQuotas(kafka).alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 5}), TIMEOUT)
    kafka.close()


TOPIC = "members"


@contextmanager
def kafka_admin(cluster: KafkaCluster) -> Iterator[KafkaAdmin]:
    with closing(KafkaAdmin(KafkaSettings(tuple(cluster.bootstrap_servers.split(","))))) as found:
        yield found


@contextmanager
def members_topic(cluster: KafkaCluster) -> Iterator[None]:
    """A topic for members of groups; the topic with the groups ends with it."""
    cluster.create_topic(TOPIC, {0: [1001]})
    try:
        yield
    finally:
        for topic in (TOPIC, "__consumer_offsets"):
            cluster.delete_topic(topic)


def consumer(cluster: KafkaCluster, group: str, client_id: str) -> kafka.KafkaConsumer:
    servers = cluster.bootstrap_servers.split(",")
    return kafka.KafkaConsumer(TOPIC, bootstrap_servers=servers, group_id=group, client_id=client_id, **CLIENT)


def test_members_of_groups_and_entities_with_quotas_are_the_clients(
    each_cluster: KafkaCluster, client: KazooClient
) -> None:
    member = ClientQuotaEntity(DEFAULT, "backfill-1 ☃")
    with kafka_admin(each_cluster) as admin, members_topic(each_cluster):
        by_zookeeper = isinstance(each_cluster, ZooKeeperModeCluster)
        quotas = ZooKeeperClientQuotas(client, KafkaPaths()) if by_zookeeper else AdminClientQuotas(admin)
        own = OwnPaths(f"test-{uuid.uuid4().hex}")
        source = LedgeredQuotas(ZooKeeperLedger(client, own), quotas, partial(fetch_group_clients, admin))
        assert source.fetch_clients(TIMEOUT) == ClientReading(frozenset())
        quotas.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 5}), TIMEOUT)
        with closing(consumer(each_cluster, "readers", "backfill-1 ☃")) as joined:
            eventually(lambda: joined.poll(timeout_ms=100) == {} and joined.assignment())
            assert source.fetch_clients(TIMEOUT) == ClientReading(frozenset({ALICE, member}))
        eventually(lambda: source.fetch_clients(TIMEOUT) == ClientReading(frozenset({ALICE})))
        quotas.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: None}), TIMEOUT)


@pytest.mark.repeat
def test_members_of_a_group_of_the_consumer_protocol_are_clients(kraft_cluster: KraftCluster, tmp_path: Path) -> None:
    """KIP-848; only Java's consumer speaks it."""
    server = next(iter(kraft_cluster.brokers.values()))
    properties = tmp_path / "consumer.properties"
    properties.write_text("group.protocol=consumer\nclient.id=backfill-2\ngroup.id=new\n")
    arguments = ["--bootstrap-server", kraft_cluster.bootstrap_servers, "--topic", TOPIC]
    command = [*server.command, "org.apache.kafka.tools.consumer.ConsoleConsumer", *arguments]
    with kafka_admin(kraft_cluster) as admin, members_topic(kraft_cluster):
        process = Process("consumer", [*command, "--consumer.config", str(properties)], tmp_path / "consumer.log")
        process.start()
        try:
            wanted = ClientReading(frozenset({ClientQuotaEntity(DEFAULT, "backfill-2")}))
            eventually(lambda: fetch_group_clients(admin, TIMEOUT) == wanted, 60)
        finally:
            process.kill()

"""Client quotas in ZooKeeper: the nodes and notifications of Kafka's own tools, and configs of other kinds stay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.kafka_zookeeper.client_quotas import ZooKeeperClientQuotas
from autothrottle.adapters.state_store.ledger import LedgeredQuotas
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.core.errors import Invalid
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity
from autothrottle.ports.kafka import ClientQuotaChange
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.contract.client_quotas_contract import ALICE, CONSUMER, PRODUCER, TIMEOUT, ClientQuotasContract
from tests.system.zookeeper_tree import Tree, session


class Subject:
    """A store under test, and another session."""

    def __init__(self, client: KazooClient, other: KazooClient) -> None:
        self.tree = Tree(other)
        self.kafka: KafkaPaths = self.tree.kafka
        self.other = other
        self.store = ZooKeeperClientQuotas(client, self.kafka)
        other.ensure_path(self.kafka.change_notification.rpartition("/")[0])

    def write(self, entity_path: str, text: str) -> None:
        path = self.kafka.entity_config(entity_path)
        self.other.ensure_path(path)
        self.other.set(path, text.encode())

    def config(self, entity_path: str) -> object:
        return json.loads(self.other.get(self.kafka.entity_config(entity_path))[0])["config"]

    def notified(self) -> Sequence[str]:
        parent = self.kafka.change_notification.rpartition("/")[0]
        texts = [self.other.get(f"{parent}/{name}")[0] for name in sorted(self.other.get_children(parent))]
        return [json.loads(text)["entity_path"] for text in texts]


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with session(zookeeper) as client, session(zookeeper) as other:
        yield Subject(client, other)


class TestZooKeeperClientQuotas(ClientQuotasContract):
    @pytest.fixture
    def subject(self, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with session(zookeeper) as client, session(zookeeper) as other:
            yield Subject(client, other)


def test_each_change_notifies_the_brokers_and_no_other_does(subject: Subject) -> None:
    pair = ClientQuotaEntity("a b", DEFAULT)
    for value in (5, 5, None, None):
        subject.store.alter_quota(ClientQuotaChange(pair, {PRODUCER: value}), TIMEOUT)
    assert subject.notified() == ["users/a%20b/clients/<default>"] * 2
    assert subject.config("users/a%20b/clients/<default>") == {}
    assert subject.config("users/a%20b") == {}, "a parent that brokers read must be a config"


def test_credentials_of_a_user_stay_and_are_no_quota(subject: Subject) -> None:
    subject.write("users/alice", '{"version":1,"config":{"SCRAM-SHA-256":"salt=x"}}')
    assert subject.store.fetch_quotas(TIMEOUT).quotas == {}
    subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 5}), TIMEOUT)
    assert subject.config("users/alice") == {"SCRAM-SHA-256": "salt=x", "producer_byte_rate": "5"}
    subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: None}), TIMEOUT)
    assert subject.config("users/alice") == {"SCRAM-SHA-256": "salt=x"}


def test_without_brokers_the_clients_are_the_entities_with_quotas(subject: Subject) -> None:
    subject.write("users/alice", '{"version":1,"config":{"producer_byte_rate":"fast","consumer_byte_rate":"7"}}')
    subject.write("clients/idle", '{"version":1,"config":{}}')
    clients = LedgeredQuotas(ZooKeeperLedger(subject.other, subject.tree.own), subject.store).fetch_clients(TIMEOUT)
    assert clients.entities == {ALICE}
    problem, warning = clients.warnings
    assert "producer_byte_rate 'fast' is not an integer" in problem
    assert "in ZooKeeper mode set --bootstrap-servers" in warning


def test_a_value_that_is_no_number_is_a_problem_and_can_be_replaced(subject: Subject) -> None:
    subject.write("users/alice", '{"version":1,"config":{"producer_byte_rate":"fast","consumer_byte_rate":"7"}}')
    read = subject.store.fetch_quotas(TIMEOUT)
    assert read.quotas == {ALICE: {CONSUMER: 7}}
    (problem,) = read.problems
    assert "users/alice: producer_byte_rate 'fast' is not an integer" in problem
    subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 5}), TIMEOUT)
    assert subject.store.fetch_quotas(TIMEOUT).problems == ()


def test_a_node_that_kafka_does_not_write_is_a_problem_and_stays(subject: Subject) -> None:
    subject.write("users/alice", "no json")
    read = subject.store.fetch_quotas(TIMEOUT)
    assert read.quotas == {}
    assert len(read.problems) == 1
    with pytest.raises(Invalid, match=r"users/alice: the config is not valid JSON.*repair or remove the node"):
        subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 5}), TIMEOUT)

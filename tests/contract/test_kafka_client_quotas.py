"""Client quotas through the Admin API of real Kafka in ZooKeeper and KRaft mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.core.errors import Unavailable
from autothrottle.core.quotas.keys import keys_of
from autothrottle_lab.servers.kafka import KafkaCluster
from tests.contract.client_quotas_contract import ALICE, PRODUCER, TIMEOUT, ClientQuotasContract
from tests.server_fixtures import repeat_on_zookeeper


class Subject:
    """A store under test."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self.store = AdminClientQuotas(kafka)

    def clear(self) -> None:
        for entity in self.store.fetch_quotas(TIMEOUT).quotas:
            self.store.alter_quota(entity, dict.fromkeys(keys_of(entity)), TIMEOUT)


@repeat_on_zookeeper
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
        AdminClientQuotas(kafka).alter_quota(ALICE, {PRODUCER: 5}, TIMEOUT)
    kafka.close()

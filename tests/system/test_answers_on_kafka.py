"""Answers of real brokers to all requests of the Admin API's client: none lacks what Kafka always says."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin import connections
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.completeness import Gaps, complete
from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation, KafkaSettings
from autothrottle.core.cluster.configs import LEADER_RATE, LEADER_REPLICAS
from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.core.quotas.keys import ClientQuotaEntity, QuotaKey
from autothrottle_lab.servers.kafka import KafkaCluster
from tests.builders import eventually


def test_answers_of_real_brokers_are_complete(each_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that a broker breaks would make all topics or brokers of a user unreadable."""
    gaps: list[tuple[str, Gaps]] = []
    requests: set[str] = set()

    def recorded(request: Any, response: Any) -> Gaps:
        requests.add(type(request).__name__.removesuffix("Request"))
        if (found := complete(request, response)).missing:
            gaps.append((type(request).__name__, found))
        return found

    monkeypatch.setattr(connections, "complete", recorded)
    brokers, topic, log_name = sorted(each_cluster.brokers), "complete-answers", "complete-log"
    each_cluster.create_topic(topic, {0: brokers[:2], 1: brokers[1:3]})
    settings = KafkaSettings(tuple(each_cluster.bootstrap_servers.split(",")))
    entity = ClientQuotaEntity(client_id="complete-answers")
    with closing(KafkaAdmin(settings)) as admin, closing(TopicLog(settings, log_name)) as log:
        assert {*admin.brokers()} == {*brokers}
        assert {*admin.partitions([topic]).values} == {topic}
        assert topic in admin.partitions(None).values
        assert {*admin.partitions_by_broker({b: [topic] for b in brokers}).values} == {*brokers}
        assert {*admin.topic_configs([topic]).values} == {topic}
        assert {*admin.topic_configs([topic], None).values} == {topic}
        assert {*admin.broker_configs(brokers).values} == {*brokers}
        assert {*admin.broker_configs(brokers, None).values} == {*brokers}
        admin.default_broker_configs()
        admin.reassignments()
        admin.reassignments([(topic, 0)])
        assert admin.log_sizes(brokers[0], None) is not None
        assert admin.log_sizes(brokers[0], {topic: [0]}) == {(topic, 0): 0}
        assert {*admin.log_dirs(brokers).values} == {*brokers}
        assert admin.permitted_operations()[0]
        groups = admin.groups(brokers)
        assert not groups.failures and not admin.group_clients(groups.values).failures
        set_rate = [ConfigEdit(LEADER_RATE, ConfigOperation.SET, "1000000")]
        admin.alter_broker_configs(brokers[0], set_rate)
        admin.alter_broker_configs(brokers[0], [ConfigEdit(LEADER_RATE, ConfigOperation.DELETE)])
        edits = {topic: [ConfigEdit(LEADER_REPLICAS, ConfigOperation.SET, "0:1")], "no-topic": set_rate}
        assert {*admin.alter_topic_configs(edits)} == {"no-topic"}
        admin.alter_client_quotas(entity, {QuotaKey.PRODUCER_BYTE_RATE: 1_000_000})
        admin.client_quotas()
        admin.alter_client_quotas(entity, {QuotaKey.PRODUCER_BYTE_RATE: None})
        assert {*admin.alter_reassignments({(topic, 0): None, ("no-topic", 0): None})} == {(topic, 0), ("no-topic", 0)}
        each_cluster.create_topic(log_name, {0: brokers[:1]})
        with suppress(Unavailable):  # in ZooKeeper mode only the controller creates topics
            log.create(soon())
        eventually(lambda: is_located(log))
        topic_id, start = log.locate(soon())
        log.append([b"a"], soon())
        assert [record.value for record in log.read(topic_id, start, -1, 1.0, soon()).records] == [b"a"]
        log.risks(soon())
        log.delete_before(1, soon())
    each_cluster.delete_topic(topic)
    each_cluster.delete_topic(log_name)
    assert gaps == []
    assert {"Metadata", "DescribeConfigs", "IncrementalAlterConfigs", "DescribeLogDirs", "Produce", "Fetch"} <= requests


def soon() -> float:
    return time.monotonic() + 20.0


def is_located(log: TopicLog) -> bool:
    try:
        log.locate(soon())
    except AutothrottleError:  # the broker does not know the new topic yet
        return False
    return True

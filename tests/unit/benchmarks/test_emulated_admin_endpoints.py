"""Simulated brokers, used through the real admin client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation, KafkaSettings
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE
from tests.benchmarks.admin_endpoints import AdminEndpoints

TIMEOUT = timedelta(seconds=60)


@pytest.fixture
def endpoints() -> Iterator[AdminEndpoints]:
    with AdminEndpoints(3, timedelta(milliseconds=1)) as started:
        yield started


def test_admin_client_finds_all_brokers_and_writes_and_reads_their_configs(endpoints: AdminEndpoints) -> None:
    with closing(KafkaAdmin(KafkaSettings(endpoints.bootstrap_servers[:1]))) as kafka:
        assert kafka.brokers(timeout=TIMEOUT) == {1, 2, 3}
        edits = [ConfigEdit(LEADER_RATE, ConfigOperation.SET, "5"), ConfigEdit(FOLLOWER_RATE, ConfigOperation.SET, "6")]
        kafka.alter_broker_configs(2, edits)
        kafka.alter_broker_configs(2, [ConfigEdit(FOLLOWER_RATE, ConfigOperation.DELETE)])
        found = kafka.broker_configs([1, 2, 3])
        current = {b: {k: v.current for k, v in values.items()} for b, values in found.values.items()}
        assert (current, found.failures) == ({1: {}, 2: {LEADER_RATE: "5"}, 3: {}}, {})
    assert endpoints.configs == {1: {}, 2: {LEADER_RATE: "5"}, 3: {}}

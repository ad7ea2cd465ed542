"""The simulated brokers' answers in Kafka's protocol, read with the product's own client."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import TypeVar

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.sources import KafkaFetchSettings
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle_lab.demo.scenario import DEMO_NEW_BROKER, demo_cluster, demo_scenario
from autothrottle_lab.emulators.broker_endpoints import ClusterEndpoints
from autothrottle_lab.simulation.cluster import Cluster

T = TypeVar("T")

TIMEOUT = timedelta(seconds=60)


def test_the_client_reads_log_sizes_leaders_and_settings() -> None:
    cluster = demo_cluster(demo_scenario())
    cluster.submit_reassignment(demo_scenario().targets)
    cluster.step(1.0)
    sessions, orders = ("sessions", 0), ("orders", 0)

    def inspect(value: Callable[[Cluster], T]) -> T:
        return value(cluster)

    with (
        ClusterEndpoints(inspect, cluster.brokers) as endpoints,
        closing(KafkaAdmin(KafkaSettings(endpoints.bootstrap_servers[:1]))) as kafka,
    ):
        assert kafka.brokers(timeout=TIMEOUT) == cluster.brokers.keys()
        sizes = kafka.log_sizes(DEMO_NEW_BROKER, None, timeout=TIMEOUT)
        assert sizes[orders] == round(cluster.controller.log_bytes[DEMO_NEW_BROKER][orders]) > 0
        sizes = kafka.log_sizes(cluster.assignment(sessions).leader, {"sessions": [0]}, timeout=TIMEOUT)
        assert sizes == {sessions: round(cluster.logs[sessions].size)}
        topics = kafka.partitions(["orders", "missing"], timeout=TIMEOUT)
        assert topics.values["orders"][0].leader == cluster.assignment(orders).leader
        settings = KafkaFetchSettings(kafka).fetch_settings([DEMO_NEW_BROKER], [], TIMEOUT)
        assert settings.brokers[DEMO_NEW_BROKER].response_max_bytes == 524_288


def test_the_client_starts_and_cancels_a_reassignment_and_reads_why_one_is_refused() -> None:
    cluster = demo_cluster(demo_scenario())
    row = "sessions", 0
    original = cluster.assignment(row).replicas
    target = (original[0], next(b for b in cluster.brokers if b not in original))

    def inspect(value: Callable[[Cluster], T]) -> T:
        return value(cluster)

    with (
        ClusterEndpoints(inspect, cluster.brokers) as endpoints,
        closing(KafkaAdmin(KafkaSettings(endpoints.bootstrap_servers[:1]))) as kafka,
    ):
        until = time.monotonic() + TIMEOUT.total_seconds()
        assert kafka.alter_reassignments({row: target}, until=until) == {}
        assert cluster.assignment(row).adding_replicas == target[1:]
        (listed,) = kafka.reassignments(timeout=TIMEOUT).values["sessions"].values()
        assert (listed.replicas, listed.adding_replicas) == (cluster.assignment(row).replicas, target[1:])
        assert kafka.alter_reassignments({row: None}, until=until) == {}
        assert not cluster.assignment(row).moves
        assert cluster.assignment(row).replicas == original
        refused = kafka.alter_reassignments({row: [1, 1]}, until=until)
        assert refused.keys() == {row}

"""Restarts of all brokers of Kafka 4 during a reassignment: one by one, and the whole cluster at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autothrottle.v1 import admin_pb2_grpc
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from tests.builders import eventually
from tests.system.recovery_watch import FOLLOWER_RATE, RecoveryWatch, admin_channel, submit
from tests.system.version_matrix import (
    DESTINATION,
    MB,
    OVERRIDE,
    TARGETS,
    TOPIC,
    Environment,
    Release,
    RunReplicas,
    set_override,
)

KAFKA = Release("4.3.1")

DOWN_SECONDS = 8.0
"""How long the whole cluster is down: longer than the session timeout, so that a leader must claim its term again."""


def restart_one_by_one(cluster: KraftCluster) -> None:
    """Restart each broker by a controlled shutdown, the next one when all replicas are in sync again."""
    for broker_id in cluster.brokers:
        cluster.stop_broker(broker_id)
        cluster.start_broker(broker_id)
        eventually(lambda: in_sync(cluster))


def restart_all_at_once(cluster: KraftCluster) -> None:
    """Stop all brokers and the controller, and start them again."""
    for broker in cluster.brokers.values():
        broker.terminate()
    for broker in cluster.brokers.values():
        broker.wait(60.0)
    cluster.controller.stop(60.0)
    time.sleep(DOWN_SECONDS)
    cluster.start()
    eventually(lambda: in_sync(cluster))


def in_sync(cluster: KraftCluster) -> bool:
    """Whether all replicas are in the ISR, but those that a reassignment adds."""
    states = cluster.partitions().values()
    return all(s.leader >= 0 and {*s.isr} >= {*s.replicas} - {*s.adding_replicas} for s in states)


@pytest.mark.repeat
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["zookeeper", "kafka"])
@pytest.mark.parametrize("restart", [restart_one_by_one, restart_all_at_once])
def test_reassignment_stays_throttled_while_all_brokers_restart(
    restart: Callable[[KraftCluster], None], store: str, tmp_path: Path
) -> None:
    with Environment(KAFKA, store, tmp_path) as environment:
        cluster = environment.cluster
        assert isinstance(cluster, KraftCluster)
        environment.create_topic()
        configs = environment.configs()
        with RunReplicas(environment.flags(), tmp_path) as replicas, RecoveryWatch(cluster, TOPIC) as watch:
            with admin_channel(replicas.addresses[0]) as channel:
                submit(admin_pb2_grpc.AdminServiceStub(channel), TARGETS)
            watch.wait_until(lambda s: bool(s.moving) and not s.unthrottled, 30, "all replicas are throttled")
            set_override(replicas, cluster)
            began = time.monotonic()
            restart(cluster)
            restarted, restart_time = time.monotonic(), datetime.now(UTC)
            state = replicas.wait_for_cycle(restart_time)
            next_cycle = time.monotonic()
            assert [override.rate_bytes_per_second for override in state.overrides] == [OVERRIDE]
            assert cluster.described_configs(DESTINATION)[FOLLOWER_RATE] == str(OVERRIDE)
            # Without a throttle, the reassignment takes about 3 s.
            sample = watch.wait_until(lambda s: s.at > next_cycle, 10, "a sample after the restarts")
            assert sample.moving, "the reassignment ended before the restarts"
            print(
                f"\n{restart.__name__}, state in {store}: {restarted - began:.1f} s; next cycle after "
                f"{next_cycle - restarted:.1f} s; {sample.received[DESTINATION] / MB:.0f} MB copied by then"
            )
            replicas.throttlectl("set", "500MB/s", "--beyond-capacity", "--autoremove")
            watch.wait_until(lambda s: not s.moving, 120, "the reassignment ends")
            assert watch.unthrottled_seconds() == 0
            eventually(lambda: environment.configs() == configs)
            replicas.stop()
        assert environment.configs() == configs

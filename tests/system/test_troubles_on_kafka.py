"""Faults during a reassignment on Kafka 4: a broker dies, other tools delete lists, a default throttle exists."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import grpc
import pytest

from autothrottle.v1 import admin_pb2, admin_pb2_grpc, planner_pb2, planner_pb2_grpc, types_pb2
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.traffic import BrokerCounters, ProducerLoad, fill
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from tests.builders import eventually
from tests.system.recovery_watch import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    Decisions,
    RecoveryWatch,
    admin_channel,
    feed,
    state_options,
    submit,
)

MB = 1_000_000
CAPACITY_MB = 8
INTERVAL = 5
DESTINATION = 1005
CHANGE_THRESHOLD = 0.1
"""The default of the services, as a fraction."""
RESTORED_WITHIN_SECONDS = 6.0
"""An edit of a list is noticed within about 1 s. The rest is tolerance for a busy machine."""
SLACK_SECONDS = INTERVAL + 1.0
"""Tolerance for a busy machine in limits of one cycle."""


@pytest.fixture(scope="module")
def clients(kraft_cluster: KraftCluster) -> Iterator[ProducerLoad]:
    """A steady produce rate on the destination and on one leader."""
    kraft_cluster.create_topic("clients-in-trouble", {0: [DESTINATION], 1: [1001]})
    with ProducerLoad(kraft_cluster, {("clients-in-trouble", n): 2.0 * MB for n in (0, 1)}, acks=1) as load:
        yield load


@pytest.fixture(scope="module")
def services(kraft_cluster: KraftCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcesses]:
    options = {
        "interval": str(INTERVAL),
        "metrics-window": "6",
        "cap-map": f'{{"lab":{CAPACITY_MB}}}',
        "min-rate": "1",
        "session-timeout": "3",
        "log-level": "debug",
    }
    with (
        state_options(kraft_cluster) as of_cluster,
        DatadogEmulator() as datadog,
        BrokerCounters(kraft_cluster) as counters,
    ):
        for broker_id in kraft_cluster.brokers:
            datadog.add_host(f"host-{broker_id}", broker_id, "lab")
        feed(counters, datadog)
        deployment = Deployment("", datadog.url, tmp_path_factory.mktemp("services"), options | of_cluster)
        with ServiceProcesses(deployment, planners=1) as running:
            yield running


@contextmanager
def observed(cluster: KraftCluster, services: ServiceProcesses, topic: str, megabytes: int) -> Iterator[RecoveryWatch]:
    """Observe a throttled reassignment; at the end, speed it up and check that it leaves no config behind."""
    assignment = {p: [1001 + p % 3] for p in range(12)}
    cluster.create_topic(topic, assignment)
    fill(cluster, topic, megabytes * MB // 12)
    before = cluster.stored_configs()
    with RecoveryWatch(cluster, topic) as watch, admin_channel(services.addresses["admin"]) as channel:
        # autothrottle submits it. Unthrottled, it could be over on a fast machine before the next poll finds it.
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        submit(admin, {(topic, p): [DESTINATION] for p in assignment})
        watch.wait_until(lambda s: bool(s.lists[1]) and (DESTINATION, FOLLOWER_RATE) in s.rates, 30, "throttled")
        yield watch
        fast = admin_pb2.Override(rate_bytes_per_second=500 * MB, autoremove=True, beyond_capacity=True)
        admin.SetOverride(admin_pb2.SetOverrideRequest(override=fast), timeout=60)
        watch.wait_until(lambda s: not s.moving, 200, "the reassignment ends")
        watch.wait_until(lambda s: not s.rates and not any(s.lists), 60, "all throttles are removed")
    after = cluster.stored_configs()
    assert without_defaults(after) == without_defaults(before)
    cluster.delete_topic(topic)


def without_defaults(configs: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {entity: config for entity, config in configs.items() if entity != "brokers/<default>"}


def last_cycle(services: ServiceProcesses) -> types_pb2.Cycle:
    with grpc.insecure_channel(services.addresses["planner-1"]) as channel:
        return (
            planner_pb2_grpc.PlannerServiceStub(channel).GetState(planner_pb2.GetStateRequest(), timeout=60).last_cycle
        )


@pytest.mark.timeout(600)
def test_killed_broker_delays_no_other_and_gets_its_throttle_after_its_restart(
    kraft_cluster: KraftCluster, services: ServiceProcesses, clients: ProducerLoad
) -> None:
    clients.set_total(2.0 * 2 * MB)
    with (
        observed(kraft_cluster, services, "a-broker-stops", 420) as watch,
        Decisions(services.addresses["planner-1"], 1002, "leader") as decided,
    ):
        ideal = 0.9 * (CAPACITY_MB - 2) * MB
        watch.wait_until(
            lambda s: 0.8 * ideal <= s.rates.get((DESTINATION, FOLLOWER_RATE), 0) <= 1.2 * ideal, 90, "rate near ideal"
        )
        kraft_cluster.kill_broker(1002)  # SIGTERM would give autothrottle time to remove the broker's throttle
        try:
            stepped = time.monotonic()
            clients.set_total(2.0 * 5 * MB)
            followed = watch.wait_until(
                lambda s: s.rates[DESTINATION, FOLLOWER_RATE] < 0.75 * ideal, 120, "the other rates follow the load"
            )
            print(f"\nwith a broker down, the destination's rate followed the load after {followed.at - stepped:.1f} s")
            eventually(lambda: refused(services, "brokers/1002"), 60)
            with admin_channel(services.addresses["admin"]) as channel, pytest.raises(grpc.RpcError) as caught:
                submit(admin_pb2_grpc.AdminServiceStub(channel), {("clients-in-trouble", 1): [1001, 1002]})
            assert "broker 1002, a target replica of clients-in-trouble-1, is unknown or down" in str(caught.value)
        finally:
            kraft_cluster.start_broker(1002, within_seconds=180)
        back = time.monotonic()
        # Compare each sample with the decision of its own time, not with a newer one.
        again = watch.wait_until(
            lambda s: is_near(s.rates.get((1002, LEADER_RATE)), decided.at(s.at)),
            120,
            "the restarted broker has its throttle",
        )
        print(f"the restarted broker had the decided rate after {again.at - back:.1f} s")
    # The metrics contain the whole load step after their window of 6 s; then the next cycle follows it.
    assert followed.at - stepped <= 2 * INTERVAL + SLACK_SECONDS
    assert again.at - back <= INTERVAL + SLACK_SECONDS


def is_near(current: int | None, decided: int | None) -> bool:
    """Whether the decided rate differs from the current one by at most the change threshold."""
    return current is not None and decided is not None and abs(current / decided - 1) <= CHANGE_THRESHOLD


def refused(services: ServiceProcesses, resource: str) -> bool:
    return any(
        outcome.resource == resource and outcome.status == types_pb2.Outcome.STATUS_REFUSED
        for outcome in last_cycle(services).outcomes
    )


def says(services: ServiceProcesses, text: str) -> bool:
    return text in services.log()


@pytest.mark.timeout(600)
def test_replica_lists_deleted_during_a_reassignment_are_repaired_and_reported(
    kraft_cluster: KraftCluster, services: ServiceProcesses, clients: ProducerLoad
) -> None:
    """Strimzi's topic operator deletes the lists, because they are not in its resource of the topic.

    The test deletes one at a time: without both, a fast machine copies everything before autothrottle can repair them.
    """
    clients.set_total(2.0 * 2 * MB)
    took = []
    with observed(kraft_cluster, services, "lists-deleted", 280) as watch:
        time.sleep(INTERVAL)
        for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS):
            kraft_cluster.set_configs_as_a_user({key: None}, topic="lists-deleted")
            deleted = time.monotonic()
            report = f"topics/lists-deleted, {key}: another party removed "
            eventually(partial(says, services, report), 30)
            repaired = watch.wait_until(lambda s: bool(s.moving) and s.lists == s.expected, 30, f"{key} is repaired")
            took.append(repaired.at - deleted)
            print(f"\n{key}: repaired {took[-1]:.1f} s after another party deleted it")
    assert max(took) <= RESTORED_WITHIN_SECONDS


@pytest.mark.timeout(600)
def test_foreign_default_throttle_does_not_interfere_and_stays(
    kraft_cluster: KraftCluster, services: ServiceProcesses, clients: ProducerLoad
) -> None:
    """With a default throttle, Cruise Control hangs for hours while it clears throttles."""
    clients.set_total(2.0 * 2 * MB)
    kraft_cluster.set_configs_as_a_user({FOLLOWER_RATE: "50000000"}, default=True)
    try:
        with observed(kraft_cluster, services, "under-a-default", 200) as watch:
            rates = watch.samples[-1].rates
            assert rates[DESTINATION, FOLLOWER_RATE] < 50 * MB
            kraft_cluster.set_configs_as_a_user({LEADER_RATE: "40000000"}, default=True)
            time.sleep(2 * INTERVAL)
        default = kraft_cluster.stored_configs()["brokers/<default>"]
        assert (default[FOLLOWER_RATE], default[LEADER_RATE]) == ("50000000", "40000000")
        value, source = kraft_cluster.described_sources(DESTINATION)[FOLLOWER_RATE]
        assert (value, source) == ("50000000", "DYNAMIC_DEFAULT_BROKER_CONFIG")
        eventually(lambda: "<default>" in services.log(["planner-1"]), 30)
    finally:
        kraft_cluster.set_configs_as_a_user({FOLLOWER_RATE: None, LEADER_RATE: None}, default=True)

"""A broker replacement through all services, each behind its own gRPC server."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from autothrottle.adapters.datadog import DatadogMetrics, DatadogSettings
from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.cluster.configs import FOLLOWER_REPLICAS, LEADER_REPLICAS, ConfigResource
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.loads import Capacity
from autothrottle.planner.cycle_report import UNKNOWN_PROGRESS
from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_lab.emulators.datadog import API_KEY, APP_KEY, DatadogEmulator
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import BROKERS, InProcessServices

TAGS = ("name:kafka-autothrottle", "name:autothrottle", "cluster:lab")
TOPIC = ConfigResource.topic("test0")


def rates(services: InProcessServices) -> dict[str, str]:
    """`broker role` -> current throttle in bytes/s."""
    return {
        f"{resource.name} {key.partition('.')[0]}": value
        for resource, config in services.cluster.configs.items()
        for key, value in config.items()
        if key.endswith(".throttled.rate")
    }


def lists(services: InProcessServices) -> tuple[str | None, str | None]:
    config = services.cluster.configs.get(TOPIC, {})
    return config.get(LEADER_REPLICAS), config.get(FOLLOWER_REPLICAS)


def begin_reassignment(services: InProcessServices) -> None:
    """Replace 1002 by 1003 in two partitions, led by 1001 and 1004."""
    services.cluster.add_topic("test0", {0: (1001, 1002), 1: (1004, 1002)})
    services.cluster.submit_reassignment("test0", {0: (1001, 1003), 1: (1004, 1003)})


@pytest.fixture
def emulator() -> Iterator[DatadogEmulator]:
    """Four brokers. Clients make each one send 20 and receive 10 MB/s, from 10 min ago to 10 min ahead."""
    with DatadogEmulator() as made:
        begin = time.time() - 600
        for broker_id in BROKERS:
            made.add_host(f"h{broker_id}", broker_id, "d2.xlarge")
            for passed in range(0, 1201, 60):
                made.record(broker_id, begin + passed, mb(20) * passed, mb(10) * passed)
        yield made


@pytest.fixture
def datadog(emulator: DatadogEmulator) -> Iterator[DatadogMetrics]:
    settings = DatadogSettings(api_key=API_KEY, app_key=APP_KEY, url=emulator.url, event_tags=("cluster:lab",))
    capacities = CapacityLimits(by_instance_type={"d2.xlarge": Capacity(mb(100), mb(100))})
    with closing(DatadogMetrics(settings, capacities)) as made:
        yield made


def test_a_recovery_is_throttled_and_cleaned_up() -> None:
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics) as services:
        services.start_planners()
        eventually(lambda: services.planners[0].state().last_cycle)
        begin_reassignment(services)
        throttled = {"1001 leader": "72000000", "1003 follower": "81000000", "1004 leader": "72000000"}
        eventually(lambda: rates(services) == throttled)
        assert lists(services) == ("0:1001,0:1002,1:1002,1:1004", "0:1003,1:1003")
        services.cluster.join_isr("test0", 1, 1003)
        eventually(lambda: lists(services) == ("0:1001,0:1002", "0:1003"))
        assert rates(services).keys() == {"1001 leader", "1003 follower"}
        services.cluster.join_isr("test0", 0, 1003)
        eventually(lambda: services.is_clean())
        services.cluster.finish("test0")
        eventually(lambda: (last := services.planners[0].state().last_cycle) and last.topics == ())
        assert services.is_clean()


def test_an_odd_load_of_one_broker_changes_no_throttle_of_the_others() -> None:
    """A rate above 64 bits at a broker that did not even take part made GetLoads fail, and all fell to min-rate.

    The throttles are those of the test above.
    """
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    metrics.set_loads(builders.load(1002, outbound=2**64))
    with InProcessServices(metrics, metrics) as services:
        services.start_planners()
        begin_reassignment(services)
        throttled = {"1001 leader": "72000000", "1003 follower": "81000000", "1004 leader": "72000000"}
        eventually(lambda: rates(services) == throttled)


def test_an_autoremove_override_set_by_the_api_applies_until_the_reassignment_ends() -> None:
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics) as services:
        services.start_planners()
        begin_reassignment(services)
        eventually(lambda: len(rates(services)) == 3)
        override = admin_pb2.Override(rate_bytes_per_second=mb(30), autoremove=True)
        stub = admin_pb2_grpc.AdminServiceStub(services.channel("admin"))
        stub.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=10)
        eventually(lambda: set(rates(services).values()) == {"30000000"})
        services.cluster.finish("test0")
        eventually(lambda: services.overrides.read_overrides().cluster is None)
        assert services.is_clean()


def test_a_recovery_survives_the_loss_of_the_leading_planner() -> None:
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics, planners=2) as services:
        services.start_planners()
        begin_reassignment(services)
        eventually(lambda: len(rates(services)) == 3)
        services.planners[0].stop()
        eventually(lambda: services.planners[1].state().last_cycle)
        assert len(rates(services)) == 3
        services.cluster.finish("test0")
        eventually(lambda: services.is_clean())


def test_a_recovery_survives_an_outage_of_the_metrics(emulator: DatadogEmulator, datadog: DatadogMetrics) -> None:
    emulator.fail(503)
    with InProcessServices(datadog, datadog) as services:
        services.start_planners()
        begin_reassignment(services)
        minimum = {"1001 leader": "10000000", "1003 follower": "10000000", "1004 leader": "10000000"}
        eventually(lambda: rates(services) == minimum)
        eventually(lambda: services.planners[0].state().last_cycle)  # the cycle is published after its writes
        (finding,) = services.planners[0].state().last_cycle.findings  # type: ignore[union-attr]
        assert "metrics cannot be read" in finding and "503" in finding
        services.cluster.finish("test0")
        eventually(lambda: services.is_clean())


def test_a_recovery_has_the_log_lines_and_events_of_the_original(
    emulator: DatadogEmulator, datadog: DatadogMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """Operators search for these lines and for the events with their tags."""
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    with InProcessServices(datadog, datadog) as services:
        services.start_planners()
        eventually(lambda: services.planners[0].state().last_cycle)
        begin_reassignment(services)
        eventually(lambda: len(emulator.events) == 1)
        services.cluster.join_isr("test0", 1, 1003)
        eventually(lambda: len(emulator.events) == 2)
        services.cluster.finish("test0")
        eventually(lambda: len(emulator.events) == 4)
    basis = "(based on a 90% max free capacity utilization)"
    load = "mean of the metric's interval, replication assumed at the throttle"
    assert [r.getMessage() for r in caplog.records if r.name.startswith("autothrottle.planner")] == [
        "Leading in term 1",
        "No topics undergoing reassignment",
        "Topics with ongoing reassignments: [test0]",
        "Source brokers participating in replication: [1001 1004]",
        "Destination brokers participating in replication: [1003]",
        UNKNOWN_PROGRESS,
        f"Replication throttle rate for broker 1001 [leader] {basis}: 72.00MB/s",
        "Updated throttle on broker 1001 [leader]",
        f"Client load of broker 1001 [leader]: 20.00MB/s, {load}",
        f"Replication throttle rate for broker 1003 [follower] {basis}: 81.00MB/s",
        "Updated throttle on broker 1003 [follower]",
        f"Client load of broker 1003 [follower]: 10.00MB/s, {load}",
        f"Replication throttle rate for broker 1004 [leader] {basis}: 72.00MB/s",
        "Updated throttle on broker 1004 [leader]",
        f"Client load of broker 1004 [leader]: 20.00MB/s, {load}",
        "Topics with ongoing reassignments: [test0]",
        "Source brokers participating in replication: [1001]",
        "Destination brokers participating in replication: [1003]",
        "Throttle removed on broker 1004",
        "Topics done reassigning: [test0]",
        "No topics undergoing reassignment",
        "Throttle removed on broker 1001",
        "Throttle removed on broker 1003",
        "Throttled replicas removed on topic test0",
    ]
    assert [(event.title, event.text) for event in emulator.events] == [
        (
            "[kafka-autothrottle] Broker replication throttle set",
            "Replication throttles changes for brokers [ID, role, rate]: "
            "[1001, leader, 72.00], [1003, follower, 81.00], [1004, leader, 72.00]\n"
            "Topics currently undergoing replication: [test0]",
        ),
        (
            "[kafka-autothrottle] Broker replication throttle removed",
            "Replication throttle removed on the following brokers: [1004]\n"
            "Throttled replicas removed on the following topics: []",
        ),
        ("[kafka-autothrottle] Topics done reassigning", "Topics done reassigning: [test0]"),
        (
            "[kafka-autothrottle] Broker replication throttle removed",
            "Replication throttle removed on the following brokers: [1001 1003]\n"
            "Throttled replicas removed on the following topics: [test0]",
        ),
    ]
    assert [event.tags for event in emulator.events] == [TAGS] * 4

"""A recovery through every service, each behind its own gRPC server."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from autothrottle.adapters.datadog import DatadogMetrics, DatadogSettings
from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.capacity import CapacityLimits
from autothrottle.core.configs import FOLLOWER_REPLICAS, LEADER_REPLICAS, ConfigResource
from autothrottle.core.loads import Capacity
from autothrottle.lab.datadog import API_KEY, APP_KEY, DatadogEmulator
from autothrottle.planner.narration import UNKNOWN_PROGRESS
from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from tests import builders
from tests.builders import eventually, mb
from tests.services.house import BROKERS, House

TAGS = ("name:kafka-autothrottle", "name:autothrottle", "cluster:lab")
TOPIC = ConfigResource.topic("test0")


def rates(house: House) -> dict[str, str]:
    """`broker role` -> bytes/s of all that stand."""
    return {
        f"{resource.name} {key.partition('.')[0]}": value
        for resource, config in house.cluster.configs.items()
        for key, value in config.items()
        if key.endswith(".throttled.rate")
    }


def lists(house: House) -> tuple[str | None, str | None]:
    config = house.cluster.configs.get(TOPIC, {})
    return config.get(LEADER_REPLICAS), config.get(FOLLOWER_REPLICAS)


def begin_move(house: House) -> None:
    """Broker 1003 replaces 1002 in two partitions that 1001 and 1004 lead."""
    house.cluster.add_topic("test0", {0: (1001, 1002), 1: (1004, 1002)})
    house.cluster.start_reassignment("test0", {0: (1001, 1003), 1: (1004, 1003)})


@pytest.fixture
def emulator() -> Iterator[DatadogEmulator]:
    """Four brokers whose clients make them send 20 and receive 10 MB/s, before, now and after."""
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
    with DatadogMetrics(settings, capacities) as made:
        yield made


def test_a_recovery_is_throttled_followed_and_left_clean() -> None:
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
    with House(metrics, metrics) as house:
        house.start_planners()
        eventually(lambda: house.planners[0].state().last_cycle)
        begin_move(house)
        throttled = {"1001 leader": "72000000", "1003 follower": "81000000", "1004 leader": "72000000"}
        eventually(lambda: rates(house) == throttled)
        assert lists(house) == ("0:1001,0:1002,1:1002,1:1004", "0:1003,1:1003")
        house.cluster.join_isr("test0", 1, 1003)
        eventually(lambda: lists(house) == ("0:1001,0:1002", "0:1003"))
        assert rates(house).keys() == {"1001 leader", "1003 follower"}
        house.cluster.join_isr("test0", 0, 1003)
        eventually(lambda: house.is_clean())
        house.cluster.finish("test0")
        eventually(lambda: (last := house.planners[0].state().last_cycle) and last.topics == ())
        assert house.is_clean()


def test_an_override_through_the_api_acts_in_mid_move_and_autoremove_ends_it() -> None:
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
    with House(metrics, metrics) as house:
        house.start_planners()
        begin_move(house)
        eventually(lambda: len(rates(house)) == 3)
        override = admin_pb2.Override(rate_bytes_per_second=mb(30), autoremove=True)
        stub = admin_pb2_grpc.AdminServiceStub(house.channel("admin"))
        stub.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=10)
        eventually(lambda: set(rates(house).values()) == {"30000000"})
        house.cluster.finish("test0")
        eventually(lambda: house.overrides.read_overrides().cluster is None)
        assert house.is_clean()


def test_a_recovery_survives_the_loss_of_its_leader() -> None:
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
    with House(metrics, metrics, planners=2) as house:
        house.start_planners()
        begin_move(house)
        eventually(lambda: len(rates(house)) == 3)
        house.planners[0].stop()
        eventually(lambda: house.planners[1].state().last_cycle)
        assert len(rates(house)) == 3
        house.cluster.finish("test0")
        eventually(lambda: house.is_clean())


def test_a_recovery_survives_a_time_without_metrics(emulator: DatadogEmulator, datadog: DatadogMetrics) -> None:
    emulator.fail(503)
    with House(datadog, datadog) as house:
        house.start_planners()
        begin_move(house)
        minimum = {"1001 leader": "10000000", "1003 follower": "10000000", "1004 leader": "10000000"}
        eventually(lambda: rates(house) == minimum)
        eventually(lambda: house.planners[0].state().last_cycle)  # it is published after its writes
        (finding,) = house.planners[0].state().last_cycle.findings  # type: ignore[union-attr]
        assert "metrics cannot be read" in finding and "503" in finding
        house.cluster.finish("test0")
        eventually(lambda: house.is_clean())


def test_a_recovery_is_told_in_the_words_that_operators_know(
    emulator: DatadogEmulator, datadog: DatadogMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines of the original's log, and its events with their tags."""
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    with House(datadog, datadog) as house:
        house.start_planners()
        eventually(lambda: house.planners[0].state().last_cycle)
        begin_move(house)
        eventually(lambda: len(emulator.events) == 1)
        house.cluster.join_isr("test0", 1, 1003)
        eventually(lambda: len(emulator.events) == 2)
        house.cluster.finish("test0")
        eventually(lambda: len(emulator.events) == 4)
    basis = "(based on a 90% max free capacity utilization)"
    known = "; clients: of the metric's interval, replication taken for the throttle"
    assert [r.getMessage() for r in caplog.records if r.name.startswith("autothrottle.planner")] == [
        "Leading in term 1",
        "No topics undergoing reassignment",
        "Topics with ongoing reassignments: [test0]",
        "Source brokers participating in replication: [1001 1004]",
        "Destination brokers participating in replication: [1003]",
        UNKNOWN_PROGRESS,
        f"Replication throttle rate for broker 1001 [leader] {basis}: 72.00MB/s{known}",
        "Updated throttle on broker 1001 [leader]",
        f"Replication throttle rate for broker 1003 [follower] {basis}: 81.00MB/s{known}",
        "Updated throttle on broker 1003 [follower]",
        f"Replication throttle rate for broker 1004 [leader] {basis}: 72.00MB/s{known}",
        "Updated throttle on broker 1004 [leader]",
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

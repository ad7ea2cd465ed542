"""Foreign throttles on real Kafka: those that Kafka's tool sets for a reassignment, and forgotten ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from autothrottle_client import AdminClient, AutothrottleError, ClusterState
from autothrottle_lab.emulators.datadog import API_KEY, APP_KEY, DatadogEmulator
from autothrottle_lab.observation.traffic import BrokerCounters, fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.processes import Process
from tests.builders import eventually
from tests.server_fixtures import repeat_on_kraft
from tests.system.recovery_watch import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    RecoveryWatch,
    feed,
    state_options,
)
from tests.system.test_throttlectl import address_of, throttlectl

MB = 1_000_000
INTERVAL, CLEANUP_AFTER = 2, 2
DESTINATION, BYSTANDER = 1005, 1004
TOOL_RATE = 3 * MB
KEYS = {"AUTOTHROTTLE_API_KEY": API_KEY, "AUTOTHROTTLE_APP_KEY": APP_KEY}


class Deployed:
    """Starts processes with all services on the shared cluster, each time with other options."""

    def __init__(self, kafka: KafkaCluster, directory: Path, stack: ExitStack) -> None:
        self.datadog = stack.enter_context(DatadogEmulator())
        for broker_id in kafka.brokers:
            self.datadog.add_host(f"host-{broker_id}", broker_id, "lab")
        feed(stack.enter_context(BrokerCounters(kafka)), self.datadog)
        self._options = {
            **stack.enter_context(state_options(kafka)),
            "session-timeout": "3",
            "datadog-url": self.datadog.url,
            "interval": str(INTERVAL),
            "metrics-window": "6",
            "cap-map": '{"lab":20}',
            "min-rate": "5",
            "api-listen": "127.0.0.1:0",
            "grpc-listen": "127.0.0.1:0",
        }
        self._directory, self._stack, self._starts = directory, stack, 0

    def start(self, *flags: str) -> Process:
        """Start a process, and wait until it leads and has run a cycle."""
        self._starts += 1
        command = [sys.executable, "-m", "autothrottle", "run", *(f"--{k}={v}" for k, v in self._options.items())]
        log = self._directory / f"run-{self._starts}.log"
        process = self._stack.enter_context(Process("run", [*command, *flags], log, KEYS))
        eventually(lambda: state_of(process) is not None, 60)
        return process


def state_of(process: Process) -> ClusterState | None:
    """Return the state from the process's API; None: no planner leads yet, or no cycle has run."""
    try:
        with AdminClient([address_of(process)]) as admin:
            state = admin.state()
    except AutothrottleError:
        return None
    return state if state.last_cycle else None


def foreign_in(process: Process) -> list[tuple[str, str, str]]:
    """Return the foreign throttles in the process's API: (resource, key, value)."""
    state = state_of(process)
    found = state.last_cycle.foreign_throttles if state and state.last_cycle else ()
    return [(one.resource, one.key, one.value) for one in found]


def cycles_of(process: Process) -> int:
    """Return the number of the last cycle; 0: unknown."""
    state = state_of(process)
    return state.last_cycle.number if state and state.last_cycle else 0


@pytest.fixture
def deployed(each_cluster: KafkaCluster, tmp_path: Path) -> Iterator[Deployed]:
    with ExitStack() as stack:
        yield Deployed(each_cluster, tmp_path, stack)


@repeat_on_kraft
@pytest.mark.timeout(600)
def test_throttles_of_kafkas_tool_are_removed_with_its_reassignment_and_others_stay(
    deployed: Deployed, each_cluster: KafkaCluster
) -> None:
    topic = "by-the-tool"
    each_cluster.create_topic(topic, {p: [1001, 1002] for p in range(4)})
    fill(each_cluster, topic, 30 * MB)
    initial = each_cluster.stored_configs()
    forgotten = {LEADER_RATE: "7000000"}
    each_cluster.set_configs_as_a_user({LEADER_RATE: "7000000"}, broker_id=BYSTANDER)
    try:
        process = deployed.start()
        eventually(lambda: foreign_in(process) == [(f"brokers/{BYSTANDER}", LEADER_RATE, "7000000")], 30)
        with RecoveryWatch(each_cluster, topic, every_seconds=0.05) as watch:
            targets = {(topic, p): [1001, DESTINATION] for p in range(4)}
            output = each_cluster.reassign_through_tool(targets, "--throttle", str(TOOL_RATE))
            assert f"throttle limit was set to {TOOL_RATE} B/s" in output
            taken = watch.wait_until(
                lambda s: bool(s.moving) and TOOL_RATE not in s.rates.values() and s.lists == s.expected,
                60,
                "autothrottle has replaced the tool's rates and lists",
            )
            assert taken.rates.keys() >= {(1001, LEADER_RATE), (DESTINATION, FOLLOWER_RATE)}
            watch.wait_until(lambda s: not s.moving, 200, "the reassignment ends")
            eventually(lambda: each_cluster.stored_configs() == {**initial, f"brokers/{BYSTANDER}": forgotten}, 30)
        if by_tool := [s for s in watch.samples if TOOL_RATE in s.rates.values()]:
            print(f"\nautothrottle replaced the tool's throttles after {taken.at - by_tool[0].at:.2f} s")
        assert_foreign_throttles_are_reported_and_removed_only_on_request(deployed, process, each_cluster, topic)
        assert each_cluster.stored_configs() == initial
    finally:
        each_cluster.set_configs_as_a_user({LEADER_RATE: None}, broker_id=BYSTANDER)
        each_cluster.delete_topic(topic)


def assert_foreign_throttles_are_reported_and_removed_only_on_request(
    deployed: Deployed, process: Process, cluster: KafkaCluster, topic: str
) -> None:
    cluster.set_configs_as_a_user({FOLLOWER_REPLICAS: "0:1001"}, topic=topic)
    current = cluster.stored_configs()
    left = [(f"brokers/{BYSTANDER}", LEADER_RATE, "7000000"), (f"topics/{topic}", FOLLOWER_REPLICAS, "0:1001")]
    eventually(lambda: foreign_in(process) == left, 30)
    shown = [line.split()[-2:] for line in throttlectl(address_of(process), "state").splitlines() if "not ours" in line]
    assert shown == [[resource, f"{key}={value}"] for resource, key, value in left]
    assert f"[{left[0][0]} {left[1][0]}]; they stay; --cleanup-foreign removes them" in process.log.read_text()
    eventually(lambda: any(e.title.endswith("Foreign throttles found") for e in deployed.datadog.events), 30)

    state = state_of(process)
    assert state is not None and state.last_cycle is not None
    number = state.last_cycle.number + CLEANUP_AFTER + 2
    eventually(
        lambda: (s := state_of(process)) is not None and s.last_cycle is not None and s.last_cycle.number >= number, 60
    )
    assert cluster.stored_configs() == current, "foreign throttles stay by default"
    process.stop()

    began = time.monotonic()
    process = deployed.start("--cleanup-foreign", f"--cleanup-after={CLEANUP_AFTER}")
    eventually(lambda: cluster.stored_configs() != current, 60)
    eventually(lambda: cycles_of(process) > 0, 30)
    assert cycles_of(process) > CLEANUP_AFTER
    print(f"foreign throttles removed {time.monotonic() - began:.1f} s after the start with --cleanup-foreign")
    eventually(lambda: LEADER_RATE not in cluster.stored_configs().get(f"brokers/{BYSTANDER}", {}), 30)
    eventually(lambda: foreign_in(process) == [], 30)

"""Throttles on clusters whose broker ids start at 0: of brokers that are down, in force from their start; overrides.

Source: KIP-73 (question 2, "bootstrapping broker").
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from autothrottle.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.traffic import BrokerCounters, fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.server_fixtures import SCALED_FETCHES
from tests.system.recovery_watch import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    admin_channel,
    feed,
    state_options,
    submit,
)

pytestmark = pytest.mark.measures

MB = 1_000_000
BROKERS = (0, 1, 2)
BACK = 0
"""The broker that is down and comes back."""
CAPACITY_MB = 8
ASSIGNMENT = {p: [1 + p % 2, BACK] for p in range(4)}
PIECE = 15 * MB
"""Bytes of each partition that the broker lacks."""
MAX_AHEAD_SECONDS = 4.5
"""Limit of `Growth.seconds_ahead`; an unthrottled copy is more than 6 s ahead.

Kafka 4 starts to fetch about 0.1 s before it applies the broker's configs, and earlier on a busy machine. Then each
quota lets one second through at once, on the follower and on two leaders.
"""
BURST = 1.5
"""Tolerance of the bytes in 4 s of a copy: the quota lets some through at once."""


@dataclass(slots=True)
class Growth:
    """Samples the size of a topic on the disk of one broker; a context manager."""

    cluster: KafkaCluster
    topic: str
    samples: list[tuple[float, int]] = field(default_factory=list)
    """(`time.monotonic()`, bytes)."""
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Growth:
        self._thread = threading.Thread(target=self._run, name="growth", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.05):
            sizes = self.cluster.log_bytes(BACK)
            self.samples.append(
                (time.monotonic(), sum(size for (name, _), size in sizes.items() if name == self.topic))
            )

    def seconds_ahead(self, rate: float) -> float:
        """Return the most seconds that a catch-up was ahead of a copy at this rate from its first byte on."""
        start = min(size for _, size in self.samples)
        began = next(at for (at, _), (_, size) in itertools.pairwise(self.samples) if size > start)
        return max((size - start) / rate - (at - began) for at, size in self.samples if at > began)


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.2", marks=pytest.mark.repeat)])
def cluster(zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Brokers 0 to 2, of Kafka 4 or in ZooKeeper mode."""
    with scratch_directory() as directory, contextlib.ExitStack() as stack:
        kafka: KafkaCluster
        if request.param == "3.9.2":
            chroot = f"/{uuid.uuid4().hex}"
            kafka = ZooKeeperModeCluster(
                zookeeper.connect, directory, BROKERS, chroot, broker_properties=SCALED_FETCHES
            )
        else:
            kafka = KraftCluster(directory, BROKERS, broker_properties=SCALED_FETCHES)
        yield stack.enter_context(kafka)


@pytest.fixture(scope="module")
def admin(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[admin_pb2_grpc.AdminServiceStub]:
    """The admin service; no scheduled cycle runs during a test."""
    options = {"interval": "600", "metrics-window": "6", "cap-map": f'{{"lab":{CAPACITY_MB}}}', "min-rate": "4"}
    if isinstance(cluster, KraftCluster):
        options["kafka-bootstrap-controllers"] = cluster.bootstrap_controllers
    with state_options(cluster) as of_cluster, DatadogEmulator() as datadog, BrokerCounters(cluster) as counters:
        for broker_id in cluster.brokers:
            datadog.add_host(f"host-{broker_id}", broker_id, "lab")
        feed(counters, datadog)
        deployment = Deployment("", datadog.url, tmp_path_factory.mktemp("services"), options | of_cluster)
        with (
            ServiceProcesses(deployment, planners=1) as services,
            admin_channel(services.addresses["admin"]) as channel,
        ):
            yield admin_pb2_grpc.AdminServiceStub(channel)


def throttled(cluster: KafkaCluster, topic: str, key: str) -> bool:
    """Whether the broker that is down has a rate, and its replicas are in the list of followers."""
    stored = cluster.stored_configs()
    listed = ",".join(f"{p}:{BACK}" for p in ASSIGNMENT)
    return key in stored.get(f"brokers/{BACK}", {}) and stored[f"topics/{topic}"].get(FOLLOWER_REPLICAS) == listed


def assert_throttled(growth: Growth, rate: float) -> None:
    seconds_ahead = growth.seconds_ahead(rate)
    print(f"\ncaught up at most {seconds_ahead:.2f} s ahead of {rate / MB:.1f} MB/s")
    assert seconds_ahead <= MAX_AHEAD_SECONDS


def last_cycle(admin: admin_pb2_grpc.AdminServiceStub) -> types_pb2.Cycle:
    return admin.GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=60).last_cycle


def assert_named_first(admin: admin_pb2_grpc.AdminServiceStub) -> None:
    """Assert that the state calls the destination of a move dead, in its first finding."""
    eventually(lambda: last_cycle(admin).down_brokers == [BACK], 60)
    cycle = last_cycle(admin)
    print("\n" + cycle.findings[0])
    assert cycle.findings[0].startswith(f"broker {BACK} is down since ")
    assert "1 partition (waiting-0) waits for it" in cycle.findings[0]
    assert f"`throttlectl cancel --broker {BACK}`" in cycle.findings[0]
    assert 0 < cycle.bytes_left <= 2.1 * PIECE and not cycle.HasField("eta")


@pytest.mark.timeout(600)
def test_override_of_a_stopped_broker_is_in_force_from_its_start(
    cluster: KafkaCluster, admin: admin_pb2_grpc.AdminServiceStub
) -> None:
    """On Kafka 4 the override was refused until the broker ran, so the broker first caught up without a throttle."""
    topic, rate = "overridden", 6 * MB
    cluster.create_topic(topic, ASSIGNMENT, {"min.insync.replicas": "1"})
    cluster.create_topic("waiting", {0: [1]})
    fill(cluster, "waiting", 2 * PIECE)
    before = cluster.stored_configs()
    move = admin_pb2.SubmitReassignmentRequest(throttle_bytes_per_second=1 * MB)  # not over before the broker stops
    move.partitions.add(topic="waiting", partition=0, replicas=[BACK])
    assert admin.SubmitReassignment(move, timeout=60).submitted == 1
    eventually(lambda: last_cycle(admin).bytes_left > 0)  # otherwise no bytes are known when it stops
    cluster.stop_broker(BACK)
    try:
        assert_named_first(admin)
        cancel = admin_pb2.CancelReassignmentRequest(partitions=[types_pb2.TopicPartition(topic="waiting")])
        assert admin.CancelReassignment(cancel, timeout=60).cancelled == 1
        eventually(lambda: not last_cycle(admin).findings, 60)
        fill(cluster, topic, PIECE)
        request = admin_pb2.SetOverrideRequest(override=admin_pb2.Override(broker_id=BACK, rate_bytes_per_second=rate))
        # The warning is left out if the brokers are too busy to answer within a second.
        eventually(lambda: "not registered" in " ".join(admin.SetOverride(request, timeout=60).warnings), 60)
        eventually(lambda: throttled(cluster, topic, LEADER_RATE), 60)
        assert cluster.stored_configs()[f"brokers/{BACK}"] == {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
    finally:
        with Growth(cluster, topic) as growth:
            cluster.start_broker(BACK)
            cluster.wait_until_in_sync([topic], within_seconds=120)
        admin.RemoveOverride(admin_pb2.RemoveOverrideRequest(broker_id=BACK), timeout=60)
    assert_throttled(growth, rate)
    eventually(lambda: cluster.stored_configs() == before, 60)


@pytest.mark.timeout(600)
def test_broker_with_empty_disks_is_throttled_from_its_start(
    cluster: KafkaCluster, admin: admin_pb2_grpc.AdminServiceStub
) -> None:
    topic, headroom = "bootstrapped", 0.9 * CAPACITY_MB * MB
    cluster.create_topic(topic, ASSIGNMENT, {"min.insync.replicas": "1"})
    fill(cluster, topic, PIECE)
    before = cluster.stored_configs()
    cluster.stop_broker(BACK)
    try:
        for partition in cluster.brokers[BACK].logs.glob(f"{topic}-*"):
            shutil.rmtree(partition)
        admin.StartCatchUp(admin_pb2.StartCatchUpRequest(broker_id=BACK), timeout=60)
        eventually(lambda: throttled(cluster, topic, FOLLOWER_RATE), 60)
        stored = cluster.stored_configs()
        assert 0 < int(stored[f"brokers/{BACK}"][FOLLOWER_RATE]) <= headroom
        assert all(0 < int(stored[f"brokers/{b}"][LEADER_RATE]) <= headroom for b in (1, 2))
    finally:
        with Growth(cluster, topic) as growth:
            cluster.start_broker(BACK)
            cluster.wait_until_in_sync([topic], within_seconds=120)
    assert growth.samples[0][1] == 0, "the disks are empty"
    assert_throttled(growth, headroom)
    eventually(lambda: cluster.stored_configs() == before, 60)
    # The cycle that restores the last configs removes the request afterwards.
    eventually(lambda: not admin.GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=60).catch_ups, 60)


@pytest.mark.repeat
@pytest.mark.timeout(600)
def test_override_during_a_reassignment(cluster: KafkaCluster, admin: admin_pb2_grpc.AdminServiceStub) -> None:
    """The cluster's first broker has id 0. With ids from 1001 the same overrides are tested for all brokers."""
    topic, rate = "reassigned", 1 * MB
    cluster.create_topic(topic, {p: [1, 2] for p in ASSIGNMENT})
    fill(cluster, topic, 2 * PIECE, record_bytes=20_000)  # batches of 0.1 MB, because a fetch returns at least one
    before = cluster.stored_configs()
    submit(admin, {(topic, p): [1, BACK] for p in ASSIGNMENT})
    override = admin_pb2.Override(broker_id=BACK, rate_bytes_per_second=rate)
    admin.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=60)
    both = {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
    eventually(lambda: cluster.stored_configs()[f"brokers/{BACK}"] == both, 60)
    assert int(cluster.stored_configs()["brokers/1"][LEADER_RATE]) > rate
    eventually(lambda: cluster.described_configs(BACK)[FOLLOWER_RATE] == str(rate), 60)
    with Growth(cluster, topic) as growth:
        time.sleep(4)
    (began, first), (ended, last) = growth.samples[0], growth.samples[-1]
    copied, seconds = last - first, ended - began
    print(f"\ncopied {copied / MB:.1f} MB in {seconds:.1f} s at {rate / MB:.0f} MB/s")
    assert copied <= BURST * rate * seconds
    assert admin.ListReassignments(admin_pb2.ListReassignmentsRequest(), timeout=60).topics

    admin.RemoveOverride(admin_pb2.RemoveOverrideRequest(broker_id=BACK), timeout=60)
    override = admin_pb2.Override(
        rate_bytes_per_second=100 * MB, autoremove=True, beyond_capacity=True
    )  # copy the rest quickly
    admin.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=60)
    eventually(lambda: cluster.stored_configs() == before, 120)
    eventually(lambda: not admin.ListOverrides(admin_pb2.ListOverridesRequest(), timeout=60).overrides, 60)

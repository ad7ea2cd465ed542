"""A recovery on real Kafka, 3.9 in ZooKeeper mode and 4.x without ZooKeeper, by our services as separate processes.

What is judged is what the brokers and the controller show; the loads that the services see come from the growth of the
brokers' logs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import grpc
import pytest
from kazoo.client import KazooClient

from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.metadata_log import ConfigWritten, PartitionWritten
from autothrottle_lab.observation.traffic import BrokerCounters, ClientLoad, fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.recovery_watch import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    Decisions,
    RecoveryWatch,
    admin_backend_options,
    feed,
)

MB = 1_000_000
BROKERS = (1001, 1002, 1003, 1004, 1005)
DESTINATION = 1005
PARTITIONS = 12


@dataclass(frozen=True, slots=True)
class Scale:
    """How much data moves, and how often the planner decides."""

    interval: int
    """Seconds."""
    metrics_window: int
    """Seconds."""
    bytes_per_partition: int
    judged_seconds: float | None = None
    """After the step in load; an override then hurries the move to its end. None: the move ends by itself."""

    @property
    def total_bytes(self) -> int:
        return PARTITIONS * self.bytes_per_partition


SHORT = Scale(interval=5, metrics_window=6, bytes_per_partition=38 * MB, judged_seconds=26.0)
"""17 s of 9 MB/s until the step in load, 26 s of 5.4 MB/s, and more than 30 s of it that are left out."""

LONG = Scale(interval=10, metrics_window=12, bytes_per_partition=90 * MB)
"""As the original was measured with."""


@pytest.fixture(scope="module")
def datadog(each_cluster: KafkaCluster) -> Iterator[DatadogEmulator]:
    with DatadogEmulator() as emulator, BrokerCounters(each_cluster) as counters:
        for broker_id in BROKERS:
            emulator.add_host(f"host-{broker_id}", broker_id, "lab")
        feed(counters, emulator)
        yield emulator


@pytest.fixture(scope="module")
def clients(each_cluster: KafkaCluster) -> Iterator[ClientLoad]:
    """A steady produce load on every broker; each partition has one replica."""
    each_cluster.create_topic("clients", {n: [broker_id] for n, broker_id in enumerate(BROKERS)})
    rates = {("clients", n): 2.0 * MB for n in range(len(BROKERS))}
    with ClientLoad(each_cluster, rates, acks=1) as load:
        yield load
    each_cluster.delete_topic("clients")  # the fixture is made anew for each row, of the same cluster too


@contextmanager
def services(
    cluster: KafkaCluster,
    zookeeper: ZooKeeperServer,
    datadog: DatadogEmulator,
    directory: Path,
    capacity_mb: int,
    log_sizes: bool,
    scale: Scale,
) -> Iterator[ServiceProcesses]:
    options = {
        "interval": str(scale.interval),
        "metrics-window": str(scale.metrics_window),
        "cap-map": f'{{"lab":{capacity_mb}}}',
        "min-rate": "1",
        "zk-session-timeout": "3",
        "log-level": "debug",
    }
    if log_sizes:
        options["bootstrap-servers"] = cluster.bootstrap_servers
    if isinstance(cluster, KraftCluster):
        options |= {**admin_backend_options(cluster), "zk-config-prefix": "autothrottle-kraft"}
    deployment = Deployment(zookeeper.connect, datadog.url, directory, options)
    with ServiceProcesses(deployment, planners=1) as running:
        yield running


@pytest.mark.alone
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("each_cluster", "form", "capacity_mb", "log_sizes", "scale"),
    [
        pytest.param("kafka_cluster", "znode", 12, True, SHORT, id="zookeeper-znode"),
        pytest.param("kafka_cluster", "znode", 12, True, LONG, id="zookeeper-znode-long", marks=pytest.mark.repeat),
        pytest.param(
            *("kafka_cluster", "bootstrap", 20, False, LONG),
            id="zookeeper-bootstrap-without-log-sizes",
            marks=pytest.mark.repeat,
        ),
        pytest.param("kraft_cluster", "bootstrap", 12, True, SHORT, id="kraft-bootstrap"),
        pytest.param("kraft_cluster", "bootstrap", 12, True, LONG, id="kraft-bootstrap-long", marks=pytest.mark.repeat),
    ],
    indirect=["each_cluster"],
)
def test_a_recovery_follows_the_load_with_exact_lists_and_leaves_the_cluster_as_it_was(
    form: str,
    capacity_mb: int,
    log_sizes: bool,
    scale: Scale,
    zookeeper: ZooKeeperServer,
    each_cluster: KafkaCluster,
    client: KazooClient,
    datadog: DatadogEmulator,
    clients: ClientLoad,
    tmp_path: Path,
) -> None:
    cluster, topic, interval = each_cluster, f"moving-{form}-{scale.interval}", scale.interval
    assignment = {p: [1001 + p % 3, 1001 + (p + 1) % 3] for p in range(PARTITIONS)}
    cluster.create_topic(topic, assignment)
    fill(cluster, topic, scale.bytes_per_partition)
    clients.set_total(len(BROKERS) * 2.0 * MB)
    with throttles_of_a_user(cluster, form):
        before = cluster.stored_configs()
        with services(cluster, zookeeper, datadog, tmp_path, capacity_mb, log_sizes, scale) as running:
            time.sleep(interval + 2)  # an idle cycle or two, which must change nothing
            assert cluster.stored_configs() == before
            with (
                RecoveryWatch(cluster, topic, client if form == "znode" else None) as watch,
                Decisions(running.addresses["planner-1"], DESTINATION, "follower") as decided,
            ):
                target = {(topic, p): [ids[0], DESTINATION] for p, ids in assignment.items()}
                submitted = time.monotonic()
                if form == "znode":
                    assert isinstance(cluster, ZooKeeperModeCluster)
                    cluster.reassign_through_znode(target)
                else:
                    cluster.reassign_through_bootstrap(target)
                watch.wait_until(
                    lambda s: bool(s.lists[1]) and (DESTINATION, FOLLOWER_RATE) in s.rates, 20, "throttled"
                )
                time.sleep(max(3 * interval, METER_SECONDS))
                reported = cluster.described_configs(DESTINATION)
                stepped = time.monotonic()
                clients.set_total(len(BROKERS) * 6.0 * MB)
                if judged := scale.judged_seconds:
                    watch.wait_until(lambda s: s.at > stepped + judged, 60, "enough was seen")
                    assert watch.samples[-1].moving
                    hurry(running.addresses["admin"])
                end = watch.wait_until(lambda s: not s.moving and s.at > submitted + 5, 600, "the move is over")
                clean = watch.wait_until(lambda s: s.rates == watch.samples[0].rates and not any(s.lists), 30, "clean")
                time.sleep(1)
            statuses = running.stop()
        assert statuses == [0] * 5
        assert cluster.stored_configs() == before
    cluster.delete_topic(topic)
    first = (
        first_throttle_in_metadata_log(cluster, topic)
        if isinstance(cluster, KraftCluster)
        else first_throttle_in_zookeeper(zookeeper, topic)
    )
    print_figures(watch, decided, form, capacity_mb, scale, submitted, stepped, end.at, clean.at, first)
    polled = isinstance(cluster, KraftCluster)  # there are no watches: the reassignment is seen at the next poll
    # The brokers themselves report a rate of those that the controller had; of a raise not every step is in a sample.
    stood = [rate for _, rate in watch.rates_of(DESTINATION) if rate is not None]
    assert min(stood) <= int(reported[FOLLOWER_RATE]) <= max(stood)
    assert first <= (1.5 + 3 * SLACK if polled else 0.5 + SLACK)  # 2.2 s were seen under a load of 30 on 2 cores
    # Cycles are 1 s apart, a sample is 0.2 s old, and a poll another 0.5 s.
    assert watch.worst_list_lag() <= (1.5 if polled else 1.0) + 2 * SLACK
    # 0.92 to 1.23 were seen; the rest is for a noisy machine.
    assert watch.worst_window(DESTINATION) <= 1.25 + 0.1
    ideal = ideal_after_the_step(capacity_mb)
    # From two cycles after the step on, until the end is near: what is nearly done keeps its rate.
    begin = stepped + max(2 * interval, METER_SECONDS) + SLACK
    judged_until = stepped + scale.judged_seconds if scale.judged_seconds else end.at - ENDS_SOON
    settled = [rate for at, rate in decided.rates if begin < at < judged_until]
    assert settled or not log_sizes
    # Without log sizes the formula decides: 0.95 to 1.17 were seen.
    limit = (0.1 if log_sizes else 0.3) + 0.05
    assert all(abs(rate / ideal - 1) <= limit for rate in settled), [rate / ideal for rate in settled]
    lowered, right = followed_seconds(watch, capacity_mb, stepped)
    # A cycle sees only the part of a step that its window of metrics has seen, and so much less than the change
    # threshold is not written: then the next one follows. One interval more is for a noisy machine.
    assert lowered <= 2 * interval + interval + SLACK
    assert right <= 3 * interval + interval + SLACK
    assert clean.at - end.at <= 2.0 + SLACK


def hurry(admin: str) -> None:
    """Let the rest of a move pass at once: what was to be seen of it was seen."""
    with grpc.insecure_channel(admin) as channel:
        override = admin_pb2.Override(rate_bytes_per_second=500 * MB, autoremove=True)
        request = admin_pb2.SetOverrideRequest(override=override)
        admin_pb2_grpc.AdminServiceStub(channel).SetOverride(request, timeout=30)


ENDS_SOON = 30.0
"""Seconds before the end of a move within which rates are not lowered any more."""

METER_SECONDS = 12.0
"""Kafka's quota is a mean over 11 windows of 1 s, so its bursts and pauses are over after that."""

SLACK = 0.5
"""Seconds that a noisy machine may add to a limit."""


@contextmanager
def throttles_of_a_user(cluster: KafkaCluster, form: str) -> Iterator[None]:
    """Rates on brokers that take part and on one that does not, lists on another topic, other dynamic keys."""
    other = f"others-{form}"
    cluster.create_topic(other, {0: [1004, 1002]}, {"retention.ms": "86400000"})
    of_brokers = {
        1002: {LEADER_RATE: "50000000", "log.cleaner.threads": "2"},
        1004: {LEADER_RATE: "40000000", FOLLOWER_RATE: "30000000"},
    }
    for broker_id, configs_of_broker in of_brokers.items():
        cluster.set_configs_as_a_user(configs_of_broker, broker_id=broker_id)
    cluster.set_configs_as_a_user({LEADER_REPLICAS: "0:1004", FOLLOWER_REPLICAS: "0:1002"}, topic=other)
    try:
        yield
    finally:
        for broker_id, configs_of_broker in of_brokers.items():
            cluster.set_configs_as_a_user(dict.fromkeys(configs_of_broker), broker_id=broker_id)
        cluster.delete_topic(other)


def first_throttle_in_zookeeper(zookeeper: ZooKeeperServer, topic: str) -> float:
    """From the reassignment to the first list, in seconds, by the times in ZooKeeper's transaction log."""
    moved = listed = None
    for transaction in zookeeper.transactions():
        for operation in transaction.operations:
            data = operation.data or b""
            if moved is None and (
                (operation.path == "/admin/reassign_partitions" and topic.encode() in data)
                or (operation.path == f"/brokers/topics/{topic}" and b'"adding_replicas":{"' in data)
            ):
                moved = transaction.time
            if listed is None and operation.path == f"/config/topics/{topic}" and b"throttled" in data:
                listed = transaction.time
    assert moved is not None
    assert listed is not None
    return (listed - moved).total_seconds()


def first_throttle_in_metadata_log(cluster: KraftCluster, topic: str) -> float:
    """From the reassignment to the last of the first rates and lists, in seconds, by the controller's own log."""
    records = cluster.metadata_records()
    moved = next(
        record.time
        for record in records
        if isinstance(change := record.change, PartitionWritten)
        and change.partition[0] == topic
        and change.state.adding_replicas
    )
    wanted = {(f"topics/{topic}", LEADER_REPLICAS), (f"topics/{topic}", FOLLOWER_REPLICAS)}
    wanted.add((f"brokers/{DESTINATION}", FOLLOWER_RATE))
    first: dict[tuple[str, str], datetime] = {}
    for record in records:
        change = record.change
        if record.time >= moved and isinstance(change, ConfigWritten) and change.value:
            first.setdefault((change.entity, change.key), record.time)
    return (max(first[key] for key in wanted) - moved).total_seconds()


def ideal_after_the_step(capacity_mb: int) -> float:
    """Bytes/s for the destination, at 90 % of what its clients leave."""
    return (capacity_mb - 6.0) * 0.9 * MB


def followed_seconds(watch: RecoveryWatch, capacity_mb: int, stepped: float) -> tuple[float, float]:
    """From the step in client load to the first lower throttle, and to one at most 20 % above what is then right."""
    ideal = ideal_after_the_step(capacity_mb)
    rates = watch.rates_of(DESTINATION)
    stood = next(rate for at, rate in reversed(rates) if at <= stepped and rate is not None)
    after = [(at - stepped, rate) for at, rate in rates if at > stepped and rate is not None]
    lowered = next((at for at, rate in after if rate < stood), float("inf"))
    return lowered, next((at for at, rate in after if rate <= 1.2 * ideal), float("inf"))


def print_figures(
    watch: RecoveryWatch,
    decided: Decisions,
    form: str,
    capacity_mb: int,
    scale: Scale,
    submitted: float,
    stepped: float,
    end: float,
    clean: float,
    first: float,
) -> None:
    """Print our column of the table of what the original reaches (same machine class, same scenario)."""
    over, peak = watch.seconds_over(DESTINATION, capacity_mb * MB)
    total = scale.total_bytes
    before, after = (capacity_mb - 2) * 0.9, ideal_after_the_step(capacity_mb) / MB
    bound = (
        total / MB / before
        if end < stepped
        else (stepped - submitted) + (total / MB - before * (stepped - submitted)) / after
    )
    rates = ", ".join("-" if rate is None else f"{rate / MB:.1f}" for _, rate in watch.rates_of(DESTINATION))
    cycles = ", ".join(f"{rate / MB:.2f} at {at - stepped:.0f} s" for at, rate in decided.rates)
    lowered, right = followed_seconds(watch, capacity_mb, stepped)
    untouched = min((s.received.get(DESTINATION, 0) for s in watch.samples if s.lists[1]), default=0)
    print(f"""
recovery started through {form}, capacity {capacity_mb} MB/s, clients 2 then 6 MB/s, {total / MB:.0f} MB
| figure | original (ZooKeeper) | ours |
|---|---|---|
| start to the last list | 1.8 to 3.2 s | {first:.3f} s |
| moved unthrottled until then | 269 to 336 MB | {untouched / MB:.0f} MB |
| rates on the destination, ideal {before:.1f} then {after:.1f} | 9.1, 1.0, 10.0, 7.8, 9.1, 3.6, 5.2 ... | {rates} |
| decided for it, seconds from the step on | swings by 30 % | {cycles} |
| seconds over capacity, peak | 23 to 27 %, 137 to 179 MB/s | {over * 100:.1f} %, {peak / MB:.0f} MB/s |
| step in load to a lower throttle, to the right one | | {lowered:.1f} s, {right:.1f} s |
| lists stood that were not right any more | whole move | at most {watch.worst_list_lag():.1f} s |
| bytes in 12 s / throttle, worst | | {watch.worst_window(DESTINATION):.2f} |
| makespan (bytes / headroom) | 137 s | {end - submitted:.0f} s ({bound:.0f} s) |
| end to the last throttle gone | 5 to 7 s | {clean - end:.2f} s |
""")

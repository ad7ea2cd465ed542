"""A throttled reassignment on real Kafka, 3.9 in ZooKeeper mode and 4.x, with the services as separate processes.

The tests check the state of the brokers and of the controller. The network traffic that Datadog reports is computed
from the growth of the brokers' logs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.metadata_log import ConfigWritten, PartitionWritten
from autothrottle_lab.observation.traffic import BrokerCounters, ProducerLoad, fill
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
    admin_channel,
    feed,
    state_options,
    submit,
)

MB = 1_000_000
BROKERS = (1001, 1002, 1003, 1004, 1005)
DESTINATION = 1005
PARTITIONS = 12


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of data, the client load, and the timing of the planner."""

    interval: int
    """Seconds."""
    metrics_window: int
    """Seconds."""
    bytes_per_partition: int
    clients: tuple[int, int] = (2 * MB, 6 * MB)
    """Produce rate on each broker before and after the load step, bytes/s."""
    judged_seconds: float | None = None
    """Seconds after the load step that are checked; then an override speeds up the rest. None: check until the end."""

    @property
    def total_bytes(self) -> int:
        return PARTITIONS * self.bytes_per_partition


SHORT = Scale(interval=5, metrics_window=12, bytes_per_partition=20 * MB, clients=(1 * MB, 3 * MB), judged_seconds=22.0)
"""17 s at 4.5 MB/s until the load step, 22 s at 2.7 MB/s, and data for more than 30 s that an override speeds up.

So little that the producers reach their rates on a busy machine.
"""

LONG = Scale(interval=10, metrics_window=12, bytes_per_partition=90 * MB)
"""The scale at which the original was measured."""


@pytest.fixture(scope="module")
def datadog(each_cluster: KafkaCluster) -> Iterator[DatadogEmulator]:
    with DatadogEmulator() as emulator, BrokerCounters(each_cluster) as counters:
        for broker_id in BROKERS:
            emulator.add_host(f"host-{broker_id}", broker_id, "lab")
        feed(counters, emulator)
        yield emulator


@pytest.fixture(scope="module")
def clients(each_cluster: KafkaCluster) -> Iterator[ProducerLoad]:
    """A steady produce rate on every broker; each partition has one replica."""
    each_cluster.create_topic("clients", {n: [broker_id] for n, broker_id in enumerate(BROKERS)})
    rates = {("clients", n): MB for n in range(len(BROKERS))}
    with ProducerLoad(each_cluster, rates, acks=1) as load:
        yield load
    each_cluster.delete_topic("clients")  # pytest sets this fixture up again for each parameter of the same cluster


@contextmanager
def services(
    of_cluster: Mapping[str, str],
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
        "session-timeout": "3",
        "log-level": "debug",
        **of_cluster,
    }
    if not log_sizes:
        del options["bootstrap-servers"]
    deployment = Deployment("", datadog.url, directory, options)
    with ServiceProcesses(deployment, planners=1) as running:
        yield running


@pytest.mark.measures
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("each_cluster", "form", "capacity_mb", "log_sizes", "scale"),
    [
        pytest.param("kafka_cluster", "znode", 6, True, SHORT, id="zookeeper-znode", marks=pytest.mark.repeat),
        pytest.param("kafka_cluster", "znode", 12, True, LONG, id="zookeeper-znode-long", marks=pytest.mark.repeat),
        pytest.param(
            *("kafka_cluster", "bootstrap", 20, False, LONG),
            id="zookeeper-bootstrap-without-log-sizes",
            marks=pytest.mark.repeat,
        ),
        pytest.param("kraft_cluster", "submit", 6, True, SHORT, id="kraft-submit"),
        # What a fast machine copies before the first throttle disturbs short metrics, so this one uses the long scale.
        pytest.param("kraft_cluster", "bootstrap", 12, True, LONG, id="kraft-bootstrap-long", marks=pytest.mark.repeat),
    ],
    indirect=["each_cluster"],
)
def test_recovery_follows_the_load_with_exact_lists_and_leaves_no_config(
    form: str,
    capacity_mb: int,
    log_sizes: bool,
    scale: Scale,
    zookeeper: ZooKeeperServer,
    each_cluster: KafkaCluster,
    client: KazooClient,
    datadog: DatadogEmulator,
    clients: ProducerLoad,
    tmp_path: Path,
) -> None:
    cluster, topic, interval = each_cluster, f"moving-{form}-{scale.interval}", scale.interval
    assignment = {p: [1001 + p % 3, 1001 + (p + 1) % 3] for p in range(PARTITIONS)}
    cluster.create_topic(topic, assignment)
    # Batches of 100 kB: a fetch returns at least one batch, and bursts of the default of 1 MB disturb short metrics.
    fill(cluster, topic, scale.bytes_per_partition, record_bytes=20_000)
    clients.set_total(len(BROKERS) * scale.clients[0])
    with state_options(cluster) as of_cluster, throttles_of_a_user(cluster, form):
        before = cluster.stored_configs()
        with services(of_cluster, datadog, tmp_path, capacity_mb, log_sizes, scale) as running:
            time.sleep(interval + 2)  # one or two idle cycles must not change anything
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
                elif form == "bootstrap":
                    cluster.reassign_through_bootstrap(target)
                else:
                    with admin_channel(running.addresses["admin"]) as channel:
                        submit(admin_pb2_grpc.AdminServiceStub(channel), target)
                watch.wait_until(
                    lambda s: bool(s.lists[1]) and (DESTINATION, FOLLOWER_RATE) in s.rates, 20, "throttled"
                )
                time.sleep(max(3 * interval, METER_SECONDS))
                reported = cluster.described_configs(DESTINATION)
                stepped = time.monotonic()
                clients.set_total(len(BROKERS) * scale.clients[1])
                if judged := scale.judged_seconds:
                    watch.wait_until(lambda s: s.at > stepped + judged, 60, "the checked time is over")
                    assert watch.samples[-1].moving
                    speed_up(running.addresses["admin"])
                end = watch.wait_until(lambda s: not s.moving and s.at > submitted + 5, 600, "the reassignment ends")
                clean = watch.wait_until(lambda s: s.rates == watch.samples[0].rates and not any(s.lists), 30, "clean")
                time.sleep(1)
            statuses = running.stop()
        assert statuses == [0] * 5
        assert cluster.stored_configs() == before
    cluster.delete_topic(topic)
    if form == "submit":
        first = 0.0  # Kafka receives the reassignment after its throttles
    elif isinstance(cluster, KraftCluster):
        first = first_throttle_in_metadata_log(cluster, topic)
    else:
        first = first_throttle_in_zookeeper(zookeeper, topic)
    print_figures(watch, decided, form, capacity_mb, scale, submitted, stepped, end.at, clean.at, first)
    polled = isinstance(cluster, KraftCluster)  # without watches, the next poll finds the reassignment
    # The rate that the broker reports is within those of the samples; the samples may miss steps of a ramp.
    sampled = [rate for _, rate in watch.rates_of(DESTINATION) if rate is not None]
    assert min(sampled) <= int(reported[FOLLOWER_RATE]) <= max(sampled)
    assert first <= (1.5 + 3 * SLACK if polled else 0.5 + SLACK)  # measured: 2.2 s at a load average of 30 on 2 cores
    # Cycles are 1 s apart, samples 0.2 s, and polls 0.5 s.
    assert watch.worst_list_lag() <= (1.5 if polled else 1.0) + 2 * SLACK
    # Measured: 0.92 to 1.23; the rest is for a busy machine.
    assert watch.worst_window(DESTINATION) <= 1.25 + 0.1
    # Check from two cycles after the load step until shortly before the end, when rates are no longer lowered.
    begin = stepped + max(2 * interval, METER_SECONDS) + SLACK
    judged_until = stepped + scale.judged_seconds if scale.judged_seconds else end.at - ENDS_SOON
    wanted = ideal(capacity_mb, scale.clients[1])
    shares = [rate / wanted for at, rate in decided.rates if begin < at < judged_until]
    assert shares or not log_sizes
    # Without log sizes, the headroom formula decides; measured: 0.95 to 1.17.
    limit = (0.1 if log_sizes else 0.3) + 0.05
    assert all(abs(share - 1) <= limit for share in shares), shares
    lowered, adjusted = reaction_seconds(watch, wanted, stepped)
    # The metrics of the first cycle may contain so little of the load step that the change is below the change
    # threshold. Then the next cycle lowers the rate. One more interval is for a busy machine.
    assert lowered <= 2 * interval + interval + SLACK
    assert adjusted <= 3 * interval + interval + SLACK
    assert clean.at - end.at <= 2.0 + SLACK


def speed_up(admin: str) -> None:
    """Set a high override. The throttle rises in steps to about 30 MB/s, which leaves CPU time for the services."""
    with admin_channel(admin) as channel:
        override = admin_pb2.Override(rate_bytes_per_second=100 * MB, autoremove=True, beyond_capacity=True)
        request = admin_pb2.SetOverrideRequest(override=override)
        admin_pb2_grpc.AdminServiceStub(channel).SetOverride(request, timeout=30)


ENDS_SOON = 30.0
"""Rates are not lowered in this time before the end of a reassignment, seconds."""

METER_SECONDS = 12.0
"""Bursts and pauses end within this time, because Kafka's quota is a mean over 11 samples of 1 s."""

SLACK = 0.5
"""Tolerance for a busy machine, seconds."""


@contextmanager
def throttles_of_a_user(cluster: KafkaCluster, form: str) -> Iterator[None]:
    """Set foreign configs: rates inside and outside the reassignment, lists of another topic, other dynamic configs."""
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
    """Return the seconds from the reassignment to the first list, from ZooKeeper's transaction log."""
    started = listed = None
    for transaction in zookeeper.transactions():
        for operation in transaction.operations:
            data = operation.data or b""
            if started is None and (
                (operation.path == "/admin/reassign_partitions" and topic.encode() in data)
                or (operation.path == f"/brokers/topics/{topic}" and b'"adding_replicas":{"' in data)
            ):
                started = transaction.time
            if listed is None and operation.path == f"/config/topics/{topic}" and b"throttled" in data:
                listed = transaction.time
    assert started is not None
    assert listed is not None
    return (listed - started).total_seconds()


def first_throttle_in_metadata_log(cluster: KraftCluster, topic: str) -> float:
    """Return the seconds from the reassignment until all rates and lists are set, from the metadata log."""
    records = cluster.metadata.records()
    started = next(
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
        if record.time >= started and isinstance(change, ConfigWritten) and change.value:
            first.setdefault((change.entity, change.key), record.time)
    return (max(first[key] for key in wanted) - started).total_seconds()


def ideal(capacity_mb: int, clients: float) -> float:
    """Return the headroom of the destination: 90 % of what its clients leave, bytes/s."""
    return (capacity_mb * MB - clients) * 0.9


def reaction_seconds(watch: RecoveryWatch, wanted: float, stepped: float) -> tuple[float, float]:
    """Return the seconds from the load step to (the first lower throttle, one at most 20 % above the wanted rate)."""
    rates = watch.rates_of(DESTINATION)
    before = next(rate for at, rate in reversed(rates) if at <= stepped and rate is not None)
    after = [(at - stepped, rate) for at, rate in rates if at > stepped and rate is not None]
    lowered = next((at for at, rate in after if rate < before), float("inf"))
    return lowered, next((at for at, rate in after if rate <= 1.2 * wanted), float("inf"))


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
    """Print a table of the figures beside the original's (same class of machine, same scenario)."""
    over, peak = watch.seconds_over(DESTINATION, capacity_mb * MB)
    total = scale.total_bytes
    wanted = ideal(capacity_mb, scale.clients[1])
    before, after = ideal(capacity_mb, scale.clients[0]) / MB, wanted / MB
    bound = (
        total / MB / before
        if end < stepped
        else (stepped - submitted) + (total / MB - before * (stepped - submitted)) / after
    )
    clients = " then ".join(f"{rate / MB:g}" for rate in scale.clients)
    rates = ", ".join("-" if rate is None else f"{rate / MB:.1f}" for _, rate in watch.rates_of(DESTINATION))
    cycles = ", ".join(f"{rate / MB:.2f} at {at - stepped:.0f} s" for at, rate in decided.rates)
    lowered, adjusted = reaction_seconds(watch, wanted, stepped)
    unthrottled = min((s.received.get(DESTINATION, 0) for s in watch.samples if s.lists[1]), default=0)
    print(f"""
reassignment through {form}, capacity {capacity_mb} MB/s, clients {clients} MB/s, {total / MB:.0f} MB
| figure | original (ZooKeeper) | autothrottle |
|---|---|---|
| start of the reassignment to the last list | 1.8 to 3.2 s | {first:.3f} s |
| copied unthrottled until then | 269 to 336 MB | {unthrottled / MB:.0f} MB |
| rates on the destination, ideal {before:.1f} then {after:.1f} | 9.1, 1.0, 10.0, 7.8, 9.1, 3.6, 5.2 ... | {rates} |
| decided rates, seconds after the load step | swings by 30 % | {cycles} |
| share of seconds over capacity, peak | 23 to 27 %, 137 to 179 MB/s | {over * 100:.1f} %, {peak / MB:.0f} MB/s |
| load step to a lower throttle, to the ideal one | | {lowered:.1f} s, {adjusted:.1f} s |
| time with inexact lists | whole reassignment | at most {watch.worst_list_lag():.1f} s |
| bytes in 12 s / throttle, worst | | {watch.worst_window(DESTINATION):.2f} |
| duration (bytes / headroom) | 137 s | {end - submitted:.0f} s ({bound:.0f} s) |
| end of the reassignment to the removal of the last throttle | 5 to 7 s | {clean - end:.2f} s |
""")

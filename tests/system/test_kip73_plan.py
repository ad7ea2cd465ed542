"""The test plan of KIP-73 on real Kafka, 3.9 and 4.x: replicas move at the rate that the throttle dictates.

The throttle is an operator's override, so that it is one rate all the time, and every move is submitted under it, so
that nothing moves before it stands. What is judged is what lands on the disks of the destinations.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from autothrottle.core.errors import Invalid
from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.traffic import ClientLoad, fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.recovery_watch import RecoveryWatch, Sample, admin_backend_options, submit

MB = 1_000_000
RATE = 6 * MB
WINDOW_SECONDS = 12.0
"""Kafka's quota is a mean over 11 windows of 1 s: shorter ones say nothing."""
MEASURED_SECONDS = 16.0
BYTES_PER_PARTITION = 14 * MB
"""12 of them are what the throttle lets through at once (11 to 12 s of the rate), and then 16 s of the rate more."""
SLACK = 0.1
"""Share of the throttle that a noisy machine may add to a limit; 0.89 to 1.00 of it were seen."""
PRODUCED = 1.2 * MB
"""Bytes per second to the whole moving topic."""


@dataclass(frozen=True, slots=True)
class Move:
    """One row of the plan; one broker's throttle, whatever the others', bounds the whole move."""

    before: Mapping[int, list[int]]
    """Partition -> replicas, the leader first."""
    after: Mapping[int, list[int]]


MOVES = {
    "to-an-emptied-node": Move({p: [1001] for p in range(12)}, {p: [1001, 1002] for p in range(12)}),
    "one-to-two": Move({p: [1003] for p in range(12)}, {p: [1004 + p % 2] for p in range(12)}),
    "two-to-one": Move({p: [1001 + p % 2] for p in range(12)}, {p: [1003] for p in range(12)}),
    "replace": Move(
        {p: [1004 + p % 2, 1003] for p in range(12)},
        {p: [1004 + p % 2, 1001] for p in range(12)},
    ),
}

PAIRS = [("to-an-emptied-node", "one-to-two"), ("two-to-one", "replace")]
"""Moves that run at the same time: they share no meter, which a broker has one of for each role.

In this order no meter that bounds a move has counted anything for the last 12 s: what it has not spent goes out at
once, and what it has spent too much holds the next move back."""


@pytest.fixture(scope="module")
def admin(
    each_cluster: KafkaCluster, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[admin_pb2_grpc.AdminServiceStub]:
    """All services, with an override and an interval so long that no measurement counts."""
    directory: Path = tmp_path_factory.mktemp("services")
    options = {"interval": "600", "cap-map": '{"lab":20}', "zk-session-timeout": "3", "log-level": "debug"}
    options["zk-config-prefix"] = f"autothrottle-kip73-{each_cluster.version}"
    if isinstance(each_cluster, KraftCluster):
        options |= admin_backend_options(each_cluster)
    with DatadogEmulator() as datadog:
        for broker_id in each_cluster.brokers:
            datadog.add_host(f"host-{broker_id}", broker_id, "lab")
        deployment = Deployment(zookeeper.connect, datadog.url, directory, options)
        with (
            ServiceProcesses(deployment, planners=1) as services,
            grpc.insecure_channel(services.addresses["admin"]) as channel,
        ):
            yield admin_pb2_grpc.AdminServiceStub(channel)


IN_MAKE_TEST = {("kafka_cluster", 0.0, PAIRS[0]), ("kraft_cluster", PRODUCED, PAIRS[1])}
CASES = [
    pytest.param(
        *(cluster, produced, pair),
        id=f"{cluster}-{'produced-to' if produced else 'quiet'}-{pair[0]}",
        marks=() if (cluster, produced, pair) in IN_MAKE_TEST else pytest.mark.repeat,
    )
    for cluster in ("kafka_cluster", "kraft_cluster")
    for produced in (0.0, PRODUCED)
    for pair in PAIRS
]
"""`make test` runs every move once, both clusters, and topics with and without clients."""


@pytest.mark.alone
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("each_cluster", "produced", "names"), CASES, indirect=["each_cluster"])
def test_replicas_move_at_the_rate_that_the_throttle_dictates(
    names: tuple[str, str], produced: float, each_cluster: KafkaCluster, admin: admin_pb2_grpc.AdminServiceStub
) -> None:
    cluster = each_cluster
    topics = {f"kip73-{name}-{'produced-to' if produced else 'quiet'}": MOVES[name] for name in names}
    for topic, move in topics.items():
        cluster.create_topic(topic, move.before)
        fill(cluster, topic, BYTES_PER_PARTITION)
    before = cluster.stored_configs()
    override(admin, RATE)
    rates = {(topic, p): produced / 12 for topic in topics for p in range(12)}
    load = ClientLoad(cluster, rates, acks=1) if produced else nullcontext()
    with load, ExitStack() as stack:
        watches = {topic: stack.enter_context(RecoveryWatch(cluster, topic)) for topic in topics}
        submit(admin, {(topic, p): to for topic, move in topics.items() for p, to in move.after.items()})
        began = [watch.wait_until(lambda s: bool(s.moving), 30, "it moves") for watch in watches.values()]
        time.sleep(MEASURED_SECONDS)
        measured = {topic: copied(watch, max(s.at for s in began) + 1) for topic, watch in watches.items()}
        # Cancelled, not hurried to its end: what is sent beyond the throttle would count against the next move.
        with suppress(Invalid):  # some are done by now
            cluster.reassign_through_bootstrap(dict.fromkeys(cluster.reassigning()))
        for watch in watches.values():
            watch.wait_until(lambda s: not s.moving, 120, "the move is over")
        admin.RemoveOverride(admin_pb2.RemoveOverrideRequest(), timeout=10)
        for watch in watches.values():
            watch.wait_until(lambda s: not s.rates and not any(s.lists), 30, "nothing is left")
    for topic, (windows, whole) in measured.items():
        by_window = f"{min(windows) / RATE:.2f} to {max(windows) / RATE:.2f}"
        print(f"\n{cluster.version} {topic}: {whole / RATE:.2f} of the throttle, by window {by_window}")
    for topic, (_, whole) in measured.items():
        # Single windows are only printed: with a few fetches a second one more or less is some percent.
        assert (0.85 - SLACK) * RATE <= whole <= (1.15 + SLACK) * RATE, topic
        assert watches[topic].worst_list_lag() <= 3.0
    assert cluster.stored_configs() == before
    for topic in topics:
        cluster.delete_topic(topic)


def copied(watch: RecoveryWatch, start: float) -> tuple[list[float], float]:
    """Return what landed on the destinations after `start`, in bytes per second: in each window, and in all."""
    samples = [sample for sample in watch.samples if sample.at >= start]
    rates = []
    for first in samples:
        last = next((s for s in samples if s.at >= first.at + WINDOW_SECONDS), None)
        if last is None:
            break
        rates.append(between(first, last))
    assert rates, "the move was watched for less than a window"
    return rates, between(samples[0], samples[-1])


def between(first: Sample, last: Sample) -> float:
    return (sum(last.received.values()) - sum(first.received.values())) / (last.at - first.at)


def override(admin: admin_pb2_grpc.AdminServiceStub, rate: int) -> None:
    wanted = admin_pb2.Override(rate_bytes_per_second=rate)
    admin.SetOverride(admin_pb2.SetOverrideRequest(override=wanted), timeout=10)

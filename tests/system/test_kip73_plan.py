"""The test plan of KIP-73 on real Kafka, 3.9 and 4.x: replicas move at the rate that the throttle dictates.

The throttle is an operator's override, so that it is one rate all the time, and every move is submitted under it, so
that nothing moves before it stands. What is judged is what lands on the disks of the destinations.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from autothrottle.core.errors import Invalid
from autothrottle.lab.datadog import DatadogEmulator
from autothrottle.lab.kafka import KafkaCluster
from autothrottle.lab.kraft import KraftCluster
from autothrottle.lab.services import Deployment, ServiceProcesses
from autothrottle.lab.traffic import ClientLoad, fill
from autothrottle.lab.zookeeper import ZooKeeperServer
from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from tests.system.recovery_watch import RecoveryWatch, Sample, by_admin, submit

MB = 1_000_000
RATE = 6 * MB
WINDOW_SECONDS = 12.0
"""Kafka's quota is a mean over 11 windows of 1 s: shorter ones say nothing."""
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
"""In this order no meter that bounds a move has counted anything for the last 12 s: what it has not spent goes out at
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
        options |= by_admin(each_cluster)
    with DatadogEmulator() as datadog:
        for broker_id in each_cluster.brokers:
            datadog.add_host(f"host-{broker_id}", broker_id, "lab")
        deployment = Deployment(zookeeper.connect, datadog.url, directory, options)
        with (
            ServiceProcesses(deployment, planners=1) as services,
            grpc.insecure_channel(services.addresses["admin"]) as channel,
        ):
            yield admin_pb2_grpc.AdminServiceStub(channel)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize(
    ("each_cluster", "produced"),
    [
        pytest.param("kafka_cluster", 0.0, id="zookeeper-quiet"),
        pytest.param("kafka_cluster", PRODUCED, id="zookeeper-produced-to", marks=pytest.mark.whole),
        pytest.param("kraft_cluster", 0.0, id="kraft-quiet", marks=pytest.mark.whole),
        pytest.param("kraft_cluster", PRODUCED, id="kraft-produced-to"),
    ],
    indirect=["each_cluster"],
)
def test_replicas_move_at_the_rate_that_the_throttle_dictates(
    name: str, produced: float, each_cluster: KafkaCluster, admin: admin_pb2_grpc.AdminServiceStub
) -> None:
    cluster, move = each_cluster, MOVES[name]
    topic = f"kip73-{name}-{'produced-to' if produced else 'quiet'}"
    cluster.create_topic(topic, move.before)
    fill(cluster, topic, 15 * MB)
    before = cluster.stored_configs()
    override(admin, RATE)
    load = ClientLoad(cluster, {(topic, p): produced / 12 for p in range(12)}, acks=1) if produced else nullcontext()
    with load, RecoveryWatch(cluster, topic) as watch:
        submit(admin, {(topic, p): replicas for p, replicas in move.after.items()})
        began = watch.wait_until(lambda s: bool(s.moving), 30, "it moves")
        time.sleep(2 * WINDOW_SECONDS)
        rates, whole = landed(watch, began.at + 1)
        # Cancelled, not hurried to its end: what is sent beyond the throttle would count against the next move.
        with suppress(Invalid):  # some are done by now
            cluster.reassign_through_bootstrap(dict.fromkeys(cluster.reassigning()))
        watch.wait_until(lambda s: not s.moving, 120, "the move is over")
        admin.RemoveOverride(admin_pb2.RemoveOverrideRequest(), timeout=10)
        watch.wait_until(lambda s: not s.rates and not any(s.lists), 30, "nothing is left")
    shown = f"{min(rates) / RATE:.2f} to {max(rates) / RATE:.2f}"
    told = f"{whole / RATE:.2f} of the throttle, by window {shown}"
    print(f"\n{cluster.version} {name}, {produced / MB:g} MB/s produced: {told}")
    # Single windows are only printed: with a few fetches a second one more or less is some percent.
    assert (0.85 - SLACK) * RATE <= whole <= (1.15 + SLACK) * RATE
    assert watch.worst_list_lag() <= 3.0
    assert cluster.stored_configs() == before
    cluster.delete_topic(topic)


def landed(watch: RecoveryWatch, start: float) -> tuple[list[float], float]:
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

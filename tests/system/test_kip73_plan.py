"""The test plan of KIP-73 on real Kafka, 3.9 and 4.x: replicas are copied at the rate of the throttle.

An override keeps the throttle constant. autothrottle submits each reassignment, so that no byte is copied before the
throttle is set. The tests measure the growth of the logs on the destinations' disks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from autothrottle.core.cluster.configs import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE
from autothrottle.core.errors import Invalid
from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.traffic import ProducerLoad, fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.system.recovery_watch import RecoveryWatch, Sample, admin_backend_options, submit

MB = 1_000_000
RATE = 6 * MB
WINDOW_SECONDS = 12.0
"""Kafka's quota is a mean over 11 samples of 1 s, so shorter windows prove nothing."""
MEASURED_SECONDS = 16.0
BYTES_PER_PARTITION = 14 * MB
"""12 partitions are enough for the initial burst (11 to 12 s of the rate) and for 16 s at the rate."""
SLACK = 0.1
"""Tolerance for a busy machine, as a share of the throttle. Measured rates were 0.89 to 1.00 of the throttle."""
PRODUCED = 1.2 * MB
"""Produce rate of the whole topic, bytes/s."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """One case of KIP-73's plan. In each, the throttle of one broker limits the whole reassignment."""

    before: Mapping[int, list[int]]
    """Partition -> replicas, the leader first."""
    after: Mapping[int, list[int]]
    """Partition -> replicas after the reassignment."""


REASSIGNMENTS = {
    "to-an-emptied-node": Reassignment({p: [1001] for p in range(12)}, {p: [1001, 1002] for p in range(12)}),
    "one-to-two": Reassignment({p: [1003] for p in range(12)}, {p: [1004 + p % 2] for p in range(12)}),
    "two-to-one": Reassignment({p: [1001 + p % 2] for p in range(12)}, {p: [1003] for p in range(12)}),
    "replace": Reassignment(
        {p: [1004 + p % 2, 1003] for p in range(12)},
        {p: [1004 + p % 2, 1001] for p in range(12)},
    ),
}

PAIRS = [("to-an-emptied-node", "one-to-two"), ("two-to-one", "replace")]
"""Reassignments that run at the same time. They share no quota meter; a broker has one meter for each role.

In this order, every meter that limits a reassignment has been idle for the last 12 s. A meter with unused quota would
allow a burst, and a meter with overused quota would delay the next reassignment."""


@pytest.fixture(scope="module")
def admin(
    each_cluster: KafkaCluster, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[admin_pb2_grpc.AdminServiceStub]:
    """All services, with an interval so long that no scheduled cycle measures the load."""
    directory: Path = tmp_path_factory.mktemp("services")
    options = {"interval": "600", "cap-map": '{"lab":20}', "session-timeout": "3", "log-level": "debug"}
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


IN_MAKE_TEST = ("kafka_cluster", 0.0, PAIRS[0])
CASES = [
    pytest.param(
        *(cluster, produced, pair),
        id=f"{cluster}-{'produced-to' if produced else 'quiet'}-{pair[0]}",
        marks=() if (cluster, produced, pair) == IN_MAKE_TEST else pytest.mark.repeat,
    )
    for cluster in ("kafka_cluster", "kraft_cluster")
    for produced in (0.0, PRODUCED)
    for pair in PAIRS
]
"""`make test` runs one pair; the others are repeats with other clusters, paths and producers."""


@pytest.mark.measures
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("each_cluster", "produced", "names"), CASES, indirect=["each_cluster"])
def test_replicas_are_copied_at_the_rate_of_the_throttle(
    names: tuple[str, str], produced: float, each_cluster: KafkaCluster, admin: admin_pb2_grpc.AdminServiceStub
) -> None:
    cluster = each_cluster
    topics = {f"kip73-{name}-{'produced-to' if produced else 'quiet'}": REASSIGNMENTS[name] for name in names}
    for topic, case in topics.items():
        cluster.create_topic(topic, case.before)
        fill(cluster, topic, BYTES_PER_PARTITION)
    before = cluster.stored_configs()
    override(admin, RATE)
    rates = {(topic, p): produced / 12 for topic in topics for p in range(12)}
    load = ProducerLoad(cluster, rates, acks=1) if produced else nullcontext()
    with load, ExitStack() as stack:
        watches = {topic: stack.enter_context(RecoveryWatch(cluster, topic)) for topic in topics}
        submit(admin, {(topic, p): to for topic, case in topics.items() for p, to in case.after.items()})
        began = [watch.wait_until(lambda s: bool(s.moving), 30, "it starts") for watch in watches.values()]
        time.sleep(MEASURED_SECONDS)
        measured = {topic: copied(watch, max(s.at for s in began) + 1) for topic, watch in watches.items()}
        # Cancel it. Finishing it without a throttle would fill the quota meters that the next reassignment uses.
        with suppress(Invalid):  # some partitions may be done by now
            cluster.reassign_through_bootstrap(dict.fromkeys(cluster.reassigning()))
        for watch in watches.values():
            watch.wait_until(lambda s: not s.moving, 120, "the reassignment ends")
        admin.RemoveOverride(admin_pb2.RemoveOverrideRequest(), timeout=60)
        for watch in watches.values():
            watch.wait_until(lambda s: not s.rates and not any(s.lists), 30, "all throttles are removed")
    for topic, (windows, whole) in measured.items():
        by_window = f"{min(windows) / RATE:.2f} to {max(windows) / RATE:.2f}"
        print(f"\n{cluster.version} {topic}: {whole / RATE:.2f} of the throttle; single windows {by_window}")
    for topic, (_, whole) in measured.items():
        # Single windows are only printed: with a few fetches per second, one fetch more or less is a few percent.
        assert (0.85 - SLACK) * RATE <= whole <= (1.15 + SLACK) * RATE, topic
        assert watches[topic].worst_list_lag() <= 2.0
    assert cluster.stored_configs() == before
    for topic in topics:
        cluster.delete_topic(topic)


def copied(watch: RecoveryWatch, start: float) -> tuple[list[float], float]:
    """Return the copy rate on the destinations after `start`, bytes/s: (of each window, of the whole time)."""
    samples = [sample for sample in watch.samples if sample.at >= start]
    rates = []
    for first in samples:
        last = next((s for s in samples if s.at >= first.at + WINDOW_SECONDS), None)
        if last is None:
            break
        rates.append(copy_rate(first, last))
    assert rates, "the reassignment was observed for less than a window"
    return rates, copy_rate(samples[0], samples[-1])


def copy_rate(first: Sample, last: Sample) -> float:
    return (sum(last.received.values()) - sum(first.received.values())) / (last.at - first.at)


def override(admin: admin_pb2_grpc.AdminServiceStub, rate: int, broker_id: int | None = None) -> None:
    wanted = admin_pb2.Override(rate_bytes_per_second=rate, broker_id=broker_id)
    admin.SetOverride(admin_pb2.SetOverrideRequest(override=wanted), timeout=60)


@pytest.mark.measures
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "each_cluster", ["kafka_cluster", pytest.param("kraft_cluster", marks=pytest.mark.repeat)], indirect=True
)
def test_broker_override_limits_recovery_during_a_reassignment(
    each_cluster: KafkaCluster, admin: admin_pb2_grpc.AdminServiceStub
) -> None:
    """The override ended for recovery when its broker took part in a reassignment. It then recovered at link speed."""
    cluster, broker, rate, behind = each_cluster, 1004, 4 * MB, 48 * MB
    moved, kept = "override-moved", "override-kept"
    cluster.create_topic(moved, {p: [1001 + p % 3] for p in range(4)})
    cluster.create_topic(kept, {p: [1001 + p % 3, broker] for p in range(4)}, {"min.insync.replicas": "1"})
    fill(cluster, moved, 12 * MB)
    before = cluster.stored_configs()
    replicas = ",".join(f"{p}:{broker}" for p in range(4))
    rates = {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}

    def followers(topic: str) -> str:
        return cluster.stored_configs().get(f"topics/{topic}", {}).get(FOLLOWER_REPLICAS, "")

    def both_rates_are_set() -> bool:
        return rates.items() <= cluster.stored_configs().get(f"brokers/{broker}", {}).items()

    override(admin, rate, broker)
    eventually(lambda: both_rates_are_set() and followers(kept) == replicas, 30)
    submit(admin, {(moved, p): [1001 + p % 3, broker] for p in range(4)})
    eventually(lambda: followers(moved) == replicas and followers(kept) == "", 30)
    assert both_rates_are_set(), "it only receives, but the override also limits what it sends"
    cluster.stop_broker(broker)
    try:
        fill(cluster, kept, behind // 4)
        eventually(lambda: followers(kept) == replicas, 30)
    finally:
        cluster.start_broker(broker)
    began, had = time.monotonic(), received(cluster, broker, (moved, kept))
    time.sleep(6)
    seconds, copied_bytes = time.monotonic() - began, received(cluster, broker, (moved, kept)) - had
    print(f"\n{cluster.version}: {copied_bytes / seconds / MB:.2f} MB/s of {rate / MB:.0f} MB/s during a reassignment")
    assert cluster.reassigning() and both_rates_are_set()
    assert 0 < copied_bytes <= 1.3 * rate * seconds
    with suppress(Invalid):  # some partitions may be done by now
        cluster.reassign_through_bootstrap(dict.fromkeys(cluster.reassigning()))
    admin.RemoveOverride(admin_pb2.RemoveOverrideRequest(broker_id=broker), timeout=60)
    cluster.wait_until_reassigned()
    cluster.wait_until_in_sync([kept])
    eventually(lambda: cluster.stored_configs() == before, 30)
    for topic in (moved, kept):
        cluster.delete_topic(topic)


def received(cluster: KafkaCluster, broker_id: int, topics: Sequence[str]) -> int:
    """Return the bytes of these topics in the logs of a broker."""
    return sum(size for (topic, _), size in cluster.log_bytes(broker_id).items() if topic in topics)

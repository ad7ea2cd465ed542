"""A throttle rises on real Kafka without a burst: through cycles, a leader's death, and clients that come back.

In one step the raise from 3 to 9 MB/s that is made here lets 42 to 65 MB through within a second, and again 12 s later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from autothrottle.v1 import admin_pb2, admin_pb2_grpc, planner_pb2, planner_pb2_grpc
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.observation.traffic import BrokerCounters, ClientLoad, fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.recovery_watch import FOLLOWER_RATE, RecoveryWatch, Sample, admin_backend_options, feed

MB = 1_000_000
DESTINATION = 1005
INTERVAL = 5
CAPACITY, CLIENTS, MORE_CLIENTS = 12, 2, 7
LOW, HIGH, LOWER = 3 * MB, (CAPACITY - CLIENTS) * 0.9 * MB, (CAPACITY - MORE_CLIENTS) * 0.9 * MB
"""An override; what the headroom allows without it; and what it allows when clients have come back."""

METER_SECONDS = 12
"""After which a broker's meter, and the metrics, have seen nothing but the rate that stands."""

SLACK = 1.5
"""A loaded machine stalls brokers, and what a stall leaves of the window goes out in one second too."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that plays."""

    watch: RecoveryWatch
    services: ServiceProcesses
    admin: admin_pb2_grpc.AdminServiceStub
    clients: ClientLoad

    def hold_low(self) -> None:
        """Hold the move at 3 MB/s by an override."""
        override = admin_pb2.Override(broker_id=DESTINATION, rate_bytes_per_second=LOW)
        self.admin.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=30)
        if self.watch.samples[-1].moving:
            self.until(lambda rate: rate == LOW, "the override stands")

    def let_go(self) -> float:
        """Take the override away, so that the rate rises; return when."""
        self.admin.RemoveOverride(admin_pb2.RemoveOverrideRequest(broker_id=DESTINATION), timeout=30)
        return time.monotonic()

    def leader(self) -> Process:
        """The planner that leads."""
        with grpc.insecure_channel(self.services.addresses["planner-1"]) as channel:
            planner = planner_pb2_grpc.PlannerServiceStub(channel)
            state = planner.GetState(planner_pb2.GetStateRequest(), timeout=30)
        return self.services.planner(state.leader_address)

    def until(self, true: Callable[[int], bool], what: str) -> Sample:
        """Wait until it is true of the rate that stands on the destination."""
        key = (DESTINATION, FOLLOWER_RATE)
        return self.watch.wait_until(lambda s: key in s.rates and true(s.rates[key]), 60, what)

    def tell(self, while_: str, began: float) -> float:
        """Print how a raise went; return its peak second, bytes/s."""
        steps = [(at - began, rate or 0) for at, rate in self.watch.rates_of(DESTINATION) if at >= began]
        peak, bytes_by_second = self.peak(began), self.seconds(began)
        print(f"""
from {LOW / MB:.0f} to {HIGH / MB:.0f} MB/s while {while_}: peak second {peak / MB:.1f} MB
  rates {" ".join(f"{at:.1f}s:{rate / MB:.1f}" for at, rate in steps)}
  MB in each second {" ".join(f"{moved / MB:.0f}" for moved in bytes_by_second)}""")
        return peak

    def seconds(self, since: float) -> list[float]:
        """What the destination copied in each second, bytes."""
        samples = [s for s in self.watch.samples if s.at >= since]
        found, start = [], samples[0]
        for sample in samples:
            if sample.at - start.at >= 1.0:
                moved = sample.received.get(DESTINATION, 0) - start.received.get(DESTINATION, 0)
                found.append(moved / (sample.at - start.at))
                start = sample
        return found

    def peak(self, since: float) -> float:
        """The most bytes that the destination copied in a second, bytes/s."""
        samples = [s for s in self.watch.samples if s.at >= since]
        peak, start = 0.0, 0
        for end, sample in enumerate(samples):
            while samples[start + 1].at <= sample.at - 1.0 if start + 1 < end else False:
                start += 1
            if (span := sample.at - samples[start].at) >= 1.0:
                moved = sample.received.get(DESTINATION, 0) - samples[start].received.get(DESTINATION, 0)
                peak = max(peak, moved / span)
        return peak


@contextmanager
def stage(cluster: KafkaCluster, zookeeper: ZooKeeperServer, directory: Path) -> Iterator[Stage]:
    """A move to 1005, held at 3 MB/s from its begin, clients there, and two planners."""
    topic, clients_topic = "raised", "clients-beside"
    assignment = {p: [1001 + p % 3, 1001 + (p + 1) % 3] for p in range(12)}
    cluster.create_topic(topic, assignment)
    cluster.create_topic(clients_topic, {0: [DESTINATION]})
    fill(cluster, topic, 45 * MB)  # a loaded machine makes every wait longer
    options = {
        "interval": str(INTERVAL),
        "metrics-window": "12",
        "policy": "adaptive",
        "cap-map": f'{{"lab":{CAPACITY}}}',
        "min-rate": "1",
        "zk-session-timeout": "3",
        "bootstrap-servers": cluster.bootstrap_servers,
        "zk-config-prefix": "autothrottle-ramps",
    }
    if isinstance(cluster, KraftCluster):
        options |= admin_backend_options(cluster)
    with (
        DatadogEmulator() as datadog,
        BrokerCounters(cluster) as counters,
        ClientLoad(cluster, {(clients_topic, 0): CLIENTS * MB}, acks=1) as clients,
    ):
        for broker_id in cluster.brokers:
            datadog.add_host(f"host-{broker_id}", broker_id, "lab")
        feed(counters, datadog)
        deployment = Deployment(zookeeper.connect, datadog.url, directory, options)
        with (
            ServiceProcesses(deployment, planners=2) as services,
            grpc.insecure_channel(services.addresses["admin"]) as channel,
            RecoveryWatch(cluster, topic, every_seconds=0.2) as watch,
        ):
            made = Stage(watch, services, admin_pb2_grpc.AdminServiceStub(channel), clients)
            made.hold_low()
            cluster.reassign_through_bootstrap({(topic, p): [ids[0], DESTINATION] for p, ids in assignment.items()})
            made.until(lambda rate: rate == LOW, "the override holds the move")
            yield made
            cluster.delete_topic(topic)
            watch.wait_until(lambda s: not s.rates, 60, "nothing is left")
    cluster.delete_topic(clients_topic)


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_a_raise_to_three_times_the_rate_is_no_burst_after_a_leader_change_or_a_load_step(
    kafka_cluster: KafkaCluster, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    with stage(kafka_cluster, zookeeper, tmp_path) as played:
        time.sleep(METER_SECONDS)
        began = played.let_go()
        played.until(lambda rate: rate >= 2 * LOW, "half of the way")
        played.leader().kill()
        played.until(lambda rate: rate >= 0.9 * HIGH, "the next leader has gone on")
        time.sleep(14)  # so long after a burst its echo comes
        peaks = [played.tell("the leader dies at half of it", began)]

        played.hold_low()
        time.sleep(METER_SECONDS)
        began = played.let_go()
        played.until(lambda rate: rate >= 2 * LOW, "half of the way")
        played.clients.set_total(MORE_CLIENTS * MB)
        stepped = time.monotonic()
        lowered = played.until(lambda rate: rate <= 1.2 * LOWER, "the rate makes room for clients")
        peaks.append(played.tell(f"clients take 5 MB/s more, made room {lowered.at - stepped:.1f} s later", began))
    # In one step it is 42 to 65 MB in a second.
    assert max(peaks) <= 2 * HIGH * SLACK

"""Ramps on real Kafka: a raised throttle causes no burst, not even through a failover or a rise of client load.

Written in one step, a raise from 3 to 9 MB/s lets 42 to 65 MB through in one second, and again 12 s later.

Only `make test-all` runs these tests. In `make test`, tests/unit/autothrottle/planner/test_ramps.py simulates quotas.
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
from autothrottle_lab.observation.traffic import BrokerCounters, ProducerLoad, fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from tests.server_fixtures import SCALED_FETCHES
from tests.system.recovery_watch import (
    FOLLOWER_RATE,
    RecoveryWatch,
    Sample,
    admin_channel,
    feed,
    state_options,
    submit,
)

MB = 1_000_000
DESTINATION = 1005
INTERVAL = 5
CAPACITY, CLIENTS, MORE_CLIENTS = 6, 1, 3.5
LOW, HIGH, LOWER = MB * 3 // 2, (CAPACITY - CLIENTS) * 0.9 * MB, (CAPACITY - MORE_CLIENTS) * 0.9 * MB
"""Rates in bytes/s: the override; the headroom without it; the headroom after the rise of client load."""

METER_SECONDS = 24
"""After this time at a constant rate, the quota is steady and the metrics contain only that rate.

A lowering stops the copying until the mean of the quota's 11 s has fallen. The same bytes leave the window 11 s later,
so Kafka then lets a burst through, with or without a raise (docs/benchmarks.md).
"""

PEAK = 3 * HIGH + 3 * SCALED_FETCHES["replica.fetch.response.max.bytes"]
"""Bytes of the peak second: 3 * HIGH, and the responses of the three leaders to one round of fetches.

A raise in one step has a peak of five to seven times HIGH. Kafka's quota repeats every pause of a second, and lets the
bytes of that second through later, so that 2 * HIGH is too low here. tests/unit/autothrottle/planner/test_ramps.py
simulates the quota without pauses, and asserts 2 * HIGH.
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """A running reassignment and everything that affects it."""

    watch: RecoveryWatch
    services: ServiceProcesses
    admin: admin_pb2_grpc.AdminServiceStub
    clients: ProducerLoad

    def set_low_override(self) -> None:
        """Limit the reassignment by an override."""
        override = admin_pb2.Override(broker_id=DESTINATION, rate_bytes_per_second=LOW)
        self.admin.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=30)
        if self.watch.samples[-1].moving:
            self.until(lambda rate: rate == LOW, "the override is applied")

    def remove_override(self) -> float:
        """Remove the override, so that the rate rises; return the time."""
        self.admin.RemoveOverride(admin_pb2.RemoveOverrideRequest(broker_id=DESTINATION), timeout=30)
        return time.monotonic()

    def leader(self) -> Process:
        """Return the leading planner."""
        with grpc.insecure_channel(self.services.addresses["planner-1"]) as channel:
            planner = planner_pb2_grpc.PlannerServiceStub(channel)
            state = planner.GetState(planner_pb2.GetStateRequest(), timeout=30)
        return self.services.planner(state.leader_address)

    def until(self, accept: Callable[[int], bool], state: str) -> Sample:
        """Wait until `accept` accepts the destination's current rate."""
        key = (DESTINATION, FOLLOWER_RATE)
        return self.watch.wait_until(lambda s: key in s.rates and accept(s.rates[key]), 60, state)

    def print_raise(self, event: str, began: float) -> float:
        """Print the course of a raise; return the copy rate of its peak second, bytes/s."""
        steps = [(at - began, rate or 0) for at, rate in self.watch.rates_of(DESTINATION) if at >= began]
        peak, bytes_by_second = self.peak(began), self.seconds(began)
        print(f"""
raise from {LOW / MB} to {HIGH / MB} MB/s, {event}: peak second {peak / MB:.1f} MB
  rates {" ".join(f"{at:.1f}s:{rate / MB:.1f}" for at, rate in steps)}
  MB in each second {" ".join(f"{copied / MB:.1f}" for copied in bytes_by_second)}""")
        return peak

    def seconds(self, since: float) -> list[float]:
        """Return the bytes that the destination copied in each second."""
        samples = [s for s in self.watch.samples if s.at >= since]
        found, start = [], samples[0]
        for sample in samples:
            if sample.at - start.at >= 1.0:
                copied = sample.received.get(DESTINATION, 0) - start.received.get(DESTINATION, 0)
                found.append(copied / (sample.at - start.at))
                start = sample
        return found

    def peak(self, since: float) -> float:
        """Return the highest copy rate of the destination over any second, bytes/s."""
        samples = [s for s in self.watch.samples if s.at >= since]
        peak, start = 0.0, 0
        for end, sample in enumerate(samples):
            while samples[start + 1].at <= sample.at - 1.0 if start + 1 < end else False:
                start += 1
            if (span := sample.at - samples[start].at) >= 1.0:
                copied = sample.received.get(DESTINATION, 0) - samples[start].received.get(DESTINATION, 0)
                peak = max(peak, copied / span)
        return peak


@contextmanager
def running_stage(cluster: KafkaCluster, directory: Path) -> Iterator[Stage]:
    """Start a reassignment to 1005 with a low rate from its start, clients on 1005, and two planners."""
    topic, clients_topic = "raised", "clients-beside"
    assignment = {p: [1001 + p % 3, 1001 + (p + 1) % 3] for p in range(12)}
    cluster.create_topic(topic, assignment)
    cluster.create_topic(clients_topic, {0: [DESTINATION]})
    fill(cluster, topic, 23 * MB)  # enough for a busy machine, on which every wait takes longer
    options = {
        "interval": str(INTERVAL),
        "metrics-window": "12",
        "policy": "adaptive",
        "cap-map": f'{{"lab":{CAPACITY}}}',
        "min-rate": "1",
        "session-timeout": "3",
    }
    with (
        state_options(cluster) as of_cluster,
        DatadogEmulator() as datadog,
        BrokerCounters(cluster) as counters,
        ProducerLoad(cluster, {(clients_topic, 0): CLIENTS * MB}, acks=1) as clients,
    ):
        for broker_id in cluster.brokers:
            datadog.add_host(f"host-{broker_id}", broker_id, "lab")
        feed(counters, datadog)
        deployment = Deployment("", datadog.url, directory, options | of_cluster)
        with (
            ServiceProcesses(deployment, planners=2) as services,
            admin_channel(services.addresses["admin"]) as channel,
            RecoveryWatch(cluster, topic, every_seconds=0.2) as watch,
        ):
            stage = Stage(watch, services, admin_pb2_grpc.AdminServiceStub(channel), clients)
            stage.set_low_override()
            # Bytes that are copied before the first throttle fill the meter: no more for 11 s, then a burst, again.
            submit(stage.admin, {(topic, p): [ids[0], DESTINATION] for p, ids in assignment.items()})
            stage.until(lambda rate: rate == LOW, "the override limits the reassignment")
            yield stage
            cluster.delete_topic(topic)
            watch.wait_until(lambda s: not s.rates, 60, "all throttles are removed")
    cluster.delete_topic(clients_topic)


@pytest.mark.measures
@pytest.mark.repeat
@pytest.mark.timeout(600)
def test_raise_to_three_times_the_rate_causes_no_burst_when_the_leader_is_killed(
    each_cluster: KafkaCluster, tmp_path: Path
) -> None:
    with running_stage(each_cluster, tmp_path) as stage:
        time.sleep(METER_SECONDS)
        began = stage.remove_override()
        stage.until(lambda rate: rate >= 2 * LOW, "the rate has risen halfway")
        stage.leader().kill()
        stage.until(lambda rate: rate >= 0.9 * HIGH, "the next leader continues the ramp")
        time.sleep(14)  # a burst repeats within this time
        assert stage.print_raise("the leader is killed halfway", began) <= PEAK


@pytest.mark.measures
@pytest.mark.repeat
@pytest.mark.timeout(600)
def test_raise_after_a_lowering_causes_no_burst_when_the_client_load_rises(
    each_cluster: KafkaCluster, tmp_path: Path
) -> None:
    with running_stage(each_cluster, tmp_path) as stage:
        stage.remove_override()
        stage.until(lambda rate: rate >= 0.9 * HIGH, "the rate has risen")
        stage.set_low_override()
        time.sleep(METER_SECONDS)
        began = stage.remove_override()
        stage.until(lambda rate: rate >= 2 * LOW, "the rate has risen halfway")
        stage.clients.set_total(MORE_CLIENTS * MB)
        stepped = time.monotonic()
        lowered = stage.until(lambda rate: rate <= 1.2 * LOWER, "the rate leaves room for the clients")
        event = f"client load rises to {MORE_CLIENTS} MB/s, and the rate is lowered {lowered.at - stepped:.1f} s later"
        assert stage.print_raise(event, began) <= PEAK

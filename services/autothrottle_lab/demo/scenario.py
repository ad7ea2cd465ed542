"""The demo's scenario: broker 1006 replaces the failed broker 1000."""

from __future__ import annotations

from dataclasses import replace

from autothrottle.core.policy.interface import Limits
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.simulate.virtual_time import SETTINGS, VirtualBroker, VirtualReassignment, VirtualScenario
from autothrottle_lab.simulation.cluster import Cluster, SimulatedPartition
from autothrottle_lab.simulation.link import ClientTraffic, TrafficStep

DEMO_FAILED_BROKER = 1000
DEMO_NEW_BROKER = 1006
DEMO_CAPACITY = 100 * MEGABYTE
"""Capacity of every broker in each direction, bytes/s."""
DEMO_DOUBLING_SECONDS = 15
"""Time at which client load doubles on every broker, in seconds since the start of the reassignment."""
DEMO_FALLING_SECONDS = 30
"""Time at which client load returns to its initial rate."""

_DEMO_CLIENTS = {
    1001: (20, 22),
    1002: (25, 20),
    1003: (30, 24),
    1004: (22, 28),
    1005: (27, 25),
    1006: (11, 11),
}
"""Broker id -> initial rates at which clients read and write, MB/s."""

_DEMO_TOPICS = ("clickstream", "orders", "payments", "telemetry")
_DEMO_BYTES_PER_LEADER = 780 * MEGABYTE
_DEMO_PARTITIONS_PER_LEADER = 8


def demo_scenario() -> VirtualScenario:
    """Return the replacement of a broker: 6 brokers, 40 partitions, 3.9 GB to copy in at least 46 s.

    Broker 1000 has failed. The new broker 1006, which also serves another topic, copies its replicas from the leaders
    1001 to 1005. Client load on every broker doubles 15 s after the start of the reassignment, for 15 s. Partition
    sizes differ, so that replicas join the ISR throughout the demo. The limits allow replication all capacity that
    clients leave free, for the shortest possible duration.
    """
    link = Capacity(DEMO_CAPACITY, DEMO_CAPACITY)
    brokers = {broker_id: VirtualBroker(link, _demo_traffic(*rates)) for broker_id, rates in _DEMO_CLIENTS.items()}
    limits = Limits(0, 1.0, 1.0, change_threshold=0.0, failure_threshold=1)
    return VirtualScenario(brokers, _demo_reassignments(), replace(SETTINGS, limits=limits), traffic_waits=True)


def demo_cluster(scenario: VirtualScenario) -> Cluster:
    """Return the cluster before the reassignment. The new broker serves an in-sync topic that is not reassigned."""
    ids = list(_DEMO_CLIENTS)
    pairs = [(broker_id, ids[(n + 1) % len(ids)]) for n, broker_id in enumerate(ids)]
    sessions = [
        SimulatedPartition(topic="sessions", partition=n, size=50 * MEGABYTE, replicas=p) for n, p in enumerate(pairs)
    ]
    return scenario.cluster(sessions)


def _demo_traffic(outbound: int, inbound: int) -> ClientTraffic:
    loads = [(0, 1), (DEMO_DOUBLING_SECONDS, 2), (DEMO_FALLING_SECONDS, 1)]
    return ClientTraffic(tuple(TrafficStep(at, outbound * n * MEGABYTE, inbound * n * MEGABYTE) for at, n in loads))


def _demo_reassignments() -> list[VirtualReassignment]:
    leaders = [broker_id for broker_id in _DEMO_CLIENTS if broker_id != DEMO_NEW_BROKER]
    reassignments: list[VirtualReassignment] = []
    for i in range(_DEMO_PARTITIONS_PER_LEADER):
        for n, leader in enumerate(leaders):
            # A different spread of sizes for each leader, so that their partitions join the ISR at different times.
            weights = [(1.35 + 0.06 * n) ** k for k in range(_DEMO_PARTITIONS_PER_LEADER)]
            size = round(_DEMO_BYTES_PER_LEADER * weights[i] / sum(weights))
            replicas = [leader, leaders[(n + 1 + i % 4) % len(leaders)]]
            replicas.insert(i % 3, DEMO_FAILED_BROKER)
            target = [DEMO_NEW_BROKER if b == DEMO_FAILED_BROKER else b for b in replicas]
            number, topic = divmod(len(reassignments), len(_DEMO_TOPICS))
            reassignment = VirtualReassignment(_DEMO_TOPICS[topic], number, size, tuple(replicas), tuple(target))
            reassignments.append(reassignment)
    return reassignments

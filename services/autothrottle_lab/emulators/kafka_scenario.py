"""The demo's cluster and its reassignment, and the format of reassignments. `kafka` runs the cluster in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.simulation.client_traffic import ClientTraffic, TrafficStep
from autothrottle_lab.simulation.cluster import Cluster, SimulatedBroker
from autothrottle_lab.simulation.partition import SimulatedPartition

Document = dict[str, Any]
"""A JSON object."""


def format_reassignment(targets: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """Return the content of `/admin/reassign_partitions`.

    >>> format_reassignment({("t", 0): (1, 2)})
    b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'
    """
    entries = [{"topic": t, "partition": p, "replicas": list(replicas)} for (t, p), replicas in targets.items()]
    return compact_json({"version": 1, "partitions": entries})


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


def demo_cluster() -> Cluster:
    """Return the cluster of a broker replacement: 6 brokers, 40 partitions, 3.9 GB to copy in at least 46 s.

    Broker 1000 has failed. The new broker 1006, which also serves another topic, copies its replicas from the leaders
    1001 to 1005. Client load on every broker doubles 15 s after the start of the reassignment, for 15 s. Partition
    sizes differ, so that replicas join the ISR throughout the demo.
    """
    brokers = [
        SimulatedBroker(broker_id, Capacity(DEMO_CAPACITY, DEMO_CAPACITY), _demo_traffic(*rates))
        for broker_id, rates in _DEMO_CLIENTS.items()
    ]
    return Cluster(brokers, _demo_partitions() + _demo_other_partitions(), script_waits_for_reassignment=True)


def demo_targets(cluster: Cluster) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the demo's reassignment, in which the new broker replaces the failed one: partition -> new replicas."""
    return {
        key: tuple(DEMO_NEW_BROKER if b == DEMO_FAILED_BROKER else b for b in partition.replicas)
        for key, partition in cluster.partitions.items()
        if DEMO_FAILED_BROKER in partition.replicas
    }


def _demo_traffic(outbound: int, inbound: int) -> ClientTraffic:
    loads = [(0, 1), (DEMO_DOUBLING_SECONDS, 2), (DEMO_FALLING_SECONDS, 1)]
    return ClientTraffic(tuple(TrafficStep(at, outbound * n * MEGABYTE, inbound * n * MEGABYTE) for at, n in loads))


def _demo_partitions() -> list[SimulatedPartition]:
    leaders = [broker_id for broker_id in _DEMO_CLIENTS if broker_id != DEMO_NEW_BROKER]
    partitions: list[SimulatedPartition] = []
    for i in range(_DEMO_PARTITIONS_PER_LEADER):
        for n, leader in enumerate(leaders):
            # A different spread of sizes for each leader, so that their partitions join the ISR at different times.
            weights = [(1.35 + 0.06 * n) ** k for k in range(_DEMO_PARTITIONS_PER_LEADER)]
            other = leaders[(n + 1 + i % 4) % len(leaders)]
            replicas = [leader, other]
            replicas.insert(i % 3, DEMO_FAILED_BROKER)
            number, topic = divmod(len(partitions), len(_DEMO_TOPICS))
            partitions.append(
                SimulatedPartition(
                    topic=_DEMO_TOPICS[topic],
                    partition=number,
                    size=round(_DEMO_BYTES_PER_LEADER * weights[i] / sum(weights)),
                    replicas=tuple(replicas),
                    isr=(leader, other),
                    leader=leader,
                )
            )
    return partitions


def _demo_other_partitions() -> list[SimulatedPartition]:
    """Return an in-sync topic that the new broker serves already and that is not reassigned."""
    ids = list(_DEMO_CLIENTS)
    pairs = [(broker_id, ids[(n + 1) % len(ids)]) for n, broker_id in enumerate(ids)]
    return [
        SimulatedPartition(topic="sessions", partition=n, size=50 * MEGABYTE, replicas=p, isr=p, leader=p[0])
        for n, p in enumerate(pairs)
    ]

"""Scenarios of the simulated cluster: its initial state as a JSON document, and the demo's scenario.

`kafka` runs the cluster in ZooKeeper.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import Invalid
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.simulation.client_traffic import ClientTraffic, TrafficStep
from autothrottle_lab.simulation.cluster import Cluster, SimulatedBroker
from autothrottle_lab.simulation.partition import SimulatedPartition

Document = dict[str, Any]
"""A JSON object."""


def reassignment_document(targets: Mapping[TopicPartition, Sequence[int]]) -> Document:
    """Return a reassignment in the format of `/admin/reassign_partitions`.

    >>> reassignment_document({("t", 0): (1, 2)})
    {'version': 1, 'partitions': [{'topic': 't', 'partition': 0, 'replicas': [1, 2]}]}
    """
    entries = [{"topic": t, "partition": p, "replicas": list(replicas)} for (t, p), replicas in targets.items()]
    return {"version": 1, "partitions": entries}


def parse_reassignment(content: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Parse the content of `/admin/reassign_partitions`: partition -> broker ids of its new replicas.

    Raises:
        Invalid: the content does not have Kafka's format.
    """
    try:
        entries = json.loads(content)["partitions"]
        targets = {(str(e["topic"]), e["partition"]): tuple(e["replicas"]) for e in entries}
    except (ValueError, TypeError, KeyError) as error:
        raise Invalid(f"reassignment {content[:200]!r} does not have Kafka's format: {error!r}") from error
    for (topic, partition), replicas in targets.items():
        if not all(type(number) is int for number in (partition, *replicas)):
            raise Invalid(f"reassignment of {topic}-{partition} to {list(replicas)}: all numbers must be integers")
    return targets


def read_cluster(scenario: Mapping[str, Any]) -> Cluster:
    """Return the cluster of a scenario; `demo_scenario` shows the format.

    Raises:
        Invalid: a key is missing or a value is invalid.
    """
    try:
        return Cluster(
            [_broker(entry) for entry in scenario["brokers"]],
            [_partition(entry) for entry in scenario["partitions"]],
            script_waits_for_reassignment=bool(scenario.get("script_waits_for_reassignment", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"the scenario does not have the format of demo_scenario(): {error!r}") from error


def _broker(entry: Mapping[str, Any]) -> SimulatedBroker:
    steps = tuple(TrafficStep(float(s["at_seconds"]), int(s["tx"]), int(s["rx"])) for s in entry["traffic"])
    capacity = Capacity(int(entry["tx_capacity"]), int(entry["rx_capacity"]))
    return SimulatedBroker(int(entry["id"]), capacity, ClientTraffic(steps))


def _partition(entry: Mapping[str, Any]) -> SimulatedPartition:
    return SimulatedPartition(
        topic=str(entry["topic"]),
        partition=int(entry["partition"]),
        size=float(entry["size"]),
        replicas=tuple(entry["replicas"]),
        isr=tuple(entry["isr"]),
        leader=int(entry["leader"]),
        produce_rate=int(entry.get("produce_rate", 0)),
    )


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


def demo_scenario() -> Document:
    """Return a broker replacement: 6 brokers, 40 partitions and 3.9 GB to copy, which takes at least 46 s.

    Broker 1000 has failed. The new broker 1006, which also serves another topic, copies its replicas from the leaders
    1001 to 1005. Client load on every broker doubles 15 s after the start of the reassignment, for 15 s. Partition
    sizes differ, so that replicas join the ISR throughout the demo. `reassignment` has the format of
    /admin/reassign_partitions.
    """
    reassigned = _demo_partitions()
    targets = {
        (p["topic"], p["partition"]): [DEMO_NEW_BROKER if b == DEMO_FAILED_BROKER else b for b in p["replicas"]]
        for p in reassigned
    }
    return {
        "brokers": [
            _demo_broker(broker_id, outbound, inbound) for broker_id, (outbound, inbound) in _DEMO_CLIENTS.items()
        ],
        "partitions": reassigned + _demo_other_partitions(),
        "reassignment": reassignment_document(targets),
        "script_waits_for_reassignment": True,
    }


def _demo_broker(broker_id: int, outbound: int, inbound: int) -> Document:
    loads = [(0, 1), (DEMO_DOUBLING_SECONDS, 2), (DEMO_FALLING_SECONDS, 1)]
    steps = [{"at_seconds": at, "tx": outbound * n * MEGABYTE, "rx": inbound * n * MEGABYTE} for at, n in loads]
    return {"id": broker_id, "tx_capacity": DEMO_CAPACITY, "rx_capacity": DEMO_CAPACITY, "traffic": steps}


def _demo_partitions() -> list[Document]:
    leaders = [broker_id for broker_id in _DEMO_CLIENTS if broker_id != DEMO_NEW_BROKER]
    partitions: list[Document] = []
    for i in range(_DEMO_PARTITIONS_PER_LEADER):
        for n, leader in enumerate(leaders):
            # A different spread of sizes for each leader, so that their partitions join the ISR at different times.
            weights = [(1.35 + 0.06 * n) ** k for k in range(_DEMO_PARTITIONS_PER_LEADER)]
            other = leaders[(n + 1 + i % 4) % len(leaders)]
            replicas = [leader, other]
            replicas.insert(i % 3, DEMO_FAILED_BROKER)
            count = len(partitions)
            partitions.append(
                {
                    "topic": _DEMO_TOPICS[count % len(_DEMO_TOPICS)],
                    "partition": count // len(_DEMO_TOPICS),
                    "size": round(_DEMO_BYTES_PER_LEADER * weights[i] / sum(weights)),
                    "replicas": replicas,
                    "isr": [leader, other],
                    "leader": leader,
                }
            )
    return partitions


def _demo_other_partitions() -> list[Document]:
    """Return an in-sync topic that the new broker serves already and that is not reassigned."""
    ids = list(_DEMO_CLIENTS)
    pairs = [[broker_id, ids[(n + 1) % len(ids)]] for n, broker_id in enumerate(ids)]
    return [
        {"topic": "sessions", "partition": n, "size": 50 * MEGABYTE, "replicas": p, "isr": p, "leader": p[0]}
        for n, p in enumerate(pairs)
    ]

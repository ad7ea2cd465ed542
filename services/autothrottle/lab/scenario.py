"""What a simulated cluster begins with, as a JSON document, and the one that the demo shows.

Here are the documents and how they are read; the cluster that lives in ZooKeeper is in `simulated`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from autothrottle.core.client_traffic import ClientTraffic, TrafficStep
from autothrottle.core.errors import Invalid
from autothrottle.core.loads import MEGABYTE, Capacity
from autothrottle.core.simulated_partition import SimulatedPartition
from autothrottle.core.simulation import Cluster, SimulatedBroker
from autothrottle.core.topology import TopicPartition

Document = dict[str, Any]
"""A JSON object."""


def reassignment_document(moves: Mapping[TopicPartition, Sequence[int]]) -> Document:
    """Return a reassignment in the form of `/admin/reassign_partitions`.

    >>> reassignment_document({("t", 0): (1, 2)})
    {'version': 1, 'partitions': [{'topic': 't', 'partition': 0, 'replicas': [1, 2]}]}
    """
    entries = [{"topic": t, "partition": p, "replicas": list(replicas)} for (t, p), replicas in moves.items()]
    return {"version": 1, "partitions": entries}


def parse_reassignment(content: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Return what `/admin/reassign_partitions` asks for: partition -> its new replicas.

    Raises:
        Invalid: it is not of Kafka's form.
    """
    try:
        entries = json.loads(content)["partitions"]
        moves = {(str(e["topic"]), e["partition"]): tuple(e["replicas"]) for e in entries}
    except (ValueError, TypeError, KeyError) as error:
        raise Invalid(f"reassignment {content[:200]!r} is not of Kafka's form: {error!r}") from error
    for (topic, partition), replicas in moves.items():
        if not all(type(number) is int for number in (partition, *replicas)):
            raise Invalid(f"reassignment of {topic}-{partition} to {list(replicas)}: use integers")
    return moves


def read_cluster(scenario: Mapping[str, Any]) -> Cluster:
    """Return the cluster that a scenario describes; `demo_scenario` shows the form.

    Raises:
        Invalid: something is missing in it or makes no sense.
    """
    try:
        return Cluster(
            [_broker(entry) for entry in scenario["brokers"]],
            [_partition(entry) for entry in scenario["partitions"]],
            script_waits_for_reassignment=bool(scenario.get("script_waits_for_reassignment", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"the scenario is not of the form of demo_scenario(): {error!r}") from error


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
"""Bytes/s of each direction of every broker of the demo."""
DEMO_DOUBLING_SECONDS = 15
"""When client load doubles on every broker, from the start of the reassignment."""
DEMO_FALLING_SECONDS = 30
"""When it is again what it was."""

_DEMO_CLIENTS = {
    1001: (20, 22),
    1002: (25, 20),
    1003: (30, 24),
    1004: (22, 28),
    1005: (27, 25),
    1006: (11, 11),
}
"""Broker id -> what clients read and write at first, MB/s."""

_DEMO_TOPICS = ("clickstream", "orders", "payments", "telemetry")
_DEMO_BYTES_PER_LEADER = 780 * MEGABYTE
_DEMO_PARTITIONS_PER_LEADER = 8


def demo_scenario() -> Document:
    """Return a broker replacement: 6 brokers, 40 partitions and 3.9 GB to copy, 46 s at best.

    Broker 1000 has failed. The new broker 1006, which serves another topic as well, takes its replicas from
    the leaders 1001 to 1005. 15 s after the reassignment starts client load doubles everywhere, for 15 s.
    Partitions are of many sizes, so that they join the ISR all along. `reassignment` is what
    /admin/reassign_partitions takes.
    """
    moving = _demo_partitions()
    moves = {
        (p["topic"], p["partition"]): [DEMO_NEW_BROKER if b == DEMO_FAILED_BROKER else b for b in p["replicas"]]
        for p in moving
    }
    return {
        "brokers": [_demo_broker(broker_id, tx, rx) for broker_id, (tx, rx) in _DEMO_CLIENTS.items()],
        "partitions": moving + _demo_bystanders(),
        "reassignment": reassignment_document(moves),
        "script_waits_for_reassignment": True,
    }


def _demo_broker(broker_id: int, tx: int, rx: int) -> Document:
    loads = [(0, 1), (DEMO_DOUBLING_SECONDS, 2), (DEMO_FALLING_SECONDS, 1)]
    steps = [{"at_seconds": at, "tx": tx * n * MEGABYTE, "rx": rx * n * MEGABYTE} for at, n in loads]
    return {"id": broker_id, "tx_capacity": DEMO_CAPACITY, "rx_capacity": DEMO_CAPACITY, "traffic": steps}


def _demo_partitions() -> list[Document]:
    leaders = [broker_id for broker_id in _DEMO_CLIENTS if broker_id != DEMO_NEW_BROKER]
    partitions: list[Document] = []
    for i in range(_DEMO_PARTITIONS_PER_LEADER):
        for n, leader in enumerate(leaders):
            # Another spread of sizes for each leader: their partitions do not join at the same moments.
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


def _demo_bystanders() -> list[Document]:
    """Return a healthy topic that the new broker serves already and that does not move."""
    ids = list(_DEMO_CLIENTS)
    pairs = [[broker_id, ids[(n + 1) % len(ids)]] for n, broker_id in enumerate(ids)]
    return [
        {"topic": "sessions", "partition": n, "size": 50 * MEGABYTE, "replicas": p, "isr": p, "leader": p[0]}
        for n, p in enumerate(pairs)
    ]

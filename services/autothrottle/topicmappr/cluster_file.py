"""The cluster file: a cluster as one JSON document, to plan and compare without the cluster.

    {"brokers":[{"id":1001,"rack":"a","storage_total":0,"storage_free":0}],"spares":[1004],
     "partitions":[{"topic":"t","partition":0,"replicas":[1001,1002],"size":0}]}

Storage and sizes are in bytes. `rack`, the storage of a broker and the size of a partition may be absent if they are
unknown; `"cordoned":true` marks a broker that accepts no new replicas. `spares` names the brokers without replicas.
Other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autothrottle.core.cluster.configs import MAX_BROKER_ID, validate_topic
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.partition_map import PartitionReplicas, ordered

_MAX_BYTES = 2**63 - 1


def parse_cluster(text: str) -> PlacementCluster:
    """Return the cluster in a file.

    Raises:
        Invalid: the file is malformed; the message names the entry.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the cluster file is not JSON: {error}; write one with `topicmappr export`") from None
    brokers = [_broker(number, entry) for number, entry in enumerate(_list(value, "brokers"))]
    partitions = [_partition(number, entry) for number, entry in enumerate(_list(value, "partitions"))]
    totals = {broker.id: total for broker, total in brokers if total is not None}
    brokers_by_id = {broker.id: broker for broker, _ in brokers}
    if len(brokers_by_id) < len(brokers):
        raise Invalid("brokers of the cluster file has an id twice; name every broker once")
    return PlacementCluster(dict(sorted(brokers_by_id.items())), ordered(partitions), totals)


def format_cluster(cluster: PlacementCluster) -> str:
    """Format a cluster as a file of one line."""
    used = {broker for partition in cluster.partitions for broker in partition.replicas}
    value = {
        "brokers": [_broker_value(broker, cluster.storage_total) for broker in cluster.brokers.values()],
        "spares": [id for id in cluster.brokers if id not in used],
        "partitions": [
            {"topic": partition.topic, "partition": partition.partition, "replicas": list(partition.replicas)}
            | ({} if partition.size is None else {"size": partition.size})
            for partition in cluster.partitions
        ],
    }
    return json.dumps(value, separators=(",", ":")) + "\n"


def _broker_value(broker: PlacementBroker, totals: Mapping[int, int]) -> dict[str, Any]:
    optional = {"storage_total": totals.get(broker.id), "storage_free": broker.storage_free}
    measured = {key: value for key, value in optional.items() if value is not None}
    return {"id": broker.id, "rack": broker.rack, **measured, **({"cordoned": True} if broker.cordoned else {})}


def _list(value: Any, key: str) -> list[Any]:
    entries = value.get(key) if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise Invalid(f"the cluster file has no list {key!r}; write one with `topicmappr export`")
    return entries


def _broker(number: int, value: Any) -> tuple[PlacementBroker, int | None]:
    where = f"brokers[{number}]"
    if not isinstance(value, dict):
        raise Invalid(f"{where} of the cluster file is not an object")
    rack, cordoned = value.get("rack") or "", value.get("cordoned", False)
    if not isinstance(rack, str) or not isinstance(cordoned, bool):
        raise Invalid(f"{where}: rack must be a text and cordoned true or false")
    free = _integer(where, value, "storage_free", _MAX_BYTES, required=False)
    total = _integer(where, value, "storage_total", _MAX_BYTES, required=False)
    id = _integer(where, value, "id", MAX_BROKER_ID) or 0
    return PlacementBroker(id, rack, free, cordoned=cordoned), total


def _partition(number: int, value: Any) -> PartitionReplicas:
    where = f"partitions[{number}]"
    topic = value.get("topic") if isinstance(value, dict) else None
    if not isinstance(topic, str) or not topic:
        raise Invalid(f"{where} of the cluster file has no topic")
    try:
        validate_topic(topic)
    except Invalid as error:
        raise Invalid(f"{where}.topic of the cluster file: {error}") from None
    replicas = value.get("replicas")
    if not isinstance(replicas, list) or not all(type(b) is int and -1 <= b <= MAX_BROKER_ID for b in replicas):
        raise Invalid(f"{where}.replicas is not a list of broker ids (-1: an offline replica)")
    partition = _integer(where, value, "partition", MAX_BROKER_ID) or 0
    size = _integer(where, value, "size", _MAX_BYTES, required=False)
    return PartitionReplicas(topic, partition, tuple(replicas), size)


def _integer(where: str, value: Mapping[str, Any], key: str, largest: int, required: bool = True) -> int | None:
    number = value.get(key)
    if number is None and not required:
        return None
    if type(number) is not int or not 0 <= number <= largest:
        raise Invalid(f"{where}.{key} of the cluster file is {number!r}; it must be an integer, 0 to {largest}")
    return number

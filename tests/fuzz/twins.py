"""Running services on in-memory twins, and a valid request for each of their methods."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics
from autothrottle.core.placement.partition_map import PartitionReplicas
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import BROKERS, InProcessServices

RESET_INPUTS = 200
"""Inputs after which the twins are as they were: an accepted request must not protect the services from later ones."""

LATER = (datetime.now(UTC) + timedelta(days=7)).strftime("%Y-%m-%dT%H:00:00Z")
"""An expire time."""

_MOVED = {"topic": "t", "partition": 0, "replicas": [1001, 1003]}
_ROW = {"topic": "t", "partition": 0}
_ENTITY = {"user": "a", "clientId": "b"}
_RATE = "leader.replication.throttled.rate"
_SCOPE = {"topics": ["t", "x.*"], "topicsExclude": ["y"], "brokers": [1001, 1002, 1003, 1004]}
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "GetOverride": {"brokerId": 1001},
    "SetOverride": {
        "override": {
            "brokerId": 1001,
            "rateBytesPerSecond": "50000000",
            "autoremove": True,
            "expireTime": LATER,
            "etag": "",
        }
    },
    "RemoveOverride": {"brokerId": 1001, "etag": ""},
    "ListAuditRecords": {"limit": 10},
    "GetClusterState": {"withoutCycle": True},
    "ListReassignments": {"withPaths": True, "withMoves": True},
    "SubmitReassignment": {"partitions": [_MOVED], "validateOnly": True},
    "EstimateReassignment": {"partitions": [_MOVED], "maxRatio": 0.5, "within": "3600s"},
    "CancelReassignment": {"partitions": [_ROW]},
    "CheckCancellation": {"partitions": [_ROW]},
    "Pause": {"mode": "MODE_KEEP", "reason": "a release"},
    "StartCatchUp": {"brokerId": 1004},
    "StopCatchUp": {"brokerId": 1004},
    "SetRequestQuota": {"quota": {"user": "anna", "clientId": "c", "requestRate": 100}},
    "RemoveRequestQuota": {"user": "anna", "clientId": "c"},
    "DescribeQuota": _ENTITY,
    "SetQuota": {
        "quota": {
            "entity": _ENTITY,
            "values": {"producer_byte_rate": "1024", "request_percentage": 50.0},
            "expireTime": LATER,
            "untilRecovered": False,
            "etag": "",
        },
        "validateOnly": False,
    },
    "RemoveQuota": {"entity": _ENTITY, "keys": ["producer_byte_rate"], "etag": "", "validateOnly": True},
    "SetYieldRule": {
        "rule": {
            "name": "batch",
            "clientId": "batch-*",
            "atMostBytesPerSecond": "5000000",
            "floorBytesPerSecond": "1000000",
            "keys": ["producer_byte_rate"],
        },
        "validateOnly": False,
        "force": False,
    },
    "RemoveYieldRule": {"name": "batch", "validateOnly": True},
    "Rebuild": {
        "scope": _SCOPE,
        "strategy": "PLACEMENT_STRATEGY_STORAGE",
        "replicationFactor": 2,
        "partitionSizeFactor": 1.2,
        "leaderEvacuationBrokers": [1001],
        "leaderEvacuationTopics": ["t"],
        "brokersPerStep": 1,
    },
    "Rebalance": {"scope": _SCOPE, "storageThreshold": 0.2, "localityScoped": True},
    "Scale": {"scope": _SCOPE, "localityScoped": True},
    "Decommission": {"scope": _SCOPE, "leaving": [1001]},
    "PlanPools": {"repairLost": True, "allowFewerRacks": True},
    "GetCapacity": {
        "workload": {"bytesInPerSecond": 1e9, "fanOut": 3.0, "retention": "43200s", "replication": 3, "months": 1.0},
        "instances": [
            {
                "name": "large",
                "storageBytes": 15e12,
                "networkInBytesPerSecond": 3e9,
                "networkOutBytesPerSecond": 3e9,
                "diskBytesPerSecond": 2e9,
                "pricePerMonth": 1980.0,
            }
        ],
        "shares": {"storage": 0.7, "brokerPartitions": 2000},
        "failure": {"loss": "CAPACITY_LOSS_RACK", "racks": 3, "recoverWithin": "7200s", "ontoSurvivors": True},
    },
    "Apply": {
        "fence": "1",
        "leaseMargin": "1s",
        "changes": [
            {
                "resource": "brokers/1001",
                "edits": [{"key": _RATE, "value": "50000000"}],
                "ledger": {"keys": {_RATE: {"written": "50000000", "intent": "7"}}, "term": "1", "cycle": "1"},
            },
            {"resource": "users/a", "edits": [{"key": "producer_byte_rate", "expected": "5", "value": "7"}]},
        ],
    },
    "SubmitReassignments": {"fence": "1", "partitions": [_MOVED], "leaseMargin": "1s"},
    "CancelReassignments": {"fence": "1", "partitions": [_ROW]},
    "GetSnapshot": {
        "minVersion": "0",
        "partitions": [{"topic": "t", "partitions": [0, 1]}],
        "replicasOf": [1001],
        "catchingUp": [1004],
        "knownName": "x",
    },
    "GetLogSizes": {"brokers": [{"brokerId": 1001, "partitions": [{"topic": "t", "partitions": [0]}]}]},
    "GetFetchSettings": {"brokerIds": [1001], "topics": ["t"]},
    "GetQuotaState": {"resources": ["users/a"]},
    "PostEvent": {"title": "a", "text": "b", "tags": ["c:d"]},
    "RunCycle": {"reason": "a"},
    "GetState": {"withoutCycle": True},
}
"""Method -> a request that its service accepts; methods without one take an empty request."""


class Twins(InProcessServices):
    """The services, with what they read and where they post."""

    def __init__(self) -> None:
        self.metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
        super().__init__(self.metrics, self.metrics)


def twins() -> Twins:
    """Return running services whose cluster has a topic, sizes of its logs, and storage metrics."""
    services = Twins()
    services.__enter__()
    services.cluster.add_topic("t", {0: (1001, 1002), 1: (1002, 1003)})
    services.cluster.log_bytes = {b: {("t", 0): 1_000, ("t", 1): 5_000} for b in BROKERS}
    brokers = {b: PlacementBroker(b, f"r{b % 2}") for b in BROKERS}
    partitions = (
        PartitionReplicas("t", 0, (1001, 1002)),
        PartitionReplicas("t", 1, (1002, 1003)),
        # An expression of Python's such as (a+)+$ takes years for this name.
        PartitionReplicas(f"{'a' * 40}b", 0, (1001, 1002)),
    )
    services.placement.cluster = PlacementCluster(brokers, partitions)
    services.storage.metrics = StorageMetrics(
        {("t", 0): 1_000, ("t", 1): 5_000}, {b: 10**12 + b for b in BROKERS}, builders.NOON
    )
    services.start_planners()
    eventually(lambda: services.planners[0].state().last_cycle)
    return services


def reset(services: Twins) -> None:
    """Remove what accepted requests have set, and what the twins have recorded of them."""
    cluster = services.cluster
    for record in (cluster.writes, cluster.submissions, cluster.notifications, services.quotas.notifications):
        record.clear()
    services.metrics.events.clear()
    services.pauses.remove_pause()
    services.quotas.quotas.clear()
    services.cluster.configs.clear()
    services.cluster.ledger.clear()
    for broker_id in [None, *services.overrides.read_overrides().brokers]:
        services.overrides.remove_override(broker_id)
    for broker_id in services.catch_ups.read():
        services.catch_ups.remove(broker_id)
    for entity in services.request_quotas.read():
        services.request_quotas.remove(entity)
    for quota in services.temporary_quotas.read():
        services.temporary_quotas.remove(quota)
    for name in services.yield_rules.read():
        services.yield_rules.remove(name)

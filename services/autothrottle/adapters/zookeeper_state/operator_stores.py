"""The stores of operators' settings in ZooKeeper."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from kazoo.client import KazooClient

from autothrottle.adapters.state_store.operator_stores import MapCodec, NodeAuditedMap, NodeOverrides, NodePauses
from autothrottle.adapters.zookeeper.mirror import FollowedNode
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS

K = TypeVar("K")
V = TypeVar("V")

TIMEOUT = timedelta(seconds=5)
"""For each operation, by default."""


def zookeeper_overrides(
    client: KazooClient, own: OwnPaths, timeout: timedelta = TIMEOUT, records_kept: int = MAX_AUDIT_RECORDS
) -> NodeOverrides:
    """Return the store of overrides in a session."""
    trail = AuditTrail(client, own, timeout, records_kept)
    return NodeOverrides(own, trail, FollowedNode(client, own.overrides, "overrides", timeout, with_children=True))


def zookeeper_pauses(client: KazooClient, own: OwnPaths, timeout: timedelta = TIMEOUT) -> NodePauses:
    """Return the store of the pause in a session."""
    return NodePauses(own, AuditTrail(client, own, timeout), FollowedNode(client, own.pause, "pause", timeout))


def zookeeper_map(
    client: KazooClient, own: OwnPaths, codec: MapCodec[K, V], timeout: timedelta = TIMEOUT
) -> NodeAuditedMap[K, V]:
    """Return the store of a map in a session."""
    node = FollowedNode(client, own.audited_map(codec.node), codec.kind.name, timeout)
    return NodeAuditedMap(own, codec, AuditTrail(client, own, timeout), node)

"""The nodes of the state in ZooKeeper, as the stores of operators' settings use them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from autothrottle.adapters.state_store.nodes import FollowedNodes, Trail
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.mirror import FollowedNode
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS


@dataclass(frozen=True, slots=True)
class ZooKeeperNodeStore:
    """The nodes in a session (a `NodeStore`)."""

    client: SecuredClient
    own: OwnPaths
    timeout: timedelta = timedelta(seconds=5)
    """For each operation."""
    records_kept: int = MAX_AUDIT_RECORDS

    def trail(self) -> Trail:
        return AuditTrail(self.client, self.own, self.timeout, self.records_kept)

    def followed(self, path: str, name: str, with_children: bool = False) -> FollowedNodes:
        return FollowedNode(self.client, path, name, self.timeout, with_children)

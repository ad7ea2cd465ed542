"""What takes part beside the product's own policies: the original as it was, and one that knows the future."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.headroom import headroom
from autothrottle.core.loads import MEGABYTE, Port
from autothrottle.core.policy.interface import Observation, Proposal, Sight
from tests.benchmarks.control.fleet import BEGIN, Foresight
from tests.benchmarks.control.links import Array


@dataclass(frozen=True)
class OriginalPolicy:
    """The original program: it subtracts the newest throttle from an old utilization (defect D24)."""

    name = "original"

    def observe(self, seen: Observation) -> OriginalPolicy:
        return self

    def propose(self, sight: Sight) -> Mapping[Port, Proposal]:
        return {
            port: Proposal(
                headroom(
                    one.used.rate, one.standing or 0, one.capacity, sight.limits.max_ratio(one.role), sight.limits.floor
                )
            )
            for port, one in sight.ports.items()
        }


@dataclass(frozen=True)
class OraclePolicy:
    """Knows the mean load of the clients until the next cycle, and what in-sync followers will read."""

    foresight: Foresight
    interval: int
    brokers: int
    in_sync: Array
    """[flows] MB/s."""
    second: int = 0
    open_leaders: Mapping[int, float] = field(default_factory=dict)
    """Leader -> MB/s that its in-sync followers read of what moves."""

    name = "oracle"

    def observe(self, seen: Observation) -> OraclePolicy:
        leaders: dict[int, float] = {}
        for topic in seen.snapshot.reassignments:
            for partition, leader in zip(topic.partitions, topic.leaders, strict=True):
                leaders[leader] = leaders.get(leader, 0.0) + float(self.in_sync[partition])
        return replace(self, second=round((seen.now - BEGIN).total_seconds()), open_leaders=leaders)

    def propose(self, sight: Sight) -> Mapping[Port, Proposal]:
        clients = self.foresight(self.second, self.second + self.interval) * MEGABYTE
        found = {}
        for (broker_id, role), one in sight.ports.items():
            load = clients[broker_id + (0 if role is ReplicaRole.LEADER else self.brokers)]
            rate = max(sight.limits.max_ratio(role) * (one.capacity - load), sight.limits.floor)
            if role is ReplicaRole.LEADER:
                rate += self.open_leaders.get(broker_id, 0.0) * MEGABYTE
            found[broker_id, role] = Proposal(round(float(rate)))
        return found

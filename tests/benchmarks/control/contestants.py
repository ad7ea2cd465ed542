"""Policies for comparison with those of the product: the original formula, and an oracle that knows the future."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.policy.headroom import headroom
from autothrottle.core.policy.interface import Policy, PolicyInput, PolicyObservation, RateProposal
from autothrottle.core.units import MEGABYTE
from tests.benchmarks.control.fleet import BEGIN, Foresight
from tests.benchmarks.control.links import Array


@dataclass(frozen=True)
class OriginalPolicy(Policy):
    """The formula of the original program. It subtracts the newest throttle from an old utilization (defect D24)."""

    name = "original"

    def propose(self, policy_input: PolicyInput) -> Mapping[LinkSide, RateProposal]:
        return {
            side: RateProposal(
                headroom(
                    one.used.rate,
                    one.current or 0,
                    one.capacity,
                    policy_input.limits.max_ratio[side[1]],
                    policy_input.limits.floor,
                )
            )
            for side, one in policy_input.sides.items()
        }


@dataclass(frozen=True)
class OraclePolicy(Policy):
    """Knows the mean client load until the next cycle, and the read rates of in-sync followers."""

    foresight: Foresight
    interval: int
    brokers: int
    in_sync: Array
    """[flows] read rate of the in-sync followers, MB/s."""
    second: int = 0
    open_leaders: Mapping[int, float] = field(default_factory=dict)
    """Leader -> MB/s that in-sync followers read of partitions in reassignment."""

    name = "oracle"

    def observe(self, observation: PolicyObservation) -> OraclePolicy:
        leaders: dict[int, float] = {}
        for topic in observation.snapshot.reassignments:
            for partition, leader in zip(topic.partitions, topic.leaders, strict=True):
                leaders[leader] = leaders.get(leader, 0.0) + float(self.in_sync[partition])
        return replace(self, second=round((observation.now - BEGIN).total_seconds()), open_leaders=leaders)

    def propose(self, policy_input: PolicyInput) -> Mapping[LinkSide, RateProposal]:
        clients = self.foresight(self.second, self.second + self.interval) * MEGABYTE
        found = {}
        for (broker_id, role), one in policy_input.sides.items():
            load = clients[broker_id + (0 if role is ReplicaRole.LEADER else self.brokers)]
            rate = max(policy_input.limits.max_ratio[role] * (one.capacity - load), policy_input.limits.floor)
            if role is ReplicaRole.LEADER:
                rate += self.open_leaders.get(broker_id, 0.0) * MEGABYTE
            found[broker_id, role] = RateProposal(round(float(rate)))
        return found

"""Detection of reassignments that stall although their links have free capacity.

Each cycle passes its `StallWatch` to the next. The type to know is `StallWatch`.

Source: KIP-73 (question 1: SumReplicaLag stops decreasing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Progress
from autothrottle.core.records import Decision
from autothrottle.core.throttles.plan import Plan
from autothrottle.core.units import MEGABYTE

CYCLES = 3
"""Number of scheduled cycles without any progress that make a stall."""

FREE_SHARE = 0.1
"""Free share of a link's capacity above which the link is not the bottleneck."""


@dataclass(frozen=True, slots=True)
class _FollowerBroker:
    """The bytes left of one follower at the last scheduled cycle."""

    bytes_left: int
    """Bytes."""
    cycles: int = 0
    """Consecutive cycles in which `left` did not decrease."""


@dataclass(frozen=True, slots=True)
class StallWatch:
    """The bytes left at the last scheduled cycles; immutable, `observe` returns a new watch."""

    followers: Mapping[int, _FollowerBroker] = field(default_factory=dict)
    """Broker id of a follower -> its bytes left; absent: 0."""
    at: datetime | None = None
    """Time of the last sample."""

    def observe(self, progress: Progress | None) -> StallWatch:
        """Return the watch after one more scheduled cycle; a sample that was already observed changes nothing."""
        if progress is None or progress.at is None or progress.at == self.at:
            return self
        bytes_left = {
            broker_id: traffic.bytes_left
            for (broker_id, role), traffic in progress.link_traffic.items()
            if role is ReplicaRole.FOLLOWER and traffic.bytes_left
        }
        return StallWatch(
            {follower: self._follower(follower, size) for follower, size in bytes_left.items()}, progress.at
        )

    def _follower(self, follower: int, bytes_left: int) -> _FollowerBroker:
        old = self.followers.get(follower)
        return _FollowerBroker(bytes_left, old.cycles + 1 if old is not None and bytes_left >= old.bytes_left else 0)

    def stalled(self, plan: Plan, progress: Progress | None) -> Mapping[int, str]:
        """Return follower -> a finding, for followers that stall while their link has free capacity."""
        current = {follower: broker for follower, broker in self.followers.items() if broker.cycles >= CYCLES}
        if not current or progress is None:
            return {}
        decided = {d.broker_id: d for d in plan.decisions if d.role is ReplicaRole.FOLLOWER}
        leaders: dict[int, list[int]] = {follower: [] for follower in current}
        for flow, count in progress.flows.items():
            if count.bytes_left and flow.follower in leaders:
                leaders[flow.follower].append(flow.leader)
        return {
            follower: _sentence(follower, broker, decision, sorted(leaders[follower]))
            for follower, broker in sorted(current.items())
            if (decision := decided.get(follower)) and _has_free_capacity(decision)
        }


def _has_free_capacity(decision: Decision) -> bool:
    if decision.capacity_bytes_per_second is None or decision.utilization_bytes_per_second is None:
        return False
    return (
        decision.capacity_bytes_per_second - decision.utilization_bytes_per_second
        >= FREE_SHARE * decision.capacity_bytes_per_second
    )


def _sentence(follower: int, broker: _FollowerBroker, decision: Decision, leaders: Sequence[int]) -> str:
    capacity = decision.capacity_bytes_per_second or 0
    free = capacity - (decision.utilization_bytes_per_second or 0)
    shown = ", ".join(map(str, leaders[:10])) + (f" and {len(leaders) - 10} more" if len(leaders) > 10 else "")
    return (
        f"broker {follower} [follower] is stalled: {broker.bytes_left / MEGABYTE:.2f} MB are left, no less than "
        f"{CYCLES} cycles ago, although {free / MEGABYTE:.0f} of its {capacity / MEGABYTE:.0f} MB/s are free under "
        f"a throttle of {decision.rate_bytes_per_second / MEGABYTE:.0f} MB/s; check its log, its disks and leaders "
        f"[{shown}]"
    )

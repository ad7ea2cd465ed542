"""Moves that stand still though their links have room.

A value that is handed from cycle to cycle. The type to know is `StallWatch`.

Source: KIP-73 (question 1: SumReplicaLag stops decreasing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import Progress
from autothrottle.core.loads import MEGABYTE
from autothrottle.core.plan import Decision, Plan

CYCLES = 3
"""So many scheduled cycles without any progress are a stall."""

FREE_SHARE = 0.1
"""Of a link's capacity: when so much is not in use, it is not the link that a move waits for."""


@dataclass(frozen=True, slots=True)
class _Destination:
    """What one destination lacked at the last scheduled cycle."""

    left: int
    """Bytes."""
    cycles: int = 0
    """In a row in which it did not become less."""


@dataclass(frozen=True, slots=True)
class StallWatch:
    """What was left at the last scheduled cycles."""

    destinations: Mapping[int, _Destination] = field(default_factory=dict)
    """Broker id -> what it lacks; absent: nothing."""
    at: datetime | None = None
    """The time of the reading that was seen last."""

    def observe(self, progress: Progress | None) -> StallWatch:
        """Return the watch after one more scheduled cycle; a reading that was seen already says nothing."""
        if progress is None or progress.at is None or progress.at == self.at:
            return self
        left: dict[int, int] = {}
        for flow, count in progress.flows.items():
            if count.bytes_left:
                left[flow.follower] = left.get(flow.follower, 0) + count.bytes_left
        return StallWatch({follower: self._seen(follower, size) for follower, size in left.items()}, progress.at)

    def _seen(self, follower: int, left: int) -> _Destination:
        old = self.destinations.get(follower)
        return _Destination(left, old.cycles + 1 if old is not None and left >= old.left else 0)

    def stalled(self, plan: Plan, progress: Progress | None) -> Mapping[int, str]:
        """Return destination -> a sentence, of those that stand still while their link has room."""
        standing = {follower: found for follower, found in self.destinations.items() if found.cycles >= CYCLES}
        if not standing or progress is None:
            return {}
        decided = {d.broker_id: d for d in plan.decisions if d.role is ReplicaRole.FOLLOWER}
        leaders: dict[int, list[int]] = {follower: [] for follower in standing}
        for flow, count in progress.flows.items():
            if count.bytes_left and flow.follower in leaders:
                leaders[flow.follower].append(flow.leader)
        return {
            follower: _sentence(follower, found, decision, sorted(leaders[follower]))
            for follower, found in sorted(standing.items())
            if (decision := decided.get(follower)) and _has_room(decision)
        }


def _has_room(decision: Decision) -> bool:
    if decision.capacity is None or decision.utilization is None:
        return False
    return decision.capacity - decision.utilization >= FREE_SHARE * decision.capacity


def _sentence(follower: int, found: _Destination, decision: Decision, leaders: Sequence[int]) -> str:
    capacity = decision.capacity or 0
    free = capacity - (decision.utilization or 0)
    shown = ", ".join(map(str, leaders[:10])) + (f" and {len(leaders) - 10} more" if len(leaders) > 10 else "")
    return (
        f"broker {follower} [follower] stands still: {found.left / MEGABYTE:.2f} MB are left, not less than {CYCLES} "
        f"cycles ago, though {free / MEGABYTE:.0f} of its {capacity / MEGABYTE:.0f} MB/s are free under "
        f"a throttle of {decision.rate / MEGABYTE:.0f} MB/s; look at its log, at its disks and at leaders [{shown}]"
    )

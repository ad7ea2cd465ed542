"""The rate that each link side needs, so that the whole reassignment ends as soon as its bottleneck allows.

All values are floats, in bytes and seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, LinkSide

_LEAST_SHARE = 0.05
"""Smallest share of its headroom that a link side can use for the bytes left, however fast clients produce."""

_NARROW = 0.8
"""Share of the longest wait from which a link side counts as a bottleneck."""


@dataclass(frozen=True, slots=True)
class Work:
    """The bytes that one link side still has to copy, and its headroom."""

    bytes_left: float
    """Bytes to copy, >= 0."""
    headroom: float
    """Headroom in the long run, bytes/s, >= 0."""
    produced: float = 0.0
    """Produce rate to the same partitions, which must be copied, too, bytes/s."""
    least: float = 0.0
    """Headroom below which this link side counts less as a bottleneck, bytes/s: see `needs`."""

    @property
    def seconds(self) -> float:
        """How long the link side alone takes; more headroom never makes it longer.

        >>> Work(bytes_left=900.0, headroom=100.0, produced=10.0).seconds
        10.0
        """
        return self.bytes_left / max(self.headroom - self.produced, _LEAST_SHARE * self.headroom, 1.0)

    @property
    def waited_for(self) -> float:
        """How long other link sides wait for it, seconds; close to 0 if clients leave it hardly any headroom."""
        return self.seconds * (min(self.headroom / self.least, 1.0) ** 2 if self.least > 0 else 1.0)


def bottlenecks(sides: Mapping[LinkSide, Work]) -> frozenset[LinkSide]:
    """Return the bottlenecks: the link sides whose rate determines when the whole reassignment ends."""
    whole = _longest_wait(sides)
    return frozenset(side for side, work in sides.items() if whole and work.waited_for >= _NARROW * whole)


def needs(flows: Collection[tuple[Flow, float]], sides: Mapping[LinkSide, Work]) -> dict[LinkSide, float]:
    """Return link side -> the rate that it needs, bytes/s, so that only bottlenecks determine the end.

    Every flow may take as long as the whole reassignment: link sides that are not bottlenecks leave the rest to
    clients.
    A link side with hardly any headroom must not slow the others down: below `least` they wait for it less and less.
    The peers of such a slow link side need only the rate that it can take. Small flows must not crowd out the flows of
    a bottleneck at their other end: see `_beside`.

    Args:
        flows: each flow with the bytes that it has left.
        sides: the participating link sides; a flow with only one end among them counts at that end.
    """
    whole = _longest_wait(sides)
    slow = {side: work.seconds for side, work in sides.items() if work.seconds > whole}
    rates = {side: work.bytes_left / whole if whole else 0.0 for side, work in sides.items()}
    for flow, bytes_left in flows if slow and whole else ():
        seconds = max(slow.get(side, 0.0) for side in flow.sides)
        for side in flow.sides if seconds else ():
            if side in rates and side not in slow:
                rates[side] -= bytes_left / whole - bytes_left / seconds
    beside = _beside(flows, sides, whole) if whole else {}
    return {
        side: max(rate, min(beside.get(side, 0.0), sides[side].headroom)) + sides[side].produced
        for side, rate in rates.items()
    }


def _longest_wait(sides: Mapping[LinkSide, Work]) -> float:
    return max((work.waited_for for work in sides.values()), default=0.0)


def _beside(
    flows: Collection[tuple[Flow, float]], sides: Mapping[LinkSide, Work], whole: float
) -> Mapping[LinkSide, float]:
    """Return link side -> the rate that it needs for the flows of the bottlenecks, bytes/s.

    In Kafka, flows share a link side evenly, regardless of their bytes left. A bottleneck's flow gets no more than the
    small flows beside it. So the link side needs the rate of that flow times the number of flows.
    """
    narrow = bottlenecks(sides)
    narrow_leaders = {broker_id for broker_id, role in narrow if role is ReplicaRole.LEADER}
    narrow_followers = {broker_id for broker_id, role in narrow if role is ReplicaRole.FOLLOWER}
    into: dict[int, float] = {}
    out: dict[int, float] = {}
    for (leader, follower), bytes_left in flows:
        if leader in narrow_leaders and bytes_left > into.get(follower, 0.0):
            into[follower] = bytes_left
        if follower in narrow_followers and bytes_left > out.get(leader, 0.0):
            out[leader] = bytes_left
    arriving = Counter(flow.follower for flow, bytes_left in flows if bytes_left > 0 and flow.follower in into)
    leaving = Counter(flow.leader for flow, bytes_left in flows if bytes_left > 0 and flow.leader in out)
    follower_rates = {(b, ReplicaRole.FOLLOWER): arriving[b] * bytes_left / whole for b, bytes_left in into.items()}
    return follower_rates | {(b, ReplicaRole.LEADER): leaving[b] * bytes_left / whole for b, bytes_left in out.items()}

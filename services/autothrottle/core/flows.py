"""The replication traffic between two brokers, and how far it has come.

Here live the values only; they are worked out from the sizes of logs in `progress`. The types to know are `Flow` and
`Progress`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.growth import LogGrowth
from autothrottle.core.loads import Port


class Flow(NamedTuple):
    """The replication traffic from one leader to one destination: a tuple, since 100,000 are looked up at a time."""

    leader: int
    follower: int

    @property
    def ports(self) -> tuple[Port, Port]:
        """The two ends: where it is sent and where it is received."""
        return (self.leader, ReplicaRole.LEADER), (self.follower, ReplicaRole.FOLLOWER)


def ports_of(flows: Collection[Flow]) -> frozenset[Port]:
    """Return the ends of some flows: of 100,000 in each cycle where nobody counts them, so by brokers first."""
    leaders, followers = {leader for leader, _ in flows}, {follower for _, follower in flows}
    return frozenset((b, ReplicaRole.LEADER) for b in leaders) | {(b, ReplicaRole.FOLLOWER) for b in followers}


class LandedMark(NamedTuple):
    """What of a flow had landed at an earlier moment."""

    at: datetime
    """UTC."""
    bytes_landed: int


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """How far one flow has come: counts that only grow, and what is left."""

    bytes_landed: int
    """Bytes that arrived in the destination's logs; what was there already when counting began is in it.

    Subtract only counts with the same `since`: replicas of discovery, and one that was restarted, count for themselves.
    """
    bytes_grown: int
    """Bytes by which the leader's logs of these partitions grew since counting began: they are to be copied, too."""
    bytes_left: int
    """What the leader's logs hold more than the destination's, >= 0."""
    at: datetime
    """When the destination answered, UTC."""
    since: datetime
    """When counting of this flow began, UTC."""
    recent: tuple[LandedMark, ...] = ()
    """The counts of the last minutes, ascending and closest in the last seconds. Where the first one is 0 nothing had
    landed before it, however long ago that was."""

    @property
    def landed_per_second(self) -> int | None:
        """What arrived in the last minutes, bytes/s; None: it was read once only."""
        first = self.recent[0] if self.recent else None
        return _per_second(self.bytes_landed - first.bytes_landed, self.at - first.at) if first else None

    @property
    def grown_per_second(self) -> int | None:
        """What is produced to its partitions, bytes/s, mean since counting began; None: it was read once only."""
        return _per_second(self.bytes_grown, self.at - self.since)


def _per_second(count: int, span: timedelta) -> int | None:
    return round(count / span.total_seconds()) if span > timedelta(0) else None


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """How far one topic has come, to all its destinations together."""

    bytes_landed: int
    """Bytes that arrived since it was first seen to move, what was there already included; only grows."""
    bytes_left: int
    """>= 0."""
    eta: datetime | None = None
    """When its last byte lands at the rate of the last minutes, UTC; None: unknown, or it stands still."""
    eta_low: datetime | None = None
    """Not before this, as far as the rates of the last minutes tell, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Not after this, likewise."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far all moves have come, by one reading of log sizes."""

    flows: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """A flow that moves and is not here is unknown. Flows that ended are here for some minutes, with nothing left."""
    topics: Mapping[str, TopicProgress] = field(default_factory=dict)
    """The topics in reassignment, as of the reading; one with a flow that is unknown is not here."""
    at: datetime | None = None
    """When the reading was complete, UTC; None: there was none yet."""
    eta: datetime | None = None
    """When the last byte lands at the rate of the last minutes, UTC; None: unknown, or a flow stands still."""
    eta_low: datetime | None = None
    """Not before this, as far as the rates of the last minutes tell, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Not after this, likewise."""
    growth: Mapping[int, LogGrowth] = field(default_factory=dict)
    """Broker id -> growth of its logs, of those that take part or did lately; absent: nobody has read it."""

    @property
    def bytes_landed(self) -> int:
        """Of all topics that move and are known."""
        return sum(topic.bytes_landed for topic in self.topics.values())

    @property
    def bytes_left(self) -> int:
        """Of all flows that are known."""
        return sum(flow.bytes_left for flow in self.flows.values())

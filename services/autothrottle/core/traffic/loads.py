"""The measured traffic and the capacity of the brokers' links.

A measurement carries the interval that it covers. Never subtract values of different intervals. The type to know is
`BrokerLoad`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.units import BytesPerSecond


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of one broker's link in each direction, bytes/s, > 0."""

    outbound: BytesPerSecond
    inbound: BytesPerSecond

    def of(self, role: ReplicaRole) -> BytesPerSecond:
        """Return the direction that a role uses: a leader sends, a follower receives."""
        return self.outbound if role is ReplicaRole.LEADER else self.inbound


@dataclass(frozen=True, slots=True)
class Utilization:
    """The mean traffic of one direction of a link over an interval."""

    rate: BytesPerSecond
    """Bytes/s, >= 0."""
    start: datetime
    """Start of the interval, UTC."""
    end: datetime
    """End of the interval, UTC."""


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """Load and capacity of one broker; both directions are always known."""

    broker_id: int
    capacity: Capacity
    outbound: Utilization
    inbound: Utilization
    instance_type: str = ""
    """Instance type of its host; "": unknown."""

    def of(self, role: ReplicaRole) -> Utilization:
        """Return the direction that a role uses: a leader sends, a follower receives."""
        return self.outbound if role is ReplicaRole.LEADER else self.inbound


@dataclass(frozen=True, slots=True)
class Loads:
    """One sample from the metrics source."""

    brokers: Mapping[int, BrokerLoad] = field(default_factory=dict)
    """Broker id -> its load; absent: see `problems`, or the source does not know the broker."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> why it has no load: one sentence that names the cause and the fix."""
    warnings: tuple[str, ...] = ()
    """Problems that concern no known broker, for example a host without a broker id tag."""

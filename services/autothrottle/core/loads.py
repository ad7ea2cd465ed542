"""What the brokers' network links carry and what they can carry.

A measurement carries the interval that it covers, so that nothing is subtracted from it that was measured at
another time. The type to know is `BrokerLoad`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.configs import ReplicaRole

BytesPerSecond = int
"""A rate; 1 MB/s is 1,000,000."""

MEGABYTE = 1_000_000
"""Bytes in a MB, everywhere."""

Port = tuple[int, ReplicaRole]
"""One direction of one broker's link: (broker id, role); a leader sends, a follower receives."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one broker's link carries in each direction, in bytes/s, > 0."""

    tx: BytesPerSecond
    rx: BytesPerSecond

    def of(self, role: ReplicaRole) -> BytesPerSecond:
        """The direction that a role uses: a leader sends, a follower receives."""
        return self.tx if role is ReplicaRole.LEADER else self.rx


@dataclass(frozen=True, slots=True)
class Utilization:
    """The mean traffic of one direction of a link over an interval."""

    rate: BytesPerSecond
    """Bytes/s, >= 0."""
    start: datetime
    """Begin of the interval that the mean covers, UTC."""
    end: datetime
    """End of that interval, UTC."""


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """Load and capacity of one broker; both directions are always known."""

    broker_id: int
    capacity: Capacity
    tx: Utilization
    rx: Utilization
    instance_type: str = ""
    """Of its host; empty: unknown."""

    def of(self, role: ReplicaRole) -> Utilization:
        """The direction that a role uses: a leader sends, a follower receives."""
        return self.tx if role is ReplicaRole.LEADER else self.rx


@dataclass(frozen=True, slots=True)
class Loads:
    """One reading of the metrics source."""

    brokers: Mapping[int, BrokerLoad] = field(default_factory=dict)
    """Broker id -> its load; absent: see `problems`, or the source does not know the broker."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> one sentence why it has no load, naming the thing and the fix."""
    warnings: tuple[str, ...] = ()
    """Problems that belong to no known broker (a host without a broker id tag, for example)."""

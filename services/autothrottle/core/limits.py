"""What the operator allows: the limits that every decision keeps."""

from __future__ import annotations

from dataclasses import dataclass

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.loads import BytesPerSecond


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator allows."""

    min_rate: BytesPerSecond
    """The floor, and the rate while metrics are missing, bytes/s, > 0."""
    max_tx_ratio: float
    """Share of the outbound headroom given to replication, in (0, 1]."""
    max_rx_ratio: float
    """Share of the inbound headroom given to replication, in (0, 1]."""
    change_threshold: float
    """A measured rate is written when it deviates by at least this share of what stands, >= 0."""
    failure_threshold: int
    """Scheduled cycles in a row without metrics that a broker's rates are kept for, >= 0."""
    keep_throttles: bool = False
    """Whether throttles stay when the last reassignment is over (`--skip-auto-delete-throttles`)."""
    pause_over_capacity: bool = False
    """Whether a measured rate may fall below the minimum, down to 0, when clients need the link."""

    @property
    def floor(self) -> BytesPerSecond:
        """The lowest rate that a measurement may give, bytes/s; without metrics it is the minimum all the same."""
        return 0 if self.pause_over_capacity else self.min_rate

    def max_ratio(self, role: ReplicaRole) -> float:
        """The share for the direction that a role uses."""
        return self.max_tx_ratio if role is ReplicaRole.LEADER else self.max_rx_ratio

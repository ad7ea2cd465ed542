"""The operator's limits, which every decision respects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.units import BytesPerSecond


@dataclass(frozen=True)
class Limits:
    """The limits and thresholds that the operator sets. The class has no slots, so that derived values are cached."""

    min_rate: BytesPerSecond
    """The floor, and the rate while metrics are missing, bytes/s, > 0."""
    max_tx_ratio: float
    """Share of the outbound headroom given to replication, in (0, 1]."""
    max_rx_ratio: float
    """Share of the inbound headroom given to replication, in (0, 1]."""
    change_threshold: float
    """A measured rate is written if it deviates from the current one by at least this share of it, >= 0."""
    failure_threshold: int
    """Consecutive scheduled cycles without metrics for which a broker's rates are kept, >= 0."""
    keep_throttles: bool = False
    """Whether throttles stay when the last reassignment ends (`--skip-auto-delete-throttles`)."""
    pause_over_capacity: bool = False
    """Whether a measured rate may fall below the minimum, down to 0, when clients need the link."""

    @cached_property
    def floor(self) -> BytesPerSecond:
        """The lowest measured rate, bytes/s; without metrics the rate is `min_rate` in any case."""
        return 0 if self.pause_over_capacity else self.min_rate

    @cached_property
    def max_ratio(self) -> Mapping[ReplicaRole, float]:
        """Role -> its share: tx for the leader, rx for the follower."""
        return {ReplicaRole.LEADER: self.max_tx_ratio, ReplicaRole.FOLLOWER: self.max_rx_ratio}

"""The interface of a policy: its input, with the operator's limits, and its output. The type to know is `Policy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import ClassVar, Protocol

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide, LogGrowth
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.records import Basis
from autothrottle.core.traffic.loads import Loads, Utilization
from autothrottle.core.traffic.replication import ThrottleHistory
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


@dataclass(frozen=True, slots=True)
class PolicyObservation:
    """What a policy learns from at the start of a cycle."""

    now: datetime
    """UTC; not before the `now` of the last observation."""
    snapshot: Snapshot
    loads: Loads
    growth: Mapping[int, LogGrowth] = field(default_factory=dict)
    """Broker id -> growth of its logs; absent: not read."""


@dataclass(frozen=True, slots=True)
class LinkSideInput:
    """One link side that needs a rate."""

    side: LinkSide
    used: Utilization
    capacity: BytesPerSecond
    """Bytes/s, > 0."""
    current: BytesPerSecond | None
    """The current throttle on the broker, bytes/s; None: not throttled."""
    previous: BytesPerSecond | None
    """The rate that a new rate is compared with, bytes/s; None: no such rate."""


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """What a policy decides on."""

    snapshot: Snapshot
    sides: Mapping[LinkSide, LinkSideInput]
    """The link sides that take part in a reassignment and have a load, without those under an override."""
    limits: Limits
    history: ThrottleHistory


@dataclass(frozen=True, slots=True)
class RateProposal:
    """The rate that a policy proposes for a link side, before the change threshold."""

    rate: BytesPerSecond
    """Bytes/s, >= 0."""
    client: BytesPerSecond | None = None
    """The assumed client load, bytes/s; None: the policy assumes none."""
    client_age: int | None = None
    """Seconds since the end of the metric's interval that `client` is based on, >= 0; None: unknown."""
    basis: Basis | None = None
    """The measurement on which the rate is based; None: the original's formula."""


class Policy(Protocol):
    """Decides how much of each link replication may take; immutable, contains everything that it has learned."""

    name: ClassVar[str]
    """The value of `--policy`."""
    follows_load: ClassVar[bool] = True
    """Whether its rates follow from the loads; otherwise `fixed_rate` is not None."""

    @classmethod
    def new(cls, static_rate: BytesPerSecond) -> Policy:
        """Return the policy without anything learned.

        Args:
            static_rate: the option of this name, bytes/s, for a policy that does not follow the loads.
        """
        return cls()

    @property
    def fixed_rate(self) -> BytesPerSecond | None:
        """The rate of every link side, whatever its load, bytes/s; None: the rates follow from the loads."""
        return None

    def observe(self, observation: PolicyObservation) -> Policy:
        """Return the policy after learning from a cycle; called once a cycle, before `propose`.

        By default it is unchanged.
        """
        return self

    def propose(self, policy_input: PolicyInput) -> Mapping[LinkSide, RateProposal]:
        """Return the rate of each link side in `policy_input.sides`; pure."""
        ...

"""What a policy sees and what it answers. The type to know is `Policy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.growth import LogGrowth
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.limits import Limits
from autothrottle.core.loads import BytesPerSecond, Loads, Port, Utilization
from autothrottle.core.topology import Snapshot


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known at the begin of a cycle, for a policy to learn from."""

    now: datetime
    """UTC; not before that of the last observation."""
    snapshot: Snapshot
    loads: Loads
    growth: Mapping[int, LogGrowth] = field(default_factory=dict)
    """Broker id -> growth of its logs; absent: nobody reads it."""


@dataclass(frozen=True, slots=True)
class PortSight:
    """One port that a rate is wanted for."""

    broker_id: int
    role: ReplicaRole
    used: Utilization
    capacity: BytesPerSecond
    """> 0."""
    standing: BytesPerSecond | None
    """What stands on the broker; None: nothing that limits."""
    previous: BytesPerSecond | None
    """What a new rate is compared with; None: there is none."""

    @property
    def port(self) -> Port:
        """Its key."""
        return self.broker_id, self.role


@dataclass(frozen=True, slots=True)
class Sight:
    """What a policy decides on."""

    snapshot: Snapshot
    ports: Mapping[Port, PortSight]
    """The ports that take part in a move and have a load; those that an operator overrides are not among them."""
    limits: Limits
    history: ThrottleHistory


class Basis(Enum):
    """What a rate was worked out from, where the formula does not say it."""

    GROWTH = "growth"
    """The clients' load now, by the growth of logs."""
    COUNTED = "counted"
    """The clients' load of the metric's interval, replication counted."""
    GUESSED = "guessed"
    """The clients' load of the metric's interval, replication taken for the throttle."""
    STATIC = "static"
    """The rate that the operator gave, whatever clients do."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The rate that a policy would give a port, before the change threshold."""

    rate: BytesPerSecond
    """>= 0."""
    client: BytesPerSecond | None = None
    """The load of clients that it counts on; None: see the formula."""
    client_age: int | None = None
    """Seconds since the end of the metric's interval that it was measured in, >= 0; None where `client` is."""
    basis: Basis | None = None
    """What it was worked out from; None: see the formula."""


class Policy(Protocol):
    """A way to say how much of each link replication may take; a value, with all that it has learned."""

    @property
    def name(self) -> str:
        """As `--policy` has it."""
        ...

    def observe(self, seen: Observation) -> Policy:
        """Return the policy with what a cycle saw; called once a cycle, before `propose`."""
        ...

    def propose(self, sight: Sight) -> Mapping[Port, Proposal]:
        """Return the rate of each port of `sight.ports`; pure."""
        ...

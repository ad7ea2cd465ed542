"""How much room clients leave to a recovery, and whether their quotas have an effect.

The type to know is `Direction`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.policy.limits import Limits
from autothrottle.core.records import Basis, Decision
from autothrottle.core.throttles.plan import Plan
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.units import BytesPerSecond

TARGET_ROOM = 0.5
"""Share of a link that clients should leave to the recovery. With less, clients yield more."""

ENOUGH_ROOM = 1.5 * TARGET_ROOM
"""With more room than this, clients get more. Between the two their quotas stay, so that they do not oscillate: a raise
by a quarter after a halving cannot take more than the room that the halving made."""

LEAST_FALL = 0.1
"""Smallest fall of the client load, as a share of it, that shows an effect of the quotas."""


class Direction(Enum):
    """Which way the quotas below their limits move."""

    DOWN = "down"
    KEEP = "keep"
    UP = "up"


def direction(plan: Plan, loads: Loads, limits: Limits | None, since: datetime) -> Direction:
    """Return which way the quotas move; KEEP without a measurement of only the time after the last step.

    Args:
        plan: the plan of the cycle.
        loads: the loads that the plan is based on.
        limits: the operator's limits that the plan is based on; None: no rates were decided.
        since: time of the last step, UTC.
    """
    clients = measured_since(plan, loads, limits, since)
    room = min((1 - load / loads.brokers[b].capacity.of(role) for (b, role), load in clients.items()), default=None)
    if room is None or TARGET_ROOM <= room <= ENOUGH_ROOM:
        return Direction.KEEP
    return Direction.DOWN if room < TARGET_ROOM else Direction.UP


def measured_since(
    plan: Plan, loads: Loads, limits: Limits | None, since: datetime
) -> Mapping[LinkSide, BytesPerSecond]:
    """Return the result of `client_loads`; empty if one of its measurements began before this time."""
    found = client_loads(plan, limits)
    is_new = all(b in loads.brokers and loads.brokers[b].of(role).start >= since for b, role in found)
    return found if is_new else {}


def client_loads(plan: Plan, limits: Limits | None) -> Mapping[LinkSide, BytesPerSecond]:
    """Return (broker id, role) -> client load, bytes/s, for the link sides of the recovery whose load is measured."""
    found = ((d, _client_load(d, limits)) for d in plan.decisions) if limits is not None else ()
    return {(d.broker_id, d.role): load for d, load in found if load is not None}


def _client_load(decision: Decision, limits: Limits | None) -> BytesPerSecond | None:
    if decision.client_bytes_per_second is not None or limits is None:
        return decision.client_bytes_per_second
    if (
        decision.headroom_bytes_per_second is None
        or decision.capacity_bytes_per_second is None
        or decision.basis is Basis.STATIC
    ):
        return None
    # The original's formula: the headroom is the operator's share of what clients leave.
    return max(
        decision.capacity_bytes_per_second - int(decision.headroom_bytes_per_second / limits.max_ratio(decision.role)),
        0,
    )


def unchanged_load(
    before: Mapping[LinkSide, BytesPerSecond], now: Mapping[LinkSide, BytesPerSecond]
) -> tuple[BytesPerSecond, BytesPerSecond] | None:
    """Return the client load before and now on the same link sides, if it has not fallen; None: it has, or is unknown.

    Args:
        before: when the recovery began.
        now: after the quotas have stayed for some windows.
    """
    sides = before.keys() & now.keys()
    first, last = sum(before[side] for side in sides), sum(now[side] for side in sides)
    return (first, last) if first > 0 and last > (1 - LEAST_FALL) * first else None


def most_used(loads: Loads, role: ReplicaRole) -> BytesPerSecond | None:
    """Return the highest traffic of any broker in one direction, bytes/s: no client can use more; None: unknown."""
    return max((load.of(role).rate for load in loads.brokers.values()), default=None)


def smallest_capacity(loads: Loads) -> BytesPerSecond | None:
    """Return the capacity of the smallest link side of any broker, bytes/s; None: unknown."""
    return min((load.capacity.of(role) for load in loads.brokers.values() for role in ReplicaRole), default=None)

"""The original's formula, with every measurement in its own time (the formula itself: `core.headroom`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.headroom import headroom
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.limits import Limits
from autothrottle.core.loads import BytesPerSecond, Port, Utilization
from autothrottle.core.policy.interface import Observation, PortSight, Proposal, Sight
from autothrottle.core.replication import Replication
from autothrottle.core.topology import Snapshot, running_flows


@dataclass(frozen=True, slots=True)
class HeadroomPolicy:
    """A share of what clients leave free, where clients are the utilization without the replication of its interval."""

    @property
    def name(self) -> str:
        """As `--policy` has it."""
        return "headroom"

    def observe(self, seen: Observation) -> HeadroomPolicy:
        """It learns nothing."""
        return self

    def propose(self, sight: Sight) -> Mapping[Port, Proposal]:
        """The formula, for each port."""
        replication = _replication(sight.snapshot)
        return {
            port: Proposal(headroom_rate(one, sight.limits, sight.history, replication))
            for port, one in sight.ports.items()
        }


def headroom_rate(
    one: PortSight, limits: Limits, history: ThrottleHistory, replication: Replication | None
) -> BytesPerSecond:
    """Return the rate by the original's formula, bytes/s.

    Args:
        one: the port.
        limits: what the operator allows.
        history: what stood when.
        replication: what landed lately; None: nobody reads log sizes.
    """
    ratio, previous = limits.max_ratio(one.role), one.previous
    known = _known(history, replication, one.broker_id, one.role, one.used, one.standing)
    measured = headroom(known.utilization, known.likely, one.capacity, ratio, limits.floor)
    if previous is not None and measured > previous:
        # A raise counts on what is certain: one that takes slow replication for absent clients is a burst, and
        # what the burst does to the next measurement sets the rates swinging.
        sure = headroom(known.utilization, known.certain, one.capacity, ratio, limits.floor)
        measured = max(previous, sure)
    if previous is not None and known.says_nothing:
        measured = max(previous, measured)
    return measured


@dataclass(frozen=True, slots=True)
class _Known:
    """What of a port's traffic is replication, in bytes/s."""

    utilization: BytesPerSecond
    likely: BytesPerSecond
    """Its mean over the interval that was measured."""
    certain: BytesPerSecond
    """What it was at least."""
    says_nothing: bool = False
    """Whether any part of the traffic may have been replication: so clients may be fewer, and not more."""


def _known(
    history: ThrottleHistory,
    replication: Replication | None,
    broker_id: int,
    role: ReplicaRole,
    used: Utilization,
    standing: BytesPerSecond | None,
) -> _Known:
    """Tell replication from clients: by what landed, else by the throttle that stood, else by what was before."""
    landed = replication and replication.landed(broker_id, role, used.start, used.end)
    if landed and not history.was_unthrottled(broker_id, role, landed.until, used.end):
        mean = landed.mean(used.start, used.end)
        if mean is not None:
            return _Known(used.rate, mean, mean)
    if history.was_unthrottled(broker_id, role, used.start, used.end):
        # At link speed for a second: in the metrics that looks like clients.
        idle = history.idle_loads.get((broker_id, role))
        return _Known(min(idle, used.rate), 0, 0) if idle is not None else _Known(used.rate, 0, 0, True)
    throttle = history.mean(broker_id, role, used.start, used.end, standing)
    return _Known(used.rate, throttle, throttle - history.doubt(broker_id, role, used.start, used.end))


def _replication(snapshot: Snapshot) -> Replication | None:
    """What landed lately; None: nobody reads log sizes."""
    return None if snapshot.progress is None else Replication(snapshot.progress, running_flows(snapshot))

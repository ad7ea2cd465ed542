"""The original's policy, with each measurement compared in its own interval; and one fixed rate as its alternative.

Source: kafka-kit's autothrottle (the formula).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.policy.interface import Limits, LinkSideInput, Policy, PolicyInput, RateProposal
from autothrottle.core.records import Basis
from autothrottle.core.traffic.replication import Replication, ThrottleHistory
from autothrottle.core.units import BytesPerSecond


@dataclass(frozen=True, slots=True)
class HeadroomPolicy(Policy):
    """A share of the free capacity; the client load is utilization minus replication in the same interval."""

    name = "headroom"

    def propose(self, policy_input: PolicyInput) -> Mapping[LinkSide, RateProposal]:
        replication = _replication(policy_input.snapshot)
        return {
            side: RateProposal(headroom_rate(side_input, policy_input.limits, policy_input.history, replication))
            for side, side_input in policy_input.sides.items()
        }


def headroom_rate(
    side_input: LinkSideInput, limits: Limits, history: ThrottleHistory, replication: Replication | None
) -> BytesPerSecond:
    """Return the rate from the original's formula, bytes/s.

    Args:
        side_input: the link side.
        limits: the operator's limits.
        history: the throttles over time.
        replication: recently copied bytes; None: log sizes are not read.
    """
    ratio, previous = limits.max_ratio[side_input.side[1]], side_input.previous
    estimate = _estimate(side_input, history, replication)
    measured = headroom(estimate.utilization, estimate.likely, side_input.capacity, ratio, limits.floor)
    if previous is not None and measured > previous:
        # A raise relies only on certain replication. Mistaking slow replication for a low client load would cause a
        # burst, and the burst's effect on the next measurement would make the rates oscillate.
        cautious = headroom(estimate.utilization, estimate.certain, side_input.capacity, ratio, limits.floor)
        measured = max(previous, cautious)
    if previous is not None and estimate.is_upper_bound:
        measured = max(previous, measured)
    return measured


@dataclass(frozen=True, slots=True)
class _ReplicationEstimate:
    """The traffic of a link side and the replication in it, bytes/s."""

    utilization: BytesPerSecond
    likely: BytesPerSecond
    """Mean replication over the measured interval."""
    certain: BytesPerSecond
    """Lower bound of that mean."""
    is_upper_bound: bool = False
    """Whether an unknown part of the traffic was replication, so that the client load is only an upper bound."""


def _estimate(
    side_input: LinkSideInput, history: ThrottleHistory, replication: Replication | None
) -> _ReplicationEstimate:
    """Estimate replication from the bytes copied, or the idle load if it was unthrottled, or the throttle."""
    side, used = side_input.side, side_input.used
    copied = replication and replication.copied(*side, used.start, used.end)
    if copied and not history.was_unthrottled(*side, copied.until, used.end):
        mean = copied.mean(used.start, used.end)
        if mean is not None:
            return _ReplicationEstimate(used.rate, mean, mean)
    if history.was_unthrottled(*side, used.start, used.end):
        # For some seconds replication ran at link speed, which looks like client load in the metrics.
        idle = history.idle_loads.get(side)
        utilization = used.rate if idle is None else min(idle, used.rate)
        return _ReplicationEstimate(utilization, 0, 0, is_upper_bound=idle is None)
    throttle = history.mean(*side, used.start, used.end, side_input.current)
    return _ReplicationEstimate(used.rate, throttle, throttle - history.doubt(*side, used.start, used.end))


def _replication(snapshot: Snapshot) -> Replication | None:
    """Return the recently copied bytes; None: log sizes are not read."""
    if snapshot.progress is None:
        return None
    return Replication(snapshot.progress, snapshot.running_uncounted_sides)


def client_load(utilization: BytesPerSecond, throttle: BytesPerSecond) -> BytesPerSecond:
    """Return the client load of a link: `max(utilization - throttle, 0)`.

    Args:
        utilization: mean traffic of the link over an interval, bytes/s, >= 0.
        throttle: mean throttle over the same interval, bytes/s; 0: no throttle.

    >>> client_load(80, 20)
    60
    """
    return max(utilization - throttle, 0)


def headroom(
    utilization: BytesPerSecond,
    throttle: BytesPerSecond,
    capacity: BytesPerSecond,
    max_ratio: float,
    min_rate: BytesPerSecond,
) -> BytesPerSecond:
    """Return the rate that replication may use on a link, bytes/s.

    `max((capacity - client - over) * max_ratio, min_rate)` with `client = max(utilization - throttle, 0)` and
    `over = max(utilization - capacity, 0)`.

    Args:
        utilization: mean traffic of the link over an interval, bytes/s, >= 0.
        throttle: mean throttle over the same interval, bytes/s; 0: no throttle.
        capacity: capacity of the link, bytes/s, > 0.
        max_ratio: share of the headroom given to replication, in (0, 1].
        min_rate: the floor, bytes/s, >= 0; 0 leaves a link without headroom to its clients.

    >>> headroom(utilization=80, throttle=20, capacity=200, max_ratio=0.9, min_rate=20)
    126
    """
    over = max(utilization - capacity, 0)
    free = capacity - client_load(utilization, throttle) - over
    return max(round(free * max_ratio), min_rate)


@dataclass(frozen=True, slots=True)
class StaticPolicy(Policy):
    """One rate for every link side, as an operator would set it by hand, independent of the client load."""

    name = "static"
    rate: BytesPerSecond
    """Bytes/s, > 0."""

    @property
    def fixed_rate(self) -> BytesPerSecond:
        return self.rate

    def propose(self, policy_input: PolicyInput) -> Mapping[LinkSide, RateProposal]:
        return dict.fromkeys(policy_input.sides, RateProposal(self.rate, basis=Basis.STATIC))

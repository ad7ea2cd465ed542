"""The original's policy, with each measurement compared in its own interval; and one fixed rate as its alternative.

Source: kafka-kit's autothrottle (the formula).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

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
        proposals = {}
        for side, side_input in policy_input.sides.items():
            rate, client = headroom_rate(
                side_input, policy_input.limits, policy_input.history, replication, replication is not None
            )
            proposals[side] = RateProposal(rate, client)
        return proposals


def headroom_rate(
    side_input: LinkSideInput,
    limits: Limits,
    history: ThrottleHistory,
    replication: Replication | None,
    is_counted: bool,
) -> tuple[BytesPerSecond, BytesPerSecond]:
    """Return the rate from the original's formula, and the client load that it assumes, bytes/s.

    Args:
        side_input: the link side.
        limits: the operator's limits.
        history: the throttles over time.
        replication: recently copied bytes; None: unknown.
        is_counted: whether log sizes are read, so that a reassignment that has just begun is counted soon.
    """
    ratio, previous = limits.max_ratio[side_input.side[1]], side_input.previous
    estimate = _estimate(side_input, history, replication, is_counted)
    measured = headroom(estimate.utilization, estimate.likely, side_input.capacity, ratio, limits.floor)
    if previous is not None and measured > previous:
        # A raise relies only on certain replication. Mistaking slow replication for a low client load would cause a
        # burst, and the burst's effect on the next measurement would make the rates oscillate.
        cautious = headroom(estimate.utilization, estimate.certain, side_input.capacity, ratio, limits.floor)
        measured = max(previous, cautious)
    if previous is not None and estimate.is_upper_bound:
        measured = max(previous, measured)
    return measured, client_load(estimate.utilization, estimate.likely)


@dataclass(frozen=True, slots=True)
class _ReplicationEstimate:
    """The traffic of a link side and the replication in it, bytes/s."""

    utilization: BytesPerSecond
    likely: BytesPerSecond
    """Mean replication over the measured interval."""
    certain: BytesPerSecond
    """Lower bound of that mean."""
    is_upper_bound: bool = False
    """Whether the replication is the most that is possible, so that the client load must not lower a rate."""


def _estimate(
    side_input: LinkSideInput, history: ThrottleHistory, replication: Replication | None, is_counted: bool
) -> _ReplicationEstimate:
    """Estimate replication from the bytes copied, or the idle load if it was unthrottled, or the throttle."""
    side, used = side_input.side, side_input.used
    copied = replication and replication.copied(*side, used.start, used.end)
    if replication and copied and not history.was_unthrottled(*side, copied.until, used.end):
        likely = replace(replication, is_upper_bound=False).copied(*side, used.start, used.end)
        mean, certain = (c and c.mean(used.start, used.end) for c in (copied, likely))
        if mean is not None:
            return _ReplicationEstimate(used.rate, mean, min(mean, certain or 0))
    if history.was_unthrottled(*side, used.start, used.end):
        # For some seconds replication ran at link speed, which looks like client load in the metrics.
        idle = history.idle_load(side)
        if idle is not None:
            return _ReplicationEstimate(min(idle, used.rate), 0, 0)
        copies = _most_copied(side_input, history) if is_counted else 0
        return _ReplicationEstimate(used.rate, copies, 0, is_upper_bound=True)
    throttle = history.mean(*side, used.start, used.end, side_input.current)
    return _ReplicationEstimate(used.rate, throttle, throttle - history.doubt(*side, used.start, used.end))


_COUNTED_WITHIN = timedelta(seconds=10)
"""The counts of a reassignment that is this old cover a metric of a source that answers at once."""


def _most_copied(side_input: LinkSideInput, history: ThrottleHistory) -> BytesPerSecond:
    """Return the most that a reassignment without counts may have copied in the metric's interval, bytes/s.

    If it has just begun, that is all traffic; its counts follow in seconds. Otherwise it is the link's capacity while
    it had no throttle, and then the throttle.
    """
    side, used = side_input.side, side_input.used
    since, _ = history.unthrottled[side]
    if used.end - since <= _COUNTED_WITHIN:
        return used.rate
    share = history.unthrottled_share(side, used.start, used.end)
    throttle = history.mean(*side, used.start, used.end, side_input.current)
    return min(used.rate, round(share * side_input.capacity) + throttle)


def _replication(snapshot: Snapshot) -> Replication | None:
    """Return the recently copied bytes; None: log sizes are not read."""
    if snapshot.progress is None:
        return None
    return Replication(snapshot.progress, snapshot.running_uncounted_sides, is_upper_bound=True)


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
    follows_load = False
    rate: BytesPerSecond
    """Bytes/s, > 0."""

    @classmethod
    def new(cls, static_rate: BytesPerSecond) -> StaticPolicy:
        return cls(static_rate)

    @property
    def fixed_rate(self) -> BytesPerSecond:
        return self.rate

    def propose(self, policy_input: PolicyInput) -> Mapping[LinkSide, RateProposal]:
        return dict.fromkeys(policy_input.sides, RateProposal(self.rate, basis=Basis.STATIC))

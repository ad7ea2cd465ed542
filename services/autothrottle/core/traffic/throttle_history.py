"""The throttles over time, so that a measurement is compared with the throttles of its own interval.

A metric is a mean over the last seconds or minutes. The original subtracts the newest throttle from it, which makes the
rates oscillate: after a raise the client load seems to vanish, and after a lowering it seems to appear.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Intervals, LinkSide
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.units import BytesPerSecond

THROTTLE_WINDOW = timedelta(seconds=11)
"""The default quota window of a broker (11 samples of 1 s); over a shorter time the mean rate is not limited."""

SEEN_WITHIN = timedelta(seconds=3)
"""The longest time between the start of a reassignment and the cycle that sees it."""

_Steps = tuple[tuple[datetime, BytesPerSecond], ...]


@dataclass(frozen=True, slots=True)
class ThrottleHistory:
    """The observed throttles as steps in time; immutable, `observe` returns a new history."""

    steps: Mapping[LinkSide, _Steps] = field(default_factory=dict)
    """Link side -> (start time, bytes/s) of each step, ascending; 0: no throttle."""
    since: datetime | None = None
    """Time of the first observation; None: there was none. A link side that it did not contain had no throttle."""
    horizon: timedelta = timedelta(minutes=30)
    """How long steps are kept."""
    unthrottled: Mapping[LinkSide, tuple[datetime, datetime | None]] = field(default_factory=dict)
    """Link side with a reassignment -> (start, end) of the time in which it had no throttle; end None: it has none yet.
    """
    idle_loads: Mapping[LinkSide, BytesPerSecond] = field(default_factory=dict)
    """Link side -> its last measured traffic without any reassignment, that is its client load alone, bytes/s."""

    def observe(
        self,
        now: datetime,
        current: Mapping[LinkSide, BytesPerSecond],
        moving: Collection[LinkSide] = (),
    ) -> ThrottleHistory:
        """Return the history with the current throttles; a link side that is absent in `current` has none.

        Args:
            now: time at which `current` was read, UTC; not before the last observation.
            current: (broker id, role) -> throttle, bytes/s.
            moving: the link sides that take part in a reassignment.
        """
        unthrottled: _Steps = ((self.since, 0),) if self.since else ()
        steps = dict(self.steps)
        for side in steps.keys() | current.keys():
            steps[side] = self._extended(steps.get(side, unthrottled), now, current.get(side, 0))
        return replace(
            self,
            steps={side: s for side, s in steps.items() if s},
            since=self.since or now,
            unthrottled={side: self._without_throttle(side, now, current) for side in moving},
        )

    def _without_throttle(
        self, side: LinkSide, now: datetime, current: Mapping[LinkSide, BytesPerSecond]
    ) -> tuple[datetime, datetime | None]:
        known = self.unthrottled.get(side)
        if known is None and self.since is None and side in current:
            return now, now  # another planner led before, or the reassignment began under its throttle
        if known is None:
            # Regardless of the current rate: a new reassignment is not in the replica lists yet.
            return now - SEEN_WITHIN, None
        return (known[0], now) if known[1] is None and side in current else known

    def measured(self, loads: Loads, moving: Collection[LinkSide]) -> ThrottleHistory:
        """Return the history with the loads of link sides that had neither reassignment nor throttle."""
        idle_loads = {
            side: used.rate
            for side, used in loads.traffic.items()
            if side not in moving and not self.mean(*side, used.start, used.end, None)
        }
        return replace(self, idle_loads={**self.idle_loads, **idle_loads})

    def was_unthrottled(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> bool:
        """Return whether a link side copied without a throttle, at link speed, in a part of an interval."""
        since, until = self.unthrottled.get((broker_id, role), (end, end))
        return since < end and (until is None or until > max(start, since))

    def _extended(self, steps: _Steps, now: datetime, rate: BytesPerSecond) -> _Steps:
        if not steps or steps[-1][1] != rate:
            steps = (*steps, (now, rate))
        forgotten = now - self.horizon
        while len(steps) > 1 and steps[1][0] <= forgotten:
            steps = steps[1:]
        return () if steps[-1][1] == 0 and steps[-1][0] <= forgotten else steps

    def mean(
        self,
        broker_id: int,
        role: ReplicaRole,
        start: datetime,
        end: datetime,
        current: BytesPerSecond | None,
    ) -> BytesPerSecond:
        """Return the mean throttle of a link side over an interval, bytes/s; times without a throttle count as 0.

        The first observed throttle also counts for the time before; without any observation `current` counts.
        """
        steps = self.steps.get((broker_id, role))
        if not steps:
            return 0 if self.since else current or 0
        if end <= start:
            return _value_at(steps, end)
        edges = [start, *(t for t, _ in steps if start < t < end), end]
        total = sum(_value_at(steps, since) * (until - since).total_seconds() for since, until in pairwise(edges))
        return round(total / (end - start).total_seconds())

    def highest(self, intervals: Intervals) -> dict[LinkSide, BytesPerSecond]:
        """Return link side -> its highest throttle in an interval, bytes/s; absent: it had none at some time."""
        highest = {}
        for side, (start, end) in intervals.items():
            steps = self.steps.get(side)
            rates = [_value_at(steps, start), *(rate for at, rate in steps if start < at <= end)] if steps else [0]
            if all(rates):
                highest[side] = max(rates)
        return highest

    def doubt(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> BytesPerSecond:
        """Return how far replication's mean over an interval may lie below the mean throttle, bytes/s.

        Replication follows a throttle change within the quota window, not at once. Each change by d that affects the
        interval leaves an uncertainty of up to `d * window / length of the interval`.
        """
        steps = self.steps.get((broker_id, role), ())
        length = max(end - start, timedelta(seconds=1))
        changed = sum(
            abs(rate - before)
            for (_, before), (when, rate) in pairwise(steps)
            if start - when < THROTTLE_WINDOW and when < end
        )
        return round(changed * (THROTTLE_WINDOW / length))


def _value_at(steps: _Steps, when: datetime) -> BytesPerSecond:
    return next((rate for since, rate in reversed(steps) if since <= when), steps[0][1])

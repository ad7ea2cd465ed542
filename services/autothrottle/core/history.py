"""Which throttle stood when, so that a measurement is compared with the throttles of its own interval.

A metric is the mean of the last seconds or minutes. To subtract the newest throttle from it, as the original
does, makes the rates swing: after a raise the clients seem to have gone, after a lowering they seem to have
come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.loads import BytesPerSecond, Loads, Port

QUOTA_WINDOW = timedelta(seconds=11)
"""Over which a broker enforces a throttle by default (11 samples of 1 s): shorter means may be anything."""

SEEN_WITHIN = timedelta(seconds=3)
"""So long at most a move goes on before a cycle sees it."""

_Steps = tuple[tuple[datetime, BytesPerSecond], ...]


@dataclass(frozen=True, slots=True)
class ThrottleHistory:
    """The throttles that were seen to stand, as steps in time; a value: an observation returns a new one."""

    steps: Mapping[Port, _Steps] = field(default_factory=dict)
    """Port -> (since when, bytes/s), ascending; 0: none stood."""
    since: datetime | None = None
    """The first observation; None: there was none. A port that was not seen then had no throttle."""
    horizon: timedelta = timedelta(minutes=30)
    """How long steps are remembered."""
    unthrottled: Mapping[Port, tuple[datetime, datetime | None]] = field(default_factory=dict)
    """Port that moves -> since when and until when it did so without a throttle; None: it still does."""
    idle_loads: Mapping[Port, BytesPerSecond] = field(default_factory=dict)
    """Port -> its traffic, bytes/s, when it was measured last while nothing moved there: its clients' alone."""

    def observe(
        self,
        now: datetime,
        standing: Mapping[Port, BytesPerSecond],
        moving: Collection[Port] = (),
    ) -> ThrottleHistory:
        """Return the history with what stands now; a port that is not in `standing` has no throttle.

        Args:
            now: when `standing` was seen, UTC; not before the last observation.
            standing: (broker id, role) -> bytes/s.
            moving: the ports that take part in a move.
        """
        nothing: _Steps = ((self.since, 0),) if self.since else ()
        steps = dict(self.steps)
        for port in steps.keys() | standing.keys():
            steps[port] = self._extended(steps.get(port, nothing), now, standing.get(port, 0))
        return replace(
            self,
            steps={p: s for p, s in steps.items() if s},
            since=self.since or now,
            unthrottled={port: self._without_throttle(port, now, standing) for port in moving},
        )

    def _without_throttle(
        self, port: Port, now: datetime, standing: Mapping[Port, BytesPerSecond]
    ) -> tuple[datetime, datetime | None]:
        known = self.unthrottled.get(port)
        if known is None and self.since is None and port in standing:
            return now, now  # somebody led before us, or the move began under its throttle
        if known is None:
            # Whatever rate stands: the lists of a move that was not seen before do not stand yet.
            return now - SEEN_WITHIN, None
        return (known[0], now) if known[1] is None and port in standing else known

    def measured(self, loads: Loads, moving: Collection[Port]) -> ThrottleHistory:
        """Return the history with what was measured where nothing moves, and no throttle stood either."""
        found = {
            (broker_id, role): used.rate
            for broker_id, load in loads.brokers.items()
            for role in ReplicaRole
            if (broker_id, role) not in moving
            and not self.mean(broker_id, role, (used := load.of(role)).start, used.end, None)
        }
        return replace(self, idle_loads={**self.idle_loads, **found})

    def was_unthrottled(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> bool:
        """Whether a port moved without a throttle in a part of an interval: at the speed of its link, then."""
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
        standing: BytesPerSecond | None,
    ) -> BytesPerSecond:
        """Return the mean throttle of a port over an interval, bytes/s; 0 while none stood.

        Before the first observation what was seen in it stood; without any observation `standing` did.
        """
        steps = self.steps.get((broker_id, role))
        if not steps:
            return 0 if self.since else standing or 0
        if end <= start:
            return _value_at(steps, end)
        edges = [start, *(t for t, _ in steps if start < t < end), end]
        total = sum(_value_at(steps, since) * (until - since).total_seconds() for since, until in pairwise(edges))
        return round(total / (end - start).total_seconds())

    def doubt(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> BytesPerSecond:
        """Return how far replication's mean over an interval may lie below the throttle's, bytes/s.

        After a change of the throttle replication follows within the quota window and not at once: a change by d
        leaves up to `d * window / length of the interval` unsure, for each change that the interval still feels.
        """
        steps = self.steps.get((broker_id, role), ())
        length = max(end - start, timedelta(seconds=1))
        felt = sum(
            abs(rate - before) for (_, before), (when, rate) in pairwise(steps) if start - QUOTA_WINDOW < when < end
        )
        return round(felt * (QUOTA_WINDOW / length))


def _value_at(steps: _Steps, when: datetime) -> BytesPerSecond:
    value = steps[0][1]
    for since, rate in steps:
        if since > when:
            break
        value = rate
    return value

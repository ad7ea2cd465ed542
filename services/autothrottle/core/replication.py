"""What replication really carried over a broker's link, from what landed in the destinations' logs.

A metric is a mean over an interval, and clients are what is left of it without replication. What a throttle allowed is
only a guess at that: replication uses less of it, and before the first throttle stands it uses all of the link. What
landed is known. The type to know is `Replication`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import Flow, FlowProgress, LandedMark, Progress
from autothrottle.core.history import Port
from autothrottle.core.loads import BytesPerSecond

LONGEST_STRETCH = timedelta(seconds=60)
"""Between two counts: of a longer one only the mean is known, and not which part of it landed in an interval."""

LARGEST_TAIL = 0.25
"""The share of an interval that may be younger than the newest count: the mean of the rest is taken for it."""

_SLOWEST_ANSWER = timedelta(seconds=5)
"""A flow with nothing left that was not counted for longer than this has ended."""


class Landed(NamedTuple):
    """What landed from the begin of an interval."""

    bytes: int
    until: datetime
    """Up to when it is known, UTC; the end of the interval when all of it is."""


@dataclass(frozen=True)
class Replication:
    """What landed lately, by port.

    Without slots: the flows of each port are looked up once.
    """

    progress: Progress
    moving: Collection[Flow] = ()
    """The flows that move now: of the ports of one that was not counted nothing is known."""

    @cached_property
    def _uncounted(self) -> frozenset[Port]:
        flows = [flow for flow in self.moving if flow not in self.progress.flows]
        leaders = {(flow.leader, ReplicaRole.LEADER) for flow in flows}
        return frozenset(leaders | {(flow.follower, ReplicaRole.FOLLOWER) for flow in flows})

    @cached_property
    def _ports(self) -> dict[Port, list[FlowProgress]]:
        found: dict[Port, list[FlowProgress]] = {}
        for flow, count in self.progress.flows.items():
            found.setdefault((flow.leader, ReplicaRole.LEADER), []).append(count)
            found.setdefault((flow.follower, ReplicaRole.FOLLOWER), []).append(count)
        return found

    def landed(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> Landed | None:
        """Return the bytes that the flows of a port landed in an interval; None: some of its begin is unknown."""
        if self.progress.at is None or end <= start or (broker_id, role) in self._uncounted:
            return None
        total, until = 0.0, end
        curves = [self._curve(count) for count in self._ports.get((broker_id, role), ())]
        for curve in curves:
            until = min(until, curve[-1].at) if curve[-1].at < end else until
        if until <= start:
            return None
        for curve in curves:
            part = _between(curve, start, until)
            if part is None:
                return None
            total += part
        return Landed(round(total), until)

    def rate(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> BytesPerSecond | None:
        """Return the mean replication of a port over an interval, bytes/s; None: unknown.

        At most `LARGEST_TAIL` of the interval may be younger than the newest count. Each flow's count is taken to grow
        evenly between two readings.

        Args:
            broker_id: which broker.
            role: its outbound side (leader) or its inbound side (follower).
            start: begin of the interval, UTC.
            end: its end, UTC.

        >>> from datetime import UTC
        >>> noon, second = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(seconds=1)
        >>> marks = (LandedMark(noon, 0), LandedMark(noon + 10 * second, 100))
        >>> count = FlowProgress(300, 0, 700, noon + 20 * second, noon, marks)
        >>> found = Replication(Progress({Flow(1, 2): count}, at=noon + 20 * second))
        >>> found.rate(2, ReplicaRole.FOLLOWER, noon + 5 * second, noon + 15 * second)
        15
        """
        landed = self.landed(broker_id, role, start, end)
        if landed is None or (end - landed.until) > LARGEST_TAIL * (end - start):
            return None
        return round(landed.bytes / (landed.until - start).total_seconds())

    def _curve(self, count: FlowProgress) -> list[LandedMark]:
        """The counts of a flow, oldest first; without those from before nothing had landed, which go without saying."""
        curve = [*count.recent, LandedMark(count.at, count.bytes_landed)]
        at = self.progress.at
        if at is not None and count.bytes_left == 0 and at - count.at > _SLOWEST_ANSWER:
            curve.append(LandedMark(datetime.max.replace(tzinfo=at.tzinfo), count.bytes_landed))
        return curve


def _between(curve: Sequence[LandedMark], start: datetime, end: datetime) -> float | None:
    """What landed between two moments; None: not all of it was counted. `end` is not after the last count."""
    first = curve[0]
    if start < first.at and first.bytes_landed > 0:
        return None
    total = 0.0
    for old, new in pairwise(curve):
        since, until = max(start, old.at), min(end, new.at)
        if until <= since or new.bytes_landed == old.bytes_landed:
            continue
        if new.at - old.at > LONGEST_STRETCH:
            return None
        total += (new.bytes_landed - old.bytes_landed) * ((until - since) / (new.at - old.at))
    return total

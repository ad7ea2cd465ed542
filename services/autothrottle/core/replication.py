"""What replication really carried over a broker's link, from what landed in the destinations' logs.

A metric is a mean over an interval, and clients are what is left of it without replication. What a throttle allowed is
only a guess at that: replication uses less of it, and before the first throttle stands it uses all of the link. What
landed is known. The type to know is `Replication`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from math import sqrt
from typing import NamedTuple

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.loads import BytesPerSecond, Port

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
    off: int = 0
    """By how much `bytes` may be wrong, either way: a standard deviation, if what came came in bursts."""

    def mean(self, start: datetime, end: datetime) -> BytesPerSecond | None:
        """Return the mean over the interval, bytes/s; None: more than `LARGEST_TAIL` of it is unknown."""
        if end - self.until > LARGEST_TAIL * (end - start):
            return None
        return round(self.bytes / (self.until - start).total_seconds())


class MeanRate(NamedTuple):
    """What a port carried over an interval, in bytes/s."""

    rate: BytesPerSecond
    off: BytesPerSecond = 0
    """By how much `rate` may be wrong, either way: what comes in bursts landed somewhere between two counts."""


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
        flows = set(self.moving) - self.progress.flows.keys()
        leaders = {(flow.leader, ReplicaRole.LEADER) for flow in flows}
        return frozenset(leaders | {(flow.follower, ReplicaRole.FOLLOWER) for flow in flows})

    @cached_property
    def _ports(self) -> Mapping[ReplicaRole, Mapping[int, list[FlowProgress]]]:
        # By broker ids, since 200,000 keys that name a role as well take three times as long.
        sending: defaultdict[int, list[FlowProgress]] = defaultdict(list)
        receiving: defaultdict[int, list[FlowProgress]] = defaultdict(list)
        for (leader, follower), count in self.progress.flows.items():
            sending[leader].append(count)
            receiving[follower].append(count)
        return {ReplicaRole.LEADER: sending, ReplicaRole.FOLLOWER: receiving}

    def landed(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> Landed | None:
        """Return the bytes that the flows of a port landed in an interval; None: some of its begin is unknown."""
        at = self.progress.at
        if at is None or end <= start or (broker_id, role) in self._uncounted:
            return None
        counts = self._ports[role].get(broker_id, ())
        # A flow with nothing left that is not counted any more has ended, and nothing of it lands.
        ended_before = at - _SLOWEST_ANSWER
        last = [count.at for count in counts if count.bytes_left or count.at >= ended_before]
        until = min(last, default=end)
        until = min(until, end)
        if until <= start:
            return None
        total = off = 0.0
        for count in counts:
            part = _between(count, start, until)
            if part is None:
                return None
            total, off = total + part[0], off + part[1]
        return Landed(round(total), until, round(off))

    def mean(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> MeanRate | None:
        """Return the mean replication of a port over an interval; None: unknown.

        At most `LARGEST_TAIL` of the interval may be younger than the newest count. Each flow's count is taken to grow
        evenly between two readings.

        Args:
            broker_id: which broker.
            role: its outbound side (leader) or its inbound side (follower).
            start: begin of the interval, UTC.
            end: its end, UTC.

        >>> from datetime import UTC
        >>> from autothrottle.core.flows import LandedMark
        >>> noon, second = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(seconds=1)
        >>> marks = (LandedMark(noon, 0), LandedMark(noon + 10 * second, 100))
        >>> count = FlowProgress(300, 0, 700, noon + 20 * second, noon, marks)
        >>> found = Replication(Progress({Flow(1, 2): count}, at=noon + 20 * second))
        >>> found.mean(2, ReplicaRole.FOLLOWER, noon + 5 * second, noon + 15 * second)
        MeanRate(rate=15, off=15)
        """
        landed = self.landed(broker_id, role, start, end)
        if landed is None or (rate := landed.mean(start, end)) is None:
            return None
        off = float(landed.off)
        if landed.until < end:
            # Of bursts as far apart as the readings, one more or one less may have come after the last reading.
            counts = self._ports[role].get(broker_id, ())
            apart = max((count.at - count.recent[-1].at for count in counts if count.recent), default=timedelta(0))
            off += rate * sqrt((end - landed.until).total_seconds() * apart.total_seconds())
        return MeanRate(rate, round(off / (end - start).total_seconds()))


def _between(count: FlowProgress, start: datetime, end: datetime) -> tuple[float, float] | None:
    """What landed between two moments, and how far that may be off; None: not all of it was counted.

    What came between two readings may have come in one burst, before a moment between them or after it. Nothing lands
    after the last count.
    """
    total, off, at, landed = 0.0, 0.0, count.at, count.bytes_landed
    for old_at, old_landed in reversed(count.recent):  # backwards, since an interval is of the last minutes
        if old_landed != landed and old_at < end and at > start:
            if at - old_at > LONGEST_STRETCH:
                return None
            came, span = landed - old_landed, at - old_at
            total += came * ((min(end, at) - max(start, old_at)) / span)
            if old_at < start:
                off += came * _deviation((start - old_at) / span)
            if at > end:
                off += came * _deviation((at - end) / span)
        at, landed = old_at, old_landed
        if at <= start:
            return total, off
    # Before the first count nothing had landed, or nobody knows what.
    return None if start < at and landed > 0 else (total, off)


def _deviation(share: float) -> float:
    """The standard deviation of a count, as a share of a burst that came before a moment with this probability."""
    return sqrt(share * (1 - share))

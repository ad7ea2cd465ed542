"""The measured replication traffic on a broker's link, from the bytes copied into the followers' logs.

A metric is a mean over an interval. The client load is that mean minus replication. The throttle is only an estimate of
replication: replication may use less, and before the first throttle it uses the whole link. The bytes copied are
measured. The type to know is `Replication`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import sqrt
from typing import NamedTuple

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import FlowProgress, LinkSide, LinkTraffic, Progress
from autothrottle.core.units import BytesPerSecond

LONGEST_STRETCH = timedelta(seconds=60)
"""The longest usable gap between two counts. For a longer gap, the share that belongs to an interval is unknown."""

LARGEST_TAIL = 0.25
"""The share of an interval that may be younger than the newest count; it is assumed to have the mean of the rest."""

_SLOWEST_ANSWER = timedelta(seconds=5)
"""A flow with nothing left and no count for longer than this has ended."""


class CopiedBytes(NamedTuple):
    """The bytes copied since the start of an interval."""

    bytes: int
    until: datetime
    """The time up to which `bytes` counts, UTC; the end of the interval if all of it is known."""
    off: int = 0
    """Uncertainty of `bytes`: one standard deviation, if the bytes arrived in bursts."""

    def mean(self, start: datetime, end: datetime) -> BytesPerSecond | None:
        """Return the mean over the interval, bytes/s; None: more than `LARGEST_TAIL` of it is unknown."""
        if end - self.until > LARGEST_TAIL * (end - start):
            return None
        return round(self.bytes / (self.until - start).total_seconds())


class MeanRate(NamedTuple):
    """The mean replication rate of a link side over an interval, bytes/s."""

    rate: BytesPerSecond
    off: BytesPerSecond = 0
    """Uncertainty of `rate`: bursts arrive at an unknown time between two counts."""


@dataclass(frozen=True, slots=True)
class Replication:
    """The bytes copied recently, by link side."""

    progress: Progress
    unknown: Collection[LinkSide] = ()
    """Link sides with an active flow without counts: their replication is unknown."""

    def copied(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> CopiedBytes | None:
        """Return the bytes that the flows of a link side copied in an interval; None: its start is not covered."""
        at = self.progress.at
        if at is None or end <= start or (broker_id, role) in self.unknown:
            return None
        counts = self._counts(broker_id, role)
        # A flow that has nothing left and is no longer counted has ended and copies nothing.
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
        return CopiedBytes(round(total), until, round(off))

    def _counts(self, broker_id: int, role: ReplicaRole) -> Sequence[FlowProgress]:
        return self.progress.link_traffic.get((broker_id, role), LinkTraffic()).counts

    def mean(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> MeanRate | None:
        """Return the mean replication rate of a link side over an interval; None: unknown.

        At most `LARGEST_TAIL` of the interval may be younger than the newest count. Each flow is assumed to copy at a
        constant rate between two samples.

        Args:
            broker_id: the broker.
            role: its outbound side (leader) or its inbound side (follower).
            start: start of the interval, UTC.
            end: end of the interval, UTC.

        >>> from datetime import UTC
        >>> from autothrottle.core.cluster.flows import CopiedMark, Flow
        >>> noon, second = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(seconds=1)
        >>> marks = (CopiedMark(noon, 0), CopiedMark(noon + 10 * second, 100))
        >>> count = FlowProgress(300, 0, 700, noon + 20 * second, noon, marks)
        >>> found = Replication(Progress({Flow(1, 2): count}, at=noon + 20 * second))
        >>> found.mean(2, ReplicaRole.FOLLOWER, noon + 5 * second, noon + 15 * second)
        MeanRate(rate=15, off=15)
        """
        copied = self.copied(broker_id, role, start, end)
        if copied is None or (rate := copied.mean(start, end)) is None:
            return None
        off = float(copied.off)
        if copied.until < end:
            # If bursts are as far apart as the samples, one more or one less may have arrived after the last sample.
            counts = self._counts(broker_id, role)
            spacing = max((count.at - count.recent[-1].at for count in counts if count.recent), default=timedelta(0))
            off += rate * sqrt((end - copied.until).total_seconds() * spacing.total_seconds())
        return MeanRate(rate, round(off / (end - start).total_seconds()))


def _between(count: FlowProgress, start: datetime, end: datetime) -> tuple[float, float] | None:
    """Return (bytes copied in an interval, its uncertainty); None: the counts do not cover the interval.

    All bytes between two samples may have arrived in one burst, before or after a boundary of the interval. A flow is
    assumed to copy nothing after its last count.
    """
    total, off, at, copied = 0.0, 0.0, count.at, count.bytes_copied
    for old_at, old_copied in reversed(count.recent):  # backwards, because intervals lie in the last minutes
        if old_copied != copied and old_at < end and at > start:
            if at - old_at > LONGEST_STRETCH:
                return None
            arrived, span = copied - old_copied, at - old_at
            total += arrived * ((min(end, at) - max(start, old_at)) / span)
            if old_at < start:
                off += arrived * _deviation((start - old_at) / span)
            if at > end:
                off += arrived * _deviation((at - end) / span)
        at, copied = old_at, old_copied
        if at <= start:
            return total, off
    # Before the first count nothing was copied, or the amount is unknown.
    return None if start < at and copied > 0 else (total, off)


def _deviation(share: float) -> float:
    """Return the standard deviation, as a share of a burst that arrived before a boundary with this probability."""
    return sqrt(share * (1 - share))

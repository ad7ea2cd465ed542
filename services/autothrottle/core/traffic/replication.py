"""The measured traffic of the partitions being copied: bytes copied into the followers' logs, and produce traffic.

A metric is a mean over an interval. The client load is that mean minus replication. The throttle is only an estimate of
replication: replication may use less, and before the first throttle it uses the whole link. The bytes copied are
measured. The types to know are `Replication` and `Ingress`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress, Intervals, LinkSide, LinkTraffic, Progress
from autothrottle.core.cluster.snapshot import NO_LEADER, TopicReassignment
from autothrottle.core.traffic.loads import Loads, Utilization
from autothrottle.core.units import BytesPerSecond

_BEGINNING = timedelta(seconds=3)
"""Time from the last sample without bytes in which a flow may copy without a throttle."""

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
    tail: int = 0
    """Bytes that flows which began in the interval may have copied after `until`."""

    def mean(self, start: datetime, end: datetime) -> BytesPerSecond | None:
        """Return the mean over the interval, bytes/s; None: more than `LARGEST_TAIL` of it is unknown."""
        if end - self.until > LARGEST_TAIL * (end - start):
            return None
        mean = self.bytes / (self.until - start).total_seconds()
        return round(max(mean, (self.bytes + self.tail) / (end - start).total_seconds()))


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
    is_upper_bound: bool = False
    """Whether all bytes count that may have been copied, because the rest counts as client load. It is unknown when a
    flow began between its last sample without bytes and its first one with bytes, and without a throttle it copies most
    in its first second."""

    def copied(self, broker_id: int, role: ReplicaRole, start: datetime, end: datetime) -> CopiedBytes | None:
        """Return the bytes that the flows of a link side copied in an interval; None: its start is not covered."""
        at = self.progress.at
        if at is None or end <= start or (broker_id, role) in self.unknown:
            return None
        counts = self._counts(broker_id, role)
        # A flow that has nothing left and is no longer counted has ended and copies nothing.
        ended_before = at - _SLOWEST_ANSWER
        until = min([end, *(count.at for count in counts if count.bytes_left or count.at >= ended_before)])
        if until <= start:
            return None
        total = off = 0.0
        for count in counts:
            part = _between(count, start, until, self.is_upper_bound)
            if part is None:
                return None
            total, off = total + part[0], off + part[1]
        tail = _after_beginnings(counts, start, until, end) if self.is_upper_bound and until < end else 0.0
        return None if tail is None else CopiedBytes(round(total), until, round(off), round(tail))

    def _counts(self, broker_id: int, role: ReplicaRole) -> Sequence[FlowProgress]:
        return self.progress.link_traffic.get((broker_id, role), LinkTraffic()).counts

    def means(self, intervals: Intervals) -> dict[LinkSide, MeanRate]:
        """Return link side -> its mean replication rate over an interval; absent: unknown."""
        means = {side: self.mean(*side, start, end) for side, (start, end) in intervals.items()}
        return {side: mean for side, mean in means.items() if mean is not None}

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


def _between(count: FlowProgress, start: datetime, end: datetime, is_upper_bound: bool) -> tuple[float, float] | None:
    """Return (bytes copied in an interval, its uncertainty); None: the counts do not cover the interval.

    All bytes between two samples may have arrived in one burst, before or after a boundary of the interval. A flow is
    assumed to copy nothing after its last count. An upper bound contains the whole burst with which a flow began. Its
    first count may also be a little younger than the interval's start.
    """
    total, off, at, copied = 0.0, 0.0, count.at, count.bytes_copied
    beginnings = (mark.at for mark in count.recent if not mark.bytes_copied) if is_upper_bound else ()
    burst_end = max(beginnings, default=start - _BEGINNING) + _BEGINNING
    first_at = count.recent[0].at if count.recent else at
    gap, most_in_gap = max(first_at - start, timedelta(0)), 0.0
    for old_at, old_copied in reversed(count.recent):  # backwards, because intervals lie in the last minutes
        if old_copied != copied and old_at < end and at > start:
            if at - old_at > LONGEST_STRETCH:
                return None
            arrived, span = copied - old_copied, at - old_at
            is_beginning = old_at < burst_end and start < burst_end
            total += arrived * (1 if is_beginning else (min(end, at) - max(start, old_at)) / span)
            if old_at < start:
                off += arrived * _deviation((start - old_at) / span)
            if at > end:
                off += arrived * _deviation((at - end) / span)
            most_in_gap = max(most_in_gap, arrived * max(gap / span, 1))
        at, copied = old_at, old_copied
        if at <= start:
            return total, off
    if start < at and copied > 0:
        # Before the first count the amount is unknown.
        is_short = gap <= LARGEST_TAIL * (end - start)
        return (total + most_in_gap, off + most_in_gap) if is_upper_bound and is_short and most_in_gap else None
    return total, off


def _after_beginnings(counts: Iterable[FlowProgress], start: datetime, until: datetime, end: datetime) -> float | None:
    """Return the bytes that flows which began in an interval copy in its uncounted rest; None: unknown.

    They continue at the rate of their last counts. A flow with only one count may still copy without a throttle.
    """
    total = 0.0
    for count in counts:
        if not (count.bytes_left and count.recent) or count.recent[0].bytes_copied:
            continue
        marks = (*count.recent, CopiedMark(count.at, count.bytes_copied))
        begun = next((at for at, copied in marks if copied), None)
        if begun is None or begun <= start:
            continue
        if not marks[-2].bytes_copied:
            return None
        copied, span = marks[-1].bytes_copied - marks[-2].bytes_copied, marks[-1].at - marks[-2].at
        total += copied * ((end - until) / span)
    return total


def _deviation(share: float) -> float:
    """Return the standard deviation, as a share of a burst that arrived before a boundary with this probability."""
    return sqrt(share * (1 - share))


@dataclass(frozen=True, slots=True)
class Ingress:
    """Produce traffic to the partitions that a link side is copying."""

    rate: BytesPerSecond
    """KIP-73's IN, bytes/s: traffic that counts against the throttle without progress of the reassignment. It includes
    the fetches of in-sync followers."""
    replication_factor: float
    """KIP-73's R: mean over these partitions, >= 1."""


def ingress(samples: Sequence[Progress], reassignments: Iterable[TopicReassignment]) -> Mapping[LinkSide, Ingress]:
    """Return link side -> produce traffic to the partitions in reassignment; absent: one of its flows is unknown.

    Args:
        samples: progress of the last minutes, the newest last.
        reassignments: the reassignments being copied.
    """
    growth = _growth(samples)
    found: dict[LinkSide, float] = {}
    factors: dict[LinkSide, list[float]] = {}
    unknown: set[LinkSide] = set()
    for flow, (in_sync_per_copy, replication_factor) in _means(reassignments).items():
        leader, follower = flow.sides
        rate = growth.get(flow)
        if rate is None:
            unknown |= {leader, follower}
            continue
        found[follower] = found.get(follower, 0.0) + rate
        found[leader] = found.get(leader, 0.0) + rate * (1 + in_sync_per_copy)
        for side in (leader, follower):
            factors.setdefault(side, []).append(replication_factor)
    return {
        side: Ingress(round(rate), sum(factors[side]) / len(factors[side]))
        for side, rate in found.items()
        if side not in unknown
    }


def link_side_growth(samples: Sequence[Progress]) -> Mapping[LinkSide, float]:
    """Return link side -> produce rate of its flows, bytes/s, without the fetches of in-sync followers."""
    leaders: dict[int, float] = {}
    followers: dict[int, float] = {}
    for flow, rate in _growth(samples).items():
        if rate:
            leaders[flow.leader] = leaders.get(flow.leader, 0.0) + rate
            followers[flow.follower] = followers.get(flow.follower, 0.0) + rate
    sides = ((ReplicaRole.LEADER, leaders), (ReplicaRole.FOLLOWER, followers))
    return {(broker_id, role): rate for role, found in sides for broker_id, rate in found.items()}


def _means(reassignments: Iterable[TopicReassignment]) -> Mapping[Flow, tuple[float, float]]:
    """Return flow -> (in-sync followers per copy, replication factor), means over its partitions."""
    rows: dict[Flow, list[tuple[float, int]]] = {}
    for reassignment in reassignments:
        replicas = zip(reassignment.adding_replicas, reassignment.removing_replicas, strict=True)
        for (_, leader, isr, pending), (adding, removing) in zip(reassignment.rows(), replicas, strict=True):
            if leader == NO_LEADER or not pending:
                continue
            # The leader's replica list covers all copies: its in-sync followers count once, not once per copy.
            in_sync = sum(b != leader for b in isr) / len(pending)
            factor = max(1, len({*isr, *adding}) - len(removing))
            for follower in pending:
                rows.setdefault(Flow(leader, follower), []).append((in_sync, factor))
    return {
        flow: (sum(in_sync for in_sync, _ in pairs) / len(pairs), sum(factor for _, factor in pairs) / len(pairs))
        for flow, pairs in rows.items()
    }


def _growth(samples: Sequence[Progress]) -> Mapping[Flow, float]:
    """Return flow -> produce rate of its partitions, bytes/s, since the oldest sample with the same `since`."""
    found = {}
    oldest = samples[0].flows if samples else {}
    for flow, newest in (samples[-1].flows if samples else {}).items():
        old = oldest.get(flow)
        if old is None or old.since != newest.since:
            old = _oldest_comparable(samples, flow, newest)
        if newest.at > old.at:
            found[flow] = max(0, newest.bytes_produced - old.bytes_produced) / (newest.at - old.at).total_seconds()
    return found


def _oldest_comparable(samples: Sequence[Progress], flow: Flow, newest: FlowProgress) -> FlowProgress:
    olds = (sample.flows.get(flow) for sample in samples)
    return next((old for old in olds if old is not None and old.since == newest.since), newest)


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
    idle_loads: Mapping[LinkSide, tuple[Utilization, ...]] = field(default_factory=dict)
    """Link side -> its traffic without any reassignment, that is its client load alone: the last measurement, and one
    from before `SEEN_WITHIN`. The last one contains copies if a reassignment began before a cycle saw it."""

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
        unthrottled_times = {side: self._without_throttle(side, now, current) for side in moving}
        return replace(
            self,
            steps={side: s for side, s in steps.items() if s},
            since=self.since or now,
            unthrottled=unthrottled_times,
            idle_loads=self._idle_before(unthrottled_times),
        )

    def _idle_before(
        self, begun: Mapping[LinkSide, tuple[datetime, datetime | None]]
    ) -> Mapping[LinkSide, tuple[Utilization, ...]]:
        """Return the idle loads without those that may contain copies of a reassignment that is new now."""
        doubtful = {
            side: tuple(used for used in self.idle_loads[side] if used.end <= begun[side][0])
            for side in begun.keys() - self.unthrottled.keys()
            if side in self.idle_loads
        }
        return {**self.idle_loads, **doubtful} if doubtful else self.idle_loads

    def idle_load(self, side: LinkSide) -> BytesPerSecond | None:
        """Return the last client load of a link side from before its reassignment, bytes/s; None: unknown."""
        measurements = self.idle_loads.get(side)
        return measurements[-1].rate if measurements else None

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
            side: (*_before(self.idle_loads.get(side, ()), used.end - SEEN_WITHIN), used)
            for side, used in loads.traffic.items()
            if side not in moving and not self.mean(*side, used.start, used.end, None)
        }
        return replace(self, idle_loads={**self.idle_loads, **idle_loads})

    def unthrottled_share(self, side: LinkSide, start: datetime, end: datetime) -> float:
        """Return the share of an interval in which a link side may have copied without a throttle, in [0, 1]."""
        since, until = self.unthrottled.get(side, (end, end))
        overlap = min(until or end, end) - max(since, start)
        return max(overlap / (end - start), 0.0) if end > start else 0.0

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


def _before(measurements: Sequence[Utilization], end: datetime) -> Sequence[Utilization]:
    """Return the last measurement that ended by then, if there is one."""
    return [used for used in measurements if used.end <= end][-1:]


def _value_at(steps: _Steps, when: datetime) -> BytesPerSecond:
    return next((rate for since, rate in reversed(steps) if since <= when), steps[0][1])

"""The replication traffic between two brokers, its progress, and the growth of the logs of a broker.

This module defines only the values; `progress` computes them from log sizes. The types to know are `Flow`, `Progress`
and `LogGrowth`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from autothrottle.core.cluster.configs import ReplicaRole

RISE = 0.1
"""The smallest rise, as a share of the earlier rate; a smaller one would not change a throttle."""

LEAST_RISE = 1_000_000.0
"""The smallest rise in bytes/s, whatever its share."""

RISE_SAMPLES = 2
"""Number of consecutive samples that must show a rise; a single one may be a burst."""

BEFORE_RISE = timedelta(seconds=20)
"""How far back the samples before a rise are compared."""


class GrowthMark(NamedTuple):
    """The counts at an earlier time, bytes."""

    at: datetime
    """UTC."""
    led: int
    received: int


@dataclass(frozen=True, slots=True)
class LogGrowth:
    """Cumulative bytes appended to the logs of one broker; deletion by retention does not reduce them."""

    led: int
    """Bytes appended to the logs that this broker leads: its produce traffic."""
    received: int
    """Bytes appended to all its logs, except replicas still being copied: its inbound traffic for clients."""
    at: datetime
    """Time of the sample, UTC."""
    since: datetime
    """When counting began, UTC; subtract only counts with the same `since`."""
    recent: tuple[GrowthMark, ...] = ()
    """The counts of the last minutes, ascending, densest in the last seconds."""

    @property
    def curve(self) -> Sequence[GrowthMark]:
        """All counts, the newest last."""
        return (*self.recent, GrowthMark(self.at, self.led, self.received))


def rate_after_rise(growth: LogGrowth) -> float | None:
    """Return a broker's inbound client rate after a rise, bytes/s; None: the last samples show no rise.

    In a rise, each of the last `RISE_SAMPLES` rates exceeds every rate of the preceding `BEFORE_RISE`, by a share of
    `RISE` and at least by `LEAST_RISE`. This may be the rate of `led` or of `received`. A rise that only makes up for
    a stall does not count.

    >>> from datetime import UTC
    >>> second, noon = timedelta(seconds=1), datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> counts = (0, 4_000_000, 8_000_000, 12_000_000, 26_000_000, 40_000_000)
    >>> marks = [GrowthMark(noon + 2 * i * second, 0, count) for i, count in enumerate(counts)]
    >>> rate_after_rise(LogGrowth(0, 40_000_000, marks[-1].at, noon, tuple(marks[:-1])))
    7000000.0
    >>> rate_after_rise(LogGrowth(0, 12_000_000, marks[3].at, noon, tuple(marks[:3]))) is None
    True
    """
    curve = [mark for mark in growth.curve if mark.at >= growth.at - BEFORE_RISE]
    times = [mark.at.timestamp() for mark in curve]
    if not (shows_rise(times, [mark.led for mark in curve]) or shows_rise(times, [mark.received for mark in curve])):
        return None
    first = curve[-1 - RISE_SAMPLES]
    return (growth.received - first.received) / (growth.at - first.at).total_seconds()


def shows_rise(times: Sequence[float], counts: Sequence[float]) -> bool:
    """Return whether the last samples of a count show a rise as defined in `rate_after_rise`.

    Args:
        times: times of the samples of the last `BEFORE_RISE`, seconds, ascending; too few show no rise.
        counts: cumulative bytes, one for each time.

    >>> shows_rise(range(6), [0, 4e6, 8e6, 12e6, 19e6, 26e6]), shows_rise(range(6), [0, 4e6, 8e6, 8e6, 14e6, 20e6])
    (True, False)
    """
    if len(times) < RISE_SAMPLES + 3:
        return False
    spans = zip(pairwise(times), pairwise(counts), strict=True)
    rates = [(new - old) / (later - earlier) for (earlier, later), (old, new) in spans]
    usual_rates, latest = rates[:-RISE_SAMPLES], rates[-RISE_SAMPLES:]
    if min(latest) <= max(usual_rates) + max(RISE * max(usual_rates), LEAST_RISE):
        return False
    usual = statistics.median(usual_rates)
    # After a stall, clients send what they held back; that is not additional load.
    return sum(rate - usual for rate in rates) > sum(rate - usual for rate in latest) / 2


LinkSide = tuple[int, ReplicaRole]
"""One direction of one broker's link: (broker id, role); a leader sends, a follower receives."""

Intervals = Mapping[LinkSide, tuple[datetime, datetime]]
"""Link side -> an interval (start, end), UTC."""


class Flow(NamedTuple):
    """The replication traffic from one leader to one follower; a tuple, because a cycle looks up 100,000 of them."""

    leader: int
    follower: int

    @property
    def sides(self) -> tuple[LinkSide, LinkSide]:
        """The leader's outbound and the follower's inbound link side."""
        return (self.leader, ReplicaRole.LEADER), (self.follower, ReplicaRole.FOLLOWER)


def link_sides_of(flows: Collection[Flow]) -> frozenset[LinkSide]:
    """Return the link sides that the flows use.

    It collects broker ids first, because a cycle without progress counts calls it with 100,000 flows.
    """
    leaders, followers = {leader for leader, _ in flows}, {follower for _, follower in flows}
    return frozenset((b, ReplicaRole.LEADER) for b in leaders) | {(b, ReplicaRole.FOLLOWER) for b in followers}


class CopiedMark(NamedTuple):
    """The bytes of a flow copied up to an earlier time."""

    at: datetime
    """UTC."""
    bytes_copied: int


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """The progress of one flow: cumulative counts, and the bytes left."""

    bytes_copied: int
    """Bytes in the follower's logs, including those that were there when counting began.

    Subtract only counts with the same `since`: each discovery process counts on its own, and anew after a restart.
    """
    bytes_produced: int
    """Bytes that the leader's logs of these partitions grew by since counting began; they must be copied, too."""
    bytes_left: int
    """Bytes by which the leader's logs exceed the follower's, >= 0."""
    at: datetime
    """When the follower reported its log sizes, UTC."""
    since: datetime
    """When counting of this flow began, UTC."""
    recent: tuple[CopiedMark, ...] = ()
    """The counts of the last minutes, ascending, densest in the last seconds. If the first mark is 0, nothing was
    copied before it, at any time."""

    @property
    def copied_per_second(self) -> int | None:
        """Bytes/s copied over the last minutes; None: there was only one sample."""
        first = self.recent[0] if self.recent else None
        return _per_second(self.bytes_copied - first.bytes_copied, self.at - first.at) if first else None

    @property
    def produced_per_second(self) -> int | None:
        """Produce rate of its partitions, bytes/s, mean since counting began; None: there was only one sample."""
        return _per_second(self.bytes_produced, self.at - self.since)


_BYTES_COPIED, _BYTES_LEFT = attrgetter("bytes_copied"), attrgetter("bytes_left")


def _per_second(count: int, span: timedelta) -> int | None:
    return round(count / span.total_seconds()) if span > timedelta(0) else None


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """The progress of one topic, summed over all its followers."""

    bytes_copied: int
    """Bytes copied since the reassignment was first seen, including bytes that were there then; only grows."""
    bytes_left: int
    """Bytes still to copy, >= 0."""
    eta: datetime | None = None
    """When the last byte is copied at the rate of the last minutes, UTC; None: unknown or stalled."""
    eta_low: datetime | None = None
    """Earliest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Latest end that the rates of the last minutes allow, UTC; None: unknown."""


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """The replication traffic of one link side: the sums over its known flows."""

    counts: Sequence[FlowProgress] = ()
    """Its flows."""
    bytes_copied: int = 0
    bytes_left: int = 0

    @property
    def produced(self) -> float:
        """Produce rate to the partitions that it still copies, mean since counting began, bytes/s."""
        spans = ((count.bytes_produced, count.at - count.since) for count in self.counts if count.bytes_left)
        return sum(size / span.total_seconds() for size, span in spans if span > timedelta(0))


@dataclass(frozen=True)
class Progress:
    """The progress of all reassignments, from one sample of log sizes.

    The class has no slots, so that the sums of each link side are computed once.
    """

    flows: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """Flow -> its progress; absent: unknown. Finished flows stay for some minutes, with nothing left."""
    topics: Mapping[str, TopicProgress] = field(default_factory=dict)
    """Topic in reassignment at the time of the sample -> its progress; absent: one of its flows is unknown."""
    at: datetime | None = None
    """When the sample was complete, UTC; None: no sample yet."""
    eta: datetime | None = None
    """When the last byte is copied at the rate of the last minutes, UTC; None: unknown, or a flow is stalled."""
    eta_low: datetime | None = None
    """Earliest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Latest end that the rates of the last minutes allow, UTC; None: unknown."""
    growth: Mapping[int, LogGrowth] = field(default_factory=dict)
    """Broker id -> growth of its logs, for brokers that take part or did recently; absent: not read."""
    last_bytes_left: Mapping[int, int] = field(default_factory=dict)
    """Follower -> bytes left of its unknown flows, when they were last known; absent: never, or none is unknown."""

    @cached_property
    def link_traffic(self) -> Mapping[LinkSide, LinkTraffic]:
        """Link side -> the traffic of its flows; absent: it has no known flow."""
        # Keyed by broker id first, because 200,000 keys with a role take three times as long.
        sending: defaultdict[int, list[FlowProgress]] = defaultdict(list)
        receiving: defaultdict[int, list[FlowProgress]] = defaultdict(list)
        for (leader, follower), count in self.flows.items():
            sending[leader].append(count)
            receiving[follower].append(count)
        return {
            (broker_id, role): LinkTraffic(counts, sum(map(_BYTES_COPIED, counts)), sum(map(_BYTES_LEFT, counts)))
            for role, brokers in ((ReplicaRole.LEADER, sending), (ReplicaRole.FOLLOWER, receiving))
            for broker_id, counts in brokers.items()
        }

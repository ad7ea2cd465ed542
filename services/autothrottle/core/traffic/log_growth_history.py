"""The growth of the brokers' logs, counted between samples of their sizes, and the traffic that it shows.

Only growth counts, because deletion by retention and truncation are not traffic. If a log has shrunk, it is taken to
have grown at its previous rate. A new log counts from its second sample on. The types to know are `GrowthHistory` and
`LogTraffic`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from autothrottle.core.cluster.flows import GrowthMark, LogGrowth, rate_after_rise
from autothrottle.core.cluster.snapshot import (
    NO_LEADER,
    REMEMBERED,
    SET_BACK,
    BrokerLogSizes,
    LogSizes,
    TopicPartition,
    TopicReassignment,
)
from autothrottle.core.texts import excerpt
from autothrottle.core.traffic.loads import MAX_LINK_RATE, Utilization

FORGOTTEN = timedelta(minutes=5)
"""Counting of a broker restarts after a longer gap, because retention may have deleted any amount in it."""

_DENSE_AGE = timedelta(seconds=40)
"""Up to this age all counts are kept; older ones are kept `_SPARSE_INTERVAL` apart."""

_SPARSE_INTERVAL = timedelta(seconds=15)

_REPORT_AGAIN_RATIO = 1.1
"""A broker's rise is reported again at this multiple of the last reported rate: the first read may show only a part."""

_SAME_RISE_SECONDS = 30.0
"""Seconds for which reads from before a rise stay in the window that is compared."""

Copied = Mapping[int, Collection[TopicPartition]]
"""Broker id -> its replicas that are still being copied."""


@dataclass(frozen=True, slots=True)
class GrowthHistory:
    """The counts so far; immutable, `observe` returns a new history."""

    brokers: Mapping[int, LogGrowth] = field(default_factory=dict)
    """Broker id -> its growth."""
    sizes: Mapping[int, Mapping[TopicPartition, int]] = field(default_factory=dict)
    """Broker id -> the sizes of its logs at the last sample, bytes."""
    copied: Copied = field(default_factory=dict)
    """The replicas that were still being copied at the last sample."""
    rates: Mapping[int, Mapping[TopicPartition, float]] = field(default_factory=dict)
    """Broker id -> growth rate of its logs between the last two samples, bytes/s; logs that did not grow are absent."""

    @property
    def reported(self) -> Mapping[int, LogGrowth]:
        """Broker id -> growth; absent: the broker was sampled only once, which gives no growth."""
        return {b: growth for b, growth in self.brokers.items() if growth.recent}

    def observe(self, sizes: LogSizes, copied: Copied, leaders: Mapping[TopicPartition, int]) -> GrowthHistory:
        """Return the history with one more sample.

        Args:
            sizes: all logs of some brokers; the counts of other brokers stay until they are too old.
            copied: replicas whose growth is not client traffic. The same holds for replicas that were still being
                copied at the last sample.
            leaders: partition -> id of its leader; an absent partition does not count as `led` on any broker.
        """
        newest = max((logs.at for logs in sizes.brokers.values()), default=None)
        if newest is None:
            return self
        # Counts later than this sample stem from before the clock was set back.
        since, until = newest - FORGOTTEN, newest + SET_BACK
        brokers = {b: growth for b, growth in self.brokers.items() if since <= growth.at <= until}
        kept = {b: self.sizes[b] for b in brokers}
        rates = {b: self.rates.get(b, {}) for b in brokers}
        for broker_id, logs in sizes.brokers.items():
            led, received = 0, 0
            if broker_id in brokers:
                if logs.at <= brokers[broker_id].at:
                    continue
                apart = {*copied.get(broker_id, ()), *self.copied.get(broker_id, ())}
                seconds = (logs.at - brokers[broker_id].at).total_seconds()
                grown = growth_rates(self.sizes[broker_id], logs.sizes, seconds, rates[broker_id])
                if not is_plausible(grown):  # its growth is unknown, not 0: its counts start again
                    del brokers[broker_id]
                    grown = {}
                rates[broker_id] = grown
                gained = {row: round(rate * seconds) for row, rate in rates[broker_id].items() if row not in apart}
                received = sum(gained.values())
                led = sum(size for row, size in gained.items() if leaders.get(row) == broker_id)
            brokers[broker_id] = _counted(brokers.get(broker_id), led, received, logs.at)
            kept[broker_id] = logs.sizes
        # A broker that did not answer keeps the replicas that were being copied at its last sample.
        silent = {b: rows for b, rows in self.copied.items() if b in kept and b not in sizes.brokers}
        return GrowthHistory(brokers, kept, {**copied, **silent}, rates)


@dataclass(frozen=True, slots=True)
class ReportedRises:
    """The rises of produce rates that were reported, each one once; immutable."""

    rises: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Broker id -> (time in seconds, rate in bytes/s) of its last report."""

    def update(
        self, growth: Mapping[int, LogGrowth], broker_ids: Collection[int], now: float
    ) -> tuple[ReportedRises, str]:
        """Return the reports with those of new rises, and a line that names their brokers; empty: there are none.

        Args:
            growth: broker id -> growth, with the newest sample.
            broker_ids: the brokers that were sampled now.
            now: time in seconds, >= those of the reports so far.
        """
        rates = {b: rate_after_rise(growth[b]) for b in broker_ids if b in growth}
        fresh = {b: (now, rate) for b, rate in rates.items() if rate is not None and not self._has(b, rate, now)}
        if not fresh:
            return self, ""
        named = f"broker{'s' * (len(fresh) > 1)} {excerpt(sorted(fresh), 5)}"
        return ReportedRises({**self.rises, **fresh}), f"produce rate rose on {named}"

    def _has(self, broker_id: int, rate: float, now: float) -> bool:
        when, reported = self.rises.get(broker_id, (-_SAME_RISE_SECONDS, 0.0))
        return now < when + _SAME_RISE_SECONDS and rate < _REPORT_AGAIN_RATIO * reported


@dataclass(frozen=True, slots=True)
class CopyingReplicas:
    """The brokers and replicas that take part in reassignments."""

    copied: Copied
    leaders: frozenset[int]
    """Broker ids of the leaders."""

    @property
    def brokers(self) -> frozenset[int]:
        """Ids of all participating brokers."""
        return self.leaders.union(self.copied)

    @staticmethod
    def of(reassignments: Iterable[TopicReassignment]) -> CopyingReplicas:
        """Return the replicas that these reassignments still have to copy, and their leaders."""
        copied: dict[int, set[TopicPartition]] = {}
        leaders: set[int] = set()
        for reassignment in reassignments:
            for partition, leader, _, pending in reassignment.rows():
                for broker_id in pending:
                    copied.setdefault(broker_id, set()).add((reassignment.topic, partition))
                    leaders.add(leader)
        return CopyingReplicas(copied, frozenset(leaders - {NO_LEADER}))


def growth_rates(
    old: Mapping[TopicPartition, int],
    new: Mapping[TopicPartition, int],
    seconds: float,
    before: Mapping[TopicPartition, float],
    counts_new: bool = False,
) -> dict[TopicPartition, float]:
    """Return partition -> growth rate between two samples, bytes/s; logs that did not grow are absent.

    Args:
        old: sizes of the logs in the first sample, bytes.
        new: sizes of the logs in the second sample.
        seconds: time between the samples, > 0.
        before: the previous rates; a log that shrank keeps its rate.
        counts_new: whether a log that is only in the second sample has grown from 0; otherwise it has not grown.
    """
    found: dict[TopicPartition, float] = {}
    for row, size in new.items():
        gained = size - old.get(row, 0 if counts_new else size)
        rate = gained / seconds if gained >= 0 else before.get(row, 0.0)
        if rate > 0:
            found[row] = rate
    return found


def is_plausible(rates: Mapping[TopicPartition, float]) -> bool:
    """Whether the logs of a broker can grow at these rates, bytes/s: its link carries them."""
    return sum(rates.values()) <= MAX_LINK_RATE


def _counted(old: LogGrowth | None, led: int, received: int, at: datetime) -> LogGrowth:
    if old is None:
        return LogGrowth(0, 0, at, at)
    recent = _thinned((*old.recent, GrowthMark(old.at, old.led, old.received)), at)
    return LogGrowth(old.led + led, old.received + received, at, old.since, recent)


def _thinned(marks: Iterable[GrowthMark], now: datetime) -> tuple[GrowthMark, ...]:
    """Return the marks without those that are too old or too close together for their age."""
    kept: list[GrowthMark] = []
    for mark in marks:
        age = now - mark.at
        if age <= _DENSE_AGE or (age <= REMEMBERED and (not kept or mark.at - kept[-1].at >= _SPARSE_INTERVAL)):
            kept.append(mark)
    return tuple(kept)


class _Mark(NamedTuple):
    """Cumulative bytes of one broker."""

    at: datetime
    """UTC."""
    received: float = 0.0
    produced: float = 0.0
    """Bytes appended to the logs that it leads."""
    replicated: float = 0.0
    """Bytes sent to followers."""


@dataclass(frozen=True, slots=True)
class LogTraffic:
    """The traffic on the links so far, computed from the growth of all logs; immutable, `observe` returns a new one.

    A byte that is produced arrives at the leader. It leaves the leader once for each follower, and once for each
    consumer group that reads it:

        inbound(b)  = growth of all logs on b
        outbound(b) = growth of the other replicas of the partitions that b leads
                      + fanout * growth of the logs that b leads

    Replicas that a reassignment still copies count like all others, because their bytes use the links, too.
    """

    window: timedelta
    """Length of the interval that a load covers, > 0."""
    fanout: float
    """How often consumers read each produced byte, >= 0."""
    logs: Mapping[int, BrokerLogSizes] = field(default_factory=dict)
    """Broker id -> its last sample."""
    rates: Mapping[int, Mapping[TopicPartition, float]] = field(default_factory=dict)
    """Broker id -> growth rate of its logs between its last two samples, bytes/s."""
    marks: Mapping[int, tuple[_Mark, ...]] = field(default_factory=dict)
    """Broker id -> its traffic in the last `window`, ascending."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> why its last sample does not count: its logs grew by more than a link carries."""

    def observe(self, sizes: LogSizes, leaders: Mapping[TopicPartition, int]) -> LogTraffic:
        """Return the traffic with one more sample.

        A broker that did not answer keeps its last rates. So does a broker whose logs grew by more than a link carries:
        the traffic of their leaders must not change with a wrong size, and its own traffic is counted anew. A broker
        that was not queried is forgotten.

        Args:
            sizes: all logs of all brokers.
            leaders: partition -> id of its leader.
        """
        known = {b: logs for b, logs in self.logs.items() if b in sizes.brokers or b in sizes.problems}
        rates = {b: self.rates.get(b, {}) for b in known}
        marks = {b: self.marks[b] for b in known}
        continued: dict[int, float] = {}
        problems: dict[int, str] = {}
        for broker_id, logs in sizes.brokers.items():
            old = known.get(broker_id)
            if old is not None and timedelta(0) < logs.at - old.at <= FORGOTTEN:
                seconds = (logs.at - old.at).total_seconds()
                grown = growth_rates(old.sizes, logs.sizes, seconds, rates[broker_id], counts_new=True)
                if is_plausible(grown):
                    continued[broker_id], rates[broker_id] = seconds, grown
                else:
                    marks[broker_id] = (_Mark(logs.at),)
                    problems[broker_id] = f"they grew by more than a link carries, {sum(grown.values()):.4g} bytes/s"
            elif old is None or not -SET_BACK <= logs.at - old.at <= timedelta(0):
                rates[broker_id], marks[broker_id] = {}, (_Mark(logs.at),)
            else:
                continue
            known[broker_id] = logs
        produced, replicated = _sent(rates, leaders)
        for broker_id, seconds in continued.items():
            last = marks[broker_id][-1]
            new = _Mark(
                known[broker_id].at,
                last.received + sum(rates[broker_id].values()) * seconds,
                last.produced + produced[broker_id] * seconds,
                last.replicated + replicated[broker_id] * seconds,
            )
            marks[broker_id] = _within(self.window, (*marks[broker_id], new))
        return LogTraffic(self.window, self.fanout, known, rates, marks, problems)

    def utilization(self, broker_id: int) -> tuple[Utilization, Utilization] | None:
        """Return (outbound, inbound) of a broker over the last window; None: it has fewer than two samples."""
        marks = self.marks.get(broker_id, ())
        if len(marks) < 2:
            return None
        first, last = marks[0], marks[-1]
        seconds = (last.at - first.at).total_seconds()
        sent = last.replicated - first.replicated + self.fanout * (last.produced - first.produced)
        rates = (sent / seconds, (last.received - first.received) / seconds)
        outbound, inbound = (Utilization(round(rate), first.at, last.at) for rate in rates)
        return outbound, inbound


def _sent(
    rates: Mapping[int, Mapping[TopicPartition, float]], leaders: Mapping[TopicPartition, int]
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return two rates by leader, bytes/s: appended to its logs, and appended to the other replicas of its logs."""
    produced: dict[int, float] = defaultdict(float)
    replicated: dict[int, float] = defaultdict(float)
    for broker_id, rows in rates.items():
        for row, rate in rows.items():
            leader = leaders.get(row)
            if leader == broker_id:
                produced[leader] += rate
            elif leader is not None:
                replicated[leader] += rate
    return produced, replicated


def _within(window: timedelta, marks: tuple[_Mark, ...]) -> tuple[_Mark, ...]:
    """Return the marks of the last window, and the newest one before it."""
    start = marks[-1].at - window
    older = sum(mark.at <= start for mark in marks)
    return marks[max(0, older - 1) :]

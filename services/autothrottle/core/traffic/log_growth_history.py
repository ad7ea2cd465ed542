"""The growth of the brokers' logs, counted between consecutive samples of their sizes.

Only growth counts, because deletion by retention and truncation are not traffic. If a log has shrunk, it is taken to
have grown at its previous rate. A new log counts from its second sample on. The type to know is `GrowthHistory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from autothrottle.core.cluster.flows import GrowthMark, LogGrowth
from autothrottle.core.cluster.log_sizes import REMEMBERED, SET_BACK, LogSizes
from autothrottle.core.cluster.snapshot import NO_LEADER, TopicPartition, TopicReassignment
from autothrottle.core.traffic.loads import MAX_LINK_RATE

FORGOTTEN = timedelta(minutes=5)
"""Counting of a broker restarts after a longer gap, because retention may have deleted any amount in it."""

_DENSE_AGE = timedelta(seconds=40)
"""Up to this age all counts are kept; older ones are kept `_SPARSE_INTERVAL` apart."""

_SPARSE_INTERVAL = timedelta(seconds=15)

_NONE: frozenset[TopicPartition] = frozenset()

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
                apart = {*copied.get(broker_id, _NONE), *self.copied.get(broker_id, _NONE)}
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

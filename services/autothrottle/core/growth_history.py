"""The growth of brokers' logs, counted from one reading of all their sizes to the next.

Only what a log gains counts: retention deletes, and truncation, make it smaller and are nobody's traffic; one that is
smaller than it was has gained meanwhile what it gained before. A log that is there for the first time counts from then
on. The type to know is `GrowthHistory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from autothrottle.core.growth import GrowthMark, LogGrowth
from autothrottle.core.progress import REMEMBERED, SET_BACK, BrokerLogSizes, LogSizes
from autothrottle.core.topology import NO_LEADER, TopicPartition, TopicReassignment

FORGOTTEN = timedelta(minutes=5)
"""A broker that was not read for longer is counted anew: nobody knows what retention deleted meanwhile."""

_CLOSE = timedelta(seconds=40)
"""Up to this age all counts are kept, and older ones `_APART`."""

_APART = timedelta(seconds=15)

_NONE: frozenset[TopicPartition] = frozenset()

Copied = Mapping[int, Collection[TopicPartition]]
"""Broker id -> its replicas that are still being copied."""


@dataclass(frozen=True, slots=True)
class GrowthHistory:
    """What was counted so far; a value: an observation returns a new one."""

    brokers: Mapping[int, LogGrowth] = field(default_factory=dict)
    """Broker id -> its growth."""
    sizes: Mapping[int, Mapping[TopicPartition, int]] = field(default_factory=dict)
    """Broker id -> the sizes of its logs when they were last read."""
    copied: Copied = field(default_factory=dict)
    """As of the last reading."""
    rates: Mapping[int, Mapping[TopicPartition, float]] = field(default_factory=dict)
    """Broker id -> bytes/s by which its logs grew between the last two readings; those that did not are left out."""

    @property
    def told(self) -> Mapping[int, LogGrowth]:
        """Broker id -> growth; one that was read only once says nothing and is not here."""
        return {b: growth for b, growth in self.brokers.items() if growth.recent}

    def observe(self, sizes: LogSizes, copied: Copied, leaders: Mapping[TopicPartition, int]) -> GrowthHistory:
        """Return the history with one more reading.

        Args:
            sizes: of all logs of some brokers; the others' counts stay until they are too old.
            copied: what lands in these replicas is no client's; also not what landed between the last reading, when
                they still were among them, and this one.
            leaders: who leads each partition; one that is not here counts for nobody's `led`.
        """
        newest = max((logs.at for logs in sizes.brokers.values()), default=None)
        if newest is None:
            return self
        # One that was read after this reading was read before the clock was set back.
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
                rates[broker_id] = _rates(self.sizes[broker_id], logs, seconds, rates[broker_id])
                gained = {row: round(rate * seconds) for row, rate in rates[broker_id].items() if row not in apart}
                received = sum(gained.values())
                led = sum(size for row, size in gained.items() if leaders.get(row) == broker_id)
            brokers[broker_id] = _counted(brokers.get(broker_id), led, received, logs.at)
            kept[broker_id] = logs.sizes
        # A broker that did not answer was last seen with what was copied then.
        silent = {b: rows for b, rows in self.copied.items() if b in kept and b not in sizes.brokers}
        return GrowthHistory(brokers, kept, {**copied, **silent}, rates)


@dataclass(frozen=True, slots=True)
class Copying:
    """Who takes part in moves, and by which replicas."""

    copied: Copied
    leaders: frozenset[int]
    """Ids of the brokers that send."""

    @property
    def brokers(self) -> frozenset[int]:
        """Ids of all that take part."""
        return self.leaders.union(self.copied)

    @staticmethod
    def of(reassignments: Iterable[TopicReassignment]) -> Copying:
        """What is still to be copied of these."""
        copied: dict[int, set[TopicPartition]] = {}
        leaders: set[int] = set()
        for reassignment in reassignments:
            for partition, leader, _, pending in reassignment.rows():
                for broker_id in pending:
                    copied.setdefault(broker_id, set()).add((reassignment.topic, partition))
                    leaders.add(leader)
        return Copying(copied, frozenset(leaders - {NO_LEADER}))


def _rates(
    old: Mapping[TopicPartition, int], new: BrokerLogSizes, seconds: float, before: Mapping[TopicPartition, float]
) -> dict[TopicPartition, float]:
    """By how many bytes/s the logs grew between two readings; those that became smaller as `before`."""
    found: dict[TopicPartition, float] = {}
    for row, size in new.sizes.items():
        gained = size - old.get(row, size)
        rate = gained / seconds if gained >= 0 else before.get(row, 0.0)
        if rate > 0:
            found[row] = rate
    return found


def _counted(old: LogGrowth | None, led: int, received: int, at: datetime) -> LogGrowth:
    if old is None:
        return LogGrowth(0, 0, at, at)
    recent = _thinned((*old.recent, GrowthMark(old.at, old.led, old.received)), at)
    return LogGrowth(old.led + led, old.received + received, at, old.since, recent)


def _thinned(marks: Iterable[GrowthMark], now: datetime) -> tuple[GrowthMark, ...]:
    """The same counts, the older the sparser."""
    kept: list[GrowthMark] = []
    for mark in marks:
        age = now - mark.at
        if age <= _CLOSE or (age <= REMEMBERED and (not kept or mark.at - kept[-1].at >= _APART)):
            kept.append(mark)
    return tuple(kept)

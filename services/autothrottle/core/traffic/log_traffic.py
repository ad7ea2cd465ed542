"""The traffic on the brokers' links, computed from the growth of all logs of a cluster.

A byte that is produced arrives at the leader. It leaves the leader once for each follower, and once for each consumer
group that reads it:

    inbound(b)  = growth of all logs on b
    outbound(b) = growth of the other replicas of the partitions that b leads + fanout * growth of the logs that b leads

Replicas that a reassignment still copies count like all others, because their bytes use the links, too. The type to
know is `LogTraffic`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from autothrottle.core.cluster.log_sizes import SET_BACK, BrokerLogSizes, LogSizes
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.traffic.loads import Utilization
from autothrottle.core.traffic.log_growth_history import FORGOTTEN, growth_rates, is_plausible


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
    """The traffic so far; immutable, `observe` returns a new one."""

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

"""One direction of a simulated broker's link, with its throttle's meter, and how streams share such links.

Source: KIP-73 (quotas), Kafka 3.9's SampledStat and SimpleRate (the window of a meter). The type to know is `Port`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autothrottle.core.client_traffic import ClientTraffic
from autothrottle.core.configs import ReplicaRole
from autothrottle.core.loads import BytesPerSecond

Constraint = tuple[float, Sequence[int]]
"""A limit in bytes, and the indexes of the streams whose bytes together stay within it."""


class Contention(StrEnum):
    """Who gives way on a link that clients and replication oversubscribe: TCP decides, and nobody knows beforehand."""

    PROPORTIONAL = "proportional"
    """Both, in proportion to what they want: hard on clients."""
    CONNECTIONS = "connections"
    """Each connection gets the same: the clients have many, replication has one for each broker at the other end."""
    CLIENTS_FIRST = "clients-first"
    """Replication alone."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How links are shared."""

    contention: Contention = Contention.PROPORTIONAL
    client_connections: int = 64
    """Through each link, >= 1; with `CONNECTIONS` only."""
    fetcher_rate: BytesPerSecond | None = None
    """What one broker copies from another one at most, whatever their links have: its fetchers do no more; > 0."""


def fair_shares(wants: Sequence[float], constraints: Sequence[Constraint]) -> list[float]:
    """Return the max-min fair share of each stream: no share can grow but by a smaller one's loss.

    All shares grow together; a stream stops when it has what it wants or when one of its constraints is used
    up.

    >>> fair_shares([100, 100, 10], [(60, [0, 1, 2]), (20, [0])])
    [20.0, 30.0, 10.0]
    """
    shares = [0.0] * len(wants)
    growing = {i for i, want in enumerate(wants) if want > 0}
    left = [max(limit, 0.0) for limit, _ in constraints]
    while growing:
        counts = [sum(i in growing for i in members) for _, members in constraints]
        steps = [left[c] / n if n else math.inf for c, n in enumerate(counts)]
        grow = min(min(steps, default=math.inf), min(wants[i] - shares[i] for i in growing))
        full = {i for c, (_, members) in enumerate(constraints) if steps[c] <= grow for i in members}
        for c, n in enumerate(counts):
            left[c] = max(left[c] - grow * n, 0.0)
        satisfied = {i for i in growing if wants[i] - shares[i] <= grow}
        for i in growing:
            shares[i] = float(wants[i]) if i in satisfied else shares[i] + grow
        growing -= full | satisfied
    return shares


@dataclass(slots=True)
class _Sample:
    start_ms: int
    last_event_ms: int
    amount: float = 0.0

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_event_ms = now_ms
        self.amount = 0.0


class QuotaMeter:
    """The meter of one broker in one role: bytes in the last 11 samples of 1 s, and the time that they cover.

    The time covered is at least one sample and grows to 11 or 12 s, so a meter that saw nothing starts with 1
    s, and budget that was not spent in the window can be spent at once. Samples expire 11 s after their last
    event.
    """

    SAMPLES = 11
    """`replication.quota.window.num`."""
    SAMPLE_MS = 1000
    """`replication.quota.window.size.seconds`, in milliseconds."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, now_ms: int, amount: float) -> None:
        """Count bytes at a moment; moments never go back."""
        if not self._samples:
            self._samples.append(_Sample(now_ms, now_ms))
        if now_ms - self._samples[self._current].start_ms >= self.SAMPLE_MS:
            self._advance(now_ms)
        sample = self._samples[self._current]
        sample.amount += amount
        sample.last_event_ms = now_ms

    def rate(self, now_ms: int) -> float:
        """Return the measured rate in bytes/s: bytes in the window / seconds that it covers."""
        total, seconds = self._window(now_ms)
        return total / seconds

    def budget(self, now_ms: int, rate: BytesPerSecond) -> float:
        """Return the bytes that may go until the measured rate is `rate`; negative while it is exceeded."""
        total, seconds = self._window(now_ms)
        return rate * seconds - total

    def _advance(self, now_ms: int) -> None:
        # One sample more than the window has: the oldest one still overlaps the window for a while.
        self._current = (self._current + 1) % (self.SAMPLES + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now_ms, now_ms))
        self._samples[self._current].reset(now_ms)

    def _window(self, now_ms: int) -> tuple[float, float]:
        if not self._samples:
            self._samples.append(_Sample(now_ms, now_ms))
        for sample in self._samples:
            if now_ms - sample.last_event_ms >= self.SAMPLES * self.SAMPLE_MS:
                sample.reset(now_ms)
        covered_ms = now_ms - min(sample.start_ms for sample in self._samples)
        return sum(s.amount for s in self._samples), max(covered_ms, self.SAMPLE_MS) / 1000


class Port:
    """One direction of a broker's link, with the throttle of the role that uses it.

    The leader role sends, the follower role receives. All counters are cumulative bytes.
    """

    def __init__(self, role: ReplicaRole, capacity: BytesPerSecond, traffic: ClientTraffic) -> None:
        self.role = role
        self.capacity = capacity
        self.traffic = traffic
        self.rate: BytesPerSecond | None = None
        """The throttle; None: unlimited."""
        self.up = True
        """Whether the broker runs."""
        self.meter = QuotaMeter()
        self.client_offered = 0.0
        """What clients wanted to be carried."""
        self.client_carried = 0.0
        self.client_deferred = 0.0
        """What did not fit when it was offered: the sum of all growth of the backlog."""
        self.replication = 0.0
        """What fetchers carried, in sync or not."""
        self._arriving = 0.0
        self._in_step = 0.0

    @property
    def client_backlog(self) -> float:
        """Offered and not yet carried."""
        return self.client_offered - self.client_carried

    @property
    def total(self) -> int:
        """What the network interface counts: clients and replication."""
        return round(self.client_carried + self.replication)

    def offer(self, amount: float) -> None:
        """Let clients want `amount` in the step that begins; of a broker that is down nobody wants anything."""
        self._arriving = amount if self.up else 0.0
        self._in_step = 0.0

    def replication_limit(self, wanted: float, connections: int, seconds: float, sharing: Sharing) -> float:
        """Return what replication may carry in this step.

        Args:
            wanted: bytes that it would carry without clients.
            connections: how many carry it.
            seconds: how long the step is.
            sharing: who gives way.
        """
        limit = self.capacity * seconds
        if sharing.contention is Contention.PROPORTIONAL:
            demand = self._arriving + wanted
            return limit - self._arriving if demand <= limit else limit * wanted / demand
        free = max(limit - self._arriving - self.client_backlog, 0.0)
        if sharing.contention is Contention.CLIENTS_FIRST:
            return free
        return max(free, limit * connections / (connections + sharing.client_connections))

    def carry(self, amount: float) -> None:
        """Carry replication in this step."""
        self._in_step += amount
        self.replication += amount

    def serve_clients(self, seconds: float) -> None:
        """Carry for clients what replication has left free, the backlog first."""
        if not self.up:
            return
        before = self.client_backlog
        free = max(self.capacity * seconds - self._in_step, 0.0)
        self.client_offered += self._arriving
        self.client_carried += min(before + self._arriving, free)
        self.client_deferred += max(self.client_backlog - before, 0.0)

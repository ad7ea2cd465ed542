"""One direction of a simulated broker's link, its client load and throttle's meter, and how streams share links.

Source: KIP-73 (replication quotas), Kafka 3.9's SampledStat and SimpleRate (the window of a meter).
The type to know is `SimulatedLinkSide`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.units import BytesPerSecond

Constraint = tuple[float, Sequence[int]]
"""A limit in bytes, and the indexes of the streams whose bytes, added up, must not exceed it."""


class Contention(StrEnum):
    """How clients and replication share a link that they oversubscribe. On a real link TCP decides, unpredictably."""

    PROPORTIONAL = "proportional"
    """Both get less, in proportion to their demand: hard on clients."""
    CONNECTIONS = "connections"
    """Every connection gets the same rate. Clients have many, replication has one for each broker at the other end."""
    CLIENTS_FIRST = "clients-first"
    """Clients get all they demand; replication gets the rest."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How clients and replication share links."""

    contention: Contention = Contention.PROPORTIONAL
    client_connections: int = 64
    """Client connections per link, >= 1; only for `CONNECTIONS`."""
    fetcher_rate: BytesPerSecond | None = None
    """Most bytes/s that one broker's fetchers copy from one leader, > 0; None: only the links limit them."""


@dataclass(frozen=True, slots=True)
class TrafficStep:
    """The client load of one broker from a point in time on."""

    at_seconds: float
    """Start, in seconds of the script's time, >= 0."""
    outbound: BytesPerSecond
    """Rate at which clients read from the broker, bytes/s, >= 0."""
    inbound: BytesPerSecond
    """Rate at which clients write to the broker, bytes/s, >= 0."""

    def of(self, role: ReplicaRole) -> BytesPerSecond:
        """The client load in the direction that a role uses: a leader sends, a follower receives."""
        return self.outbound if role is ReplicaRole.LEADER else self.inbound


@dataclass(frozen=True, slots=True)
class ClientTraffic:
    """The client load of one broker over time: constant between steps, 0 before the first one."""

    steps: tuple[TrafficStep, ...] = ()
    """Ascending by time; the last one has no end."""

    def __post_init__(self) -> None:
        times = [step.at_seconds for step in self.steps]
        if times != sorted(set(times)) or any(t < 0 for t in times):
            raise Invalid(f"traffic steps begin at {times}: times must be >= 0 and ascending; order the steps")
        if any(step.outbound < 0 or step.inbound < 0 for step in self.steps):
            raise Invalid("a traffic step has a negative rate: use 0 bytes/s for no traffic")

    @staticmethod
    def constant(outbound: BytesPerSecond, inbound: BytesPerSecond) -> ClientTraffic:
        return ClientTraffic((TrafficStep(0, outbound, inbound),))

    def pieces(self, role: ReplicaRole, start: float) -> Iterator[tuple[float, BytesPerSecond]]:
        """Yield (end, rate) of each constant piece from `start` on; the last end is infinite."""
        first = bisect_right(self.steps, start, key=attrgetter("at_seconds"))
        rate = self.steps[first - 1].of(role) if first else 0
        for number in range(first, len(self.steps)):
            step = self.steps[number]
            yield step.at_seconds, rate
            rate = step.of(role)
        yield math.inf, rate

    def spans(self, role: ReplicaRole) -> list[tuple[float, BytesPerSecond]]:
        """Return (seconds, rate) of each constant piece; the last one, of 0 s, continues without end.

        >>> ClientTraffic((TrafficStep(0, 0, 20), TrafficStep(10, 0, 60))).spans(ReplicaRole.FOLLOWER)
        [(10.0, 20), (0.0, 60)]
        """
        spans, at = [], 0.0
        for end, rate in self.pieces(role, at):
            spans.append((end - at if math.isfinite(end) else 0.0, rate))
            at = end
        return spans

    def rate(self, role: ReplicaRole, at: float) -> BytesPerSecond:
        return next(self.pieces(role, at))[1]

    def bytes_between(self, role: ReplicaRole, start: float, end: float) -> float:
        """Return the bytes that clients offer between two times, in seconds of the script's time.

        >>> doubled = ClientTraffic((TrafficStep(0, 10, 0), TrafficStep(2, 20, 0)))
        >>> doubled.bytes_between(ReplicaRole.LEADER, 1, 4)
        50.0
        """
        if self.steps and start >= self.steps[-1].at_seconds:  # most calls; the loop takes three times as long
            return self.steps[-1].of(role) * (end - start)
        total, at = 0.0, start
        for piece_end, rate in self.pieces(role, start):
            until = min(piece_end, end)
            total += rate * (until - at)
            at = until
            if at >= end:
                break
        return total


def fair_shares(wants: Sequence[float], constraints: Sequence[Constraint]) -> list[float]:
    """Return the max-min fair share of each stream: a share can only grow at the cost of a smaller or equal one.

    All shares grow at the same pace. A stream stops when its demand is met or when one of its constraints is
    exhausted.

    >>> fair_shares([100, 100, 10], [(60, [0, 1, 2]), (20, [0])])
    [20.0, 30.0, 10.0]
    """
    shares = [0.0] * len(wants)
    growing = {i for i, want in enumerate(wants) if want > 0}
    if len(growing) == 1:
        (i,) = growing
        allowed = min((limit for limit, members in constraints if i in members), default=math.inf)
        shares[i] = max(float(min(wants[i], allowed)), 0.0)
        return shares
    remaining = [max(limit, 0.0) for limit, _ in constraints]
    while growing:
        counts = [len(growing.intersection(members)) for _, members in constraints]
        steps = [remaining[c] / n if n else math.inf for c, n in enumerate(counts)]
        grow = min(math.inf, *steps, *(wants[i] - shares[i] for i in growing))
        full = {i for c, (_, members) in enumerate(constraints) if steps[c] <= grow for i in members}
        remaining = [max(limit - grow * n, 0.0) for limit, n in zip(remaining, counts, strict=True)]
        satisfied = {i for i in growing if wants[i] - shares[i] <= grow}
        for i in growing:
            shares[i] = float(wants[i]) if i in satisfied else shares[i] + grow
        growing -= full | satisfied
    return shares


@dataclass(slots=True)
class _MeterSample:
    start_ms: int
    last_event_ms: int
    amount: float = 0.0

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_event_ms = now_ms
        self.amount = 0.0


class ThrottleMeter:
    """The throttle meter of one broker in one role: bytes in the last 11 samples of 1 s, and the time they cover.

    The covered time is at least one sample and grows to 11 or 12 s. So a meter without traffic starts with a window
    of 1 s, and budget that was not spent within the window can be spent at once. Samples expire 11 s after their
    last event.
    """

    SAMPLES = 11
    """`replication.quota.window.num`."""
    SAMPLE_MS = 1000
    """`replication.quota.window.size.seconds`, in milliseconds."""

    def __init__(self) -> None:
        self._samples: list[_MeterSample] = []
        self._current = 0

    def record(self, now_ms: int, amount: float) -> None:
        """Count bytes at a time; times never decrease."""
        if not self._samples:
            self._samples.append(_MeterSample(now_ms, now_ms))
        if now_ms - self._samples[self._current].start_ms >= self.SAMPLE_MS:
            self._advance(now_ms)
        sample = self._samples[self._current]
        sample.amount += amount
        sample.last_event_ms = now_ms

    def available_rate(self, now_ms: int, rate: BytesPerSecond) -> float:
        """Return the bytes that may pass before the measured rate reaches `rate`; negative while it exceeds `rate`.

        The measured rate is the bytes in the window / the seconds that the window covers.
        """
        if not self._samples:
            self._samples.append(_MeterSample(now_ms, now_ms))
        start_ms, amount = now_ms, 0.0
        for sample in self._samples:
            if now_ms - sample.last_event_ms >= self.SAMPLES * self.SAMPLE_MS:
                sample.reset(now_ms)
            if sample.start_ms < start_ms:
                start_ms = sample.start_ms
            amount += sample.amount
        return rate * max(now_ms - start_ms, self.SAMPLE_MS) / 1000 - amount

    def _advance(self, now_ms: int) -> None:
        # One sample more than the window holds: the oldest one still overlaps the window for a while.
        self._current = (self._current + 1) % (self.SAMPLES + 1)
        if self._current == len(self._samples):
            self._samples.append(_MeterSample(now_ms, now_ms))
        self._samples[self._current].reset(now_ms)


class SimulatedLinkSide:
    """One direction of a broker's link, with the throttle of the role that uses it.

    Leaders send, followers receive. All counters are cumulative bytes.
    """

    def __init__(self, role: ReplicaRole, capacity: BytesPerSecond, traffic: ClientTraffic) -> None:
        self.role = role
        self.capacity = capacity
        self.traffic = traffic
        self.rate: BytesPerSecond | None = None
        """The throttle in bytes/s; None: unlimited."""
        self.meter = ThrottleMeter()
        self.client_offered = 0.0
        """Bytes that clients tried to transfer."""
        self.client_carried = 0.0
        self.client_deferred = 0.0
        """Bytes that did not fit when clients offered them: the sum of all increases of the backlog."""
        self.replication = 0.0
        """Bytes that fetchers transferred, for in-sync and out-of-sync replicas."""
        self._arriving = 0.0
        self._in_step = 0.0

    @property
    def client_backlog(self) -> float:
        """Bytes offered and not yet carried."""
        return self.client_offered - self.client_carried

    @property
    def total(self) -> int:
        """The counter of the network interface: clients and replication."""
        return round(self.client_carried + self.replication)

    def offer(self, amount: float) -> None:
        """Begin a step in which clients offer `amount` bytes."""
        self._arriving = amount
        self._in_step = 0.0

    def replication_limit(self, demanded: float, connections: int, seconds: float, sharing: Sharing) -> float:
        """Return how many bytes replication may carry in this step.

        Args:
            demanded: bytes that replication would carry without clients.
            connections: number of replication connections.
            seconds: length of the step.
            sharing: how clients and replication share the link.
        """
        limit = self.capacity * seconds
        if sharing.contention is Contention.PROPORTIONAL:
            total = self._arriving + demanded
            return limit - self._arriving if total <= limit else limit * demanded / total
        free = max(limit - self._arriving - self.client_backlog, 0.0)
        if sharing.contention is Contention.CLIENTS_FIRST:
            return free
        return max(free, limit * connections / (connections + sharing.client_connections))

    def carry(self, amount: float) -> None:
        """Carry `amount` bytes of replication in this step."""
        self._in_step += amount
        self.replication += amount

    def serve_clients(self, seconds: float) -> None:
        """Carry client bytes on what replication left free, the backlog first."""
        old_backlog = self.client_backlog
        free = max(self.capacity * seconds - self._in_step, 0.0)
        self.client_offered += self._arriving
        self.client_carried += min(old_backlog + self._arriving, free)
        self.client_deferred += max(self.client_backlog - old_backlog, 0.0)

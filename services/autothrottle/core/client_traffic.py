"""What clients offer to a simulated broker over time: a script of steps. The type to know is `ClientTraffic`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.loads import BytesPerSecond


@dataclass(frozen=True, slots=True)
class TrafficStep:
    """What clients offer to one broker from a moment on."""

    at_seconds: float
    """Begin, in seconds of the script's time, >= 0."""
    tx: BytesPerSecond
    """What the broker is to send to clients, bytes/s, >= 0."""
    rx: BytesPerSecond
    """What clients send to the broker, bytes/s, >= 0."""

    def of(self, role: ReplicaRole) -> BytesPerSecond:
        """The direction that a role shares with clients: a leader sends, a follower receives."""
        return self.tx if role is ReplicaRole.LEADER else self.rx


@dataclass(frozen=True, slots=True)
class ClientTraffic:
    """What clients offer to one broker over time: constant between steps, nothing before the first one."""

    steps: tuple[TrafficStep, ...] = ()
    """Ascending by time; the last one holds for ever."""

    def __post_init__(self) -> None:
        times = [step.at_seconds for step in self.steps]
        if times != sorted(set(times)) or any(t < 0 for t in times):
            raise Invalid(f"traffic steps begin at {times}: they must be >= 0 and ascending; order them")
        if any(step.tx < 0 or step.rx < 0 for step in self.steps):
            raise Invalid("a traffic step offers less than 0 bytes/s: use 0 for no traffic")

    @staticmethod
    def constant(tx: BytesPerSecond, rx: BytesPerSecond) -> ClientTraffic:
        """Traffic that never changes."""
        return ClientTraffic((TrafficStep(0, tx, rx),))

    def pieces(self, role: ReplicaRole, start: float) -> Iterator[tuple[float, BytesPerSecond]]:
        """Yield (end, rate) of each constant piece from `start` on; the last end is infinite."""
        rate = 0
        for step in self.steps:
            if step.at_seconds > start:
                yield step.at_seconds, rate
            rate = step.of(role)
        yield math.inf, rate

    def rate(self, role: ReplicaRole, at: float) -> BytesPerSecond:
        """Return what clients offer at a moment."""
        return next(self.pieces(role, at))[1]

    def bytes_between(self, role: ReplicaRole, start: float, end: float) -> float:
        """Return the bytes that clients offer from start to end.

        >>> doubled = ClientTraffic((TrafficStep(0, 10, 0), TrafficStep(2, 20, 0)))
        >>> doubled.bytes_between(ReplicaRole.LEADER, 1, 4)
        50.0
        """
        total, at = 0.0, start
        for piece_end, rate in self.pieces(role, start):
            until = min(piece_end, end)
            total += rate * (until - at)
            at = until
            if at >= end:
                break
        return total

    def seconds_to_carry(self, amount: float, capacity: BytesPerSecond, role: ReplicaRole, start: float = 0.0) -> float:
        """Return the first T with `integral of max(capacity - clients, 0) from start to start + T >= amount`.

        Infinite when clients leave nothing free for ever.

        >>> half = ClientTraffic((TrafficStep(0, 0, 20), TrafficStep(10, 0, 60)))
        >>> half.seconds_to_carry(1200, 100, ReplicaRole.FOLLOWER)
        20.0
        """
        if amount <= 0:
            return 0.0
        left, at = amount, start
        for end, rate in self.pieces(role, start):
            headroom = max(capacity - rate, 0)
            if headroom and at + left / headroom <= end:
                return at + left / headroom - start
            left -= headroom * (end - at) if headroom else 0
            at = end
        return math.inf

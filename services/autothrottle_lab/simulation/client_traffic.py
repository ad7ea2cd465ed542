"""The client load of a simulated broker over time, as a script of steps. The type to know is `ClientTraffic`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.units import BytesPerSecond


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
        rate = 0
        for step in self.steps:
            if step.at_seconds > start:
                yield step.at_seconds, rate
            rate = step.of(role)
        yield math.inf, rate

    def spans(self, role: ReplicaRole, start: float = 0.0) -> list[tuple[float, BytesPerSecond]]:
        """Return (seconds, rate) of each constant piece from `start` on; the last one, of 0 s, continues without end.

        >>> ClientTraffic((TrafficStep(0, 0, 20), TrafficStep(10, 0, 60))).spans(ReplicaRole.FOLLOWER)
        [(10.0, 20), (0.0, 60)]
        """
        spans, at = [], start
        for end, rate in self.pieces(role, start):
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

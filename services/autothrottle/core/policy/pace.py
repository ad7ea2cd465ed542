"""How fast each end of a move has to be, so that the whole of it ends as soon as its narrowest place allows.

Everything is in bytes and seconds, as floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import Flow
from autothrottle.core.loads import Port

_LEAST_SHARE = 0.05
"""Of its headroom that a port is believed to have for what is left, however fast that grows."""

_NARROW = 0.8
"""Share of the longest wait from which on a port is one that the whole move waits for."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is to go through one port."""

    left: float
    """Bytes, >= 0."""
    headroom: float
    """Bytes/s that replication may count on in the long run, >= 0."""
    grown: float = 0.0
    """Bytes/s that come on top while it moves."""
    least: float = 0.0
    """Bytes/s of headroom below which the others wait the less for it: see `needs`."""

    @property
    def seconds(self) -> float:
        """How long the port alone takes; more headroom never makes it longer.

        >>> Work(left=900.0, headroom=100.0, grown=10.0).seconds
        10.0
        """
        return self.left / max(self.headroom - self.grown, _LEAST_SHARE * self.headroom, 1.0)

    @property
    def waited_for(self) -> float:
        """How long the others wait for it, seconds: hardly at all where clients leave it next to nothing."""
        return self.seconds * (min(self.headroom / self.least, 1.0) ** 2 if self.least > 0 else 1.0)


def narrowest(ports: Mapping[Port, Work]) -> frozenset[Port]:
    """Return the ports that the whole move waits for: what they do not carry now comes at its end."""
    whole = _longest_wait(ports)
    return frozenset(port for port, work in ports.items() if whole and work.waited_for >= _NARROW * whole)


def needs(flows: Collection[tuple[Flow, float]], ports: Mapping[Port, Work]) -> dict[Port, float]:
    """Return what each port needs, bytes/s, so that no flow is the reason for a late end.

    Every flow may take as long as the whole move: what is not narrow leaves the rest to clients. But one port whose
    clients leave it next to nothing does not slow the others down: below `least` they wait for it less and less. What
    such a port cannot take its leaders do not need. And what the whole move waits for is not crowded out at its other
    end: see `_beside`.

    Args:
        flows: each with the bytes that it has left.
        ports: those that take part; a flow with an end that is not among them counts by its other end.
    """
    whole = _longest_wait(ports)
    slow = {port: work.seconds for port, work in ports.items() if work.seconds > whole}
    wanted = {port: work.left / whole if whole else 0.0 for port, work in ports.items()}
    for flow, left in flows if slow and whole else ():
        seconds = max(slow.get(port, 0.0) for port in flow.ports)
        for port in flow.ports if seconds else ():
            if port in wanted and port not in slow:
                wanted[port] -= left / whole - left / seconds
    beside = _beside(flows, ports, whole) if whole else {}
    return {
        port: max(rate, min(beside.get(port, 0.0), ports[port].headroom)) + ports[port].grown
        for port, rate in wanted.items()
    }


def _longest_wait(ports: Mapping[Port, Work]) -> float:
    return max((work.waited_for for work in ports.values()), default=0.0)


def _beside(flows: Collection[tuple[Flow, float]], ports: Mapping[Port, Work], whole: float) -> Mapping[Port, float]:
    """Return what a port needs for the flows of the narrowest ports, bytes/s.

    Kafka lets flows share a port evenly, whatever each has left: one that the move waits for gets no more than the
    small ones beside it. It takes as many times what that flow needs as there are flows.
    """
    narrow = narrowest(ports)
    senders = {broker_id for broker_id, role in narrow if role is ReplicaRole.LEADER}
    receivers = {broker_id for broker_id, role in narrow if role is ReplicaRole.FOLLOWER}
    into: dict[int, float] = {}
    out: dict[int, float] = {}
    for (leader, follower), left in flows:
        if leader in senders and left > into.get(follower, 0.0):
            into[follower] = left
        if follower in receivers and left > out.get(leader, 0.0):
            out[leader] = left
    arriving = Counter(flow.follower for flow, left in flows if left > 0 and flow.follower in into)
    leaving = Counter(flow.leader for flow, left in flows if left > 0 and flow.leader in out)
    found = {(b, ReplicaRole.FOLLOWER): arriving[b] * left / whole for b, left in into.items()}
    return found | {(b, ReplicaRole.LEADER): leaving[b] * left / whole for b, left in out.items()}

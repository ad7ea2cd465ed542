"""How fast each end of a move has to be, so that the whole of it ends as soon as its narrowest place allows.

Everything is in bytes and seconds, as floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import Flow
from autothrottle.core.history import Port

_LEAST_SHARE = 0.05
"""Of its headroom that a port is believed to have for what is left, however fast that grows."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is to go through one port."""

    left: float
    """Bytes, >= 0."""
    headroom: float
    """Bytes/s that replication may count on in the long run, >= 0."""
    grown: float = 0.0
    """Bytes/s that come on top while it moves."""

    @property
    def seconds(self) -> float:
        """How long the port alone takes; more headroom never makes it longer.

        >>> Work(left=900.0, headroom=100.0, grown=10.0).seconds
        10.0
        """
        return self.left / max(self.headroom - self.grown, _LEAST_SHARE * self.headroom, 1.0)


def makespan_seconds(ports: Iterable[Work]) -> float:
    """Return how long a move takes: as long as its slowest port."""
    return max((work.seconds for work in ports), default=0.0)


def needs(flows: Iterable[tuple[Flow, float]], ports: Mapping[Port, Work], patience: float) -> dict[Port, float]:
    """Return what each port needs, bytes/s, so that no flow is the reason for a late end.

    A flow may take `patience` times as long as the slower one of its ends, and not longer than the whole move. So a
    leader is not cut for the slowest of its destinations: what goes to the others still counts in full.

    Args:
        flows: each with the bytes that it has left.
        ports: those that take part; a flow with an end that is not among them counts by its other end.
        patience: >= 1.
    """
    out = {b: work.seconds * patience for (b, role), work in ports.items() if role is ReplicaRole.LEADER}
    into = {b: work.seconds * patience for (b, role), work in ports.items() if role is ReplicaRole.FOLLOWER}
    whole = makespan_seconds(ports.values())
    leaving, coming = dict.fromkeys(out, 0.0), dict.fromkeys(into, 0.0)
    for flow, left in flows:
        seconds = min(max(out.get(flow.leader, 0.0), into.get(flow.follower, 0.0)), whole)
        if seconds <= 0.0:
            continue
        if flow.leader in leaving:
            leaving[flow.leader] += left / seconds
        if flow.follower in coming:
            coming[flow.follower] += left / seconds
    found = {(b, ReplicaRole.LEADER): rate for b, rate in leaving.items()}
    found |= {(b, ReplicaRole.FOLLOWER): rate for b, rate in coming.items()}
    return {port: rate + ports[port].grown for port, rate in found.items()}

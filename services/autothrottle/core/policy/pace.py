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


def needs(flows: Iterable[tuple[Flow, float]], ports: Mapping[Port, Work]) -> dict[Port, float]:
    """Return what each port needs, bytes/s, so that no flow is the reason for a late end.

    Every flow may take as long as the whole move: what is not narrow leaves the rest to clients. But one port whose
    clients leave it next to nothing does not slow the others down: below `least` they wait for it less and less. What
    such a port cannot take its leaders do not need.

    Args:
        flows: each with the bytes that it has left.
        ports: those that take part; a flow with an end that is not among them counts by its other end.
    """
    whole = max((work.waited_for for work in ports.values()), default=0.0)
    slow = {port: work.seconds for port, work in ports.items() if work.seconds > whole}
    wanted = {port: work.left / whole if whole else 0.0 for port, work in ports.items()}
    for flow, left in flows if slow else ():
        source, target = (flow.leader, ReplicaRole.LEADER), (flow.follower, ReplicaRole.FOLLOWER)
        seconds = max(slow.get(source, 0.0), slow.get(target, 0.0))
        for port in (source, target) if seconds else ():
            if port in wanted and port not in slow:
                wanted[port] -= left / whole - left / seconds
    return {port: max(rate, 0.0) + ports[port].grown for port, rate in wanted.items()}

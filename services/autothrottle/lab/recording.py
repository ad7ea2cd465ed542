"""What a recovery in virtual time did to the move, the links and the clients, second by second.

Here it is noted and added up; how it is shown is in `simulate`. The types to know are `Recording` and `Outcome`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autothrottle.core.bound import Pieces, PortDemand, bound_seconds, budget
from autothrottle.core.changes import Change
from autothrottle.core.configs import ReplicaRole, ResourceType
from autothrottle.core.flows import Flow, ports_of
from autothrottle.core.loads import Port
from autothrottle.core.simulation import Cluster
from autothrottle.lab.virtual import VirtualMove, VirtualRecovery, VirtualScenario

FULL = 0.999
"""Share of its capacity at which a link is saturated."""


@dataclass(frozen=True, slots=True)
class Second:
    """One port in about one second; rates are bytes/s."""

    at: float
    """Its end, seconds since the start of the move."""
    carried: float
    """Clients and replication."""
    offered: float
    """What clients wanted to be carried."""
    throttle: int | None
    """None: nothing that limits."""


@dataclass(frozen=True, slots=True)
class PortOutcome:
    """What came of one port that took part in the move."""

    capacity: int
    """Bytes/s."""
    moved: float
    """Bytes that replication carried."""
    offered: float
    """Bytes that clients offered."""
    deferred: float
    """Bytes of these that had to wait because of the move."""
    seconds: Sequence[Second]

    @property
    def saturated_seconds(self) -> int:
        """How many seconds the link was full."""
        return sum(one.carried >= FULL * self.capacity for one in self.seconds)

    @property
    def throttles(self) -> Sequence[int]:
        """The rates that stood, bytes/s; empty: never one."""
        return [one.throttle for one in self.seconds if one.throttle is not None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a move."""

    seconds: float
    """How long it took."""
    bound_seconds: float
    """How long it takes at least when every port keeps to its share of the headroom; infinite: it never ends so.

    Nothing that happened to brokers is in it.
    """
    ports: Mapping[Port, PortOutcome]
    """Those that took part."""
    rate_writes: Mapping[int, int]
    """Broker id -> how often a rate of it was written; both of a broker at once count as one."""
    list_writes: int
    """How often a topic's lists were written."""
    cycles: int
    events: int = 0
    """How much was to happen to brokers meanwhile."""

    @property
    def saturated_seconds(self) -> int:
        """Port-seconds."""
        return sum(port.saturated_seconds for port in self.ports.values())

    @property
    def deferred_percent(self) -> float:
        """Of what clients offered to these ports."""
        offered = sum(port.offered for port in self.ports.values())
        return 100 * sum(port.deferred for port in self.ports.values()) / offered if offered else 0.0


@dataclass(slots=True)
class _Counters:
    """The counters of one port when the move started and when they were last read."""

    moved: float
    offered: float
    deferred: float
    carried: int
    offered_then: float
    seconds: list[Second] = field(default_factory=list)


class Recording:
    """Watches one recovery; give `watch` to its `run`."""

    def __init__(self, scenario: VirtualScenario) -> None:
        self._scenario = scenario
        self._ports: dict[Port, _Counters] = {}
        self._took_part = ports_of({flow for move in scenario.moves for flow in scenario.flows(move)})
        self._at = 0.0

    def watch(self, recovery: VirtualRecovery) -> None:
        """Note the last second; called first at the start of the move."""
        at = recovery.brokers.now - recovery.start
        if not self._ports:
            self._ports = {
                key: _Counters(p.replication, p.client_offered, p.client_deferred, p.total, p.client_offered)
                for key in self._watched()
                for p in [recovery.brokers.brokers[key[0]].ports[key[1]]]
            }
            return
        for (broker_id, role), noted in self._ports.items():
            port, past = recovery.brokers.brokers[broker_id].ports[role], at - self._at
            carried, offered = (port.total - noted.carried) / past, (port.client_offered - noted.offered_then) / past
            noted.seconds.append(Second(at, carried, offered, port.rate))
            noted.carried, noted.offered_then = port.total, port.client_offered
        self._at = at
        if self._scenario.events:
            self._took_part |= _moving_through(recovery.brokers)

    def _watched(self) -> list[Port]:
        """Ports that take part, or may when another broker leads."""
        if not self._scenario.events:
            return sorted(self._took_part, key=_by_broker)
        return sorted(((b, role) for b in self._scenario.brokers for role in ReplicaRole), key=_by_broker)

    def outcome(self, recovery: VirtualRecovery, took: float) -> Outcome:
        """Return what came of it, once it has ended after so many seconds."""
        without = _deferred_without(self._scenario, took)
        ports = {}
        for key, noted in self._ports.items():
            if key not in self._took_part:
                continue
            port = recovery.brokers.brokers[key[0]].ports[key[1]]
            ports[key] = PortOutcome(
                capacity=port.capacity,
                moved=port.replication - noted.moved,
                offered=port.client_offered - noted.offered,
                deferred=max(port.client_deferred - noted.deferred - without[key], 0.0),
                seconds=noted.seconds,
            )
        written = [change for change in recovery.kafka.writes if change.edits]
        return Outcome(
            seconds=took,
            bound_seconds=bound(self._scenario),
            ports=ports,
            rate_writes=_rate_writes(written),
            list_writes=sum(change.resource.type is ResourceType.TOPIC for change in written),
            cycles=recovery.cycles,
            events=len(self._scenario.events),
        )


def bound(scenario: VirtualScenario) -> float:
    """Return how long the move takes at least, seconds: see `core.bound`; with `traffic_waits` only.

    What in-sync followers copy counts as the clients', as it does on real links.
    """
    flows: dict[Flow, _Copied] = {}
    ports: dict[Port, _Copied] = {}
    for move in scenario.moves:
        for flow in scenario.flows(move):
            flows[flow] = flows.get(flow, _NOTHING).plus(move)
            for port in flow.ports:
                ports[port] = ports.get(port, _NOTHING).plus(move)
    in_sync, fetcher_rate = _in_sync_rates(scenario), scenario.sharing.fetcher_rate
    demands = [one.demand(_budget(scenario, port, in_sync.get(port, 0.0))) for port, one in ports.items()]
    if fetcher_rate is not None:
        demands += [one.demand([(0.0, fetcher_rate)]) for one in flows.values()]
    return bound_seconds(demands)


class _Copied(NamedTuple):
    """What is copied by one flow or through one port."""

    size: float
    growth: float

    def plus(self, move: VirtualMove) -> _Copied:
        return _Copied(self.size + move.size, self.growth + move.produce_rate)

    def demand(self, allowed: Pieces) -> PortDemand:
        return PortDemand(self.size, allowed, self.growth)


_NOTHING = _Copied(0.0, 0.0)


def _moving_through(cluster: Cluster) -> frozenset[Port]:
    """Ports through which something is copied that moves."""
    partitions = map(cluster.partitions.__getitem__, cluster.moving())
    flows = {Flow(one.leader, follower) for one in partitions for follower in one.adding if follower not in one.isr}
    return ports_of({flow for flow in flows if cluster.is_up(flow.leader) and cluster.is_up(flow.follower)})


def _by_broker(port: Port) -> tuple[int, str]:
    return port[0], port[1].value


def _in_sync_rates(scenario: VirtualScenario) -> dict[Port, float]:
    """What in-sync followers copy through each port, bytes/s."""
    rates: dict[Port, float] = {}
    for move in scenario.moves:
        leader = scenario.leader(move)
        for follower in scenario.alive(move):
            if follower != leader:
                for port in Flow(leader, follower).ports:
                    rates[port] = rates.get(port, 0.0) + move.produce_rate
    return rates


def _budget(scenario: VirtualScenario, key: Port, in_sync: float) -> list[tuple[float, float]]:
    broker_id, role = key
    broker, limits, pieces, at = scenario.brokers[broker_id], scenario.limits, [], 0.0
    for end, rate in broker.traffic.pieces(role, 0.0):
        allowed = budget(broker.capacity.of(role), rate + in_sync, limits.max_ratio(role), limits.min_rate)
        pieces.append((end - at, allowed))
        at = end
    return [(seconds if math.isfinite(seconds) else 0.0, rate) for seconds, rate in pieces]


def _deferred_without(scenario: VirtualScenario, seconds: float) -> dict[Port, float]:
    """What of the clients' bytes has to wait on each port when nothing moves."""
    whole = scenario.cluster()
    still = Cluster(list(whole.brokers.values()), list(whole.partitions.values()), sharing=scenario.sharing)
    to_come = deque(scenario.events)
    while still.now < seconds:
        while to_come and still.now >= to_come[0].at.total_seconds():
            to_come.popleft().play(still)
        still.step(scenario.step.total_seconds())
    return {(b, role): port.client_deferred for b, one in still.brokers.items() for role, port in one.ports.items()}


def _rate_writes(written: Sequence[Change]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for change in written:
        if change.resource.type is ResourceType.BROKER:
            counts[change.resource.broker_id] = counts.get(change.resource.broker_id, 0) + 1
    return counts

"""Measurements of a recovery in virtual time, second by second: the reassignment, the links and the clients.

This module collects and adds them up; `command` prints them. The types to know are `Recording` and `SimulationOutcome`.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from autothrottle.core.cluster.configs import ReplicaRole, ResourceType
from autothrottle.core.cluster.flows import Flow, LinkSide, link_sides_of
from autothrottle.core.scoring.score import LinkSideDemand, Pieces, available_rate, bound_seconds
from autothrottle_lab.simulate.virtual_time import VirtualReassignment, VirtualRecovery, VirtualScenario
from autothrottle_lab.simulation.cluster import Cluster
from autothrottle_lab.simulation.link import SimulatedLinkSide

FULL = 0.999
"""Share of its capacity from which on a link counts as saturated."""


@dataclass(frozen=True, slots=True)
class Second:
    """One link side in about one second; rates are bytes/s."""

    at: float
    """End of this second, in seconds since the start of the reassignment."""
    carried: float
    """Rate of clients and replication together."""
    copied: float
    """Rate of replication."""
    offered: float
    """Rate that clients demanded."""
    throttle: int | None
    """None: not throttled."""


@dataclass(frozen=True, slots=True)
class LinkSideOutcome:
    """The totals of one link side that took part in the reassignment."""

    capacity: int
    """Bytes/s."""
    copied: float
    """Bytes of replication."""
    offered: float
    """Bytes that clients offered."""
    deferred: float
    """The part of `offered` that had to wait because of the reassignment."""
    seconds: Sequence[Second]

    @property
    def saturated_seconds(self) -> int:
        """Seconds in which the link side was saturated."""
        return sum(second.carried >= FULL * self.capacity for second in self.seconds)

    @property
    def throttles(self) -> Sequence[int]:
        """Its throttles, one per throttled second, bytes/s; empty: never throttled."""
        return [second.throttle for second in self.seconds if second.throttle is not None]


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The measurements of a whole reassignment."""

    seconds: float
    """Duration of the reassignment."""
    bound_seconds: float
    """Shortest possible duration when every link side keeps to its share of the headroom; infinite: it never ends.

    It ignores the scenario's broker events.
    """
    sides: Mapping[LinkSide, LinkSideOutcome]
    """The link sides that took part."""
    rate_writes: Mapping[int, int]
    """Broker id -> number of config writes with a throttle; both throttles in one write count once."""
    list_writes: int
    """Number of config writes with lists of throttled replicas."""
    cycles: int
    events: int = 0
    """Number of broker events in the scenario."""

    @property
    def saturated_seconds(self) -> int:
        """Saturated seconds, added up over all link sides."""
        return sum(side.saturated_seconds for side in self.sides.values())

    @property
    def deferred_percent(self) -> float:
        """Deferred bytes in percent of the bytes that clients offered to these link sides."""
        offered = sum(side.offered for side in self.sides.values())
        return 100 * sum(side.deferred for side in self.sides.values()) / offered if offered else 0.0


class Recording:
    """Records one recovery; pass `watch` to its `run`."""

    def __init__(self, scenario: VirtualScenario) -> None:
        self._scenario = scenario
        self._took_part = link_sides_of(
            {flow for reassignment in scenario.reassignments for flow in scenario.flows(reassignment)}
        )
        # After a leader change any link side may take part.
        watched = {(b, role) for b in scenario.brokers for role in ReplicaRole} if scenario.events else self._took_part
        self._seconds: dict[LinkSide, list[Second]] = {key: [] for key in sorted(watched, key=_by_broker)}
        self._start: Mapping[LinkSide, SimulatedLinkSide] = {}
        """The counters of each link side at the start of the reassignment."""
        self._last: Mapping[LinkSide, SimulatedLinkSide] = {}
        self._at = 0.0

    def watch(self, recovery: VirtualRecovery) -> None:
        """Record the last second; the first call is at the start of the reassignment."""
        at = recovery.cluster.now - recovery.start
        sides = {(b, role): copy(recovery.cluster.brokers[b].sides[role]) for b, role in self._seconds}
        self._start = self._start or sides
        for key, last in self._last.items():
            side, past = sides[key], at - self._at
            carried, offered = (side.total - last.total) / past, (side.client_offered - last.client_offered) / past
            copied = (side.replication - last.replication) / past
            self._seconds[key].append(Second(at, carried, copied, offered, side.rate))
        self._at, self._last = at, sides
        if self._scenario.events:
            self._took_part |= _sides_in_use(recovery.cluster)

    def outcome(self, recovery: VirtualRecovery, took: float) -> SimulationOutcome:
        """Return the measurements of a recovery that ended after `took` seconds."""
        without = _deferred_without(self._scenario, took)
        sides = {}
        for key, seconds in self._seconds.items():
            if key not in self._took_part:
                continue
            side, start = recovery.cluster.brokers[key[0]].sides[key[1]], self._start[key]
            sides[key] = LinkSideOutcome(
                capacity=side.capacity,
                copied=side.replication - start.replication,
                offered=side.client_offered - start.client_offered,
                deferred=max(side.client_deferred - start.client_deferred - without[key], 0.0),
                seconds=seconds,
            )
        written = [change for change in recovery.kafka.writes if change.edits]
        return SimulationOutcome(
            seconds=took,
            bound_seconds=bound(self._scenario),
            sides=sides,
            rate_writes=Counter(c.resource.broker_id for c in written if c.resource.type is ResourceType.BROKER),
            list_writes=sum(change.resource.type is ResourceType.TOPIC for change in written),
            cycles=recovery.cycles,
            events=len(self._scenario.events),
        )


def bound(scenario: VirtualScenario) -> float:
    """Return the shortest possible duration of the reassignment in seconds, see `core.scoring.score`.

    The scenario must have `traffic_waits`. Bytes that in-sync followers copy count as client load, as on real links.
    """
    flows: dict[Flow, list[VirtualReassignment]] = defaultdict(list)
    sides: dict[LinkSide, list[VirtualReassignment]] = defaultdict(list)
    for reassignment in scenario.reassignments:
        for flow in scenario.flows(reassignment):
            flows[flow].append(reassignment)
            for side in flow.sides:
                sides[side].append(reassignment)
    in_sync, fetcher_rate = _in_sync_rates(scenario), scenario.sharing.fetcher_rate
    demands = [_demand(copied, _available_rate(scenario, side, in_sync[side])) for side, copied in sides.items()]
    if fetcher_rate is not None:
        demands += [_demand(copied, [(0.0, fetcher_rate)]) for copied in flows.values()]
    return bound_seconds(demands)


def _demand(copied: Sequence[VirtualReassignment], allowed: Pieces) -> LinkSideDemand:
    return LinkSideDemand(
        sum(reassignment.size for reassignment in copied),
        allowed,
        sum(reassignment.produce_rate for reassignment in copied),
    )


def _sides_in_use(cluster: Cluster) -> frozenset[LinkSide]:
    """The link sides through which adding replicas are copied."""
    flows = {
        Flow(assignment.leader, follower)
        for assignment in map(cluster.assignment, cluster.moving())
        for follower in assignment.adding_replicas
        if follower not in assignment.isr
    }
    return link_sides_of({flow for flow in flows if cluster.is_up(flow.leader) and cluster.is_up(flow.follower)})


def _by_broker(side: LinkSide) -> tuple[int, str]:
    return side[0], side[1].value


def _in_sync_rates(scenario: VirtualScenario) -> dict[LinkSide, float]:
    """Link side -> bytes/s that in-sync followers copy through it."""
    rates: dict[LinkSide, float] = defaultdict(float)
    for reassignment in scenario.reassignments:
        leader, *followers = scenario.alive(reassignment)
        for side in (side for follower in followers for side in Flow(leader, follower).sides):
            rates[side] += reassignment.produce_rate
    return rates


def _available_rate(scenario: VirtualScenario, key: LinkSide, in_sync: float) -> list[tuple[float, float]]:
    broker_id, role = key
    broker, limits = scenario.brokers[broker_id], scenario.settings.limits
    return [
        (seconds, available_rate(broker.capacity.of(role), rate + in_sync, limits.max_ratio[role], limits.min_rate))
        for seconds, rate in broker.traffic.spans(role)
    ]


def _deferred_without(scenario: VirtualScenario, seconds: float) -> dict[LinkSide, float]:
    """Link side -> client bytes that are deferred even without a reassignment."""
    idle = replace(scenario, traffic_waits=False).cluster()
    events_left = deque(scenario.events)
    while idle.now < seconds:
        while events_left and idle.now >= events_left[0].at.total_seconds():
            events_left.popleft().play(idle.controller)
        idle.step(scenario.step.total_seconds())
    return {
        (b, role): side.client_deferred for b, broker in idle.brokers.items() for role, side in broker.sides.items()
    }

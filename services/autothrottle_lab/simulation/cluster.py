"""A pure model of a Kafka cluster that copies partitions between brokers under KIP-73 throttles.

`MemoryCluster` is the controller: it has the brokers, replicas, leaders, configs and log sizes. This module has what
moves bytes between them: brokers' links, producers and fetchers. `link` has the links with their client load, and the
meters that slow fetchers down. Time is virtual: only `Cluster.step` advances it. `emulators.kafka` runs the model in a
real ZooKeeper in real time. The type to know is `Cluster`.

How a step divides the links:

1. A stream is the replicas that one broker copies from another one under the same throttles. It demands all bytes that
   these replicas have left to copy. The meters of the link sides that list a stream count its bytes. They delay it only
   if its replicas are out of sync.
2. Streams share links and meters max-min fair.
3. If clients and streams oversubscribe a link, both get less in proportion to their demand, or as `Sharing` says.
   Client bytes that do not fit are deferred: they wait in a backlog, and later steps serve it from free capacity.

Source: KIP-73 (replication quotas), KIP-455 (reassignments).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autothrottle.adapters.memory.kafka import MemoryCluster
from autothrottle.core.cluster.configs import WILDCARD, ConfigResource, ReplicaRole, limiting_rate, parse_replicas
from autothrottle.core.cluster.flows import Flow
from autothrottle.core.cluster.snapshot import NO_LEADER, Assignment, TopicPartition, named
from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import BytesPerSecond
from autothrottle_lab.simulation.link import ClientTraffic, Constraint, Sharing, SimulatedLinkSide, fair_shares

FETCH_BYTES = 1_000_000
"""Bytes by which one fetch may exceed a throttle: Kafka checks before the fetch (`replica.fetch.max.bytes`)."""

_CAUGHT_UP_BYTES = 0.5
"""A replica with fewer bytes left has caught up: the rest is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPartition:
    """A partition when the cluster begins."""

    topic: str
    partition: int
    size: float
    """Bytes in the leader's log."""
    replicas: tuple[int, ...]
    """Broker ids in Kafka's order."""
    isr: tuple[int, ...] = ()
    """Broker ids of the in-sync replicas; empty: all replicas."""
    leader: int | None = None
    """Broker id of the leader, or -1; None: the first in-sync replica."""
    produce_rate: BytesPerSecond = 0
    """Bytes/s appended to the log. It is a part of the leader's inbound client traffic, not added to it."""

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def assignment(self) -> Assignment:
        """The replicas, the ISR and the leader.

        Raises:
            Invalid: there are no replicas, or two on one broker, or the ISR or the leader does not match them.
        """
        isr = self.isr or self.replicas
        leader = (*isr, NO_LEADER)[0] if self.leader is None else self.leader
        if not self.replicas or len(set(self.replicas)) != len(self.replicas):
            raise Invalid(f"replicas {list(self.replicas)} of {named(self.key)}: name at least one broker, each once")
        if not set(isr) <= set(self.replicas) or leader not in (*isr, NO_LEADER):
            raise Invalid(
                f"{named(self.key)}: replicas {list(self.replicas)}, ISR {list(isr)}, leader {leader}: "
                "the ISR must be a subset of the replicas, and the leader must be in the ISR or -1"
            )
        return Assignment(self.replicas, leader, isr)


@dataclass(slots=True)
class SimulatedLog:
    """The log of a partition. `MemoryCluster.log_bytes` has how much of it each replica has."""

    size: float
    """Bytes that the leader has appended."""
    produce_rate: BytesPerSecond
    """Bytes/s that producers append."""


class SimulatedBroker:
    """A broker with a link, clients, and one throttle and meter per role."""

    def __init__(self, broker_id: int, capacity: Capacity, traffic: ClientTraffic | None = None) -> None:
        if broker_id < 0 or capacity.outbound <= 0 or capacity.inbound <= 0:
            raise Invalid(f"broker {broker_id} with {capacity}: the id must be >= 0 and each capacity > 0 bytes/s")
        self.broker_id = broker_id
        self.sides: Mapping[ReplicaRole, SimulatedLinkSide] = {
            role: SimulatedLinkSide(role, capacity.of(role), traffic or ClientTraffic()) for role in ReplicaRole
        }

    @property
    def outbound(self) -> SimulatedLinkSide:
        """The direction that leaders use."""
        return self.sides[ReplicaRole.LEADER]

    @property
    def inbound(self) -> SimulatedLinkSide:
        """The direction that followers use."""
        return self.sides[ReplicaRole.FOLLOWER]


@dataclass(slots=True)
class _FetchGroup:
    """The replicas that one broker copies from another one under the same throttles."""

    flow: Flow
    in_sync: bool
    sides: tuple[tuple[SimulatedLinkSide, bool], ...]
    """The leader's and the follower's link side, each with whether its throttled replicas include these."""
    copies: dict[TopicPartition, float]
    """Partition -> bytes that the follower has: its part of `MemoryCluster.log_bytes`."""
    logs: list[tuple[TopicPartition, SimulatedLog]] = field(default_factory=list)

    def bytes_left(self) -> list[float]:
        """The bytes that the follower still has to copy of each log."""
        copies = self.copies
        return [max(log.size - copies[key], 0.0) for key, log in self.logs]

    def throttled(self) -> bool:
        return any(listed and side.rate is not None for side, listed in self.sides)

    def deliver(self, amount: float, now_ms: int) -> None:
        for side, listed in self.sides:
            side.carry(amount)
            if listed:
                side.meter.record(now_ms, amount)
        bytes_left = self.bytes_left()
        shares = fair_shares(bytes_left, [(amount, range(len(bytes_left)))])
        for (key, _), share in zip(self.logs, shares, strict=True):
            self.copies[key] += share


@dataclass(slots=True)
class _Traffic:
    """What the controller's state lets brokers append and copy, until that state changes."""

    produced: list[tuple[TopicPartition, SimulatedLog, int]] = field(default_factory=list)
    """The logs that producers append to, with their leaders, which run."""
    fetch_groups: dict[object, _FetchGroup] = field(default_factory=dict)
    catching_up: list[tuple[TopicPartition, SimulatedLog, Sequence[int]]] = field(default_factory=list)
    """The partitions with replicas to join the ISR, or in reassignment, with those replicas that can join."""
    moving: tuple[TopicPartition, ...] = ()
    """The partitions in reassignment."""


class Cluster:
    """The links and bytes of a cluster. `step` advances time; `controller` decides who copies what.

    After each change of the controller's state, the next step follows it: throttles apply from the next fetch on, a
    new replica starts empty, and a new leader has the whole log.
    """

    def __init__(
        self,
        brokers: Sequence[SimulatedBroker],
        partitions: Sequence[SimulatedPartition],
        *,
        sharing: Sharing = Sharing(),  # noqa: B008 (frozen)
        script_waits_for_reassignment: bool = False,
    ) -> None:
        """Begin at time 0.

        Args:
            brokers: the brokers that run; a replica on any other broker is on a failed one.
            partitions: all partitions.
            sharing: how clients and replication share a full link.
            script_waits_for_reassignment: hold the client load at its value for 0 s until the first reassignment
                starts, and run the script from there.
        """
        self.brokers: Mapping[int, SimulatedBroker] = {b.broker_id: b for b in brokers}
        self.logs: Mapping[TopicPartition, SimulatedLog] = {
            p.key: SimulatedLog(p.size, p.produce_rate) for p in partitions
        }
        if len(self.brokers) < len(brokers) or len(self.logs) < len(partitions):
            raise Invalid("duplicate broker id or partition: name each once")
        self.controller = MemoryCluster(brokers=self.brokers)
        """The registered brokers, the configs, the replicas of all partitions, and the sizes of the replicas."""
        self.controller.log_bytes = {broker_id: {} for broker_id in self.brokers}
        topics: dict[str, dict[int, Assignment]] = {}
        for partition in partitions:
            assignment = topics.setdefault(partition.topic, {})[partition.partition] = partition.assignment
            for broker_id in self.brokers.keys() & assignment.replicas:
                size = partition.size if broker_id in assignment.isr else 0.0
                self.controller.log_bytes[broker_id][partition.key] = size
        for topic, assignments in topics.items():
            self.controller.add_topic(topic, assignments)
        self.flow_bytes: dict[Flow, float] = {}
        """Flow -> cumulative bytes copied, for in-sync and out-of-sync replicas."""
        self.unthrottled_bytes = 0.0
        """Cumulative bytes that out-of-sync replicas copied while no throttle applied to them."""
        self._sharing = sharing
        self._now_ms = 0
        self._script_start_ms: int | None = None if script_waits_for_reassignment else 0
        self._version = 0
        self._followed: tuple[dict[TopicPartition, Assignment], object, object] = {}, {}, frozenset()
        self._traffic = _Traffic()
        self._follow_controller()

    @property
    def now(self) -> float:
        """Virtual seconds since the cluster began."""
        return self._now_ms / 1000

    def sides(self) -> Iterator[SimulatedLinkSide]:
        """Yield both link sides of every broker."""
        for broker in self.brokers.values():
            yield from broker.sides.values()

    def assignment(self, key: TopicPartition) -> Assignment:
        """Return the replicas of a partition."""
        return self.controller.topics[key[0]][key[1]]

    def moving(self) -> tuple[TopicPartition, ...]:
        """Return the partitions under reassignment."""
        self._follow_controller()
        return self._traffic.moving

    def bytes_left(self) -> int:
        """Return the bytes that all adding replicas still have to copy."""
        self._follow_controller()
        sizes = self.controller.log_bytes
        rows = [(key, self.assignment(key)) for key in self._traffic.moving]
        return round(
            sum(
                max(self.logs[key].size - sizes[b][key], 0.0)
                for key, row in rows
                for b in row.adding_replicas
                if b not in row.isr
            )
        )

    def is_up(self, broker_id: int) -> bool:
        """Return whether the broker exists and runs."""
        return broker_id in self.brokers and broker_id in self.controller.brokers

    def submit_reassignment(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Start to reassign partitions to new replicas: all of them, or none if one target is invalid.

        A change without bytes to copy (removal, new order) completes at once. A new target for a partition under
        reassignment replaces the old target; its original replicas as the target cancel the reassignment.

        Args:
            targets: partition -> broker ids of its new replicas, in order.

        Raises:
            Missing: a partition does not exist.
            Invalid: a target is empty, has a duplicate, or names a broker that neither exists nor has a replica.
        """
        for key, target in targets.items():
            self._check_target(key, target)
        for key, target in targets.items():
            self.controller.submit_reassignment(key[0], {key[1]: target})
            assignment = self.assignment(key)
            if assignment.leader not in (*assignment.replicas, NO_LEADER):  # it was a new replica of the old target
                self.controller.move_leader(
                    *key, next((b for b in assignment.replicas if b in assignment.isr), NO_LEADER)
                )
        self._follow_controller()
        self._update_isr()

    def step(self, seconds: float) -> None:
        """Advance time by whole milliseconds, with constant rates within the step; 0.1 s is a good step.

        Raises:
            Invalid: the step is shorter than a millisecond.
        """
        if round(seconds * 1000) < 1:
            raise Invalid(f"step of {seconds} s is too short: use 0.001 s or more")
        milliseconds = round(seconds * 1000)
        seconds = milliseconds / 1000
        self._follow_controller()
        for key, log, leader in self._traffic.produced:
            log.size += log.produce_rate * seconds
            self.controller.log_bytes[leader][key] = log.size
        # A broker that is down has no clients.
        sides = [side for b, broker in self.brokers.items() if self.is_up(b) for side in broker.sides.values()]
        for side in sides:
            side.offer(self._offered(side, seconds))
        streams = list(self._traffic.fetch_groups.values())
        shares = self._shares(streams, seconds)
        self._now_ms += milliseconds
        for stream, share in zip(streams, shares, strict=True):
            if share > 0:
                self._deliver(stream, share)
        for side in sides:
            side.serve_clients(seconds)
        self._update_isr()

    def _check_target(self, key: TopicPartition, target: Sequence[int]) -> None:
        if key not in self.logs:
            raise Missing(f"partition {named(key)} does not exist: create it before you reassign it")
        broker_ids = {*self.brokers, *self.assignment(key).replicas}
        if not target or len(set(target)) != len(target) or not set(target) <= broker_ids:
            raise Invalid(
                f"{list(target)} as replicas of {named(key)}: name at least one broker of {sorted(broker_ids)}, "
                "each once"
            )

    def _follow_controller(self) -> None:
        """Apply what the controller changed since the last call."""
        if self._version == self.controller.version:
            return
        self._version = self.controller.version
        configs, default = self.controller.configs, self.controller.default_configs
        for broker_id, broker in self.brokers.items():
            config = {**default, **configs.get(ConfigResource.broker(broker_id), {})}
            for role, side in broker.sides.items():
                side.rate = limiting_rate(config.get(role.rate_key, ""))
        lists = {
            (topic, role): configs.get(ConfigResource.topic(topic), {}).get(role.replicas_key, "")
            for topic in self.controller.topics
            for role in ReplicaRole
        }
        assignments = {key: self.assignment(key) for key in self.logs}
        followed = assignments, lists, frozenset(self.controller.brokers)
        if followed == self._followed:
            return
        (earlier, _, _), self._followed = self._followed, followed
        for key, assignment in assignments.items():
            if assignment == (old := earlier.get(key)):
                continue
            for broker_id in (self.brokers.keys() & assignment.replicas) - set((old or assignment).replicas):
                self.controller.log_bytes[broker_id][key] = 0.0
            if assignment.leader in self.brokers:
                self.controller.log_bytes[assignment.leader][key] = self.logs[key].size
        self._traffic = self._new_traffic(assignments, {key: parse_replicas(text) for key, text in lists.items()})
        if self._traffic.moving and self._script_start_ms is None:
            self._script_start_ms = self._now_ms

    def _new_traffic(
        self,
        assignments: Mapping[TopicPartition, Assignment],
        lists: Mapping[tuple[str, ReplicaRole], frozenset[str]],
    ) -> _Traffic:
        traffic = _Traffic(moving=tuple(key for key, assignment in assignments.items() if assignment.moves))
        for key, assignment in assignments.items():
            log, leader, isr = self.logs[key], assignment.leader, assignment.isr
            followers = [b for b in assignment.replicas if b != leader and self.is_up(b)] if self.is_up(leader) else []
            if log.produce_rate and self.is_up(leader):
                traffic.produced.append((key, log, leader))
            for follower in followers:
                in_sync = follower in isr
                if in_sync and not log.produce_rate:
                    continue
                sides = tuple(
                    (self.brokers[b].sides[role], self._is_listed(lists[key[0], role], key[1], b))
                    for role, b in ((ReplicaRole.LEADER, leader), (ReplicaRole.FOLLOWER, follower))
                )
                group = traffic.fetch_groups.setdefault(
                    (leader, follower, in_sync, tuple(listed for _, listed in sides)),
                    _FetchGroup(Flow(leader, follower), in_sync, sides, self.controller.log_bytes[follower]),
                )
                group.logs.append((key, log))
            pending = [b for b in followers if b not in isr]
            if pending or assignment.moves:
                traffic.catching_up.append((key, log, pending))
        return traffic

    @staticmethod
    def _is_listed(entries: frozenset[str], partition: int, broker_id: int) -> bool:
        return WILDCARD in entries or f"{partition}:{broker_id}" in entries

    def _offered(self, side: SimulatedLinkSide, seconds: float) -> float:
        if self._script_start_ms is None:
            return side.traffic.rate(side.role, 0) * seconds
        start = (self._now_ms - self._script_start_ms) / 1000
        return side.traffic.bytes_between(side.role, start, start + seconds)

    def _shares(self, streams: list[_FetchGroup], seconds: float) -> list[float]:
        demands = [sum(stream.bytes_left()) for stream in streams]
        throttle_meters = self._throttle_meters(streams, demands)
        links: dict[SimulatedLinkSide, list[int]] = {}
        for i, stream in enumerate(streams):
            for side, _ in stream.sides:
                links.setdefault(side, []).append(i)
        alone: list[Constraint] = [(side.capacity * seconds, members) for side, members in links.items()]
        slowed = throttle_meters + self._fetchers(streams, seconds)
        demanded = fair_shares(demands, alone + slowed)
        beside_clients: list[Constraint] = []
        for side, members in links.items():
            connections = len({streams[i].flow for i in members if demanded[i] > 0})
            amount = sum(demanded[i] for i in members)
            beside_clients.append((side.replication_limit(amount, connections, seconds, self._sharing), members))
        return fair_shares(demands, beside_clients + slowed)

    def _fetchers(self, streams: list[_FetchGroup], seconds: float) -> list[Constraint]:
        if self._sharing.fetcher_rate is None:
            return []
        flows: dict[Flow, list[int]] = {}
        for i, stream in enumerate(streams):
            flows.setdefault(stream.flow, []).append(i)
        return [(self._sharing.fetcher_rate * seconds, members) for members in flows.values()]

    def _throttle_meters(self, streams: list[_FetchGroup], demands: list[float]) -> list[Constraint]:
        throttled: dict[SimulatedLinkSide, list[int]] = {}
        for i, stream in enumerate(streams):
            for side, listed in stream.sides:
                if listed and side.rate is not None and not stream.in_sync and demands[i] > 0:
                    throttled.setdefault(side, []).append(i)
        return [(self._allowance(side), members) for side, members in throttled.items()]

    def _allowance(self, side: SimulatedLinkSide) -> float:
        # Kafka checks a throttle before each fetch: nothing passes while it is exceeded, else one fetch exceeds it.
        assert side.rate is not None
        available_rate = side.meter.available_rate(self._now_ms, side.rate)
        return 0.0 if available_rate < 0 else available_rate + FETCH_BYTES

    def _deliver(self, stream: _FetchGroup, amount: float) -> None:
        if not stream.in_sync and not stream.throttled():
            self.unthrottled_bytes += amount
        stream.deliver(amount, self._now_ms)
        self.flow_bytes[stream.flow] = self.flow_bytes.get(stream.flow, 0.0) + amount

    def _update_isr(self) -> None:
        """Let replicas that have caught up join the ISR, and complete reassignments whose new replicas are in sync."""
        for key, log, followers in self._traffic.catching_up:
            for follower in followers:
                copies = self.controller.log_bytes[follower]
                if log.size - copies[key] < _CAUGHT_UP_BYTES:
                    copies[key] = log.size
                    self.controller.join_isr(*key, follower)
            assignment = self.assignment(key)
            if assignment.moves and set(assignment.adding_replicas) <= set(assignment.isr):
                self.controller.finish(*key)

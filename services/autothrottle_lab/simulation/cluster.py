"""A pure model of a Kafka cluster that copies partitions between brokers under KIP-73 throttles.

This module has the brokers, partitions and fetchers. `link` has the links with their client load, and the meters that
slow fetchers down. Time is virtual: only `Cluster.step` advances it. `emulators.kafka` runs
the model in a real ZooKeeper in real time. The type to know is `Cluster`.

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

from autothrottle.core.cluster.configs import WILDCARD, ReplicaRole
from autothrottle.core.cluster.flows import Flow
from autothrottle.core.cluster.snapshot import NO_LEADER, TopicPartition
from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import BytesPerSecond
from autothrottle_lab.simulation.link import ClientTraffic, Constraint, Sharing, SimulatedLinkSide, fair_shares

FETCH_BYTES = 1_000_000
"""Bytes by which one fetch may exceed a throttle: Kafka checks before the fetch (`replica.fetch.max.bytes`)."""

_CAUGHT_UP_BYTES = 0.5
"""A replica with fewer bytes left has caught up: the rest is rounding."""


@dataclass(slots=True, kw_only=True)
class SimulatedPartition:
    """A partition: its size, its replicas, and its reassignment."""

    topic: str
    partition: int
    size: float
    """Bytes in the leader's log."""
    replicas: tuple[int, ...]
    """Broker ids in Kafka's order; during a reassignment the target, then the removing replicas."""
    isr: tuple[int, ...]
    """Broker ids of the in-sync replicas."""
    leader: int
    """Broker id of the leader, or -1."""
    produce_rate: BytesPerSecond = 0
    """Bytes/s appended to the log. It is a part of the leader's inbound client traffic, not added to it."""
    copied: dict[int, float] = field(default_factory=dict)
    """Broker id -> bytes that this replica has."""
    adding: tuple[int, ...] = ()
    """`adding_replicas` of a reassignment."""
    removing: tuple[int, ...] = ()
    """`removing_replicas` of a reassignment."""
    leader_epoch: int = 0
    """Increases with every change of the leader."""
    version: int = 0
    """Increases with every change of replicas, ISR or leader."""

    def __post_init__(self) -> None:
        if not self.replicas or len(set(self.replicas)) != len(self.replicas):
            raise Invalid(f"replicas {list(self.replicas)} of {self.name}: name at least one broker, each once")
        if not set(self.isr) <= set(self.replicas) or self.leader not in (*self.isr, NO_LEADER):
            raise Invalid(
                f"{self.name}: replicas {list(self.replicas)}, ISR {list(self.isr)}, leader {self.leader}: "
                "the ISR must be a subset of the replicas, and the leader must be in the ISR or -1"
            )
        self.copied = {b: self.size if b in self.isr else self.copied.get(b, 0.0) for b in self.replicas}

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """As Kafka writes it: `topic-partition`."""
        return f"{self.topic}-{self.partition}"

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    def bytes_left(self, broker_id: int) -> float:
        """Return the bytes that a replica still has to copy."""
        return max(self.size - self.copied[broker_id], 0.0)

    def reassign(self, target: tuple[int, ...]) -> None:
        """Start a reassignment to `target`; it replaces one in progress."""
        origin = [b for b in self.replicas if b not in self.adding]
        self.adding = tuple(b for b in target if b not in origin)
        self.removing = tuple(b for b in origin if b not in target)
        self._keep(target + self.removing)

    def join(self, broker_id: int) -> None:
        """Add a replica that has caught up to the ISR."""
        self.copied[broker_id] = self.size
        self.isr = (*self.isr, broker_id)
        self.version += 1

    def lead(self, leader: int) -> None:
        """Make another in-sync replica the leader; -1: no leader. An in-sync replica has the whole log."""
        if leader == self.leader:
            return
        self.leader = leader
        self.leader_epoch += 1
        self.version += 1
        if leader != NO_LEADER:
            self.copied[leader] = self.size

    def drop(self, broker_id: int) -> None:
        """Remove the replica of a failed broker from the ISR, unless it is the last one."""
        if broker_id in self.isr and len(self.isr) > 1:
            self.isr = tuple(b for b in self.isr if b != broker_id)
            self.version += 1

    def finish(self) -> None:
        """End the reassignment and drop the removing replicas. Call it once all adding replicas are in sync."""
        self._keep(tuple(b for b in self.replicas if b not in self.removing))
        self.adding = self.removing = ()

    def _keep(self, replicas: tuple[int, ...]) -> None:
        self.replicas = replicas
        self.copied = {b: self.copied.get(b, 0.0) for b in replicas}
        self.isr = tuple(b for b in self.isr if b in replicas)
        self.version += 1
        if self.leader not in replicas:
            self.leader = next((b for b in replicas if b in self.isr), NO_LEADER)
            self.leader_epoch += 1


class SimulatedBroker:
    """A broker with a link, clients, and one throttle and meter per role."""

    def __init__(self, broker_id: int, capacity: Capacity, traffic: ClientTraffic | None = None) -> None:
        if broker_id < 0 or capacity.outbound <= 0 or capacity.inbound <= 0:
            raise Invalid(f"broker {broker_id} with {capacity}: the id must be >= 0 and each capacity > 0 bytes/s")
        self.broker_id = broker_id
        self.up = True
        """Whether the broker runs."""
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
    partitions: list[SimulatedPartition] = field(default_factory=list)

    def demand(self) -> float:
        return sum(p.bytes_left(self.flow.follower) for p in self.partitions)

    def throttled(self) -> bool:
        return any(listed and side.rate is not None for side, listed in self.sides)

    def deliver(self, amount: float, now_ms: int) -> None:
        for side, listed in self.sides:
            side.carry(amount)
            if listed:
                side.meter.record(now_ms, amount)
        bytes_left = [p.bytes_left(self.flow.follower) for p in self.partitions]
        shares = fair_shares(bytes_left, [(amount, range(len(bytes_left)))])
        for partition, share in zip(self.partitions, shares, strict=True):
            partition.copied[self.flow.follower] += share


class Cluster:
    """The whole cluster. `step` advances time; the other methods are actions of operators and of the controller."""

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
        self.partitions: Mapping[TopicPartition, SimulatedPartition] = {p.key: p for p in partitions}
        if len(self.brokers) < len(brokers) or len(self.partitions) < len(partitions):
            raise Invalid("duplicate broker id or partition: name each once")
        self.flow_bytes: dict[Flow, float] = {}
        """Flow -> cumulative bytes copied, for in-sync and out-of-sync replicas."""
        self.unthrottled_bytes = 0.0
        """Cumulative bytes that out-of-sync replicas copied while no throttle applied to them."""
        self._sharing = sharing
        self._now_ms = 0
        self._script_start_ms: int | None = None if script_waits_for_reassignment else 0
        self._listed: dict[tuple[str, ReplicaRole], frozenset[str]] = {}
        self._streams: list[_FetchGroup] | None = None

    @property
    def now(self) -> float:
        """Virtual seconds since the cluster began."""
        return self._now_ms / 1000

    def sides(self) -> Iterator[SimulatedLinkSide]:
        """Yield both link sides of every broker."""
        for broker in self.brokers.values():
            yield from broker.sides.values()

    def moving(self) -> tuple[TopicPartition, ...]:
        """Return the partitions under reassignment."""
        return tuple(key for key, p in self.partitions.items() if p.reassigning)

    def bytes_left(self) -> int:
        """Return the bytes that all adding replicas still have to copy."""
        return round(sum(p.bytes_left(b) for p in self.partitions.values() for b in p.adding if b not in p.isr))

    def is_up(self, broker_id: int) -> bool:
        """Return whether the broker exists and runs."""
        return broker_id in self.brokers and self.brokers[broker_id].up

    def set_rate(self, broker_id: int, role: ReplicaRole, rate: BytesPerSecond | None) -> None:
        """Set the throttle of a broker in a role, effective from the next fetch on; None: unlimited.

        Raises:
            Missing: the broker does not exist.
            Invalid: the rate is negative.
        """
        if broker_id not in self.brokers:
            raise Missing(f"broker {broker_id} does not exist; known are {sorted(self.brokers)}")
        if rate is not None and rate < 0:
            raise Invalid(f"throttle {rate} bytes/s of broker {broker_id} is negative: use None for unlimited")
        self.brokers[broker_id].sides[role].rate = rate

    def set_throttled_replicas(self, topic: str, role: ReplicaRole, entries: frozenset[str]) -> None:
        """Set the throttled replicas of a topic in a role: entries `partition:broker`, or `*` for all."""
        self._listed[topic, role] = entries
        self._streams = None

    def throttled_replicas(self, topic: str, role: ReplicaRole) -> frozenset[str]:
        return self._listed.get((topic, role), frozenset())

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
        if self._script_start_ms is None:
            self._script_start_ms = self._now_ms
        for key, target in targets.items():
            self.partitions[key].reassign(tuple(target))
        self._streams = None
        self._update_isr()

    def lose(self, broker_id: int) -> None:
        """Fail a broker: its clients disappear, other brokers lead, and it leaves each ISR that has other replicas.

        Raises:
            Missing: the broker does not exist.
        """
        self._set_up(broker_id, up=False)
        for partition in self.partitions.values():
            partition.drop(broker_id)
            if partition.leader == broker_id:
                partition.lead(next((b for b in partition.replicas if self._may_lead(partition, b)), NO_LEADER))

    def restore(self, broker_id: int) -> None:
        """Start a failed broker with its old logs: it copies what it missed, and leads partitions without a leader.

        Raises:
            Missing: the broker does not exist.
        """
        self._set_up(broker_id, up=True)
        for partition in self.partitions.values():
            if partition.leader == NO_LEADER and self._may_lead(partition, broker_id):
                partition.lead(broker_id)

    def elect(self, broker_id: int) -> None:
        """Make a broker the leader of every partition for which it has an in-sync replica.

        Raises:
            Missing: the broker does not exist, or it is down.
        """
        if not self.is_up(broker_id):
            raise Missing(f"broker {broker_id} does not run; running are {sorted(filter(self.is_up, self.brokers))}")
        for partition in self.partitions.values():
            if self._may_lead(partition, broker_id):
                partition.lead(broker_id)
        self._streams = None

    def step(self, seconds: float) -> None:
        """Advance time by whole milliseconds, with constant rates within the step; 0.1 s is a good step.

        Raises:
            Invalid: the step is shorter than a millisecond.
        """
        if round(seconds * 1000) < 1:
            raise Invalid(f"step of {seconds} s is too short: use 0.001 s or more")
        milliseconds = round(seconds * 1000)
        seconds = milliseconds / 1000
        self._produce(seconds)
        # A broker that is down has no clients.
        sides = [side for broker in self.brokers.values() if broker.up for side in broker.sides.values()]
        for side in sides:
            side.offer(self._offered(side, seconds))
        streams = self._current_streams()
        shares = self._shares(streams, seconds)
        self._now_ms += milliseconds
        for stream, share in zip(streams, shares, strict=True):
            if share > 0:
                self._deliver(stream, share)
        for side in sides:
            side.serve_clients(seconds)
        self._update_isr()

    def _check_target(self, key: TopicPartition, target: Sequence[int]) -> None:
        if key not in self.partitions:
            raise Missing(f"partition {key[0]}-{key[1]} does not exist: create it before you reassign it")
        broker_ids = {*self.brokers, *self.partitions[key].replicas}
        if not target or len(set(target)) != len(target) or not set(target) <= broker_ids:
            raise Invalid(
                f"{list(target)} as replicas of {key[0]}-{key[1]}: "
                f"name at least one broker of {sorted(broker_ids)}, each once"
            )

    def _set_up(self, broker_id: int, up: bool) -> None:
        if broker_id not in self.brokers:
            raise Missing(f"broker {broker_id} does not exist; known are {sorted(self.brokers)}")
        self.brokers[broker_id].up = up
        self._streams = None

    def _may_lead(self, partition: SimulatedPartition, broker_id: int) -> bool:
        return broker_id in partition.isr and self.is_up(broker_id)

    def _produce(self, seconds: float) -> None:
        for partition in self.partitions.values():
            if partition.produce_rate and self.is_up(partition.leader):
                partition.size += partition.produce_rate * seconds
                partition.copied[partition.leader] = partition.size

    def _offered(self, side: SimulatedLinkSide, seconds: float) -> float:
        if self._script_start_ms is None:
            return side.traffic.rate(side.role, 0) * seconds
        start = (self._now_ms - self._script_start_ms) / 1000
        return side.traffic.bytes_between(side.role, start, start + seconds)

    def _current_streams(self) -> list[_FetchGroup]:
        if self._streams is None:
            streams: dict[object, _FetchGroup] = {}
            for partition in self.partitions.values():
                for follower in partition.replicas:
                    self._add_to_stream(streams, partition, follower)
            self._streams = list(streams.values())
        return self._streams

    def _add_to_stream(self, streams: dict[object, _FetchGroup], partition: SimulatedPartition, follower: int) -> None:
        leader, in_sync = partition.leader, follower in partition.isr
        if follower == leader or not self.is_up(leader) or not self.is_up(follower):
            return
        if in_sync and not partition.produce_rate:
            return
        sides = (
            (self.brokers[leader].outbound, self._is_listed(partition, ReplicaRole.LEADER, leader)),
            (self.brokers[follower].inbound, self._is_listed(partition, ReplicaRole.FOLLOWER, follower)),
        )
        listed = tuple(on_list for _, on_list in sides)
        stream = streams.setdefault(
            (leader, follower, in_sync, listed), _FetchGroup(Flow(leader, follower), in_sync, sides)
        )
        stream.partitions.append(partition)

    def _is_listed(self, partition: SimulatedPartition, role: ReplicaRole, broker_id: int) -> bool:
        entries = self.throttled_replicas(partition.topic, role)
        return WILDCARD in entries or f"{partition.partition}:{broker_id}" in entries

    def _shares(self, streams: list[_FetchGroup], seconds: float) -> list[float]:
        demands = [stream.demand() for stream in streams]
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
        for partition in self.partitions.values():
            version = partition.version
            for follower in partition.replicas:
                if self._has_caught_up(partition, follower):
                    partition.join(follower)
            if partition.reassigning and set(partition.adding) <= set(partition.isr):
                partition.finish()
            if partition.version != version:
                self._streams = None

    def _has_caught_up(self, partition: SimulatedPartition, follower: int) -> bool:
        if follower in partition.isr or not self.is_up(follower) or not self.is_up(partition.leader):
            return False
        return partition.bytes_left(follower) < _CAUGHT_UP_BYTES

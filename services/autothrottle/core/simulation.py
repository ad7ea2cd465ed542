"""A pure model of a Kafka cluster that copies partitions between brokers under KIP-73 throttles.

Here live brokers, partitions with their replicas, and the fetchers that copy them; the links and meters that hold the
fetchers back are in `simulated_link`, what clients offer in `client_traffic`. Time is virtual: nothing moves but by
`Cluster.step`, and equal histories give equal states. There is no znode, clock, thread or chance in it; how the model
lives in a real ZooKeeper in real time is in `lab`. The type to know is `Cluster`.

How a step divides the links:

1. Every stream (the replicas that one broker copies from another one under the same throttles) wants all it
   lacks. A stream of out-of-sync replicas is held back by the meters of the sides that list it; in-sync
   traffic is counted by those meters and never held back.
2. Streams share links and meters max-min fair.
3. On a link that clients and streams oversubscribe both give way in proportion to what they wanted, or as `Sharing`
   says. Bytes of clients that do not fit are deferred: they wait in a backlog, which is served from what a later step
   leaves free.

Source: KIP-73 (quotas), KIP-455 (reassignments).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autothrottle.core.client_traffic import ClientTraffic
from autothrottle.core.configs import WILDCARD, ReplicaRole
from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.flows import Flow
from autothrottle.core.loads import BytesPerSecond, Capacity
from autothrottle.core.simulated_link import Constraint, Port, Sharing, fair_shares
from autothrottle.core.simulated_partition import SimulatedPartition
from autothrottle.core.topology import NO_LEADER, TopicPartition

FETCH_BYTES = 1_000_000
"""What one fetch may bring beyond a quota, which is looked at before a fetch (`replica.fetch.max.bytes`)."""

_CAUGHT_UP_BYTES = 0.5
"""A replica that lacks less than this has everything: rounding, not data."""


class SimulatedBroker:
    """A broker with a link, clients, and a throttle and meter for each of its roles."""

    def __init__(self, broker_id: int, capacity: Capacity, traffic: ClientTraffic | None = None) -> None:
        if broker_id < 0 or capacity.tx <= 0 or capacity.rx <= 0:
            raise Invalid(f"broker {broker_id} with {capacity}: an id is >= 0 and a capacity > 0 bytes/s")
        self.broker_id = broker_id
        self.ports: Mapping[ReplicaRole, Port] = {
            role: Port(role, capacity.of(role), traffic or ClientTraffic()) for role in ReplicaRole
        }

    @property
    def tx(self) -> Port:
        """The direction that the leader role uses."""
        return self.ports[ReplicaRole.LEADER]

    @property
    def rx(self) -> Port:
        """The direction that the follower role uses."""
        return self.ports[ReplicaRole.FOLLOWER]

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return all(port.up for port in self.ports.values())

    def switch(self, up: bool) -> None:
        """Let it run, or not."""
        for port in self.ports.values():
            port.up = up

    def counters(self) -> BrokerCounters:
        """Return what the broker has carried so far."""
        return BrokerCounters(
            tx=self.tx.total,
            rx=self.rx.total,
            client_offered=round(self.tx.client_offered + self.rx.client_offered),
            client_deferred=round(self.tx.client_deferred + self.rx.client_deferred),
            replication_out=round(self.tx.replication),
            replication_in=round(self.rx.replication),
        )


@dataclass(frozen=True, slots=True)
class BrokerCounters:
    """Cumulative bytes of one broker since the cluster began."""

    tx: int
    """What the interface sent: clients and replication."""
    rx: int
    """What the interface received: clients and replication."""
    client_offered: int
    """What clients wanted to be carried, both directions."""
    client_deferred: int
    """What of that had to wait, both directions."""
    replication_out: int
    """What other brokers copied from this one, in sync or not."""
    replication_in: int
    """What this one copied from others, in sync or not."""


@dataclass(slots=True)
class _Stream:
    """What one broker copies from another one under the same throttles."""

    flow: Flow
    in_sync: bool
    sides: tuple[tuple[Port, bool], ...]
    """The leader's and the follower's port, and whether the replicas are in that side's list."""
    partitions: list[SimulatedPartition] = field(default_factory=list)

    def wants(self) -> float:
        return sum(p.lacks(self.flow.follower) for p in self.partitions)

    def throttled(self) -> bool:
        return any(listed and port.rate is not None for port, listed in self.sides)

    def deliver(self, amount: float, now_ms: int) -> None:
        for port, listed in self.sides:
            port.carry(amount)
            if listed:
                port.meter.record(now_ms, amount)
        lacks = [p.lacks(self.flow.follower) for p in self.partitions]
        shares = fair_shares(lacks, [(amount, range(len(lacks)))])
        for partition, share in zip(self.partitions, shares, strict=True):
            partition.landed[self.flow.follower] += share


class Cluster:
    """The whole cluster; `step` lets time pass, other methods are what operators and controllers do to it."""

    def __init__(
        self,
        brokers: Sequence[SimulatedBroker],
        partitions: Sequence[SimulatedPartition],
        *,
        fetch_bytes: int = FETCH_BYTES,
        sharing: Sharing = Sharing(),  # noqa: B008 (frozen)
        script_waits_for_reassignment: bool = False,
    ) -> None:
        """Begin at time 0.

        A replica on a broker that is not among `brokers` is on a dead one. With
        `script_waits_for_reassignment` the clients' traffic stays what it is at 0 s until the first
        reassignment starts, and its script runs from there. `sharing` says who gives way on links that are full.
        """
        self.brokers: Mapping[int, SimulatedBroker] = {b.broker_id: b for b in brokers}
        self.partitions: Mapping[TopicPartition, SimulatedPartition] = {p.key: p for p in partitions}
        if len(self.brokers) < len(brokers) or len(self.partitions) < len(partitions):
            raise Invalid("a broker id or a partition is there twice: name each once")
        self.flow_bytes: dict[Flow, float] = {}
        """Flow -> cumulative bytes landed, in sync or not."""
        self.unthrottled_bytes = 0.0
        """Cumulative bytes that out-of-sync replicas copied while neither side held them back."""
        self._fetch_bytes, self._sharing = fetch_bytes, sharing
        self._now_ms = 0
        self._script_start_ms: int | None = None if script_waits_for_reassignment else 0
        self._listed: dict[tuple[str, ReplicaRole], frozenset[str]] = {}
        self._streams: list[_Stream] | None = None
        self._ideal_seconds = 0.0
        self._ideal_start = 0.0
        self._ideal_bytes: dict[Port, float] = {}

    @property
    def now(self) -> float:
        """Virtual seconds since the cluster began."""
        return self._now_ms / 1000

    def moving(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that are being reassigned."""
        return tuple(key for key, p in self.partitions.items() if p.reassigning)

    def bytes_left(self) -> int:
        """Return what all adding replicas have still to copy."""
        return round(sum(p.lacks(b) for p in self.partitions.values() for b in p.adding if b not in p.isr))

    def ideal_seconds(self) -> float:
        """Return the time that the reassignment takes at best: that of its slowest port.

        For each port that it uses, `seconds_to_carry` of the bytes to move through it, as they were at its
        start, with the clients' traffic as scripted and no growth; 0 before the first reassignment, infinite
        if clients leave nothing free. A reassignment that starts while another one runs adds its bytes to
        that one's.
        """
        return self._ideal_seconds

    def is_up(self, broker_id: int) -> bool:
        """Return whether there is such a broker, and it runs."""
        return broker_id in self.brokers and self.brokers[broker_id].up

    def set_rate(self, broker_id: int, role: ReplicaRole, rate: BytesPerSecond | None) -> None:
        """Set the throttle of a broker in a role, None for unlimited; it works from the next fetch on.

        Raises:
            Missing: there is no such broker.
            Invalid: the rate is negative.
        """
        if broker_id not in self.brokers:
            raise Missing(f"broker {broker_id} is none of {sorted(self.brokers)}")
        if rate is not None and rate < 0:
            raise Invalid(f"throttle {rate} bytes/s of broker {broker_id} is negative: use None for unlimited")
        self.brokers[broker_id].ports[role].rate = rate

    def set_throttled_replicas(self, topic: str, role: ReplicaRole, entries: frozenset[str]) -> None:
        """Set which replicas of a topic that role's throttles concern: `partition:broker`, or `*` for all."""
        self._listed[topic, role] = entries
        self._streams = None

    def throttled_replicas(self, topic: str, role: ReplicaRole) -> frozenset[str]:
        """Return which replicas of a topic that role's throttles concern."""
        return self._listed.get((topic, role), frozenset())

    def start_reassignment(self, moves: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Begin to move partitions to new replicas: all of them, or none when one is wrong.

        What has nothing to copy (removal, another order) is done at once. Naming a partition that is under
        way replaces its target; naming its original replicas cancels it.

        Raises:
            Missing: there is no such partition.
            Invalid: the target is empty, names a broker twice, or names one that is neither alive nor a
                replica.
        """
        for key, target in moves.items():
            self._check_target(key, target)
        if self._script_start_ms is None:
            self._script_start_ms = self._now_ms
        alone = not self.moving()
        for key, target in moves.items():
            self.partitions[key].reassign(tuple(target))
        self._streams = None
        self._note_ideal([self.partitions[key] for key in moves], alone)
        self._settle()

    def lose(self, broker_id: int) -> None:
        """Let a broker fail: its clients go, others lead what it led, and it leaves each ISR that has another replica.

        Raises:
            Missing: there is no such broker.
        """
        self._switch(broker_id, up=False)
        for partition in self.partitions.values():
            partition.drop(broker_id)
            if partition.leader == broker_id:
                partition.lead(next((b for b in partition.replicas if self._may_lead(partition, b)), NO_LEADER))

    def restore(self, broker_id: int) -> None:
        """Let a broker be back with the logs that it had: it copies what it lacks, and leads what nobody leads.

        Raises:
            Missing: there is no such broker.
        """
        self._switch(broker_id, up=True)
        for partition in self.partitions.values():
            if partition.leader == NO_LEADER and self._may_lead(partition, broker_id):
                partition.lead(broker_id)

    def elect(self, broker_id: int) -> None:
        """Let a broker lead every partition of which it has a replica in sync.

        Raises:
            Missing: there is no such broker, or it is down.
        """
        if not self.is_up(broker_id):
            raise Missing(f"broker {broker_id} is none of those that run: {sorted(filter(self.is_up, self.brokers))}")
        for partition in self.partitions.values():
            if self._may_lead(partition, broker_id):
                partition.lead(broker_id)
        self._streams = None

    def step(self, seconds: float) -> None:
        """Let whole milliseconds pass, with everything constant meanwhile; 0.1 s is a good step.

        Raises:
            Invalid: less than a millisecond.
        """
        if round(seconds * 1000) < 1:
            raise Invalid(f"a step of {seconds} s: let it be 0.001 s or more")
        milliseconds = round(seconds * 1000)
        seconds = milliseconds / 1000
        self._grow(seconds)
        for port in self._ports():
            port.offer(self._offered(port, seconds))
        streams = self._current_streams()
        shares = self._shares(streams, seconds)
        self._now_ms += milliseconds
        for stream, share in zip(streams, shares, strict=True):
            if share > 0:
                self._deliver(stream, share)
        for port in self._ports():
            port.serve_clients(seconds)
        self._settle()

    def _check_target(self, key: TopicPartition, target: Sequence[int]) -> None:
        if key not in self.partitions:
            raise Missing(f"partition {key[0]}-{key[1]} is unknown: create it before it is reassigned")
        known = {*self.brokers, *self.partitions[key].replicas}
        if not target or len(set(target)) != len(target) or not set(target) <= known:
            raise Invalid(
                f"{list(target)} as replicas of {key[0]}-{key[1]}: "
                f"name at least one broker of {sorted(known)}, each once"
            )

    def _switch(self, broker_id: int, up: bool) -> None:
        if broker_id not in self.brokers:
            raise Missing(f"broker {broker_id} is none of {sorted(self.brokers)}")
        self.brokers[broker_id].switch(up)
        self._streams = None

    def _may_lead(self, partition: SimulatedPartition, broker_id: int) -> bool:
        return broker_id in partition.isr and self.is_up(broker_id)

    def _ports(self) -> Iterator[Port]:
        for broker in self.brokers.values():
            yield from broker.ports.values()

    def _script_time(self) -> float:
        return 0.0 if self._script_start_ms is None else (self._now_ms - self._script_start_ms) / 1000

    def _grow(self, seconds: float) -> None:
        for partition in self.partitions.values():
            if partition.produce_rate and self.is_up(partition.leader):
                partition.size += partition.produce_rate * seconds
                partition.landed[partition.leader] = partition.size

    def _offered(self, port: Port, seconds: float) -> float:
        if self._script_start_ms is None:
            return port.traffic.rate(port.role, 0) * seconds
        start = self._script_time()
        return port.traffic.bytes_between(port.role, start, start + seconds)

    def _current_streams(self) -> list[_Stream]:
        if self._streams is None:
            streams: dict[object, _Stream] = {}
            for partition in self.partitions.values():
                for follower in partition.replicas:
                    self._add_to_stream(streams, partition, follower)
            self._streams = list(streams.values())
        return self._streams

    def _add_to_stream(self, streams: dict[object, _Stream], partition: SimulatedPartition, follower: int) -> None:
        leader, in_sync = partition.leader, follower in partition.isr
        if follower == leader or not self.is_up(leader) or not self.is_up(follower):
            return
        if in_sync and not partition.produce_rate:
            return
        sides = (
            (self.brokers[leader].tx, self._is_listed(partition, ReplicaRole.LEADER, leader)),
            (self.brokers[follower].rx, self._is_listed(partition, ReplicaRole.FOLLOWER, follower)),
        )
        listed = tuple(on_list for _, on_list in sides)
        stream = streams.setdefault(
            (leader, follower, in_sync, listed), _Stream(Flow(leader, follower), in_sync, sides)
        )
        stream.partitions.append(partition)

    def _is_listed(self, partition: SimulatedPartition, role: ReplicaRole, broker_id: int) -> bool:
        entries = self.throttled_replicas(partition.topic, role)
        return WILDCARD in entries or f"{partition.partition}:{broker_id}" in entries

    def _shares(self, streams: list[_Stream], seconds: float) -> list[float]:
        wants = [stream.wants() for stream in streams]
        quotas = self._quotas(streams, wants)
        links: dict[Port, list[int]] = {}
        for i, stream in enumerate(streams):
            for port, _ in stream.sides:
                links.setdefault(port, []).append(i)
        alone: list[Constraint] = [(port.capacity * seconds, members) for port, members in links.items()]
        held_back = quotas + self._fetchers(streams, seconds)
        wanted = fair_shares(wants, alone + held_back)
        beside_clients: list[Constraint] = []
        for port, members in links.items():
            connections = len({streams[i].flow for i in members if wanted[i] > 0})
            amount = sum(wanted[i] for i in members)
            beside_clients.append((port.replication_limit(amount, connections, seconds, self._sharing), members))
        return fair_shares(wants, beside_clients + held_back)

    def _fetchers(self, streams: list[_Stream], seconds: float) -> list[Constraint]:
        if self._sharing.fetcher_rate is None:
            return []
        flows: dict[Flow, list[int]] = {}
        for i, stream in enumerate(streams):
            flows.setdefault(stream.flow, []).append(i)
        return [(self._sharing.fetcher_rate * seconds, members) for members in flows.values()]

    def _quotas(self, streams: list[_Stream], wants: list[float]) -> list[Constraint]:
        held_back: dict[Port, list[int]] = {}
        for i, stream in enumerate(streams):
            for port, listed in stream.sides:
                if listed and port.rate is not None and not stream.in_sync and wants[i] > 0:
                    held_back.setdefault(port, []).append(i)
        return [(self._allowance(port), members) for port, members in held_back.items()]

    def _allowance(self, port: Port) -> float:
        # A quota is looked at before a fetch: nothing goes while it is exceeded, else the last one exceeds it.
        assert port.rate is not None
        budget = port.meter.budget(self._now_ms, port.rate)
        return 0.0 if budget < 0 else budget + self._fetch_bytes

    def _deliver(self, stream: _Stream, amount: float) -> None:
        if not stream.in_sync and not stream.throttled():
            self.unthrottled_bytes += amount
        stream.deliver(amount, self._now_ms)
        self.flow_bytes[stream.flow] = self.flow_bytes.get(stream.flow, 0.0) + amount

    def _settle(self) -> None:
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
        return partition.lacks(follower) < _CAUGHT_UP_BYTES

    def _note_ideal(self, partitions: list[SimulatedPartition], alone: bool) -> None:
        copies = [(p, b) for p in partitions for b in p.adding if b not in p.isr and p.leader in self.brokers]
        if not copies:
            return
        if alone:
            self._ideal_start, self._ideal_bytes = self._script_time(), {}
        for partition, follower in copies:
            for port in (self.brokers[partition.leader].tx, self.brokers[follower].rx):
                self._ideal_bytes[port] = self._ideal_bytes.get(port, 0.0) + partition.lacks(follower)
        self._ideal_seconds = max(
            port.traffic.seconds_to_carry(amount, port.capacity, port.role, self._ideal_start)
            for port, amount in self._ideal_bytes.items()
        )

"""How long a reassignment would take before it is started, and which throttles it would need.

Replicas are copied side by side, so that the move ends with its slowest port: one direction of one broker's link. What
is produced to the partitions meanwhile is to be copied too, and counts against the throttle. The type to know is
`Estimate`.

Source: KIP-73 (MoveRatio, MoveTime).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.loads import MEGABYTE, BytesPerSecond, Port
from autothrottle.core.move_time import LONGEST, move_ratio, move_time, needed_rate
from autothrottle.core.plan import Decision
from autothrottle.core.progress import LogSizes
from autothrottle.core.topology import NO_LEADER, TopicPartition, TopicReassignment

_SHOWN = 10
"""How many ports the warnings name."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one port has to carry."""

    size: int = 0
    """Bytes to be copied."""
    growth: BytesPerSecond = 0
    """What is produced to these partitions and counts against the throttle, in-sync followers of leaders included."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """What a reassignment has to carry."""

    ports: Mapping[Port, Transfer] = field(default_factory=dict)
    """Port -> its part, of the partitions that are known."""
    size: int = 0
    """Bytes to be copied, each copy counted."""
    partitions: int = 0
    """How many have anything to be copied."""
    unknown: int = 0
    """How many of these have no leader, or one that did not tell the sizes of its logs."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What an operator allows or wants; neither: the present headrooms."""

    max_ratio: float | None = None
    """The share of every link's capacity that replication may take, in (0, 1]."""
    within: timedelta | None = None
    """When it is to be done, > 0."""

    def __post_init__(self) -> None:
        if self.max_ratio is not None and self.within is not None:
            raise Invalid("max_ratio and within are both given; give one: a share of the capacity, or a time")
        if self.max_ratio is not None and not 0 < self.max_ratio <= 1:
            raise Invalid(f"max_ratio {self.max_ratio:g} is outside of (0, 1]; give for example 0.3 for 30 %")
        if self.within is not None and not timedelta(seconds=1) <= self.within <= LONGEST:
            seconds = self.within.total_seconds()
            raise Invalid(
                f"within {seconds:g} s is outside of 1..{LONGEST.total_seconds():.0f} s; give for example 2 h"
            )


@dataclass(frozen=True, slots=True)
class PortEstimate:
    """One port's part of an estimate."""

    broker_id: int
    role: ReplicaRole
    size: int
    """Bytes to be copied."""
    growth: BytesPerSecond
    """What is produced meanwhile and counts against the throttle."""
    rate: BytesPerSecond | None
    """The throttle that the estimate counts on; None: unknown, since the capacity is."""
    headroom: BytesPerSecond | None
    """What it would get now; None without metrics, or under an override."""
    capacity: BytesPerSecond | None
    """What the link carries; None without metrics."""
    time: timedelta | None
    """How long it takes; None: unknown, or it would never end."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a reassignment would be."""

    partitions: int
    """How many have anything to be copied."""
    total_partitions: int
    """How many the cluster has."""
    size: int
    """Bytes to be copied, each copy counted; of the partitions that are known."""
    unknown_partitions: int
    """How many more there are."""
    time: timedelta | None
    """How long it takes; None: unknown, or it would never end."""
    ports: tuple[PortEstimate, ...] = ()
    """By broker and role."""
    warnings: tuple[str, ...] = ()
    """What stands in its way, a sentence each."""

    @property
    def move_ratio(self) -> float:
        """KIP-73's MoveRatio, in [0, 1]."""
        return move_ratio(self.partitions, self.total_partitions)


def only(moves: Iterable[TopicReassignment], chosen: Collection[TopicPartition]) -> tuple[TopicReassignment, ...]:
    """Return the moves of these partitions alone."""
    found = []
    for move in moves:
        kept = [n for n, partition in enumerate(move.partitions) if (move.topic, partition) in chosen]
        if kept:
            found.append(
                TopicReassignment(
                    topic=move.topic,
                    partitions=tuple(move.partitions[n] for n in kept),
                    leaders=tuple(move.leaders[n] for n in kept),
                    isr=tuple(move.isr[n] for n in kept),
                    adding_replicas=tuple(move.adding_replicas[n] for n in kept),
                    removing_replicas=tuple(move.removing_replicas[n] for n in kept),
                )
            )
    return tuple(found)


def wanted_sizes(moves: Iterable[TopicReassignment]) -> Mapping[int, Mapping[str, frozenset[int]]]:
    """Return broker id -> topic -> partitions whose log sizes an estimate needs: both ends of every copy."""
    found: dict[int, dict[str, set[int]]] = {}
    for move in moves:
        for partition, leader, _, pending in move.rows():
            for broker_id in (leader, *pending) if pending else ():
                found.setdefault(broker_id, {}).setdefault(move.topic, set()).add(partition)
    found.pop(NO_LEADER, None)
    return {b: {topic: frozenset(rows) for topic, rows in topics.items()} for b, topics in found.items()}


def transfers(moves: Iterable[TopicReassignment], sizes: LogSizes, later: LogSizes | None = None) -> Transfers:
    """Return what moves have to carry.

    Args:
        moves: as if they were under way.
        sizes: of the logs that `wanted_sizes` names. A destination that does not tell what it has has nothing.
        later: of the same logs some seconds later, for what is produced to them; None: nothing is.
    """
    ports: dict[Port, tuple[int, float]] = {}
    size = partitions = unknown = 0

    def load(port: Port, copied: int, growth: float) -> None:
        before = ports.get(port, (0, 0.0))
        ports[port] = before[0] + copied, before[1] + growth

    for move in moves:
        for partition, leader, isr, pending in move.rows():
            if not pending:
                continue
            partitions += 1
            row = (move.topic, partition)
            held = _size(sizes, leader, row)
            unknown += held is None
            growth = _growth(sizes, later, leader, row)
            in_sync = sum(b != leader for b in isr)
            for follower in pending:
                copied = max(0, (held or 0) - (_size(sizes, follower, row) or 0))
                size += copied
                load((follower, ReplicaRole.FOLLOWER), copied, growth)
                load((leader, ReplicaRole.LEADER), copied, growth)
            load((leader, ReplicaRole.LEADER), 0, in_sync * growth)
    known = {port: Transfer(copied, round(growth)) for port, (copied, growth) in ports.items() if port[0] != NO_LEADER}
    return Transfers(known, size, partitions, unknown)


def _size(sizes: LogSizes, broker_id: int, row: TopicPartition) -> int | None:
    logs = sizes.brokers.get(broker_id)
    return logs.sizes.get(row) if logs else None


def _growth(sizes: LogSizes, later: LogSizes | None, leader: int, row: TopicPartition) -> float:
    """Bytes/s by which a leader's log grows; 0 where that is unknown."""
    before, after = sizes.brokers.get(leader), later.brokers.get(leader) if later else None
    if before is None or after is None or row not in before.sizes or row not in after.sizes:
        return 0.0
    seconds = (after.at - before.at).total_seconds()
    return max(0, after.sizes[row] - before.sizes[row]) / seconds if seconds > 0 else 0.0


def estimate(
    carried: Transfers, decisions: Sequence[Decision], goal: Goal, total_partitions: int, notes: Sequence[str] = ()
) -> Estimate:
    """Return how long a reassignment takes, or what it needs.

    Args:
        carried: what is to be copied.
        decisions: the throttles that it would get now, with what they were decided on.
        goal: what is allowed or wanted.
        total_partitions: of the cluster.
        notes: what else is to be said, a sentence each.
    """
    decided = {(d.broker_id, d.role): d for d in decisions}
    ordered = sorted(carried.ports.items(), key=lambda entry: (entry[0][0], entry[0][1].value))
    ports = tuple(_port(port, transfer, decided.get(port), goal) for port, transfer in ordered)
    times = [port.time for port in ports]
    found = [time for time in times if time is not None]
    known = not carried.unknown and len(found) == len(times)
    return Estimate(
        partitions=carried.partitions,
        total_partitions=total_partitions,
        size=carried.size,
        unknown_partitions=carried.unknown,
        time=max(found, default=timedelta(0)) if known else None,
        ports=ports,
        warnings=(*notes, *_warnings(ports, goal)),
    )


def _port(port: Port, transfer: Transfer, decision: Decision | None, goal: Goal) -> PortEstimate:
    capacity = decision.capacity if decision else None
    rate = decision.rate if decision else None
    if goal.max_ratio is not None:
        rate = None if capacity is None else round(capacity * goal.max_ratio)
    if goal.within is not None:
        rate = needed_rate(transfer.size, transfer.growth, goal.within)
    return PortEstimate(
        broker_id=port[0],
        role=port[1],
        size=transfer.size,
        growth=transfer.growth,
        rate=rate,
        headroom=decision.headroom if decision else None,
        capacity=capacity,
        time=None if rate is None else move_time(transfer.size, rate, transfer.growth),
    )


def _warnings(ports: Sequence[PortEstimate], goal: Goal) -> list[str]:
    found = []
    for port in ports:
        where = f"broker {port.broker_id} [{port.role.value}]"
        if port.rate is None:
            found.append(f"{where}: its capacity is unknown, and so are its rate and time; see its metrics")
        elif port.time is None:
            found.append(
                f"{where}: at {_megabytes(port.rate)} it would never end, since {_megabytes(port.growth)} is produced "
                "meanwhile; give it a higher rate"
            )
        elif goal != Goal() and port.headroom is not None and port.rate > port.headroom:
            found.append(
                f"{where}: {_megabytes(port.rate)} is more than the {_megabytes(port.headroom)} that clients leave now"
            )
    more = len(found) - _SHOWN
    return [*found[:_SHOWN], f"and the same of {more} ports more"] if more > 0 else found


def _megabytes(rate: BytesPerSecond) -> str:
    return f"{rate / MEGABYTE:.2f} MB/s"

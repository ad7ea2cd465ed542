"""The estimated duration of a planned reassignment, and the throttles that it needs.

Replicas are copied in parallel, so the reassignment ends with its slowest link side. Data produced to the partitions
in the meantime must be copied, too, and counts against the throttle. The type to know is `Estimate`.

Source: KIP-73 (MoveRatio, MoveTime).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import compress
from typing import Any

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.log_sizes import LogSizes
from autothrottle.core.cluster.snapshot import NO_LEADER, TopicPartition, TopicReassignment
from autothrottle.core.errors import Invalid
from autothrottle.core.forecast.eta import LONGEST, move_ratio, move_time, needed_rate
from autothrottle.core.records import Decision, Estimate, LinkSideEstimate
from autothrottle.core.units import BytesPerSecond, megabytes_per_second

_COLUMNS = ("partitions", "leaders", "isr", "adding_replicas", "removing_replicas")
"""Columns of a `TopicReassignment`."""

_SHOWN = 10
"""Number of link sides that the warnings name."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The data that one link side has to carry."""

    size: int = 0
    """Bytes to copy."""
    growth: BytesPerSecond = 0
    """Produce traffic to these partitions that counts against the throttle, bytes/s; on the leader's side it includes
    the fetches of in-sync followers."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """The data that a reassignment has to copy."""

    sides: Mapping[LinkSide, Transfer] = field(default_factory=dict)
    """Link side -> its part, of the known partitions."""
    size: int = 0
    """Bytes to copy, summed over all copies."""
    partitions: int = 0
    """Number of partitions with replicas to copy."""
    unknown: int = 0
    """Number of these partitions without a leader, or whose leader did not report log sizes."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The operator's goal; without either field, the estimate uses the present headroom."""

    max_ratio: float | None = None
    """Share of every link's capacity that replication may take, in (0, 1]; None: not given."""
    within: timedelta | None = None
    """Wanted duration, 1 s to 365 days; None: not given."""

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


def restricted_to(
    reassignments: Iterable[TopicReassignment], chosen: Collection[TopicPartition]
) -> tuple[TopicReassignment, ...]:
    """Return the reassignments restricted to the chosen partitions."""
    restricted = []
    for reassignment in reassignments:
        is_chosen = [(reassignment.topic, partition) in chosen for partition in reassignment.partitions]
        columns: dict[str, Any] = {name: tuple(compress(getattr(reassignment, name), is_chosen)) for name in _COLUMNS}
        if columns["partitions"]:
            restricted.append(replace(reassignment, **columns))
    return tuple(restricted)


def sizes_needed(reassignments: Iterable[TopicReassignment]) -> Mapping[int, Mapping[str, frozenset[int]]]:
    """Return broker id -> topic -> partitions whose log sizes an estimate needs: leader and follower of every copy."""
    partitions_of_brokers: dict[int, dict[str, set[int]]] = {}
    for reassignment in reassignments:
        for partition, leader, _, pending in reassignment.rows():
            for broker_id in (leader, *pending) if pending else ():
                partitions_of_brokers.setdefault(broker_id, {}).setdefault(reassignment.topic, set()).add(partition)
    partitions_of_brokers.pop(NO_LEADER, None)
    return {
        b: {topic: frozenset(rows) for topic, rows in topics.items()} for b, topics in partitions_of_brokers.items()
    }


def transfers(reassignments: Iterable[TopicReassignment], sizes: LogSizes, later: LogSizes | None = None) -> Transfers:
    """Return the data that reassignments have to copy.

    Args:
        reassignments: the reassignments, in the form that they have once started.
        sizes: sizes of the logs from `sizes_needed`. A follower that did not report counts as empty.
        later: sizes of the same logs some seconds later, to measure the produce rate; None: it counts as 0.
    """
    sides: dict[LinkSide, tuple[int, float]] = {}
    size = partitions = unknown = 0

    def add(side: LinkSide, copied: int, growth: float) -> None:
        previous = sides.get(side, (0, 0.0))
        sides[side] = previous[0] + copied, previous[1] + growth

    for reassignment in reassignments:
        for partition, leader, isr, pending in reassignment.rows():
            if not pending:
                continue
            partitions += 1
            row = (reassignment.topic, partition)
            leader_size = _size(sizes, leader, row)
            unknown += leader_size is None
            growth = _growth(sizes, later, leader, row)
            in_sync = sum(b != leader for b in isr)
            for follower in pending:
                copied = max(0, (leader_size or 0) - (_size(sizes, follower, row) or 0))
                size += copied
                add((follower, ReplicaRole.FOLLOWER), copied, growth)
                add((leader, ReplicaRole.LEADER), copied, growth)
            add((leader, ReplicaRole.LEADER), 0, in_sync * growth)
    link_sides = {
        side: Transfer(copied, round(growth)) for side, (copied, growth) in sides.items() if side[0] != NO_LEADER
    }
    return Transfers(link_sides, size, partitions, unknown)


def _size(sizes: LogSizes, broker_id: int, row: TopicPartition) -> int | None:
    logs = sizes.brokers.get(broker_id)
    return logs.sizes.get(row) if logs else None


def _growth(sizes: LogSizes, later: LogSizes | None, leader: int, row: TopicPartition) -> float:
    """Return the growth rate of a leader's log, bytes/s; 0: unknown."""
    size, later_size = _size(sizes, leader, row), _size(later, leader, row) if later else None
    if later is None or size is None or later_size is None:
        return 0.0
    seconds = (later.brokers[leader].at - sizes.brokers[leader].at).total_seconds()
    return max(0, later_size - size) / seconds if seconds > 0 else 0.0


def estimate(
    carried: Transfers, decisions: Sequence[Decision], goal: Goal, total_partitions: int, notes: Sequence[str] = ()
) -> Estimate:
    """Return the estimated duration of a reassignment, or the rates that it needs.

    Args:
        carried: the data to copy.
        decisions: the decisions that the planner would make for it now.
        goal: the operator's goal.
        total_partitions: number of partitions in the cluster.
        notes: further warnings, one sentence each.
    """
    decided = {(d.broker_id, d.role): d for d in decisions}
    ordered = sorted(carried.sides.items(), key=lambda entry: (entry[0][0], entry[0][1].value))
    sides = tuple(_link_side_estimate(side, transfer, decided.get(side), goal) for side, transfer in ordered)
    durations = [side.seconds for side in sides if side.seconds is not None]
    is_known = not carried.unknown and len(durations) == len(sides)
    return Estimate(
        partitions=carried.partitions,
        total_partitions=total_partitions,
        move_ratio=move_ratio(carried.partitions, total_partitions),
        bytes_to_copy=carried.size,
        unknown_partitions=carried.unknown,
        seconds=max(durations, default=0.0) if is_known else None,
        sides=sides,
        warnings=(*notes, *_warnings(sides, goal)),
    )


def _link_side_estimate(side: LinkSide, transfer: Transfer, decision: Decision | None, goal: Goal) -> LinkSideEstimate:
    capacity = decision.capacity_bytes_per_second if decision else None
    rate = decision.rate_bytes_per_second if decision else None
    if goal.max_ratio is not None:
        rate = None if capacity is None else round(capacity * goal.max_ratio)
    if goal.within is not None:
        rate = needed_rate(transfer.size, transfer.growth, goal.within)
    duration = None if rate is None else move_time(transfer.size, rate, transfer.growth)
    return LinkSideEstimate(
        broker_id=side[0],
        role=side[1],
        bytes_to_copy=transfer.size,
        produced_bytes_per_second=transfer.growth,
        rate_bytes_per_second=rate,
        headroom_bytes_per_second=decision.headroom_bytes_per_second if decision else None,
        capacity_bytes_per_second=capacity,
        seconds=None if duration is None else duration.total_seconds(),
    )


def _warnings(sides: Sequence[LinkSideEstimate], goal: Goal) -> list[str]:
    warnings = []
    for side in sides:
        where = f"broker {side.broker_id} [{side.role.value}]"
        rate, headroom = side.rate_bytes_per_second, side.headroom_bytes_per_second
        if rate is None:
            warnings.append(f"{where}: its capacity is unknown, and so are its rate and time; check its metrics")
        elif side.seconds is None:
            warnings.append(
                f"{where}: at {megabytes_per_second(rate)} it would never end, because clients produce "
                f"{megabytes_per_second(side.produced_bytes_per_second)}; give it a higher rate"
            )
        elif goal != Goal() and headroom is not None and rate > headroom:
            free = megabytes_per_second(headroom)
            warnings.append(f"{where}: {megabytes_per_second(rate)} is more than the {free} that clients leave now")
    more = len(warnings) - _SHOWN
    return [*warnings[:_SHOWN], f"and {more} more link sides with such problems"] if more > 0 else warnings

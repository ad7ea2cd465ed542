"""How to write the tables of a scenario file; `scenario_file` reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Missing
from autothrottle.core.units import MEGABYTE

Step = tuple[float, float]
"""(seconds since the start of the reassignment, MB/s)."""

SMALLEST = 0.001
"""Smallest partition of a scenario file, MB."""

MOST_PARTITIONS = 5_000
"""Most partitions of a scenario file."""


def fitting(partitions: Sequence[int]) -> list[int]:
    """Return the number of partitions that a scenario file gives each path: scaled down if the sum is too large.

    >>> fitting([3, 1]), fitting([60_000, 20_000, 1])
    ([3, 1], [3747, 1249, 1])

    Args:
        partitions: number of partitions of each path, >= 1.

    Raises:
        Missing: there are more paths than a file may have partitions.
    """
    total, paths = sum(partitions), len(partitions)
    if paths > MOST_PARTITIONS:
        raise Missing(
            f"{paths} paths from a leader to a follower have bytes to copy; a scenario holds at most "
            f"{MOST_PARTITIONS}. Fix: use a smaller reassignment, or retry when fewer paths are left"
        )
    if total <= MOST_PARTITIONS:
        return list(partitions)
    return [max(count * (MOST_PARTITIONS - paths) // total, 1) for count in partitions]


def broker_lines(
    broker_id: int, capacities: Mapping[ReplicaRole, int], loads: Mapping[ReplicaRole, Sequence[Step]]
) -> list[str]:
    """Return the table of one broker.

    Args:
        broker_id: its id.
        capacities: capacity of at least one of its link sides, bytes/s; the other side gets the same.
        loads: client load of the same link sides, ascending by time; the other side gets none.
    """
    roles, widest = (ReplicaRole.LEADER, ReplicaRole.FOLLOWER), max(capacities.values())
    outbound, inbound = (capacities.get(role, widest) / MEGABYTE for role in roles)
    sent, received = (loads.get(role, ()) for role in roles)
    times = sorted({at for steps in loads.values() for at, _ in steps})
    return [
        "",
        "[[broker]]",
        f"id = {broker_id}",
        f"capacity = {{ tx = {outbound:g}, rx = {inbound:g} }}",
        "traffic = [",
        *(f"  {{ at = {at:.1f}, tx = {_rate(sent, at):g}, rx = {_rate(received, at):g} }}," for at in times),
        "]",
    ]


def _rate(steps: Sequence[Step], at: float) -> float:
    return next((rate for since, rate in reversed(steps) if since <= at), 0.0)


def reassignment_lines(
    topic: str, partitions: int, megabytes: float, leader: int, follower: int, produce: float
) -> list[str]:
    """Return the table of the partitions that one follower copies from one leader.

    Args:
        topic: topic name.
        partitions: number of partitions.
        megabytes: size of each partition, MB.
        leader: broker id of the leader.
        follower: broker id of the adding replica.
        produce: rate at which producers append to each partition, MB/s.
    """
    return [
        "",
        "[[move]]",
        f"topic = {json.dumps(topic)}",
        f"partitions = {partitions}",
        f"megabytes = {megabytes:.3f}",
        f"replicas = [{leader}]",
        f"to = [{leader}, {follower}]",
        f"produce = {produce:.4f}",
    ]

"""How to write the tables of a scenario file; `scenario_file` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from autothrottle.core.errors import Missing
from autothrottle.core.units import MEGABYTE

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
    broker_id: int, tx_capacity: int, rx_capacity: int, traffic: Iterable[tuple[float, float, float]]
) -> list[str]:
    """Return the table of one broker.

    Args:
        broker_id: its id.
        tx_capacity: capacity of its outbound link, bytes/s.
        rx_capacity: capacity of its inbound link, bytes/s.
        traffic: (seconds since the start of the reassignment, MB/s that clients read, MB/s that they write), ascending.
    """
    return [
        "",
        "[[broker]]",
        f"id = {broker_id}",
        f"capacity = {{ tx = {tx_capacity / MEGABYTE:g}, rx = {rx_capacity / MEGABYTE:g} }}",
        "traffic = [",
        *(f"  {{ at = {at:.1f}, tx = {sent:g}, rx = {got:g} }}," for at, sent, got in traffic),
        "]",
    ]


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

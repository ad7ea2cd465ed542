"""The text of scenario files, as whoever makes one writes it; `scenario_file` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from autothrottle.core.errors import Missing
from autothrottle.core.loads import MEGABYTE

SMALLEST = 0.001
"""MB of a partition below which a file cannot hold it."""

MOST_PARTITIONS = 5_000
"""That a file may have."""


def fitting(partitions: Sequence[int]) -> list[int]:
    """Return with how many partitions of a file each path has as many as it has: fewer where all are too many.

    >>> fitting([3, 1]), fitting([60_000, 20_000, 1])
    ([3, 1], [3747, 1249, 1])

    Args:
        partitions: how many each path has, >= 1.

    Raises:
        Missing: when there are more paths than a file may have partitions.
    """
    total, paths = sum(partitions), len(partitions)
    if paths > MOST_PARTITIONS:
        raise Missing(
            f"{paths} paths of a leader and a destination have something to copy, and a scenario holds at most "
            f"{MOST_PARTITIONS}. Fix: make one of a smaller move, or when less is left"
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
        tx_capacity: what its link sends, bytes/s.
        rx_capacity: what it receives, bytes/s.
        traffic: (seconds since the start of the move, MB/s that clients read, MB/s that they write), ascending.
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


def move_lines(topic: str, partitions: int, megabytes: float, leader: int, follower: int, produce: float) -> list[str]:
    """Return the table of what one leader sends to one destination; of each partition its MB and what comes, MB/s."""
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

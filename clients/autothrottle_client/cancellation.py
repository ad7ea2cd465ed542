"""Which partitions `throttlectl cancel` means. Pure: the caller queries the moves and reads files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from autothrottle.core.records import RunningMove
from autothrottle_client.errors import Invalid, Missing
from autothrottle_client.reassignments import Partition

_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")

NOTHING_MOVES = "no partitions are being reassigned"


def partitions_of_broker(moves: Iterable[RunningMove], broker_id: int) -> frozenset[Partition]:
    """Return the partitions whose moves add a replica to a broker or remove one from it.

    Raises:
        Missing: there are none.
    """
    moves_of_broker = (move for move in moves if broker_id in (*move.adding_replicas, *move.removing_replicas))
    if not (partitions := _partitions(moves_of_broker)):
        raise Missing(
            f"no move adds a replica to broker {broker_id} or removes one; throttlectl reassignments lists all"
        )
    return partitions


def all_partitions(moves: Iterable[RunningMove]) -> frozenset[Partition]:
    """Return the partitions of all moves.

    Raises:
        Missing: there are none.
    """
    if not (partitions := _partitions(moves)):
        raise Missing(NOTHING_MOVES)
    return partitions


def named_partitions(text: str, moves: Iterable[RunningMove]) -> frozenset[Partition]:
    """Return the partitions that TOPIC, TOPIC:7 or TOPIC:0-3,7 names; empty: no topic of this name is being reassigned.

    Numbers of partitions that are not being reassigned stay, so that the answer names them.

    Raises:
        Invalid: the numbers of the partitions are malformed.
    """
    topic, colon, numbers = text.partition(":")
    moving = frozenset(partition for partition in _partitions(moves) if partition[0] == topic)
    if not colon or not moving:
        return moving
    return frozenset((topic, number) for number in _parse_numbers(text, numbers, {number for _, number in moving}))


def similar_name(text: str, moves: Iterable[RunningMove]) -> str:
    """Return TOPIC:7 for the name TOPIC-7 of a moving partition, which refusals and Kafka's tools print; "": none."""
    topic, _, number = text.rpartition("-")
    is_moving = number.isascii() and number.isdigit() and (topic, int(number[:10])) in _partitions(moves)
    return f"{topic}:{int(number)}" if is_moving else ""


def _partitions(moves: Iterable[RunningMove]) -> frozenset[Partition]:
    return frozenset((move.topic, partition) for move in moves for partition in move.partitions)


def _parse_numbers(text: str, numbers: str, moving: Collection[int]) -> Iterator[int]:
    for part in numbers.split(","):
        if (match := _RANGE.fullmatch(part.strip())) is None:
            raise Invalid(f"{text[:60]!r} names no partitions; give for example orders, orders:7 or orders:0-3,7")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise Invalid(f"{text[:60]!r} has the range {first}-{last}; give the smaller number first")
        if match[2]:  # a range names the moving ones among them
            yield from (number for number in sorted(moving) if first <= number <= last)
        else:
            yield first

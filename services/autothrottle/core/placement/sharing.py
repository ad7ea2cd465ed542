"""Let each broker share partitions with more other brokers, by swapping replicas or moving small ones."""

from __future__ import annotations

from statistics import fmean

from autothrottle.core.placement.fill import shared_pairs
from autothrottle.core.placement.replica_counts import FreeLimits, moved_replicas
from autothrottle.core.placement.replica_table import HOLE, ReplicaTable

_FEW_REPLICAS = 0.25
"""A broker with fewer replicas than this fraction of the mean shares partitions with few brokers."""
_ROOM = 0.015
"""Moves of small replicas may widen the range of free storage by this fraction of the mean free storage."""
_SWEEPS = 2
"""Number of passes. A swap may make another one possible in the next pass."""


def widen_sharing(table: ReplicaTable, limits: FreeLimits) -> None:
    """Swap replicas that the plan moves, so that low degrees rise.

    The degree of a broker is the number of brokers with which it shares a partition. Leaders change places with leaders
    and followers with followers, so each broker keeps its numbers of leaders and replicas.
    """
    moved = moved_replicas(table)
    if not any(map(any, moved)):
        return
    sharing, sizes = _Sharing(table), table.sizes

    def swapped(partition: int, source: int, other: int, destination: int) -> bool:
        change = sizes[partition] - sizes[other]
        done = (
            table.fits(other, destination, source)
            and limits.allow(change, source, destination)
            and sharing.swap(partition, source, other, destination)
        )
        if done:
            limits.move(change, source, destination)
        return done

    for replicas in moved * _SWEEPS:
        for broker in sorted(range(table.count), key=lambda each: sharing.degrees[each]):
            others = [(source, each) for source, items in enumerate(replicas) if source != broker for each in items]
            for source, partition in others if replicas[broker] else ():
                if sharing.joined(partition, source, broker) and table.fits(partition, source, broker):
                    other = next((each for each in replicas[broker] if swapped(partition, source, each, broker)), None)
                    if other is not None:
                        replicas[source][replicas[source].index(partition)] = other
                        replicas[broker][replicas[broker].index(other)] = partition


def keep_small_replicas(table: ReplicaTable, only_back: bool) -> None:
    """Give small replicas to brokers that hold few, for example nothing but one large partition.

    With `only_back`, replicas return to the brokers from which they moved, so that fewer bytes are copied.
    """
    loads, home, sizes = table.loads(), table.home, table.sizes
    active = table.staying
    few = _FEW_REPLICAS * sum(loads) / max(len(active), 1)
    sparse = [
        broker
        for broker in table.receivers
        if 0 < loads[broker] < few and not (only_back and table.brokers[broker].new)
    ]
    if not sparse:
        return
    limits = FreeLimits.around(table, _ROOM * fmean(table.free()[broker] for broker in active))
    sharing = _Sharing(table)
    smallest_first = sorted(range(len(sizes)), key=sizes.__getitem__)

    def may_move(partition: int, source: int, destination: int) -> bool:
        return (
            source not in (HOLE, *sparse)
            and not (only_back and source in home[partition])
            and sharing.joined(partition, source, destination) == len(table.sets[partition]) - 1
            and table.fits(partition, source, destination)
            and limits.allow(sizes[partition], source, destination)
        )

    for broker in sparse:
        for partition in smallest_first:
            if limits.free[broker] - sizes[partition] < limits.lowest:
                break
            if only_back and broker not in home[partition]:
                continue
            source = next((each for each in table.sets[partition] if may_move(partition, each, broker)), HOLE)
            if source != HOLE:
                sharing.move(partition, source, broker)
                limits.move(sizes[partition], source, broker)


class _Sharing:
    """Counts the partitions that each pair of brokers shares."""

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._pairs = pairs = shared_pairs(table)
        count = table.count
        self.degrees = [sum(pairs[row + other] > 0 for other in range(count)) for row in range(0, count * count, count)]
        self._lacking = 0
        """Sum of the squares of (brokers - degree), minus its first value; lower is better."""

    def joined(self, partition: int, source: int, destination: int) -> int:
        """Return the number of brokers of this set with which the destination shares no partition yet."""
        row, pairs = destination * self._table.count, self._pairs
        return sum(not pairs[row + other] for other in self._table.sets[partition] if other not in (source, HOLE))

    def swap(self, partition: int, source: int, other: int, destination: int) -> bool:
        """Swap two replicas if that raises low degrees; return whether it does."""
        old_lacking = self._lacking
        self.move(partition, source, destination)
        self.move(other, destination, source)
        if self._lacking < old_lacking:
            return True
        self.move(other, source, destination)
        self.move(partition, destination, source)
        return False

    def move(self, partition: int, source: int, destination: int) -> None:
        """Put the replica on `source` to `destination`."""
        for broker in self._table.sets[partition]:
            if broker not in (source, HOLE):
                self._link(broker, source, -1)
                self._link(broker, destination, 1)
        self._table.move(partition, source, destination)

    def _link(self, first: int, second: int, step: int) -> None:
        count = self._table.count
        for broker, other in (first, second), (second, first):
            shared = self._pairs[broker * count + other]
            self._pairs[broker * count + other] = shared + step
            if shared + step == 0 or shared == 0:
                lacking = count - self.degrees[broker]
                self.degrees[broker] += step
                self._lacking += (lacking - step) ** 2 - lacking**2

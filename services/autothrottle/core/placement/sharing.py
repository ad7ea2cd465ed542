"""Let brokers share partitions with more brokers, by swaps among the replicas that move anyway."""

from __future__ import annotations

from autothrottle.core.placement.fill import shared_pairs
from autothrottle.core.placement.replica_counts import FreeLimits, moved_replicas
from autothrottle.core.placement.replica_table import HOLE, ReplicaTable


def widen_sharing(table: ReplicaTable, limits: FreeLimits) -> None:
    """Swap moved replicas of two brokers where the degrees of brokers with low degrees rise.

    Two leaders change places, or two followers, so that each broker keeps its numbers of leaders and replicas.
    """
    sharing, fits, sizes = _Sharing(table), table.fits, table.sizes
    for held in moved_replicas(table):
        for broker in sorted(range(table.count), key=lambda each: sharing.degrees[each]):
            if not held[broker]:
                continue
            for source, partition in [(each, item) for each, items in enumerate(held) for item in items]:
                if source == broker or not sharing.joins(partition, source, broker):
                    continue
                for other in held[broker] if partition in held[source] else ():
                    if (
                        fits(partition, source, broker)
                        and fits(other, broker, source)
                        and limits.allow(sizes[partition] - sizes[other], source, broker)
                        and sharing.swap(partition, source, other, broker)
                    ):
                        held[source].remove(partition)
                        held[broker].remove(other)
                        held[source].append(other)
                        held[broker].append(partition)
                        limits.move(sizes[partition] - sizes[other], source, broker)
                        break


class _Sharing:
    """Counts the partitions that each pair of brokers shares."""

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._pairs = pairs = shared_pairs(table)
        count = table.count
        self.degrees = [sum(pairs[row + other] > 0 for other in range(count)) for row in range(0, count * count, count)]
        self._lacking = 0
        """Change of the sum of the squares of the numbers of brokers with which brokers share nothing."""

    def joins(self, partition: int, source: int, destination: int) -> bool:
        """Return whether the destination shares no partition yet with a broker of this set."""
        row = destination * self._table.count
        return any(
            other not in (source, HOLE) and not self._pairs[row + other] for other in self._table.sets[partition]
        )

    def swap(self, partition: int, source: int, other: int, destination: int) -> bool:
        """Swap two replicas if that raises low degrees; return whether it does."""
        before = self._lacking
        self._move(partition, source, destination)
        self._move(other, destination, source)
        if self._lacking < before:
            return True
        self._move(other, source, destination)
        self._move(partition, destination, source)
        return False

    def _move(self, partition: int, source: int, destination: int) -> None:
        for broker in self._table.sets[partition]:
            if broker not in (source, HOLE):
                self._link(broker, source, -1)
                self._link(broker, destination, 1)
        self._table.move(partition, source, destination)

    def _link(self, left: int, right: int, step: int) -> None:
        count = self._table.count
        for broker, other in (left, right), (right, left):
            shared = self._pairs[broker * count + other]
            self._pairs[broker * count + other] = shared + step
            if shared + step == 0 or shared == 0:
                lacking = count - self.degrees[broker]
                self.degrees[broker] += step
                self._lacking += (lacking - step) ** 2 - lacking**2

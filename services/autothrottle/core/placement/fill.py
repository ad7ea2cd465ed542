"""Choose brokers for the holes of a `ReplicaTable`: by the number of replicas, or by free storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from autothrottle.core.placement.replica_table import HOLE, ReplicaTable

_CANDIDATES = 4
"""Equally loaded brokers of a rack that are compared by the partitions that they already share."""
_MASK = 0xFFFFFFFF


def mixed(value: int) -> int:
    """Return a fixed pseudo-random number in [0, 2^32) for a number >= 0.

    It replaces `random`, whose shuffles may differ between versions of Python.
    """
    value = (value + 1) * 0x9E3779B1 & _MASK
    value = (value ^ value >> 15) * 0x85EBCA77 & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE3D & _MASK
    return value ^ value >> 16


def holes_by_position(table: ReplicaTable) -> list[list[int]]:
    """Return the partitions with a hole at each position, in order."""
    holes: list[list[int]] = [[] for _ in range(max(map(len, table.sets), default=0))]
    for partition, replicas in enumerate(table.sets):
        if HOLE in replicas:
            for position, broker in enumerate(replicas):
                if broker == HOLE:
                    holes[position].append(partition)
    return holes


def fill_by_count(table: ReplicaTable, free: list[int], *, largest_first: bool = False) -> None:
    """Fill the holes: leaders where few leaders are, followers where few replicas are.

    Among equal brokers, those with the most free storage come first, and of these the one that shares the fewest
    partitions with the set.

    Args:
        table: its holes are filled.
        free: free storage of each broker without the holes, bytes, or zeros; it is updated.
        largest_first: fill by descending size, which makes storage more even, rather than topic by topic.
    """
    pairs, sizes = shared_pairs(table), table.sizes
    for position, partitions in enumerate(holes_by_position(table)):
        if partitions:
            order = sorted(partitions, key=lambda each: -sizes[each]) if largest_first else partitions
            _CountFill(table, position, pairs, free).fill(order)


SharedPairs = list[int] | Counter[int]
"""The number of partitions that brokers share, at `broker * count + other`."""

_MOST_LISTED = 2_000
"""Brokers up to which all their pairs are in a list, which is faster than a counter and takes up to 32 MB."""


def shared_pairs(table: ReplicaTable) -> SharedPairs:
    """Return the number of partitions that brokers share."""
    count = table.count
    pairs: SharedPairs = [0] * (count * count) if count <= _MOST_LISTED else Counter()
    for replicas in table.sets:
        for broker in replicas:
            if broker != HOLE:
                for other in replicas:
                    if other != HOLE:
                        pairs[broker * count + other] += 1
    return pairs


class _CountFill:
    """Fills one position. A tier holds the brokers of a group with the lowest load that have not been chosen since."""

    def __init__(self, table: ReplicaTable, position: int, pairs: SharedPairs, free: list[int]) -> None:
        self._table = table
        self._free = free
        self._position = position
        self._pairs = pairs
        self._totals = table.loads()
        self._loads = self._totals if position else table.leaders()
        self._groups = [[broker for broker in group if table.receives[broker]] for group in table.groups]
        self._tiers: list[list[int]] = [[] for _ in self._groups]
        self._levels = [0] * len(self._groups)
        self._rounds = position << 16
        for group in range(len(self._groups)):
            self._refresh(group)

    def _refresh(self, group: int) -> None:
        brokers, loads = self._groups[group], self._loads
        if not brokers:
            self._levels[group] = 1 << 62
            return
        self._rounds += 1
        level = min(loads[broker] for broker in brokers)
        tier = [broker for broker in brokers if loads[broker] == level]
        totals, free, salt = self._totals, self._free, self._rounds * 0x10001
        if len(tier) > 1:
            # The last entries are taken first.
            tier.sort(key=lambda broker: (-totals[broker], free[broker], mixed(broker + salt)))
        self._levels[group], self._tiers[group] = level, tier

    def fill(self, partitions: Iterable[int]) -> None:
        table, pairs, loads, levels, tiers = self._table, self._pairs, self._loads, self._levels, self._tiers
        racks, sets, count, rackless = table.racks, table.sets, table.count, table.rackless
        free, sizes = self._free, table.sizes
        position, totals, first = self._position, self._totals, self._position == 0
        groups = range(len(levels))
        for partition in partitions:
            replicas = sets[partition]
            others = [broker for broker in replicas if broker != HOLE]
            crowded_racks = table.crowded_racks(len(replicas), others)
            level = 1 << 61
            chosen = -1
            for group in groups:
                if levels[group] <= level and group not in crowded_racks:
                    if levels[group] < level:
                        level, least, chosen = levels[group], 1 << 60, -1
                    for broker in tiers[group][-_CANDIDATES:]:
                        if broker in others:
                            continue
                        shared = 0
                        for other in others:
                            shared += pairs[broker * count + other]
                        if shared < least:
                            least, chosen, home = shared, broker, group
            if chosen < 0 or (levels[home] > level):
                # The least loaded broker of all that fit.
                fitting = allowed_brokers(table, partition)
                chosen = min(fitting, key=lambda broker: (loads[broker], totals[broker], broker), default=-1)
                if chosen < 0:
                    continue
                home = racks[chosen] if table.brokers[chosen].rack else rackless
            replicas[position] = chosen
            free[chosen] -= sizes[partition]
            loads[chosen] += 1
            if first:
                totals[chosen] += 1
            for other in others:
                pairs[chosen * count + other] += 1
                pairs[other * count + chosen] += 1
            tier = tiers[home]
            if chosen in tier:
                tier.remove(chosen)
            if not tier:
                self._refresh(home)


def fill_by_storage(table: ReplicaTable, free: list[int], whole_partitions: bool) -> None:
    """Fill the holes with the brokers of most free storage, largest partitions first.

    Args:
        table: its holes are filled.
        free: free storage of each broker without the holes, bytes; it is updated.
        whole_partitions: fill all holes of a partition before the next one, rather than position by position.
    """
    fill, sizes = _StorageFill(table, free), table.sizes
    with_holes = [partition for partition, replicas in enumerate(table.sets) if HOLE in replicas]
    for partitions in [with_holes] if whole_partitions else holes_by_position(table):
        for partition in sorted(partitions, key=lambda each: -sizes[each]):
            for _ in range(table.sets[partition].count(HOLE) if whole_partitions else 1):
                fill.fill(partition)


def allowed_brokers(table: ReplicaTable, partition: int, holes: int = 0) -> list[int]:
    """Return the brokers that may join a set by the rules on brokers and racks; `holes`: slots left out of the set."""
    replicas = [broker for broker in table.sets[partition] if broker != HOLE]
    racks = table.crowded_racks(len(table.sets[partition]) + holes, replicas)
    return [broker for broker in table.receivers if broker not in replicas and table.racks[broker] not in racks]


class _StorageFill:
    """Fills holes from one heap per group, whose first entry has about the most free storage.

    A key is moved by up to the size that was placed: otherwise equal sizes would pair the same brokers again and
    again. The shift shrinks with the sizes.
    """

    def __init__(self, table: ReplicaTable, free: list[int]) -> None:
        self._table = table
        self._free = free
        self._turn = 0
        self._heaps = [
            [(-free[broker], broker) for broker in group if table.receives[broker]] for group in table.groups
        ]
        for heap in self._heaps:
            heapify(heap)

    def fill(self, partition: int) -> None:
        table = self._table
        replicas = table.sets[partition]
        others = [broker for broker in replicas if broker != HOLE]
        crowded_racks = table.crowded_racks(len(replicas), others)
        if not self._place(partition, others, crowded_racks) and crowded_racks and table.allow_fewer_racks:
            self._place(partition, others, [])

    def _place(self, partition: int, others: list[int], crowded_racks: list[int]) -> bool:
        """Give the first hole to the broker with the most free storage; return whether one has enough."""
        table, free, heaps = self._table, self._free, self._heaps
        replicas, size = table.sets[partition], table.sizes[partition]
        aside: list[tuple[int, tuple[int, int]]] = []
        chosen, best = -1, 1 << 62
        for group, heap in enumerate(heaps):
            if group in crowded_racks and group != table.rackless:
                continue
            while heap and (heap[0][1] in others or free[heap[0][1]] < size):
                aside.append((group, heappop(heap)))
            if heap and heap[0][0] < best:
                best, chosen = heap[0][0], group
        if chosen >= 0:
            broker = heappop(heaps[chosen])[1]
            free[broker] -= size
            self._turn += 1
            shift = (mixed(self._turn) >> 16) * size >> 16
            heappush(heaps[chosen], (shift - free[broker], broker))
            replicas[replicas.index(HOLE)] = broker
        for group, entry in aside:
            heappush(heaps[group], entry)
        return chosen >= 0

"""Make free storage even by moves and swaps of replicas that copy few bytes. The type to know is `Balancing`."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from autothrottle.core.placement.fill import mixed
from autothrottle.core.placement.replica_table import ReplicaTable

_NEIGHBOURS = 4
"""Number of replicas to try on either side of the ideal size."""
_SAMPLES = 48
"""Number of replicas of a broker to try for swaps."""
_PARTNERS = 10
"""Number of brokers to try for an exchange, besides those of the same rack."""
_STEPS = 150
"""Highest number of exchanges per broker."""
_TRIED = 3
"""Number of partners whose exchanges are compared."""


class _Exchange(NamedTuple):
    """A move, or a swap if `incoming` is not negative."""

    gain: int
    outgoing: int
    """Partition whose replica moves from the fuller to the emptier broker."""
    incoming: int
    """Partition whose replica moves the other way; -1: none."""


@dataclass(frozen=True, slots=True)
class MoveRules:
    """Which replicas may move, and how far."""

    budget: float = float("inf")
    """Bytes that may be copied."""
    only_moved: bool = False
    """Only replicas that the plan has already moved may move."""
    sources: frozenset[int] | None = None
    """Brokers (indices) from which replicas may move; None: all."""
    limit: int = 0
    """Highest number of replicas that leave each broker; 0: no limit."""
    smallest: int = 0
    """Partitions below this size stay, bytes."""
    within_rack: bool = False
    only_swaps: bool = False
    """Each broker keeps its number of replicas."""
    tolerance: float | None = None
    """Largest distance of free storage from the mean, as a fraction of the mean; None: as even as possible."""
    steps: int = 15_000
    """Highest number of exchanges. It bounds the time for large clusters."""


class Balancing:
    """Moves replicas of a table until free storage is even.

    The level is the mean free storage of all brokers. `excess` is the level minus a broker's free storage, bytes. Each
    step reduces the sum of the squared excesses, so that the search ends.
    """

    def __init__(
        self, table: ReplicaTable, free: list[int], rules: MoveRules, weights: list[int] | None = None
    ) -> None:
        """Take over a table.

        Args:
            table: its sets change.
            free: the quantity to even out, for each broker.
            rules: which replicas may move.
            weights: how much of `free` each replica uses; None: its size.
        """
        self._weights = weights = table.sizes if weights is None else weights
        self._table = table
        self._rules = rules
        self._active = table.staying
        self._level = sum(free[broker] for broker in self._active) // max(len(self._active), 1)
        self.excess = [self._level - each for each in free]
        self._slack = int((rules.tolerance or 0) * self._level)
        self._spent = table_cost(table)
        self._changed = (-1, -1)
        self._leaving = [0] * table.count
        for old, new in zip(table.home, table.sets, strict=True):
            for broker in set(old).difference(new) if list(old) != new else ():
                self._leaving[broker] += 1
        self._replicas: list[list[tuple[int, int]]] = [[] for _ in range(table.count)]
        for partition, replicas in enumerate(table.sets):
            weight = weights[partition]
            if table.sizes[partition] < rules.smallest or weight < 1:
                continue
            fixed = table.fixed[partition] if rules.only_moved else ()
            for broker in replicas:
                if broker not in fixed:
                    self._replicas[broker].append((weight, partition))
        for replicas_of_broker in self._replicas:
            replicas_of_broker.sort()

    def run(self) -> None:
        """Move large replicas from full to empty brokers, then refine by smaller moves and swaps."""
        if not self._rules.only_moved:
            self.drain()
        self.refine()

    def drain(self) -> None:
        """Move large replicas from full to empty brokers while both get closer to the level."""
        table, excess, slack = self._table, self.excess, self._slack
        rules = self._rules
        heaps = [[(excess[b], b) for b in group if table.receives[b] and excess[b] < 0] for group in table.groups]
        for heap in heaps:
            heapify(heap)
        sources = [b for b in self._active if excess[b] > slack and (rules.sources is None or b in rules.sources)]
        # A random factor keeps replicas of a large partition from moving together, which would pair their new brokers.
        items = [
            (-weight * (256 + (mixed(partition ^ source << 20) >> 24)), partition, source, weight)
            for source in sources
            for weight, partition in self._replicas[source]
        ]
        for order in sorted(items), sorted(items, key=lambda item: (-item[3], item)):
            for _, partition, source, weight in order:
                if slack < excess[source] >= weight and source in table.sets[partition]:
                    destination = self._emptiest(heaps, partition, source, weight)
                    if destination >= 0:
                        self._move(partition, source, destination)
                        heappush(heaps[self._group(destination)], (excess[destination], destination))

    def _group(self, broker: int) -> int:
        table = self._table
        return table.racks[broker] if table.brokers[broker].rack else table.rackless

    def _emptiest(self, heaps: list[list[tuple[int, int]]], partition: int, source: int, weight: int) -> int:
        """Return the broker with most room that can take the replica, removed from its heap; -1: none can."""
        table = self._table
        if not self._may_leave(partition, source):
            return -1
        best, chosen = -weight + 1, -1
        aside: list[tuple[int, tuple[int, int]]] = []
        for group, heap in enumerate(heaps):
            while heap and heap[0][0] < best:
                if table.fits(partition, source, heap[0][1]) and self._rack_allowed(source, heap[0][1]):
                    best, chosen = heap[0][0], group
                    break
                if group != table.rackless and heap[0][1] not in table.sets[partition]:
                    break
                aside.append((group, heappop(heap)))
        broker = heappop(heaps[chosen])[1] if chosen >= 0 else -1
        for group, entry in aside:
            heappush(heaps[group], entry)
        return broker

    def _rack_allowed(self, source: int, destination: int) -> bool:
        return not self._rules.within_rack or self._table.racks[source] == self._table.racks[destination]

    def _may_leave(self, partition: int, source: int) -> bool:
        """Return whether this replica may move: always if it has moved before, else within its broker's limit."""
        if source not in self._table.home[partition]:
            return True
        rules = self._rules
        return (rules.sources is None or source in rules.sources) and not 0 < rules.limit <= self._leaving[source]

    def _cost(self, partition: int, source: int, destination: int) -> int:
        home, size = self._table.home[partition], self._table.sizes[partition]
        return (destination not in home) * size - (source not in home) * size

    def _move(self, partition: int, source: int, destination: int) -> None:
        table, weight = self._table, self._weights[partition]
        self._spent += self._cost(partition, source, destination)
        home = table.home[partition]
        self._leaving[source] += source in home
        self._leaving[destination] -= destination in home
        table.move(partition, source, destination)
        entry = (weight, partition)
        replicas = self._replicas[source]
        del replicas[bisect_left(replicas, entry)]
        if not (self._rules.only_moved and destination in table.fixed[partition]):
            insort(self._replicas[destination], entry)
        self.excess[source] -= weight
        self.excess[destination] += weight

    # Exchanges between the fullest and the emptiest brokers.

    def refine(self) -> None:
        """Exchange replicas between the brokers that are farthest from the level, until nothing improves."""
        stuck: set[int] = set()
        excess, active = self.excess, self._active
        goal = max(self._slack, self._level // 200_000, 1)
        for _ in range(min(_STEPS * len(active), self._rules.steps)):
            open_brokers = [broker for broker in active if broker not in stuck] if stuck else active
            if not open_brokers:
                return
            full, empty = max(open_brokers, key=excess.__getitem__), min(open_brokers, key=excess.__getitem__)
            worst = max(sorted((full, empty)), key=lambda broker: abs(excess[broker]))
            if abs(excess[worst]) <= goal:
                return
            if self._improve(worst):
                stuck.difference_update(self._changed)
            else:
                stuck.add(worst)

    def _improve(self, worst: int) -> bool:
        """Apply the best exchange of this broker with one of its partners; return whether one exists."""
        excess = self.excess
        best_exchange: _Exchange | None = None
        pair, exchanges = (-1, -1), 0
        for partner in self._partners(worst):
            full, empty = (worst, partner) if excess[worst] > 0 else (partner, worst)
            best = self._exchange(full, empty)
            if best is not None:
                exchanges += 1
                if best_exchange is None or best.gain > best_exchange.gain:
                    best_exchange, pair = best, (full, empty)
                gap = excess[full] - excess[empty]
                if exchanges == _TRIED or best.gain >= _enough(gap) or 2 * self._replicas[full][-1][0] < gap:
                    break
        if best_exchange is None:
            return False
        self._changed = pair
        self._move(best_exchange.outgoing, *pair)
        if best_exchange.incoming >= 0:
            self._move(best_exchange.incoming, pair[1], pair[0])
        return True

    def _partners(self, broker: int) -> Sequence[int]:
        """Return brokers to exchange with: some of the same rack, then those whose excess differs most."""
        excess, racks = self.excess, self._table.racks
        own = excess[broker]
        if own > 0:
            others = sorted([each for each in self._active if excess[each] < own], key=excess.__getitem__)
        else:
            others = sorted([each for each in self._active if excess[each] > own], key=excess.__getitem__, reverse=True)
        near = [each for each in others if racks[each] == racks[broker]][:_PARTNERS]
        return list(dict.fromkeys(near + others[:_PARTNERS]))

    def _exchange(self, full: int, empty: int) -> _Exchange | None:
        """Return the exchange that brings both brokers closest to each other within the budget."""
        gap = self.excess[full] - self.excess[empty]
        best: _Exchange | None = None
        if self._rack_allowed(full, empty) and self._table.receives[empty]:
            if not self._rules.only_swaps:
                best = self._best_move(full, empty, gap)
            if self._table.receives[full]:
                best = self._best_swap(full, empty, gap, best)
        return best

    def _best_move(self, full: int, empty: int, gap: int) -> _Exchange | None:
        best: _Exchange | None = None
        replicas = self._replicas[full]
        middle = bisect_left(replicas, (gap // 2, 0))
        for size, partition in replicas[max(middle - _NEIGHBOURS, 0) : middle + _NEIGHBOURS]:
            gain = size * (gap - size)
            if gain <= 0 or (best is not None and gain <= best.gain) or not self._allowed(partition, full, empty):
                continue
            if self._affordable(self._cost(partition, full, empty)):
                best = _Exchange(gain, partition, -1)
        return best

    def _best_swap(self, full: int, empty: int, gap: int, best: _Exchange | None) -> _Exchange | None:
        outgoing, incoming = self._replicas[full], self._replicas[empty]
        if not outgoing or not incoming:
            return best
        half, enough = gap // 2, _enough(gap)
        for size, partition in self._samples(outgoing, incoming[0][0] + half):
            middle = bisect_left(incoming, (size - half, 0))
            for other_size, other in incoming[max(middle - 2, 0) : middle + 2]:
                change = size - other_size
                gain = change * (gap - change)
                if gain <= 0 or (best is not None and gain <= best.gain) or partition == other:
                    continue
                if self._allowed(partition, full, empty) and self._allowed(other, empty, full):
                    cost = self._cost(partition, full, empty) + self._cost(other, empty, full)
                    if self._affordable(cost):
                        best = _Exchange(gain, partition, other)
                        if gain >= enough:
                            return best
        return best

    @staticmethod
    def _samples(replicas: list[tuple[int, int]], smallest: int) -> list[tuple[int, int]]:
        """Return a sample of the replicas of at least the smallest size; if there are few, of the largest ones."""
        start = max(min(bisect_left(replicas, (smallest, 0)), len(replicas) - _SAMPLES // 2), 0)
        first = replicas[start : start + _SAMPLES // 2]
        rest = replicas[start + _SAMPLES // 2 :]
        return first + rest[:: max(len(rest) * 2 // _SAMPLES, 1)]

    def _allowed(self, partition: int, source: int, destination: int) -> bool:
        return self._may_leave(partition, source) and self._table.fits(partition, source, destination)

    def _affordable(self, cost: int) -> bool:
        return cost <= 0 or self._spent + cost <= self._rules.budget


def _enough(gap: int) -> int:
    """Return the gain at which the search for a better exchange ends: 15/16 of the best possible one."""
    return gap * gap * 15 // 64


def table_cost(table: ReplicaTable) -> int:
    """Return the bytes that brokers have to copy to reach the table's sets."""
    cost = 0
    for size, old, new in zip(table.sizes, table.home, table.sets, strict=True):
        if list(old) != new:
            cost += size * sum(broker >= 0 and broker not in old for broker in new)
    return cost

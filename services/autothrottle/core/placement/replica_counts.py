"""Make the numbers of replicas of brokers even, and the numbers of leaders among replicas that move anyway.

Each broker also shares partitions with more other brokers, by swaps of replicas or moves of small ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from autothrottle.core.placement.fill import shared_pairs
from autothrottle.core.placement.replica_table import HOLE, ReplicaTable

_MOST_TRIALS = 1_000_000
"""Largest product of moved replicas and brokers for which swaps are tried. It bounds the time for large plans."""


@dataclass(frozen=True, slots=True)
class FreeLimits:
    """Limits of free storage that every move keeps."""

    free: list[int]
    """Free storage of each broker, bytes; moves update it."""
    lowest: float = float("-inf")
    highest: float = float("inf")

    @classmethod
    def around(cls, table: ReplicaTable, room: float) -> FreeLimits:
        """Return limits between which the range of free storage grows by at most `room` bytes.

        It does not become larger than before the plan, unless it is already.
        """
        free = table.free()
        old = [table.brokers[broker].storage_free or 0 for broker in table.staying]
        new = [free[broker] for broker in table.staying]
        if not new:
            return cls(free)
        side = max(min(room, max(old) - min(old) - max(new) + min(new)), 0) / 2
        return cls(free, max(min(new) - side, 0), max(new) + side)

    def allow(self, size: int, source: int, destination: int) -> bool:
        """Return whether the brokers may exchange this many bytes; negative: in the other direction."""
        source_free, destination_free = self.free[source] + size, self.free[destination] - size
        return self.lowest <= min(source_free, destination_free) and max(source_free, destination_free) <= self.highest

    def move(self, size: int, source: int, destination: int) -> None:
        """Record an exchange."""
        self.free[source] += size
        self.free[destination] -= size


def even_replicas(table: ReplicaTable, only_moved: bool, limits: FreeLimits | None = None) -> None:
    """Make the numbers of replicas even with few moves, of followers and small partitions first.

    With `only_moved`, replicas on their old brokers stay there. `limits` may prevent even counts.
    """
    limits = limits or FreeLimits([0] * table.count)
    sizes = table.sizes
    items: list[list[int]] = [[] for _ in range(table.count)]
    for partition in sorted(range(len(table.sets)), key=lambda each: sizes[each]):
        fixed = table.fixed[partition] if only_moved else ()
        for broker in table.sets[partition]:
            if broker != HOLE and broker not in fixed:
                items[broker].append(partition)
    if only_moved:
        for broker, partitions in enumerate(items):
            partitions.sort(key=lambda each: table.sets[each][0] == broker)

    def options(partition: int, source: int) -> Iterable[int]:
        fitting = (broker for broker in table.receivers if table.fits(partition, source, broker))
        return (broker for broker in fitting if limits.allow(sizes[partition], source, broker))

    def move(partition: int, source: int, destination: int) -> None:
        table.move(partition, source, destination)
        limits.move(sizes[partition], source, destination)

    even_counts(table.loads(), items, options, move)


def moved_replicas(table: ReplicaTable) -> tuple[list[list[int]], list[list[int]]]:
    """Return the partitions of each broker's moved leaders, and those of its moved followers.

    Partitions with several moved replicas are left out: these might conflict with each other. If replicas and brokers
    are too many for swaps, all are left out.
    """
    led: list[list[int]] = [[] for _ in range(table.count)]
    followed: list[list[int]] = [[] for _ in led]
    for partition, (replicas, fixed) in enumerate(zip(table.sets, table.fixed, strict=True)):
        moved = [broker for broker in replicas if broker not in fixed]
        if len(moved) == 1 and moved[0] != HOLE:
            (led if moved[0] == replicas[0] else followed)[moved[0]].append(partition)
    if table.count * sum(map(len, led + followed)) > _MOST_TRIALS:
        return [[] for _ in led], [[] for _ in led]
    return led, followed


def even_moved_leaders(table: ReplicaTable, limits: FreeLimits) -> None:
    """Make the numbers of leaders even: swap a moved leader with a moved follower of another partition.

    Replicas that the plan does not move stay, and each broker keeps its number of replicas.
    """
    sizes, loads = table.sizes, table.loads()
    staying = [loads[broker] for broker in table.staying]
    led, followed = moved_replicas(table)
    counts = FreeLimits([-load for load in loads], -max(staying, default=0), -min(staying, default=0))
    partners: dict[tuple[int, int], int] = {}

    def partner(partition: int, source: int, destination: int) -> int | None:
        """Return the follower that takes the place of a leader, -1 if the leader may move alone, None if it may not."""
        size = sizes[partition]
        if counts.allow(1, source, destination) and limits.allow(size, source, destination):
            return -1
        for other in followed[destination]:
            if table.fits(other, destination, source) and limits.allow(size - sizes[other], source, destination):
                return other
        return None

    def options(partition: int, source: int) -> Iterable[int]:
        for broker in table.receivers:
            if table.fits(partition, source, broker):
                follower = partner(partition, source, broker)
                if follower is not None:
                    partners[partition, broker] = follower
                    yield broker

    def move(partition: int, source: int, destination: int) -> None:
        other = partners[partition, destination]
        table.move(partition, source, destination)
        if other < 0:
            counts.move(1, source, destination)
            limits.move(sizes[partition], source, destination)
            return
        table.move(other, destination, source)
        followed[destination].remove(other)
        followed[source].append(other)
        limits.move(sizes[partition] - sizes[other], source, destination)

    even_counts(table.leaders(), led, options, move)


# Evening out counts along chains of moves: of leaderships within replica sets, or of replicas.


def even_counts(
    loads: list[int],
    items: list[list[int]],
    options: Callable[[int, int], Iterable[int]],
    move: Callable[[int, int, int], None],
) -> None:
    """Move items until no chain of moves leads from a broker to one with at least two items fewer.

    Then no assignment is more even: neither the most nor the fewest items of a broker can improve.

    Source: Harvey, Ladner, Lovasz, Tamir: Semi-matchings for bipartite graphs and load balancing (2003).

    Args:
        loads: count of each broker; it is updated.
        items: the items of each broker that can move; they are updated.
        options: (item, its broker) -> the brokers that can take it.
        move: called with each item, its broker and its new broker.
    """
    settled = [False] * len(loads)
    while not all(settled):
        rest = [broker for broker, done in enumerate(settled) if not done]
        start = max(rest, key=loads.__getitem__)
        if loads[start] - min(loads[broker] for broker in rest) < 2:
            return
        path, reached = _path(start, loads, items, options, settled)
        if len({item for _, item, _ in path}) < len(path):
            # One item would move twice at once, and the options know only its current place.
            path, reached = [], [start]
        if not path:
            # Nothing that this broker reaches helps any broker with as many items or fewer.
            for broker in reached:
                settled[broker] = True
            continue
        for source, item, destination in path:
            items[source].remove(item)
            items[destination].append(item)
            move(item, source, destination)
        loads[start] -= 1
        loads[path[0][2]] += 1


def _path(
    start: int,
    loads: list[int],
    items: list[list[int]],
    options: Callable[[int, int], Iterable[int]],
    settled: list[bool],
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Return the moves to a broker with two items fewer, last move first; and the brokers reached on the way."""
    limit = loads[start] - 2
    origin: dict[int, tuple[int, int]] = {start: (-1, -1)}
    queue = [start]
    for source in queue:
        for item in items[source]:
            for broker in options(item, source):
                if broker in origin or settled[broker]:
                    continue
                origin[broker] = (source, item)
                if loads[broker] <= limit:
                    return _moves(broker, origin), queue
                queue.append(broker)
    return [], queue


def _moves(end: int, origin: dict[int, tuple[int, int]]) -> list[tuple[int, int, int]]:
    moves = []
    while origin[end][0] >= 0:
        source, item = origin[end]
        moves.append((source, item, end))
        end = source
    return moves


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
            if not replicas[broker]:
                continue
            others = [(source, each) for source, items in enumerate(replicas) if source != broker for each in items]
            for source, partition in others:
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
        self.degrees = [0] * table.count
        for pair, shared in pairs.items() if isinstance(pairs, Counter) else enumerate(pairs):
            self.degrees[pair // table.count] += shared > 0
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

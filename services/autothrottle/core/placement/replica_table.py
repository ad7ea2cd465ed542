"""The working state of a plan: replica sets as lists of broker indices. The type to know is `ReplicaTable`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas, ordered

HOLE = -1
"""A slot of a replica set that needs a broker."""


class ReplicaTable:
    """The replica sets of a map, and the rules that each set must keep.

    Brokers and partitions are indices into `brokers` and `partitions`. Only this package changes the lists.

    A set needs as many racks as it has replicas, or as `min_rack_ids` says. No move reduces its racks below that, or
    puts more pairs of its replicas into one rack. A broker without a rack counts as a rack of its own.
    """

    def __init__(
        self,
        partitions: Iterable[PartitionReplicas],
        brokers: Iterable[PlacementBroker],
        min_rack_ids: int = 0,
        size_factor: float = 1.0,
        allow_fewer_racks: bool = False,
    ) -> None:
        self.partitions = ordered(partitions)
        brokers_by_id = {broker.id: broker for broker in brokers}
        for id in {id for entry in self.partitions for id in entry.replicas}.difference(brokers_by_id):
            brokers_by_id[id] = PlacementBroker(id, replace=True, missing=True)
        self.brokers = tuple(brokers_by_id[id] for id in sorted(brokers_by_id))
        self.index = {broker.id: index for index, broker in enumerate(self.brokers)}
        self.receives = [broker.receives for broker in self.brokers]
        self.stays = [not (broker.replace or broker.missing) for broker in self.brokers]
        self.staying = [broker for broker, stays in enumerate(self.stays) if stays]
        self.receivers = [broker for broker, receives in enumerate(self.receives) if receives]
        self.racks, self.groups, self.rackless = _racks(self.brokers)
        index = self.index
        self.sets = [[index[id] for id in entry.replicas] for entry in self.partitions]
        self.home = [tuple(replicas) for replicas in self.sets]
        # Replicas that stay when only moved ones may be placed elsewhere.
        self.fixed = list(self.home)
        self.sizes = _sizes(self.partitions, size_factor)
        self.receiving_racks = frozenset(self.racks[broker] for broker in self.receivers)
        self._min_rack_ids = min_rack_ids
        self.allow_fewer_racks = allow_fewer_racks
        self._open_racks = all(
            self.receives[broker] or self.racks[broker] in self.receiving_racks for broker in self.staying
        )

    @property
    def count(self) -> int:
        """The number of brokers."""
        return len(self.brokers)

    def required_racks(self, length: int) -> int:
        """Return how many racks a set of this length needs."""
        return min(length, self._min_rack_ids) if self._min_rack_ids > 0 else length

    def wanted_racks(self, length: int, others: Iterable[int]) -> int:
        """Return how many racks a set can have of those that it needs; `others`: racks of its replicas that stay."""
        racks = len(self.receiving_racks) if self._open_racks else len(self.receiving_racks.union(others))
        return min(self.required_racks(length), racks)

    def crowded_racks(self, length: int, replicas: Iterable[int]) -> list[int]:
        """Return the racks that a further replica of a set of this length must not use.

        These are the racks in use while others are needed, then those with more replicas than the emptiest rack.
        """
        replicas = list(replicas)
        used = [self.racks[broker] for broker in replicas]
        if len(set(used)) < self.wanted_racks(length, used):
            return used
        if self._min_rack_ids > 0 or not used:
            return []
        fewest = min((used.count(self.racks[b]) for b in self.receivers if b not in replicas), default=0)
        return [rack for rack in set(used) if used.count(rack) > fewest]

    def fits(self, partition: int, source: int, destination: int) -> bool:
        """Return whether the replica on `source` may move to `destination` by the rules on brokers and racks."""
        replicas = self.sets[partition]
        if destination in replicas:
            return False
        racks = self.racks
        rack = racks[destination]
        if rack == racks[source]:
            return True
        others = [racks[broker] for broker in replicas if broker != source]
        if rack not in others:
            return True
        if self._min_rack_ids <= 0:
            return others.count(rack) <= others.count(racks[source])
        racks_before_move = len({*others, racks[source]})
        return len(set(others)) >= min(self.required_racks(len(replicas)), racks_before_move)

    def shared_racks(self, replicas: Sequence[int]) -> int:
        """Return how many pairs of replicas with these broker ids share a rack, unless fewer racks suffice."""
        if self._min_rack_ids > 0:
            return 0
        used = Counter(self.racks[self.index[id]] for id in replicas if id >= 0)
        return sum(count * (count - 1) // 2 for count in used.values())

    def move(self, partition: int, source: int, destination: int) -> None:
        """Put the replica on `source` to `destination`, at the same position."""
        replicas = self.sets[partition]
        replicas[replicas.index(source)] = destination

    def leaders(self) -> list[int]:
        """Return the number of partitions that each broker leads."""
        leaders = [0] * self.count
        for replicas in self.sets:
            if replicas and replicas[0] != HOLE:
                leaders[replicas[0]] += 1
        return leaders

    def loads(self) -> list[int]:
        """Return the number of replicas of each broker."""
        loads = [0] * self.count
        for replicas in self.sets:
            for broker in replicas:
                if broker != HOLE:
                    loads[broker] += 1
        return loads

    def free(self) -> list[int]:
        """Return the free storage of each broker with the current sets, bytes.

        Raises:
            Invalid: the free storage of a broker that stays is unknown.
        """
        unknown = [self.brokers[each].id for each in self.staying if self.brokers[each].storage_free is None]
        if unknown:
            raise Invalid(f"free storage of brokers {unknown} is unknown; fetch metrics, or use placement by count")
        free = [each.storage_free or 0 for each in self.brokers]
        for size, old, new in zip(self.sizes, self.home, self.sets, strict=True):
            if list(old) != new:
                for broker in set(old).difference(new):
                    free[broker] += size
                for broker in set(new).difference(old):
                    if broker != HOLE:
                        free[broker] -= size
        return free

    def result(self) -> tuple[PartitionReplicas, ...]:
        """Return the map; slots without a broker are left out."""
        ids = [broker.id for broker in self.brokers]
        return tuple(
            entry
            if list(old) == new
            else entry._replace(replicas=tuple(ids[broker] for broker in new if broker != HOLE))
            for entry, old, new in zip(self.partitions, self.home, self.sets, strict=True)
        )


def _racks(brokers: Sequence[PlacementBroker]) -> tuple[list[int], list[list[int]], int]:
    """Return the rack of each broker, the brokers of each group, and the group of brokers without a rack or -1."""
    names = sorted({broker.rack for broker in brokers if broker.rack})
    number = {name: index for index, name in enumerate(names)}
    racks = [number[broker.rack] if broker.rack else len(names) + index for index, broker in enumerate(brokers)]
    groups: list[list[int]] = [[] for _ in names]
    rackless = [index for index, broker in enumerate(brokers) if not broker.rack]
    for index, broker in enumerate(brokers):
        if broker.rack:
            groups[number[broker.rack]].append(index)
    return racks, [*groups, rackless] if rackless else groups, len(names) if rackless else -1


def _sizes(partitions: Sequence[PartitionReplicas], factor: float) -> list[int]:
    if factor == 1:
        return [entry.size or 0 for entry in partitions]
    return [round((entry.size or 0) * factor) for entry in partitions]

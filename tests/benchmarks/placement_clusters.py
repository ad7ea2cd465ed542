"""Clusters on which the original topicmappr was measured: the same case and seed give the same cluster everywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TypeVar

from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas, ordered

GB = 1 << 30
FIRST_BROKER = 1001

T = TypeVar("T", int, str)


@dataclass(frozen=True)
class Topics:
    """Topics of one kind."""

    count: int
    partitions: int
    replication_factor: int
    size_gb: float
    """Median size of a partition."""
    size_sigma: float


@dataclass(frozen=True)
class Case:
    """How to generate a cluster."""

    racks: tuple[int, ...]
    """Brokers of each rack."""
    spares: int
    """Empty brokers of each rack."""
    topics: tuple[Topics, ...]
    broker_sigma: float
    """How unevenly brokers are used."""
    fill: float = 0.7
    """Used part of the fullest broker."""
    range_spread: float = 0.0
    """Range of free storage divided by the smallest; 0: what `fill` gives."""
    hot: int = 0
    """Partitions of 1,000 GB."""


CASES: Mapping[str, Case] = {
    "article": Case((10,) * 3, 2, (Topics(1, 768, 3, 6.0, 0.35),), 0.05, range_spread=0.1485),
    "medium": Case((10,) * 5, 2, (Topics(50, 100, 3, 4.0, 1.0),), 0.3),
    "large": Case((20,) * 5, 4, (Topics(100, 200, 3, 3.0, 1.0),), 0.25),
    "xl": Case((100,) * 5, 20, (Topics(1000, 200, 3, 2.0, 1.0),), 0.2),
    "hot": Case((2,) * 5, 1, (Topics(1, 200, 3, 10.0, 0.5),), 0.1, hot=1),
    "mixed": Case(
        (3,) * 4,
        1,
        (
            Topics(3, 40, 1, 4.0, 0.7),
            Topics(2, 40, 2, 4.0, 0.7),
            Topics(2, 40, 3, 4.0, 0.7),
            Topics(1, 20, 4, 4.0, 0.7),
        ),
        0.25,
        fill=0.6,
    ),
    "fewracks": Case((4, 4), 1, (Topics(3, 40, 3, 5.0, 0.6),), 0.25, fill=0.6),
    "seed": Case((17, 17, 16), 3, (Topics(1, 1000, 3, 4.0, 0.5),), 0.2),
}


@dataclass(frozen=True)
class Cluster:
    """A map, its brokers and some empty brokers."""

    partitions: tuple[PartitionReplicas, ...]
    brokers: dict[int, PlacementBroker]
    spares: tuple[int, ...]


def generate(name: str, seed: int) -> Cluster:
    """Return the cluster of this case and seed."""
    case, source = CASES[name], random.Random(f"{name}/{seed}")
    mapped = _numbered(case.racks, FIRST_BROKER)
    spares = _numbered((case.spares,) * len(case.racks), FIRST_BROKER + len(mapped))
    draw = _ReplicaDraw(source, mapped, case.broker_sigma)
    partitions = [
        PartitionReplicas("hot", number, draw.replicas(3, FIRST_BROKER + number), 1000 * GB)
        for number in range(case.hot)
    ]
    kinds = chain.from_iterable([kind] * kind.count for kind in case.topics)
    for topic, kind in enumerate(kinds):
        for number in range(kind.partitions):
            replicas = draw.replicas(kind.replication_factor)
            size = int(kind.size_gb * GB * math.exp(source.gauss(0, kind.size_sigma)))
            partitions.append(PartitionReplicas(f"t{topic:04}", number, replicas, size))
    used = dict.fromkeys(mapped, 0)
    for entry in partitions:
        for id in entry.replicas:
            used[id] += entry.size or 0
    most, least = max(used.values()), min(used.values())
    total = most + int((most - least) / case.range_spread) if case.range_spread else int(most / case.fill)
    brokers = {id: PlacementBroker(id, rack, total - used.get(id, 0)) for id, rack in {**mapped, **spares}.items()}
    return Cluster(ordered(partitions), brokers, tuple(spares))


def _numbered(racks: Sequence[int], first: int) -> dict[int, str]:
    """Return broker id -> rack; ids run across the racks."""
    columns = [[f"r{rack + 1:02}"] * count for rack, count in enumerate(racks)]
    names = [name for row in zip_longest(*columns) for name in row if name is not None]
    return dict(enumerate(names, first))


class _ReplicaDraw:
    """Draws brokers by weight, each rack once until all racks are used."""

    def __init__(self, source: random.Random, brokers: Mapping[int, str], sigma: float) -> None:
        self._source, self._rack_of = source, brokers
        self._weight = {id: math.exp(source.gauss(0, sigma)) for id in brokers}
        self._members: dict[str, list[int]] = {}
        for id, rack in brokers.items():
            self._members.setdefault(rack, []).append(id)
        self._racks = sorted(self._members)
        self._rack_weight = {rack: sum(self._weight[id] for id in self._members[rack]) for rack in self._racks}

    def replicas(self, count: int, leader: int | None = None) -> tuple[int, ...]:
        """Return a replica set, with this leader if one is given."""
        chosen = [] if leader is None else [leader]
        left = [rack for rack in self._racks if leader is None or rack != self._rack_of[leader]]
        while len(chosen) < count:
            left = left or list(self._racks)
            rack = self._pick(left, self._rack_weight)
            left.remove(rack)
            chosen.append(self._pick([id for id in self._members[rack] if id not in chosen], self._weight))
        return tuple(chosen)

    def _pick(self, items: Sequence[T], weight: Mapping[T, float]) -> T:
        rest = self._source.random() * sum(weight[item] for item in items)
        for item in items:
            rest -= weight[item]
            if rest < 0:
                return item
        return items[-1]

"""How evenly a partition map uses its brokers. The type to know is `PlacementStatistics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum, sqrt
from typing import NamedTuple

from autothrottle.core.placement.partition_map import PartitionReplicas


class BrokerShare(NamedTuple):
    """The replicas that one broker holds."""

    leaders: int
    """Partitions whose first replica it holds."""
    followers: int

    @property
    def total(self) -> int:
        """All replicas."""
        return self.leaders + self.followers


class Degree(NamedTuple):
    """Number of other brokers with which a broker shares a partition, over the brokers with replicas."""

    min: int
    max: int
    average: float


@dataclass(frozen=True, slots=True)
class StorageSpread:
    """How even the free storage of brokers is, bytes."""

    min: int
    max: int
    mean: float
    harmonic_mean: float
    """Over brokers with free storage; 0: no broker has any."""
    standard_deviation: float
    """Of the population."""

    @property
    def range(self) -> int:
        """The difference between the largest and the smallest free storage."""
        return self.max - self.min

    @property
    def range_spread(self) -> float | None:
        """The range as a fraction of the smallest free storage; None: a broker has none left."""
        return self.range / self.min if self.min > 0 else None


@dataclass(frozen=True, slots=True)
class PlacementStatistics:
    """Statistics of one map over some brokers."""

    shares: Mapping[int, BrokerShare]
    """Broker id -> its replicas, ordered by id; brokers without replicas are included."""
    degree: Degree
    storage_free: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> free bytes, ordered by id; empty: unknown."""
    storage: StorageSpread | None = None
    """None: free storage is unknown."""

    @property
    def leader_spread(self) -> int:
        """The difference between the most and the fewest leaders of a broker."""
        return _spread([share.leaders for share in self.shares.values()])

    @property
    def replica_spread(self) -> int:
        """The difference between the most and the fewest replicas of a broker."""
        return _spread([share.total for share in self.shares.values()])


def _spread(counts: list[int]) -> int:
    return max(counts, default=0) - min(counts, default=0)


def statistics(
    partitions: Iterable[PartitionReplicas], broker_ids: Iterable[int], storage_free: Mapping[int, int] | None = None
) -> PlacementStatistics:
    """Return the statistics of a map over these brokers.

    Args:
        partitions: the map.
        broker_ids: brokers to count; degrees cover every broker with replicas.
        storage_free: broker id -> free bytes with this map; None: unknown.
    """
    leaders: dict[int, int] = dict.fromkeys(sorted(broker_ids), 0)
    totals = dict(leaders)
    shared: dict[int, set[int]] = {}
    for entry in partitions:
        replicas = entry.replicas
        if replicas:
            leaders[replicas[0]] = leaders.get(replicas[0], 0) + 1
        for broker in replicas:
            totals[broker] = totals.get(broker, 0) + 1
            if (others := shared.get(broker)) is None:
                others = shared[broker] = set()
            others.update(replicas)
    free = {} if storage_free is None else {broker: storage_free[broker] for broker in sorted(storage_free)}
    return PlacementStatistics(
        shares={
            broker: BrokerShare(leaders.get(broker, 0), totals[broker] - leaders.get(broker, 0))
            for broker in sorted(totals)
        },
        degree=_degree([len(others) - 1 for others in shared.values()]),
        storage_free=free,
        storage=storage_spread(free.values()),
    )


def _degree(degrees: list[int]) -> Degree:
    return Degree(min(degrees), max(degrees), sum(degrees) / len(degrees)) if degrees else Degree(0, 0, 0.0)


def storage_spread(free: Iterable[int]) -> StorageSpread | None:
    """Return how even free storage is; None: no broker is given.

    The example of the article about Kafka-Kit, in GB:

    >>> before = [1055.13, 925.77, 942.71, 1020.07, 961.55, 1063.25]
    >>> after = [993.30, 995.47, 993.46, 997.41, 993.53, 995.30]
    >>> for free in before, after:
    ...     spread = storage_spread(round(each * 2**30) for each in free)
    ...     print(f"{spread.range_spread:.2%} {spread.standard_deviation / 2**30:.2f}GB")
    14.85% 54.08GB
    0.41% 1.48GB
    """
    values = list(free)
    if not values:
        return None
    mean = fsum(values) / len(values)
    positive = [value for value in values if value > 0]
    return StorageSpread(
        min=min(values),
        max=max(values),
        mean=mean,
        harmonic_mean=len(positive) / fsum(1 / value for value in positive) if positive else 0.0,
        standard_deviation=sqrt(fsum((value - mean) ** 2 for value in values) / len(values)),
    )

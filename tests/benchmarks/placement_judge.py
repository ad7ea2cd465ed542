"""Judges a plan by its maps alone: nothing here uses the planner's own figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from autothrottle.core.placement.partition_map import PartitionMap
from tests.benchmarks.placement_clusters import GB, Cluster


@dataclass(frozen=True)
class Balance:
    """How evenly a map uses its brokers."""

    leader_spread: int
    replica_spread: int
    range_spread: float
    """(max - min) / min of free storage; infinite: a broker has none left."""
    degree_min: int
    """Fewest distinct brokers with which a broker shares partitions."""
    degree_average: float


@dataclass(frozen=True)
class Verdict:
    """What a plan moves, breaks and achieves."""

    moved_replicas: int
    copied_gb: float
    bound_gb: float
    """The least that must be copied to make free storage equal; racks and sizes of partitions are ignored."""
    leader_changes: int
    before: Balance
    after: Balance
    violations: int
    """Brokers twice in a set, avoidable sharing of racks, brokers that are not wanted, brokers without free storage."""
    lost_replicas: int


def judge(cluster: Cluster, after: PartitionMap, wanted: Collection[int]) -> Verdict:
    """Judge a plan from the cluster's map to `after`, which lists the same partitions, for the wanted brokers."""
    before, rack = cluster.partitions, {id: broker.rack for id, broker in cluster.brokers.items()}
    start = {id: broker.storage_free or 0 for id, broker in cluster.brokers.items()}
    free, moved, copied, leaving, violations, lost = dict(start), 0, 0, 0, 0, 0
    racks = len({rack[id] for id in wanted})
    for old, new in zip(before, after, strict=True):
        assert old.key == new.key
        size, added = old.size or 0, set(new.replicas) - set(old.replicas)
        moved, copied = moved + len(added), copied + size * len(added)
        leaving += size * sum(id not in wanted for id in old.replicas)
        for id in added:
            free[id] -= size
        for id in set(old.replicas) - set(new.replicas):
            free[id] += size
        distinct = set(new.replicas)
        violations += len(distinct) < len(new.replicas)
        violations += len({rack[id] for id in distinct}) < min(len(distinct), racks)
        violations += len(distinct.difference(wanted))
        lost += max(len(old.replicas) - len(distinct), 0)
    violations += sum(free[id] < 0 for id in wanted)
    level = (sum(start[id] for id in wanted) - leaving) / len(wanted)
    bound = sum(max(0.0, start[id] - level) for id in wanted)
    mapped = sorted({id for entry in before for id in entry.replicas})
    return Verdict(
        moved_replicas=moved,
        copied_gb=round(copied / GB, 1),
        bound_gb=round(bound / GB, 1),
        leader_changes=sum(old.replicas[:1] != new.replicas[:1] for old, new in zip(before, after, strict=True)),
        before=_balance(before, mapped, [start[id] for id in mapped]),
        after=_balance(after, wanted, [free[id] for id in wanted]),
        violations=violations,
        lost_replicas=lost,
    )


def _balance(partitions: PartitionMap, brokers: Collection[int], free: Sequence[int]) -> Balance:
    leaders = Counter(entry.replicas[0] for entry in partitions if entry.replicas)
    held = Counter(id for entry in partitions for id in entry.replicas)
    beside: dict[int, set[int]] = {}
    for entry in partitions:
        for id in entry.replicas:
            beside.setdefault(id, set()).update(entry.replicas)
    degrees = [len(others) - 1 for others in beside.values()]
    return Balance(
        _spread([leaders[id] for id in brokers]),
        _spread([held[id] for id in brokers]),
        _spread(free) / min(free) if min(free) > 0 else math.inf,
        min(degrees),
        round(sum(degrees) / len(degrees), 2),
    )


def _spread(values: Sequence[int]) -> int:
    return max(values) - min(values)

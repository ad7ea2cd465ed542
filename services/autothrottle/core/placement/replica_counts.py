"""Make the numbers of replicas of brokers even."""

from __future__ import annotations

from collections.abc import Iterable

from autothrottle.core.placement.even_counts import even_counts
from autothrottle.core.placement.levelling import Levelling, MoveRules
from autothrottle.core.placement.replica_table import HOLE, ReplicaTable

_UNLIMITED = MoveRules(budget=float("inf"))


def even_replicas(table: ReplicaTable, only_moved: bool) -> None:
    """Move as few replicas as even counts need, smaller partitions first.

    With `only_moved`, replicas on their old brokers stay there.
    """
    items: list[list[int]] = [[] for _ in range(table.count)]
    for partition in sorted(range(len(table.sets)), key=lambda each: table.sizes[each]):
        fixed = table.fixed[partition] if only_moved else ()
        for broker in table.sets[partition]:
            if broker != HOLE and broker not in fixed:
                items[broker].append(partition)
    receivers = [broker for broker in range(table.count) if table.receives[broker]]

    def options(partition: int, source: int) -> Iterable[int]:
        return (broker for broker in receivers if table.fits(partition, source, broker))

    even_counts(table.loads(), items, options, table.move)


def level_counts(table: ReplicaTable) -> None:
    """Make the numbers of replicas even by few moves from the current map."""
    Levelling(table, [-load for load in table.loads()], _UNLIMITED, [1] * len(table.sets)).drain()
    even_replicas(table, only_moved=False)

"""Even out the numbers of replicas of brokers by few moves."""

from __future__ import annotations

from collections.abc import Iterable

from autothrottle.core.placement.even_counts import even_counts
from autothrottle.core.placement.replica_table import ReplicaTable


def level_counts(table: ReplicaTable) -> None:
    """Move as few replicas as even counts need, smaller partitions first."""
    items: list[list[int]] = [[] for _ in range(table.count)]
    for partition in sorted(range(len(table.sets)), key=lambda each: table.sizes[each]):
        for broker in table.sets[partition]:
            items[broker].append(partition)
    receivers = [broker for broker in range(table.count) if table.receives[broker]]

    def options(partition: int, source: int) -> Iterable[int]:
        return (broker for broker in receivers if table.fits(partition, source, broker))

    even_counts(table.loads(), items, options, table.move)

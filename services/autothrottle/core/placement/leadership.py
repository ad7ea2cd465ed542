"""Which replica of each partition leads. Nothing here moves bytes: only the order of replicas changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import Compile, PartitionMap, PartitionReplicas, matching_topics
from autothrottle.core.placement.plan import LeadershipEvacuation
from autothrottle.core.placement.replica_counts import even_counts
from autothrottle.core.placement.replica_table import ReplicaTable

_SWEEPS = 8


def even_leaders(table: ReplicaTable, may_lead: list[bool]) -> None:
    """Reorder the replica sets until the numbers of leaders are as even as they can be.

    A new leader changes places with the old one. No order with a smaller spread exists.
    """
    sets, loads = table.sets, table.leaders()
    leading = [load for load, may in zip(loads, may_lead, strict=True) if may]
    if not leading:
        return
    mean = sum(loads) // len(leading)
    for sweep in range(_SWEEPS):
        # First from brokers above the mean to brokers below it, which changes the fewest leaders.
        if not _sweep(sets, loads, may_lead, mean if sweep == 0 else None):
            break
    led: list[list[int]] = [[] for _ in loads]
    for partition, replicas in enumerate(sets):
        if replicas:
            led[replicas[0]].append(partition)

    def options(partition: int, _: int) -> Iterable[int]:
        return [broker for broker in sets[partition] if may_lead[broker]]

    def move(partition: int, _: int, leader: int) -> None:
        _lead(sets[partition], leader)

    even_counts(loads, led, options, move)
    _even_followers(sets, loads, table.loads(), may_lead)


def _even_followers(sets: list[list[int]], loads: list[int], totals: list[int], may_lead: list[bool]) -> None:
    """Give the extra leader of two brokers to the one with more replicas, so that it has fewer followers."""
    for replicas in sets:
        for broker in replicas[1:]:
            old = replicas[0]
            if loads[old] - loads[broker] == 1 and totals[broker] > totals[old] and may_lead[broker]:
                _lead(replicas, broker)
                loads[old] -= 1
                loads[broker] += 1
                break


def _sweep(sets: list[list[int]], loads: list[int], may_lead: list[bool], mean: int | None) -> bool:
    """Move each leadership to the broker with the fewest leaders if that helps; return whether any moved."""
    changed = False
    for replicas in sets:
        if len(replicas) < 2:
            continue
        old = replicas[0]
        load = loads[old]
        best = load - 1
        leader = -1
        for broker in replicas:
            if loads[broker] < best and may_lead[broker]:
                best, leader = loads[broker], broker
        if leader >= 0 and (mean is None or best < mean < load):
            _lead(replicas, leader)
            loads[old] -= 1
            loads[leader] += 1
            changed = True
    return changed


def _lead(replicas: list[int], leader: int) -> None:
    position = replicas.index(leader)
    replicas[0], replicas[position] = leader, replicas[0]


def leadership_evacuation(
    partitions: PartitionMap, brokers: Sequence[int], patterns: Sequence[str], compile: Compile = re.compile
) -> LeadershipEvacuation | None:
    """Return the evacuation of the brokers and of the topics of a map that match; None: none is given.

    Raises:
        Invalid: a pattern is not a regular expression.
    """
    if not brokers or not patterns:
        return None
    topics = matching_topics({entry.topic for entry in partitions}, patterns, compile=compile)
    return LeadershipEvacuation(frozenset(brokers), frozenset(topics))


def evacuate_leadership(partitions: PartitionMap, evacuation: LeadershipEvacuation) -> PartitionMap:
    """Return the map with no leader on the evacuated brokers, for the given topics.

    Raises:
        Invalid: every replica of a partition is on an evacuated broker.
    """
    return tuple(
        entry._replace(replicas=_evacuated(entry, evacuation.brokers))
        if entry.topic in evacuation.topics and entry.replicas[:1] and entry.replicas[0] in evacuation.brokers
        else entry
        for entry in partitions
    )


def _evacuated(entry: PartitionReplicas, brokers: frozenset[int]) -> tuple[int, ...]:
    replicas = entry.replicas
    for position, broker in enumerate(replicas):
        if broker not in brokers:
            return (broker, *replicas[1:position], replicas[0], *replicas[position + 1 :])
    raise Invalid(
        f"all replicas of {entry.topic} p{entry.partition} are on evacuated brokers; evacuate fewer brokers at once"
    )

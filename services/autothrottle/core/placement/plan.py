"""The options, the result and the steps of a plan. The type to know is `PlacementPlan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionMap, PartitionReplicas
from autothrottle.core.placement.statistics import BrokerShare, PlacementStatistics

_GB = 1 << 30


def gigabytes(size: int) -> str:
    """Return a size for operators. A GB is 2^30 bytes, as in Kafka-Kit.

    >>> gigabytes(3 << 29), gigabytes(120)
    ('1.50GB', '120 bytes')
    """
    return f"{size / _GB:.2f}GB" if abs(size) >= _GB // 100 else f"{size} bytes"


class Strategy(StrEnum):
    """What a placement makes even."""

    COUNT = "count"
    """The number of replicas and leaders."""
    STORAGE = "storage"
    """The free storage; needs sizes and free storage."""


class Optimization(StrEnum):
    """How a rebuild chooses among placements."""

    DISTRIBUTION = "distribution"
    """More distinct pairs of brokers share partitions."""
    STORAGE = "storage"
    """The free storage is as even as possible."""
    MINIMAL = "minimal"
    """As few bytes as possible are copied. Only with `force`."""


class LeadershipEvacuation(NamedTuple):
    """Brokers that shall not lead the partitions of some topics."""

    brokers: frozenset[int]
    topics: frozenset[str]


class Affinity(NamedTuple):
    """A broker that leaves, and the new broker that substitutes it."""

    leaving: int
    substitute: int
    inferred: bool
    """The rack of the leaving broker was inferred from the map."""


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """Options of `rebuild`."""

    strategy: Strategy = Strategy.COUNT
    optimization: Optimization = Optimization.DISTRIBUTION
    force: bool = False
    """Place every replica anew."""
    replication_factor: int = 0
    """Wanted replicas per partition; 0 or less: as they are."""
    substitution_affinity: bool = False
    """Each broker that leaves is substituted by one new broker of its rack. Not with `force`."""
    affinities: tuple[Affinity, ...] = ()
    """The substitutes of some brokers, instead of `substitution_affinity`."""
    min_rack_ids: int = 0
    """Distinct racks that suffice for each partition; 0: all its replicas must be in different racks."""
    allow_fewer_racks: bool = False
    """Replicas may share a rack where the brokers leave no other choice: a warning instead of a refusal."""
    partition_size_factor: float = 1.0
    """Each size is multiplied by this factor, > 0: room for growth."""
    optimize_leadership: bool = False
    evacuation: LeadershipEvacuation | None = None


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """Options of `rebalance`, `scale` and `decommission`."""

    storage_threshold: float | None = None
    """Only brokers whose free storage is at least this fraction below the harmonic mean offload.

    None: all below the mean. `scale` and `decommission` ignore both thresholds."""
    storage_threshold_bytes: int = 0
    """Only brokers with less free storage offload, bytes; 0: not used. It replaces `storage_threshold`."""
    tolerance: float | None = None
    """Largest distance of free storage from the mean, as a fraction in (0, 1); None: as even as possible."""
    partition_limit: int = 0
    """Relocations away from each broker, at most; 0: no limit."""
    partition_size_threshold: int = 0
    """Smaller partitions stay, bytes."""
    locality_scoped: bool = False
    """Replicas stay in their rack."""
    min_rack_ids: int = 0
    allow_fewer_racks: bool = False
    """As for `RebuildOptions`."""
    optimize_leadership: bool = False


class Relocation(NamedTuple):
    """One replica that a rebalance moves."""

    partition: PartitionReplicas
    """Before the plan."""
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """A new partition map beside the old one."""

    old_map: PartitionMap
    new_map: PartitionMap
    """The same partitions in the same order."""
    brokers: tuple[PlacementBroker, ...]
    old_statistics: PlacementStatistics
    """Over the brokers that hold replicas before the plan."""
    new_statistics: PlacementStatistics
    """Over the brokers that stay or join."""
    warnings: tuple[str, ...] = ()
    """Sorted. A caller should not execute a plan with warnings unless an operator accepts them."""
    refusals: tuple[str, ...] = ()
    """Warnings that forbid execution: the plan loses replicas, or puts replicas into one rack."""
    accepted_warnings: tuple[str, ...] = ()
    """The warnings that an option of the plan has accepted already."""
    notes: tuple[str, ...] = ()
    """Sentences that need no consent, for example about a wider range that no plan can avoid."""
    affinities: tuple[Affinity, ...] = ()
    relocations: tuple[Relocation, ...] = ()
    """Of `rebalance`, `scale` and `decommission`: each replica that moves, ordered by source, size and partition."""
    offload_targets: tuple[int, ...] = ()
    """Brokers that offload replicas, the one with the least free storage first."""
    tolerance: float = 0.0
    """Largest distance of a broker's free storage from the mean after the plan, as a fraction; or the option's."""
    copied_bytes: int = 0
    """Bytes that the brokers have to copy, unknown sizes as 0."""
    bound_bytes: int = 0
    """The least bytes that must be copied to make free storage equal on all brokers; racks and sizes are ignored."""

    @property
    def partitions_to_copy(self) -> int:
        """The number of partitions with replicas to copy."""
        pairs = zip(self.old_map, self.new_map, strict=True)
        return sum(not set(old.replicas).issuperset(new.replicas) for old, new in pairs)


class ReplicaReason(NamedTuple):
    """Why a plan placed one replica on its broker."""

    topic: str
    partition: int
    broker_id: int
    replaces: int | None
    """The broker that held the replica; None: it stays, or the replication factor grows."""
    reason: str
    """A sentence for operators."""


def explain(plan: PlacementPlan) -> tuple[ReplicaReason, ...]:
    """Return one reason for each replica of a changed partition, in the order of the map."""
    brokers = {broker.id: broker for broker in plan.brokers}
    return tuple(
        reason
        for old, new in zip(plan.old_map, plan.new_map, strict=True)
        if old.replicas != new.replicas
        for reason in _reasons(plan, brokers, old, new)
    )


def _reasons(
    plan: PlacementPlan, brokers: Mapping[int, PlacementBroker], old: PartitionReplicas, new: PartitionReplicas
) -> list[ReplicaReason]:
    leaving = [id for id in old.replicas if id not in new.replicas]
    reasons = []
    for position, id in enumerate(new.replicas):
        if id in old.replicas:
            reasons.append(ReplicaReason(new.topic, new.partition, id, None, _stay(position, id, old, new)))
            continue
        same = old.replicas[position] if position < len(old.replicas) else None
        replaces = same if same in leaving else next(iter(leaving), None)
        if replaces is not None:
            leaving.remove(replaces)
        cause = "The replication factor grows" if replaces is None else _departure(plan, brokers[replaces])
        text = f"{cause}; {_arrival(plan, brokers, id, new.replicas)}"
        reasons.append(ReplicaReason(new.topic, new.partition, id, replaces, text))
    return reasons


def _stay(position: int, id: int, old: PartitionReplicas, new: PartitionReplicas) -> str:
    if position == 0 and old.replicas[0] != id:
        return f"Broker {id} keeps its replica and becomes the preferred leader"
    if position > 0 and old.replicas[0] == id:
        return f"Broker {id} keeps its replica; broker {new.replicas[0]} becomes the preferred leader"
    return f"Broker {id} keeps its replica"


def _departure(plan: PlacementPlan, broker: PlacementBroker) -> str:
    if broker.missing:
        return f"Broker {broker.id} is missing"
    if broker.replace:
        return f"Broker {broker.id} leaves"
    free = plan.old_statistics.storage_free.get(broker.id)
    if broker.id in plan.offload_targets and free is not None:
        return f"Broker {broker.id} offloads replicas, with {free / _GB:.2f}GB free before"
    return f"The replica of broker {broker.id} is placed anew"


def _arrival(plan: PlacementPlan, brokers: Mapping[int, PlacementBroker], id: int, replicas: tuple[int, ...]) -> str:
    rack = brokers[id].rack
    shared = rack and any(brokers[other].rack == rack for other in replicas if other != id)
    where = f"broker {id} in rack {rack}" if rack else f"broker {id}"
    alone = ", which no other replica uses," if rack and not shared else ""
    old, new = brokers[id].storage_free, plan.new_statistics.storage_free.get(id)
    if old is not None and new is not None:
        return f"{where}{alone} has {old / _GB:.2f}GB free before and {new / _GB:.2f}GB after the plan"
    old_count = plan.old_statistics.shares.get(id, BrokerShare(0, 0)).total
    new_count = plan.new_statistics.shares[id].total
    return f"{where}{alone} holds {old_count} replicas before and {new_count} after the plan"


# Executing one plan in several steps, each a complete partition map.


def steps(plan: PlacementPlan, in_phases: bool, brokers_per_chunk: int) -> tuple[PartitionMap, ...]:
    """Return the complete maps that lead to a plan: two phases, chunks, or only its own map.

    Raises:
        Invalid: both are wanted, or a chunk would change a replication factor.
    """
    if in_phases and brokers_per_chunk > 0:
        raise Invalid("phases and chunks both divide the map; leave one of them out")
    if in_phases:
        return phased(plan.old_map, plan.new_map)
    return chunks(plan.old_map, plan.new_map, brokers_per_chunk) if brokers_per_chunk > 0 else (plan.new_map,)


def phased(old_map: PartitionMap, new_map: PartitionMap) -> tuple[PartitionMap, PartitionMap]:
    """Return the maps of two phases: first with the old leader kept in front, then `new_map`.

    Phase 0 lists the old leader first, also where the plan removes it. Its broker leads until the new replicas are in
    sync. Partitions that do not change are in both maps.
    """
    phase = tuple(
        new._replace(replicas=(old.replicas[0], *(broker for broker in new.replicas if broker != old.replicas[0])))
        if old.replicas and old.replicas[0] >= 0 and old.replicas[:1] != new.replicas[:1]
        else new
        for old, new in zip(old_map, new_map, strict=True)
    )
    return phase, new_map


def chunks(old_map: PartitionMap, new_map: PartitionMap, brokers_per_chunk: int) -> tuple[PartitionMap, ...]:
    """Return maps that lead from `old_map` to `new_map`, each of which changes replicas of a few brokers.

    Each map is complete and contains no broker twice in a partition; the last one is `new_map`. A map replaces whole
    replica sets: those which name one of its brokers, highest ids first, before the plan.

    Args:
        old_map: the current map.
        new_map: the planned map.
        brokers_per_chunk: brokers per map, > 0.

    Raises:
        Invalid: a replication factor changes.
    """
    changed = [
        (number, old.replicas, new.replicas)
        for number, (old, new) in enumerate(zip(old_map, new_map, strict=True))
        if old.replicas != new.replicas
    ]
    for number, old, new in changed:
        if len(old) != len(new):
            entry = old_map[number]
            raise Invalid(
                f"{entry.topic} p{entry.partition}: chunks cannot change replication factor {len(old)} to {len(new)}"
            )
    # Kafka moves a partition once: its set changes with the highest broker that loses or reorders a replica.
    owners = {number: max(_differing(old, new)) for number, old, new in changed}
    ids = sorted(set(owners.values()), reverse=True)
    current = list(old_map)
    maps = []
    for start in range(0, len(ids), brokers_per_chunk):
        chosen = set(ids[start : start + brokers_per_chunk])
        for number, owner in owners.items():
            if owner in chosen:
                current[number] = new_map[number]
        maps.append(tuple(current))
    return tuple(maps)


def _differing(old: tuple[int, ...], new: tuple[int, ...]) -> set[int]:
    return {old_broker for old_broker, new_broker in zip(old, new, strict=True) if old_broker != new_broker}

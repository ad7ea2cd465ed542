"""The brokers on which a plan may place replicas. The types to know are `PlacementBroker` and `BrokerSelection`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from autothrottle.core.placement.partition_map import PartitionReplicas

ALL_MAPPED = -1
"""In a list of wanted brokers: every broker that the map names."""
ALL_REGISTERED = -2
"""In a list of wanted brokers: every broker of the cluster."""


@dataclass(frozen=True, slots=True)
class PlacementBroker:
    """A broker that a plan uses, or from which it moves replicas away."""

    id: int
    rack: str = ""
    """`broker.rack`; "": unknown, which conflicts with no other rack."""
    storage_free: int | None = None
    """Free bytes before the plan; None: unknown."""
    replace: bool = False
    """All its replicas move away."""
    missing: bool = False
    """The cluster does not know this broker."""
    new: bool = False
    """The map does not name this broker yet."""
    cordoned: bool = False
    """It keeps its replicas and receives none (KIP-1066)."""

    @property
    def receives(self) -> bool:
        """Whether a plan may place replicas on this broker."""
        return not (self.replace or self.missing or self.cordoned)


@dataclass(frozen=True, slots=True)
class BrokerSelection:
    """The brokers of a plan, and how they differ from those of the map."""

    brokers: tuple[PlacementBroker, ...]
    """Every broker that the map or the list names, ordered by id; listed brokers that do not exist are left out."""
    messages: tuple[str, ...] = ()
    """One line per difference, for example `Broker 1003 marked for removal`, ordered by broker."""
    replaced: int = 0
    """Brokers of the map that leave, the missing ones included."""
    added: int = 0
    missing: int = 0
    """Listed brokers that the cluster does not know."""
    old_missing: int = 0
    """Brokers of the map that are not listed and that the cluster does not know."""
    rack_missing: int = 0
    """Listed brokers without a rack."""


def select_brokers(
    partitions: Iterable[PartitionReplicas],
    broker_ids: Collection[int],
    cluster: Mapping[int, PlacementBroker] | None,
) -> BrokerSelection:
    """Return the brokers of a plan.

    Args:
        partitions: the map that the plan changes.
        broker_ids: ids of brokers that shall hold replicas; ALL_MAPPED and ALL_REGISTERED stand for several.
        cluster: broker id -> rack, free storage and cordon of each registered broker. None: no metadata is in use, and
            each wanted broker counts as registered.
    """
    mapped = {broker for entry in partitions for broker in entry.replicas}
    listed = _listed(broker_ids, mapped, cluster)
    registered = {broker: PlacementBroker(broker) for broker in mapped | listed} if cluster is None else cluster
    chosen = [_classified(broker, broker in mapped, broker in listed, registered) for broker in sorted(mapped | listed)]
    selected = tuple(broker for broker in chosen if broker.id in mapped or not broker.missing)
    return BrokerSelection(
        brokers=selected,
        messages=tuple(message for broker in chosen for message in _messages(broker, broker.id in mapped)),
        replaced=sum(broker.replace for broker in selected),
        added=sum(broker.new for broker in selected),
        missing=sum(broker.missing and broker.id in listed for broker in chosen),
        old_missing=sum(broker.missing and broker.id not in listed for broker in chosen),
        rack_missing=sum(broker.id in listed and not broker.rack and not broker.missing for broker in chosen)
        if cluster is not None
        else 0,
    )


def _listed(
    broker_ids: Collection[int], mapped: Collection[int], cluster: Mapping[int, PlacementBroker] | None
) -> set[int]:
    listed = {broker for broker in broker_ids if broker not in (ALL_MAPPED, ALL_REGISTERED)}
    if ALL_MAPPED in broker_ids:
        listed.update(broker for broker in mapped if broker >= 0)
    if ALL_REGISTERED in broker_ids and cluster is not None:
        listed.update(cluster)
    return listed


def _classified(id: int, mapped: bool, listed: bool, registered: Mapping[int, PlacementBroker]) -> PlacementBroker:
    broker = registered.get(id)
    if broker is None:
        return PlacementBroker(id, replace=mapped, missing=True)
    return replace(broker, replace=mapped and not listed, new=not mapped)


def _messages(broker: PlacementBroker, mapped: bool) -> list[str]:
    if broker.missing:
        return [f"Previous broker {broker.id} missing" if mapped else f"Broker {broker.id} not found in the cluster"]
    if broker.replace:
        return [f"Broker {broker.id} marked for removal"]
    return [f"New broker {broker.id}"] if broker.new else []

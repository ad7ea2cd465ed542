"""The brokers on which a plan may place replicas. The types to know are `PlacementBroker` and `BrokerSelection`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

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
    wanted: Collection[int],
    cluster: Mapping[int, PlacementBroker] | None,
) -> BrokerSelection:
    """Return the brokers of a plan.

    Args:
        partitions: the map that the plan changes.
        wanted: ids of brokers that shall hold replicas; ALL_MAPPED and ALL_REGISTERED stand for several.
        cluster: broker id -> rack, free storage and cordon of each registered broker. None: no metadata is in use, and
            each wanted broker counts as registered.
    """
    raise NotImplementedError
